"""The router process of `lookupdb up`, the routing table that it reads, and which table it says is in effect."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, Final

import orjson

from lookupdb.errors import LookupdbError, UsageError
from lookupdb.local.child import Child, ChildFailed
from lookupdb.local.run_state import RunFolder
from lookupdb.loopback import proxy_handlers
from lookupdb.network import describe_socket_failure
from lookupdb.route import flags
from lookupdb.runtime import listeners
from lookupdb.spec import DatasetSpec

HOST: Final = "127.0.0.1"
STOP_SECONDS: Final = 10.0
CONFIRM_SECONDS: Final = 30.0
CONFIRM_POLL_SECONDS: Final = 0.05
RESP_PORT: Final = 6379
"""Redis' own."""
_NEXT_PORTS: Final = 100
"""So many are tried behind it: a Redis may have it, and each other `up` has one."""
_LOST_PORTS: Final = 10
"""So often another `up` may have taken the port that was free a moment before."""
_TABLE_FILE: Final = "routing-table.json"


class CutoverFailed(LookupdbError):
    """The router did not take over a routing table in time; the one before stays in effect."""

    reason = "CutoverFailed"


class LocalRouter:
    """One `lookupdb route`, fed through a routing table file in ``folder``.

    ``on_change`` is called when it was started again, with another process and admin port.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        port: int,
        resp_port: int | None,
        folder: RunFolder,
        on_change: Callable[[], None],
    ) -> None:
        """``resp_port``: where it speaks RESP; None is Redis' own port, or the next one that is free."""
        self._spec = spec
        self._port = port
        self._resp_port = resp_port
        self._folder = folder
        self._table_path = folder.path / _TABLE_FILE
        self._version = 0
        self._table: dict[str, Any] = {}
        """What was written last."""
        self._report: dict[str, Any] = {}
        self._found_port = 0
        """The port for RESP that was found free last, if it was for us to find one."""
        self._on_change = on_change
        self._child = Child("router", self._arguments(), folder.path, self._record_report, self._prepare)

    def _record_report(self, report: dict[str, Any]) -> None:
        previous, self._report = self._report, report
        if previous:
            self._on_change()

    def _prepare(self) -> list[str]:
        """Write the table again if somebody has removed it: without one, a router does not start. Returns the ports,
        which a router that is started again takes again. Raises NotWritten."""
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
            **flags.render_flags(self._spec.router),
            "--drain-seconds": 0,
        }
        return ["route", *(str(word) for pair in options.items() for word in pair)]

    def continue_versions(self, version: int) -> None:
        """Let the next table have a greater version than ``version``, which an earlier `up` has announced."""
        self._version = max(self._version, version)

    @property
    def has_started(self) -> bool:
        """Whether it has been ready once, so that its ports are known."""
        return bool(self._report)

    def has_table(self) -> bool:
        """Whether the file of the table is there."""
        return self._folder.has_file(self._table_path)

    @property
    def url(self) -> str:
        """The URL of the public port, once started."""
        return f"http://{HOST}:{self._report['port']}"

    @property
    def resp_port(self) -> int:
        """The port where clients of Redis ask, once started."""
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
        """The longest that a lookup takes: the deadline that the router was started with."""
        return self._spec.router.deadline_milliseconds / 1000

    async def start(self) -> None:
        """Start it and wait until it answers. A table must have been written. Raises ChildFailed."""
        for _ in range(_LOST_PORTS):
            try:
                return await self._child.start()
            except ChildFailed:
                if not self._found_port or _is_free(self._found_port):
                    raise
        await self._child.start()

    async def stop(self) -> None:
        """Stop it."""
        await self._child.stop(STOP_SECONDS)

    def write_table(self, active: dict[str, Any]) -> int:
        """Make ``active``, an entry of a routing table, the active generation; returns the table's version.

        Raises NotWritten: then the table before still stands.
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
        """Return when every worker answers from the table ``version``. Raises CutoverFailed after a while, in which the
        router may end and be started again. One that has no servers is ready only with this table, and tells its admin
        port then."""
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
        """Return what ``_versions`` returns, or no versions and why the router has not answered."""
        try:
            return self._versions(), None
        except (OSError, HTTPException, ValueError) as error:  # it may end in the middle of its answer
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
        """Return the versions of the tables that the workers answer from, None for a worker that has none."""
        url = f"{self.admin_url}/status"
        with urllib.request.build_opener(*proxy_handlers(url)).open(url, timeout=CONFIRM_SECONDS) as response:
            return [worker["report"].get("tableVersion") for worker in orjson.loads(response.read())["workers"]]


def find_free_port(first: int, *, besides: int = 0) -> int:
    """The first port from ``first`` on that can be listened on, not ``besides``; 0, which is a free one, if none of the
    next can."""
    ports = range(first, first + _NEXT_PORTS)
    return next((port for port in ports if port != besides and _is_free(port)), 0)


def _is_free(port: int) -> bool:
    try:
        listeners.check_free(HOST, port)
    except UsageError:
        return False
    return True
