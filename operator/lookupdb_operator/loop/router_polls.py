"""Polls routers for the routing table that they answer from, outside of looks: a router that does not answer takes
seconds, in which it must not occupy a worker of the queue.

A look that needs the reports is ended (``ReportsPending``). When all routers have answered or timed out, the dataset is
queued again, and its next look has their reports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from lookupdb_operator import names
from lookupdb_operator.loop.queue import LookDeferred
from lookupdb_operator.model import Observed, Pod, RouterReport
from lookupdb_operator.watch.cache import Key

log = logging.getLogger(__name__)

_ASKED_AT_ONCE: Final = 128
_ASKED_AT_ONCE_OF_A_DATASET: Final = 16
"""A dataset with many routers that do not answer leaves room for others."""


class ReportsPending(LookDeferred):
    """Raised instead of what is observed: routers are being asked, and the dataset is looked at again afterwards."""


class RouterClient(Protocol):
    """Asks one router."""

    async def ask_router(self, ip: str, dataset_uid: str) -> RouterReport:
        """What the router at ``ip`` answers from; a report with a problem when it does not answer."""


class RouterPolls:
    """The polls under way, and the reports that no look has taken yet; at most one of either for each dataset."""

    def __init__(self, client: RouterClient, wake: Callable[[Key], None]) -> None:
        """``wake`` is called with the dataset whose reports are there."""
        self._client = client
        self._wake = wake
        self._turns = asyncio.Semaphore(_ASKED_AT_ONCE)
        self._polls: dict[Key, asyncio.Task[None]] = {}
        self._reports: dict[Key, Mapping[str, RouterReport]] = {}

    def take_reports(self, observed: Observed) -> Mapping[str, RouterReport]:
        """What each router of ``observed`` has answered since the last call, by the pod's uid. Raises ReportsPending
        when the routers have yet to be asked."""
        key = observed.dataset.key
        routers = _running_routers(observed)
        if key in self._reports:
            return self._reports.pop(key)
        if not routers:
            return {}
        if key not in self._polls:
            self._polls[key] = asyncio.create_task(self._poll(key, observed.dataset.uid, routers))
        raise ReportsPending("routers are being asked")

    def forget(self, key: Key) -> None:
        """The dataset is gone."""
        self._reports.pop(key, None)
        if poll := self._polls.pop(key, None):
            poll.cancel()

    async def close(self) -> None:
        """Cancel all polls."""
        polls = tuple(self._polls.values())
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    async def _poll(self, key: Key, dataset_uid: str, routers: tuple[Pod, ...]) -> None:
        turns = asyncio.Semaphore(_ASKED_AT_ONCE_OF_A_DATASET)

        async def ask(pod: Pod) -> tuple[str, RouterReport]:
            async with turns, self._turns:
                return pod.uid, await self._client.ask_router(pod.ip, dataset_uid)

        reports: Mapping[str, RouterReport] = {}
        try:
            reports = dict(await asyncio.gather(*(ask(pod) for pod in routers)))
        except Exception:  # whatever it is, the dataset is looked at again
            log.exception("%s/%s: routers cannot be asked", *key)
        self._polls.pop(key, None)
        self._reports[key] = reports
        self._wake(key)


def _running_routers(observed: Observed) -> tuple[Pod, ...]:
    return tuple(
        pod
        for pod in observed.pods
        if pod.component == names.ROUTER and pod.phase == "Running" and pod.ip and not pod.deleting
    )
