"""A router that answers as a test says, byte for byte, or breaks connections.

with scripted(answer(b'...'), CLOSE) as router:
    Client(router.url).get("a")
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import orjson

from lookupdb.records import FRAMES, encode_start


@dataclass(frozen=True, slots=True)
class Asked:
    """A received request."""

    connection: int
    """The number of the connection on which it came."""
    method: str
    target: str
    fields: dict[str, str]
    body: bytes

    @property
    def keys(self) -> list[str]:
        """The keys of a batch."""
        keys: list[str] = orjson.loads(self.body)["keys"]
        return keys


Action = bytes | Callable[[socket.socket, Asked], bytes]
"""The bytes to send; a function may do other things first. A connection closes behind bytes that end with CLOSE."""
CLOSE = b"\0close"
RESET = b"\0reset"


def answer(
    body: object,
    *,
    status: str = "200 OK",
    generation: str | None = "g1",
    value_format: str | None = None,
    kind: str = "application/json",
    **fields: str,
) -> bytes:
    """An answer as a router writes it; ``body`` is bytes, or a value to encode as JSON."""
    text = body if isinstance(body, bytes) else orjson.dumps(body)
    head = f"HTTP/1.1 {status}\r\nDate: Tue, 24 Nov 2026 05:55:15 GMT\r\nContent-Type: {kind}\r\n"
    if generation is not None:
        head += f"Lookupdb-Generation: {generation}\r\n"
    if value_format is not None:
        head += f"Lookupdb-Value-Format: {value_format}\r\n"
    head += "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


def problem(
    status: str, name: str, detail: str = "because", *, generation: str | None = None, **members: object
) -> bytes:
    """A problem as a router reports it."""
    body = {
        "type": f"https://lookupdb.dev/problems/{name}",
        "title": name,
        "status": int(status[:3]),
        "detail": detail,
        **members,
    }
    return answer(body, status=status, generation=generation, kind="application/problem+json")


def batch(
    found: dict[str, object], missing: Sequence[str] = (), unavailable: list[str] | None = None, generation: str = "g1"
) -> bytes:
    """The answer to a batch."""
    body: dict[str, object] = {"generation": generation, "found": found, "missing": [*missing]}
    if ", " in generation:
        body = {"generation": None, "generations": generation.split(", "), "found": found, "missing": [*missing]}
    if unavailable is not None:
        body["unavailable"] = unavailable
    return answer(body, generation=generation, value_format="json")


def frames(
    found: dict[str, bytes | int],
    keys: Sequence[str] | None = None,
    *,
    value_format: str | None = "raw",
    more: bytes = b"",
) -> bytes:
    """The answer to a batch, and ``more``, as frames: values, or substitutes for their sizes."""
    values = [value for value in found.values() if isinstance(value, bytes)]
    start = encode_start(
        found if keys is None else keys, [len(v) if isinstance(v, bytes) else v for v in found.values()]
    )
    return answer(b"".join([start, *values, more]), value_format=value_format, kind=FRAMES)


def found_all(sock: socket.socket, asked: Asked) -> bytes:
    """Finds each key, with itself as its value."""
    if asked.method == "GET":
        return answer(asked.target.rpartition("/")[2].rpartition("=")[2])
    partial = orjson.loads(asked.body).get("partial", False)
    return batch({key: key for key in asked.keys}, unavailable=[] if partial else None)


@dataclass
class ScriptedRouter:
    """Does one of ``actions`` for each request, in their order; then ``otherwise`` for all others."""

    actions: deque[Action]
    otherwise: Action = found_all
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    _port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def serve(self, connection: socket.socket, number: int) -> None:
        """Answer the requests of a connection until one of them ends it."""
        with connection, contextlib.suppress(OSError):
            held = b""
            while True:
                while b"\r\n\r\n" not in held:
                    if not (data := connection.recv(65536)):
                        return
                    held += data
                head, _, held = held.partition(b"\r\n\r\n")
                first, *lines = head.decode().split("\r\n")
                fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                length = int(fields.get("content-length", 0))
                while len(held) < length:
                    if not (data := connection.recv(65536)):
                        return
                    held += data
                body, held = held[:length], held[length:]
                method, target, _ = first.split(" ")
                asked = Asked(number, method, target, fields, body)
                with self._lock:
                    self.asked.append(asked)
                    action = self.actions.popleft() if self.actions else self.otherwise
                told = action if isinstance(action, bytes) else action(connection, asked)
                if told.endswith(RESET):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.sendall(told.removesuffix(CLOSE).removesuffix(RESET))
                if told.endswith((CLOSE, RESET)):
                    return


@contextlib.contextmanager
def scripted(*actions: Action, otherwise: Action = found_all) -> Iterator[ScriptedRouter]:
    """A scripted router on a free port, until the block ends."""
    router = ScriptedRouter(deque(actions), otherwise)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    router._port = listener.getsockname()[1]
    open_connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                router.connections += 1
                open_connections.append(connection)
                threads.append(
                    threading.Thread(target=router.serve, args=(connection, router.connections), daemon=True)
                )
                threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield router
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for connection in open_connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
