"""Controllers and kubelet of `lookupdb up`: the pods of Jobs, StatefulSets and Deployments are processes on loopback.

A shard's pod has an address of its own in 127.0.0.0/8, so it has the same ports as in a cluster. If another program
listens on one of these on all addresses, pods get the next free port. In the routing table that the router reads,
addresses replace the pods' names. Shard servers map the store's own files, so nothing is fetched.

A process has a session of its own, so that Ctrl-C in the terminal reaches `up` alone, which stops its processes in
order. `up` holds its standard input; the process ends when that is closed (see ``cli.leash``). So none outlives `up`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from ipaddress import IPv4Address
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.backoff import delay_after
from lookupdb.dataset.spec import LOCAL, DatasetSpec
from lookupdb.errors import DISK_FULL_ERRNOS, LookupdbError, UsageError
from lookupdb.process import listeners
from lookupdb.router.routing_table import digest_table
from lookupdb.store.dataset import dataset_path
from lookupdb.telemetry import LOG_FILE, NAMED_ERRORS
from lookupdb.up.run_state import note_build_end, renew_build_log, run_directory
from lookupdb_operator import names
from lookupdb_operator.cluster.cluster import Cluster, parse_report
from lookupdb_operator.cluster.parse import read_annotations, read_labels
from lookupdb_operator.cluster.workloads import FETCH
from lookupdb_operator.console.source import PodClient
from lookupdb_operator.local.api import ADMIN, LocalApi, Object, find_place
from lookupdb_operator.manifests.pods import TMP
from lookupdb_operator.model import RouterReport, format_moment
from lookupdb_operator.plan import reasons

log = logging.getLogger(__name__)

_VARIABLES: Final = frozenset(
    f"LOOKUPDB_{name}"
    for name in ("LOG_FORMAT", "NATIVE", "PASSWORD", "PASSWORD_FILE", "PROGRESS", "SCRATCH", "THREADS")
)
"""The variables of lookupdb that processes get. LOOKUPDB_PORT, for example, is not for shards."""

_READY_POLL_SECONDS: Final = 0.02
_FIRST_BACKOFF_SECONDS: Final = 0.1
_LONGEST_BACKOFF_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 2.0
"""Time for a process to end by itself. After that it is killed."""
_TURN_SECONDS: Final = 5.0
"""Longest time for which a starting server keeps others waiting. A router may take longer to be ready."""
_TAIL_LINES: Final = 15
_MAX_LOG_BYTES: Final = 1 << 20
"""A server that starts with a larger log begins a new one."""
_SIGNALLED: Final = 128
"""Added to a signal's number to make the exit code of a process that it ended, as in a shell."""

HOST: Final = "127.0.0.1"
"""The address of routers' public ports."""
_UNWATCHED: Final = (names.KIND, names.EVENT.name, names.POD.name)
"""Kinds whose changes need no sync. The kubelet itself changes pods."""
_ENDPOINT: Final = re.compile(r"\b([a-z0-9-]+)\.[a-z0-9-]+\.([a-z0-9-]+)\.svc:([0-9]+)\b")
_NEXT_PORTS: Final = 100
_MAX_CONCURRENT_STARTS: Final = max(4, min(os.cpu_count() or 1, 16))
"""Number of servers that start at the same time. More would slow each other down, and delay the reaction to Ctrl-C."""
_DROPPED: Final = frozenset(
    {
        *("--memory-limit", "--threads", "--scratch", "--volume", "--progress", "--log-format", "--drain-seconds"),
        *("--wait", "--spark-master", "--spark-conf"),
    }
)
"""Options whose values fit a pod. On a laptop, the defaults or the user's options apply."""

MAX_SERVERS: Final = 64
"""Default of --max-servers: a manifest made for a cluster could overload a laptop."""
_SUPERVISOR_MIB: Final = 30
_WORKER_MIB: Final = 12
"""Approximate private memory of each process of a shard server (measured), without the page cache."""
_TERMINATION_LOG: Final = "termination-log"

Place = tuple[str, str]
"""Namespace and name of a pod."""


