"""The process of the gateway: its client port, the handlers of requests, and the parts that it starts and stops.

aiohttp parses HTTP/1.1; its router is not used. ``Server`` limits connections, ``Handlers`` checks each request and
passes it on, and ``Gateway`` starts and stops them. The options of ``lookupdb gateway`` are at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from aiohttp import hdrs, web

from lookupdb import __version__, disk
from lookupdb.account_tokens import Caller, InvalidToken, TokenCache
from lookupdb.cli.options import Size, log_format, option
from lookupdb.credentials import MAX_TOKEN_BYTES
from lookupdb.errors import UsageError
from lookupdb.process import listeners
from lookupdb.process.admin import AdminPort, ProbeServer
from lookupdb.process.memory import private_bytes
from lookupdb.store.dataset import check_cluster_id
from lookupdb.store.objects import MODE_HEADER, PART_BYTES, REDIRECTED_SUFFIX, ErrorKind
from lookupdb.wording import strip_secrets
from lookupdb_operator.cluster.api import ApiError
from lookupdb_operator.cluster.client import Api, Keys, run_service
from lookupdb_operator.cluster.cluster import Cluster
from lookupdb_operator.gateway.credentials import StoreClient
from lookupdb_operator.gateway.request import (
    CONTENT_TYPE,
    Access,
    BrokenOff,
    Operation,
    RequestProblem,
    RequestTarget,
    Unauthenticated,
    busy,
    invalid,
    parse_target,
)
from lookupdb_operator.gateway.transfers import (
    BROKEN_OFF,
    IDLE_SECONDS,
    SHORT_SECONDS,
    Budget,
    GatewayMetrics,
    Objects,
    Reads,
    Room,
    Writes,
)

log = logging.getLogger(__name__)

_KEEPALIVE_SECONDS: Final = 30.0
"""Seconds within which the head of the next request must arrive, also on a new connection."""
_LINGER_SECONDS: Final = 5.0
"""Seconds in which the rest of a refused body is read and dropped, so that the client reads the answer."""
_MAX_LINE_BYTES: Final = 4096
_MAX_HEADERS: Final = 64
_ABORT_SECONDS: Final = 5.0
"""Seconds for aborting the uploads of disconnected clients."""

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def _render(problem: RequestProblem, *, closes: bool = False) -> web.StreamResponse:
    response = web.Response(
        status=problem.status, body=problem.render(), content_type=CONTENT_TYPE, headers=problem.headers
    )
    if closes:
        response.force_close()
    return response


class Connection(web.RequestHandler):
    """One client's connection. Its work stops when the client disconnects, and anything but HTTP is refused."""

    _scope: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def lasting(self) -> AsyncIterator[None]:
        """Cancel the block if the client disconnects. Raises BrokenOff then."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scope = scope
                if self.transport is None or self.transport.is_closing():
                    scope.reschedule(0)
                yield
        except TimeoutError as error:
            if scope.expired():
                raise BrokenOff("the client went away") from error
            raise
        finally:
            self._scope = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """Cancel the client's work."""
        if self._scope:
            self._scope.reschedule(0)
        super().connection_lost(exc)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Refuse a request that is not HTTP or exceeds a limit. Its text is neither returned nor logged: it may
        hold a token."""
        if request.writer.output_size > 0:
            raise ConnectionError("the response has begun")
        problem = invalid("the request is not valid HTTP/1.1, or is larger than its limits")
        return _render(problem, closes=True)


class _Request(web.BaseRequest):
    """One request. Its response does not name the library."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall(hdrs.SERVER, None)


