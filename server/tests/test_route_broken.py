"""Lookups that cannot begin, which no client can cause: each ends its connection, leaks nothing, and gets no other
request's value."""

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
        """Answer the held lookups like callbacks of a loop: an exception of one does not stop the others."""
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


def is_gone(client: Any) -> bool:
    """Whether the connection ends without a further answer."""
    try:
        return bool(client.ended())
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("is_repeat", [False, True])
@pytest.mark.parametrize("ask", [get, post])
def test_the_connection_ends(lookups: BrokenLookups, ask: Any, is_repeat: bool) -> None:
    with serving(lookups) as server, server.connect() as client, server.connect() as other:
        if is_repeat:
            assert client.send(ask("k1")).response().status == 200
        assert is_gone(client.send(ask("broken") + ask("k2")))
        eventually(lambda: lookups.budget.used == 0)
        assert other.send(ask("k1")).response().status == 200


def test_one_that_waited_for_another_ends_it_too(lookups: BrokenLookups) -> None:
    lookups.held.add("k1")
    with serving(lookups) as server, server.connect() as client:
        assert client.send(post("k1") + post("broken") + post("k2")).silent()
        server.call(lookups.release)
        is_gone(client)  # perhaps after the first answer
        eventually(lambda: lookups.budget.used == 0)


@pytest.mark.parametrize("name", ["GET", "MGET", "EXISTS"])
@pytest.mark.parametrize("is_behind", [False, True])
def test_a_connection_over_resp_ends(lookups: BrokenLookups, name: str, is_behind: bool) -> None:
    if is_behind:
        lookups.held.add("k1")
    with serving_resp(lookups) as server, server.connect() as client:
        client.send(command("MGET", "k1") * is_behind + command(name, "broken") + command("GET", "k2"))
        if is_behind:
            assert client.silent()
            server.call(lookups.release)
        is_gone(client)  # perhaps after the first answer
        eventually(lambda: lookups.budget.used == 0)
