"""Run `lookupdb up`: the operator's loop over a local cluster.

As a person does in a real cluster, `up` applies manifests, and asks for a refresh when the source has changed.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
import orjson

from lookupdb import store
from lookupdb.cli.options import GenerationAddress, Size, log_format, option
from lookupdb.dataset.spec import LOCAL, describe_left_out
from lookupdb.errors import InvalidManifest, LookupdbError, SourceUnreadable, UsageError
from lookupdb.manifest import Announcement
from lookupdb.process import launch, listeners
from lookupdb.process.launch import call_in_thread, drop_unwritten
from lookupdb.store import StoredDataset, sweep
from lookupdb.store.dataset import write_announcement
from lookupdb.telemetry import open_tracing
from lookupdb.up.run_state import DATA_DIRECTORY, NotWritten, RunFolder, run_directory, shorten_name
from lookupdb.wording import format_command
from lookupdb_operator import names
from lookupdb_operator.cluster.api import ApiError
from lookupdb_operator.cluster.cache import Key, ObjectCache
from lookupdb_operator.cluster.cluster import Cluster, parse_report
from lookupdb_operator.console.source import PodClient
from lookupdb_operator.local.api import OBJECTS, LocalApi, Object, localize, localize_advice, remove_retry
from lookupdb_operator.local.dataset import (
    MAX_SERVERS,
    LocalDataset,
    check_servers,
    forget_drained,
    forget_failure,
    keep_pin,
    read_manifest,
    read_refresh,
)
from lookupdb_operator.local.kubelet import HOST, RESP_PORT, Kubelet, KubeletOptions, check_ports, find_free_port
from lookupdb_operator.loop.observe import Announcements, Observer, RouterPolls
from lookupdb_operator.loop.queue import LookQueue, LookWorkers
from lookupdb_operator.loop.reconcile import Reconciler, TurnTaking
from lookupdb_operator.model import Config, NotAnnounced, RouterReport, StoreAccess
from lookupdb_operator.plan import plan, reasons, turns
from lookupdb_operator.plan.turns import TurnQueues

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
_UNFINISHED: Final = _ROUTINE - {reasons.UP_TO_DATE, reasons.HEALTHY}
"""Reasons of a rollout that goes on by itself."""
_RESYNC_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 1.0


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


class LocalCluster(Cluster):
    """The local API server, and the admin ports of the kubelet's routers, which ``pods`` reads."""

    def __init__(self, api: LocalApi, kubelet: Kubelet, pods: PodClient) -> None:
        super().__init__(api)
        self._kubelet = kubelet
        self._pods = pods

    async def ask_router(self, ip: str, dataset_uid: str) -> RouterReport:
        """Return the report of the router of the pod at ``ip``."""
        router = self._kubelet.find_router(ip)
        if router is None:
            return RouterReport(None, f"no router runs at {ip}")
        address, dataset = router
        try:
            text = (await self._pods.read_metrics(address, "/status")).encode()
        except LookupdbError as error:
            return RouterReport(None, error.message)
        with suppress(ValueError, KeyError, TypeError):  # ``parse_report`` says what is wrong
            # Keep only what each worker reports about this dataset.
            workers = [{"report": worker["report"]["datasets"][dataset]} for worker in orjson.loads(text)["workers"]]
            text = orjson.dumps({"workers": workers})
        report = parse_report(f"http://{address}/status", text, dataset_uid)
        return replace(report, digests=frozenset(map(self._kubelet.original_digest, report.digests)))


class LocalOperator:
    """The operator's loop over ``api``: no kopf, no informers; changes of objects go straight into its cache."""

    def __init__(self, api: LocalApi, cluster: Cluster, config: Config, announcer: LocalAnnouncer) -> None:
        from lookupdb_operator.metrics import Metrics  # loads aiohttp, after servers have started

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
            metrics=Metrics(),
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