class Server(web.Server):
    """Listens and answers by ``handle`` until it is closed. Its clients are kept in order, the longest connected
    first."""

    def __init__(
        self,
        handle: Handle,
        *,
        host: str,
        port: int,
        max_connections: int,
        keepalive_seconds: float = _KEEPALIVE_SECONDS,
    ) -> None:
        """Binds at once. Raises UsageError if the port is taken."""
        settings: dict[str, Any] = {
            "keepalive_timeout": keepalive_seconds,
            "lingering_time": _LINGER_SECONDS,
            "max_line_size": _MAX_LINE_BYTES,
            "max_field_size": MAX_TOKEN_BYTES + _MAX_LINE_BYTES,
            "max_headers": _MAX_HEADERS,
            "auto_decompress": False,  # bodies are taken as sent; no decompression bombs
        }
        super().__init__(
            self._note_request,
            request_factory=lambda message, payload, protocol, writer, task: _Request(
                message, payload, protocol, writer, task, self._loop
            ),
            access_log=None,
            logger=log,
            **settings,
        )
        self._listener: socket.socket = listeners.bind(host, port)
        self.port = listeners.bound_port(self._listener)
        self.most_connections = max_connections
        self._handle = handle
        self._settings = settings
        self._server: asyncio.Server | None = None
        self.busy: set[web.RequestHandler] = set()
        """Clients with a request in flight."""
        self.idle = asyncio.Event()
        """Set if no request is in flight."""
        self.idle.set()

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of a new client."""
        return Connection(
            self,
            loop=self._loop,
            access_log=None,  # type: ignore[arg-type] # as web.Server gives it
            logger=log,
            **self._settings,
        )

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Count a client. The oldest idle one is closed to make room; if all others are busy, the new one is closed."""
        super().connection_made(handler, transport)
        while len(self._connections) > self.most_connections:
            oldest = next(connection for connection in self.connections if connection not in self.busy)
            oldest.force_close()
            del self._connections[oldest]

    async def _note_request(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        self.busy.add(connection)
        self.idle.clear()
        try:
            return await self._handle(request)
        finally:
            self.busy.discard(connection)
            if not self.busy:
                self.idle.set()

    async def open(self) -> None:
        """Accept clients."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self, sock=self._listener, backlog=listeners.BACKLOG)

    async def close(self, seconds: float) -> None:
        """Stop accepting connections, and wait up to ``seconds`` for requests in flight. Then abort the rest, and
        undo aborted uploads."""
        if self._server is None:
            self._listener.close()
            return
        self._server.close()
        self.pre_shutdown()
        await self._wait_idle(seconds)
        for connection in self.busy & self._connections.keys():
            self._connections[connection].abort()
        await self._wait_idle(_ABORT_SECONDS)
        await self.shutdown(1.0)

    async def _wait_idle(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.idle.wait()


_SCHEME: Final = "bearer "
_SINGLE_HEADERS: Final = (
    *("Authorization", "Content-Length", "Content-Encoding", "Expect", "Host", "Range", "Transfer-Encoding"),
    MODE_HEADER,
)
"""Headers that must not be repeated: a proxy and the gateway could read different ones."""
_NO_OPERATION: Final = "none"
"""The label of requests for an unknown operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """Answers requests. It checks the sender first: an unknown one learns nothing else."""

    access: Access
    keys: Keys
    tokens: TokenCache
    transfers: Budget
    """Requests that read, put or copy a file."""
    short_requests: Budget
    reads: Reads
    writes: Writes
    metrics: GatewayMetrics

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer ``request``. Raises only a cancellation."""
        operation, status, began = _NO_OPERATION, BROKEN_OFF, time.monotonic()
        try:
            caller = await self._authenticate(request)
            target = parse_target(request.method, request.raw_path)
            operation = target.operation.value
            self._authorize(target, caller)
            is_transfer = {
                Operation.READ: target.path.endswith(REDIRECTED_SUFFIX),
                Operation.WRITE: MODE_HEADER not in request.headers,
                Operation.COPY: True,
            }.get(target.operation, False)
            budget = self.transfers if is_transfer else self.short_requests
            async with budget.reserve(caller.namespace, 1):
                response = await self._dispatch(request, target, caller)
            status = response.status
        except RequestProblem as problem:
            is_unknown, status = isinstance(problem, Unauthenticated), problem.status
            if isinstance(problem, Unauthenticated):
                self.metrics.count_refusal(problem.reason, problem.detail, request.remote)
            elif problem.kind is ErrorKind.FORBIDDEN:
                self.metrics.count_refusal("forbidden", problem.detail, request.remote)
            response = _render(problem, closes=is_unknown)  # each guess of a token costs a connection
        except BrokenOff as error:
            log.warning("a response broke off: %s", error, extra={"operation": operation})
            if request.transport:
                request.transport.abort()  # so that the client does not take a part for the whole
            response = web.StreamResponse(status=BROKEN_OFF)
        except Exception:
            log.exception("a request failed because of a bug in the gateway", extra={"operation": operation})
            status = 500
            response = _render(
                RequestProblem(ErrorKind.STORE_FAILED, "the gateway has a bug; see its log", status=status)
            )
        finally:
            self.metrics.requests[operation, status] += 1
            self.metrics.count_transfer(operation, status, time.monotonic() - began)
        return response

    async def _authenticate(self, request: web.BaseRequest) -> Caller:
        """Return the sender of ``request``. Raises RequestProblem."""
        for name in _SINGLE_HEADERS:
            if len(request.headers.getall(name, ())) > 1:
                raise invalid(f"expected at most one header {name}")
        header = request.headers.get("Authorization", "")
        if header[: len(_SCHEME)].lower() != _SCHEME:
            raise Unauthenticated("absent", "expected a service account's token, as Authorization: Bearer …")
        token = header[len(_SCHEME) :].strip()
        try:
            verified = self.tokens.verify(token)
            if verified is None:
                is_current = await self.keys.look_again()
                verified = self.tokens.verify(token)
                if verified is None and not is_current:
                    raise busy("the keys of this cluster's service accounts cannot be read now")
        except InvalidToken as error:
            raise Unauthenticated(error.reason, error.detail) from error
        if verified is None:
            raise Unauthenticated("key", "the token is not signed with a key of this cluster")
        return verified[0]

    def _authorize(self, target: RequestTarget, caller: Caller) -> None:
        """Raise RequestProblem unless ``target`` is the caller's. Paths in a body are checked later."""
        match target.operation:
            case Operation.DELETE | Operation.COPY:
                return
            case Operation.LIST:
                is_allowed = self.access.may_list(target.path, caller, folders_only=target.folders_only)
            case Operation.WRITE:
                is_allowed = self.access.may_write(target.path, caller)
            case _:
                is_allowed = self.access.may_read(target.path, caller)
        if not is_allowed:
            raise RequestProblem(ErrorKind.FORBIDDEN, self.access.explain_refusal(target.path, caller))

    async def _dispatch(self, request: web.BaseRequest, target: RequestTarget, caller: Caller) -> web.StreamResponse:
        match target.operation:
            case Operation.WRITE:
                return await self.writes.put(request, target, caller)
            case Operation.COPY:
                return await self.writes.copy(request, caller)
            case Operation.DELETE:
                return await self.writes.delete(request, caller)
        connection = request.protocol
        assert isinstance(connection, Connection)
        async with connection.lasting():
            match target.operation:
                case Operation.READ:
                    return await self.reads.get(request, target, caller)
                case Operation.HEAD:
                    return await self.reads.head(request, target)
                case _:
                    return await self.reads.list(request, target, caller)


# The gateway, which starts and stops its parts.


_CONNECTIONS_PER_REQUEST: Final = 4
"""More than one, because clients keep idle connections."""
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
    keepalive_seconds: float = _KEEPALIVE_SECONDS
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
        short_requests = max(1, options.max_requests // 4)
        self.short_requests = Budget(short_requests, "requests", wait_seconds=0)
        self.transfers = Budget(options.max_requests - short_requests, "requests", wait_seconds=0)
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
        """Open the admin port, and the client port once the cluster's id is known. Readiness also needs the keys."""
        self._register_gauges()
        self._probes = await AdminPort(
            explain_unready=self.explain_unready, status=self.describe, collectors=(self.metrics.collect,)
        ).start(self._admin_listener)
        self._tasks.append(asyncio.create_task(self.keys.run(), name="keys"))
        self._tasks.append(asyncio.create_task(self._client.run(self._options.look_seconds), name="credentials"))
        cluster = Cluster(self._api)
        while not self._cluster:
            try:
                self._cluster = check_cluster_id(await cluster.namespace_uid(_SYSTEM))
            except ApiError as error:
                log.warning("%s; retrying in %.0f s", error, _RETRY_SECONDS)
                await asyncio.sleep(_RETRY_SECONDS)
        self.server = self._make_server()
        await self.server.open()
        log.info(
            "serving the store", extra={"cluster": self._cluster, "port": self.server.port, "admin": self.admin_port}
        )

    def _make_server(self) -> Server:
        options = self._options
        objects = Objects(self._client)
        access = Access(self._cluster, options.announcer)
        room = Room(self.budget, self.short_budget, self.metrics, access, options.idle_seconds, options.short_seconds)
        handlers = Handlers(
            access=access,
            keys=self.keys,
            tokens=TokenCache(lambda: self.keys.current, options.audiences, time.time),
            transfers=self.transfers,
            short_requests=self.short_requests,
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

    def _register_gauges(self) -> None:
        self.metrics.gauges |= {
            "lookupdb_gateway_requests_in_flight": ("Requests in flight.", lambda: self.in_flight),
            "lookupdb_gateway_connections": (
                "Open client connections.",
                lambda: len(self.server.connections) if self.server else 0,
            ),
            "lookupdb_gateway_budget_bytes": (
                "Memory budget for request and response bodies, in bytes.",
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

    @property
    def in_flight(self) -> int:
        """Return the number of requests in flight."""
        return self.transfers.used + self.short_requests.used

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
            "requestsInFlight": self.in_flight,
            "connections": len(self.server.connections) if self.server else 0,
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
    """Serve until SIGTERM or SIGINT, then drain; the same signal again ends the process at once. Raises StoreError
    or UsageError, or ApiError if no cluster is configured."""
    gateway, stopped = Gateway(options, await Api.connect(os.environ.get("KUBECONFIG"))), asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        loop.remove_signal_handler(number)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    starting, waiting = asyncio.create_task(gateway.start(), name="start"), asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait((waiting, starting), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await waiting
        await gateway.drain()
    finally:
        waiting.cancel()
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        await gateway.close()


# ``lookupdb gateway``: its options, each also an environment variable.


_STORES: Final = ("s3://", "gs://", "az://")
_ACCOUNT: Final = re.compile(r"[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}")
_LEAST_MEMORY: Final = 192 << 20
"""An eighth of the memory for files must hold two parts of an upload."""


@click.command()
@option("--store", required=True, help="URL of the store: s3://bucket/path, gs://… or az://…")
@option(
    "--credentials",
    type=click.Path(file_okay=False, path_type=Path),
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
@option(
    "--cluster-id",
    "cluster",
    default="",
    help="This cluster's folder in the store.  [default: uid of namespace kube-system]",
)
@option(
    "--reads",
    type=click.Choice(["stream", "redirect"]),
    default="stream",
    help="stream: send shard files through the gateway. redirect: send clients a signed URL for one file in the store.",
)
@option("--host", default="127.0.0.1", help="Address to listen on. * or :: means all addresses, IPv4 and IPv6.")
@option("--port", type=click.IntRange(0, 65535), default=7071, help="Port for clients. 0 takes a free port.")
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
    help="Maximum number of requests in flight. A quarter is reserved for short requests. One namespace may use half "
    "of those that others leave free.",
)
@option(
    "--body-memory",
    "memory",
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


def options(**values: Any) -> GatewayOptions:
    """Return the checked options in ``values``. Raises UsageError."""
    if not values["store"].startswith(_STORES):
        raise UsageError(
            f"--store {values['store']} is not a store that pods share", hint=f"use one of {', '.join(_STORES)}"
        )
    if not all(values["audiences"]):
        raise UsageError("--audience is empty", hint="for example --audience lookupdb-store:lookupdb/lookupdb")
    if values["memory"] < _LEAST_MEMORY:
        raise UsageError(f"--body-memory is {values['memory']} bytes, expected at least {_LEAST_MEMORY}")
    announcer = values["announcer"]
    if announcer and not _ACCOUNT.fullmatch(announcer):
        raise UsageError(
            f"--announcer {announcer[:200]!r} is not a service account",
            hint="use NAMESPACE/SERVICEACCOUNT, for example lookupdb/lookupdb",
        )
    values["announcer"] = Caller(*announcer.split("/")) if announcer else None
    values["cluster"] = values["cluster"] and check_cluster_id(values["cluster"])
    return GatewayOptions(redirects=values.pop("reads") == "redirect", **values)
