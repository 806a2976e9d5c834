"""Start, connect and stop the parts of the operator in kopf's event loop, and run the resync beside them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import kopf

from lookupdb import __version__
from lookupdb.dataset import schema
from lookupdb.errors import UsageError
from lookupdb.process import listeners
from lookupdb.process.admin import ProbeServer
from lookupdb.telemetry import open_tracing
from lookupdb_operator import names
from lookupdb_operator.cluster.api import ApiError, NotFound
from lookupdb_operator.cluster.cache import Key, ObjectCache
from lookupdb_operator.cluster.client import REFRESH_SECONDS, Api, Keys
from lookupdb_operator.cluster.cluster import Cluster, Listing
from lookupdb_operator.cluster.informers import Informers, make_settings
from lookupdb_operator.loop.observe import Announcements, Observer, RouterPolls
from lookupdb_operator.loop.queue import LookQueue, LookWorkers
from lookupdb_operator.loop.reconcile import Decide, Reconciler, TurnTaking
from lookupdb_operator.metrics import Health, Metrics
from lookupdb_operator.model import Config, StoreAccess
from lookupdb_operator.plan import plan, turns
from lookupdb_operator.plan.turns import TurnQueues
from lookupdb_operator.store import (
    GatewayAnnouncer,
    LiveDatasetsWriter,
    ShardKeyReader,
    StoreAccessReader,
    ensure_credentials,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_SECONDS: Final = 1.0
"""Seconds between attempts at startup."""

# Check that the cluster's CustomResourceDefinition has everything that this operator reads and writes.
#
# An older CRD would prune or reject parts of the status, and the operator would forget what it claimed. So the operator
# does not start with one. It compares the packaged CRD with the API server's OpenAPI document, which every service
# account may read. A newer CRD is fine.


_PATH: Final = f"/openapi/v3/apis/{names.DATASET_KIND.api_version}"
_PATIENCE: Final = 10.0
"""Seconds that the document may lag behind a new CRD; usually about two."""
_NAMED_AT_MOST: Final = 5

Schema = Mapping[str, Any]


class OutdatedCrd(UsageError):
    """The cluster's CustomResourceDefinition lacks what this operator needs."""

    reason = "OutdatedCrd"