def child_environment() -> dict[str, str]:
    """Return the variables that a process gets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LOOKUPDB_") or name in _VARIABLES}


async def _start(
    arguments: list[str], environment: Mapping[str, str], output: Path | None = None
) -> asyncio.subprocess.Process:
    """Start ``lookupdb ARGUMENTS…`` on a leash. Its output goes to the end of the file ``output``; if that is None,
    messages go to standard error, and results nowhere. Raises OSError."""
    with nullcontext() if output is None else output.open("ab") as log_file:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "lookupdb.cli.leash", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=log_file or asyncio.subprocess.DEVNULL,
            stderr=log_file,
            env=environment,
            start_new_session=True,
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Send SIGTERM, and later SIGKILL. No error if the process has ended."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):  # wait_for could lose a cancellation at the same moment
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class LocalServer:
    """``lookupdb ARGUMENTS… --ready-file …``, restarted whenever it ends, until ``stop``.

    ``on_change`` is called when it is ready and when it has ended.
    """

    def __init__(
        self, arguments: list[str], place: Path, on_change: Callable[[], None], starts: asyncio.Semaphore
    ) -> None:
        """``place`` is its folder; its log and ready file are beside it, with the same name and an ending. ``starts``
        limits the number of servers that start at the same time."""
        self.arguments = arguments
        self.name = place.name
        self.report: dict[str, Any] | None = None
        """What the ready file says; None while it is not ready."""
        self.since = format_moment(datetime.now(UTC))
        """When it last became ready, or ended."""
        self.end: tuple[int, str] | None = None
        """The last exit code, and the reason: its own report, the end of its log, or a signal."""
        self.failures = 0
        """How often it has ended since it was last ready."""
        self._log_path = place.with_name(f"{place.name}.log")
        self._ready_path = place.with_name(f"{place.name}.ready")
        self._end_path = place / _TERMINATION_LOG
        self._on_change = on_change
        self._starts = starts
        self._process: asyncio.subprocess.Process | None = None
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {place.name}")

    @property
    def pid(self) -> int | None:
        """The id of the running process; None if none runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def admin(self) -> str:
        """The admin port, as host:port."""
        options = dict(pairwise(self.arguments))
        return f"{options['--host']}:{options['--admin-port']}"

    async def stop(self) -> None:
        """Stop the process, and do not restart it."""
        self._keeper.cancel()
        await asyncio.wait([self._keeper])  # `await` could not tell its cancellation from this task's
        if self._process:
            await _end(self._process)

    def remove_files(self) -> None:
        """Remove the files of the server, which has been stopped for good."""
        shutil.rmtree(self._end_path.parent, ignore_errors=True)
        for path in (self._log_path, self._ready_path):
            with suppress(OSError):
                path.unlink()

    async def _keep(self) -> None:
        while True:
            try:
                self.end = await self._run()
            except OSError as error:
                log.error("%s cannot be started: %s", self.name, error)  # noqa: TRY400 - no more to say
                self.end = _SIGNALLED - 1, str(error)
            self.failures += 1
            self._note(None)
            await asyncio.sleep(delay_after(self.failures, _FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS))

    def _note(self, report: dict[str, Any] | None) -> None:
        if (report is None) != (self.report is None):
            self.since = format_moment(datetime.now(UTC))
        self.report = report
        self._on_change()

    async def _run(self) -> tuple[int, str]:
        """Run the process once, and return how it ended. Raises OSError if it cannot be started."""
        self._log_path.parent.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
        for path in (self._ready_path, self._end_path):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            if self._log_path.stat().st_size > _MAX_LOG_BYTES:
                self._log_path.unlink()
        words = [*self.arguments, "--ready-file", str(self._ready_path)]
        async with self._starts:
            process = self._process = await _start(words, child_environment(), self._log_path)
            report = await self._read_report(process, _TURN_SECONDS)
        if report or (report := await self._read_report(process)):
            self.failures = 0
            self._note(report)
        code = await process.wait()
        if code < 0:
            return _SIGNALLED - code, f"killed by signal {-code} ({signal.strsignal(-code)})"
        for path in (self._end_path, self._log_path):
            with suppress(OSError):
                return code, "\n".join(path.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        return code, ""

    async def _read_report(
        self, process: asyncio.subprocess.Process, seconds: float = math.inf
    ) -> dict[str, Any] | None:
        """Return what the ready file says; None if the process ends first, or is not ready after ``seconds``."""
        clock = asyncio.get_running_loop().time
        ends_at = clock() + seconds
        while process.returncode is None and clock() < ends_at:
            with suppress(FileNotFoundError):
                report: dict[str, Any] = orjson.loads(self._ready_path.read_bytes())
                return report
            await asyncio.sleep(_READY_POLL_SECONDS)
        return None


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


@dataclass(slots=True)
class _Pod:
    owner: Object
    server: LocalServer
    """Router pods of all datasets share one server, which is named after the pod whose settings it has."""

    @property
    def is_router(self) -> bool:
        return bool(self.owner["kind"] == "Deployment")


class Kubelet:
    """Runs the pods that ``api`` asks for as processes, and reports their state to it."""

    def __init__(self, api: LocalApi, options: UpOptions, bases: Mapping[Place, Path]) -> None:
        """``bases``: the folder to which the local files of a dataset's source are relative."""
        self._api = api
        self._options = options
        self._bases = bases
        self.console = ""
        """Address of the console, which routers forward to."""
        self._store = (options.data / "store").absolute()
        self._pods: dict[Place, _Pod] = {}
        self._stops: dict[Place, tuple[asyncio.Task[None], LocalServer]] = {}
        self._builds: dict[str, asyncio.Task[None]] = {}
        """The running builds, by the Job's uid."""
        self._addresses: dict[Place, str] = {}
        self._first_address = int(IPv4Address("127.1.0.1")) + random.randrange(1 << 23)  # noqa: S311 - not a secret
        first_host = str(IPv4Address(self._first_address))
        self._shard_port = find_free_port(names.SHARD_PORT, host=first_host)
        self._shard_admin_port = find_free_port(names.ADMIN_PORT, host=first_host)
        self.port = options.port or find_free_port()
        self.admin_port = find_free_port()
        self.resp_port = options.resp_port or find_free_port(
            names.RESP_PORT if options.resp_port is None else 0, self.port
        )
        self.digests: dict[str, str] = {}
        """The digest of a routing table's file → the digest of the operator's text."""
        self._starts = asyncio.Semaphore(_MAX_CONCURRENT_STARTS)
        self.changed = asyncio.Event()
        """Set it to sync again."""
        self.problem = ""
        """Why the processes do not match the objects."""
        self.exit_codes: dict[Place, int] = {}
        """The exit code of each dataset's last build, by namespace and name."""
        api.watchers.append(self._note)

    # Addresses

    def _address(self, namespace: str, pod: str) -> str:
        number = self._first_address + len(self._addresses)
        return self._addresses.setdefault((namespace, pod), str(IPv4Address(number)))

    def _resolve(self, text: str) -> str:
        """Return a routing table's ``text`` with addresses in place of the pods' names."""
        resolved = _ENDPOINT.sub(
            lambda found: f"{self._address(found[2], found[1])}:{int(found[3]) - names.SHARD_PORT + self._shard_port}",
            self._with_contents(text),
        )
        self.digests[digest_table(resolved.encode())] = digest_table(text.encode())
        return resolved

    def _with_contents(self, text: str) -> str:
        """Return a routing table's ``text`` with a hash of each generation's files. The hash makes the ETags of a
        router unique: all datasets of laptops have the same uid, and two may be built within one second."""
        table = orjson.loads(text)
        about = table["dataset"]
        folder = self._store / dataset_path(LOCAL, about["namespace"], about["name"], about["uid"])
        for entry in table["generations"]:
            with suppress(OSError, ValueError, KeyError):
                shards = orjson.loads((folder / entry["generation"] / "manifest.json").read_bytes())["shards"]
                entry["content"] = hashlib.sha256("".join(shard["sha256"] for shard in shards).encode()).hexdigest()
        return orjson.dumps(table).decode() + "\n"

    def describe(self, namespace: str, dataset: str, rollouts: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield shard, process id and addresses of each ready shard server of a dataset's ``rollouts``."""
        for place, pod in self._pods.items():
            labels, report = pod.owner["metadata"]["labels"], pod.server.report
            owner = place[0], labels[names.DATASET]
            if owner == (namespace, dataset) and labels.get(names.ROLLOUT) in rollouts and report:
                endpoints = [f"{self._address(*place)}:{port}" for port in report["ports"]]
                about = {"shard": int(labels[names.SHARD]), "pid": report["pid"]}
                yield {**about, "endpoints": endpoints, "admin": f"http://{pod.server.admin}"}

    # The loop

    def _note(self, event: str, item: Object) -> None:
        if event == "DELETED" or item["kind"] not in _UNWATCHED:
            self.changed.set()

    @property
    def router(self) -> LocalServer | None:
        """The router; None before it is started."""
        return next((pod.server for pod in self._pods.values() if pod.is_router), None)

    async def run(self) -> None:
        """Keep the processes as the objects require, until cancelled."""
        while True:
            self.changed.clear()
            try:
                self.sync()
                self.problem = ""
            except OSError as error:  # for example a full disk; it is retried
                self.problem = str(error)
            self._report()
            with suppress(TimeoutError):  # not wait_for, which could lose a cancellation
                async with asyncio.timeout(_RETRY_SECONDS if self.problem else None):
                    await self.changed.wait()

    def sync(self) -> None:
        """Start and stop processes once. Raises OSError; the next call continues."""
        wanted: dict[Place, Object] = {}
        for kind in (names.STATEFUL_SET, names.DEPLOYMENT):
            for owner in self._api.all(kind):
                meta = owner["metadata"]
                for replica in range(int(owner["spec"].get("replicas", 1))):
                    wanted[meta["namespace"], f"{meta['name']}-{replica}"] = owner
        if (router := self.router) and router.failures > 1 and self._options.resp_port is None:
            self.resp_port = find_free_port(self.resp_port, self.port)  # a program may have taken it meanwhile
        for server in {
            pod.server
            for place, pod in self._pods.items()
            if place not in wanted
            or self._api.get(names.POD, *place) is None
            or (place[1] == pod.server.name and self._arguments(place, wanted[place]) != pod.server.arguments)
        }:
            self._stop(server)
        for place, (task, server) in list(self._stops.items()):
            if task.done():
                del self._stops[place]
                if place not in wanted and place[1] == server.name:
                    server.remove_files()
        for place, owner in wanted.items():
            self._write_volumes(place, owner)
            if place in self._pods:
                self._pods[place].owner = owner
            elif place not in self._stops:
                self._start(place, owner)
        jobs = {job["metadata"]["uid"]: job for job in self._api.all(names.JOB)}
        for uid, job in jobs.items():
            if uid not in self._builds and not job.get("status"):
                self._builds[uid] = asyncio.create_task(self._run_job(job), name=job["metadata"]["name"])
        for uid in self._builds.keys() - jobs.keys():
            self._builds.pop(uid).cancel()
        for pod in self._api.all(names.POD):
            _, namespace, name = find_place(pod)
            if (namespace, name) not in self._pods and pod["metadata"]["ownerReferences"][0]["uid"] not in jobs:
                self._api.remove(names.POD, namespace, name)

    def _start(self, place: Place, owner: Object) -> None:
        server = self.router
        if server is None or owner["kind"] != "Deployment":
            folder = self._pod_folder(place, owner)
            server = LocalServer(self._arguments(place, owner), folder, self.changed.set, self._starts)
        self._pods[place] = _Pod(owner, server)

    def _stop(self, server: LocalServer) -> None:
        task = asyncio.create_task(server.stop())
        task.add_done_callback(lambda _: self.changed.set())
        for place in [place for place, pod in self._pods.items() if pod.server is server]:
            del self._pods[place]
            self._stops[place] = task, server

    async def stop(self) -> None:
        """Stop every process: builds are interrupted, servers end."""
        for task in self._builds.values():
            task.cancel()
        servers = [server.stop() for server in {pod.server for pod in self._pods.values()}]
        stops = [task for task, _ in self._stops.values()]
        await asyncio.gather(*self._builds.values(), *servers, *stops, return_exceptions=True)

    # Pods of servers

    def _pod_folder(self, place: Place, owner: Object) -> Path:
        return run_directory(self._options.data, place[0], owner["metadata"]["labels"][names.DATASET]) / place[1]

    def _write_volumes(self, place: Place, owner: Object) -> None:
        """Write the files of ConfigMaps that the pod mounts, where they differ. Raises OSError."""
        folder = self._pod_folder(place, owner)
        folder.mkdir(parents=True, exist_ok=True)
        for volume in owner["spec"]["template"]["spec"].get("volumes", ()):
            source = volume.get("configMap") or {}
            if not (name := source.get("name")):
                continue
            held = self._api.get(names.CONFIG_MAP, place[0], name) or {}
            for file, text in (held.get("data") or {}).items():
                _write_file(folder / volume["name"] / file, self._resolve(text) if volume["name"] == "table" else text)

    def _arguments(self, place: Place, owner: Object) -> list[str]:
        """Return the words of `lookupdb` for a pod's server."""
        container = owner["spec"]["template"]["spec"]["containers"][0]
        words = _drop_options(container["args"], _DROPPED)
        folder = self._pod_folder(place, owner)
        if owner["kind"] == "StatefulSet":
            labels = owner["metadata"]["labels"]
            dataset = dataset_path(LOCAL, place[0], labels[names.DATASET], labels[names.DATASET_UID])
            words[1] = str(self._store / dataset / labels[names.GENERATION])
            ports = {"--port": self._shard_port, "--admin-port": self._shard_admin_port}
            more = {"--drain-seconds": 0, "--termination-log": folder / _TERMINATION_LOG}
            return _with_options(words, {"--host": self._address(*place), **ports, **more})
        words = _in_folders(words, container["volumeMounts"], folder)
        words = _drop_options(words, frozenset({"--table", "--resp-port"}))
        for namespace, name in self._bases:
            table = run_directory(self._options.data, namespace, name) / f"{names.router(name)}-0/table"
            words += ["--dataset", f"{name}={table / names.TABLE_FILE}"]
        ports = {"--port": self.port, "--admin-port": self.admin_port}
        if len(self._bases) == 1:  # Redis commands cannot name a dataset
            ports["--resp-port"] = self.resp_port
        return _with_options(words, {"--host": HOST, **ports, "--console": self.console, "--drain-seconds": 0})

    def _report(self) -> None:
        """Report pods, and count them in the status of their StatefulSets and Deployments."""
        for place, pod in self._pods.items():
            held = self._api.get(names.POD, *place) or {}
            server, body = pod.server, _make_pod(place, pod.owner, held.get("metadata") or {})
            ready = {"type": "Ready", "status": "True" if server.report else "False"}
            begun = {"type": "PodReadyToStartContainers", "status": "True"}
            body["status"] = {
                "phase": "Running",
                "podIP": self._address(*place),
                "conditions": [{**condition, "lastTransitionTime": server.since} for condition in (ready, begun)],
                "containerStatuses": [_describe_container(pod)],
            }
            body["metadata"]["annotations"] = {ADMIN: server.admin}
            self._api.put(body)
        for owner in (*self._api.all(names.STATEFUL_SET), *self._api.all(names.DEPLOYMENT)):
            pods = [pod for pod in self._pods.values() if pod.owner["metadata"]["uid"] == owner["metadata"]["uid"]]
            ready_pods = sum(pod.server.report is not None for pod in pods)
            counts = {"replicas": len(pods), "readyReplicas": ready_pods, "availableReplicas": ready_pods}
            self._api.put_status(owner, {"observedGeneration": owner["metadata"]["generation"], **counts})

    # Builds

    async def _run_job(self, job: Object) -> None:
        meta = job["metadata"]
        place = meta["namespace"], f"{meta['name']}-0"
        folder = self._pod_folder(place, job)
        report = folder / _TERMINATION_LOG
        arguments = self._builder_arguments(place, job, folder, report)
        code, why = _SIGNALLED, ""
        try:
            self._write_volumes(place, job)
            report.unlink(missing_ok=True)
            log_file = renew_build_log(folder.parent, meta["labels"][names.GENERATION])
            code = await self._build(arguments, log_file)
            with suppress(FileNotFoundError):
                why = report.read_text(errors="replace")
            why = why or _describe_kill(code, meta["labels"][names.GENERATION])
            note_build_end(log_file, why)
        except OSError as error:
            room = "; make room there" if error.errno in DISK_FULL_ERRNOS else ""
            why = f"the build cannot be started in {folder.parent}: {error.strerror or error}{room}"
            why = _report_failure(code, meta["labels"][names.GENERATION], why)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.exit_codes[place[0], meta["labels"][names.DATASET]] = code
        self._end_job(job, place, code, why)

    async def _build(self, arguments: list[str], log_file: Path) -> int:
        """Run a builder to its end and return its exit code. When cancelled, interrupt it, so that it cleans up."""
        # Bars and errors of several builds would mix.
        several = {"LOOKUPDB_PROGRESS": "plain", NAMED_ERRORS: "1"} if len(self._bases) > 1 else {}
        builder = await _start(arguments, several | child_environment() | {LOG_FILE: str(log_file)})
        try:
            code = await builder.wait()
        except asyncio.CancelledError:
            await _end(builder)
            raise
        return _SIGNALLED - code if code < 0 else code

    def _end_job(self, job: Object, place: Place, code: int, message: str) -> None:
        body = _make_pod(place, job, {})
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
        body["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": "build", "state": {"terminated": ended}}],
        }
        now = self._api.get(names.JOB, place[0], job["metadata"]["name"])
        if now is None or now["metadata"]["uid"] != job["metadata"]["uid"]:
            return
        self._api.put(body)
        condition = {"type": "Failed" if code else "Complete", "status": "True", "reason": "BackoffLimitExceeded"}
        self._api.put_status(now, {"conditions": [condition], "failed" if code else "succeeded": 1})

    def _builder_arguments(self, place: Place, job: Object, folder: Path, report: Path) -> list[str]:
        container = job["spec"]["template"]["spec"]["containers"][0]
        words = _drop_options([word for word in container["args"] if word != "--no-local-files"], _DROPPED)
        words = _in_folders(words, container["volumeMounts"], folder)
        base = self._bases.get((place[0], job["metadata"]["labels"][names.DATASET]), Path.cwd())
        limits = {"--memory-limit": self._options.memory_limit, "--volume": self._options.volume}
        chosen = {option: value for option, value in limits.items() if value is not None}
        return _with_options(words, {"--termination-log": report, "--base": base, **chosen})


