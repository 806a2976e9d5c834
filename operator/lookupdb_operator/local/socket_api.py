"""The API server of `lookupdb up` on a socket: HTTP over a Unix socket that only the user can open.

It is in the folder of each dataset's objects, beside their files. Requests run in `up`'s event loop one by one, so no
edit is lost. A command talks to a socket by `SocketApi`; while no `up` runs, it edits the files by `StoppedApi`.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode

import orjson

from lookupdb.up.run_state import RunFolder, is_locked
from lookupdb_operator.cluster.api import (
    JSON,
    AlreadyExists,
    Answer,
    ApiError,
    Conflict,
    NotFound,
    Refused,
    Unreachable,
)
from lookupdb_operator.local.api import LocalApi

log = logging.getLogger(__name__)

OBJECTS: Final = "objects"
"""The folder of a dataset's objects in its run folder."""
_SOCKET: Final = "api.sock"
_METRICS: Final = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/:]+):[0-9]+/proxy/metrics")
_CODES: Final = ((NotFound, 404), (Conflict, 409), (Unreachable, 503), (Refused, 422))
_MAX_BODY_BYTES: Final = 4 << 20
_PATIENCE: Final = 10.0
_START_SECONDS: Final = 3.0
"""Time for an `up` that holds the lock to listen."""
_POLL_SECONDS: Final = 0.05


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Yield a path of the socket in ``folder`` that is short enough for a socket's address. Raises OSError."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{opened}/{_SOCKET}"
    finally:
        os.close(opened)


def _bind(folder: Path) -> socket.socket:
    """Return a socket at its path in ``folder``. Raises OSError."""
    path, listener = folder / _SOCKET, socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        with _short_path(folder) as short:
            listener.bind(short)
        path.chmod(0o600)  # nobody could connect before, because it does not listen yet
    except OSError:
        listener.close()
        raise
    return listener


class SocketServer:
    """Answers requests for ``api`` on sockets. ``find_admin`` returns the address of a pod's admin port, or None."""

    def __init__(self, api: LocalApi, find_admin: Callable[[str, str], str | None]) -> None:
        self._api = api
        self._find_admin = find_admin

    @asynccontextmanager
    async def listening(self, folder: Path) -> AsyncIterator[None]:
        """Listen in ``folder``, whose lock is held, until the block ends. `up` also serves without a socket."""
        path, server = folder / _SOCKET, None
        try:
            server = await asyncio.start_unix_server(self._serve, sock=_bind(folder))
        except OSError as error:
            log.warning("commands cannot reach this `lookupdb up`: %s cannot be made: %s", path, error)
        try:
            yield
        finally:
            if server is not None:
                server.close()
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        try:
            async with asyncio.timeout(_PATIENCE):
                first, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
                method, target, _ = first.split(" ")
                size = min(int(headers.get("content-length", 0)), _MAX_BODY_BYTES)
                body = await reader.readexactly(size)
                answer = await self._answer(method, target, headers, body)
                writer.write(_render(f"HTTP/1.1 {answer.status} {http.HTTPStatus(answer.status).phrase}", answer))
                await writer.drain()
        except (ValueError, EOFError, asyncio.LimitOverrunError, TimeoutError, OSError):
            pass  # a client that sends no request, or has gone
        finally:
            writer.close()

    async def _answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        path, _, query = target.partition("?")
        content_type = headers.get("content-type", JSON)
        try:
            if found := _METRICS.fullmatch(unquote(path)):
                return await self._read_metrics(found[1], found[2])
            members = orjson.loads(body) if body else None
            named = dict(parse_qsl(query, keep_blank_values=True))
            result = await self._api.request(
                method, path, subject="", query=named, body=members, content_type=content_type
            )
        except ApiError as error:
            return render_error(error)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return render_error(Refused("", f"it is no valid request: {type(error).__name__}: {error}"))
        return Answer(200, {"Content-Type": JSON}, orjson.dumps(result))

    async def _read_metrics(self, namespace: str, pod: str) -> Answer:
        if (address := self._find_admin(namespace, pod)) is None:
            raise NotFound("", f"no pod {pod} runs")
        try:
            return await fetch(address, "/metrics")
        except (OSError, ValueError) as error:
            raise Unreachable("", str(error) or type(error).__name__) from error


