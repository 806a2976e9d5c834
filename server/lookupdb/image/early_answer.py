"""A connection that hears an answer while it sends: a registry refuses an image that is too large for it without
reading it whole, and may close then, or read no further."""

from __future__ import annotations

import math
import re
import select
import socket
import ssl
import time
from typing import Any, Final

from urllib3.connection import HTTPConnection

from lookupdb.image.timed_response import TimedResponse

_PIECE_BYTES: Final = 256 << 10
"""Sent between two looks."""
_EITHER: Final = select.POLLIN | select.POLLOUT
_PREFIX_BYTES: Final = 16 << 10
"""Of an answer, at a time; the rest is read as of any other."""
_INTERIM: Final = re.compile(rb"HTTP/1\.[01] 1[^\n]*\n(?:[^\r\n][^\n]*\n)*\r?\n")
"""100 Continue and the like, whole: no answer yet."""
_BEGUN_INTERIM: Final = re.compile(rb"HTTP/1\.[01] 1")
_STATUS_BYTES: Final = len(b"HTTP/1.1 4")
"""After so many it is known whether they begin an answer."""


class EarlyAnswers(HTTPConnection):
    """What is to be sent is sent no further once an answer begins, which is then read, and the connection closed."""

    _prefix = b""
    """Of an answer that has begun before all was sent."""
    _is_cut = False
    """Whether something was left unsent."""

    def response_class(self, sock: Any, *args: Any, **options: Any) -> TimedResponse:  # type: ignore[override]
        """The answer, what has come of it first."""
        prefix, is_cut = self._prefix, self._is_cut
        self._prefix, self._is_cut = b"", False
        return TimedResponse(sock, *args, prefix=prefix, is_last=is_cut, **options)

    def close(self) -> None:
        """Close it, and forget what has come."""
        self._prefix, self._is_cut = b"", False
        super().close()

    def send(self, data: Any) -> None:
        """Send ``data``. Raises BrokenPipeError, after which urllib3 reads an answer, if one begins meanwhile or the
        other side has ended; TimeoutError if it takes nothing for the socket's timeout."""
        if not isinstance(self.sock, socket.socket) or not isinstance(data, bytes):
            super().send(data)  # connects, or is TLS within TLS to a proxy, which has no way to look
            return
        unsent, awaited = memoryview(data), _EITHER
        while unsent:
            self._wait(self.sock, awaited)
            awaited = _EITHER
            try:
                unsent = unsent[_send_at_once(self.sock, unsent[:_PIECE_BYTES]) :]
            except ssl.SSLWantReadError:  # TLS is negotiated anew, and the other side is to go on
                awaited = select.POLLIN
            except OSError:
                self._listen(self.sock)
                raise

    def _wait(self, sock: socket.socket, awaited: int) -> None:
        """Return when something can be sent, or, if that alone is ``awaited``, has come. Raises as ``send`` does."""
        poller = select.poll()
        poller.register(sock, awaited)
        seconds = sock.gettimeout()
        ends_at = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            remaining = ends_at - time.monotonic()
            events = sum(event for _, event in poller.poll(None if remaining == math.inf else max(0, remaining) * 1000))
            if not events or remaining < 0:
                raise TimeoutError("nothing could be sent in time")
            if events & ~select.POLLOUT:
                self._listen(sock)
            if awaited == select.POLLIN or events & ~select.POLLIN:
                return

    def _listen(self, sock: socket.socket) -> None:
        """Read what has come, which of TLS may be nothing. Raises BrokenPipeError if an answer begins, or the other
        side has ended."""
        seconds = sock.gettimeout()
        sock.settimeout(0)
        try:
            data = sock.recv(_PREFIX_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        finally:
            sock.settimeout(seconds)
        self._prefix = skip_interim(self._prefix + data)
        if not data or is_answer(self._prefix):
            self._is_cut = True
            raise BrokenPipeError("an answer has come before all was sent")


def _send_at_once(sock: socket.socket, data: memoryview) -> int:
    """Send what can be sent without waiting, which of TLS may be nothing: how many bytes. What waits within a record of
    TLS hears no answer; OpenSSL goes on with it when it is given the same bytes again. Raises SSLWantReadError."""
    seconds = sock.gettimeout()
    sock.settimeout(0)
    try:
        return sock.send(data)
    except (BlockingIOError, ssl.SSLWantWriteError):
        return 0
    finally:
        sock.settimeout(seconds)


def skip_interim(prefix: bytes) -> bytes:
    """``prefix`` without the whole interim answers with which it begins."""
    while found := _INTERIM.match(prefix):
        prefix = prefix[found.end() :]
    return prefix


def is_answer(prefix: bytes) -> bool:
    """Whether ``prefix`` begins the last answer, or is no HTTP, or is longer than an interim answer."""
    is_begun = len(prefix) >= _STATUS_BYTES and not _BEGUN_INTERIM.match(prefix)
    return is_begun or len(prefix) > _PREFIX_BYTES
