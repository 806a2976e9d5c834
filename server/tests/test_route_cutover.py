"""Cutover while requests go on: none fails, none mixes generations. test_route_workers.py has real shard servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.routing import LIMITS, Core, entry, identity, table_file
from support.scripted_shard import ScriptedShard
from support.waiting import soon

from lookupdb.keys import shard_number
from lookupdb.router import cutover
from lookupdb.router.routing_table import TableWatcher, digest_table

KEYS = [f"k{i}" for i in range(60)]


def records(generation: str) -> dict[str, bytes]:
    """Every value names its generation; some keys are in one generation only."""
    return {key: generation.encode() for key in KEYS} | {f"only-{generation}": b"1"}


@contextlib.asynccontextmanager
async def served(generation: str, shards: int) -> AsyncIterator[dict[str, Any]]:
    """The table entry of a generation whose shards are served in this event loop."""
    parts: list[dict[bytes, bytes]] = [{} for _ in range(shards)]
    for key, value in records(generation).items():
        parts[shard_number(key.encode(), shards)][key.encode()] = value
    async with contextlib.AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(ScriptedShard(identity(number, shards, generation), part))
            for number, part in enumerate(parts)
        ]
        yield entry([[server.address] for server in servers], generation)


@pytest.fixture
async def entries() -> AsyncIterator[dict[str, dict[str, Any]]]:
    """g1 in two shards and g2 in three, both served."""
    async with served("g1", 2) as first, served("g2", 3) as second:
        yield {"g1": first, "g2": second}


@dataclass
class Router:
    """A core fed by a routing table file."""

    path: Path
    core: Core = field(default_factory=lambda: Core(replace(LIMITS, deadline_milliseconds=20_000)))

    def __post_init__(self) -> None:
        self.watcher = TableWatcher(self.path, self.core.cutover.offer, self.core.cutover.refuse)

    @property
    def status(self) -> dict[str, Any]:
        return self.core.cutover.status()

    def write(self, content: bytes) -> None:
        unfinished = self.path.with_suffix(".tmp")
        unfinished.write_bytes(content)
        unfinished.rename(self.path)

    async def in_effect(self, version: int) -> None:
        await soon(lambda: self.status["tableVersion"] == version, f"version {version} is in effect")


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Router]:
    router = Router(tmp_path / "table.json")
    yield router
    router.watcher.stop()
    router.core.close()


async def started(router: Router, *given: dict[str, Any], version: int = 1) -> Router:
    router.write(table_file(*given, version=version))
    router.watcher.start()
    await soon(lambda: router.core.cutover.is_complete, "the first table is in effect")
    return router


async def test_without_a_table_it_waits_and_is_not_complete(router: Router) -> None:
    router.watcher.start()
    assert (router.status["error"], router.status["tableVersion"]) == (cutover.WAITING, None)
    assert router.status["datasetUid"] is None
    assert not router.core.cutover.is_complete


async def test_a_shard_that_is_down_keeps_a_new_router_out_for_a_while_only(
    router: Router, entries: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the test says when the wait is over; the next test shows that it ends by itself."""
    monkeypatch.setattr(cutover, "READY_SECONDS", 3600.0)
    nowhere = {"endpoints": ["127.0.0.1:1"]}
    told: list[bool] = []
    router.core.cutover._on_change = lambda: told.append(router.core.cutover.is_complete)
    router.write(table_file({**entries["g1"], "shards": [entries["g1"]["shards"][0], nowhere]}))
    router.watcher.start()
    await soon(lambda: router.status["unreachedShards"] == [1], "one of two shards is reached")
    assert not router.core.cutover.is_complete
    router.core.cutover._accept_unreached_shards()
    assert told[-1], "it is reported as complete"


async def test_a_router_that_reaches_no_shard_is_never_complete(
    router: Router, entries: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutover, "READY_SECONDS", 0.05)
    nowhere = {"endpoints": ["127.0.0.1:1"]}
    router.write(table_file({**entries["g1"], "shards": [nowhere, nowhere]}))
    router.watcher.start()
    await soon(lambda: router.core.cutover._may_lack_shards, "it has waited long enough")
    assert not router.core.cutover.is_complete


