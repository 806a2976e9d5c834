"""The recipes of docs/reference/http-api.md, run as they stand there: clients that retry a 503."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import urllib3
from support.http import ScriptedLookups, Server, serving

from lookupdb.router.batch_keys import BatchKeys
from lookupdb.router.http import problems
from lookupdb.router.lookups import OVERLOADED, BatchWaiter, Problem

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "http-api.md").read_text()
RECIPES = dict(re.findall(r"^```python (\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
INSTALLED = [name for name in RECIPES if importlib.util.find_spec(name)]


class Busy(ScriptedLookups):
    """A lookup core that refuses the first batches."""

    refusals = 0

    def find_many(self, keys: BatchKeys, waiter: BatchWaiter, generation: str | None = None, **options: Any) -> None:
        self.asked.append(",".join(keys.to_list()))
        if self.refusals:
            self.refusals -= 1
            waiter.unavailable(OVERLOADED)
        else:
            super().find_many(keys, waiter, generation)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Busy(values={"a": b"1"})) as server:
        yield server


def look_up(recipe: str, server: Server, keys: list[str]) -> Any:
    names: dict[str, Any] = {}
    exec(compile(RECIPES[recipe], recipe, "exec"), names)
    url = f"http://127.0.0.1:{server.port}"
    if not inspect.iscoroutinefunction(names["look_up"]):
        return names["look_up"](url, keys)

    async def run() -> Any:
        async with names[recipe].ClientSession() as session:
            return await names["look_up"](session, url, keys)

    return asyncio.run(run())


def test_there_are_recipes_for_the_usual_clients() -> None:
    assert list(RECIPES) == ["urllib3", "aiohttp"]
    assert {"urllib3", "aiohttp"} <= set(INSTALLED)


@pytest.mark.parametrize("recipe", INSTALLED)
def test_a_recipe_asks_again_until_it_is_answered(server: Server, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look_up(recipe, server, ["a", "b"]) == {"a": 1}
    server.lookups.refusals = 2
    assert look_up(recipe, server, ["a", "b"]) == {"a": 1}
    assert server.lookups.asked == ["a,b"] * 4


@pytest.mark.parametrize("recipe", INSTALLED)
def test_it_gives_up_in_the_end_and_waits_as_long_as_it_was_told(
    server: Server, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr("asyncio.sleep", note)
    server.lookups.refusals = 99
    with pytest.raises(LookupError, match="Overloaded"):
        look_up(recipe, server, ["a"])
    waits = [wait for wait in waits if wait > 0.5]
    assert len(waits) == 5
    assert min(waits) >= problems.RETRY_SECONDS
    assert len(set(waits)) > 3, "not all clients come back at the same moments"


def test_the_recipe_of_urllib3_repeats_refused_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        names: dict[str, Any] = {}
        exec(compile(RECIPES["urllib3"], "urllib3", "exec"), names)
        with pytest.raises(urllib3.exceptions.MaxRetryError):
            names["look_up"](f"http://127.0.0.1:{bound.getsockname()[1]}", ["a"])
    assert len(waits) == 4, "the first time at once"
    assert len(set(waits)) == 4


@pytest.mark.parametrize("reason", get_args(get_type_hints(Problem)["reason"]))
def test_every_reason_is_explained_and_every_503_tells_when_to_ask_again(server: Server, reason: str) -> None:
    assert f"| `{reason}` |" in TEXT
    server.lookups.refusals = 1
    with server.connect() as client:
        response = client.post(b'{"keys": ["a"]}')
    assert (response.status, response.fields["retry-after"]) == (503, "1")


def test_the_routers_of_examples_leave_sync_its_admin_port() -> None:
    commands = re.findall(r"^\$ (lookupdb route .*)$", TEXT, re.M)
    assert commands
    for command in commands:
        port = re.search(r"--admin-port (\d+)", command)
        assert port is not None, command
        assert port[1] != "9090", command
