"""The router's HTTP front on a real socket, with a lookup core that a test scripts; and a client of raw bytes."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, cast

import uvloop

from lookupdb.keys import InvalidKey, make_key_encoder
from lookupdb.process.worker import Counters, make_observer
from lookupdb.router.access import Gatekeeper, hash_token, read_token_hashes
from lookupdb.router.batch_keys import UNAVAILABLE, BatchKeys
from lookupdb.router.budget import RouterBudget, RouterLimits
from lookupdb.router.clients import ClientFront
from lookupdb.router.counters import INDEX, NAMES, count_requests
from lookupdb.router.http import connection as http_connection
from lookupdb.router.http.exchanges import HttpService
from lookupdb.router.lookups import BatchWaiter, Problem, ServedGeneration, Waiter
from lookupdb.router.tls import Certificates, TlsFiles
from support.batches import make_values
from support.tls import TlsSocket, authority, make_identity, server_identity
from support.waiting import until

speaks_tls = False
"""Servers and clients of tests speak TLS; see ``conftest.TLS_TESTS``."""

PATIENCE = 30.0
"""Seconds until a test gives up: the machine may be loaded."""
LIMITS = RouterLimits(
    deadline_milliseconds=1000,
    hedge_milliseconds=0,
    max_keys=1000,
    max_body_bytes=1 << 20,
    max_connections=10_000,
    max_queued_keys=20_000,
    header_timeout_seconds=10,
    idle_timeout_seconds=75,
    write_timeout_seconds=30,
)

UNREACHABLE = Problem("Unreachable", "shard 1: no endpoint of 2 answers", shard=1)


def generation(*names: str, value_format: Literal["json", "raw"] = "json") -> ServedGeneration:
    """A generation without shards, or several of a mixed table."""
    return ServedGeneration(
        names=names,
        value_format=value_format,
        encode=make_key_encoder(["strip", "lowercase"]),
        normalize=("strip", "lowercase"),
    )


@dataclass
class ScriptedLookups:
    """A lookup core whose answers a test sets. Keys are as asked; ``delays`` are seconds."""

    values: dict[str, bytes] = field(default_factory=dict)
    unavailable: set[str] = field(default_factory=set)
    delays: dict[str, float] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    """Keys that are answered only once ``release`` is called."""
    active: ServedGeneration = field(default_factory=lambda: generation("g1"))
    candidates: tuple[ServedGeneration, ...] = ()
    of_key: dict[str, ServedGeneration] = field(default_factory=dict)
    """For a mixed table: the generation that serves a key's shard."""
    asked: list[str] = field(default_factory=list)
    """Keys that were asked for alone."""
    batches: list[list[str]] = field(default_factory=list)
    """The keys of each batch."""
    deadlines: list[int | None] = field(default_factory=list)
    """The deadline in milliseconds of each lookup or batch, if it is shorter than the router's."""
    live: Any = field(default_factory=set)
    """The routing table in effect: any object, or None."""
    keys: dict[str, Any] = field(default_factory=dict)
    """Generation → its key columns and separator, as ``/v1/dataset`` describes keys of several columns."""
    budget: RouterBudget = field(default_factory=lambda: RouterBudget(256 << 20))
    _waiting: list[Callable[[], None]] = field(default_factory=list)

    def find(self, key: str, waiter: Waiter, generation: str | None = None, *, deadline_ms: int | None = None) -> None:
        self.asked.append(key)
        self.deadlines.append(deadline_ms)
        chosen = self._choose(generation)
        if chosen is None:
            waiter.unknown_generation(generation or "", self.active)
        elif key in self.held:
            self._waiting.append(lambda: self._answer(key, waiter, chosen))
        elif key in self.delays:
            asyncio.get_running_loop().call_later(self.delays[key], self._answer, key, waiter, chosen)
        else:
            self._answer(key, waiter, chosen)

    def release(self) -> None:
        """Answer the held lookups. Call this through ``Server.call``."""
        self.held.clear()
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer()

    def _choose(self, name: str | None) -> ServedGeneration | None:
        served = {served.name: served for served in (self.active, *self.candidates) if len(served.names) == 1}
        return self.active if name is None else served.get(name)

    def _answer(self, key: str, waiter: Waiter, chosen: ServedGeneration) -> None:
        try:
            chosen.encode(key)
        except InvalidKey:
            waiter.missing(chosen)
            return
        chosen = self.of_key.get(key, chosen)
        if key in self.unavailable:
            waiter.unavailable(UNREACHABLE)
        elif key in self.values:
            waiter.found(self.values[key], chosen)
        else:
            waiter.missing(chosen)

    def find_many(
        self,
        keys: BatchKeys,
        waiter: BatchWaiter,
        generation: str | None = None,
        *,
        are_single: bool = False,
        deadline_ms: int | None = None,
    ) -> None:
        self.deadlines.append(deadline_ms)
        chosen = self._choose(generation)
        texts = keys.to_list()
        self.batches.append(texts)
        if chosen is None:
            waiter.unknown_generation(generation or "", self.active)
        elif self.held.isdisjoint(texts):
            self._answer_many(keys, waiter, chosen)
        else:
            self._waiting.append(lambda: self._answer_many(keys, waiter, chosen))

    def _answer_many(self, keys: BatchKeys, waiter: BatchWaiter, chosen: ServedGeneration) -> None:
        texts = keys.to_list()
        if texts and self.unavailable.issuperset(texts):
            waiter.unavailable(UNREACHABLE)
        else:
            found = [UNAVAILABLE if key in self.unavailable else self.values.get(key) for key in texts]
            size = sum(len(value) for value in found if isinstance(value, bytes))
            if size > self.budget.answer_bytes:
                waiter.too_large(self.budget.answer_bytes)
            else:
                waiter.done(chosen, make_values(keys, found), size, UNREACHABLE if UNAVAILABLE in found else None)

    def describe_dataset(self) -> dict[str, Any]:
        described = {
            "namespace": "default",
            "name": "airports",
            "generation": self.active.names[-1],
            "records": 3,
            "shards": 4,
            "builtAt": "2026-11-21T00:00:00Z",
            "ageSeconds": 12.346,
            "candidates": [candidate.name for candidate in self.candidates],
        }
        if self.keys:
            described["keys"] = self.keys
        if len(self.active.names) > 1:
            described["shardGenerations"] = dict.fromkeys(self.active.names, 2)
        return described