class Load:
    """Single and batch lookups without a pause, each answer checked against the generation it names."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tasks: list[asyncio.Task[None]] = []
        self._going = True
        self.answers: dict[str, int] = {}

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._single(at)) for at in range(8)]
        self._tasks += [asyncio.create_task(self._batches()) for _ in range(4)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._going = False
        await asyncio.gather(*self._tasks)

    async def _single(self, at: int) -> None:
        while self._going:
            at = (at + 1) % len(KEYS)
            answer = self._core.find(KEYS[at])
            assert await answer == (answer.generation or "").encode()
            self._note(answer.generation)

    async def _batches(self) -> None:
        while self._going:
            answer = self._core.find_many([*KEYS, "only-g1", "only-g2"])
            values = await answer
            name = answer.generation
            ones = [b"1" if name == "g1" else None, b"1" if name == "g2" else None]
            assert values == [str(name).encode()] * len(KEYS) + ones
            self._note(name)

    def _note(self, generation: str | None) -> None:
        assert generation
        self.answers[generation] = self.answers.get(generation, 0) + 1


async def test_no_request_fails_or_mixes_generations_while_tables_change(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    await started(router, entries["g1"])
    async with Load(router.core) as load:
        for version in range(2, 6):
            await soon(lambda: load.answers, "requests are answered")
            load.answers.clear()
            router.write(table_file(entries["g2" if version % 2 == 0 else "g1"], version=version))
            await router.in_effect(version)
            load.answers.clear()
        await soon(lambda: load.answers, "requests are answered")
    assert "g1" in load.answers
    assert router.core.count("keys_unavailable") == 0
    assert router.core.count("reloads") == 5


async def test_from_the_cutover_on_all_answers_are_the_new_generations(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    await started(router, entries["g1"])
    in_flight = router.core.find_many(KEYS)
    router.write(table_file(entries["g2"], version=2))
    await router.in_effect(2)
    assert await in_flight == [b"g1"] * len(KEYS)
    assert await router.core.find_many(KEYS) == [b"g2"] * len(KEYS)


async def test_the_generation_before_can_be_asked_by_name_until_its_time_is_over(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    await started(router, entries["g1"])
    router.write(table_file(entries["g2"], version=2))
    await router.in_effect(2)
    answer = router.core.find("only-g1", "g1")
    assert (await answer, answer.generation) == (b"1", "g1")
    assert await router.core.find_many(["only-g1", "only-g2"], "g1") == [b"1", None]
    assert await router.core.find("only-g1") is None, "who names none is answered from the active one"
    router.core.cutover._end_previous()
    assert await router.core.find("only-g1", "g1") == "g1", "it is unknown"


async def test_a_table_of_the_same_generation_takes_nothing_of_that_time(
    router: Router, entries: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, a table with another replica, which comes moments after the cutover."""
    monkeypatch.setattr(cutover, "PREVIOUS_SECONDS", 1.0)
    await started(router, entries["g1"])
    router.write(table_file(entries["g2"], version=2))
    await router.in_effect(2)
    for version in (3, 4):
        router.write(table_file(entries["g2"], version=version))
        await router.in_effect(version)
        assert await router.core.find_many(["only-g1", "only-g2"], "g1") == [b"1", None]
    await soon(lambda: router.core.lookups.previous is None, "its time is over")
    assert await router.core.find("only-g2") == b"1"


async def test_that_time_passes_by_itself(
    router: Router, entries: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutover, "PREVIOUS_SECONDS", 0.05)
    await started(router, entries["g1"])
    router.write(table_file(entries["g2"], version=2))
    await router.in_effect(2)
    await soon(lambda: router.core.lookups.previous is None, "its time is over")
    assert await router.core.find("k1", "g1") == "g1"


