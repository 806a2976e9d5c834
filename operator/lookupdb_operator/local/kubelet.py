"""Controllers and kubelet of `lookupdb up`: the pods of Jobs, StatefulSets and Deployments are processes on loopback.

A shard's pod has an address of its own in 127.0.0.0/8, so its ports are those of a cluster, moved only if a program of
this machine listens on them everywhere. Names of pods in a routing table are replaced by addresses in the file that the
router reads. Shard servers map the store's own files, so nothing is fetched.

A process has a session of its own, so that Ctrl-C in the terminal reaches `up` alone, which stops its processes in
order. `up` holds its standard input; the process ends when that is closed (see ``cli.leash``). So none outlives `up`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.backoff import Backoff
from lookupdb.dataset.spec import LOCAL
from lookupdb.errors import UsageError
from lookupdb.process import listeners
from lookupdb.router.routing_table import digest_table
from lookupdb.store.dataset import dataset_path
from lookupdb.telemetry import LOG_FILE
from lookupdb.up.run_state import note_build_end, renew_build_log
from lookupdb_operator import names
from lookupdb_operator.cluster.api import ApiError
from lookupdb_operator.cluster.workloads import FETCH
from lookupdb_operator.local.api import LocalApi, Object
from lookupdb_operator.manifests.pods import TMP
from lookupdb_operator.model import format_moment
from lookupdb_operator.plan import reasons

log = logging.getLogger(__name__)

_PREFIX: Final = "LOOKUPDB_"
SERVER_VARIABLES: Final = frozenset(
    {"LOOKUPDB_LOG_FORMAT", "LOOKUPDB_NATIVE", "LOOKUPDB_PASSWORD", "LOOKUPDB_PASSWORD_FILE"}
)
"""The variables of lookupdb that shard servers and routers get. LOOKUPDB_PORT, for example, is not for shards."""
BUILDER_VARIABLES: Final = frozenset(
    {"LOOKUPDB_LOG_FORMAT", "LOOKUPDB_NATIVE", "LOOKUPDB_PROGRESS", "LOOKUPDB_SCRATCH", "LOOKUPDB_THREADS"}
)
"""Variables of lookupdb that a build gets."""

_READY_POLL_SECONDS: Final = 0.02
_FIRST_BACKOFF_SECONDS: Final = 0.1
_LONGEST_BACKOFF_SECONDS: Final = 10.0
_STEADY_SECONDS: Final = 30.0
"""A server that ran this long restarts with the shortest delay."""
STOP_SECONDS: Final = 5.0
_TURN_SECONDS: Final = 5.0
"""Longest time for which a starting server keeps others waiting. A router may take longer to be ready."""
_TAIL_LINES: Final = 15
_MAX_LOG_BYTES: Final = 1 << 20
"""A server that starts with a larger log begins a new one."""
SIGNALLED: Final = 128
"""Added to a signal's number to make the exit code of a process that it ended, as in a shell."""

HOST: Final = "127.0.0.1"
"""The address of routers' public ports."""
_KINDS: Final = frozenset({"Job", "StatefulSet", "Deployment", "ConfigMap", "Secret", "Pod"})
"""Kinds whose changes need a sync."""
_ENDPOINT: Final = re.compile(r"\b([a-z0-9-]+)\.[a-z0-9-]+\.([a-z0-9-]+)\.svc:([0-9]+)\b")
RESP_PORT: Final = 6379
"""The default port of Redis."""
_NEXT_PORTS: Final = 100
MAX_CONCURRENT_STARTS: Final = max(4, min(os.cpu_count() or 1, 16))
"""Number of servers that start at the same time. More would slow each other and the reaction to Ctrl-C."""
_MOVED: Final = 1000
"""Ports that a program of this machine uses are moved by this number, again and again."""
INTERRUPTION_SECONDS: Final = 10.0
"""Time for an interrupted builder to end by itself. After that it is killed."""
_DROPPED: Final = frozenset(
    {
        *("--memory-limit", "--threads", "--scratch", "--volume", "--progress", "--log-format", "--drain-seconds"),
        *("--wait", "--spark-master", "--spark-conf"),
    }
)
"""Options whose values fit a pod. On a laptop, the defaults or the user's options apply."""

