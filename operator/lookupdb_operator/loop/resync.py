"""The resync: compares the cache with lists, rereads Secrets, and queues every dataset."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.cluster.api import ApiError, NotFound
from lookupdb_operator.cluster.cache import Key, ObjectCache
from lookupdb_operator.cluster.client import REFRESH_SECONDS, AccountKeys
from lookupdb_operator.cluster.cluster import Listing
from lookupdb_operator.cluster.informers import Informers
from lookupdb_operator.loop.queue import LookQueue
from lookupdb_operator.metrics import Health, Metrics
from lookupdb_operator.names import Kind
from lookupdb_operator.store import LiveDatasetsWriter, ShardKeyReader, StoreAccessReader

log = logging.getLogger(__name__)

_JITTER: Final = 0.1
_COMPARE_EVERY: Final = 0.5
"""Seconds between checks whether the informers have caught up."""
_PATIENCE: Final = 120.0
"""Seconds in which an informer must report what is listed; a watch reconnects in less."""
_WATCH_LAG: Final = 5.0
"""Seconds in which a watch reports what is listed."""
_LIVE_DATASETS_EVERY: Final = 10.0
_RETRY_SECONDS: Final = 1.0
"""Seconds between attempts at startup."""


class Resync:
    """Regularly compares the cache with lists, rereads the release's Secrets (the store's only without a gateway) and
    queues every dataset. At startup it opens the queue once the cache has everything that the API server lists."""

    def __init__(
        self,
        *,
        cache: ObjectCache,
        queue: LookQueue[Key],
        informers: Informers,
        listing: Listing,
        store: StoreAccessReader | None,
        live_datasets: LiveDatasetsWriter | None,
        account_keys: AccountKeys,
        shard_key: ShardKeyReader | None = None,
        metrics: Metrics,
        health: Health,
        seconds: float,
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._informers = informers
        self._listing = listing
        self._store = store
        self._live_datasets = live_datasets
        self._shard_key = shard_key
        self._account_keys = account_keys
        self._metrics = metrics
        self._health = health
        self._seconds = seconds
        self._kinds_to_compare = itertools.cycle(names.WATCHED)

    async def run(self) -> None:
        """Open the informers once the cache has every dataset; then compare and queue until cancelled."""
        await self._informers.wait_synced()
        await self._repeat(self._compare_datasets, _RETRY_SECONDS, until_done=True)
        log.info("watching %d datasets", len(self._cache.dataset_keys()))
        self._informers.open()
        self._queue_all()
        async with asyncio.TaskGroup() as group:
            if self._live_datasets:
                group.create_task(self._repeat(self._live_datasets.write, _LIVE_DATASETS_EVERY))
            group.create_task(self._repeat(self._refresh_account_keys, REFRESH_SECONDS))
            group.create_task(self._resync())

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._seconds * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311 - not a secret
            try:
                await self._compare_datasets()
                await self._compare_children(next(self._kinds_to_compare))
                if self._store and await self._store.refresh():
                    log.info("the store's credentials have changed")
                if self._shard_key and await self._shard_key.refresh():
                    log.warning("the key of shard servers' passwords has changed: every dataset is rolled out again")
            except ApiError as error:
                log.warning("resync: %s", error)
                continue
            self._queue_all()

    async def _refresh_account_keys(self) -> None:
        if await self._account_keys.refresh():
            log.info("the keys of service accounts have changed")
            self._queue_all()

    def _queue_all(self) -> None:
        for key in tuple(self._cache.dataset_keys()):
            self._queue.add(key)
        # With datasets, only a reconcile pass counts as a success.
        if not self._cache.dataset_keys():
            self._metrics.note_success()

    async def _compare_datasets(self) -> None:
        """Return once the cache has every LookupDataset. Fails the health check if kopf never reports one."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while unseen := await self._informers.compare(names.DATASET_KIND, self._listing):
            if asyncio.get_running_loop().time() > deadline:
                self._health.report_failure(f"no watch has reported {unseen} of kind {names.DATASET_KIND.name}")
            await asyncio.sleep(_COMPARE_EVERY)

    async def _compare_children(self, kind: Kind) -> None:
        """Compare one kind at each resync, in turn: reflectors miss something only if an API server's watch does."""
        if not await self._informers.compare(kind, self._listing):
            return
        await asyncio.sleep(_WATCH_LAG)
        if unseen := await self._informers.compare(kind, self._listing):
            log.warning("no watch has reported %d of kind %s; listing them again", unseen, kind.name)
            self._informers.relist(kind)

    async def _repeat(self, action: Callable[[], Awaitable[Any]], seconds: float, until_done: bool = False) -> None:
        while True:
            try:
                await action()
                if until_done:
                    return
            except ApiError as error:
                log.warning("%s", error)
            await asyncio.sleep(seconds)


async def wait_for_api(listing: Listing, seconds: float = _RETRY_SECONDS) -> None:
    """Return once LookupDatasets can be listed and appear in the API discovery: kopf reads discovery only once and
    would never watch a kind that is missing there."""
    while True:
        try:
            await listing.list_uids(names.DATASET_KIND)
            if await listing.is_discovered(names.DATASET_KIND):
                return
            log.info("the API server does not name LookupDatasets yet")
        except NotFound:
            log.warning("the API server does not know LookupDatasets; is their CustomResourceDefinition installed?")
        except ApiError as error:
            log.warning("%s", error)
        await asyncio.sleep(seconds)
