"""A proxy in front of a web server that makes one request fail. The test chooses which one, and how."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from urllib.parse import urlsplit

from support.web import QuietHandler, web_server

_HOP: frozenset[str] = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive"})
LATE_SECONDS = 0.15
DELAY_SECONDS = 0.05


class Fault(Enum):
    """The fate of a request."""

    DROP = "the connection ends before it had an effect"
    REFUSE = "503 before it had an effect"
    LOSE = "it has its effect, and the answer is lost"
    TRUNCATE = "it has its effect, and half of the answer comes"
    ERROR = "it has its effect, and the answer is 500"
    UNAVAILABLE = "it has its effect, and the answer is 503"
    TWICE = "it arrives twice, and the second answer comes"
    DELAY = "its answer takes time"
    LATE = "the connection ends, and it has its effect some time later"


@dataclass(frozen=True)
class Request:
    """A request that came through."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]


_READS = (Fault.DROP, Fault.TRUNCATE)
"""Faults that make a difference for a request that changes nothing."""


def is_read(request: Request) -> bool:
    """Return whether the request changes nothing."""
    return request.method in ("GET", "HEAD")


def telling_numbers(requests: Sequence[Request], fault: Fault) -> list[int]:
    """Return the numbers of the requests at which ``fault`` makes a difference."""
    return [number for number, request in enumerate(requests) if not is_read(request) or fault in _READS]


@dataclass(frozen=True)
class Answer:
    """A response of the server; ``length`` is that of the whole body."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    length: int


Hook = Callable[[int, Request], None]


def _nothing(_number: int, _request: Request) -> None:
    pass


class Proxy:
    """Forwards to ``target``; every request is numbered from 0 on."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target).netloc
        self._lock = threading.Lock()
        self._late: list[threading.Thread] = []
        self._of_thread = threading.local()
        self.requests: list[Request] = []
        self._before: Hook = _nothing
        self._after: Hook = _nothing
        self._is_faulty: Callable[[int, Request], bool] = lambda _number, _request: False
        self._fault = Fault.DROP
        self._status: int | None = None

    def calm(self) -> None:
        """Cause no faults from now on."""
        self._status = None
        self._is_faulty = lambda _number, _request: False
        self._before = self._after = _nothing

    def reset(self) -> None:
        """Cause no faults from now on, wait for late requests, and count from 0 again."""
        self.calm()
        for thread in self._late:
            thread.join()
        self._late.clear()
        self.requests = []

    def fail(self, fault: Fault, when: Callable[[int, Request], bool]) -> None:
        """Cause ``fault`` in each request for which ``when`` is true."""
        self._fault, self._is_faulty = fault, when

    def answer(self, status: int) -> None:
        """Let no request through: all get ``status``."""
        self._status = status

    def set_hooks(self, *, before: Hook | None = None, after: Hook | None = None) -> None:
        """Called before a request is forwarded, and again after its effect, before it is answered. It may block."""
        self._before, self._after = before or _nothing, after or _nothing

    def number(self, request: Request) -> int:
        with self._lock:
            self.requests.append(request)
            return len(self.requests) - 1

    def handle(self, request: Request) -> Answer | None:
        """The answer; None if the connection must end without one."""
        number = self.number(request)
        self._before(number, request)
        if self._status is not None:
            return _failure(self._status)
        fault = self._fault if self._is_faulty(number, request) else None
        match fault:
            case Fault.DROP:
                return None
            case Fault.REFUSE:
                return _failure(503)
            case Fault.LATE:
                self._late.append(threading.Thread(target=self._forward_late, args=(request,)))
                self._late[-1].start()
                return None
            case Fault.DELAY:
                time.sleep(DELAY_SECONDS)
            case Fault.TWICE:
                self.forward(request)
        answer = self.forward(request)
        self._after(number, request)
        match fault:
            case Fault.LOSE:
                return None
            case Fault.ERROR:
                return _failure(500)
            case Fault.UNAVAILABLE:
                return _failure(503)
            case Fault.TRUNCATE:
                return replace(answer, body=answer.body[: len(answer.body) // 2])
        return answer

    def _forward_late(self, request: Request) -> None:
        time.sleep(LATE_SECONDS)
        self.forward(request)
        self.hang_up()

    def forward(self, request: Request) -> Answer:
        """Use the connection of this thread, which stays open until ``hang_up``."""
        connection = self._connection()
        connection.request(request.method, request.path, request.body, request.headers)
        response = connection.getresponse()
        body = response.read()
        length = int(response.getheader("Content-Length") or len(body))
        return Answer(response.status, response.getheaders(), body, length)

    def _connection(self) -> http.client.HTTPConnection:
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = http.client.HTTPConnection(self._target)
        connection: http.client.HTTPConnection = self._of_thread.connection
        return connection

    def hang_up(self) -> None:
        """Close the connection of this thread."""
        self._connection().close()


def _failure(status: int) -> Answer:
    return Answer(status, [], b"", 0)


def _handler(proxy: Proxy) -> type[QuietHandler]:
    class Handler(QuietHandler):
        disable_nagle_algorithm = True

        def finish(self) -> None:
            proxy.hang_up()
            super().finish()

        def do_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = proxy.handle(Request(self.command, self.path, body, dict(self.headers.items())))
            if answer is None:
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response_only(answer.status)
            for name, value in answer.headers:
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(answer.length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
                self.close_connection = len(answer.body) < answer.length

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any  # noqa: N815 - http.server calls them so

    return Handler


@contextlib.contextmanager
def faulty_proxy(target: str) -> Iterator[tuple[str, Proxy]]:
    """A proxy before the server at ``target``: its URL and itself."""
    proxy = Proxy(target)
    with web_server(_handler(proxy)) as url:
        try:
            yield url, proxy
        finally:
            proxy.reset()
