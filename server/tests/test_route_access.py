"""Access to lookups, by the Authorization field, the hashes of a Secret, and the cluster's keys."""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import SAME
from support.signers import Signer, claims_of, ec_signer, jwks, rsa_signer
from support.waiting import soon

from lookupdb.account_tokens import NO_KEYS, ServiceAccounts
from lookupdb.credentials import MAX_TOKEN_BYTES, Admitted, Denial, Denied, Subjects, is_subject
from lookupdb.router import access as watch
from lookupdb.router.access import (
    MAX_HASHES,
    MIN_TOKEN_BYTES,
    NO_TOKENS,
    AccessSettings,
    Gatekeeper,
    NoToken,
    hash_token,
    read_bearer_token,
    read_token_hashes,
)

AUDIENCE = "lookupdb:airports"
TOKEN = b"kWm3Qx1c0VJ8yq4n7TtR2bZ5sLh9uGfE"
OTHER = b"another-token-that-is-long-enough"


def hashes(*tokens: bytes) -> Any:
    return read_token_hashes({Path("client"): "\n".join(map(hash_token, tokens)).encode()})


def tokens_only(*tokens: bytes) -> Gatekeeper:
    gatekeeper = Gatekeeper(token_folder="tokens", accounts=None)
    if tokens:
        gatekeeper.take_hashes(hashes(*tokens))
    return gatekeeper


def accounts(*signers: Signer, subjects: tuple[str, ...] = ("team/default",)) -> ServiceAccounts:
    judge = ServiceAccounts(AUDIENCE, subjects)
    if signers:
        assert judge.take_keys(json.dumps(jwks(*signers)).encode())
    return judge


def sign(signer: Signer | None = None, **changes: Any) -> bytes:
    return (signer or ec_signer()).sign({**claims_of("team"), "aud": [AUDIENCE], **changes}).encode()


def bearer(token: bytes) -> bytes:
    return b"Bearer " + token


def denial(verdict: Admitted | Denied) -> Denial | None:
    return verdict.denial if isinstance(verdict, Denied) else None


@pytest.mark.parametrize("scheme", [b"Bearer", b"bearer", b"BEARER", b"  Bearer", b"Bearer  "])
def test_the_scheme_is_written_in_any_case(scheme: bytes) -> None:
    assert read_bearer_token(scheme + b" " + TOKEN) == TOKEN


def test_what_holds_no_token_is_refused_and_not_repeated() -> None:
    for field in (
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        TOKEN,
        b"Basic " + TOKEN,
        b"Bearer\t" + TOKEN,
        b"Bearer " + TOKEN + b" " + OTHER,
        b"Bearer " + TOKEN + b", Bearer " + OTHER,
        b'Bearer token="' + TOKEN + b'"',
        b"Bearer " + TOKEN + b"\xff",
        b"Bearer =" + TOKEN,
        b"Bearer " + TOKEN[: MIN_TOKEN_BYTES - 1],
        b"Bearer " + b"x" * MAX_TOKEN_BYTES,
        b"BearerBearer " + TOKEN,
    ):
        with pytest.raises(NoToken) as caught:
            read_bearer_token(field)
        assert TOKEN.decode() not in str(caught.value)
        verdict = tokens_only(TOKEN).judge(field)
        assert denial(verdict) is Denial.UNAUTHENTICATED


def test_a_token_is_let_in_by_its_hash_for_good() -> None:
    assert tokens_only(TOKEN, OTHER).judge(bearer(TOKEN)) == Admitted(math.inf)
    assert denial(tokens_only(OTHER).judge(bearer(TOKEN))) is Denial.UNAUTHENTICATED


def test_the_hash_itself_lets_nobody_in() -> None:
    digest = hash_token(TOKEN).removeprefix("sha256:").encode()
    assert denial(tokens_only(TOKEN).judge(bearer(digest))) is Denial.UNAUTHENTICATED


