"""The router's front on a real socket where clients speak RESP, with a lookup core that a test scripts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, cast

import hiredis
import pytest

from lookupdb.router import clients
from lookupdb.router.access import Gatekeeper
from lookupdb.router.resp import connection as resp_connection
from lookupdb.router.resp.exchanges import RespService
from support import http
from support.http import LIMITS, ScriptedLookups, Server, SocketClient, eventually, tls_files


class RespServer(Server):
    """A Server whose clients speak RESP."""

    def _make_service(self) -> Any:
        return RespService(cast("Any", self.lookups), self.limits, self.gatekeeper, 6379)

    def make_connection(self, service: Any, registry: Any) -> Any:
        return resp_connection.RedisClientConnection(service, registry)

    def connect(self, *, receive_buffer: int | None = None) -> RespClient:  # type: ignore[override]
        return RespClient(self.open_socket(receive_buffer))


@contextmanager
def serving_resp(
    lookups: Any = None, /, gatekeeper: Gatekeeper | None = None, tls: bool = False, **limits: Any
) -> Iterator[RespServer]:
    """A running server with ``limits`` other than the usual ones, for clients that ``gatekeeper`` accepts."""
    with tls_files() if tls or http.speaks_tls else nullcontext() as files:
        server = RespServer(lookups or ScriptedLookups(), replace(LIMITS, **limits), gatekeeper, files)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def sweeping_often() -> Iterator[None]:
    """Close slow and lingering clients soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "SWEEP_SECONDS", 0.02)
        patch.setattr(clients, "LINGER_SECONDS", 0.3)
        yield


@contextmanager
def left_in_order(server: RespServer) -> Iterator[None]:
    """Run one test against a shared server. Then check that nobody is connected, nothing is held and nothing failed,
    and forget the requests."""
    yield
    lookups = server.lookups
    server.call(lookups.release)
    eventually(lambda: server.count("connections") == 0)
    eventually(lambda: lookups.budget.used == 0)
    assert not server.errors, server.errors
    lookups.asked.clear()
    lookups.batches.clear()


def command(*words: bytes | str) -> bytes:
    """A command as client libraries write it."""
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class RespClient(SocketClient):
    """A client of RESP. It returns errors as ``hiredis.ReplyError``."""

    def __init__(self, raw: socket.socket) -> None:
        super().__init__(raw)
        self._reader = hiredis.Reader(notEnoughData=...)

    def ask(self, *words: bytes | str) -> Any:
        """The reply to one command."""
        return self.send(command(*words)).reply()

    def reply(self) -> Any:
        """The next reply. Raises EOFError when the connection ends instead."""
        while (found := self._reader.gets()) is ...:
            piece = self.raw.recv(1 << 18)
            if not piece:
                raise EOFError("the connection ended")
            self._reader.feed(piece)
        return found

    def replies(self, count: int) -> list[Any]:
        return [self.reply() for _ in range(count)]

    def refusal(self) -> str:
        """The next reply, which is an error."""
        found = self.reply()
        assert isinstance(found, hiredis.ReplyError), found
        return str(found)

    def ended(self) -> bool:
        """Wait for the server to close. Return whether it sent nothing more before."""
        nothing = self._reader.gets() is ...
        while piece := self.raw.recv(65536):
            nothing = nothing and not piece
        return nothing
