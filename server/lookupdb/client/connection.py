"""A connection to a router, for calls that block."""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING, Final

from lookupdb.client.attempts import CONNECTION_LOST, ConnectionFailure, deadline_failure
from lookupdb.client.certificates import TlsContexts
from lookupdb.client.response_reader import Response, ResponseReader
from lookupdb.client.settings import MAX_ANSWER_BYTES, ClientSettings
from lookupdb.client.socket_errors import connecting_error, lost_connection

if TYPE_CHECKING:
    import ssl

PIECE_BYTES: Final = 1 << 16
"""Received at once. For more than 128 KiB an allocator may map memory that the kernel clears, for each piece anew: that
takes longer than to ask twice."""
_RECORD_BYTES: Final = 1 << 14
"""The most that TLS has in one record, and gives at once."""
_IDLE_SECONDS: Final = 0.25
"""A connection that was idle for longer is looked at before it is used: the router may have closed it."""
_TOLERANCE: Final = 0.01
"""A timeout that is this near to the socket's, as a part of it, is not set anew: that is a system call."""


class RouterConnection:
    """One connection, for one request after another, by one thread at a time."""

    __slots__ = (
        "_idle_since",
        "_most_at_once",
        "_reader",
        "_settings",
        "_socket",
        "_timeout",
        "_was_used",
        "is_open",
    )

    def __init__(self, settings: ClientSettings, tls: TlsContexts | None, deadline: float) -> None:
        """Connect. Raises ConnectionFailure, InvalidAnswer where nobody speaks TLS, and UsageError for certificates
        that cannot be used."""
        self._settings = settings
        self._socket = _connect(settings, tls, deadline)
        self._most_at_once = PIECE_BYTES if tls is None else _RECORD_BYTES
        self._timeout = self._socket.gettimeout() or 0.0
        self._reader = ResponseReader(MAX_ANSWER_BYTES)
        self._was_used = False
        self._idle_since = time.monotonic()
        self.is_open = True
        """Whether another request may be sent: not while one is under way, nor after one that went wrong."""

    def exchange(self, request: bytes, deadline: float) -> Response:
        """Send ``request`` and return its answer. Raises ConnectionFailure and InvalidAnswer."""
        self.is_open = False
        try:
            self._set_timeout(deadline)
            response = self._send(request) or self._receive(deadline)
        except TimeoutError as error:
            raise self._describe_timeout(deadline) from error
        except OSError as error:
            raise lost_connection(error, self._settings, is_stale=self._is_stale) from error
        self._was_used = True
        self._idle_since = time.monotonic()
        self.is_open = response.keeps_open
        return response

    def _send(self, request: bytes) -> Response | None:
        """Send ``request``, and return the answer if the router gave one before it had read all, and closed. What it
        says by TLS alone, of a certificate that it wants, is raised."""
        try:
            self._socket.sendall(request)
        except TimeoutError:
            raise
        except OSError:  # a broken pipe has another name in TLS
            while data := self._socket.recv(PIECE_BYTES):
                if response := self._reader.feed(data):
                    return response._replace(keeps_open=False)
            raise
        return None

    def _receive(self, deadline: float) -> Response:
        receive, feed = self._socket.recv, self._reader.feed
        while data := receive(PIECE_BYTES):
            response = feed(data)
            if response is not None:
                # What follows a full piece, or a full record of TLS, would answer the next request.
                is_cut = len(data) >= self._most_at_once and self._is_readable()
                return response._replace(keeps_open=False) if is_cut else response
            self._set_timeout(deadline)
        detail = "the connection was closed before the answer was whole"
        raise ConnectionFailure(CONNECTION_LOST, detail, is_stale=self._is_stale)

    def _set_timeout(self, deadline: float) -> None:
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise deadline_failure(self._settings.timeout)
        if self._settings.read_timeout is not None:
            seconds = min(seconds, self._settings.read_timeout)
        if abs(seconds - self._timeout) > _TOLERANCE * self._timeout:
            self._socket.settimeout(seconds)
            self._timeout = seconds

    def _describe_timeout(self, deadline: float) -> ConnectionFailure:
        if self._settings.read_timeout is None or time.monotonic() >= deadline:
            return deadline_failure(self._settings.timeout)
        seconds = self._settings.read_timeout
        return ConnectionFailure(CONNECTION_LOST, f"the router sent nothing for {seconds:g} s, the read_timeout")

    @property
    def _is_stale(self) -> bool:
        return self._was_used and not self._reader.has_begun

    def is_closed_by_router(self) -> bool:
        """Whether there is something to be read of a connection that nothing was asked on: its end, or nonsense."""
        if time.monotonic() - self._idle_since < _IDLE_SECONDS:
            return False
        return self._is_readable()

    def _is_readable(self) -> bool:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Close it, without a word: a process that was forked off may have it as well."""
        self.is_open = False
        self._socket.close()


def _connect(settings: ClientSettings, tls: TlsContexts | None, deadline: float) -> socket.socket:
    address = settings.address
    failure: OSError | None = None
    context = tls.context() if tls is not None else None
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, place in found:
            seconds = min(deadline - time.monotonic(), settings.connect_timeout)
            if seconds <= 0:
                raise deadline_failure(settings.timeout) from failure
            connection = socket.socket(family, kind, protocol)
            try:
                return _open(connection, place, context, settings, time.monotonic() + seconds)
            except OSError as error:
                connection.close()
                failure = error
            except BaseException:
                connection.close()
                raise
        assert failure is not None, "each address that was found was tried"
        raise failure
    except OSError as error:
        raise connecting_error(error, settings, is_late=time.monotonic() >= deadline) from error
    finally:
        failure = None  # its traceback holds this frame, and so those of all callers


def _open(
    connection: socket.socket,
    place: tuple[object, ...],
    context: ssl.SSLContext | None,
    settings: ClientSettings,
    ends_at: float,
) -> socket.socket:
    _wait_until(connection, ends_at)
    connection.connect(place)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        _wait_until(connection, ends_at)
        connection = context.wrap_socket(connection, server_hostname=settings.address.host)
    connection.settimeout(settings.timeout)
    return connection


def _wait_until(connection: socket.socket, ends_at: float) -> None:
    """Have ``connection`` wait no longer, and for a moment if that is over: 0 would mean not to wait at all, and less
    is refused."""
    connection.settimeout(max(0.001, ends_at - time.monotonic()))