class LocalCluster(Cluster):
    """The local API server, and the admin ports of its routers, which ``pods`` reads."""

    def __init__(self, api: LocalApi, kubelet: Kubelet, pods: PodClient) -> None:
        super().__init__(api)
        self._local = api
        self._kubelet = kubelet
        self._pods = pods

    async def ask_router(self, ip: str, dataset_uid: str) -> RouterReport:
        """Return the report of the router of the pod at ``ip``."""
        pod = next((pod for pod in self._local.all(names.POD) if pod["status"].get("podIP") == ip), None)
        if pod is None:
            return RouterReport(None, f"no router runs at {ip}")
        address, dataset = read_annotations(pod)[ADMIN], read_labels(pod)[names.DATASET]
        try:
            text = (await self._pods.read_metrics(address, "/status")).encode()
        except LookupdbError as error:
            return RouterReport(None, error.message)
        with suppress(ValueError, KeyError, TypeError):  # ``parse_report`` says what is wrong
            # Keep only what each worker reports about this dataset.
            workers = [{"report": worker["report"]["datasets"][dataset]} for worker in orjson.loads(text)["workers"]]
            text = orjson.dumps({"workers": workers})
        report = parse_report(f"http://{address}/status", text, dataset_uid)
        digests = self._kubelet.digests
        return replace(report, digests=frozenset(digests.get(digest, digest) for digest in report.digests))