def test_without_any_hash_nobody_is_let_in_and_nobody_is_told_that_a_token_is_wrong() -> None:
    gatekeeper = tokens_only()
    assert gatekeeper.judge(bearer(TOKEN)) == Denied(Denial.UNDECIDED, NO_TOKENS), "and no client where files are"
    assert denial(gatekeeper.judge(None)) is Denial.UNAUTHENTICATED
    assert not gatekeeper.can_judge
    (problem,) = gatekeeper.describe()["problems"]
    assert problem.startswith(f"{NO_TOKENS}: there is no file with one in tokens (in a cluster, the Secret of ")


def test_a_file_has_a_hash_a_line() -> None:
    text = (
        f"\n{hash_token(TOKEN)}\r\n\n  {hash_token(OTHER).replace('sha256:', 'sha256:').upper().replace('SHA', 'sha')} "
    )
    found = read_token_hashes({Path("a"): text.encode(), Path("b"): hash_token(b"third").encode()})
    assert len(found.digests) == 3
    assert not found.problems


@pytest.mark.parametrize(
    "text",
    [
        TOKEN,
        b"",
        b"\n",
        b"\xff\xfe",
        hash_token(TOKEN).encode() + b"\n" + TOKEN,
        hash_token(TOKEN).encode() + b" # the first",
        hash_token(TOKEN).removeprefix("sha256:").encode(),
        hash_token(TOKEN).encode()[:-1],
        b"sha512:" + b"0" * 128,
        b"\n".join([hash_token(b"%d" % number).encode() for number in range(MAX_HASHES + 1)]),
        b"x" * (8 << 10) + b"y",
    ],
)
def test_a_file_that_is_not_as_it_should_be_lets_nobody_in_and_is_told_without_its_value(text: bytes) -> None:
    found = read_token_hashes({Path("batch"): text, Path("web"): hash_token(OTHER).encode()})
    assert found.digests == hashes(OTHER).digests
    (problem,) = found.problems
    assert problem.startswith("batch: ")
    assert TOKEN.decode() not in problem
    assert hash_token(TOKEN)[7:40] not in problem


def test_a_token_in_the_place_of_its_hash_is_told_how_to_be_hashed() -> None:
    (problem,) = read_token_hashes({Path("web"): TOKEN}).problems
    assert "lookupdb token --hash" in problem


def test_not_more_than_a_few_problems_are_told() -> None:
    found = read_token_hashes({Path(f"client-{number:03}"): b"" for number in range(900)})
    assert len(found.problems) == 6
    assert found.problems[-1] == "and 895 more"


def test_a_file_whose_name_begins_with_a_dot_is_told_of_and_counts_for_nothing() -> None:
    found = read_token_hashes({Path("/t/.web"): hash_token(TOKEN).encode(), Path("/t/.git"): None})
    assert not found.digests
    assert found.problems == tuple(
        f"{name} is not read, because its name begins with a dot" for name in (".web", ".git")
    )


def test_a_change_of_hashes_is_a_new_version_and_a_repeat_is_none() -> None:
    gatekeeper = tokens_only(TOKEN)
    before = gatekeeper.version
    gatekeeper.take_hashes(hashes(TOKEN))
    assert gatekeeper.version == before
    gatekeeper.take_hashes(hashes(TOKEN, OTHER))
    assert gatekeeper.version == before + 1


@pytest.mark.parametrize(
    ("subject", "allowed"),
    [
        ("team/default", True),
        ("team/*", True),
        ("team/other", False),
        ("other/default", False),
        ("other/*", False),
        ("tea/*", False),
    ],
)
def test_a_service_account_is_let_in_by_its_subject(subject: str, allowed: bool) -> None:
    gatekeeper = Gatekeeper(token_folder=None, accounts=accounts(ec_signer(), subjects=(subject,)))
    verdict = gatekeeper.judge(bearer(sign()))
    assert isinstance(verdict, Admitted) == allowed
    if isinstance(verdict, Denied):
        assert verdict.denial is Denial.FORBIDDEN
        assert "team/default" in verdict.detail


