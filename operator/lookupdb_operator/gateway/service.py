"""Start, connect and stop the parts of the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from lookupdb import __version__, disk
from lookupdb.account_tokens import Caller, TokenCache
from lookupdb.cli.options import Size, log_format, option
from lookupdb.errors import UsageError
from lookupdb.process import listeners
from lookupdb.process.admin import AdminPort, ProbeServer
from lookupdb.process.memory import private_bytes
from lookupdb.store.dataset import check_cluster_id
from lookupdb.store.objects import PART_BYTES
from lookupdb.wording import strip_secrets
from lookupdb_operator.cluster.api import ApiError
from lookupdb_operator.cluster.client import Api, Keys, run_service
from lookupdb_operator.cluster.cluster import Cluster
from lookupdb_operator.gateway.credentials import StoreClient
from lookupdb_operator.gateway.request import Access
from lookupdb_operator.gateway.server import KEEPALIVE_SECONDS, Handlers, Server
from lookupdb_operator.gateway.transfers import (
    IDLE_SECONDS,
    SHORT_SECONDS,
    Admission,
    Budget,
    GatewayMetrics,
    Objects,
    Reads,
    Room,
    Writes,
)

log = logging.getLogger(__name__)

_CONNECTIONS_PER_REQUEST: Final = 4
"""Clients keep idle connections."""
_SYSTEM: Final = "kube-system"
_RETRY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The command-line options, and settings for tests."""

    store: str
    audiences: tuple[str, ...]
    credentials: Path | None = None
    cluster: str = ""
    """Empty: the uid of the kube-system namespace."""
    announcer: Caller | None = None
    """The service account that writes announcements of datasets."""
    redirects: bool = False
    host: str = "127.0.0.1"
    port: int = 7071
    admin_port: int = 9090
    max_requests: int = 256
    memory: int = 256 << 20
    """Bytes of bodies in memory at once."""
    notice_seconds: float = 3.0
    """Seconds after SIGTERM in which new clients are still accepted, because the cluster still sends them."""
    drain_seconds: float = 20.0
    idle_seconds: float = IDLE_SECONDS
    short_seconds: float = SHORT_SECONDS
    keepalive_seconds: float = KEEPALIVE_SECONDS
    part_bytes: int = PART_BYTES
    look_seconds: float = 5.0
    """Seconds between checks of the credentials."""