async def wait_for_crd(api: Api, patience: float = _PATIENCE) -> None:
    """Return once the published schema of LookupDatasets has everything that this operator needs. Raises OutdatedCrd if
    it still lacks something after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    kind = {"group": names.DATASET_KIND.group, "version": names.DATASET_KIND.version, "kind": names.DATASET_KIND.name}
    while True:
        try:
            document = await api.request("GET", _PATH, subject=f"the OpenAPI document {_PATH}")
        except ApiError as error:
            log.warning("%s; is the CustomResourceDefinition of LookupDatasets installed?", error)
        else:
            schemas = document.get("components", {}).get("schemas", {}).values()
            found = next((item for item in schemas if kind in item.get("x-kubernetes-group-version-kind", ())), None)
            missing = [] if found is None else list(find_missing(schema.resource_schema(), found))
            if found is None:
                log.warning("the API server does not publish the schema of LookupDatasets yet")
            elif not missing:
                return
            elif time.monotonic() >= deadline:
                named = ", ".join(missing[:_NAMED_AT_MOST]) + (", …" if len(missing) > _NAMED_AT_MOST else "")
                raise OutdatedCrd(
                    f"the CustomResourceDefinition {names.DATASET_KIND.plural}.{names.DATASET_KIND.group} of this"
                    f" cluster lacks {len(missing)} of the fields and values that the operator {__version__} needs:"
                    f" {named}",
                    hint="apply the one of the operator's version: kubectl apply --server-side -f crds/",
                )
        await asyncio.sleep(_RETRY_SECONDS)


def find_missing(expected: Schema, found: Schema) -> Iterator[str]:
    """Yield the parts of ``expected`` that ``found`` lacks, for example ``status.rollouts[].push``."""
    for part in ("spec", "status"):
        yield from _find_missing(expected["properties"][part], found.get("properties", {}).get(part, {}), part)


def _find_missing(expected: Schema, found: Schema, path: str) -> Iterator[str]:
    if found.get("x-kubernetes-preserve-unknown-fields"):
        return
    fields = found.get("properties", {})
    for name, member in expected.get("properties", {}).items():
        if name in fields:
            yield from _find_missing(member, fields[name], f"{path}.{name}")
        else:
            yield f"{path}.{name}"
    for keyword, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(member := expected.get(keyword), Mapping):
            counterpart = found.get(keyword)
            yield from _find_missing(member, counterpart if isinstance(counterpart, Mapping) else {}, path + suffix)
    if "enum" in found:
        yield from (f"{path}={value}" for value in expected.get("enum", ()) if value not in found["enum"])


async def wait_for_api(listing: Listing) -> None:
    """Return once LookupDatasets can be listed and appear in the API discovery: kopf reads discovery only once and
    would never watch a kind that is missing there."""
    while True:
        try:
            await listing.list_uids(names.DATASET_KIND)
            if await listing.is_discovered(names.DATASET_KIND):
                return
            log.info("the API server does not list the kind LookupDataset yet")
        except NotFound:
            log.warning("the API server does not know LookupDatasets; is their CustomResourceDefinition installed?")
        except ApiError as error:
            log.warning("%s", error)
        await asyncio.sleep(_RETRY_SECONDS)


# The resync, and the start.


_JITTER: Final = 0.1
_COMPARE_EVERY: Final = 0.5
"""Seconds between checks whether the informers have caught up."""
_WATCH_PATIENCE: Final = 120.0
"""Seconds in which an informer must report what is listed; a watch reconnects in less."""
_WATCH_LAG: Final = 5.0
"""Seconds that a healthy watch may lag behind a list."""
_LIVE_DATASETS_EVERY: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resync:
    """Regularly compares the cache with lists, rereads the release's Secrets (the store's only without a gateway) and
    queues every dataset. At startup it opens the queue once the cache has everything that the API server lists."""

    cache: ObjectCache
    queue: LookQueue[Key]
    informers: Informers
    listing: Listing
    store: StoreAccessReader | None
    live_datasets: LiveDatasetsWriter | None
    account_keys: Keys
    shard_key: ShardKeyReader | None = None
    metrics: Metrics
    health: Health
    seconds: float

    async def run(self) -> None:
        """Open the informers once the cache has every dataset; then compare and queue until cancelled."""
        await self.informers.wait_synced()
        await self._repeat(self._compare_datasets, _RETRY_SECONDS, until_done=True)
        log.info("watching %d datasets", len(self.cache.dataset_keys()))
        self.informers.open()
        self._queue_all()
        async with asyncio.TaskGroup() as group:
            if self.live_datasets:
                group.create_task(self._repeat(self.live_datasets.write, _LIVE_DATASETS_EVERY))
            group.create_task(self._repeat(self._refresh_account_keys, REFRESH_SECONDS))
            group.create_task(self._resync())

    async def _resync(self) -> None:
        kinds_to_compare = itertools.cycle(names.WATCHED)
        while True:
            await asyncio.sleep(self.seconds * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311 - not a secret
            try:
                await self._compare_datasets()
                # One kind at each resync, in turn: reflectors miss something only if an API server's watch does.
                kind = next(kinds_to_compare)
                if await self.informers.compare(kind, self.listing):
                    await asyncio.sleep(_WATCH_LAG)
                    if unseen := await self.informers.compare(kind, self.listing):
                        log.warning("%s objects that no watch has reported: %d; listing them again", kind.name, unseen)
                        self.informers.relist(kind)
                if self.store and await self.store.refresh():
                    log.info("the store's credentials have changed")
                if self.shard_key and await self.shard_key.refresh():
                    log.warning("the key of shard servers' passwords has changed: every dataset is rolled out again")
            except ApiError as error:
                log.warning("resync: %s", error)
                continue
            self._queue_all()

    async def _refresh_account_keys(self) -> None:
        if await self.account_keys.refresh():
            log.info("the keys of service accounts have changed")
            self._queue_all()

    def _queue_all(self) -> None:
        for key in tuple(self.cache.dataset_keys()):
            self.queue.add(key)
        # With datasets, only a reconcile pass counts as a success.
        if not self.cache.dataset_keys():
            self.metrics.note_success()

    async def _compare_datasets(self) -> None:
        """Return once the cache has every LookupDataset. Fails the health check if kopf never reports one."""
        deadline = asyncio.get_running_loop().time() + _WATCH_PATIENCE
        while unseen := await self.informers.compare(names.DATASET_KIND, self.listing):
            if asyncio.get_running_loop().time() > deadline:
                self.health.report_failure(f"{names.DATASET_KIND.name} objects that no watch has reported: {unseen}")
            await asyncio.sleep(_COMPARE_EVERY)

    async def _repeat(self, action: Callable[[], Awaitable[Any]], seconds: float, until_done: bool = False) -> None:
        while True:
            try:
                await action()
                if until_done:
                    return
            except ApiError as error:
                log.warning("%s", error)
            await asyncio.sleep(seconds)


_SYSTEM: Final = "kube-system"
"""The namespace whose uid identifies a cluster. Every cluster has it, and it cannot be deleted."""


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """The command-line options. ``config`` holds settings that are the same for all datasets."""

    config: Config
    """If its ``cluster`` is empty, the uid of the kube-system namespace is used."""
    namespace: str
    """The operator's own namespace, with the store's Secret and the list of live datasets."""
    namespaces: tuple[str, ...] = ()
    """The namespaces to watch; all if empty."""
    store_secret: str = ""
    create_store_secret: bool = False
    shard_key_secret: str = ""
    """The Secret with the release's shard key. If empty, shard servers require no password."""
    gateway_token: Path | None = None
    """The file with the token for announcing active generations to the gateway; None: nothing is announced."""
    store_environment: Mapping[str, str] = field(default_factory=dict)
    living_list: str = ""
    host: str = "0.0.0.0"  # noqa: S104 - probes come from outside the pod
    port: int = names.OPERATOR_PORT
    resync_seconds: float = 300.0
    workers: int = 4
    max_concurrent_builds: int = turns.DEFAULT_LIMIT
    max_concurrent_rollouts: int = turns.DEFAULT_LIMIT
    admin_port: int = names.ADMIN_PORT
    """The port on which routers are asked for reports."""