def _describe_kill(code: int, generation: str) -> str:
    """Return the report of a builder of ``generation`` that a signal killed; empty if none did."""
    number = code - _SIGNALLED
    if number not in signal.valid_signals():
        return ""
    why = ", perhaps because it ran out of memory; lower --memory-limit" if number == signal.SIGKILL else ""
    return _report_failure(code, generation, f"the builder was killed by {signal.Signals(number).name}{why}")


def _report_failure(code: int, generation: str, message: str) -> str:
    """Return the report of a builder that could not write one."""
    report = {"outcome": "failed", "generation": generation, "exitCode": code, "reason": reasons.BUILD_FAILED}
    return orjson.dumps({**report, "message": message}).decode()


def _describe_container(pod: _Pod) -> dict[str, Any]:
    """Return the status of a pod's container. If a server's generation is gone, report a failed fetcher."""
    name, server = "route" if pod.is_router else "serve", pod.server
    if server.report or server.end is None:
        return {"name": name, "state": {"running": {}}} if server.report else {"name": name}
    code, message = server.end
    if not pod.is_router and not (folder := Path(server.arguments[1])).is_dir():
        name, code, why = FETCH, 1, f"{folder} is not there"
        message = orjson.dumps({"reason": reasons.GENERATION_MISSING, "message": why}).decode()
    ended = {"terminated": {"exitCode": code, "reason": "Error", "message": message}}
    state = {"waiting": {"reason": "CrashLoopBackOff"}} if server.failures > 1 else ended
    return {"name": name, "restartCount": server.failures, "state": state, "lastState": ended}