class Up:
    """Serves datasets on this machine: ``run()`` until cancelled. ``say`` prints a line for the user."""

    def __init__(self, options: UpOptions, say: Say) -> None:
        self._options = options
        self._say = say
        self._store_path = (options.data / "store").absolute()
        self._store = store.open_store(str(self._store_path), cluster=LOCAL)
        self._api = LocalApi()
        self._datasets = self._read_all(options.manifests)
        check_servers([dataset.spec for dataset in self._datasets], options.max_servers)
        self._kubelet: Kubelet | None = None
        self._router: dict[str, Any] | None = None
        """What the router reports; None until it is ready."""
        self._unwritten = ""
        """Why something could not be written at the last attempt."""
        self._changed = asyncio.Event()

    def _read_all(self, paths: Iterable[Path]) -> list[LocalDataset]:
        """Return the datasets of files and folders. Leaves out a bad manifest if there are others. Raises
        LookupdbError."""
        files = list(dict.fromkeys(file for path in paths for file in _list_manifests(path)))
        read: dict[str, LocalDataset] = {}
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

    def _read(self, path: Path) -> LocalDataset:
        resource, spec = read_manifest(path)
        folder = RunFolder(self._options.data, spec.namespace, spec.name)
        return LocalDataset(path, spec, resource, folder, self._store.dataset(spec), self._store.inbox(spec))

    def kill_builder(self) -> None:
        """Kill running builds at once, so that the user who stops `up` need not wait for them."""
        if self._kubelet:
            self._kubelet.kill_builders()

    async def run(self) -> None:
        """Serve until cancelled, then stop everything. Raises LookupdbError if it cannot start."""
        async with AsyncExitStack() as held:
            for dataset in self._datasets:
                held.enter_context(dataset.folder.lock())
            listener = held.enter_context(listeners.bind(HOST, 0))
            kubelet = self._kubelet = self._start_kubelet("{}:{}".format(*listener.getsockname()))
            for dataset in self._datasets:
                forget_drained(self._api, dataset.key)
                forget_failure(self._api, dataset.key)
            pods = PodClient()
            held.push_async_callback(pods.close)
            tasks = [asyncio.create_task(kubelet.run(), name="kubelet")]
            try:
                await self._start_servers(held, kubelet, pods, listener)
                await asyncio.gather(*map(self._apply, self._datasets))  # a slow source delays no other dataset
                config = Config("lookupdb", str(self._store_path), LOCAL, network_policies=False, pod_host=HOST)
                config = replace(config, announces=True, spark_image="local")
                cluster = LocalCluster(self._api, kubelet, pods)
                stored = {dataset.key: dataset.stored for dataset in self._datasets}
                operator = LocalOperator(self._api, cluster, config, LocalAnnouncer(stored))
                tasks.append(asyncio.create_task(operator.run(), name="operator"))
                tasks.append(asyncio.create_task(self._serve(), name="up"))
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

    async def _start_servers(
        self, stack: AsyncExitStack, kubelet: Kubelet, pods: PodClient, console: socket.socket
    ) -> None:
        """Serve commands, `kubectl` and the console until ``stack`` ends. Raises UsageError."""
        # It loads aiohttp: in a thread, because the servers of the last `up` are starting.
        await call_in_thread(import_module, "lookupdb_operator.local.server")
        from lookupdb_operator.local import server

        commands = server.ApiServer(self._api, kubelet.find_admin, pods)
        for dataset in self._datasets:
            await stack.enter_async_context(commands.listening(dataset.folder.path / OBJECTS))
        if (path := self._options.kubeconfig) is not None:
            kubernetes = server.KubernetesServer(self._api, kubelet.find_admin, pods, path)
            await stack.enter_async_context(kubernetes.listening_on_port())
        source = server.LocalSource(self._api, self._options.data, self._find_endpoint, kubelet.find_admin, pods)
        await stack.enter_async_context(server.serving_console(source, console))

    def _find_endpoint(self, namespace: str, name: str) -> str:
        found = (dataset for dataset in self._datasets if dataset.key == (namespace, name))
        return next(map(self._find_url, found), "")

    def _start_kubelet(self, console: str) -> Kubelet:
        options = self._options
        logging.getLogger("lookupdb_operator").setLevel(logging.WARNING)  # `up` prints events itself
        logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # a bad request is the client's matter
        for name in ("loop.reconcile", "local.kubelet"):  # `up` prints their warnings, or the status has them
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

    async def _apply(self, dataset: LocalDataset) -> None:
        """Put a dataset's manifest into the cluster, with the present identity of its source. Raises ApiError."""
        for sentence in describe_left_out(path for path in dataset.spec.cluster_fields if path not in dataset.left_out):
            self._say(f"{dataset.spec.name}: {sentence}")
        dataset.left_out = dataset.spec.cluster_fields
        held = self._api.get(names.DATASET_KIND, *dataset.key)
        before = "" if held is None else read_refresh(held)
        given = dataset.resource["metadata"].get("annotations") or {}
        refresh = await dataset.choose_refresh(held, self._options.volume)
        noted = dict((held or {}).get("metadata", {}).get("annotations") or {}) | given
        whole = await dataset.note_whole(noted, self._options.volume) if refresh else {}
        status = None if held else await call_in_thread(dataset.find_stored_status)
        held = self._api.get(names.DATASET_KIND, *dataset.key)  # a command may have changed it meanwhile
        annotations = dict((held or {}).get("metadata", {}).get("annotations") or {}) | given
        if refresh and (held is None or read_refresh(held) == before):
            annotations |= {names.REFRESH: refresh, **whole}
        refused = ((held or {}).get("status") or {}).get("refused") or {}
        if dataset.is_overridden(refused.get("generation")):
            annotations[names.OVERRIDE_GATES] = refused["generation"]
        if generation := self._options.override_gates:
            gates = "\n".join(dataset.stored.admit(generation).overridden)
            self._say(f"{dataset.spec.name}: {generation} passes, although:\n{gates}")
            annotations[names.OVERRIDE_GATES] = generation
        body = keep_pin(localize(dataset.resource), held, annotations)
        body["metadata"]["annotations"] = annotations
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

    async def _check(self, dataset: LocalDataset) -> None:
        """Apply a changed manifest, and ask for a refresh from a changed source. Raises LookupdbError and ApiError."""
        resource, spec = await call_in_thread(read_manifest, dataset.path)
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
        if dataset.is_overridden(refused.get("generation")):
            await self._annotate(dataset, {names.OVERRIDE_GATES: refused["generation"]})
        before, dataset.seen = dataset.seen, await call_in_thread(dataset.identify_source, self._options.volume)
        held = self._api.get(names.DATASET_KIND, *dataset.key)
        if dataset.seen is None:
            waited = dataset.awaited
            raise SourceUnreadable(f"waiting for {waited}" if waited else "its source's changes are not watched")
        if before is None and dataset.has_failed:
            dataset.tried = dataset.seen
        is_tried = dataset.seen == dataset.tried
        if held is None or is_tried or dataset.is_asked_for(held) or dataset.is_built(held):
            dataset.unsettled = 0
            return
        if dataset.seen != before and dataset.unsettled < MAX_UNSETTLED_CHECKS:
            dataset.unsettled += 1  # it may be half written: wait for two equal checks
            return
        dataset.unsettled = 0
        self._say(f"{dataset.spec.name}: the source has changed, building")
        whole = await dataset.note_whole(held["metadata"].get("annotations") or {}, self._options.volume)
        await self._annotate(dataset, {names.REFRESH: dataset.seen, **whole})

    async def _annotate(self, dataset: LocalDataset, annotations: Mapping[str, str]) -> None:
        change = {"metadata": {"annotations": annotations}}
        path = names.DATASET_KIND.path(*dataset.key)
        await self._api.request("PATCH", path, subject=dataset.spec.name, body=change)

    def _report(self, dataset: LocalDataset, problem: str) -> None:
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

    def _is_settled(self, dataset: LocalDataset) -> bool:
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
        is_answered = is_held or status.get("refreshed", "") == read_refresh(held)
        is_known = status.get("observedGeneration") == held["metadata"]["generation"]
        conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
        is_rolled_out = conditions.get("RolledOut", {}).get("reason", reasons.WAITING_FOR_BUILD) not in _UNFINISHED
        is_done = is_answered and is_rolled_out and not status.get("build")
        is_degraded = conditions.get("Degraded", {}).get("status") == "True"
        return self._router is not None and is_known and (is_done or is_degraded)

    async def _keep_state(self, dataset: LocalDataset, states: dict[Key, Mapping[str, Any]]) -> None:
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

    def _find_url(self, dataset: LocalDataset) -> str:
        return self._url if len(self._datasets) == 1 else f"{self._url}/v1/datasets/{dataset.spec.name}"

    def _announce(self, dataset: LocalDataset) -> None:
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