async def run(options: OperatorOptions, *, stop: threading.Event | None = None, decide: Decide = plan) -> None:
    """Run the operator until SIGTERM, SIGINT or ``stop``. Raises ApiError when no cluster is configured, and
    LookupdbError when the operator cannot start."""
    operator = _Operator(options, await Api.connect(os.environ.get("KUBECONFIG")), decide)
    try:
        registry = operator.informers.make_registry(start=operator.start, stop=operator.stop)
        where: dict[str, Any] = {"namespaces": options.namespaces} if options.namespaces else {"clusterwide": True}
        with open_tracing("lookupdb-operator"):
            await kopf.operator(registry=registry, settings=make_settings(), stop_flag=stop, **where)
    except Exception:
        if operator.informers.start_error is not None:
            raise operator.informers.start_error from None
        raise
    finally:
        await operator.close()


class _Operator:
    """The parts that live as long as the operator."""

    def __init__(self, options: OperatorOptions, api: Api, decide: Decide) -> None:
        self._options = options
        self._api = api
        self._decide = decide
        self._metrics = Metrics()
        self._cluster = Cluster(
            api,
            admin_port=options.admin_port,
            on_write=lambda verb, kind: self._metrics.writes.labels(verb, kind).inc(),
        )
        self._listing = Listing(api, options.namespaces)
        self._cache = ObjectCache()
        self._queue: LookQueue[Key] = LookQueue(on_wait=self._metrics.waits.observe)
        self._metrics.depth.set_function(lambda: self._queue.depth)
        self._workers: LookWorkers[Key] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._polls = RouterPolls(self._cluster, self._queue.add)
        self._started = contextlib.AsyncExitStack()
        """Stops what ``start`` has started, the last first."""
        self._started.push_async_callback(self._polls.close)
        self.informers = Informers(
            self._cache, self._queue.add, api, options.namespaces, on_progress=self._metrics.note_progress
        )

    async def start(self) -> None:
        """Start everything that a reconcile pass needs, then the workers. kopf lists objects only afterwards.

        Probes are answered once the CustomResourceDefinition is complete; until then the pod is not ready.
        """
        options = self._options
        await wait_for_crd(self._api)
        health = Health(
            self._metrics,
            resync=options.resync_seconds,
            is_alive=self._is_alive,
            longest_look=lambda: self._queue.longest_look,
        )
        listener = listeners.bind(options.host, options.port)
        probes = await ProbeServer(health.answer).start(listener)
        self._started.push_async_callback(probes.cleanup)
        cluster = options.config.cluster or await _retry_until_done(lambda: self._cluster.namespace_uid(_SYSTEM))
        config = replace(options.config, cluster=cluster)
        if options.create_store_secret:
            await _retry_until_done(lambda: ensure_credentials(self._cluster, options.namespace, options.store_secret))
        shard_key = None
        if options.shard_key_secret:  # before any plan: a rollout needs its password
            shard_key = ShardKeyReader(self._cluster, options.namespace, options.shard_key_secret)
            await _retry_until_done(shard_key.refresh)
            config = replace(config, shard_key=shard_key.key)
        store = await self._read_store_access(config)
        await wait_for_api(self._listing)
        self._metrics.identity.labels(config.identity).set(1)
        account_keys, announcements = Keys(self._api), None
        if options.gateway_token is not None and config.gateway:
            announcer = GatewayAnnouncer(config.gateway, config.cluster, options.gateway_token)
            self._started.push_async_callback(announcer.close)
            announcements = Announcements(announcer, self._queue.add)
            self._started.push_async_callback(announcements.close)
            config = replace(config, announces=True)
        reconciler = Reconciler(
            cache=self._cache,
            observer=Observer(self._cache, self._cluster, self._polls),
            cluster=self._cluster,
            config=config,
            store=lambda: store.access if store else StoreAccess(),
            account_keys=lambda: account_keys.text,
            metrics=self._metrics,
            announcements=announcements,
            decide=self._decide,
            turns=TurnTaking(
                TurnQueues(builds=options.max_concurrent_builds, rollouts=options.max_concurrent_rollouts),
                cache=self._cache,
                config=config,
                wake=self._queue.add,
            ),
        )
        if shard_key:
            shard_key.on_change = lambda key: reconciler.use_config(replace(config, shard_key=key))
        resync = Resync(
            cache=self._cache,
            queue=self._queue,
            informers=self.informers,
            listing=self._listing,
            store=store,
            live_datasets=self._live_datasets_writer(config),
            shard_key=shard_key,
            account_keys=account_keys,
            metrics=self._metrics,
            health=health,
            seconds=options.resync_seconds,
        )
        self._workers = LookWorkers(self._queue, reconciler.look, options.workers)
        self._started.push_async_callback(self._workers.stop)
        self._workers.start()
        for name, work in (("reflectors", self.informers.run()), ("resync", resync.run())):
            task = asyncio.create_task(work, name=name)
            task.add_done_callback(_log_defect)
            self._started.push_async_callback(_cancel, task)
            self._tasks.append(task)
        port = listeners.bound_port(listener)
        log.info("operating cluster %s as %s, on port %d", config.cluster, config.identity, port)

    async def _read_store_access(self, config: Config) -> StoreAccessReader | None:
        if config.gateway:
            return None  # only the gateway has the credentials
        store = StoreAccessReader(
            self._cluster,
            namespace=self._options.namespace,
            secret=self._options.store_secret,
            environment=self._options.store_environment,
            salt=f"{config.store} {config.cluster}",
        )
        await _retry_until_done(store.refresh)
        return store

    def _live_datasets_writer(self, config: Config) -> LiveDatasetsWriter | None:
        if not self._options.living_list:
            return None
        return LiveDatasetsWriter(
            self._cache,
            self._cluster,
            namespace=self._options.namespace,
            name=self._options.living_list,
            cluster_id=config.cluster,
            namespaces=self._options.namespaces,
        )

    def _is_alive(self) -> bool:
        if self._workers is None:
            return True  # starting; a slow start shows in the age of the last success
        return self._workers.alive and not any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        """Stop what ``start`` started. May be called more than once."""
        await self._started.aclose()

    async def close(self) -> None:
        """Stop, and close all connections, even if kopf was cancelled before it called ``stop``."""
        await self.stop()
        await self._cluster.close()
        await self._api.close()


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel ``task`` and wait for its end. Its defect, if any, is logged already."""
    task.cancel()
    await asyncio.wait([task])


def _log_defect(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("%s stopped because of a bug", task.get_name(), exc_info=error)


async def _retry_until_done(step: Callable[[], Awaitable[T]]) -> T:
    """Retry ``step`` until it succeeds, and return its result: a cluster's parts start in any order."""
    while True:
        try:
            return await step()
        except ApiError as error:
            log.warning("%s; retrying in %.0f s", error, _RETRY_SECONDS)
            await asyncio.sleep(_RETRY_SECONDS)
