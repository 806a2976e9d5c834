"""Run `lookupdb up`: the operator's loop over a local cluster.

As a person does in a real cluster, `up` applies manifests, and asks for a refresh when the source has changed.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import orjson

from lookupdb import store
from lookupdb.announcement import Announcement
from lookupdb.builder import existing
from lookupdb.builder.build import find_push, fingerprint_push
from lookupdb.builder.listing import describe_success_file, open_source, read_success_file
from lookupdb.dataset.spec import LOCAL, DatasetSpec, describe_left_out, parse_resource, read_resource
from lookupdb.errors import InvalidManifest, LookupdbError, SourceUnreadable, UsageError
from lookupdb.manifest import generation_number
from lookupdb.process.launch import call_in_thread
from lookupdb.store import StoredDataset, sweep
from lookupdb.store.dataset import read_announcement, write_announcement
from lookupdb.up.run_state import (
    DATA_DIRECTORY,
    DEFAULT_NAMESPACE,
    NotWritten,
    RunFolder,
    run_directory,
    shorten_name,
)
from lookupdb.wording import format_command
from lookupdb_operator import names
from lookupdb_operator.cluster.api import ApiError
from lookupdb_operator.cluster.cache import Key, ObjectCache
from lookupdb_operator.cluster.cluster import Cluster, parse_report
from lookupdb_operator.local import console_source
from lookupdb_operator.local.advice import localize_advice, remove_retry
from lookupdb_operator.local.api import LocalApi, Object
from lookupdb_operator.local.console_source import LocalSource
from lookupdb_operator.local.drained import forget_drained, forget_failure
from lookupdb_operator.local.kubeconfig import KubernetesServer
from lookupdb_operator.local.kubelet import HOST, RESP_PORT, SEEN, Kubelet, KubeletOptions, check_ports, find_free_port
from lookupdb_operator.local.limits import MAX_SERVERS, check_servers
from lookupdb_operator.local.socket_api import OBJECTS, SocketServer, fetch
from lookupdb_operator.loop.background import Announcements, RouterPolls
from lookupdb_operator.loop.observe import Observer
from lookupdb_operator.loop.queue import LookQueue, LookWorkers
from lookupdb_operator.loop.reconcile import Reconciler, TurnTaking
from lookupdb_operator.model import Config, NotAnnounced, RouterReport, StoreAccess
from lookupdb_operator.plan import plan, reasons, turns
from lookupdb_operator.plan.turns import TurnQueues
from lookupdb_operator.status import DatasetStatus, GenerationStatus

log = logging.getLogger(__name__)

Say = Callable[[str], None]

MAX_UNSETTLED_CHECKS: Final = 10
"""Number of consecutive checks that may find a changed source. After that it is built as it is."""
_REFLECTED: Final = frozenset(kind.name for kind in (names.DATASET_KIND, *names.WATCHED))
"""Kinds that the loop's cache holds."""
_ROUTINE: Final = frozenset(
    {
        reasons.CONFIRMING,
        reasons.NO_ROUTER_READY,
        reasons.NO_ROUTING_TABLE,
        reasons.SHARDS_UNAVAILABLE,
        reasons.STARTING_SERVERS,
        reasons.UP_TO_DATE,
        reasons.WAITING_FOR_BUILD,
        reasons.HEALTHY,
    }
)
"""Reasons of events that are not printed: each start and each cutover goes through them."""
_PINNED_BY_MANIFEST: Final = f"{names.GROUP}/pinned-by-manifest"
"""The annotation with the generation that the manifest pins; empty if it pins none."""
_UNFINISHED: Final = _ROUTINE - {reasons.UP_TO_DATE, reasons.HEALTHY}
"""Reasons of a rollout that goes on by itself."""
_ROUTER_SECONDS: Final = 2.0
_RESYNC_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 1.0
_LEFT_OUT: Final = ("store", "sync", "image", "imagePullSecrets", "scheduling", "adopt", "deletionPolicy")
"""Members of a spec that have no effect on a laptop."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `lookupdb up`."""

    manifests: tuple[Path, ...]
    """Files, and folders of ``*.yaml`` and ``*.yml``."""
    data: Path
    port: int
    resp_port: int | None
    """None: the first free port from the default port of Redis on."""
    watch: bool
    watch_seconds: float
    memory_limit: int | None
    volume: Path | None
    max_servers: int = MAX_SERVERS
    override_gates: str | None = None
    """A rejected generation whose gates are overridden."""
    kubeconfig: Path | None = None
    """A file for `kubectl`, with the address of the API server and a token."""