def raw_lookups(values: dict[str, bytes]) -> ScriptedLookups:
    """A lookup core that answers with raw ``values``."""
    return ScriptedLookups(values=dict(values), active=generation("g1", value_format="raw"))


class Server:
    """A ClientFront that runs on uvloop in a thread of its own."""

    def __init__(
        self,
        lookups: Any,
        limits: RouterLimits,
        gatekeeper: Gatekeeper | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self.lookups = lookups
        self.gatekeeper = gatekeeper
        self.limits = limits
        self.tls = tls
        self._slot = lookups.counters = Counters(NAMES, 1).slot(0)
        lookups.observe = make_observer(self._slot)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(PATIENCE)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        self.errors: list[dict[str, Any]] = []
        self._loop.set_exception_handler(lambda _loop, context: self.errors.append(context))
        self.certificates = Certificates(self.tls, self._slot, lambda: None) if self.tls else None
        if self.certificates:
            self.certificates.start()
        budget = self.lookups.budget
        encrypt = self.certificates.encrypt if self.certificates else None
        self.front = ClientFront(budget, self.limits, self._slot, self.gatekeeper, encrypt)
        self.service = self._make_service()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        await self.front.listen(listener, self.service, self.make_connection)
        self._started.set()
        await self._done.wait()
        await self.front.close(0.1)
        if self.certificates:
            self.certificates.stop()

    def _make_service(self) -> Any:
        return HttpService(cast("Any", self.lookups), self.limits, self.gatekeeper)

    def make_connection(self, service: Any, registry: Any) -> Any:
        return http_connection.HttpConnection(service, registry)

    def call(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` in the server's loop. Return its result, awaited if it is awaitable."""

        async def run() -> Any:
            result = function()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE)

    def count(self, name: str) -> int:
        return self._slot[INDEX[name]]

    def count_commands(self) -> int:
        return count_requests(self._slot, "resp")

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        assert not self.errors, self.errors

    def connect(self, *, receive_buffer: int | None = None) -> Client:
        return Client(self.open_socket(receive_buffer))

    def open_socket(self, receive_buffer: int | None) -> socket.socket:
        raw = socket.socket()
        if receive_buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.settimeout(PATIENCE)
        try:
            raw.connect(("127.0.0.1", self.port))
        except OSError:
            raw.close()
            raise
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return raw if self.tls is None else cast("socket.socket", TlsSocket(raw).handshake())


@contextmanager
def serving(
    lookups: Any = None, tls: TlsFiles | None = None, gatekeeper: Gatekeeper | None = None, /, **limits: Any
) -> Iterator[Server]:
    """A running server with ``limits`` other than the usual ones, for clients that ``gatekeeper`` accepts."""
    with tls_files() if speaks_tls else nullcontext(tls) as files:
        server = Server(lookups or ScriptedLookups(), replace(LIMITS, **limits), gatekeeper, files)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def admitting(token: str) -> Gatekeeper:
    """A gatekeeper that admits clients with ``token``."""
    gatekeeper = Gatekeeper(token_folder="tokens", accounts=None)
    gatekeeper.take_hashes(read_token_hashes({Path("web"): hash_token(token.encode()).encode()}))
    return gatekeeper


@contextmanager
def serving_encrypted(
    values: dict[str, bytes], folder: Path, *, client_ca: Path | None = None, token: str = ""
) -> Iterator[str]:
    """The URL of a server of raw ``values`` that shows a certificate for localhost, written to ``folder``."""
    gatekeeper = admitting(token) if token else None
    files = TlsFiles(*make_identity("localhost", by=authority()).write(folder / "tls"), client_ca)
    with serving(raw_lookups(values), files, gatekeeper) as server:
        yield f"https://localhost:{server.port}"


@contextmanager
def tls_files() -> Iterator[TlsFiles]:
    """A router's certificate."""
    with tempfile.TemporaryDirectory() as folder:
        yield TlsFiles(*server_identity().write(Path(folder)), None)


@dataclass
class Response:
    """One answer as it came; names of ``fields`` are in lower case."""

    status: int
    fields: dict[str, str]
    body: bytes


class SocketClient:
    """The socket of a client of any protocol."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw

    def send(self, *pieces: bytes) -> Self:
        for piece in pieces:
            self.raw.sendall(piece)
        return self

    def half_close(self) -> Self:
        self.raw.shutdown(socket.SHUT_WR)
        return self

    def silent(self, seconds: float = 0.05) -> bool:
        """Return whether nothing comes for a moment, and the connection stays open."""
        self.raw.settimeout(seconds)
        try:
            self.raw.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.raw.settimeout(PATIENCE)
        return False

    def close(self) -> None:
        self.raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(SocketClient):
    """A client of HTTP. It splits the received bytes into answers."""

    def __init__(self, raw: socket.socket) -> None:
        super().__init__(raw)
        self._buffer = b""

    def get(self, target: str, *fields: str, method: str = "GET") -> Response:
        """Ask, and wait for the answer."""
        self.send(request(target, *fields, method=method))
        return self.response(bodyless=method == "HEAD")

    def post(self, body: bytes, *fields: str, target: str = "/v1/lookup") -> Response:
        length = f"Content-Length: {len(body)}"
        return self.send(request(target, length, *fields, method="POST") + body).response()

    def response(self, *, bodyless: bool = False) -> Response:
        """The next answer. Raises EOFError when the connection ends instead."""
        head = self._until(b"\r\n\r\n")
        start, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = start.split(" ", 2)
        assert version == "HTTP/1.1"
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(fields.get("content-length", "0"))
        return Response(int(status), fields, b"" if bodyless else self._exactly(length))

    def ended(self) -> bool:
        """Wait for the server to close. Return whether it sent nothing more before."""
        rest = self._buffer
        while piece := self.raw.recv(65536):
            rest += piece
        return not rest

    def silent(self, seconds: float = 0.05) -> bool:
        return not self._buffer and super().silent(seconds)

    def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            self._receive()
        head, _, self._buffer = self._buffer.partition(end)
        return head

    def _exactly(self, size: int) -> bytes:
        if len(self._buffer) < size:
            pieces, missing = [self._buffer], size - len(self._buffer)
            while missing > 0:
                self._buffer = b""
                self._receive()
                pieces.append(self._buffer)
                missing -= len(self._buffer)
            self._buffer = b"".join(pieces)
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        return body

    def _receive(self) -> None:
        piece = self.raw.recv(1 << 18)
        if not piece:
            raise EOFError(f"the connection ended after {self._buffer[:1000]!r}")
        self._buffer += piece


def request(target: str, *fields: str, method: str = "GET") -> bytes:
    """A request of HTTP/1.1 with Host and ``fields``."""
    lines = [f"{method} {target} HTTP/1.1", "Host: router", *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def eventually(true: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Wait until ``true()`` returns something true."""
    until(true, "it comes true", seconds)
