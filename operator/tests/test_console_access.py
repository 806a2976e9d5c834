"""Who may see what in the console of a cluster: tokens, proxies, and attempts without either."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.signers import Signer, claims_of, ec_signer, jwks, rsa_signer

from lookupdb.account_tokens import VerificationKey, parse_keys
from lookupdb_operator.console.access import (
    SESSION_SECONDS,
    CannotJudge,
    NotAdmitted,
    OpenAccess,
    ProxyAccess,
    TokenAccess,
    Visitor,
    limit_session,
)

OURS = "lookupdb:console"
AIRPORTS = "lookupdb:airports"
PASSWORD = "a-long-password-of-the-proxy"


class Keys:
    """The cluster's keys, without an API server."""

    def __init__(self, *signers: Signer, is_current: bool = True) -> None:
        self.current: Mapping[str, VerificationKey] = parse_keys(_render(*signers)) if signers else {}
        self.looks = 0
        self._is_current = is_current

    async def look_again(self) -> bool:
        self.looks += 1
        return self._is_current


def _render(*signers: Signer) -> bytes:
    return orjson.dumps(jwks(*signers))


def access(keys: Keys | None = None, overseers: tuple[str, ...] = ("ops/*",)) -> TokenAccess:
    return TokenAccess(keys or Keys(rsa_signer(), ec_signer()), OURS, overseers, lambda: {AIRPORTS})  # type: ignore[arg-type]


def spec(audience: str = AIRPORTS, *subjects: str) -> dict[str, Any]:
    return {"router": {"auth": {"serviceAccounts": {"audience": audience, "subjects": list(subjects)}}}}


async def visit(token: str, **members: Any) -> Visitor:
    return await access(**members).judge(f"Bearer {token}", None)


