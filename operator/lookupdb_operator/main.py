"""Start, connect and stop the parts of the operator, in kopf's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
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
from lookupdb.telemetry import open_tracing
from lookupdb_operator import names
from lookupdb_operator.cluster.api import ApiError
from lookupdb_operator.cluster.cache import Key, ObjectCache
from lookupdb_operator.cluster.client import AccountKeys, Api
from lookupdb_operator.cluster.cluster import Cluster, Listing
from lookupdb_operator.cluster.informers import Informers, make_settings
from lookupdb_operator.loop.background import Announcements, RouterPolls
from lookupdb_operator.loop.observe import Observer
from lookupdb_operator.loop.queue import LookQueue, LookWorkers
from lookupdb_operator.loop.reconcile import Decide, Reconciler, TurnTaking
from lookupdb_operator.loop.resync import Resync, wait_for_api
from lookupdb_operator.metrics import Health, HealthServer, Metrics
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

# Check that the cluster's CustomResourceDefinition has everything that this operator reads and writes.
#
# An older CRD would prune or reject parts of the status, and the operator would forget what it claimed. So it does not
# start with one. It compares its packaged CRD with the API server's OpenAPI document, which every service account may
# read. A newer CRD is fine.


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
    while True:
        try:
            found = _find_schema(await api.request("GET", _PATH, subject=f"the OpenAPI document {_PATH}"))
        except ApiError as error:
            log.warning("%s; is the CustomResourceDefinition of LookupDatasets installed?", error)
        else:
            missing = [] if found is None else list(find_missing(schema.resource_schema(), found))
            if found is None:
                log.warning("the API server does not publish the schema of LookupDatasets yet")
            elif not missing:
                return
            elif time.monotonic() >= deadline:
                raise _make_error(missing)
        await asyncio.sleep(_RETRY_SECONDS)


def _find_schema(document: Schema) -> Schema | None:
    """Return the schema of one LookupDataset; None if ``document`` has none."""
    kind = {"group": names.DATASET_KIND.group, "version": names.DATASET_KIND.version, "kind": names.DATASET_KIND.name}
    schemas = document.get("components", {}).get("schemas", {}).values()
    return next((item for item in schemas if kind in item.get("x-kubernetes-group-version-kind", ())), None)


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


def _make_error(missing: list[str]) -> OutdatedCrd:
    crd = f"{names.DATASET_KIND.plural}.{names.DATASET_KIND.group}"
    named = ", ".join(missing[:_NAMED_AT_MOST]) + (", …" if len(missing) > _NAMED_AT_MOST else "")
    return OutdatedCrd(
        f"the CustomResourceDefinition {crd} of this cluster lacks {len(missing)} of the fields and values that the"
        f" operator {__version__} needs: {named}",
        hint="upgrade it with that of the operator's version: kubectl apply --server-side -f crds/",
    )


log = logging.getLogger(__name__)

T = TypeVar("T")

_SYSTEM: Final = "kube-system"
"""The namespace whose uid identifies a cluster. Every cluster has it, and it cannot be deleted."""
_RETRY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """The command-line options. ``config`` holds those that are the same for all datasets."""

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
        self._resync: asyncio.Task[None] | None = None
        self._health_server: HealthServer | None = None
        self._polls = RouterPolls(self._cluster, self._queue.add)
        self._reflecting: asyncio.Task[None] | None = None
        self._announcer: GatewayAnnouncer | None = None
        self._announcements: Announcements | None = None
        self._shard_key = b""
        self._on_shard_key: Callable[[bytes], None] = lambda key: None
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
        self._health_server = HealthServer(health, self._metrics, host=options.host, port=options.port)
        await self._health_server.open()
        cluster = options.config.cluster or await _retry_until_done(lambda: self._cluster.namespace_uid(_SYSTEM))
        config = replace(options.config, cluster=cluster)
        if options.create_store_secret:
            await _retry_until_done(lambda: ensure_credentials(self._cluster, options.namespace, options.store_secret))
        shard_key = self._shard_key_reader()
        if shard_key:  # before any plan: a rollout needs its password
            await _retry_until_done(shard_key.refresh)
            config = replace(config, shard_key=self._shard_key)
        store = self._store_access_reader(config)
        if store:
            await _retry_until_done(store.refresh)
        await wait_for_api(self._listing)
        self._metrics.identity.labels(config.identity).set(1)
        account_keys = AccountKeys.of_cluster(self._api)
        if options.gateway_token is not None and config.gateway:
            self._announcer = GatewayAnnouncer(config.gateway, config.cluster, options.gateway_token)
            self._announcements = Announcements(self._announcer, self._queue.add)
            config = replace(config, announces=True)
        reconciler = Reconciler(
            cache=self._cache,
            observer=Observer(self._cache, self._cluster, self._polls),
            cluster=self._cluster,
            config=config,
            store=lambda: store.access if store else StoreAccess(),
            account_keys=lambda: account_keys.text,
            metrics=self._metrics,
            announcements=self._announcements,
            decide=self._decide,
            turns=TurnTaking(
                TurnQueues(builds=options.max_concurrent_builds, rollouts=options.max_concurrent_rollouts),
                cache=self._cache,
                config=config,
                wake=self._queue.add,
            ),
        )
        self._on_shard_key = lambda key: reconciler.use_config(replace(config, shard_key=key))
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
        self._workers.start()
        self._reflecting = asyncio.create_task(self.informers.run(), name="reflectors")
        self._resync = asyncio.create_task(resync.run(), name="resync")
        for task in (self._reflecting, self._resync):
            task.add_done_callback(_log_defect)
        log.info(
            "operating cluster %s as %s, on port %d", config.cluster, config.identity, self._health_server.bound_port
        )

    def _is_alive(self) -> bool:
        if self._workers is None or self._resync is None or self._reflecting is None:
            return True  # starting; a slow start shows in the age of the last success
        return self._workers.alive and not self._resync.done() and not self._reflecting.done()

    def _store_access_reader(self, config: Config) -> StoreAccessReader | None:
        if config.gateway:
            return None  # only the gateway has the credentials
        return StoreAccessReader(
            self._cluster,
            namespace=self._options.namespace,
            secret=self._options.store_secret,
            environment=self._options.store_environment,
            salt=f"{config.store} {config.cluster}",
        )

    def _shard_key_reader(self) -> ShardKeyReader | None:
        options = self._options
        if not options.shard_key_secret:
            return None
        return ShardKeyReader(self._cluster, options.namespace, options.shard_key_secret, self._note_shard_key)

    def _note_shard_key(self, key: bytes) -> None:
        self._shard_key = key
        self._on_shard_key(key)

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

    async def stop(self) -> None:
        """Stop what ``start`` started. May be called more than once."""
        for task in filter(None, (self._resync, self._reflecting)):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        if self._workers:
            await self._workers.stop()
        await self._polls.close()
        if self._announcements:
            await self._announcements.close()
        if self._announcer:
            await self._announcer.close()
        if self._health_server:
            await self._health_server.close()

    async def close(self) -> None:
        """Stop, and close all connections, even if kopf was cancelled before it called ``stop``."""
        await self.stop()
        await self._cluster.close()


def _log_defect(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("%s stopped by a defect", task.get_name(), exc_info=error)


async def _retry_until_done(step: Callable[[], Awaitable[T]]) -> T:
    """Retry ``step`` until it succeeds, and return its result: a cluster's parts start in any order."""
    while True:
        try:
            return await step()
        except ApiError as error:
            log.warning("%s; again in %.0f s", error, _RETRY_SECONDS)
            await asyncio.sleep(_RETRY_SECONDS)
