"""Clients of a router that lets in some: what they are answered, and when they are judged again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.http import Client, ScriptedLookups, Server, eventually, generation, request, serving
from support.signers import claims_of, ec_signer, jwks

from lookupdb.account_tokens import ServiceAccounts
from lookupdb.router import clients
from lookupdb.router.access import Gatekeeper, hash_token, read_token_hashes
from lookupdb.router.http.connection import HttpConnection, RepeatedBatch, RepeatedLookup

AUDIENCE = "lookupdb:airports"
TOKEN = "kWm3Qx1c0VJ8yq4n7TtR2bZ5sLh9uGfE"
NEXT = "the-token-that-comes-after-the-first"
WRONG = "a-token-that-nobody-was-given-ever"
VALUES = {"a": b"1", "b": b"2"}


@pytest.fixture(autouse=True, scope="module")
def _frequent_sweeps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "SWEEP_SECONDS", 0.02)
        yield


def hashes(*tokens: str) -> Any:
    return read_token_hashes({Path("web"): "\n".join(hash_token(token.encode()) for token in tokens).encode()})


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}"


def sign(**changes: Any) -> str:
    return ec_signer().sign({**claims_of("team"), "aud": [AUDIENCE], **changes})


class Entrance:
    """A router's front, with the gatekeeper that it judges by."""

    def __init__(self) -> None:
        self.accounts = ServiceAccounts(AUDIENCE, ["team/default"])
        self.accounts.take_keys(json.dumps(jwks(ec_signer())).encode())
        self.gatekeeper = Gatekeeper(token_folder="tokens", accounts=self.accounts)
        self.gatekeeper.take_hashes(hashes(TOKEN))
        self.judged = 0
        judge = self.gatekeeper.judge

        def count(field: bytes | None) -> Any:
            self.judged += 1
            return judge(field)

        self.gatekeeper.judge = count  # type: ignore[method-assign]
        self.lookups = ScriptedLookups(values=dict(VALUES), candidates=(generation("g2"),))


@pytest.fixture
def entrance() -> Entrance:
    return Entrance()


@pytest.fixture
def server(entrance: Entrance) -> Iterator[Server]:
    with serving(entrance.lookups, None, entrance.gatekeeper, max_body_bytes=1 << 20) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.connect() as client:
        yield client


def kind(body: bytes) -> str:
    name: str = json.loads(body)["type"].rpartition("/")[2]
    return name


EVERYTHING = [
    ("GET", "/v1/lookup/a", ()),
    ("HEAD", "/v1/lookup/a", ()),
    ("GET", "/v1/lookup?key=a", ()),
    ("GET", "/v1/lookup/a", ("Lookupdb-Generation: g2",)),
    ("GET", "/v1/lookup/a", ("Accept: application/json",)),
    ("GET", "http://router/v1/lookup/a", ()),
    ("GET", "/v1/dataset", ()),
    ("OPTIONS", "/v1/lookup", ()),
    ("OPTIONS", "*", ()),
    ("DELETE", "/v1/lookup/a", ()),
    ("GET", "/", ()),
    ("GET", "/healthz/", ()),
    ("GET", "/v1/lookup/%ff", ()),
    ("POST", "/v1/lookup", ("Content-Length: 0",)),
]


@pytest.mark.parametrize("shown", [(), (bearer(WRONG),), ("Authorization: Basic " + TOKEN,)])
def test_without_an_accepted_token_every_request_is_answered_401(
    entrance: Entrance, client: Client, shown: tuple[str, ...]
) -> None:
    for method, target, fields in EVERYTHING:
        entrance.lookups.asked.clear()
        answer = client.get(target, *fields, *shown, method=method)
        assert answer.status == 401
        assert answer.fields["www-authenticate"] == ('Bearer error="invalid_token"' if shown else "Bearer")
        if method != "HEAD":
            assert kind(answer.body) == "unauthenticated"
            assert WRONG.encode() not in answer.body
            assert TOKEN.encode() not in answer.body
        assert not entrance.lookups.asked
        assert client.get("/v1/lookup/a", bearer(TOKEN)).body == b"1", "the connection goes on"


@pytest.mark.parametrize("target", ["/healthz", "/readyz?x=1", "http://router/readyz"])
def test_probes_need_no_token_and_no_other_request_passes_for_one(client: Client, server: Server, target: str) -> None:
    for method in ("GET", "HEAD"):
        assert client.get(target, method=method).status == 200
        assert client.get(target, bearer(WRONG), method=method).status == 200
    assert server.count("requests_unauthenticated") == 0
    for other in ("/healthz/", "/v1/lookup/readyz", "/v1/lookup/a?/healthz", "//healthz", "/healthz/../v1/lookup/a"):
        assert client.get(other).status == 401, other
    assert client.get(target, method="OPTIONS").status == 401
    assert client.post(b"x", target=target).status == 401


def test_a_client_without_a_token_is_never_answered_304(client: Client) -> None:
    for condition in ("*", '"g1-0"'):
        assert client.get("/v1/lookup/a", f"If-None-Match: {condition}").status == 401


