"""Run the router and the shard servers of `up`, cut over between rollouts, and write the files with their addresses."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import CorruptFile, LookupdbError, StoreError, UsageError
from lookupdb.manifest import FILE_NAME, Manifest
from lookupdb.network import describe_socket_failure, proxy_handlers
from lookupdb.process import listeners
from lookupdb.process.daemon_calls import call_in_thread
from lookupdb.router import budget
from lookupdb.store import StoredDataset
from lookupdb.store.dataset import ANNOUNCEMENT_NOTE, read_announcement, verify_shard_file, write_announcement
from lookupdb.up.child import Child, ChildFailed
from lookupdb.up.run_state import NotWritten, RetriedWrite, RunFolder
from lookupdb.wording import format_count

# The router process, the routing table that it reads, and the check that the router uses it.


HOST: Final = "127.0.0.1"
STOP_SECONDS: Final = 10.0
CONFIRM_SECONDS: Final = 30.0
CONFIRM_POLL_SECONDS: Final = 0.05
RESP_PORT: Final = 6379
"""The default port of Redis."""
_NEXT_PORTS: Final = 100
"""Number of ports to try, from RESP_PORT on: a Redis server or another `up` may use the first ones."""
_LOST_PORTS: Final = 10
"""Number of retries if another process takes the port between its check and the start of the router."""
_TABLE_FILE: Final = "routing-table.json"


class CutoverFailed(LookupdbError):
    """The router did not take over a routing table in time; the old one stays in effect."""

    reason = "CutoverFailed"


class LocalRouter:
    """One `lookupdb route` that reads its routing table from a file in ``folder``.

    ``on_change`` is called after a restart, which changes the process id and the admin port.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        port: int,
        resp_port: int | None,
        folder: RunFolder,
        on_change: Callable[[], None],
    ) -> None:
        """``resp_port``: its port for RESP; None takes the first free port from RESP_PORT on."""
        self._spec = spec
        self._port = port
        self._resp_port = resp_port
        self._folder = folder
        self._table_path = folder.path / _TABLE_FILE
        self._version = 0
        self._table: dict[str, Any] = {}
        """The table that was written last."""
        self._report: dict[str, Any] = {}
        self._found_port = 0
        """The port for RESP that ``find_free_port`` chose last; 0 if the user gave one."""
        self._on_change = on_change
        self._child = Child("router", self._arguments(), folder.path, self._record_report, self._prepare)

    def _record_report(self, report: dict[str, Any]) -> None:
        previous, self._report = self._report, report
        if previous:
            self._on_change()

    def _prepare(self) -> list[str]:
        """Write the table again if it was removed, because a router does not start without it. Returns the options for
        the ports, which stay the same after a restart. Raises NotWritten."""
        if not self.has_table():
            self._folder.write(_TABLE_FILE, self._table)
        resp_port = self._report.get("resp", self._resp_port)
        if resp_port is None:
            resp_port = self._found_port = find_free_port(RESP_PORT, besides=self._port)
        return ["--port", str(self._report.get("port", self._port)), "--resp-port", str(resp_port)]

    def _arguments(self) -> list[str]:
        options = {
            "--table": self._table_path,
            "--host": HOST,
            "--admin-port": 0,
            **budget.render_flags(self._spec.router),
            "--drain-seconds": 0,
        }
        return ["route", *(str(word) for pair in options.items() for word in pair)]

    def continue_versions(self, version: int) -> None:
        """Give the next table a greater version than ``version``, which an earlier `up` announced."""
        self._version = max(self._version, version)

    @property
    def has_started(self) -> bool:
        """True if the router has been ready once, so that its ports are known."""
        return bool(self._report)

    def has_table(self) -> bool:
        """Return whether the table's file exists."""
        return self._folder.has_file(self._table_path)

    @property
    def url(self) -> str:
        """The URL of the public port, once started."""
        return f"http://{HOST}:{self._report['port']}"

    @property
    def resp_port(self) -> int:
        """The port for Redis clients, once started."""
        port: int = self._report["resp"]
        return port

    @property
    def admin_url(self) -> str:
        """The URL of the admin port, once started."""
        return f"http://{HOST}:{self._report['admin']}"

    @property
    def pid(self) -> int | None:
        """The process id of the router's supervisor."""
        return self._child.pid

    @property
    def deadline_seconds(self) -> float:
        """The longest duration of a lookup: the deadline that the router was started with."""
        return self._spec.router.deadline_milliseconds / 1000

    async def start(self) -> None:
        """Start the router and wait until it is ready. A table must have been written. Raises ChildFailed."""
        for _ in range(_LOST_PORTS):
            try:
                return await self._child.start()
            except ChildFailed:
                if not self._found_port or _is_free(self._found_port):
                    raise
        await self._child.start()

    async def stop(self) -> None:
        """Stop the router."""
        await self._child.stop(STOP_SECONDS)

    def write_table(self, active: dict[str, Any]) -> int:
        """Write a table in which the entry ``active`` is the active generation. Returns the table's version.

        Raises NotWritten; then the old table is unchanged.
        """
        self._version += 1
        spec = self._spec
        table = {
            "formatVersion": 1,
            "version": self._version,
            "dataset": {"namespace": spec.namespace, "name": spec.name, "uid": spec.uid},
            "active": active["generation"],
            "generations": [active],
        }
        self._folder.write(_TABLE_FILE, table)
        self._table = table
        return self._version

    async def wait_until_confirmed(self, version: int) -> None:
        """Wait until every worker uses the table ``version``. Raises CutoverFailed after CONFIRM_SECONDS. The router
        may restart meanwhile. Without servers it becomes ready only with this table, and then reports its admin
        port."""
        versions: list[int | None] = []
        failure: Exception | None = None
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                while not versions or any(number is None or number < version for number in versions):
                    await asyncio.sleep(CONFIRM_POLL_SECONDS)
                    versions, failure = await asyncio.to_thread(self._look_for_versions)
        except TimeoutError as error:
            raise self._unconfirmed_error(version, versions, failure) from error

    def _look_for_versions(self) -> tuple[list[int | None], Exception | None]:
        """Return the result of ``_versions``, or no versions and the error if the router did not answer."""
        try:
            return self._versions(), None
        except (OSError, HTTPException, ValueError) as error:  # it may end while it sends the answer
            return [], error

    def _unconfirmed_error(self, version: int, versions: list[int | None], failure: Exception | None) -> CutoverFailed:
        within = f"within {CONFIRM_SECONDS:.0f} s"
        if failure is None:
            found = f"it has {versions}" if versions else "its admin port does not answer"
            return CutoverFailed(
                f"the router did not take over routing table {version} {within}, {found}",
                hint=f"{self.admin_url}/status says why",
            )
        cause = failure.reason if isinstance(failure, urllib.error.URLError) else failure
        described = cause if isinstance(cause, str) else describe_socket_failure(cause, self.admin_url)
        return CutoverFailed(
            f"the router does not say {within} whether it has taken over routing table {version}: {described}",
            hint=f"the router's log, {self._child.log_path}, may say why",
        )

    def _versions(self) -> list[int | None]:
        """Return the version of the table that each worker uses, None for a worker without a table."""
        url = f"{self.admin_url}/status"
        with urllib.request.build_opener(*proxy_handlers(url)).open(url, timeout=CONFIRM_SECONDS) as response:
            return [worker["report"].get("tableVersion") for worker in orjson.loads(response.read())["workers"]]


