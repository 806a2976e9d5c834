"""Lookups that cannot begin, which no client can cause: each fails in order, blocks nothing, leaks nothing, and gets no
other request's value."""

from __future__ import annotations

from typing import Any

import pytest
from support.http import ScriptedLookups, eventually, request, serving
from support.resp import command, serving_resp

from lookupdb.router.http.problems import MAX_PIPELINE


class BrokenLookups(ScriptedLookups):
    """Raises for the key "broken"."""

    def find(self, key: str, *arguments: Any, **options: Any) -> None:
        if key == "broken":
            raise RuntimeError("a bug")
        super().find(key, *arguments, **options)

    def find_many(self, keys: Any, *arguments: Any, **options: Any) -> Any:
        if "broken" in keys.to_list():
            raise RuntimeError("a bug")
        return super().find_many(keys, *arguments, **options)

    def release(self) -> None:
        """Answer what is held, as callbacks of a loop do: an exception ends none of the others."""
        self.held.clear()
        super().release()


def get(key: str) -> bytes:
    return request(f"/v1/lookup/{key}")


def post(key: str) -> bytes:
    body = b'{"keys":["%b"]}' % key.encode()
    return request("/v1/lookup", f"Content-Length: {len(body)}", method="POST") + body


@pytest.fixture
def lookups() -> BrokenLookups:
    return BrokenLookups(values={f"k{number}": b"%d" % number for number in range(2 * MAX_PIPELINE)})


@pytest.mark.parametrize("is_repeat", [False, True])
@pytest.mark.parametrize("ask", [get, post])
def test_it_is_answered_500_and_the_connection_ends(lookups: BrokenLookups, ask: Any, is_repeat: bool) -> None:
    with serving(lookups) as server, server.connect() as client:
        if is_repeat:
            assert client.send(ask("k1")).response().status == 200
        answer = client.send(ask("broken")).response()
        assert (answer.status, b"internal-error" in answer.body) == (500, True)
        assert client.ended()
        eventually(lambda: lookups.budget.used == 0)


def test_the_answer_to_a_head_has_no_body(lookups: BrokenLookups) -> None:
    with serving(lookups) as server, server.connect() as client:
        assert client.send(request("/v1/lookup/broken", method="HEAD")).response(bodyless=True).status == 500
        assert client.ended()


@pytest.mark.parametrize("before", [0, 1, MAX_PIPELINE - 1, MAX_PIPELINE])
def test_in_a_pipeline_it_is_the_last_that_is_answered(lookups: BrokenLookups, before: int) -> None:
    keys = [f"k{number}" for number in range(before)]
    with serving(lookups) as server, server.connect() as client:
        client.send(b"".join(map(get, [*keys, "broken", "k1", "k2"])) + b"GET /v1/lookup/half")
        assert [client.response().body for _ in keys] == [key[1:].encode() for key in keys]
        assert client.response().status == 500
        assert client.ended()
        eventually(lambda: lookups.budget.used == 0)


def test_batches_behind_it_are_not_answered(lookups: BrokenLookups) -> None:
    lookups.held.add("k1")
    with serving(lookups) as server, server.connect() as client:
        assert client.send(post("k1") + post("broken") + post("k2")).silent()
        server.call(lookups.release)
        assert [client.response().status for _ in range(2)] == [200, 500]
        assert client.ended()
        eventually(lambda: lookups.budget.used == 0)


@pytest.mark.parametrize("name", ["GET", "MGET", "EXISTS"])
@pytest.mark.parametrize("is_behind", [False, True])
def test_over_resp_it_is_an_error_and_the_connection_ends(lookups: BrokenLookups, name: str, is_behind: bool) -> None:
    if is_behind:
        lookups.held.add("k1")
    with serving_resp(lookups) as server, server.connect() as client:
        if is_behind:
            assert client.send(command("MGET", "k1") + command(name, "broken")).silent()
            server.call(lookups.release)
            assert client.reply() == [b"1"]
        else:
            client.send(command(name, "broken"))
        assert client.refusal() == "ERR the router failed to begin the command"
        assert client.ended()
        eventually(lambda: lookups.budget.used == 0)