class BuildFailed(LookupdbError):
    """The first build ended with an error, which it wrote to standard error."""

    reason = "BuildFailed"

    def __init__(self, code: int) -> None:
        super().__init__("the build failed")
        self.exit_code = code


class _NoMetrics:
    """Metrics that count nothing: each attribute and call returns the object itself."""

    def __getattr__(self, _name: str) -> _NoMetrics:
        return self

    def __call__(self, *_: Any, **__: Any) -> _NoMetrics:
        return self

    def __enter__(self) -> _NoMetrics:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class LocalCluster(Cluster):
    """The local API server, and the admin ports of the kubelet's routers."""

    def __init__(self, api: LocalApi, kubelet: Kubelet) -> None:
        super().__init__(api)
        self._kubelet = kubelet

    async def ask_router(self, ip: str, dataset_uid: str) -> RouterReport:
        """Return the report of the router of the pod at ``ip``."""
        router = self._kubelet.find_router(ip)
        if router is None:
            return RouterReport(None, f"no router runs at {ip}")
        address, dataset = router
        url = f"http://{address}/status"
        try:
            async with asyncio.timeout(_ROUTER_SECONDS):
                answer = await fetch(address, "/status")
        except (OSError, ValueError) as error:
            return RouterReport(None, f"{url} does not answer: {str(error) or type(error).__name__}")
        report = parse_report(url, _select_dataset(answer.body, dataset), dataset_uid)
        return replace(report, digests=frozenset(map(self._kubelet.original_digest, report.digests)))


def _select_dataset(text: bytes, name: str) -> bytes:
    """Return a router's status with what its workers report about the dataset ``name`` alone."""
    with suppress(ValueError, KeyError, TypeError):  # the parser says so
        workers = orjson.loads(text)["workers"]
        return orjson.dumps({"workers": [{"report": worker["report"]["datasets"][name]} for worker in workers]})
    return text


class LocalOperator:
    """The operator's loop over ``api``: no kopf, no informers; changes of objects go straight into its cache."""

    def __init__(self, api: LocalApi, cluster: Cluster, config: Config, announcer: LocalAnnouncer) -> None:
        self._cache = ObjectCache()
        self._queue: LookQueue[Key] = LookQueue()
        self._polls = RouterPolls(cluster, self._queue.add)
        self._announcements = Announcements(announcer, self._queue.add)
        queues = TurnQueues(builds=turns.DEFAULT_LIMIT, rollouts=turns.DEFAULT_LIMIT)
        reconciler = Reconciler(
            cache=self._cache,
            observer=Observer(self._cache, cluster, self._polls),
            cluster=cluster,
            config=config,
            store=StoreAccess,
            metrics=cast(Any, _NoMetrics()),
            announcements=self._announcements,
            decide=plan,
            turns=TurnTaking(queues, cache=self._cache, config=config, wake=self._queue.add),
        )
        self._workers = LookWorkers(self._queue, reconciler.look, 2)
        for kind in (names.DATASET_KIND, *names.WATCHED):
            for item in api.all(kind):
                self._note("ADDED", item)
        api.watchers.append(self._note)

    def _note(self, event: str, item: Object) -> None:
        kind, meta = item["kind"], item["metadata"]
        if kind not in _REFLECTED or (kind != names.KIND and names.DATASET not in (meta.get("labels") or {})):
            return
        if event == "DELETED":
            key = self._cache.drop(kind, meta["namespace"], meta["name"], meta["uid"], meta["resourceVersion"])
        else:
            key = self._cache.put(kind, item)
        if key is not None:
            self._queue.add(key)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        self._workers.start()
        try:
            while True:
                for key in tuple(self._cache.dataset_keys()):
                    self._queue.add(key)
                await asyncio.sleep(_RESYNC_SECONDS)
        finally:
            await self._workers.stop()
            await self._polls.close()
            await self._announcements.close()