SEEN: Final = f"{names.GROUP}/seen"
"""Annotation: the success file, and the source's fingerprint when that file was first seen. If the source changes while
the file stays, the next source may be half written, and is not built."""
_TERMINATION_LOG: Final = "termination-log"

Place = tuple[str, str]
"""Namespace and name of a pod."""


def child_environment(keep: frozenset[str], variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return ``variables`` without those of lookupdb that are not in ``keep``."""
    return {name: value for name, value in variables.items() if not name.startswith(_PREFIX) or name in keep}


async def _start(
    arguments: list[str], variables: frozenset[str], output: Path | None, more: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Start ``lookupdb ARGUMENTS…`` on a leash. Its output goes to the end of the file ``output``; if that is None,
    messages go to standard error, and results nowhere. ``more`` are variables besides its own. Raises OSError."""
    with ExitStack() as stack:
        log_file = None if output is None else stack.enter_context(output.open("ab"))
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "lookupdb.cli.leash",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL if log_file is None else log_file,
            stderr=log_file,
            env={**child_environment(variables), **(more or {})},
            start_new_session=True,
        )


async def _end(process: asyncio.subprocess.Process, number: signal.Signals, grace_seconds: float) -> None:
    """Send signal ``number``, then SIGKILL after ``grace_seconds``. No error if the process has ended."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.send_signal(number)
    try:
        async with asyncio.timeout(grace_seconds):  # wait_for could lose a cancellation at the same moment
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class LocalServer:
    """``lookupdb ARGUMENTS… --ready-file …``, restarted whenever it ends, until ``stop``.

    ``on_ready`` is called with what the ready file says, ``on_end`` with the exit code, and the log's end or a signal.
    """

    def __init__(
        self,
        arguments: list[str],
        place: Path,
        on_ready: Callable[[dict[str, Any]], None],
        on_end: Callable[[int, str], None],
        starts: asyncio.Semaphore,
    ) -> None:
        """``place``: the path of its log and ready file, without their endings. ``starts`` limits the number of servers
        that start at the same time."""
        self.arguments = arguments
        self.log_path = place.with_name(f"{place.name}.log")
        self._ready_path = place.with_name(f"{place.name}.ready")
        self._on_ready = on_ready
        self._on_end = on_end
        self._starts = starts
        self._process: asyncio.subprocess.Process | None = None
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {place.name}")

    @property
    def pid(self) -> int | None:
        """The id of the running process; None if none runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def stop(self, grace_seconds: float = STOP_SECONDS) -> None:
        """Stop the process, and restart it no more."""
        self._keeper.cancel()
        await asyncio.wait([self._keeper])  # `await` would confuse its cancellation with that of this task
        if self._process:
            await _end(self._process, signal.SIGTERM, grace_seconds)
        with suppress(OSError):
            self._ready_path.unlink(missing_ok=True)

    async def _keep(self) -> None:
        backoff = Backoff(_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS)
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                await self._run()
            except OSError as error:
                log.error("%s cannot be started: %s", self._ready_path.stem, error)  # noqa: TRY400 - no more to say
                self._on_end(SIGNALLED - 1, str(error))
            if clock() - began > _STEADY_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.fail())

    async def _run(self) -> None:
        """Run the process once. Raises OSError if it cannot be started."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
        self._ready_path.unlink(missing_ok=True)
        with suppress(OSError):
            if self.log_path.stat().st_size > _MAX_LOG_BYTES:
                self.log_path.unlink()
        words = [*self.arguments, "--ready-file", str(self._ready_path)]
        report = None
        async with self._starts:
            process = self._process = await _start(words, SERVER_VARIABLES, self.log_path)
            with suppress(TimeoutError):
                async with asyncio.timeout(_TURN_SECONDS):
                    report = await self._read_report(process)
                    if report is not None:
                        self._on_ready(report)
        if report is None and (report := await self._read_report(process)):
            self._on_ready(report)
        await process.wait()
        code = process.returncode or 0
        log.warning("%s ended; it is started again (log: %s)", self._ready_path.stem, self.log_path)
        tail = f"killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else self._read_tail()
        self._on_end(SIGNALLED - code if code < 0 else code, tail)

    async def _read_report(self, process: asyncio.subprocess.Process) -> dict[str, Any] | None:
        while process.returncode is None:
            with suppress(FileNotFoundError):
                report: dict[str, Any] = orjson.loads(self._ready_path.read_bytes())
                return report
            await asyncio.sleep(_READY_POLL_SECONDS)
        return None

    def _read_tail(self) -> str:
        with suppress(OSError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        return ""


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """The options of `lookupdb up` that its processes get."""

    store: Path
    port: int = 0
    resp_port: int = 0
    memory_limit: int | None = None
    volume: Path | None = None
    chooses_resp_port: bool = False
    """True if `up` has chosen the Redis port: while no router listens, another one replaces it if it is taken."""
    console: str = ""
    """Address of the console, which routers forward to."""


@dataclass(slots=True)
class _Pod:
    """A pod whose process serves."""

    server: LocalServer
    address: str
    admin: str
    """Address and port of its admin port."""
    owner: Object
    report: dict[str, Any] | None = None
    """What its ready file says; None while it is not ready."""
    failures: int = 0
    """Ends in a row without being ready."""
    container: dict[str, Any] = field(default_factory=lambda: {"name": "serve"})
    """The status of its container."""


class Kubelet:
    """Makes processes of the pods that ``api`` should have, and reports their state there."""

    def __init__(
        self, api: LocalApi, folder_of: Callable[[str, str], Path], options: KubeletOptions, bases: Mapping[Place, Path]
    ) -> None:
        """``folder_of``: the folder of a dataset's logs and files. ``bases``: the folder to which the local files of a
        dataset's source are relative."""
        self._api = api
        self._folder_of = folder_of
        self._options = options
        self._bases = bases
        self._pods: dict[Place, _Pod] = {}
        self._stops: set[asyncio.Task[None]] = set()
        self._builds: dict[str, asyncio.Task[None]] = {}
        """The running builds, by the Job's uid."""
        self._builders: dict[str, asyncio.subprocess.Process] = {}
        self._addresses: dict[Place, str] = {}
        self._admin_ports: dict[Place, int] = {}
        self._first_address = int(IPv4Address("127.1.0.1")) + random.randrange(1 << 23)  # noqa: S311 - not a secret
        self._shift = self._find_shift()
        self._digests: dict[str, str] = {}
        """The digest of a routing table's file → the digest of the operator's text."""
        self._starts = asyncio.Semaphore(MAX_CONCURRENT_STARTS)
        self._changed = asyncio.Event()
        self._has_listened = False
        """True once a router was ready: from then on it keeps its ports."""
        self.problem = ""
        """Why processes cannot be kept as the objects say."""
        self.exit_codes: dict[Place, int] = {}
        """The exit code of each dataset's last build, by namespace and name."""
        self.on_router: Callable[[dict[str, Any]], None] = lambda report: None
        """Called with what a router reports when it is ready."""
        api.watchers.append(self._note)

    # Addresses

    def _find_shift(self) -> int:
        """Return the number to add to all ports, so that no program that listens on all addresses has them."""
        for shift in range(0, 20 * _MOVED, _MOVED):
            with suppress(UsageError):
                for port in (names.SHARD_PORT, names.ADMIN_PORT):
                    listeners.check_free(str(IPv4Address(self._first_address)), port + shift)
                return shift
        raise UsageError(f"no ports are free on loopback: a program listens on {names.SHARD_PORT} and others")

    def _address(self, namespace: str, pod: str) -> str:
        number = self._first_address + len(self._addresses)
        return self._addresses.setdefault((namespace, pod), str(IPv4Address(number)))

    def _resolve(self, text: str) -> str:
        """Return a routing table's ``text`` with addresses in place of the pods' names."""

        def find_address(found: re.Match[str]) -> str:
            return f"{self._address(found[2], found[1])}:{int(found[3]) + self._shift}"

        resolved = _ENDPOINT.sub(find_address, self._with_contents(text))
        self._digests[digest_table(resolved.encode())] = digest_table(text.encode())
        return resolved

    def _with_contents(self, text: str) -> str:
        """Return a routing table's ``text`` with a hash of each generation's files, which a router's tags need: all
        datasets of laptops have the same uid, and two may be built within one second."""
        table = orjson.loads(text)
        about = table["dataset"]
        folder = self._options.store / dataset_path(LOCAL, about["namespace"], about["name"], about["uid"])
        for entry in table["generations"]:
            with suppress(OSError, ValueError, KeyError):
                shards = orjson.loads((folder / entry["generation"] / "manifest.json").read_bytes())["shards"]
                entry["content"] = hashlib.sha256("".join(shard["sha256"] for shard in shards).encode()).hexdigest()
        return orjson.dumps(table).decode() + "\n"

    def original_digest(self, digest: str) -> str:
        """Return the digest of the operator's text for that of the file that a router read."""
        return self._digests.get(digest, digest)

    def find_router(self, ip: str) -> tuple[str, str] | None:
        """Return address and port of the admin port of the pod at ``ip``, and the name of its dataset; None if no pod
        is there."""
        found = (pod for place, pod in self._pods.items() if self._address(*place) == ip)
        return next(((pod.admin, str(pod.owner["metadata"]["labels"][names.DATASET])) for pod in found), None)

    def find_admin(self, namespace: str, name: str) -> str | None:
        """Return address and port of the admin port of the pod ``name``; None if it does not run."""
        pod = self._pods.get((namespace, name))
        return None if pod is None else pod.admin

    # The loop

    def _note(self, event: str, item: Object) -> None:
        if item["kind"] in _KINDS and (item["kind"] != "Pod" or event == "DELETED"):
            self._changed.set()

    async def run(self) -> None:
        """Keep processes as the objects say, until cancelled."""
        while True:
            self._changed.clear()
            try:
                self.sync()
            except (OSError, ApiError) as error:  # a full disk: it is tried again
                self.problem = str(error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):  # wait_for could lose a cancellation
                        await self._changed.wait()
            else:
                self.problem = ""
                await self._changed.wait()

    def resync(self) -> None:
        """Look at everything again: files may have been removed."""
        self._changed.set()

    def sync(self) -> None:
        """Start and stop processes once. Raises OSError and ApiError; the next call goes on."""
        wanted: dict[Place, Object] = {}
        for kind in (names.STATEFUL_SET, names.DEPLOYMENT):
            for owner in self._api.all(kind):
                meta = owner["metadata"]
                for replica in range(int(owner["spec"].get("replicas", 1))):
                    wanted[meta["namespace"], f"{meta['name']}-{replica}"] = owner
        for place, pod in list(self._pods.items()):
            is_gone = self._api.get(names.POD, *place) is None
            if place not in self._pods:
                continue  # stopped with another router
            is_router = pod.owner["kind"] == "Deployment"
            is_changed = place in wanted and self._arguments(place, wanted[place]) != pod.server.arguments
            if place not in wanted or is_gone or (is_changed and (not is_router or place == self._find_routers()[0])):
                for stopped in self._find_routers() if is_router else [place]:
                    self._stop(stopped)
        stopping = {task.get_name() for task in self._stops}
        for place, owner in wanted.items():
            if place not in self._pods and "/".join(place) not in stopping:
                self._start(place, owner)
            self._write_volumes(place, owner)
        jobs = {job["metadata"]["uid"]: job for job in self._api.all(names.JOB)}
        for uid, job in jobs.items():
            if uid not in self._builds and not job.get("status"):
                self._builds[uid] = asyncio.create_task(self._run_job(job), name=job["metadata"]["name"])
        for uid in self._builds.keys() - jobs.keys():
            self._builds.pop(uid).cancel()

    def _find_routers(self) -> list[Place]:
        """Return the pods of routers, which share one process. The first one's settings hold."""
        return [place for place, pod in self._pods.items() if pod.owner["kind"] == "Deployment"]

    def _stop(self, place: Place) -> None:
        pod = self._pods.pop(place)
        task = asyncio.create_task(pod.server.stop(), name="/".join(place))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)
        task.add_done_callback(lambda _: self._changed.set())
        self._api.remove(names.POD, *place)
        self._report_counts(pod.owner)

    def _start(self, place: Place, owner: Object) -> None:
        folder = self._pod_folder(place, owner)
        folder.mkdir(parents=True, exist_ok=True)
        self._write_volumes(place, owner)
        if owner["kind"] == "Deployment" and (routers := self._find_routers()):
            self._pods[place] = replace(self._pods[routers[0]], owner=owner)
            self._put_pod(place)
            return self._report_counts(owner)
        arguments = self._arguments(place, owner)
        address = self._address(*place)
        admin = f"{_read_option(arguments, '--host')}:{_read_option(arguments, '--admin-port')}"
        on_ready, on_end = partial(self._note_ready, place), partial(self._note_end, place)
        server = LocalServer(arguments, folder.with_name(place[1]), on_ready, on_end, self._starts)
        self._pods[place] = _Pod(server, address, admin, owner)
        self._put_pod(place)

    async def stop(self) -> None:
        """Stop every process: builds are interrupted, servers end."""
        self._api.watchers.remove(self._note)
        for task in self._builds.values():
            task.cancel()
        servers = [pod.server.stop() for pod in self._pods.values()]
        await asyncio.gather(*self._builds.values(), *servers, *self._stops, return_exceptions=True)

    def kill_builders(self) -> None:
        """Kill running builds at once. The next ones remove what they leave behind."""
        for builder in self._builders.values():
            with suppress(ProcessLookupError):
                builder.kill()

    def describe(self, namespace: str, dataset: str, rollouts: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield shard, process id and addresses of each ready shard server of a dataset's ``rollouts``."""
        for (where, _), pod in self._pods.items():
            labels = pod.owner["metadata"]["labels"]
            is_active = (where, labels[names.DATASET]) == (namespace, dataset) and labels.get(names.ROLLOUT) in rollouts
            if is_active and pod.report:
                endpoints = [f"{pod.address}:{port}" for port in pod.report["ports"]]
                about = {"shard": int(labels[names.SHARD]), "pid": pod.server.pid, "endpoints": endpoints}
                yield {**about, "admin": f"http://{pod.admin}"}

    def router_pid(self, namespace: str, name: str) -> int | None:
        """Return the process id of the first router of the Deployment ``name``."""
        pod = self._pods.get((namespace, f"{name}-0"))
        return None if pod is None else pod.server.pid

    # Pods of servers

    def _pod_folder(self, place: Place, owner: Object) -> Path:
        return self._folder_of(place[0], owner["metadata"]["labels"][names.DATASET]) / place[1]

    def _write_volumes(self, place: Place, owner: Object) -> None:
        """Write the files of ConfigMaps and Secrets that the pod mounts, where they differ. Raises OSError."""
        folder = self._pod_folder(place, owner)
        for volume in owner["spec"]["template"]["spec"].get("volumes", ()):
            source = volume.get("configMap") or {}
            if not (name := source.get("name")):
                continue
            held = self._api.get(names.CONFIG_MAP, place[0], name) or {}
            change = self._resolve if volume["name"] == "table" else str
            _write_files(folder / volume["name"], held.get("data") or {}, change)

    def _arguments(self, place: Place, owner: Object) -> list[str]:
        """Return the words of `lookupdb` for a pod's server."""
        container = owner["spec"]["template"]["spec"]["containers"][0]
        words = _drop_options(container["args"], _DROPPED)
        folder, address = self._pod_folder(place, owner), self._address(*place)
        if owner["kind"] == "StatefulSet":
            labels = owner["metadata"]["labels"]
            dataset = dataset_path(LOCAL, place[0], labels[names.DATASET], labels[names.DATASET_UID])
            words[1] = str(self._options.store / dataset / labels[names.GENERATION])
            ports = {"--port": names.SHARD_PORT + self._shift, "--admin-port": names.ADMIN_PORT + self._shift}
            log_file = folder / _TERMINATION_LOG
            return _with_options(
                words, {"--host": address, **ports, "--drain-seconds": 0, "--termination-log": log_file}
            )
        words = _drop_options(
            _in_folders(words, container["volumeMounts"], folder), frozenset({"--table", "--resp-port"})
        )
        for namespace, name in self._bases:
            table = self._folder_of(namespace, name) / f"{names.router(name)}-0" / "table" / names.TABLE_FILE
            words += ["--dataset", f"{name}={table}"]
        if self._options.console:
            words = _with_options(words, {"--console": self._options.console})
        ports = {"--port": self._options.port}
        if len(self._bases) == 1:  # no command of Redis names a dataset
            ports["--resp-port"] = self._options.resp_port
        if (admin := self._admin_ports.get(place)) is None:
            with listeners.bind(HOST, 0) as listener:
                admin = self._admin_ports[place] = listeners.bound_port(listener)
        return _with_options(words, {"--host": HOST, **ports, "--admin-port": admin, "--drain-seconds": 0})

    def _note_ready(self, place: Place, report: dict[str, Any]) -> None:
        pod = self._pods.get(place)
        if pod is None:
            return
        is_router = pod.owner["kind"] == "Deployment"
        for other in self._find_routers() if is_router else [place]:
            sharing = self._pods[other]
            sharing.report, sharing.failures = report, 0
            sharing.container = {"name": "serve", "state": {"running": {}}}
            self._put_pod(other)
            self._report_counts(sharing.owner)
        if is_router:  # it keeps its ports after a restart
            self._has_listened = True
            self._options = replace(self._options, port=report["port"], resp_port=report.get("resp", 0))
            pod.server.arguments = self._arguments(place, pod.owner)
            self.on_router(report)

    def _note_end(self, place: Place, code: int, tail: str) -> None:
        pod = self._pods.get(place)
        if pod is None:
            return
        pod.failures += 1
        if pod.owner["kind"] == "Deployment" and self._options.chooses_resp_port and not self._has_listened:
            resp_port = find_free_port(self._options.resp_port, self._options.port)
            self._options = replace(self._options, resp_port=resp_port)
            pod.server.arguments = self._arguments(place, pod.owner)
        name, message = "serve" if pod.owner["kind"] == "StatefulSet" else "route", tail
        with suppress(OSError):
            log_file = self._pod_folder(place, pod.owner) / _TERMINATION_LOG
            message = log_file.read_text(errors="replace") or tail
            log_file.unlink()
        if name == "serve" and not (folder := Path(pod.server.arguments[1])).is_dir():
            name, code, why = FETCH, 1, f"{folder} is not there"  # as a fetcher would end
            message = orjson.dumps({"reason": reasons.GENERATION_MISSING, "message": why}).decode()
        ended = {"exitCode": code, "reason": "Error", "message": message}
        container = {
            "name": name,
            "restartCount": pod.failures,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}} if pod.failures > 1 else {"terminated": ended},
            "lastState": {"terminated": ended},
        }
        for other in self._find_routers() if pod.owner["kind"] == "Deployment" else [place]:
            self._pods[other] = replace(self._pods[other], report=None, failures=pod.failures, container=container)
            self._put_pod(other)
            self._report_counts(self._pods[other].owner)

    def _put_pod(self, place: Place) -> None:
        pod = self._pods[place]
        held = self._api.get(names.POD, *place)
        status, since = "True" if pod.report else "False", format_moment(datetime.now(UTC))
        for condition in (held or {}).get("status", {}).get("conditions", ()):
            since = condition["lastTransitionTime"] if condition["status"] == status else since
        ready = {"type": "Ready", "status": status, "lastTransitionTime": since}
        body = _make_pod(place, pod.owner, (held or {}).get("metadata") or {})
        body["status"] = {
            "phase": "Running",
            "podIP": self._address(*place),
            "conditions": [ready, {"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": since}],
            "containerStatuses": [pod.container],
        }
        self._api.put(body)

    def _report_counts(self, owner: Object) -> None:
        """Report the numbers of pods in the status of their StatefulSet or Deployment."""
        meta = owner["metadata"]
        now = self._api.get(names.find_kind(owner["kind"]), meta["namespace"], meta["name"])
        if now is None or now["metadata"]["uid"] != meta["uid"]:
            return
        pods = [pod for pod in self._pods.values() if pod.owner["metadata"]["uid"] == meta["uid"]]
        ready = sum(pod.report is not None for pod in pods)
        counts = {"replicas": len(pods), "readyReplicas": ready, "availableReplicas": ready}
        self._api.put_status(now, {"observedGeneration": now["metadata"]["generation"], **counts})

    # Builds

    async def _run_job(self, job: Object) -> None:
        meta = job["metadata"]
        place = meta["namespace"], f"{meta['name']}-0"
        if meta["labels"][names.COMPONENT] != names.BUILDER:
            return self._api.put_status(job, {"conditions": [{"type": "Complete", "status": "True"}]})
        folder = self._pod_folder(place, job)
        report = folder / _TERMINATION_LOG
        arguments = self._builder_arguments(place, job, folder, report)
        code, why = SIGNALLED, ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._write_volumes(place, job)
            report.unlink(missing_ok=True)
            log_file = renew_build_log(folder.parent, meta["labels"][names.GENERATION])
            code = await self._build(meta["uid"], arguments, log_file)
            with suppress(FileNotFoundError):
                why = report.read_text(errors="replace")
            why = why or _describe_kill(code, meta["labels"][names.GENERATION])
            note_build_end(log_file, why)
        except OSError as error:
            why = f"the build cannot be started: {error.strerror or error}"
        self.exit_codes[place[0], meta["labels"][names.DATASET]] = code
        self._end_job(job, place, code, why)
        shutil.rmtree(folder, ignore_errors=True)

    async def _build(self, uid: str, arguments: list[str], log_file: Path) -> int:
        """Run a builder to its end and return its exit code. When cancelled, interrupt it, so that it cleans up."""
        builder = self._builders[uid] = await _start(arguments, BUILDER_VARIABLES, None, {LOG_FILE: str(log_file)})
        try:
            code = await builder.wait()
        except asyncio.CancelledError:
            await _end(builder, signal.SIGTERM, INTERRUPTION_SECONDS)  # while it starts, no traceback
            raise
        finally:
            del self._builders[uid]
        return SIGNALLED - code if code < 0 else code

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
        dataset = self._api.get(names.DATASET_KIND, place[0], job["metadata"]["labels"][names.DATASET]) or {}
        seen = (dataset.get("metadata", {}).get("annotations") or {}).get(SEEN, "").split()
        if len(seen) == 2:
            words += ["--seen-success-file", seen[0], "--seen-fingerprint", seen[1]]
        limits = {"--memory-limit": self._options.memory_limit, "--volume": self._options.volume}
        chosen = {option: value for option, value in limits.items() if value is not None}
        return _with_options(words, {"--termination-log": report, "--base": base, **chosen})