def test_a_subject_names_a_namespace_and_an_account() -> None:
    for text in (
        "",
        "team",
        "*/default",
        "*/*",
        "team/",
        "/default",
        "Team/x",
        "team/x/y",
        "team/*x",
        "team/x\n",
        "te_am/x",
    ):
        assert not is_subject(text)
        with pytest.raises(ValueError, match="namespace/name"):
            Subjects([text])


def test_a_service_account_is_let_in_until_its_token_expires_or_is_looked_at_again() -> None:
    gatekeeper = Gatekeeper(token_folder=None, accounts=accounts(ec_signer()))
    soon = int(time.time()) + 30
    assert gatekeeper.judge(bearer(sign(exp=soon))) == Admitted(soon)
    later = gatekeeper.judge(bearer(sign(exp=soon + 100_000)))
    assert isinstance(later, Admitted)
    assert later.until < soon + 1000


def test_a_token_of_another_audience_lets_nobody_in() -> None:
    gatekeeper = Gatekeeper(token_folder=None, accounts=accounts(ec_signer()))
    for audience in ("https://kubernetes.default.svc", "lookupdb-store:lookupdb/lookupdb", [AUDIENCE, "other"]):
        assert denial(gatekeeper.judge(bearer(sign(aud=audience)))) is Denial.UNAUTHENTICATED


def test_before_keys_are_known_only_what_may_be_good_is_undecided() -> None:
    judge = accounts()
    gatekeeper = Gatekeeper(token_folder=None, accounts=judge)
    assert gatekeeper.judge(bearer(sign())) == Denied(Denial.UNDECIDED, NO_KEYS)
    assert denial(gatekeeper.judge(bearer(TOKEN))) is Denial.UNAUTHENTICATED
    assert not gatekeeper.can_judge
    assert judge.take_keys(json.dumps(jwks(ec_signer())).encode())
    assert gatekeeper.can_judge
    assert isinstance(gatekeeper.judge(bearer(sign())), Admitted)


def test_keys_that_cannot_be_read_leave_the_last_ones() -> None:
    judge = accounts(ec_signer())
    for text in (None, b"", b"{}", json.dumps(jwks(rsa_signer("short", 1024))).encode()):
        assert not judge.take_keys(text)
        assert judge.problem
        assert isinstance(judge.judge(sign().decode()), Admitted)
    assert judge.take_keys(json.dumps(jwks(rsa_signer())).encode())
    assert judge.problem is None
    assert denial(judge.judge(sign().decode())) is Denial.UNAUTHENTICATED


def test_either_way_suffices() -> None:
    gatekeeper = Gatekeeper(token_folder="tokens", accounts=accounts(ec_signer()))
    assert isinstance(gatekeeper.judge(bearer(sign())), Admitted)
    assert denial(gatekeeper.judge(bearer(TOKEN))) is Denial.UNDECIDED, "the Secret may come"
    gatekeeper.take_hashes(hashes(TOKEN))
    assert isinstance(gatekeeper.judge(bearer(TOKEN)), Admitted)
    assert isinstance(gatekeeper.judge(bearer(sign())), Admitted)
    assert denial(gatekeeper.judge(bearer(OTHER))) is Denial.UNAUTHENTICATED


