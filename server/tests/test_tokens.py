"""Which tokens are accepted, and whose they are; every other one is refused with its reason."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from support.signers import AUDIENCE, Signer, claims_of, ec_signer, jwks, rsa_signer

from lookupdb.account_tokens import CACHE_ENTRIES, Caller, InvalidToken, TokenCache, VerificationKey, parse_keys

SignerMaker = Callable[..., Signer]

NOW = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def keys_of(*signers: Signer) -> dict[str, VerificationKey]:
    return parse_keys(json.dumps(jwks(*signers)).encode())


def make_cache(*signers: Signer, clock: Clock | None = None) -> TokenCache:
    keys = keys_of(*(signers or (rsa_signer(), ec_signer())))
    return TokenCache(lambda: keys, [AUDIENCE, "old"], clock or Clock())


def claims(**changes: Any) -> dict[str, Any]:
    """The claims of a good token, with ``changes``; None removes one."""
    merged = {**claims_of("team", NOW), **changes}
    return {name: value for name, value in merged.items() if value is not None}


def refusal(token: str, cache: TokenCache | None = None) -> str:
    with pytest.raises(InvalidToken) as caught:
        (cache or make_cache()).verify(token)
    assert token not in caught.value.detail
    return caught.value.reason


@pytest.mark.parametrize("make_signer", [rsa_signer, ec_signer], ids=["RS256", "ES256"])
def test_a_token_of_the_cluster_speaks_for_its_namespace(make_signer: SignerMaker) -> None:
    verified = make_cache().verify(make_signer().sign(claims()))
    assert verified is not None
    assert verified[0] == Caller("team", "default")


@pytest.mark.parametrize("audience", [AUDIENCE, [AUDIENCE], ["old"]])
def test_each_audience_of_ours_is_accepted(audience: Any) -> None:
    assert make_cache().verify(rsa_signer().sign(claims(aud=audience)))


def test_a_token_that_the_cluster_signed_for_something_else_is_refused() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"aud": None}, "signature"),
        ({"aud": []}, "signature"),
        ({"aud": ""}, "signature"),
        ({"aud": [[AUDIENCE]]}, "audience"),
        ({"aud": {AUDIENCE: 1}}, "audience"),
        ({"aud": ["https://kubernetes.default.svc"]}, "audience"),
        ({"aud": [AUDIENCE, "https://kubernetes.default.svc"]}, "audience"),
        ({"aud": AUDIENCE + "-2"}, "audience"),
        ({"aud": AUDIENCE.upper()}, "audience"),
        ({"exp": None}, "signature"),
        ({"exp": "soon"}, "signature"),
        ({"exp": NOW - 11}, "expired"),
        ({"exp": math.nan}, "expired"),
        ({"nbf": None}, "signature"),
        ({"nbf": NOW + 11}, "early"),
        ({"nbf": math.nan}, "early"),
        ({"sub": None}, "signature"),
        ({"sub": 7}, "signature"),
        ({"sub": "system:serviceaccount:other:default"}, "claims"),
        ({"sub": "system:serviceaccount:team"}, "claims"),
        ({"sub": "system:serviceaccount:team:a:b"}, "claims"),
        ({"sub": "system:serviceaccount:team:default\n"}, "claims"),
        ({"sub": "team"}, "claims"),
        ({"kubernetes.io": None}, "claims"),
        ({"kubernetes.io": "team"}, "claims"),
        ({"kubernetes.io": {}}, "claims"),
        *(
            ({"kubernetes.io": {"namespace": name}}, "claims")
            for name in (None, 1, ["team"], "", "other", "Team", "team/", "../other", "team\n", "te\u0430m", "t" * 64)
        ),
    )
    for changes, reason in cases:
        full = claims() | changes
        token = rsa_signer().sign({name: value for name, value in full.items() if value is not None})
        assert refusal(token) == reason


def test_clocks_may_differ_a_little() -> None:
    cache = make_cache()
    assert cache.verify(rsa_signer().sign(claims(exp=NOW - 9)))
    assert cache.verify(rsa_signer().sign(claims(nbf=NOW + 9, iat=NOW + 9)))


def encode(members: Any) -> str:
    text = members if isinstance(members, str) else json.dumps(members)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def test_a_token_that_is_not_signed_is_refused() -> None:
    for algorithm in ("none", "None", "NONE", "nOnE"):
        header = encode({"alg": algorithm, "kid": "rsa-1"})
        assert refusal(f"{header}.{encode(claims())}.") == "form"
        assert refusal(f"{header}.{encode(claims())}.{encode('x')}") == "signature"


def test_the_public_key_is_no_secret_to_sign_with() -> None:
    body = f"{encode({'alg': 'HS256', 'kid': 'rsa-1'})}.{encode(claims())}"
    signature = hmac.new(rsa_signer().public_pem(), body.encode(), hashlib.sha256).digest()
    assert refusal(f"{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}") == "signature"


def test_a_key_verifies_its_own_algorithm_alone() -> None:
    for algorithm in ("RS384", "RS512", "PS256"):
        token = jwt.encode(claims(), rsa_signer().key, algorithm, headers={"kid": "rsa-1"})
        assert refusal(token) == "signature"
    crossed = Signer("rsa-1", "ES256", ec_signer().key)
    assert refusal(crossed.sign(claims())) == "signature"


def test_another_key_of_the_same_id_signs_nothing() -> None:
    stranger = Signer("rsa-1", "RS256", rsa_signer("stranger").key)
    assert refusal(stranger.sign(claims())) == "signature"
    good = rsa_signer().sign(claims())
    header, _, signature = good.split(".")
    assert refusal(f"{header}.{encode(claims(sub='system:serviceaccount:other:x'))}.{signature}") == "signature"


def test_a_key_that_is_unknown_is_told_apart() -> None:
    assert make_cache().verify(rsa_signer("stranger").sign(claims())) is None


def test_a_header_that_the_api_server_does_not_write_is_refused() -> None:
    headers: tuple[Any, ...] = (
        {"alg": "RS256"},
        {"alg": "RS256", "kid": None},
        {"alg": "RS256", "kid": 1},
        {"alg": "RS256", "kid": ["rsa-1"]},
        {"alg": "RS256", "kid": ""},
        {"alg": "RS256", "kid": "k" * 300},
        {"alg": ["RS256"], "kid": "rsa-1"},
        {"alg": None, "kid": "rsa-1"},
        {"alg": "RS256", "kid": "rsa-1", "typ": {"typ": "JWT"}},
        {"alg": "RS256", "kid": "rsa-1", "typ": "JWT" * 200},
        '{"alg":"RS256","kid":"rsa-1","typ":NaN}',
        '{"alg":"RS256","kid":"rsa-1"}x',
        '{"alg":"RS256","kid":"\\ud800"}',
        {"alg": "RS256", "kid": "rsa-1", "jwk": rsa_signer("stranger").public()},
        {"alg": "RS256", "kid": "rsa-1", "jku": "http://attacker/jwks"},
        {"alg": "RS256", "kid": "rsa-1", "x5u": "http://attacker/cert"},
        {"alg": "RS256", "kid": "rsa-1", "crit": ["b64"], "b64": False},
        [],
        "rsa-1",
        None,
        "[" * 2000,
        '{"alg":' * 200,
        "[" * 300,
    )
    for header in headers:
        assert refusal(f"{encode(header)}.{encode(claims())}.{encode('signature')}") == "form"


@pytest.mark.parametrize("key_id", ["../../dev/null", "' OR 1=1 --", "rsa-1\x00", "http://attacker/key", "__class__"])
def test_the_id_of_a_key_is_looked_up_and_nothing_else(key_id: str) -> None:
    assert make_cache().verify(Signer(key_id, "RS256", rsa_signer().key).sign(claims())) is None


def test_what_is_no_token_is_refused() -> None:
    for token in ("", "x", "a.b", "a.b.c.d", "..", "a..c", "a.b.", "é.b.c", "a b.c.d", "a.b.c\n"):
        with pytest.raises(InvalidToken) as caught:
            make_cache().verify(token)
        assert caught.value.reason == "form"


def test_a_giant_token_is_refused_before_it_is_read() -> None:
    assert refusal(rsa_signer().sign(claims(more="x" * (4 << 10)))) == "size"
    assert make_cache().verify(rsa_signer().sign(claims(more="x" * (2 << 10))))


@pytest.mark.parametrize("make_signer", [rsa_signer, ec_signer], ids=["RS256", "ES256"])
def test_nothing_of_a_token_is_parsed_before_its_signature_is_verified(
    monkeypatch: pytest.MonkeyPatch, make_signer: SignerMaker
) -> None:
    """Its key is looked up by its header, which is short."""
    header, body, signature = make_signer().sign(claims()).split(".")
    unknown = rsa_signer("stranger").sign(claims())
    decoded = count_verified(monkeypatch)
    monkeypatch.setattr(jwt, "get_unverified_header", None)
    cache = make_cache()
    assert cache.verify(unknown) is None
    for forged in (f"{header}.{body}A.{signature}", f"{header}.{body}.A{signature}", f"{header}.{'A' * 3000}.AAAA"):
        assert refusal(forged, cache) == "signature"
    assert not decoded
    assert cache.verify(f"{header}.{body}.{signature}")
    assert len(decoded) == 1


def count_verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens whose signatures are verified from now on."""
    verified: list[str] = []
    decode = jwt.decode

    def verify(token: str, *arguments: Any, **settings: Any) -> Any:
        verified.append(token)
        return decode(token, *arguments, **settings)

    monkeypatch.setattr(jwt, "decode", verify)
    return verified