class Gateway:
    """The parts that live as long as the gateway."""

    def __init__(self, options: GatewayOptions, api: Api) -> None:
        """Raises StoreError if the store cannot be used, and UsageError if a port is taken."""
        self._options = options
        self._api = api
        self._client = StoreClient(options.store, options.credentials)
        self.keys = Keys(api)
        self.metrics = GatewayMetrics()
        self.admission = Admission(options.max_requests)
        short = options.memory // 4
        self.short_budget = Budget(short)
        self.budget = Budget(options.memory - short)
        self._cluster = options.cluster and check_cluster_id(options.cluster)
        self._admin_listener = listeners.bind_admin(options.host, options.admin_port)
        self.admin_port = listeners.bound_port(self._admin_listener)
        self.server: Server | None = None
        self._probes: ProbeServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_draining = False

    async def start(self) -> None:
        """Open the admin port at once, and the client port once the cluster's id is known; ready once the keys are."""
        self._register_gauges()
        self._probes = await AdminPort(
            explain_unready=self.explain_unready, status=self.describe, collectors=(self.metrics,)
        ).start(self._admin_listener)
        self._tasks.append(asyncio.create_task(self.keys.run(), name="keys"))
        self._tasks.append(asyncio.create_task(self._client.run(self._options.look_seconds), name="credentials"))
        self._cluster = self._cluster or await self._ask_cluster_id()
        self.server = self._make_server()
        await self.server.open()
        log.info(
            "serving the store",
            extra={"cluster": self._cluster, "port": self.server.port, "admin": self.admin_port},
        )

    def _make_server(self) -> Server:
        options = self._options
        objects = Objects(self._client)
        access = Access(self._cluster, options.announcer)
        room = Room(self.budget, self.short_budget, self.metrics, access, options.idle_seconds, options.short_seconds)
        handlers = Handlers(
            access=access,
            keys=self.keys,
            tokens=TokenCache(self.keys, options.audiences, time.time),
            admission=self.admission,
            reads=Reads(objects, room, redirects=options.redirects),
            writes=Writes(objects, room, part_bytes=options.part_bytes),
            metrics=self.metrics,
        )
        return Server(
            handlers.handle,
            host=options.host,
            port=options.port,
            max_connections=listeners.limit_connections(
                _CONNECTIONS_PER_REQUEST * options.max_requests,
                disk.raise_limit() - 2 * options.max_requests,  # an upload has two connections to the store
            ),
            keepalive_seconds=options.keepalive_seconds,
        )

    async def _ask_cluster_id(self) -> str:
        """Return the uid of namespace kube-system, once the API server is available."""
        cluster = Cluster(self._api)
        while True:
            try:
                return check_cluster_id(await cluster.namespace_uid(_SYSTEM))
            except ApiError as error:
                log.warning("%s; retrying in %.0f s", error, _RETRY_SECONDS)
                await asyncio.sleep(_RETRY_SECONDS)

    def _register_gauges(self) -> None:
        self.metrics.gauges |= {
            "lookupdb_gateway_requests_in_flight": ("Requests in flight.", lambda: self.admission.in_flight),
            "lookupdb_gateway_connections": (
                "Open client connections.",
                lambda: self.server.connections if self.server else 0,
            ),
            "lookupdb_gateway_budget_bytes": (
                "Memory budget for request bodies, in bytes.",
                lambda: self.budget.total + self.short_budget.total,
            ),
            "lookupdb_gateway_budget_used_bytes": (
                "Bytes of the memory budget in use.",
                lambda: self.budget.used + self.short_budget.used,
            ),
            "lookupdb_gateway_keys_timestamp_seconds": (
                "Time when the keys of service accounts were last read.",
                lambda: self.keys.read_timestamp,
            ),
            "lookupdb_gateway_private_bytes": (
                "Memory that the process alone owns, dirty or in swap.",
                lambda: private_bytes(os.getpid()),
            ),
            "lookupdb_gateway_ready": (
                "1 if the gateway is ready and not draining, otherwise 0.",
                lambda: float(self.explain_unready() is None),
            ),
        }

    def explain_unready(self) -> str | None:
        """Return why the gateway is not ready, as a sentence; None if it is."""
        if self._is_draining:
            return "draining"
        if any(task.done() for task in self._tasks):
            return "a task has ended because of a bug; see the log"
        if self.server is None:
            return "the cluster's id is not known yet"
        if not self.keys.current:
            return "the keys of service accounts have not been read yet"
        return None

    def describe(self) -> Mapping[str, Any]:
        """Return the members of /status."""
        return {
            "version": __version__,
            "pid": os.getpid(),
            "state": self.explain_unready() or "ready",
            "store": strip_secrets(self._options.store),
            "cluster": self._cluster,
            "audiences": list(self._options.audiences),
            "reads": "redirect" if self._options.redirects else "stream",
            "keys": len(self.keys.current),
            "keysAgeSeconds": self.keys.age,
            "requestsInFlight": self.admission.in_flight,
            "connections": self.server.connections if self.server else 0,
        }

    async def drain(self) -> None:
        """Announce the shutdown, and finish requests in flight."""
        self._is_draining = True
        if self.server:
            await asyncio.sleep(self._options.notice_seconds)
            await self.server.close(self._options.drain_seconds)

    async def close(self) -> None:
        """Close everything. Call ``drain`` first."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._probes:
            await self._probes.cleanup()
        else:
            self._admin_listener.close()
        await self._api.close()


async def run(options: GatewayOptions) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal stops the drain. Raises ApiError if no cluster is
    configured, StoreError or UsageError."""
    gateway = Gateway(options, await Api.connect(os.environ.get("KUBECONFIG")))
    loop = asyncio.get_running_loop()
    begin, end = asyncio.Event(), asyncio.Event()

    def note_signal() -> None:
        (end if begin.is_set() else begin).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, note_signal)
    starting = asyncio.create_task(gateway.start(), name="start")
    try:
        await _wait_first(begin.wait(), starting)
        if starting.done():
            starting.result()
            await begin.wait()
        starting.cancel()
        await _wait_first(end.wait(), asyncio.ensure_future(gateway.drain()))
    finally:
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        await gateway.close()