class TestTokens:
    async def test_a_token_for_the_console_names_its_holder(self) -> None:
        for signer in (rsa_signer(), ec_signer()):
            visitor = await visit(signer.token("shop", aud=[OURS]))
            assert (visitor.name, visitor.audience, visitor.sees_all) == ("shop/default", OURS, False)

    async def test_the_cookie_is_as_good_and_a_header_counts_before_it(self) -> None:
        token = rsa_signer().token("shop", aud=[OURS])
        assert (await access().judge(None, token)).name == "shop/default"
        with pytest.raises(NotAdmitted):
            await access().judge("Bearer wrong", token)

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"aud": ["https://kubernetes.default.svc"]}, "not for lookupdb:console"),
            ({"aud": [OURS, "https://kubernetes.default.svc"]}, "expected a token for one audience"),
            ({"aud": []}, "expected a token for one audience"),
            ({"aud": None}, "expected a token for one audience"),
            ({"aud": "lookupdb:of-nobody"}, "not for lookupdb:console"),
            ({"exp": 1}, "expired"),
            ({"exp": None}, "lacks a claim"),
            ({"nbf": 4_000_000_000, "exp": 4_000_000_600}, "not valid yet"),
            ({"sub": "system:serviceaccount:ops:admin"}, "not a service account of its namespace"),
            ({"sub": "anna"}, "not a service account"),
            ({"kubernetes.io": None}, "names no namespace"),
        ],
        ids=str,
    )
    async def test_what_the_api_server_does_not_make_for_us_is_refused(self, changes: Any, told: str) -> None:
        with pytest.raises(NotAdmitted, match=told):
            await visit(rsa_signer().token(**{"aud": [OURS], **changes}))

    async def test_a_forged_token_is_refused(self) -> None:
        token = rsa_signer().token("shop", aud=[OURS])
        head, claims, signature = token.split(".")
        ops = rsa_signer("rsa-other").token("ops", aud=[OURS]).split(".")
        none = base64.urlsafe_b64encode(b'{"alg":"none","kid":"rsa-1"}').decode().rstrip("=")
        for forged in (
            f"{head}.{ops[1]}.{signature}",  # another's claims
            f"{head}.{claims}.{ops[2]}",
            f"{none}.{claims}.",
            f"{none}.{claims}.{signature}",
            token[:-6],
            ".".join(ops),  # a key of nobody
            "e30.e30.e30",
            "",
            "Bearer",
            token + ".x",
            "x" * 5000,
        ):
            with pytest.raises(NotAdmitted):
                await visit(forged)

    async def test_an_unknown_key_is_looked_for_once_and_its_lack_is_no_verdict(self) -> None:
        token = rsa_signer("rsa-new").token(aud=[OURS])
        keys = Keys(rsa_signer())
        with pytest.raises(NotAdmitted, match="not signed with a key of this cluster"):
            await visit(token, keys=keys)
        assert keys.looks == 1
        with pytest.raises(CannotJudge):
            await visit(token, keys=Keys(is_current=False))

    @pytest.mark.parametrize(
        "header", ["Basic dGVhbTp4", "Bearer", "Bearer ", "Token x", "", "bearer\tx", "Bearer x y"]
    )
    async def test_other_headers_are_refused(self, header: str) -> None:
        with pytest.raises(NotAdmitted):
            await access().judge(header, None)

    async def test_without_anything_nobody_is_admitted(self) -> None:
        for cookie in (None, ""):
            with pytest.raises(NotAdmitted, match="expected a token"):
                await access().judge(None, cookie)

    async def test_messages_show_nothing_of_a_token(self) -> None:
        secret = "c2VjcmV0LW9mLWEtdG9rZW4"
        for token in (secret, f"{secret}.{secret}.{secret}", rsa_signer().token(aud=[secret])):
            with pytest.raises(NotAdmitted) as refused:
                await visit(token)
            assert secret not in str(refused.value)

    async def test_no_flood_of_audiences_fills_the_memory(self) -> None:
        one = access()
        for number in range(50):
            with pytest.raises(NotAdmitted):
                await one.judge(f"Bearer {rsa_signer().token(aud=[f'lookupdb:{number}'])}", None)
        assert one._caches.keys() <= {OURS, AIRPORTS}

    async def test_the_audience_of_a_dataset_that_is_gone_admits_nobody(self) -> None:
        audiences = {AIRPORTS}
        one = TokenAccess(Keys(rsa_signer()), OURS, (), lambda: audiences)  # type: ignore[arg-type]
        token = rsa_signer().token(aud=[AIRPORTS])
        assert (await one.judge(f"Bearer {token}", None)).audience == AIRPORTS
        audiences.clear()
        with pytest.raises(NotAdmitted):
            await one.judge(f"Bearer {token}", None)


class TestWhatIsSeen:
    async def test_a_team_sees_its_namespace_and_what_lists_it(self) -> None:
        visitor = await visit(rsa_signer().token("shop", aud=[OURS]))
        assert visitor.sees("shop", {}, OURS)
        assert visitor.sees("shop", spec(AIRPORTS, "search/web"), OURS), "its own, whoever may look up there"
        assert not visitor.sees("search", {}, OURS), "not even what anyone may look up"
        assert not visitor.sees("search", spec(AIRPORTS, "search/*"), OURS)
        assert visitor.sees("search", spec(AIRPORTS, "shop/default"), OURS)
        assert visitor.sees("search", spec(AIRPORTS, "shop/*"), OURS)
        assert not visitor.sees("search", spec(AIRPORTS, "shopping/*", "sho/*"), OURS)

    async def test_a_token_for_lookups_shows_the_datasets_that_admit_it_and_no_other(self) -> None:
        visitor = await visit(rsa_signer().token("shop", aud=[AIRPORTS]))
        assert visitor.sees("search", spec(AIRPORTS, "shop/default"), OURS)
        assert not visitor.sees("search", spec(AIRPORTS, "shop/web"), OURS)
        assert not visitor.sees("search", spec("lookupdb:people", "shop/default"), OURS)
        assert not visitor.sees("shop", {}, OURS), "a router that received it must not learn about its namespace"

    async def test_overseers_see_all_with_a_token_for_the_console_alone(self) -> None:
        assert (await visit(rsa_signer().token("ops", aud=[OURS]))).sees("search", spec(), OURS)
        lookups = await visit(rsa_signer().token("ops", aud=[AIRPORTS]))
        assert not lookups.sees_all
        assert not lookups.sees("search", spec(), OURS)

    async def test_what_the_crd_refuses_lists_nobody(self) -> None:
        visitor = await visit(rsa_signer().token("shop", aud=[OURS]))
        assert not visitor.sees("search", spec(AIRPORTS, "*"), OURS)
        assert not visitor.sees("search", spec(AIRPORTS, "*/*", "shop/default"), OURS)