class SocketApi:
    """Requests to the `lookupdb up` that runs in ``folder``; see ``cluster.api.Requests``."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    async def request(
        self,
        method: str,
        path: str,
        *,
        subject: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Any:
        """Return the JSON answer to ``method`` on ``path``."""
        content = b"" if body is None else orjson.dumps(body)
        target = f"{path}?{urlencode(query)}" if query else path
        answer = await self._send(f"{method} {target}", subject, Answer(0, {"Content-Type": content_type}, content))
        if answer.status >= 300:
            raise answer.make_error(subject)
        return orjson.loads(answer.body)

    async def fetch(self, path: str, *, subject: str) -> bytes:
        """Return the answer to GET ``path``. Raises ApiError."""
        answer = await self._send(f"GET {path}", subject, Answer(0, {}, b""))
        if answer.status >= 300:
            raise answer.make_error(subject)
        return answer.body

    async def close(self) -> None:
        """Do nothing: each request has a connection of its own."""

    async def _send(self, first: str, subject: str, request: Answer) -> Answer:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await _exchange(*await self._connect(), first, request)
        except (OSError, ValueError, EOFError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise Unreachable(subject, f"the `lookupdb up` of {self._folder.dataset} does not answer: {why}") from error

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ends_at = asyncio.get_running_loop().time() + _START_SECONDS
        while True:
            try:
                with _short_path(self._folder.path / OBJECTS) as path:
                    return await asyncio.open_unix_connection(path)
            except (FileNotFoundError, ConnectionRefusedError):  # it starts or stops
                if asyncio.get_running_loop().time() > ends_at or not is_locked(self._folder.path):
                    raise
            await asyncio.sleep(_POLL_SECONDS)


class StoppedApi:
    """Requests about the objects in ``folder`` while no `up` runs there. A write holds the folder's lock."""

    def __init__(self, folder: RunFolder, namespace: str, name: str) -> None:
        self._folder = folder
        self._key = namespace, name

    async def request(self, method: str, path: str, **rest: Any) -> Any:
        """Return the answer to ``method`` on ``path``. Raises UsageError if an `up` has begun to run."""
        with contextlib.nullcontext() if method == "GET" else self._folder.lock():
            api = LocalApi()
            api.add_folder(*self._key, self._folder.path / OBJECTS)
            return await api.request(method, path, **rest)

    async def close(self) -> None:
        """Do nothing: nothing is open."""


async def fetch(address: str, path: str) -> Answer:
    """Return the answer of the server at ``address`` to GET ``path``. Raises OSError, ValueError."""
    host, _, port = address.rpartition(":")
    return await _exchange(*await asyncio.open_connection(host, int(port)), f"GET {path}", Answer(0, {}, b""))


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: str, request: Answer) -> Answer:
    """Send ``request`` with the method and target ``first``, and return the answer. Raises OSError, ValueError."""
    try:
        writer.write(_render(f"{first} HTTP/1.0", request))
        await writer.drain()
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        status, headers = _parse_head(head)
        return Answer(int(status.split(" ")[1]), headers, body)
    except IndexError as error:
        raise ValueError("the answer is not HTTP") from error
    finally:
        writer.close()


def _render(first: str, message: Answer) -> bytes:
    headers = {**message.headers, "Content-Length": len(message.body), "Connection": "close"}
    lines = (first, *(f"{name}: {value}" for name, value in headers.items()), "", "")
    return "\r\n".join(lines).encode() + message.body


def _parse_head(head: bytes) -> tuple[str, dict[str, str]]:
    """Return the first line and the headers, in lower case."""
    first, *lines = head.decode().strip().split("\r\n")
    return first, {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def render_error(error: ApiError) -> Answer:
    """Return the answer that reports ``error``."""
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    reason = "AlreadyExists" if isinstance(error, AlreadyExists) else type(error).__name__
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": error.message}
    return Answer(code, {"Content-Type": JSON}, orjson.dumps({**status, "code": code}))
