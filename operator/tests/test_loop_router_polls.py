"""Routers are asked apart from reconcile passes: one that does not answer delays nobody else."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from operator_support.running import until

from lookupdb_operator import names
from lookupdb_operator.cluster.cluster import Cluster
from lookupdb_operator.loop.observe import ReportsPending, RouterPolls
from lookupdb_operator.loop.queue import LookQueue, LookWorkers
from lookupdb_operator.model import Observed, ObservedDataset, Pod, RouterReport

Key = tuple[str, str]


class Routers:
    """Routers whose address begins with "dead" answer only on command, and "defect" never does."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.at_once = self.most_at_once = 0
        self.alive = asyncio.Event()

    async def ask_router(self, ip: str, dataset_uid: str) -> RouterReport:
        self.asked.append(ip)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if ip.startswith("dead"):
                await self.alive.wait()
            if ip == "defect":
                raise ZeroDivisionError
        finally:
            self.at_once -= 1
        return RouterReport(7)


def observed(name: str, *ips: str) -> Observed:
    pods = tuple(Pod(f"{name}-{ip}", f"uid-{name}-{ip}", names.ROUTER, ip=ip, phase="Running") for ip in ips)
    return Observed(ObservedDataset("shop", name, f"uid-{name}", "1", 1, {}, None), pods=pods)


async def test_a_look_has_the_reports_that_came_after_it_was_first_asked_and_each_look_new_ones() -> None:
    routers, woken = Routers(), asyncio.Queue[Key]()
    polls = RouterPolls(cast(Cluster, routers), woken.put_nowait)
    airports = observed("airports", "a", "b")
    for round_ in (1, 2):
        with pytest.raises(ReportsPending):
            polls.take_reports(airports)
        with pytest.raises(ReportsPending):
            polls.take_reports(airports)
        assert await asyncio.wait_for(woken.get(), 60) == airports.dataset.key
        assert polls.take_reports(airports) == {pod.uid: RouterReport(7) for pod in airports.pods}
        assert len(routers.asked) == 2 * round_, "one poll at a time"


async def test_where_there_is_no_router_nobody_is_asked() -> None:
    assert RouterPolls(cast(Cluster, Routers()), lambda key: None).take_reports(observed("airports")) == {}


async def test_one_dataset_whose_routers_do_not_answer_delays_no_other() -> None:
    routers, queue = Routers(), LookQueue[Key]()
    polls = RouterPolls(cast(Cluster, routers), queue.add)
    datasets = [observed("dead", *(f"dead-{index}" for index in range(500)))]
    datasets += [observed(f"live-{index}", f"ip-{index}") for index in range(50)]
    by_key = {dataset.dataset.key: dataset for dataset in datasets}
    done: set[Key] = set()

    async def look(key: Key) -> None:
        try:
            polls.take_reports(by_key[key])
        except ReportsPending:
            return
        done.add(key)

    workers = LookWorkers(queue, look, 1)
    workers.start()
    for key in by_key:
        queue.add(key)
    try:
        await until(lambda: len(done) == 50, "the others", lambda: len(done))
        assert ("shop", "dead") not in done
        assert routers.most_at_once < 100, "of one dataset, so many at once"
        routers.alive.set()
        await until(lambda: len(done) == 51, "the last one")
    finally:
        await workers.stop()
        await polls.close()


async def test_after_a_poll_that_breaks_the_dataset_is_looked_at_again_without_reports(
    caplog: pytest.LogCaptureFixture,
) -> None:
    woken = asyncio.Queue[Key]()
    polls = RouterPolls(cast(Cluster, Routers()), woken.put_nowait)
    airports = observed("airports", "a", "defect")
    with pytest.raises(ReportsPending):
        polls.take_reports(airports)
    assert await asyncio.wait_for(woken.get(), 60) == airports.dataset.key
    assert polls.take_reports(airports) == {}, "unknown, and not that there is none"
    assert "shop/airports: routers cannot be asked" in caplog.text


async def test_what_is_gone_is_not_asked_any_more() -> None:
    routers = Routers()
    polls = RouterPolls(cast(Cluster, routers), lambda key: pytest.fail("woken"))
    with pytest.raises(ReportsPending):
        polls.take_reports(observed("airports", "dead"))
    await asyncio.sleep(0)
    polls.forget(("shop", "airports"))
    routers.alive.set()
    await until(lambda: not routers.at_once, "the end of it")