def test_a_verified_token_is_remembered_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    cache = make_cache(clock=clock)
    token = rsa_signer().sign(claims(exp=NOW + 30))
    verified = count_verified(monkeypatch)
    for _ in range(3):
        found = cache.verify(token)
        assert found is not None
        assert found[0] == Caller("team", "default")
    assert len(verified) == 1
    clock.now = NOW + 41
    assert refusal(token, cache) == "expired"


def test_a_verified_token_is_looked_at_again_after_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    cache = make_cache(clock=clock)
    token = rsa_signer().sign(claims(exp=NOW + 10_000))
    cache.verify(token)
    clock.now = NOW + 601
    verified = count_verified(monkeypatch)
    cache.verify(token)
    assert verified == [token]


def test_a_key_that_is_gone_takes_its_tokens_with_it() -> None:
    keys = keys_of(rsa_signer(), ec_signer())
    cache = TokenCache(lambda: keys, [AUDIENCE], Clock())
    token = ec_signer().sign(claims())
    assert cache.verify(token)
    keys = keys_of(rsa_signer())
    assert cache.verify(token) is None


def test_not_more_than_a_number_of_tokens_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lookupdb.account_tokens.CACHE_ENTRIES", 8)
    cache = make_cache()
    for number in range(20):
        cache.verify(ec_signer().sign(claims(jti=str(number))))
    assert len(cache) == 8 < CACHE_ENTRIES