class LocalAnnouncer:
    """Writes announcements of ``datasets`` into the local store, for `lookupdb sync`."""

    def __init__(self, datasets: Mapping[Key, StoredDataset]) -> None:
        self._datasets = datasets

    async def announce(self, announcement: Announcement) -> None:
        """Write ``announcement``. Raises NotAnnounced."""
        about, dataset = announcement, self._datasets[announcement.namespace, announcement.name]
        try:
            await call_in_thread(
                write_announcement, dataset, about.uid, about.generation, about.version, about.announced_at
            )
        except (LookupdbError, OSError) as error:
            raise NotAnnounced(str(error)) from error


def localize(resource: Mapping[str, Any]) -> Object:
    """Return a manifest's ``resource`` without what only a cluster can do."""
    spec = copy.deepcopy({name: value for name, value in resource.get("spec", {}).items() if name not in _LEFT_OUT})
    router, serving, build = (spec.get(section) or {} for section in ("router", "serving", "build"))
    for section, members in (
        (build, ("resources", "scratchSize", "deadlineSeconds", "pod")),
        (router, ("autoscaling", "tls", "auth", "service", "pod", "resources", "clients")),
        (serving, ("delivery", "storageClassName", "pod", "resources")),
    ):
        for member in members:
            section.pop(member, None)
    meta = {"namespace": resource["metadata"].get("namespace", DEFAULT_NAMESPACE), "name": resource["metadata"]["name"]}
    return {**resource, "metadata": meta, "spec": {**spec, "router": {**router, "replicas": 1}}}


@dataclass(slots=True)
class _Dataset:
    """One manifest, and what was last seen of it and of its source."""

    path: Path
    spec: DatasetSpec
    resource: Object
    folder: RunFolder
    stored: StoredDataset
    inbox: StoredDataset
    seen: str | None = None
    """The identity of the source at the last check."""
    refresh: str = ""
    """The last refresh that was asked for, and the identity of the source then."""
    refresh_of: str | None = None
    tried: str | None = None
    """The source of a first build that failed. The operator retries it, so it is no change."""
    unsettled: int = 0
    said: str = ""
    """The last problem that was printed."""
    active: str = ""
    """The generation that serves; empty until it is announced."""
    has_failed: bool = False
    """True if there is nothing to serve, and the first build has failed."""
    pruned: set[str] = field(default_factory=set)
    """The generations that were in use at the last removal of others."""
    left_out: tuple[str, ...] = field(default=())

    @property
    def key(self) -> Key:
        return self.spec.namespace, self.spec.name

    @property
    def awaited(self) -> str:
        """What must be there before anything is read; empty for nothing."""
        if self.spec.source.takes_pushes:
            return f"the first push to {self.inbox.url}"
        return "" if self.spec.refresh.success_file is None else describe_success_file(self.spec)

    def identify_source(self, volume: Path | None) -> str | None:
        """Return what changes with the source: the newest push, its success file if it names one, else its fingerprint.
        None if what is awaited is not there, or nothing identifies it. Raises LookupdbError."""
        if self.spec.source.takes_pushes:
            push = find_push(self.inbox)
            return None if push is None else fingerprint_push(push)
        if self.spec.refresh.success_file is not None:
            return read_success_file(self.spec, volume=volume)
        return open_source(self.spec, volume=volume).fingerprint


