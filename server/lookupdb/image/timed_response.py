"""An answer of HTTP that is read within a time, however its bytes come: its head, chunks and trailers, too, and what
comes before it (100 Continue). A socket's timeout alone counts anew with each byte."""

from __future__ import annotations

import http.client
import io
import math
import socket
import time
from collections.abc import Callable
from typing import Any


class TimedResponse(http.client.HTTPResponse):
    """The socket's timeout, at the beginning, is that of the whole answer. Reading raises TimeoutError after it."""

    def __init__(
        self, sock: socket.socket, *args: Any, prefix: bytes = b"", is_last: bool = False, **options: Any
    ) -> None:
        """``prefix`` of it has been read from the socket already; ``is_last``: the connection is closed behind it."""
        super().__init__(sock, *args, **options)
        self._is_last = is_last
        limit = sock.gettimeout()
        deadline = math.inf if limit is None else time.monotonic() + limit
        self.fp = io.BufferedReader(_TimedBytes(prefix, self.fp.detach(), sock.settimeout, deadline))

    def _read_status(self) -> tuple[str, int, str]:
        """The status line of the last answer: http.client passes over 100 alone of those before it, and would take
        102 or 103 for the last one, and the last one for that of the next request. 101, for which nobody asked, is
        handed on."""
        while True:
            found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if not 101 < found[1] < 200:
                return found
            http.client.parse_headers(self.fp)

    def begin(self) -> None:
        """Read its head."""
        super().begin()
        self.will_close = self.will_close or self._is_last


class _TimedBytes(io.RawIOBase):
    """``prefix``, and then the bytes of ``raw``, until ``deadline``."""

    def __init__(
        self, prefix: bytes, raw: io.RawIOBase, set_timeout: Callable[[float | None], None], deadline: float
    ) -> None:
        super().__init__()
        self._prefix = prefix
        self._raw, self._set_timeout, self._deadline = raw, set_timeout, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the answer has not come whole in time")
        if self._prefix:
            size = min(len(buffer), len(self._prefix))
            buffer[:size], self._prefix = self._prefix[:size], self._prefix[size:]
            return size
        self._set_timeout(None if remaining == math.inf else remaining)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