def test_only_keys_that_sign_are_taken() -> None:
    good = rsa_signer().public()
    others = [
        {**good, "kid": "encrypts", "use": "enc"},
        {**good, "kid": "other", "alg": "RS512"},
        {**good, "kid": ""},
        {name: value for name, value in good.items() if name != "kid"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "symmetric", "alg": "HS256"},
        {"kty": "EC", "crv": "P-521", "kid": "curve", "x": "AA", "y": "AA"},
        {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
        "key",
    ]
    assert list(parse_keys(json.dumps({"keys": [*others, good]}).encode())) == ["rsa-1"]


ODD_VALUES: list[Any] = [[], {}, [[]], {"a": {}}, 7, -1.5, True, "", "!"]


@pytest.mark.parametrize("make_signer", [rsa_signer, ec_signer], ids=["RSA", "EC"])
@pytest.mark.parametrize("value", ODD_VALUES, ids=repr)
def test_an_odd_key_takes_no_other_with_it(make_signer: SignerMaker, value: Any) -> None:
    good, odd = rsa_signer().public(), make_signer("odd").public()
    for member in ("crv", *odd):
        keys = parse_keys(json.dumps({"keys": [{**odd, member: value}, good]}).encode())
        assert "rsa-1" in keys
        assert set(keys) <= {"rsa-1", "odd", "!"}


def test_a_short_key_is_not_taken() -> None:
    with pytest.raises(ValueError, match="no RSA or P-256 key"):
        parse_keys(json.dumps(jwks(rsa_signer("short", 1024))).encode())


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b"<html>"])
def test_what_is_no_set_of_keys_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_keys(text)