def _list_manifests(path: Path) -> list[Path]:
    return sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if path.is_dir() else [path]


@click.command("up")
@option(
    "--file",
    "-f",
    "manifests",
    type=click.Path(path_type=Path),
    required=True,
    multiple=True,
    help="A manifest, or a folder of them, listed once. May be repeated: several datasets share one router.",
)
@option(
    "--port", type=click.IntRange(0, 65535), default=8080, help="Port of the router on 127.0.0.1; 0 takes a free one."
)
@option(
    "--resp-port",
    type=click.IntRange(0, 65535),
    help="Port for the Redis protocol, on 127.0.0.1; 0 takes a free one.  [default: 6379, or the next free one]",
)
@option(
    "--watch/--no-watch",
    default=False,
    help="Rebuild and cut over while serving when the manifest or the source changes.",
)
@option("--watch-seconds", type=click.FloatRange(0.05, 86400), default=2.0, help="Interval of --watch.")
@option(
    "--data-dir",
    "--data",
    "data",
    type=click.Path(path_type=Path, file_okay=False),
    default=DATA_DIRECTORY,
    help="Folder of generations and logs.",
)
@option(
    "--memory-limit",
    type=Size(),
    default=None,
    help="Memory limit of a build, for example 512MiB; the default is that of `lookupdb build`.",
)
@option(
    "--volume",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder that volume:// URLs refer to.",
)
@option(
    "--max-servers",
    type=click.IntRange(min=1),
    default=MAX_SERVERS,
    help="Reject a dataset with more shard servers (shards × replicas). Each is two or more processes.",
)
@option(
    "--override-gates",
    type=GenerationAddress(),
    help="Override the gates that rejected this generation.",
)
@option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Write a file for `kubectl --kubeconfig FILE`, and answer it: get lds, apply, annotate.",
)
@log_format
def command(**values: Any) -> None:
    """Build datasets, serve their shards and route lookups to them, all on this machine.

    Reads the same YAML as `kubectl apply`. A whole generation whose source has not changed is reused. Dead processes
    are restarted. Ctrl-C stops everything. Listens on 127.0.0.1 only.

    It is the operator's loop with processes for pods: pins (spec.generation), suspend, promotion, rollouts and
    refresh.schedule work as in a cluster. Fields for clusters only are checked but have no effect here: adopt,
    deletionPolicy, sync, store (generations are in --data-dir), router.tls, router.auth, and settings of pods.

    With several datasets, requests name one, as /v1/datasets/NAME/lookup/KEY. If one fails, the others keep serving.
    There is no port for the Redis protocol, and spec.router of the first one applies.

    \b
        lookupdb up -f examples/airports.yaml
        curl http://127.0.0.1:8080/v1/lookup/KJFK
        redis-cli GET KJFK
    """
    up = Up(UpOptions(**values), _say)
    try:
        with open_tracing("lookupdb-up"):
            asyncio.run(_run_until_signal(up))
    except BuildFailed as error:  # the builder has printed why
        _say("nothing can be served, so `up` ends; correct what failed and start it again")
        sys.exit(error.exit_code)
    finally:
        drop_unwritten()
    if launch.are_unfinished():
        launch.end_at_once(0)


async def _run_until_signal(up: Up) -> None:
    """Run ``up`` until SIGINT or SIGTERM. A second signal kills a builder that is still running."""
    running = asyncio.current_task()
    assert running is not None
    loop = asyncio.get_running_loop()
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            running.cancel()
        else:
            up.kill_builder()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await up.run()
    except asyncio.CancelledError:
        if not stopping:
            raise
        _say("stopped")


def _say(line: str) -> None:
    """Print ``line``, or drop it if standard output is closed, so that serving continues."""
    with suppress(OSError):
        click.echo(line)