class TestProxy:
    @pytest.fixture
    def proxy(self, tmp_path: Path) -> ProxyAccess:
        (tmp_path / "password").write_text(PASSWORD + "\n")
        return ProxyAccess(tmp_path / "password")

    async def test_its_users_see_all_under_their_names(self, proxy: ProxyAccess) -> None:
        visitor = await proxy.judge(basic("anna@example.com", PASSWORD), None)
        assert (visitor.name, visitor.sees_all, visitor.token) == ("anna@example.com", True, "")

    @pytest.mark.parametrize(
        "header",
        [
            None,
            "",
            "Basic",
            "Basic !",
            f"Bearer {PASSWORD}",
            "Basic " + base64.b64encode(PASSWORD.encode()).decode(),
            "Basic " + base64.b64encode(b"\xff:" + PASSWORD.encode()).decode(),
        ],
    )
    async def test_what_is_not_its_password_is_refused(self, proxy: ProxyAccess, header: str | None) -> None:
        with pytest.raises(NotAdmitted):
            await proxy.judge(header, PASSWORD)

    async def test_a_wrong_password_or_name_is_refused(self, proxy: ProxyAccess) -> None:
        for user, password in (("anna", ""), ("anna", PASSWORD + "x"), ("anna", PASSWORD[:-1]), ("a\nb", PASSWORD)):
            with pytest.raises(NotAdmitted):
                await proxy.judge(basic(user, password), None)

    async def test_without_a_good_password_nobody_can_be_judged(self, proxy: ProxyAccess, tmp_path: Path) -> None:
        for text in ("", "short", "\n" * 30):
            (tmp_path / "password").write_text(text)
            with pytest.raises(CannotJudge):
                await proxy.judge(basic("anna", text.strip()), None)
        (tmp_path / "password").unlink()
        with pytest.raises(CannotJudge):
            await proxy.judge(basic("anna", PASSWORD), None)

    async def test_a_replaced_password_counts_at_once(self, proxy: ProxyAccess, tmp_path: Path) -> None:
        (tmp_path / "password").write_text(PASSWORD[::-1])
        assert (await proxy.judge(basic("anna", PASSWORD[::-1]), None)).name == "anna"
        with pytest.raises(NotAdmitted):
            await proxy.judge(basic("anna", PASSWORD), None)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def test_anyone_sees_all_without_a_name_where_that_is_chosen() -> None:
    visitor = await OpenAccess().judge("Bearer whatever", None)
    assert (visitor.name, visitor.sees_all, visitor.token) == ("", True, "")


def test_a_cookie_lives_no_longer_than_its_token_or_a_working_day() -> None:
    now = time.time()
    assert limit_session(Visitor("a", token="x", until=now + 600), now) == 600
    assert limit_session(Visitor("a", token="x", until=now + 10 * SESSION_SECONDS), now) == SESSION_SECONDS
    assert limit_session(Visitor("a", token="x", until=now - 5), now) == 1, "within the leeway of clocks"
    with pytest.raises(NotAdmitted, match="which no cookie holds"):
        limit_session(Visitor("a", token="x" * 3801, until=now + 600), now)


async def test_a_visitor_has_the_time_of_the_token_not_that_of_a_cache() -> None:
    claims = {**claims_of("shop"), "aud": [OURS], "exp": int(time.time()) + 7200}
    visitor = await visit(rsa_signer().sign(claims))
    assert visitor.until == claims["exp"]
