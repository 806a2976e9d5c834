"""Watch events on their way into the cache and the queue, and the comparison of lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from operator_support.running import until

from lookupdb_operator import names
from lookupdb_operator.cluster.cache import Key, ObjectCache
from lookupdb_operator.cluster.client import Api, Keys
from lookupdb_operator.cluster.cluster import Listing
from lookupdb_operator.cluster.informers import Informers, make_settings
from lookupdb_operator.loop.queue import LookQueue
from lookupdb_operator.main import Resync
from lookupdb_operator.metrics import Health, Metrics
from lookupdb_operator.names import Kind
from lookupdb_operator.store import StoreAccessReader

Json = dict[str, Any]
KEY = ("shop", "airports")


def dataset(uid: str = "ds-1", version: int = 1) -> Json:
    meta = {"namespace": "shop", "name": "airports", "uid": uid, "resourceVersion": str(version), "generation": 1}
    return {"metadata": meta, "spec": {"source": {"url": "example://airports"}}}


def pod(name: str, version: int = 1, phase: str = "Pending") -> Json:
    labels = names.labels("airports", "ds-1", names.SHARDS)
    meta = {"namespace": "shop", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version), "labels": labels}
    return {"metadata": meta, "status": {"phase": phase}}


class Lists:
    """The API server's lists, by kind."""

    def __init__(self) -> None:
        self.there: dict[str, set[str]] = {}
        self.asked: list[str] = []

    async def list_uids(self, kind: Kind) -> frozenset[str]:
        self.asked.append(kind.name)
        return frozenset(self.there.get(kind.name, ()))


class Bench:
    """Informers without an API server; the test provides their events."""

    def __init__(self) -> None:
        self.cache, self.queue, self.lists, self.progress = ObjectCache(), LookQueue[Key](), Lists(), 0
        self.informers = Informers(self.cache, self.queue.add, cast(Api, None), on_progress=self._progressed)

    def _progressed(self) -> None:
        self.progress += 1

    async def compare(self, kind: Kind) -> int:
        return await self.informers.compare(kind, cast(Listing, self.lists))


@pytest.fixture
async def bench() -> Bench:
    return Bench()


def test_a_watch_ends_after_whole_seconds() -> None:
    # It goes into the URL unchanged, and Go's ParseInt refuses 290.0, unlike emulators of the API server.
    assert str(make_settings().watching.server_timeout).isdigit()


async def test_nothing_is_queued_before_everything_was_listed(bench: Bench) -> None:
    bench.informers.on_changed(names.DATASET_KIND, dataset())
    bench.informers.on_changed(names.POD, pod("a"))
    assert bench.queue.depth == 0
    assert bench.progress == 2, "the start gets on"
    bench.informers.open()
    bench.informers.on_changed(names.POD, pod("a", 2, "Running"))
    assert bench.queue.depth == 1
    assert bench.progress == 2, "from then on only looks are progress"


async def test_what_changes_nothing_that_is_decided_by_wakes_nobody(bench: Bench) -> None:
    bench.informers.open()
    for body in (dataset(), pod("a")):
        bench.informers.on_changed(names.DATASET_KIND if "spec" in body else names.POD, body)
    bench.queue.done(await bench.queue.take())
    bench.informers.on_changed(names.POD, pod("a", 1))
    bench.informers.on_changed(names.POD, pod("a", 2))
    assert bench.queue.depth == 0
    bench.informers.on_deleted(names.POD, pod("a", 3))
    assert bench.queue.depth == 1


async def test_what_a_list_has_no_more_is_dropped_and_what_nobody_told_of_is_counted(bench: Bench) -> None:
    for name in ("a", "b"):
        bench.informers.on_changed(names.POD, pod(name))
    bench.informers.on_changed(names.DATASET_KIND, dataset())
    bench.informers.open()
    bench.lists.there = {"Pod": {"uid-b", "uid-c"}}
    assert await bench.compare(names.POD) == 1
    assert bench.queue.depth == 1
    assert set(bench.informers.known_headers(names.POD, "")) == {"uid-b"}
    assert set(bench.informers.known_headers(names.POD, "elsewhere")) == set()
    bench.informers.on_changed(names.POD, pod("a", 1))
    assert set(bench.informers.known_headers(names.POD, "")) == {"uid-b"}, "an event that came late"


def resync(bench: Bench, relisted: list[str]) -> tuple[Resync, Metrics]:
    async def synced() -> None: ...

    class Unchanged:
        async def refresh(self) -> bool:
            return False

    bench.informers.wait_synced = synced  # type: ignore[method-assign]
    bench.informers.relist = lambda kind: relisted.append(kind.name)  # type: ignore[method-assign]
    metrics = Metrics()
    made = Resync(
        cache=bench.cache,
        queue=bench.queue,
        informers=bench.informers,
        listing=cast(Listing, bench.lists),
        store=cast(StoreAccessReader, Unchanged()),
        live_datasets=None,
        account_keys=cast(Keys, Unchanged()),
        metrics=metrics,
        health=Health(metrics, resync=600, is_alive=lambda: True, longest_look=lambda: 0.0),
        seconds=0.01,
    )
    return made, metrics


async def running(made: Resync, condition: Callable[[], Any], what: str) -> None:
    task = asyncio.create_task(made.run())
    try:
        await until(condition, what)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_every_dataset_is_looked_at_once_kopf_has_told_of_all(bench: Bench) -> None:
    bench.lists.there = {names.KIND: {"ds-1"}}
    made, _ = resync(bench, [])

    task = asyncio.create_task(made.run())
    await until(lambda: len(bench.lists.asked) >= 2, "two comparisons")
    assert bench.queue.depth == 0
    bench.informers.on_changed(names.DATASET_KIND, dataset())
    await until(lambda: bench.queue.depth, "the look")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_each_resync_compares_datasets_and_one_further_kind_in_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookupdb_operator.main._WATCH_LAG", 0.0)
    bench.informers.on_changed(names.DATASET_KIND, dataset())
    bench.lists.there = {names.KIND: {"ds-1"}, "Service": {"uid-of-what-no-watch-told"}}
    relisted: list[str] = []
    made, _ = resync(bench, relisted)
    children = [kind.name for kind in names.WATCHED]
    await running(made, lambda: set(children) <= set(bench.lists.asked), "all kinds")
    assert bench.lists.asked.count(names.KIND) > len(children)
    assert relisted[0] == "Service"
    assert set(relisted) == {"Service"}