async def test_files_are_taken_up_as_they_change(tmp_path: Path) -> None:
    folder, keys = tmp_path / "tokens", tmp_path / "jwks.json"
    settings = AccessSettings(str(folder), str(keys), AUDIENCE, ("team/*",))
    changes: list[dict[str, Any]] = []
    access = watch.AccessWatch(settings, lambda: changes.append(access.describe()), logs=True)
    access.start()
    try:
        no_tokens, no_keys = changes[-1]["problems"]
        assert no_tokens.startswith(f"{NO_TOKENS}: there is no file with one in {folder} (")
        assert no_keys == NO_KEYS
        folder.mkdir()
        (folder / "web").write_text(hash_token(TOKEN))
        keys.write_text(json.dumps(jwks(ec_signer())))
        await soon(lambda: not changes[-1]["problems"], "both are read")
        assert (changes[-1]["tokens"], changes[-1]["keys"]) == (1, 1)
        (folder / "web").unlink()
        await soon(lambda: not changes[-1]["tokens"], "its hash is gone")
        assert denial(access.gatekeeper.judge(bearer(TOKEN))) is Denial.UNDECIDED
    finally:
        access.stop()


async def test_clients_that_are_left_out_are_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lookupdb.process.watched_files.MAX_FILES", 1)
    for name in ("web", "shop", "..data"):
        (tmp_path / name).write_text(hash_token(TOKEN))
    reported: list[dict[str, Any]] = []
    access = watch.AccessWatch(AccessSettings(str(tmp_path)), lambda: reported.append(access.describe()), logs=True)
    access.start()
    access.stop()
    problem = "there are 2 files: the last 1 by name are not read"
    assert reported == [{"version": 1, "tokens": 1, "problems": [problem]}]
    assert [record.getMessage() for record in caplog.records] == [f"access rules: {problem}"]


_FUZZ_EXAMPLES = os.environ.get("LOOKUPDB_FUZZ_EXAMPLES")
EXAMPLES = settings(SAME, max_examples=int(_FUZZ_EXAMPLES or 150), derandomize=_FUZZ_EXAMPLES is None)
"""`make fuzz` tries more, and others each time."""
RANDOM_TOKENS = st.builds(bearer, st.from_regex(rb"[A-Za-z0-9._~+/=-]{0,200}", fullmatch=True))
MUTATIONS = st.tuples(st.integers(0, 4000), st.binary(min_size=0, max_size=3), st.integers(0, 3))
GOOD_FIELDS = st.deferred(  # not at import: every process of pytest collects this, and making RSA keys is slow
    lambda: st.sampled_from([bearer(TOKEN), bearer(sign(ec_signer())), bearer(sign(rsa_signer()))])
)


def make_fuzzed() -> Gatekeeper:
    gatekeeper = Gatekeeper(token_folder="tokens", accounts=accounts(ec_signer(), rsa_signer()))
    gatekeeper.take_hashes(hashes(TOKEN))
    return gatekeeper


@EXAMPLES
@given(GOOD_FIELDS, st.lists(MUTATIONS, min_size=1, max_size=4))
def test_no_mutation_of_a_good_token_is_let_in(field: bytes, mutations: list[tuple[int, bytes, int]]) -> None:
    """Except mutations without a meaning: the case of the scheme, spaces around, bits that base64 does not use."""
    mutated = field
    for at, inserted, removed in mutations:
        place = at % (len(mutated) + 1)
        mutated = mutated[:place] + inserted + mutated[place + removed :]
    verdict = make_fuzzed().judge(mutated)
    if isinstance(verdict, Admitted):
        assert _normalise(mutated) == _normalise(field)


def _normalise(field: bytes) -> tuple[bytes, ...]:
    scheme, _, token = field.strip(b" \t").partition(b" ")
    *parts, last = token.strip(b" ").split(b".")
    return scheme.lower(), *parts, last[:-1] if parts else last


@EXAMPLES
@given(st.one_of(st.binary(max_size=300), RANDOM_TOKENS))
def test_no_random_field_is_let_in(field: bytes) -> None:
    assert isinstance(make_fuzzed().judge(field), Denied)


def test_thousands_of_wrong_tokens_are_cheap() -> None:
    gatekeeper = make_fuzzed()
    wrong = [bearer(secrets.token_urlsafe(32).encode()) for _ in range(5000)]
    began = time.process_time()
    for field in wrong:
        assert isinstance(gatekeeper.judge(field), Denied)
    assert time.process_time() - began < 1.0