class Up:
    """Serves datasets on this machine: ``run()`` until cancelled. ``say`` prints a line for the user."""

    def __init__(self, options: UpOptions, say: Say) -> None:
        self._options = options
        self._say = say
        self._store_path = (options.data / "store").absolute()
        self._store = store.open_store(str(self._store_path), cluster=LOCAL)
        self._api = LocalApi()
        self._api.localize = localize
        self._datasets = self._read_all(options.manifests)
        check_servers([dataset.spec for dataset in self._datasets], options.max_servers)
        self._kubelet: Kubelet | None = None
        self._router: dict[str, Any] | None = None
        """What the router reports; None until it is ready."""
        self._unwritten = ""
        """Why something could not be written at the last attempt."""
        self._changed = asyncio.Event()

    def _read_all(self, paths: Iterable[Path]) -> list[_Dataset]:
        """Return the datasets of files and folders. Leaves out a bad manifest if there are others. Raises
        LookupdbError."""
        files = list(dict.fromkeys(file for path in paths for file in _list_manifests(path)))
        read: dict[str, _Dataset] = {}
        for path in files:
            try:
                dataset = self._read(path)
            except LookupdbError as error:
                if len(files) == 1:
                    raise
                self._say(f"{path} is left out: {error.message}")
                continue
            if (other := read.setdefault(dataset.spec.name, dataset)) is not dataset:
                raise UsageError(
                    f"{other.path} and {path} both describe a dataset {dataset.spec.name}",
                    hint="give them different names, or start an `up` with a --data-dir of its own for one of them",
                )
        if not read:
            raise InvalidManifest(f"no manifest of a dataset in {', '.join(map(str, paths))}")
        if len(read) > 1 and self._options.resp_port is not None:
            raise UsageError("--resp-port serves one dataset", hint="start an `up` with this dataset alone")
        if len(read) > 1 and (generation := self._options.override_gates):
            command = format_command("override-gates", "DATASET", generation)
            raise UsageError("--override-gates is for one dataset", hint=f"run this instead: {command}")
        return list(read.values())

    def _read(self, path: Path) -> _Dataset:
        resource, spec = _read_manifest(path)
        folder = RunFolder(self._options.data, spec.namespace, spec.name)
        return _Dataset(path, spec, resource, folder, self._store.dataset(spec), self._store.inbox(spec))

    def kill_builder(self) -> None:
        """Kill running builds at once, so that the user who stops `up` need not wait for them."""
        if self._kubelet:
            self._kubelet.kill_builders()

    async def run(self) -> None:
        """Serve until cancelled, then stop everything. Raises LookupdbError if it cannot start."""
        async with AsyncExitStack() as held:
            for dataset in self._datasets:
                held.enter_context(dataset.folder.lock())
            listener = held.enter_context(console_source.bind())
            kubelet = self._kubelet = self._start_kubelet("{}:{}".format(*listener.getsockname()))
            for dataset in self._datasets:
                forget_drained(self._api, dataset.key)
                forget_failure(self._api, dataset.key)
            server = SocketServer(self._api, kubelet.find_admin)
            for dataset in self._datasets:
                await held.enter_async_context(server.listening(dataset.folder.path / OBJECTS))
            if self._options.kubeconfig is not None:
                kubernetes = KubernetesServer(self._api, kubelet.find_admin, self._options.kubeconfig)
                await held.enter_async_context(kubernetes.listening_on_port())
            tasks = [asyncio.create_task(kubelet.run(), name="kubelet")]
            try:
                for dataset in self._datasets:
                    await self._apply(dataset)
                config = Config("lookupdb", str(self._store_path), LOCAL, network_policies=False, pod_host=HOST)
                config = replace(config, announces=True, spark_image="local")
                cluster = LocalCluster(self._api, kubelet)
                stored = {dataset.key: dataset.stored for dataset in self._datasets}
                operator = LocalOperator(self._api, cluster, config, LocalAnnouncer(stored))
                tasks.append(asyncio.create_task(operator.run(), name="operator"))
                tasks.append(asyncio.create_task(self._serve(), name="up"))
                await held.enter_async_context(console_source.serving(self._make_source(kubelet), listener))
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await kubelet.stop()
                for dataset in self._datasets:
                    with suppress(OSError):
                        dataset.folder.remove_state()

    def _make_source(self, kubelet: Kubelet) -> LocalSource:
        """Return what the console shows."""
        return LocalSource(self._api, self._options.data, self._find_endpoint, kubelet.find_admin)

    def _find_endpoint(self, namespace: str, name: str) -> str:
        found = (dataset for dataset in self._datasets if dataset.key == (namespace, name))
        return next(map(self._find_url, found), "")

    def _start_kubelet(self, console: str) -> Kubelet:
        options = self._options
        logging.getLogger("lookupdb_operator").setLevel(logging.WARNING)  # what happens is printed
        for name in ("loop.reconcile", "local.process"):  # and what they warn of, or it is in the status
            logging.getLogger(f"lookupdb_operator.{name}").setLevel(logging.ERROR)
        check_ports(options.port, options.resp_port)
        self._api.watchers.append(self._note)
        for dataset in self._datasets:
            self._api.add_folder(*dataset.key, dataset.folder.path / OBJECTS)
        resp_port = find_free_port(RESP_PORT, options.port) if options.resp_port is None else options.resp_port
        limits = KubeletOptions(
            store=self._store_path,
            port=options.port,
            resp_port=resp_port,
            memory_limit=options.memory_limit,
            volume=options.volume,
            chooses_resp_port=options.resp_port is None,
            console=console,
        )
        bases = {dataset.key: dataset.path.resolve().parent for dataset in self._datasets}
        kubelet = Kubelet(self._api, lambda *key: run_directory(options.data, *key), limits, bases)
        kubelet.on_router = self._note_router
        return kubelet

    def _note(self, event: str, item: Object) -> None:
        self._changed.set()
        if item["kind"] == names.EVENT.name and event == "ADDED" and item["reason"] not in _ROUTINE:
            about = item["involvedObject"]
            url = self._find_endpoint(about["namespace"], about["name"])
            message = item["message"].replace(names.endpoint(about["name"], about["namespace"]), url)
            message = localize_advice(message, self._options.data)
            is_served = any(dataset.active for dataset in self._datasets)
            self._say(f"{about['name']}: {message if is_served else remove_retry(message)}")

    def _note_router(self, report: dict[str, Any]) -> None:
        self._router = report
        self._changed.set()

    # Manifests and sources

    async def _apply(self, dataset: _Dataset) -> None:
        """Put a dataset's manifest into the cluster, with the present identity of its source. Raises ApiError."""
        for sentence in describe_left_out(path for path in dataset.spec.cluster_fields if path not in dataset.left_out):
            self._say(f"{dataset.spec.name}: {sentence}")
        dataset.left_out = dataset.spec.cluster_fields
        held = self._api.get(names.DATASET_KIND, *dataset.key)
        annotations = dict((held or {}).get("metadata", {}).get("annotations") or {})
        annotations |= dataset.resource["metadata"].get("annotations") or {}
        if refresh := await self._choose_refresh(dataset, held):
            annotations |= {names.REFRESH: refresh, **await self._note_whole(dataset, annotations)}
        refused = ((held or {}).get("status") or {}).get("refused") or {}
        if self._is_overridden(dataset, refused.get("generation")):
            annotations[names.OVERRIDE_GATES] = refused["generation"]
        if generation := self._options.override_gates:
            gates = "\n".join(dataset.stored.admit(generation).overridden)
            self._say(f"{dataset.spec.name}: {generation} passes, although:\n{gates}")
            annotations[names.OVERRIDE_GATES] = generation
        body = keep_pin(localize(dataset.resource), held, annotations)
        body["metadata"]["annotations"] = annotations
        status = None if held else await call_in_thread(_find_status, dataset)
        path = names.DATASET_KIND.path(*dataset.key)
        if held is None:
            where = names.DATASET_KIND.path(dataset.spec.namespace)
            made = await self._api.request("POST", where, subject=dataset.spec.name, body=body)
            if status is not None:
                self._api.put_status(made, status.to_json())
        if dataset.seen is None and dataset.awaited and (held or status):
            self._say(f"{dataset.spec.name}: waiting for {dataset.awaited}; the present generation serves")
        else:
            await self._api.request("PUT", path, subject=dataset.spec.name, body=body)

    def _is_overridden(self, dataset: _Dataset, generation: str | None) -> bool:
        """Return whether `lookupdb build --override-gates` has overridden the gates of the refused ``generation``."""
        if generation is None or self._options.override_gates == generation:
            return False
        manifest = existing.read_or_none(dataset.stored, generation)
        return manifest is not None and bool(manifest.overridden)

    async def _choose_refresh(self, dataset: _Dataset, resource: Object | None) -> str:
        """Return the refresh to ask for: the source's identity, unless it was built. If nothing identifies the source,
        each start reads it."""
        before = "" if resource is None else _read_refresh(resource)
        if resource is None and dataset.stored.next_generation() == "g1":
            return before  # it is built anyway, and the builder identifies it
        try:
            dataset.seen = await call_in_thread(dataset.identify_source, self._options.volume)
        except LookupdbError:  # the builder reports it
            return before or _format_now()
        if dataset.seen is None and dataset.awaited:
            return before
        if resource is not None and dataset.seen is not None and _is_built(resource, dataset):
            return before
        return dataset.seen or _format_now()

    async def _note_whole(self, dataset: _Dataset, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return the annotation with the source's fingerprint of when its present success file was first seen."""
        seen, held = dataset.seen, annotations.get(SEEN, "")
        if seen is None or dataset.spec.refresh.success_file is None or held.startswith(seen):
            return {}
        with suppress(LookupdbError):  # the builder reports it
            source = await call_in_thread(partial(open_source, dataset.spec, volume=self._options.volume))
            return {SEEN: f"{seen} {source.fingerprint or ''}"}
        return {}

    async def _follow(self) -> None:
        """Check manifests and sources every ``watch_seconds``, until cancelled."""
        while True:
            await asyncio.sleep(self._options.watch_seconds)
            for dataset in self._datasets:
                if not dataset.active and not dataset.has_failed:
                    continue  # its first build goes on
                try:
                    await self._check(dataset)
                except (LookupdbError, ApiError) as error:
                    why = error.message if isinstance(error, LookupdbError) else str(error)
                    serving = f"{dataset.active} keeps serving" if dataset.active else "nothing serves"
                    self._report(dataset, f"not rebuilt: {why}; {serving}")
                else:
                    self._report(dataset, "")

    async def _check(self, dataset: _Dataset) -> None:
        """Apply a changed manifest, and ask for a refresh from a changed source. Raises LookupdbError and ApiError."""
        resource, spec = await call_in_thread(_read_manifest, dataset.path)
        if resource != dataset.resource:
            if (spec.namespace, spec.name) != dataset.key:
                raise InvalidManifest(
                    f"the manifest now describes {spec.namespace}/{spec.name}, and a running `up` cannot change to"
                    " another dataset",
                    hint="stop it and start it again",
                )
            others = [other.spec for other in self._datasets if other is not dataset]
            check_servers([spec, *others], self._options.max_servers)
            dataset.resource, dataset.spec = resource, spec
            await self._apply(dataset)
        status = (self._api.get(names.DATASET_KIND, *dataset.key) or {}).get("status") or {}
        refused = status.get("refused") or {}
        if self._is_overridden(dataset, refused.get("generation")):
            await self._annotate(dataset, {names.OVERRIDE_GATES: refused["generation"]})
        before, dataset.seen = dataset.seen, await call_in_thread(dataset.identify_source, self._options.volume)
        held = self._api.get(names.DATASET_KIND, *dataset.key)
        if dataset.seen is None:
            waited = dataset.awaited
            raise SourceUnreadable(f"waiting for {waited}" if waited else "its source's changes are not watched")
        if before is None and dataset.has_failed:
            dataset.tried = dataset.seen
        is_tried = dataset.seen == dataset.tried
        if held is None or is_tried or _is_asked_for(dataset, held) or _is_built(held, dataset):
            dataset.unsettled = 0
            return
        if dataset.seen != before and dataset.unsettled < MAX_UNSETTLED_CHECKS:
            dataset.unsettled += 1  # it may be half written: wait for two equal checks
            return
        dataset.unsettled = 0
        self._say(f"{dataset.spec.name}: the source has changed, building")
        whole = await self._note_whole(dataset, held["metadata"].get("annotations") or {})
        await self._annotate(dataset, {names.REFRESH: dataset.seen, **whole})

    async def _annotate(self, dataset: _Dataset, annotations: Mapping[str, str]) -> None:
        change = {"metadata": {"annotations": annotations}}
        path = names.DATASET_KIND.path(*dataset.key)
        await self._api.request("PATCH", path, subject=dataset.spec.name, body=change)

    def _report(self, dataset: _Dataset, problem: str) -> None:
        """Print ``problem`` once, and that it is over."""
        if problem != dataset.said:
            dataset.said = problem
            self._say(f"{dataset.spec.name}: {problem or 'manifest and source can be read again'}")

    # Serving

    async def _serve(self) -> None:
        """Wait until everything is served, say so, and keep the files with its addresses. Raises BuildFailed if nothing
        can be served, and FolderTaken."""
        assert self._kubelet is not None
        following = asyncio.create_task(self._follow(), name="follow") if self._options.watch else None
        written: dict[Key, Mapping[str, Any]] = {}
        try:
            while True:
                self._changed.clear()
                for dataset in self._datasets:
                    if not dataset.active and not self._is_settled(dataset):
                        continue
                    dataset.folder.restore()
                    if not dataset.folder.state_file.exists():
                        written.pop(dataset.key, None)
                        self._kubelet.resync()
                    await self._keep_state(dataset, written)
                self._report_unwritten(self._api.flush() or self._kubelet.problem)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_SECONDS):  # wait_for could lose a cancellation
                        await self._changed.wait()
                if following is not None and following.done():
                    following.result()
        finally:
            if following is not None:
                following.cancel()

    def _report_unwritten(self, problem: str) -> None:
        """Print once what cannot be written. What serves keeps serving."""
        if problem and not self._unwritten:
            self._say(f"{problem}; active generations keep serving, retrying every second")
        self._unwritten = problem

    def _is_settled(self, dataset: _Dataset) -> bool:
        """Return whether the dataset is served, from the present source and manifest if these can be served. Raises
        BuildFailed if there is nothing to serve."""
        assert self._kubelet is not None
        held = self._api.get(names.DATASET_KIND, *dataset.key)
        status = (held or {}).get("status") or {}
        if held is None:
            return False
        if not status.get("generation"):
            dataset.has_failed = bool(status.get("failure") and not status.get("generations"))
            if all(other.has_failed for other in self._datasets):
                raise BuildFailed(self._kubelet.exit_codes.get(dataset.key) or SourceUnreadable.exit_code)
            return False
        is_held = held["spec"].get("suspend") or held["spec"].get("generation")
        is_answered = is_held or status.get("refreshed", "") == _read_refresh(held)
        is_known = status.get("observedGeneration") == held["metadata"]["generation"]
        conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
        is_rolled_out = conditions.get("RolledOut", {}).get("reason", reasons.WAITING_FOR_BUILD) not in _UNFINISHED
        is_done = is_answered and is_rolled_out and not status.get("build")
        is_degraded = conditions.get("Degraded", {}).get("status") == "True"
        return self._router is not None and is_known and (is_done or is_degraded)

    async def _keep_state(self, dataset: _Dataset, states: dict[Key, Mapping[str, Any]]) -> None:
        """Write the file with the addresses of a dataset's servers, and remove generations that are not kept."""
        assert self._kubelet is not None
        held = self._api.get(names.DATASET_KIND, *dataset.key) or {}
        status = held.get("status") or {}
        generation = status.get("generation", "")
        if self._router is None or not generation:
            return
        pid = self._kubelet.router_pid(dataset.spec.namespace, names.router(dataset.spec.name))
        urls = {"url": self._find_url(dataset)}
        if "resp" in self._router:
            urls["redis"] = f"redis://{HOST}:{self._router['resp']}"
        admin = {"admin": f"http://{HOST}:{self._router['admin']}", "router": pid}
        table = status.get("table") or {}
        rollouts = {table.get("rollout"), *(part.get("rollout") for part in table.get("parts", ()))}
        shards = list(self._kubelet.describe(*dataset.key, rollouts))
        state = {**urls, **admin, "generation": generation, "watch": self._options.watch, "shards": shards}
        if state != states.get(dataset.key):
            try:
                dataset.folder.write_state(state)
                states[dataset.key] = state
            except NotWritten as error:
                self._report(dataset, f"{error.message}, retrying every second")
        if generation != dataset.active:
            if dataset.active:
                self._say(f"{dataset.spec.name}: cut over to {generation}")
            else:
                self._announce(dataset)
            dataset.active = generation
        used = {generation, *(rollout["generation"] for rollout in status.get("rollouts", ()))}
        if used != dataset.pruned:
            dataset.pruned = used
            try:
                await call_in_thread(sweep.prune, dataset.stored, dataset.spec.keep_generations, protect=used)
            except LookupdbError as error:
                self._say(f"{dataset.spec.name}: older generations are not removed: {error}")

    @property
    def _url(self) -> str:
        return f"http://{HOST}:{self._options.port if self._router is None else self._router['port']}"

    def _find_url(self, dataset: _Dataset) -> str:
        return self._url if len(self._datasets) == 1 else f"{self._url}/v1/datasets/{dataset.spec.name}"

    def _announce(self, dataset: _Dataset) -> None:
        assert self._router is not None
        spec, options = dataset.spec, self._options
        key = spec.gates.required_keys[0] if spec.gates.required_keys else "KEY"
        flag = [] if options.data == DATA_DIRECTORY else ["--data-dir", str(options.data)]
        name = shorten_name(*dataset.key)
        path = "/v1/lookup" if len(self._datasets) == 1 else "/lookup"
        resp = self._router.get("resp")
        redis = f"  {shlex.join(['redis-cli', '-p', str(resp), 'GET', key])}\n" if resp else ""
        self._say(
            f"\n  {self._url}/  # the console, in a browser\n"
            f"  curl {self._find_url(dataset)}{path}/{quote(key, safe='')}\n"
            f"  {format_command('get', *flag, name, key)}\n{redis}"
            f"  lookupdb.open({dataset.stored.url!r})  # in Python, on this machine\n\n"
            f"  Shard servers and admin ports: {dataset.folder.state_file}; logs: {dataset.folder.path}/*.log\n"
            "  Ctrl-C stops everything."
        )