def test_a_router_for_anybody_asks_for_no_token_and_minds_none() -> None:
    with serving(ScriptedLookups(values=dict(VALUES))) as server, server.connect() as client:
        for _ in range(2):
            assert client.get("/v1/lookup/a").body == b"1"
            assert client.get("/v1/lookup/b", bearer(WRONG), bearer(TOKEN)).body == b"2"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_written_in_any_case(client: Client, scheme: str) -> None:
    assert client.get("/v1/lookup/a", f"Authorization: {scheme} {TOKEN}").status == 200


@pytest.mark.parametrize("name", ["authorization", "Authorization", "AUTHORIZATION", "aUTHORIZATION"])
def test_so_is_the_name_of_the_field(client: Client, name: str) -> None:
    assert client.get("/v1/lookup/a", f"{name}: Bearer {TOKEN}").status == 200


@pytest.mark.parametrize("second", [TOKEN, WRONG])
def test_a_field_that_is_there_twice_is_refused(entrance: Entrance, client: Client, second: str) -> None:
    answer = client.get("/v1/lookup/a", bearer(TOKEN), bearer(second))
    assert (answer.status, kind(answer.body)) == (400, "malformed-request")
    assert client.ended()
    assert not entrance.lookups.asked


def test_a_service_account_that_is_not_a_subject_is_answered_403(server: Server, client: Client) -> None:
    token = sign(sub="system:serviceaccount:other:web", **{"kubernetes.io": {"namespace": "other"}})
    answer = client.get("/v1/lookup/a", bearer(token))
    assert (answer.status, kind(answer.body)) == (403, "forbidden")
    assert "www-authenticate" not in answer.fields
    assert token.encode() not in answer.body
    assert client.get("/v1/lookup/a", bearer(sign())).status == 200
    assert server.count("requests_forbidden") == 1
    assert server.count("requests_unauthenticated") == 0


def test_a_batch_is_looked_up_and_a_wrong_one_is_refused_before_its_body_comes(server: Server, client: Client) -> None:
    body = b'{"keys": ["a", "b"]}'
    assert json.loads(client.post(body, bearer(TOKEN)).body)["found"] == {"a": 1, "b": 2}
    head = request("/v1/lookup", f"Content-Length: {1 << 19}", bearer(WRONG), method="POST")
    answer = client.send(head).response()
    assert answer.status == 401
    assert client.ended()
    assert server.count("requests_unauthenticated") == 1


def test_nobody_is_told_to_go_on_with_a_body_that_is_not_read(client: Client) -> None:
    fields = "Content-Length: 20", "Expect: 100-continue"
    answer = client.send(request("/v1/lookup", *fields, bearer(WRONG), method="POST")).response()
    assert answer.status == 401


def test_a_body_behind_an_upgrade_is_judged_as_well(client: Client) -> None:
    body = b'{"keys": ["a"]}'
    fields = "Connection: Upgrade", "Upgrade: h2c"
    assert json.loads(client.post(body, *fields, bearer(TOKEN)).body)["found"] == {"a": 1}
    assert client.post(body, *fields, bearer(WRONG)).status == 401


def test_a_chunked_body_is_not_read_either(client: Client) -> None:
    head = request("/v1/lookup", "Transfer-Encoding: chunked", bearer(WRONG), method="POST")
    assert client.send(head).response().status == 401
    assert client.ended()


def test_each_of_several_requests_at_once_is_judged_by_its_own_token(client: Client) -> None:
    client.send(
        request("/v1/lookup/a", bearer(TOKEN))
        + request("/v1/lookup/b", bearer(WRONG))
        + request("/v1/lookup/b")
        + request("/v1/lookup/b", bearer(sign()))
        + request("/v1/lookup/a", bearer(TOKEN))
    )
    answers = [client.response() for _ in range(5)]
    assert [answer.status for answer in answers] == [200, 401, 401, 200, 200]
    assert [answers[0].body, answers[3].body, answers[4].body] == [b"1", b"2", b"1"]


def test_a_request_is_not_taken_for_a_repeat_of_one_with_another_token(client: Client) -> None:
    for _ in range(3):
        assert client.get("/v1/lookup/a", bearer(TOKEN)).status == 200
        assert client.get("/v1/lookup/a", bearer(TOKEN[:-1] + "x")).status == 401
        assert client.get("/v1/lookup/a").status == 401
        assert client.get("/v1/lookup/a", bearer(TOKEN + "x")).status == 401


def test_a_batch_is_not_taken_for_a_repeat_of_one_with_another_token(client: Client) -> None:
    body = b'{"keys": ["a"]}'
    assert client.post(body, bearer(TOKEN)).status == client.post(body, bearer(TOKEN)).status == 200
    assert client.post(body, bearer(TOKEN[:-1] + "x")).status == 401
    assert client.ended()


def test_a_token_is_judged_once_a_connection(entrance: Entrance, client: Client) -> None:
    for key in ("a", "b", "none"):
        client.get(f"/v1/lookup/{key}", bearer(TOKEN))
        client.post(b'{"keys": ["a"]}', bearer(TOKEN))
    assert entrance.judged == 1


