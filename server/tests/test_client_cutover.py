"""lookupdb.client while the dataset changes, and while its shards go: no result mixes generations, and no key of a
shard that is away is missing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.callers import calling, outcomes
from support.clients import Kind, blocking
from support.fleets import Shards, fleet, fleet_entry
from support.routers import Router, routing
from support.routing import mixed, table_file
from support.shards import write_generation
from support.waiting import until

from lookupdb import keys
from lookupdb.client import AsyncClient, Client, Unavailable, UnknownGeneration

pytestmark = pytest.mark.long
pytest_plugins = ["support.client_fixtures"]

COUNT = 5000
KEYS = [f"key-{number}" for number in range(COUNT)]
SECONDS = 60.0


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """Name → entry of a routing table; values are their generation's name."""
    home = tmp_path_factory.mktemp("generations")
    made = {
        name: write_generation(
            home, dict.fromkeys(KEYS, b'"%b"' % name.encode()), shards=2, generation=name, value_format="json"
        )
        for name in ("g1", "g2")
    }
    with fleet(made["g1"]) as first, fleet(made["g2"]) as second:
        yield {"g1": fleet_entry(made["g1"], first), "g2": fleet_entry(made["g2"], second)}


class Tables:
    """The routing table of a router, and its successors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = 0

    def write(self, *entries: dict[str, Any]) -> None:
        self.version += 1
        self.path.with_suffix(".new").write_bytes(table_file(*entries, version=self.version))
        self.path.with_suffix(".new").replace(self.path)

    def await_effect(self, router: Router) -> None:
        until(lambda: router.reports("tableVersion") == [self.version], f"version {self.version} is in effect")


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "table.json")


def test_many_keys_are_of_one_generation_while_it_changes(
    generations: dict[str, dict[str, Any]], tables: Tables
) -> None:
    """Threads and coroutines look up five parts each, over twelve cutovers. Every other cutover removes the previous
    generation at once."""
    tables.write(generations["g1"])
    seen: list[str] = []
    stopped = threading.Event()

    def check(results: Any) -> None:
        assert len(results.found) == COUNT
        assert {*results.found.values()} == {results.generation}, "of one generation"
        seen.append(results.generation)

    def ask(url: str) -> None:
        with Client(url, timeout=SECONDS) as client:
            while not stopped.is_set():
                check(client.get_many(KEYS))

    async def ask_in_coroutines(url: str) -> None:
        async with AsyncClient(url, timeout=SECONDS) as client:
            while not stopped.is_set():
                for results in await asyncio.gather(client.get_many(KEYS), client.get_many(KEYS)):
                    check(results)

    failures: list[BaseException] = []

    def run(function: Any, *words: Any) -> None:
        try:
            function(*words)
        except BaseException as error:
            failures.append(error)

    with routing(tables.path) as router:
        url = f"http://127.0.0.1:{router.port}"
        threads = [threading.Thread(target=run, args=(ask, url)) for _ in range(2)]
        threads.append(threading.Thread(target=run, args=(lambda: asyncio.run(ask_in_coroutines(url)),)))
        for thread in threads:
            thread.start()
        for turn in range(12):
            new, old = ("g2", "g1") if turn % 2 == 0 else ("g1", "g2")
            tables.write(generations[new], *([generations[old]] if turn % 4 < 2 else []))
            tables.await_effect(router)
            before = len(seen)
            until(lambda before=before: len(seen) > before + 2 or failures, "it is asked")  # type: ignore[misc]
        stopped.set()
        for thread in threads:
            thread.join(SECONDS)
    assert failures == []
    assert {*seen} == {"g1", "g2"}


def test_a_candidate_is_asked_by_name_and_goes_when_it_is_rejected(
    generations: dict[str, dict[str, Any]], tables: Tables, kind: Kind
) -> None:
    tables.write(generations["g1"], generations["g2"])
    with routing(tables.path) as router, blocking(kind, f"http://127.0.0.1:{router.port}", timeout=SECONDS) as client:
        assert client.dataset().candidates == ("g2",)
        candidate = client.at("g2")
        assert (candidate.get("key-1"), client.get("key-1")) == ("g2", "g1")
        assert {*candidate.get_many(KEYS).found.values()} == {"g2"}
        tables.write(generations["g1"])
        tables.await_effect(router)
        for call in (lambda: candidate.get("key-1"), lambda: candidate.get_many(KEYS)):
            with pytest.raises(UnknownGeneration) as told:
                call()
            assert (told.value.generation, told.value.active) == ("g2", ("g1",))
        assert client["key-1"] == "g1"


def test_a_rollout_shard_by_shard_names_all_generations(
    generations: dict[str, dict[str, Any]], tables: Tables, kind: Kind
) -> None:
    tables.write(mixed(generations["g2"], generations["g1"], {1}))
    with routing(tables.path) as router, blocking(kind, f"http://127.0.0.1:{router.port}", timeout=SECONDS) as client:
        results = client.get_many(KEYS)
        assert len(results.found) == COUNT
        assert (results.generation, results.generations) == (None, ("g1", "g2"))
        for key in KEYS[:50]:
            lookup = client.lookup(key)
            assert lookup.value == lookup.generation == results.found[key]
        assert client.dataset().shard_generations == {"g1": 1, "g2": 1}
        with pytest.raises(UnknownGeneration) as told:
            client.at("g1").get("key-1")
        assert told.value.active == ("g1", "g2")


def test_keys_of_a_shard_that_is_away_are_unavailable_and_not_missing(
    tmp_path: Path, tables: Tables, kind: Kind
) -> None:
    made = write_generation(tmp_path, dict.fromkeys(KEYS[:100], b"1"), shards=2, value_format="json")
    asked = [*KEYS[:100], "nowhere-1", "nowhere-2", "nowhere-3", "nowhere-4"]
    of_dead = {key for key in asked if keys.shard_number(key.encode(), 2) == 1}
    assert 0 < len(of_dead) < len(asked)
    with fleet(made) as shards:
        tables.write(fleet_entry(made, shards))
        options = ("--deadline-ms", "300")
        with routing(tables.path, *options) as router, blocking(kind, f"http://127.0.0.1:{router.port}") as client:
            assert len(client.get_many(asked).missing) == 4
            _kill(shards)
            results = client.get_many(asked, partial=True)
            assert {*results.unavailable} == of_dead
            assert {*results.found} == {*KEYS[:100]} - of_dead
            assert {*results.missing} == {*asked[100:]} - of_dead
            with pytest.raises(Unavailable) as told:
                client.get_many(asked)
            assert told.value.keys == tuple(asked), "the router does not say which they are"
            assert f"{len(of_dead)} of {len(asked)} keys cannot be looked up now" in told.value.detail
            assert "with partial=True to get the others" in told.value.detail
            assert str(told.value).startswith("unavailable now: 'key-0', 'key-1', 'key-2' and 101 more (")
            for key in asked[::7]:
                if key in of_dead:
                    for call in (client.get, client.has, client.lookup, client.__getitem__):
                        with pytest.raises(Unavailable) as told:
                            call(key)
                        assert (told.value.keys, told.value.shard) == ((key,), 1)
                else:
                    assert client.has(key) == key.startswith("key")


@pytest.mark.parametrize(
    ("options", "timeout"),
    [(("--deadline-ms", "300"), SECONDS), ((), 5.0)],
    ids=["the router's deadline", "the call's"],
)
def test_an_unavailable_key_fails_only_its_own_caller(
    tmp_path: Path, tables: Tables, kind: Kind, options: tuple[str, ...], timeout: float
) -> None:
    """The router's deadline, here 20 s, may be shorter or longer than the caller's."""
    made = write_generation(tmp_path, dict.fromkeys(KEYS[:100], b"1"), shards=2, value_format="json")
    with fleet(made) as shards:
        tables.write(fleet_entry(made, shards))
        url = "http://127.0.0.1:{}"
        with (
            routing(tables.path, *options) as router,
            calling(kind, url.format(router.port), timeout=timeout) as client,
        ):
            client.get("key-1")
            _kill(shards)
            for key, outcome in zip(KEYS, outcomes(client.start_all("get", KEYS[:100])), strict=False):
                if keys.shard_number(key.encode(), 2) == 1:
                    assert isinstance(outcome, Unavailable)
                    assert outcome.keys == (key,)
                else:
                    assert outcome == 1


@pytest.mark.parametrize("timeouts", [{"timeout": 5.0}, {"timeout": 60.0, "read_timeout": 3.0}], ids=["call", "read"])
def test_a_timeout_below_the_routers_deadline_loses_no_key_of_a_shard_that_is_there(
    tmp_path: Path, tables: Tables, kind: Kind, timeouts: dict[str, float]
) -> None:
    made = write_generation(tmp_path, dict.fromkeys(KEYS[:100], b"1"), shards=2, value_format="json")
    of_dead = {key for key in KEYS[:100] if keys.shard_number(key.encode(), 2) == 1}
    with fleet(made) as shards:
        tables.write(fleet_entry(made, shards))
        # The router's own deadline is 20 s here.
        url = "http://127.0.0.1:{}"
        with routing(tables.path) as router, blocking(kind, url.format(router.port), **timeouts) as client:
            client.get("key-1")
            _kill(shards)
            results = client.get_many(KEYS[:100], partial=True)
            assert {*results.unavailable} == of_dead
            assert {*results.found} == {*KEYS[:100]} - of_dead
            with pytest.raises(Unavailable) as told:
                client.get(next(iter(of_dead)))
            assert (told.value.reason, told.value.shard) == ("Deadline", 1), "it is the router that tells"


def _kill(shards: Shards) -> None:
    for server in shards[1]:
        server.kill()
        server.process.wait(30)