def _format_now() -> str:
    return datetime.now(UTC).isoformat()


def _list_manifests(path: Path) -> list[Path]:
    return sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if path.is_dir() else [path]


def _read_manifest(path: Path) -> tuple[Object, DatasetSpec]:
    """Return the manifest at ``path``, as it is and parsed. Raises InvalidManifest, also for a pipe, which cannot be
    read twice."""
    with suppress(OSError):  # then reading it reports why
        if path.is_fifo():
            raise InvalidManifest(f"{path} is a pipe, expected a file", hint="write what it gives to a file first")
    resource = read_resource(path)
    spec = replace(parse_resource(resource, path.resolve().parent), uid=LOCAL)  # `localize` drops a cluster's uid
    try:
        return orjson.loads(orjson.dumps(resource, default=str, option=orjson.OPT_NON_STR_KEYS)), spec
    except TypeError as error:
        raise InvalidManifest(f"{path} cannot be written as JSON: {error}") from error


def _find_status(dataset: _Dataset) -> DatasetStatus | None:
    """Return the status of a dataset that the store knows and the cluster does not: an earlier version's, or one that
    `lookupdb build` has built. None if there is nothing. Raises LookupdbError."""
    last = generation_number(dataset.stored.next_generation()) - 1
    if last == 0:
        return None
    content = dataset.spec.content_hash()
    found = [item for item in existing.readable_manifests(dataset.stored) if item.content == content]
    generations = tuple(
        GenerationStatus(
            generation=item.generation,
            content=item.content,
            fingerprint=item.fingerprint,
            success_file=item.success_file or "",
            records=item.totals.records,
            bytes=item.totals.file_bytes,
            largest_shard_bytes=max(shard.bytes for shard in item.shards),
            shards=len(item.shards),
            normalize=item.normalize,
            value_format=item.value_format,
            built_at=item.built_at,
            source_modified_at=item.source_modified_at or "",
            overridden="\n".join(item.overridden),
        )
        for item in reversed(found[: dataset.spec.keep_generations])
    )
    is_answered = bool(found) and dataset.seen in (found[0].fingerprint, found[0].success_file)
    table = 0
    with suppress(LookupdbError):
        table = announced.version if (announced := read_announcement(dataset.stored)) else 0
    refreshed = (dataset.seen or "") if is_answered else ""
    return DatasetStatus(generations=generations, last_generation=last, last_table=table, refreshed=refreshed)