async def test_two_cutovers_back_only_the_last_generation_can_be_asked_and_a_rollback_needs_no_such_time(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    await started(router, entries["g1"])
    router.write(table_file(entries["g2"], version=2))
    await router.in_effect(2)
    router.write(table_file(entries["g1"], version=3))
    await router.in_effect(3)
    assert await router.core.find("only-g2", "g2") == b"1"
    assert await router.core.find("only-g1", "g1") == b"1"
    router.write(table_file(entries["g1"], entries["g2"], version=4))
    await router.in_effect(4)
    assert router.core.lookups.previous is None, "the table itself names g2"


async def test_the_generation_before_is_unknown_once_a_shard_of_it_is_gone_and_nothing_is_unavailable(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    async with served("g3", 2) as before:
        await started(router, before)
        router.write(table_file(entries["g1"], version=2))
        await router.in_effect(2)
        assert await router.core.find_many(KEYS, "g3") == [b"g3"] * len(KEYS)
        assert router.core.count("candidate_endpoints_ready") == 2, "they take descriptors"
    await soon(lambda: router.core.lookups.previous is None, "its servers are gone")
    assert await router.core.find_many(KEYS, "g3") == "g3"
    assert router.core.count("candidate_endpoints_ready") == router.core.count("candidate_endpoints_unready") == 0
    assert router.core.count("keys_unavailable") == 0


async def test_connections_that_stay_are_kept_and_those_that_go_are_closed(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    """g1 was not active, so it does not stay for clients that request the previous generation."""
    router.core.cutover._settings = replace(router.core.cutover._settings, deadline_seconds=0.05)
    await started(router, entries["g2"], entries["g1"])
    pool = router.core.cutover._pool._endpoints
    before = set(pool.values())
    router.write(table_file(entries["g2"], version=2))
    await router.in_effect(2)
    await soon(lambda: len(pool) == 3, "the other generation's endpoints are closed")
    assert set(pool.values()) <= before


async def test_a_half_written_table_keeps_the_old_one(router: Router, entries: dict[str, dict[str, Any]]) -> None:
    await started(router, entries["g1"])
    whole = table_file(entries["g2"], version=2)
    async with Load(router.core):
        router.path.write_bytes(whole[: len(whole) // 2])
        await soon(lambda: router.status["error"], "the half is refused")
        assert router.status["tableVersion"] == 1
        assert f"{router.path}: a routing table is JSON" in router.status["error"]
        router.path.write_bytes(whole)
        await router.in_effect(2)
    assert router.status["error"] is None


async def test_an_emptied_table_keeps_the_old_one(router: Router, entries: dict[str, dict[str, Any]]) -> None:
    """If somebody removes its key from the ConfigMap, the kubelet removes the file."""
    await started(router, entries["g1"])
    async with Load(router.core):
        router.path.unlink()
        await soon(lambda: router.status["error"], "its absence is reported")
        assert (router.status["tableVersion"], router.core.cutover.is_complete) == (1, True)
        router.write(table_file(entries["g1"], version=1))
        await soon(lambda: router.status["error"] is None, "it is back")


async def test_a_table_whose_shard_is_dead_keeps_the_old_one_and_says_why(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    await started(router, entries["g1"])
    dead = entry([entries["g2"]["shards"][0]["endpoints"], ["127.0.0.1:1"], ["127.0.0.1:1"]], "g2")
    async with Load(router.core) as load:
        router.write(table_file(dead, version=2))
        await soon(lambda: router.status["tableSeen"] == 2, "the new table is seen")
        await soon(lambda: any(e["why"] for e in router.status["endpoints"]), "the dead endpoints are reported")
        await soon(lambda: router.status["error"] and router.status["error"].endswith("for shard 1, 2"), "it says why")
        assert router.status["tableVersion"] == 1
        assert "version 2 waits for an endpoint to be verified for shard 1, 2" in router.status["error"]
        assert "127.0.0.1:1" in [told["endpoint"] for told in router.status["endpoints"]]
        load.answers.clear()
        await soon(lambda: load.answers, "requests are answered")
        assert set(load.answers) == {"g1"}
        router.write(table_file(entries["g2"], version=3))
        await router.in_effect(3)
    assert router.core.count("keys_unavailable") == 0


async def test_a_table_whose_endpoints_serve_another_generation_keeps_the_old_one(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    await started(router, entries["g1"])
    swapped = {**entries["g1"], "generation": "g3"}
    router.write(table_file(swapped, version=2))
    await soon(lambda: router.core.count("proofs_failed") >= 2, "the proofs have failed")
    assert router.status["tableVersion"] == 1
    assert "found 'g1'" in router.status["endpoints"][0]["why"]
    assert await router.core.find_many(KEYS) == [b"g1"] * len(KEYS)


async def test_an_older_version_is_refused_and_said_so(router: Router, entries: dict[str, dict[str, Any]]) -> None:
    await started(router, entries["g2"], version=5)
    router.write(table_file(entries["g1"], version=4))
    await soon(lambda: router.status["tableSeen"] == 4, "the old version is seen")
    assert router.status["tableVersion"] == 5
    assert router.status["error"] == "version 4 is older than version 5, which is in effect"
    router.write(table_file(entries["g2"], version=5))
    await soon(lambda: router.status["error"] is None, "all is well again")
    assert await router.core.find("k1") == b"g2"


async def test_it_reports_the_digest_of_the_text_that_it_answers_from(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    """An edited table has taken the next version: until a newer one is read, only the digest shows that."""
    assert router.status["tableDigest"] is None
    first, edited = table_file(entries["g1"]), table_file(entries["g1"], version=2, notes="edited by hand")
    edited = edited.replace(b'"records":', b'"records":1')
    await started(router, entries["g1"])
    assert router.status["tableDigest"] == digest_table(first)
    async with Load(router.core):
        router.write(edited)
        await router.in_effect(2)
        assert router.status["tableDigest"] == digest_table(edited)
        for refused, why in ((first, "is older"), (table_file(entries["g1"], version=2), "with other content")):
            router.write(refused)
            await soon(lambda why=why: why in (router.status["error"] or ""), "it is refused")  # type: ignore[misc]
            assert router.status["tableVersion"] == 2
            assert router.status["tableDigest"] == digest_table(edited)
        overtaking = table_file(entries["g1"], version=3)
        router.write(overtaking)
        await router.in_effect(3)
        assert router.status["tableDigest"] == digest_table(overtaking)
        assert router.status["error"] is None
    assert router.core.count("keys_unavailable") == 0


async def test_of_texts_that_say_the_same_it_reports_the_last_one(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    await started(router, entries["g1"])
    spaced = table_file(entries["g1"]) + b"\n"
    router.write(spaced)
    await soon(lambda: router.status["tableDigest"] == digest_table(spaced), "it has read the other text")
    assert (router.core.count("reloads"), router.core.count("reloads_refused")) == (1, 0)


async def test_a_table_of_another_dataset_is_refused_by_a_router_of_one_the_first_too(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    """A dataset that is deleted and made again is another one. The servers in the old one's table are about to go."""
    router = Router(router.path, Core(router.core.limits, dataset_uid="local"))
    strange = {"namespace": "default", "name": "sample", "uid": "of before"}
    router.write(table_file(entries["g1"], version=7, dataset=strange))
    router.watcher.start()
    assert "'of before'" in router.status["error"]
    assert "'local'" in router.status["error"]
    assert (router.status["tableVersion"], router.status["datasetUid"], router.status["tableSeen"]) == (None, None, 7)
    assert router.core.count("reloads_refused") == 1
    assert not router.core.cutover.is_complete
    router.write(table_file(entries["g1"], version=1))
    await router.in_effect(1)
    assert (router.status["datasetUid"], router.status["error"]) == ("local", None)
    router.write(table_file(entries["g2"], version=8, dataset=strange))
    await soon(lambda: router.core.count("reloads_refused") == 2, "it is refused again")
    assert (router.status["tableVersion"], router.status["datasetUid"]) == (1, "local")
    router.watcher.stop()
    router.core.close()


async def test_a_router_of_any_takes_it_and_says_whose_it_is(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    await started(router, entries["g1"])
    assert router.status["datasetUid"] == "local"
    strange = {"namespace": "default", "name": "sample", "uid": "another"}
    router.write(table_file(entries["g1"], version=1, dataset=strange))
    await soon(lambda: router.status["error"], "it waits for shards of that dataset")
    assert "waits for an endpoint to be verified" in router.status["error"]
    assert router.status["datasetUid"] == "local"


async def test_a_table_before_its_shards_answers_unavailable_and_then_serves(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    nowhere = {**entries["g1"], "shards": [entries["g1"]["shards"][0], {"endpoints": ["127.0.0.1:1"]}]}
    router.write(table_file(nowhere))
    router.watcher.start()
    await soon(lambda: router.status["unreachedShards"] == [1], "the other shard is reached")
    assert not router.core.cutover.is_complete
    router.write(table_file(entries["g1"], version=2))
    await router.in_effect(2)
    await soon(lambda: router.core.cutover.is_complete, "all shards are reached")
    assert await router.core.find_many(KEYS) == [b"g1"] * len(KEYS)


async def test_a_candidate_whose_servers_are_dead_harms_nobody_who_does_not_ask_for_it(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    """Neither readiness nor the table nor the active generation's answers; asked for, it is unavailable."""
    dead = entry([["127.0.0.1:1"]], "g2")
    await started(router, entries["g1"])
    async with Load(router.core) as load:
        router.write(table_file(entries["g1"], dead, version=2))
        await router.in_effect(2)
        assert router.core.cutover.is_complete
        assert router.status["unreachedShards"] == []
        answer = await router.core.find("k1", "g2")
        assert (answer.reason, answer.shard) == ("Unreachable", 0)
        assert (await router.core.find_many(KEYS, "g2")).reason == "Unreachable"
        load.answers.clear()
        await soon(lambda: load.answers, "requests are answered")
        assert set(load.answers) == {"g1"}
    assert (router.core.count("endpoints_ready"), router.core.count("endpoints_unready")) == (2, 0)
    counted = router.core.count("candidate_endpoints_ready"), router.core.count("candidate_endpoints_unready")
    assert counted == (0, 1)


async def test_the_active_generations_dead_endpoints_are_told_before_a_candidates(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    reached = entries["g1"]["shards"][0]["endpoints"]
    dead_candidate = entry([[f"127.0.0.1:{port}" for port in range(1, 40)]], "g2")
    router.write(table_file(entry([reached, ["127.0.0.1:50"]]), dead_candidate))
    router.watcher.start()
    dead = [f"127.0.0.1:{port}" for port in (50, *range(1, 20))]  # as many as are reported
    await soon(
        lambda: [told["endpoint"] for told in router.status["endpoints"] if told["why"]] == dead,
        "the dead endpoints are reported, the active generation's first",
    )


async def test_a_promoted_candidate_answers_on_the_connections_that_it_has(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    await started(router, entries["g1"], entries["g2"])
    pool = router.core.cutover._pool._endpoints
    await soon(lambda: all(endpoint.link.was_ready for endpoint in pool.values()), "the candidate is connected")
    before = set(pool.values())
    async with Load(router.core):
        router.write(table_file(entries["g2"], entries["g1"], version=2))
        await router.in_effect(2)
        assert set(pool.values()) == before
        assert await router.core.find("k1") == b"g2"
        assert await router.core.find("k1", "g1") == b"g1", "what served before is asked by name"
    assert router.core.count("keys_unavailable") == 0


async def test_of_a_rejected_candidate_what_is_in_flight_is_answered_and_what_comes_later_is_told(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    await started(router, entries["g1"], entries["g2"])
    pool = router.core.cutover._pool._endpoints
    await soon(lambda: all(endpoint.link.was_ready for endpoint in pool.values()), "the candidate is connected")
    in_flight = router.core.find_many(KEYS, "g2")
    router.write(table_file(entries["g1"], version=2))
    await router.in_effect(2)
    assert await in_flight == [b"g2"] * len(KEYS)
    assert await router.core.find("k1", "g2") == "g2", "it is an unknown generation, and the active one does not answer"
    assert await router.core.find_many(KEYS, "g2") == "g2"


async def test_lookups_of_a_candidate_are_held_to_the_same_budget(
    router: Router, entries: dict[str, dict[str, Any]]
) -> None:
    await started(router, entries["g1"], entries["g2"])
    budget = router.core.budget
    budget.take(budget.batch_mark + 1)
    assert (await router.core.find_many(KEYS, "g2")).reason == "Overloaded"
    budget.take(budget.limit - budget.batch_mark)
    assert (await router.core.find("k1", "g2")).reason == "Overloaded"
    budget.release(budget.limit + 1)
    assert await router.core.find("k1", "g2") == b"g2"
