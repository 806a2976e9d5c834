"""Clients of RESP when only some may look up: AUTH, what is answered before it, and when they are judged again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.http import ScriptedLookups, eventually
from support.resp import RespClient, RespServer, command, serving_resp
from support.signers import claims_of, ec_signer, jwks

from lookupdb.account_tokens import ServiceAccounts
from lookupdb.credentials import MAX_TOKEN_BYTES
from lookupdb.router import clients
from lookupdb.router.access import Gatekeeper, hash_token, read_token_hashes

AUDIENCE = "lookupdb:airports"
TOKEN = "kWm3Qx1c0VJ8yq4n7TtR2bZ5sLh9uGfE"
NEXT = "the-token-that-comes-after-the-first"
WRONG = "a-token-that-nobody-was-given-ever"


@pytest.fixture(autouse=True, scope="module")
def _frequent_sweeps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "SWEEP_SECONDS", 0.02)
        yield


def hashes(*tokens: str) -> Any:
    return read_token_hashes({Path("web"): "\n".join(hash_token(token.encode()) for token in tokens).encode()})


def sign(**changes: Any) -> str:
    return ec_signer().sign({**claims_of("team"), "aud": [AUDIENCE], **changes})


@pytest.fixture
def gatekeeper() -> Gatekeeper:
    accounts = ServiceAccounts(AUDIENCE, ["team/default"])
    accounts.take_keys(json.dumps(jwks(ec_signer())).encode())
    gatekeeper = Gatekeeper(token_folder="tokens", accounts=accounts)
    gatekeeper.take_hashes(hashes(TOKEN))
    return gatekeeper


@pytest.fixture
def server(gatekeeper: Gatekeeper) -> Iterator[RespServer]:
    with serving_resp(ScriptedLookups(values={"a": b"1"}), gatekeeper=gatekeeper) as server:
        yield server
        eventually(lambda: server.lookups.budget.used == 0)


@pytest.fixture
def client(server: RespServer) -> Iterator[RespClient]:
    with server.connect() as client:
        yield client


BEFORE = [("GET", "a"), ("MGET", "a", "b"), ("EXISTS", "a"), ("DBSIZE",), ("INFO",), ("PING",), ("SET", "a", "b")]


@pytest.mark.parametrize("words", BEFORE)
def test_before_auth_nothing_is_answered(server: RespServer, client: RespClient, words: tuple[str, ...]) -> None:
    assert str(client.ask(*words)) == "NOAUTH Authentication required."
    client.send(command(*words) * 3)
    assert [str(reply) for reply in client.replies(3)] == ["NOAUTH Authentication required."] * 3
    assert (server.lookups.asked, server.lookups.batches) == ([], [])


@pytest.mark.parametrize(
    "words", [(TOKEN,), ("default", TOKEN), ("anybody", TOKEN), ("x",)], ids=["alone", "default", "anybody", "signed"]
)
def test_auth(client: RespClient, words: tuple[str, ...]) -> None:
    if words == ("x",):
        words = ("x", sign())  # now: it expires ten minutes later
    assert client.ask("AUTH", *words) == b"OK"
    assert client.ask("GET", "a") == b"1"
    client.send(command("GET", "a") * 3)
    assert client.replies(3) == [b"1"] * 3


def test_hello_with_a_token(client: RespClient) -> None:
    assert str(client.ask("HELLO", "3")).startswith("NOAUTH HELLO")
    assert str(client.ask("HELLO", "3", "AUTH", "x", WRONG)).startswith("WRONGPASS ")
    assert client.ask("HELLO", "3", "AUTH", "default", TOKEN, "SETNAME", "web")[b"proto"] == 3
    assert client.ask("CLIENT", "GETNAME") == b"web"
    assert client.ask("GET", "a") == b"1"


@pytest.mark.parametrize("token", [WRONG, "short", "", "not a token", "x" * (MAX_TOKEN_BYTES + 1), sign(aud=["other"])])
def test_a_token_that_is_not_accepted(server: RespServer, client: RespClient, token: str) -> None:
    message = str(client.ask("AUTH", token))
    assert message.startswith("WRONGPASS invalid username-password pair or user is disabled: ")
    assert len(token) < 10 or token not in message
    assert str(client.ask("GET", "a")) == "NOAUTH Authentication required."
    assert server.count("requests_unauthenticated") == 1
    assert client.ask("AUTH", TOKEN) == b"OK"


def test_a_service_account_that_may_not_look_up(server: RespServer, client: RespClient) -> None:
    claims = claims_of("others")
    assert str(client.ask("AUTH", ec_signer().sign({**claims, "aud": [AUDIENCE]}))).startswith("NOPERM ")
    assert server.count("requests_forbidden") == 1


def test_a_token_that_is_taken_away_ends_on_open_connections(
    gatekeeper: Gatekeeper, server: RespServer, client: RespClient
) -> None:
    assert client.ask("AUTH", TOKEN) == b"OK"
    server.call(lambda: gatekeeper.take_hashes(hashes(TOKEN, NEXT)))
    for _ in range(5):
        assert client.ask("GET", "a") == b"1"
    server.call(lambda: gatekeeper.take_hashes(hashes(NEXT)))
    eventually(lambda: not isinstance(client.ask("GET", "a"), bytes))
    client.send(command("GET", "a") * 2 + command("MGET", "a") + command("PING"))
    assert {str(reply) for reply in client.replies(4)} == {
        "NOAUTH Authentication required: the token that was shown is not accepted any longer."
    }
    assert client.ask("AUTH", NEXT) == b"OK"
    assert client.ask("GET", "a") == b"1"


def test_a_token_is_judged_once_until_something_changes(
    gatekeeper: Gatekeeper, server: RespServer, client: RespClient
) -> None:
    judged = 0
    judge = gatekeeper.judge_token

    def count(token: bytes) -> Any:
        nonlocal judged
        judged += 1
        return judge(token)

    gatekeeper.judge_token = count  # type: ignore[method-assign]
    client.ask("AUTH", TOKEN)
    for _ in range(20):
        assert client.ask("GET", "a") == b"1"
    assert judged == 1
    server.call(lambda: gatekeeper.take_hashes(hashes(TOKEN, NEXT)))
    eventually(lambda: client.ask("GET", "a") == b"1" and judged == 2)
    large = command("MGET", *["a"] * 900)
    server.call(lambda: gatekeeper.take_hashes(hashes(TOKEN)))
    eventually(lambda: server.call(lambda: not next(iter(server.front._connections)).session.may_ask))  # type: ignore[attr-defined]
    assert client.send(large).reply() == [b"1"] * 900  # not bounded as that of a stranger
    assert judged == 3


def test_while_nobody_can_be_judged_it_is_unavailable_and_no_refusal(
    gatekeeper: Gatekeeper, server: RespServer, client: RespClient
) -> None:
    client.ask("AUTH", TOKEN)
    server.call(lambda: gatekeeper.take_hashes(hashes()))
    eventually(lambda: not isinstance(client.ask("GET", "a"), bytes))
    for words in (("GET", "a"), ("AUTH", TOKEN)):
        assert str(client.ask(*words)).startswith("UNAVAILABLE AccessUnknown ")
    server.call(lambda: gatekeeper.take_hashes(hashes(TOKEN)))
    assert client.ask("GET", "a") == b"1"


def test_reset_forgets_the_token(client: RespClient) -> None:
    client.ask("AUTH", TOKEN)
    assert client.ask("RESET") == b"RESET"
    assert str(client.ask("GET", "a")) == "NOAUTH Authentication required."


def test_who_has_shown_no_token_may_send_little(client: RespClient) -> None:
    client.send(command("MGET", *["a"] * 20)[:100] + b"x" * 100)
    client.send(command("ECHO", "x" * 30_000)[:200])
    message = client.refusal()
    assert message.startswith("ERR Protocol error: ")
    assert client.ended()


def test_a_token_is_counted_while_it_is_kept(server: RespServer, client: RespClient) -> None:
    client.ask("AUTH", TOKEN)
    assert server.lookups.budget.used == len(TOKEN)
    client.ask("RESET")
    assert server.lookups.budget.used == 0