def _is_built(resource: Object, dataset: _Dataset) -> bool:
    """Return whether the newest generation is of the manifest and of the source as it was last seen."""
    newest = ((resource.get("status") or {}).get("generations") or [{}])[-1]
    identity = (newest.get("fingerprint"), newest.get("successFile"))
    return newest.get("content") == dataset.spec.content_hash() and dataset.seen in identity


def _is_asked_for(dataset: _Dataset, current: Object) -> bool:
    """Return whether a build from the source as it was last seen is asked for, by `up` or by a command that is not
    answered yet."""
    refresh = _read_refresh(current)
    if refresh != dataset.refresh:
        dataset.refresh, dataset.refresh_of = refresh, dataset.seen
    is_pending = (current.get("status") or {}).get("refreshed") != refresh
    return refresh == dataset.seen or (is_pending and dataset.refresh_of == dataset.seen)


def keep_pin(body: Object, current: Object | None, annotations: dict[str, str]) -> Object:
    """Return ``body`` with the pin that a command has set, as `kubectl apply` would keep it: unless the manifest has
    one, or had one. Notes in ``annotations`` whether it has one."""
    pinned = ((current or {}).get("spec") or {}).get("generation")
    if pinned is not None and "generation" not in body["spec"] and not annotations.get(_PINNED_BY_MANIFEST):
        body["spec"]["generation"] = pinned
    else:
        annotations[_PINNED_BY_MANIFEST] = body["spec"].get("generation", "")
    return body


def _read_refresh(item: Object) -> str:
    return str((item["metadata"].get("annotations") or {}).get(names.REFRESH, ""))