def find_free_port(first: int, *, besides: int = 0) -> int:
    """Return the first free port from ``first`` on, except ``besides``. If all _NEXT_PORTS are in use, return 0, for
    which the system chooses a port."""
    ports = range(first, first + _NEXT_PORTS)
    return next((port for port in ports if port != besides and _is_free(port)), 0)


def _is_free(port: int) -> bool:
    try:
        listeners.check_free(HOST, port)
    except UsageError:
        return False
    return True


# The logs of shard servers: they are removed with their rollout, except those of the last ones.


KEPT_ROLLOUTS: Final = 3
"""Number of ended rollouts whose logs are kept, to find out why a rollout failed."""
_FILE: Final = re.compile(r"(r[0-9]+)-shard-[0-9]+-[0-9]+\.(?:log|ready)")


def remove_old_logs(folder: Path, running: Collection[str]) -> None:
    """Remove from ``folder`` the logs of all rollouts except the ``running`` ones and the last KEPT_ROLLOUTS others.
    Files that cannot be removed stay."""
    with suppress(OSError):
        for name in find_old_logs(dict(_look_around(folder)), running):
            with suppress(OSError):
                (folder / name).unlink()


def find_old_logs(files: Mapping[str, float], running: Collection[str], keep: int = KEPT_ROLLOUTS) -> list[str]:
    """Return the names in ``files`` (name → time of its last write) of rollouts that are neither ``running`` nor among
    the ``keep`` others that wrote last. The number of a rollout does not show its age: each `up` counts from r1."""
    written: dict[str, float] = {}
    rollout_of = {name: match[1] for name in files if (match := _FILE.fullmatch(name))}
    for name, rollout in rollout_of.items():
        if rollout not in running:
            written[rollout] = max(files[name], written.get(rollout, files[name]))
    old = sorted(written, key=lambda rollout: written[rollout], reverse=True)[keep:]
    return sorted(name for name, rollout in rollout_of.items() if rollout in old)


