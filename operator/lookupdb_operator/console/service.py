"""``lookupdb console``: the console of a cluster, with an admin port for health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from aiohttp import web

from lookupdb import __version__
from lookupdb.cli.options import NameList, log_format, option
from lookupdb.errors import UsageError
from lookupdb.process import listeners
from lookupdb.process.admin import AdminPort, MetricFamily, labelled_counter
from lookupdb.tokens import is_subject
from lookupdb_operator.cluster.client import Api, Keys, run_service
from lookupdb_operator.console.access import AccessMode, OpenAccess, ProxyAccess, TokenAccess
from lookupdb_operator.console.cluster_source import ClusterSource
from lookupdb_operator.console.login import Door
from lookupdb_operator.console.server import LOOPBACK, make_app
from lookupdb_operator.console.watch import Watch

log = logging.getLogger(__name__)

_MAX_CONNECTIONS: Final = 512
_GRACE_SECONDS: Final = 5.0
TOKEN: Final = "token"  # noqa: S105 - a choice
PROXY: Final = "proxy"
ANYONE: Final = "anyone"


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The command-line options."""

    access: str = TOKEN
    audience: str = ""
    subjects: tuple[str, ...] = ()
    password_file: Path | None = None
    namespaces: tuple[str, ...] = ()
    ca_file: str | None = None
    host: str = "127.0.0.1"
    port: int = 7074
    admin_port: int = 9090


class ConsoleMetrics:
    """Counts answers by their status."""

    def __init__(self) -> None:
        self._answers: Counter[int] = Counter()

    async def count(self, _request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Count ``response``, whichever middleware has made it."""
        self._answers[response.status] += 1

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the current metric families."""
        yield labelled_counter(
            "lookupdb_console_requests",
            "Requests answered, by HTTP status.",
            [({"code": str(code)}, count) for code, count in sorted(dict(self._answers).items())],
        )


class Console:
    """The parts that live as long as the console."""

    def __init__(self, options: ConsoleOptions, api: Api) -> None:
        """Raises UsageError if a port is taken or a file cannot be read."""
        self._api = api
        try:
            self.source = ClusterSource(api, options.namespaces, options.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"--ca-file {options.ca_file} cannot be read: {error}") from error
        self.watch = Watch(self.source)
        self.keys = Keys(api) if options.access == TOKEN else None
        self._door = Door(self._make_access(options), self.source, options.audience)
        self._listener = listeners.bind(options.host, options.port)
        self._admin_listener = listeners.bind_admin(options.host, options.admin_port)
        self.port, self.admin_port = map(listeners.bound_port, (self._listener, self._admin_listener))
        is_private = options.access == ANYONE and options.host in LOOPBACK
        self._hosts = LOOPBACK if is_private else None  # else a web page could read what it shows to anyone here
        self._metrics = ConsoleMetrics()
        self._tasks: list[asyncio.Task[None]] = []

    def _make_access(self, options: ConsoleOptions) -> AccessMode:
        if options.access == PROXY:
            assert options.password_file is not None
            return ProxyAccess(options.password_file)
        if self.keys is None:
            return OpenAccess()
        return TokenAccess(self.keys, options.audience, options.subjects, lambda: self.source.audiences)

    async def run(self, stopped: asyncio.Event) -> None:
        """Serve until ``stopped``."""
        probes = await AdminPort(
            explain_unready=self.explain_unready, status=self.describe, collectors=(self._metrics,)
        ).start(self._admin_listener)
        app = make_app(
            self.watch,
            middlewares=(self._door.middleware,),
            routes=self._door.routes,
            hosts=self._hosts,
        )
        app.on_response_prepare.append(self._metrics.count)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=_GRACE_SECONDS)
        await runner.setup()
        try:
            work = [self.source.run(), self.watch.run(), *([self.keys.run()] if self.keys else [])]
            self._tasks += map(asyncio.create_task, work)
            await web.SockSite(runner, self._listener, backlog=_MAX_CONNECTIONS).start()
            log.info("serving the console", extra={"port": self.port, "admin": self.admin_port})
            await stopped.wait()
        finally:
            await runner.cleanup()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await probes.cleanup()
            await self.source.close()
            await self._api.close()

    def explain_unready(self) -> str | None:
        """Return why the console is not ready, as a sentence; None if it is."""
        if any(task.done() for task in self._tasks):
            return "a task has ended because of a bug; see the log"
        if not self.source.is_synced:
            return "the datasets have not been listed yet"
        if self.keys is not None and not self.keys.current:
            return "the keys of service accounts have not been read yet"
        return None

    def describe(self) -> Mapping[str, Any]:
        """Return the members of /status."""
        return {
            "version": __version__,
            "pid": os.getpid(),
            "state": self.explain_unready() or "ready",
            "datasets": len(self.source.list_datasets()),
        }


async def run(options: ConsoleOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises ApiError if no cluster is configured, UsageError."""
    console, stopped = Console(options, await Api.connect(os.environ.get("KUBECONFIG"))), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    with contextlib.suppress(asyncio.CancelledError):
        await console.run(stopped)


# Its options, each also an environment variable.


@click.command()
@option(
    "--access",
    type=click.Choice([TOKEN, PROXY, ANYONE]),
    default=TOKEN,
    help="token: holders of a service account's token see what that allows. proxy: users of an authenticating proxy see"
    " all datasets. anyone: so does everyone who reaches the console.",
)
@option(
    "--audience",
    default="lookupdb:console",
    help="Accept tokens for this audience. Tokens for the audience of a dataset's spec.router.auth show that dataset.",
)
@option(
    "--subjects",
    type=NameList(),
    default="",
    help="Service accounts that see all datasets: NAMESPACE/NAME or NAMESPACE/*. Others see those of their namespace,"
    " and those that list them in spec.router.auth.serviceAccounts.subjects.",
)
@option(
    "--password-file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="With --access=proxy: file with the password that the proxy sends, as Authorization: Basic USER:PASSWORD.",
)
@option("--namespaces", type=NameList(), default="", help="Namespaces of the datasets.  [default: all]")
@option(
    "--ca-file",
    type=click.Path(dir_okay=False),
    default=None,
    help="File with the authorities of routers' certificates.  [default: the system's]",
)
@option("--host", default="127.0.0.1", help="Address to listen on. * or :: means all addresses, IPv4 and IPv6.")
@option("--port", type=click.IntRange(0, 65535), default=7074, help="Port of the pages. 0 takes a free port.")
@option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    default=9090,
    help="Port for health, status and metrics. 0 takes a free port.",
)
@log_format
def command(**values: Any) -> None:
    """Serve read-only pages about the datasets of a cluster.

    It watches LookupDatasets and pods, and reads the metrics of routers and shard servers, with the pod's service
    account or KUBECONFIG. Lookups go to routers with the visitor's own token. `lookupdb up` serves the same pages about
    its datasets.
    """
    run_service(run(options(**values)))


def options(**values: Any) -> ConsoleOptions:
    """Return the checked options in ``values``. Raises UsageError."""
    if wrong := [subject for subject in values["subjects"] if not is_subject(subject)]:
        raise UsageError(
            f"--subjects: {wrong[0][:200]!r} is no service account", hint="use NAMESPACE/NAME or NAMESPACE/*"
        )
    if values["access"] == TOKEN and not values["audience"]:
        raise UsageError("--audience is empty", hint="for example --audience lookupdb:console")
    if values["access"] == PROXY and values["password_file"] is None:
        raise UsageError("--access=proxy needs --password-file", hint="without it, anyone could claim to be the proxy")
    return ConsoleOptions(**values)