def test_a_repeated_request_does_not_reach_the_parser(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.get("/v1/lookup/a", bearer(TOKEN))
    (connection,) = server.front._connections
    assert isinstance(connection, HttpConnection)
    assert isinstance(connection._repeated, RepeatedLookup)
    client.post(b'{"keys": ["a"]}', bearer(TOKEN))
    assert isinstance(connection._repeated, RepeatedBatch)


def test_a_token_that_is_revoked_ends_for_repeated_batches(entrance: Entrance, server: Server, client: Client) -> None:
    body = b'{"keys": ["a"]}'
    for _ in range(2):
        assert client.post(body, bearer(TOKEN)).status == 200
    server.call(lambda: entrance.gatekeeper.take_hashes(hashes(NEXT)))
    (connection,) = server.front._connections
    eventually(lambda: connection._repeated is None, 5)  # type: ignore[attr-defined]
    assert client.post(body, bearer(TOKEN)).status == 401
    assert client.ended()
    assert server.call(lambda: entrance.lookups.budget.used) == 0


def test_a_token_is_replaced_on_an_open_connection(entrance: Entrance, server: Server, client: Client) -> None:
    assert client.get("/v1/lookup/a", bearer(TOKEN)).status == 200
    server.call(lambda: entrance.gatekeeper.take_hashes(hashes(TOKEN, NEXT)))
    with server.connect() as another:
        assert another.get("/v1/lookup/a", bearer(NEXT)).status == 200
        assert client.get("/v1/lookup/a", bearer(TOKEN)).status == 200
        server.call(lambda: entrance.gatekeeper.take_hashes(hashes(NEXT)))
        eventually(lambda: client.get("/v1/lookup/b", bearer(TOKEN)).status == 401, 5)
        assert another.get("/v1/lookup/b", bearer(NEXT)).status == 200
    assert client.get("/v1/lookup/b", bearer(TOKEN)).status == 401
    assert client.post(b'{"keys": ["a"]}', bearer(TOKEN)).status == 401


def test_a_service_account_ends_with_its_token_on_an_open_connection(client: Client) -> None:
    token = sign(exp=int(time.time()) - 7)  # good for three seconds more, by the leeway of clocks
    assert client.get("/v1/lookup/a", bearer(token)).status == 200
    eventually(lambda: client.get("/v1/lookup/a", bearer(token)).status == 401, 15)


def test_a_token_that_ends_ends_for_its_repeats_though_another_one_came_between(
    entrance: Entrance, server: Server, client: Client
) -> None:
    """A remembered request belongs to the token that was accepted last."""
    short = sign(exp=int(time.time()) - 7)
    assert client.get("/v1/lookup/a", bearer(short)).status == 200
    keys = json.dumps({"keys": ["a"], "partial": bool(entrance)}).ljust(20_000).encode()
    assert client.post(keys, bearer(TOKEN)).status == 200
    eventually(lambda: client.get("/v1/lookup/a", bearer(short)).status == 401, 15)


def test_keys_that_are_replaced_end_the_tokens_that_they_signed(
    entrance: Entrance, server: Server, client: Client
) -> None:
    token = sign()
    assert client.get("/v1/lookup/a", bearer(token)).status == 200

    def replace() -> None:
        assert entrance.accounts.take_keys(json.dumps(jwks(ec_signer("ec-2"))).encode())
        entrance.gatekeeper.version += 1

    server.call(replace)
    eventually(lambda: client.get("/v1/lookup/a", bearer(token)).status == 401, 5)


def test_while_nothing_is_known_a_token_is_answered_503_and_none_401() -> None:
    with serving(None, None, Gatekeeper(token_folder="tokens", accounts=None)) as server, server.connect() as client:
        answer = client.get("/v1/lookup/a", bearer(TOKEN))
        assert answer.status == 503
        assert json.loads(answer.body)["reason"] == "AccessUnknown"
        assert answer.fields["retry-after"] == "1"
        assert client.get("/v1/lookup/a").status == 401


def test_what_is_remembered_of_a_token_is_counted_and_given_back(entrance: Entrance, server: Server) -> None:
    budget = entrance.lookups.budget
    with server.connect() as client:
        client.get("/v1/lookup/a", bearer(TOKEN))
        assert budget.used == len(f"Bearer {TOKEN}")
    eventually(lambda: budget.used == 0)


def test_thousands_of_wrong_tokens_cost_about_what_refused_requests_do(server: Server, client: Client) -> None:
    wrong = b"".join(request("/v1/lookup/a", bearer(f"{WRONG}-{number}")) for number in range(50))
    began = time.process_time()
    for _ in range(60):
        client.send(wrong)
        assert {client.response().status for _ in range(50)} == {401}
    assert server.count("requests_unauthenticated") == 3000
    assert time.process_time() - began < 5, "the client's time is in it"
    assert client.get("/v1/lookup/a", bearer(TOKEN)).status == 200