def _look_around(folder: Path) -> Iterator[tuple[str, float]]:
    for path in folder.iterdir():
        with suppress(OSError):
            yield path.name, path.stat().st_mtime


# The check of a generation's files when its servers do not restart. A server may also fail because memory, processes or
# disk space run out, and then another generation would fail too. So the files themselves are verified.


FAILED_STARTS: Final = 3
"""Number of consecutive failed starts after which the shard's file is verified. Then at twice as many each time,
because the whole file is read."""


class DamageWatch:
    """Finds out whether the files of the served generation in ``folder`` are damaged."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._due: dict[int, int] = {}
        """The number of failed starts of each shard at which its file is verified next."""
        self.damage: str | None = None
        """The reason why the generation cannot be served; None if no damage is known."""

    def look(self, failed_starts: Sequence[int]) -> None:
        """Verify the files of shards that failed to start too often in a row. ``failed_starts`` has the number for each
        shard. A generation whose servers start again is not damaged. Blocks: call it in a thread."""
        if max(failed_starts) < FAILED_STARTS:
            self.damage = None
            self._due.clear()
        for shard, failures in enumerate(failed_starts):
            if self.damage is None and failures >= self._due.get(shard, FAILED_STARTS):
                self._due[shard] = 2 * failures
                self.damage = find_damage(self._folder, self._manifest, shard)


def find_damage(folder: Path, manifest: Manifest, shard: int) -> str | None:
    """Return the damage of the files in ``folder`` of one shard of ``manifest``; None if there is none, or if that is
    unknown."""
    path = folder / FILE_NAME
    try:
        Manifest.from_json(path.read_bytes(), str(path))
        verify_shard_file(folder / manifest.shards[shard].file, manifest.shards[shard])
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} is missing"
    except CorruptFile as error:
        return error.message
    except (OSError, StoreError):
        return None
    return None


# The shard processes of one generation: a rollout as in a cluster, with processes instead of pods.


MAX_CONCURRENT_STARTS: Final = max(4, min(os.cpu_count() or 1, 16))
"""Largest number of servers that start at the same time. More would slow each other and the reaction to Ctrl-C."""
PROGRESS_SECONDS: Final = 3.0


class LocalRollout:
    """``replicas`` shard servers for each shard of one generation.

    ``on_change`` is called after a server has restarted, on another port. ``say`` prints the progress while many
    servers start.
    """

    def __init__(
        self,
        name: str,
        spec: DatasetSpec,
        manifest: Manifest,
        generation: Path,
        directory: Path,
        on_change: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self.manifest = manifest
        self.damage_watch = DamageWatch(generation, manifest)
        self._on_change = on_change
        self._say = say
        self._reports: dict[tuple[int, int], dict[str, Any]] = {}
        serve = ["serve", str(generation), "--workers", str(spec.serving_workers)]
        private = ["--host", HOST, "--port", "0", "--admin-port", "0", "--drain-seconds", "0"]
        positions = [(shard, replica) for shard in range(len(manifest.shards)) for replica in range(spec.replicas)]
        self._children = {
            position: Child(
                f"{name}-shard-{position[0]}-{position[1]}",
                [*serve, "--shard", str(position[0]), *private],
                directory,
                partial(self._record_report, position),
            )
            for position in positions
        }

    def _record_report(self, position: tuple[int, int], report: dict[str, Any]) -> None:
        """Keep the report of the server at ``position`` (shard, replica), which has become ready, perhaps after a
        restart."""
        is_restart = position in self._reports
        endpoints = [f"{HOST}:{port}" for port in report["ports"]]
        self._reports[position] = {"endpoints": endpoints, "admin": f"http://{HOST}:{report['admin']}"}
        if is_restart:
            self._on_change()

    async def start(self) -> None:
        """Start all servers and wait until each is ready. Raises ChildFailed; then none is running."""
        starts_at_once = asyncio.Semaphore(MAX_CONCURRENT_STARTS)
        try:
            async with asyncio.TaskGroup() as group:
                progress = group.create_task(self._report_progress())
                starts = [group.create_task(_start(child, starts_at_once)) for child in self._children.values()]
                await asyncio.gather(*starts)
                progress.cancel()
        except ExceptionGroup as failures:
            await self.stop()
            raise failures.exceptions[0] from None
        except BaseException:
            await self.stop()
            raise

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            self._say(f"starting shard servers: {len(self._reports):,} of {len(self._children):,} are ready")

    async def stop(self) -> None:
        """Stop all servers."""
        await asyncio.gather(*(child.stop(STOP_SECONDS) for child in self._children.values()))

    def failed_starts(self) -> list[int]:
        """Return the number of consecutive failed starts for each shard: the largest of its servers."""
        starts = [0] * len(self.manifest.shards)
        for (shard, _), child in self._children.items():
            starts[shard] = max(starts[shard], child.failed_starts)
        return starts

    def servers(self) -> list[dict[str, Any]]:
        """Return the current shard, replica, process id, RESP endpoints and admin URL of each server."""
        return [
            {"shard": shard, "replica": replica, "pid": child.pid, **self._reports[shard, replica]}
            for (shard, replica), child in self._children.items()
        ]

    def table_entry(self) -> dict[str, Any]:
        """Return the entry of this rollout in the routing table."""
        manifest = self.manifest
        shards: list[dict[str, list[str]]] = [{"endpoints": []} for _ in manifest.shards]
        for (shard, _), report in sorted(self._reports.items()):
            shards[shard]["endpoints"] += report["endpoints"]
        return {
            "generation": manifest.generation,
            "rollout": self.name,
            "records": manifest.totals.records,
            "bytes": manifest.totals.file_bytes,
            "builtAt": manifest.built_at,
            "content": hashlib.sha256("".join(shard.sha256 for shard in manifest.shards).encode()).hexdigest(),
            "normalize": list(manifest.normalize),
            "valueFormat": manifest.value_format,
            "shards": shards,
        }


async def _start(child: Child, starts_at_once: asyncio.Semaphore) -> None:
    async with starts_at_once:
        await child.start()


DRAIN_MARGIN_SECONDS: Final = 0.2
"""Added to the longest duration of a lookup: the wait before the old rollout's servers are stopped."""
RESTORE_SECONDS: Final = 1.0
"""Interval of the check that the files of the run folder exist."""
DAMAGE_SECONDS: Final = 1.0
"""Interval of the check for servers that do not restart."""


