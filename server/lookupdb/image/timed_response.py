"""An answer of HTTP that is read within a time, however its bytes come: its head, chunks and trailers, too, and what
comes before it (100 Continue). A socket's timeout alone counts anew with each byte."""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable
from typing import Any


class TimedResponse(http.client.HTTPResponse):
    """The socket's timeout, at the beginning, is that of the whole answer. Reading raises TimeoutError after it."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        limit = sock.gettimeout()
        if limit is not None:
            self.fp = io.BufferedReader(_TimedBytes(self.fp.detach(), sock.settimeout, time.monotonic() + limit))


class _TimedBytes(io.RawIOBase):
    """The bytes of ``raw``, until ``deadline``."""

    def __init__(self, raw: io.RawIOBase, set_timeout: Callable[[float], None], deadline: float) -> None:
        super().__init__()
        self._raw, self._set_timeout, self._deadline = raw, set_timeout, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the answer has not come whole in time")
        self._set_timeout(remaining)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