def _describe_kill(code: int, generation: str) -> str:
    """Return the report that a builder of ``generation`` would have made of the signal that killed it; else nothing."""
    number = code - SIGNALLED
    if number not in signal.valid_signals():
        return ""
    why = ", perhaps because it ran out of memory; lower --memory-limit" if number == signal.SIGKILL else ""
    message = f"the builder was killed by {signal.Signals(number).name}{why}"
    report = {"outcome": "failed", "generation": generation, "exitCode": code, "reason": "BuilderKilled"}
    return orjson.dumps({**report, "message": message}).decode()


def _make_pod(place: Place, owner: Object, existing: Mapping[str, Any]) -> Object:
    """Return a pod from the template of ``owner``, with the metadata of the ``existing`` one."""
    template, meta = owner["spec"]["template"], owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    metadata = {"namespace": place[0], "name": place[1], "labels": template["metadata"]["labels"]}
    metadata["ownerReferences"] = [{**reference, "controller": True}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**existing, **metadata}, "spec": template["spec"]}


def _write_files(folder: Path, files: Mapping[str, str], change: Callable[[str], str]) -> None:
    """Write ``files`` after ``change`` into ``folder``, each whole or not at all, and remove others."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path, content = folder / name, change(text).encode()
        with suppress(FileNotFoundError):
            if path.read_bytes() == content:
                continue
        unfinished = path.with_name(f".{name}")
        unfinished.write_bytes(content)
        unfinished.replace(path)
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()


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
        if mount == TMP:  # it is where folders of this machine may be
            continue
        path, local = mount["mountPath"], str(folder / mount["name"])
        words = [local + word.removeprefix(path) if f"{word}/".startswith(f"{path}/") else word for word in words]
    return words


def find_free_port(first: int, besides: int = 0) -> int:
    """Return the first free port from ``first`` on, except ``besides``; 0, any port, if there is none nearby."""
    for port in range(first, first + _NEXT_PORTS):
        with suppress(UsageError):
            if port != besides:
                listeners.check_free(HOST, port)
                return port
    return 0


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
            raise UsageError(error.message, hint=f"give another {option} (0 takes a free port)") from error


def _read_option(words: list[str], option: str) -> str:
    return words[words.index(option) + 1] if option in words else ""