class Serving:
    """The processes of one dataset. ``say`` prints a line for the user."""

    def __init__(
        self,
        spec: DatasetSpec,
        dataset: StoredDataset,
        folder: RunFolder,
        port: int,
        resp_port: int | None,
        watch: bool,
        say: Callable[[str], None],
    ) -> None:
        self.spec = spec
        """The spec that is served, or is about to be."""
        self._dataset = dataset
        self._folder = folder
        self.watch = watch
        """True if manifest and source are checked for changes while it serves."""
        self._say = say
        self._router = LocalRouter(spec, port, resp_port, folder, self._note_restart)
        self._table = RetriedWrite("the routing table", self._write_table, self._tell)
        self._state = RetriedWrite(str(folder.state_file), self._write_state, self._tell)
        self._announcement = RetriedWrite(ANNOUNCEMENT_NOTE, self._write_announcement, self._tell)
        self._confirmed: tuple[str, int] | None = None
        """The generation that the router serves, and the version of the first table that made it active."""
        self._active: LocalRollout | None = None
        self._rollouts: list[LocalRollout] = []
        """All rollouts that may have processes."""
        self._begun = 0

    @property
    def manifest(self) -> Manifest:
        """The manifest of the active generation, once there is one."""
        assert self._active is not None
        return self._active.manifest

    @property
    def damage(self) -> str | None:
        """The damage that keeps servers of the active generation from restarting; None if none is known."""
        return self._active.damage_watch.damage if self._active else None

    def describe_active(self) -> str:
        """Return the end of a message: the active generation keeps serving, or is damaged."""
        return f"{self.manifest.generation} {'is damaged' if self.damage else 'keeps serving'}"

    @property
    def url(self) -> str:
        """The router's URL, once started."""
        return self._router.url

    @property
    def resp_port(self) -> int:
        """The router's port for RESP, once started."""
        return self._router.resp_port

    async def load(self, generation: str) -> None:
        """Start the servers of the first generation. Raises ChildFailed; then another generation may be loaded."""
        self._active = await self._roll_out(generation, self.spec)

    async def start(self) -> None:
        """Start the router for the loaded generation. Raises ChildFailed and NotWritten."""
        assert self._active is not None
        self._router.continue_versions(self._find_announced_version())
        version = self._router.write_table(self._active.table_entry())
        await self._router.start()
        self._state.run()
        self._announce(version)

    async def replace(self, generation: str, spec: DatasetSpec) -> None:
        """Serve ``generation`` instead of the active one, which keeps serving if that fails. Raises LookupdbError."""
        await self._cut_over(await self._roll_out(generation, spec), spec)

    async def keep_files(self) -> None:
        """Write files of the run folder again when they are removed. Raises FolderTaken if another `up` owns it now."""
        while True:
            await asyncio.sleep(RESTORE_SECONDS)
            self._folder.restore()
            if not self._router.has_table():
                self._table.run()
            if not self._folder.has_file(self._folder.state_file):
                self._state.run()

    async def keep_servers(self) -> None:
        """Print when the files of the active generation are damaged, and when its servers start again."""
        while True:
            await asyncio.sleep(DAMAGE_SECONDS)
            assert self._active is not None
            await self._look_for_damage(self._active)

    async def _look_for_damage(self, rollout: LocalRollout) -> None:
        watch = rollout.damage_watch
        before = watch.damage
        await call_in_thread(watch.look, rollout.failed_starts())
        if watch.damage == before or rollout is not self._active:
            return
        generation = rollout.manifest.generation
        if watch.damage is None:
            self._tell(f"the servers of {generation} start again")
            return
        remedy = "it is built again" if self.watch else "restart `lookupdb up` to build it again"
        self._tell(f"{generation} cannot be served any more: {watch.damage}\n  {remedy}")

    async def end(self) -> None:
        """Stop all processes in order, even if files cannot be removed."""
        self._table.close()
        self._announcement.close()
        self._state.close()  # or a server that restarts would write the file again
        try:
            self._folder.remove_state()
        except OSError as error:
            self._tell(f"{self._folder.state_file} is not removed: {error.strerror or error}")
        try:
            await self._router.stop()
        finally:
            await asyncio.gather(*(rollout.stop() for rollout in self._rollouts))

    async def _roll_out(self, generation: str, spec: DatasetSpec) -> LocalRollout:
        self._begun += 1
        manifest = self._dataset.manifest(generation)
        path = self._dataset.local_path(generation)
        assert path is not None, "up's store is a directory"
        rollout = LocalRollout(
            f"r{self._begun}", spec, manifest, path, self._folder.path, self._update_endpoints, self._say
        )
        self._rollouts.append(rollout)
        self._remove_old_logs()
        try:
            await rollout.start()
        except Exception:  # ``start`` has stopped its servers
            self._rollouts.remove(rollout)
            raise
        totals = manifest.totals
        self._say(
            f"{spec.name}: {generation} is loaded: {format_count(totals.records, 'record')} in "
            f"{format_count(len(manifest.shards), 'shard')}, {totals.file_bytes / (1 << 20):,.1f} MiB"
        )
        return rollout

    async def _cut_over(self, candidate: LocalRollout, spec: DatasetSpec) -> None:
        """Replace the routing table; stop the old rollout when no request to it can be in flight any more."""
        old, self._active = self._active, candidate  # first, so that every later table names the candidate
        assert old is not None
        try:
            version = self._router.write_table(candidate.table_entry())
            await self._router.wait_until_confirmed(version)
        except NotWritten:  # the old table is unchanged
            self._active = old
            await self._retire(candidate)
            raise
        except CutoverFailed:
            self._active = old
            try:
                await self._table.run_to_success()  # first: the router may use the candidate
            finally:
                await self._retire(candidate)
            raise
        self.spec = spec
        self._state.run()
        self._announce(version)
        await asyncio.sleep(self._router.deadline_seconds + DRAIN_MARGIN_SECONDS)
        await self._retire(old)

    async def _retire(self, rollout: LocalRollout) -> None:
        """Stop ``rollout``. If this is interrupted, ``end`` stops it."""
        await rollout.stop()
        self._rollouts.remove(rollout)
        self._remove_old_logs()

    def _remove_old_logs(self) -> None:
        remove_old_logs(self._folder.path, [rollout.name for rollout in self._rollouts])

    def _update_endpoints(self) -> None:
        """Write the servers' current addresses. Raises nothing: an error would end the task that keeps the server."""
        self._table.run()
        self._note_restart()

    def _note_restart(self) -> None:
        """Write the state, unless the router has yet to start: it is written then."""
        if self._router.has_started:
            self._state.run()

    def _write_table(self) -> None:
        """Write the addresses of the active generation's servers. Raises NotWritten."""
        if self._active:
            self._router.write_table(self._active.table_entry())

    def _write_state(self) -> None:
        """Write all addresses: at startup and after each restart of a process. Raises NotWritten."""
        if self._active:
            redis = f"redis://{HOST}:{self._router.resp_port}"
            urls = {"url": self._router.url, "redis": redis, "admin": self._router.admin_url}
            router = {**urls, "router": self._router.pid}
            serving = {"generation": self._active.manifest.generation, "watch": self.watch}
            self._folder.write_state({**router, **serving, "shards": self._active.servers()})

    def _announce(self, version: int) -> None:
        """Announce in the store what the router has confirmed. If the store cannot be written, serving continues."""
        self._confirmed = (self.manifest.generation, version)
        self._announcement.run()

    def _write_announcement(self) -> None:
        """Write the announcement. Raises NotWritten."""
        if self._confirmed is None:
            return
        generation, version = self._confirmed
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        try:
            write_announcement(self._dataset, self.spec.uid, generation, version, now)
        except LookupdbError as error:
            hint = error.hint or "let this user write there: `lookupdb sync` reads it"
            raise NotWritten(f"{ANNOUNCEMENT_NOTE} cannot be written: {error.message}", hint=hint) from error

    def _find_announced_version(self) -> int:
        """Return the version that an earlier `up` announced, or 0: versions only grow. Raises StoreError."""
        try:
            standing = read_announcement(self._dataset)
        except CorruptFile as error:
            self._tell(f"{error.message}; it is written again")
            return 0
        return 0 if standing is None else standing.version

    def _tell(self, line: str) -> None:
        self._say(f"{self.spec.name}: {line}")