def _make_pod(place: Place, owner: Object, existing: Mapping[str, Any]) -> Object:
    """Return a pod from the template of ``owner``, with the metadata of the ``existing`` one."""
    template, meta = owner["spec"]["template"], owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    metadata = {"namespace": place[0], "name": place[1], "labels": template["metadata"]["labels"]}
    metadata["ownerReferences"] = [{**reference, "controller": True}]
    return names.POD.make({**existing, **metadata}, spec=template["spec"])


def _write_file(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, whole or not at all, unless it is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if path.read_bytes() == text.encode():
            return
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_bytes(text.encode())
    unfinished.replace(path)


def _drop_options(words: Iterable[str], options: frozenset[str]) -> list[str]:
    """Return ``words`` without ``options`` and their values."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in options:
            next(rest)
        else:
            kept.append(word)
    return kept


def _with_options(words: list[str], options: Mapping[str, object]) -> list[str]:
    """Return ``words`` with ``options``, which replace those of the same name."""
    return [*_drop_options(words, frozenset(options)), *(str(word) for pair in options.items() for word in pair)]


def _in_folders(words: list[str], mounts: Iterable[Mapping[str, Any]], folder: Path) -> list[str]:
    """Return ``words`` with the volumes' local folders in place of their paths in a pod."""
    for mount in mounts:
        if mount == TMP:  # folders of this machine may be there
            continue
        path, local = mount["mountPath"], str(folder / mount["name"])
        words = [local + word.removeprefix(path) if f"{word}/".startswith(f"{path}/") else word for word in words]
    return words


def find_free_port(first: int = 0, besides: int = 0, host: str = HOST) -> int:
    """Return the first free port from ``first`` on, except ``besides``. Any free one if there is none nearby."""
    for port in range(first, first + _NEXT_PORTS) if first else ():
        with suppress(UsageError):
            if port != besides:
                listeners.check_free(host, port)
                return port
    with listeners.bind(host, 0) as listener:
        return listeners.bound_port(listener)


def check_ports(port: int, resp_port: int | None) -> None:
    """Raises UsageError if the router could not listen. Checked before the build, which takes time."""
    if port and port == resp_port:
        raise UsageError(
            f"--port and --resp-port are both {port}, expected two different ports",
            hint="give another --resp-port (0 takes a free port)",
        )
    for option, number in (("--port", port), ("--resp-port", resp_port or 0)):
        try:
            listeners.check_free(HOST, number)
        except UsageError as error:
            variable = "LOOKUPDB_" + option.removeprefix("--").replace("-", "_").upper()
            hint = f"give another {option}, or set {variable} (0 takes a free port)"
            raise UsageError(error.message, hint=hint) from error


def check_servers(specs: Sequence[DatasetSpec], max_servers: int) -> None:
    """Raises UsageError when the datasets need more than ``max_servers`` shard servers together."""
    counts = [(spec.shards * spec.replicas, spec.serving_workers) for spec in specs]
    servers = sum(count for count, _ in counts)
    if servers <= max_servers:
        return
    workers = sum(count * workers_per_server for count, workers_per_server in counts)
    mebibytes = servers * _SUPERVISOR_MIB + workers * _WORKER_MIB
    needing = f"{specs[0].name} needs" if len(specs) == 1 else f"{', '.join(spec.name for spec in specs)} need"
    sizes = " + ".join(f"spec.shards {spec.shards:,} × spec.replicas {spec.replicas:,}" for spec in specs)
    raise UsageError(
        f"{needing} {servers:,} shard servers ({sizes}), and `lookupdb up` starts at most {max_servers:,}: they would "
        f"be {servers + workers:,} processes with about {mebibytes / 1024:,.1f} GiB of memory, twice that while a new "
        "generation is rolled out",
        hint="to try it out, lower spec.shards (a shard holds millions of records) or spec.replicas; "
        f"on a machine that is large enough, give --max-servers {servers}",
    )