async def _wait_first(event: Any, task: asyncio.Future[None]) -> None:
    """Wait until ``event`` happens or ``task`` ends."""
    waiting = asyncio.ensure_future(event)
    try:
        await asyncio.wait((waiting, task), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


# ``lookupdb gateway``: its options, each also an environment variable.


_STORES: Final = ("s3://", "gs://", "az://")
_ACCOUNT: Final = re.compile(r"[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}")
_LEAST_MEMORY: Final = 192 << 20
"""An eighth of the files' share must hold two parts of an upload."""


@click.command()
@option("--store", required=True, help="URL of the store: s3://bucket/path, gs://… or az://…")
@option(
    "--credentials",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder of the mounted Secret with the store's credentials: one file for each environment variable, such as "
    "AWS_ACCESS_KEY_ID. It is read again when it changes.  [default: environment variables only]",
)
@option(
    "--audience",
    "audiences",
    multiple=True,
    required=True,
    help="Accept tokens for this audience: lookupdb-store:NAMESPACE/RELEASE. Can be repeated.",
)
@option(
    "--announcer",
    default="",
    metavar="NAMESPACE/SERVICEACCOUNT",
    help="The operator's service account. It may read and write the announcements of datasets (active.json) in all"
    " namespaces, and nothing else.  [default: nobody writes announcements]",
)
@option("--cluster-id", default="", help="This cluster's folder in the store.  [default: uid of namespace kube-system]")
@option(
    "--reads",
    type=click.Choice(["stream", "redirect"]),
    default="stream",
    help="stream: send shard files through the gateway. redirect: send clients a signed URL for one file in the store.",
)
@option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on. * or :: means all addresses, IPv4 and IPv6.",
)
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7071,
    help="Port for clients. 0 takes a free port.",
)
@option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    default=9090,
    help="Port for health, status and metrics. 0 takes a free port.",
)
@option(
    "--max-requests",
    type=click.IntRange(2, 100_000),
    default=256,
    help="Maximum number of requests in flight. A quarter is reserved for short requests. One namespace may have half "
    "of what others leave.",
)
@option(
    "--body-memory",
    type=Size(),
    default="256MiB",
    help="Memory budget for request and response bodies, divided among namespaces as requests are. Give the container "
    "128 MiB more.",
)
@log_format
def command(**values: Any) -> None:
    """Give every namespace of the cluster access to its own part of the store, and to nothing else.

    Clients send a token of their service account for --audience. The gateway verifies it with the cluster's public
    keys, which it reads from the API server with the pod's service account or KUBECONFIG. A client may read and write
    only the folder of the namespace in its token. Only the gateway has the store's credentials.

    The admin port serves /healthz, /readyz, /status and /metrics. On SIGTERM, the gateway becomes unready, finishes
    requests in flight, and exits.
    """
    run_service(run(options(**values)))


def _parse_announcer(text: str) -> Caller | None:
    """Raises UsageError."""
    if not text:
        return None
    namespace, slash, account = text.partition("/")
    if not (slash and namespace and account) or not _ACCOUNT.fullmatch(text):
        raise UsageError(
            f"--announcer {text[:200]!r} is not a service account",
            hint="use NAMESPACE/SERVICEACCOUNT, for example lookupdb/lookupdb",
        )
    return Caller(namespace, account)


def options(**values: Any) -> GatewayOptions:
    """Return the checked options in ``values``. Raises UsageError."""

    if not values["store"].startswith(_STORES):
        raise UsageError(
            f"--store {values['store']} is not a store that pods share", hint=f"use one of {', '.join(_STORES)}"
        )
    if not all(values["audiences"]):
        raise UsageError("--audience is empty", hint="for example --audience lookupdb-store:lookupdb/lookupdb")
    if values["body_memory"] < _LEAST_MEMORY:
        raise UsageError(f"--body-memory is {values['body_memory']} bytes, expected at least {_LEAST_MEMORY}")
    return GatewayOptions(
        announcer=_parse_announcer(values["announcer"]),
        store=values["store"],
        audiences=values["audiences"],
        credentials=values["credentials"],
        cluster=values["cluster_id"] and check_cluster_id(values["cluster_id"]),
        redirects=values["reads"] == "redirect",
        host=values["host"],
        port=values["port"],
        admin_port=values["admin_port"],
        max_requests=values["max_requests"],
        memory=values["body_memory"],
    )
