"""The admin port: /healthz, /readyz, /metrics and /status of one service, and the collectors of its metrics.

The supervisor serves it, so that it answers however busy the workers are. Metrics are read at scrape time, from shared
memory and /proc. Readiness never depends on memory figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any, Final, Literal, Protocol

import httptools
import orjson

from lookupdb.process import memory
from lookupdb.process.supervisor import Supervisor
from lookupdb.process.worker import Counters
from lookupdb.wording import render_json, to_utf8

# HTTP for probes and scrapers: GET or HEAD without a body, one at a time per connection, parsed by httptools. A web
# framework would take longer to import than the rest of a server, and cost every pod 16 MiB.


log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 32
"""A further connection closes the oldest, so that idle clients cannot block probes."""
MAX_HEAD_BYTES: Final = 16 << 10
_KEEPALIVE_SECONDS: Final = 75.0
"""Time for the next complete request, and for reading an answer. Longer than a scrape interval, so that scrapers keep
their connection."""
_METHODS: Final = ("GET", "HEAD")
_VERSIONS: Final = ("1.0", "1.1")
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The answer for a path."""

    body: bytes
    status: int = 200
    content_type: str = _TEXT


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    is_last: bool
    """True if the connection closes afterwards: the client asked for it, or a body follows, which is not read."""


class _BadRequest(Exception):
    """The bytes are no valid request."""


class ProbeServer:
    """Answers every path with the result of ``answer``; None is 404."""

    def __init__(self, answer: Callable[[str], Awaitable[ProbeAnswer | None]]) -> None:
        self._answer = answer
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Open connections, oldest first."""
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accept clients of the bound socket ``listener`` until ``cleanup``."""
        # This many are accepted at once, before the first of them is counted.
        backlog = MAX_CONNECTIONS
        self._server = await asyncio.start_server(self._accept, sock=listener, backlog=backlog, limit=MAX_HEAD_BYTES)

    async def cleanup(self) -> None:
        """Close the port and all connections."""
        if self._server:
            self._server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).transport.abort()
            oldest.cancel()
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections[connection] = writer
        connection.add_done_callback(lambda ended: self._connections.pop(ended, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            is_last = False
            while not is_last:
                async with asyncio.timeout(_KEEPALIVE_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                request = _HeadParser().parse(head)
                is_last = request.is_last
                writer.write(_render_answer(await self._answer_to(request), request))
                async with asyncio.timeout(_KEEPALIVE_SECONDS):
                    await writer.drain()
        except (_BadRequest, asyncio.LimitOverrunError):
            writer.write(_render_answer(_status_answer(400), _Request("GET", "", is_last=True)))
        except (TimeoutError, OSError, EOFError):
            writer.transport.abort()  # the client is gone or too slow
        finally:
            writer.close()

    async def _answer_to(self, request: _Request) -> ProbeAnswer:
        if request.method not in _METHODS:
            return _status_answer(405)
        try:
            return await self._answer(request.path) or _status_answer(404)
        except Exception:
            log.exception("a request of the admin port failed", extra={"path": request.path[:100]})
            return _status_answer(500)


class _HeadParser:
    """Parses one head; httptools calls its ``on_…`` methods."""

    def __init__(self) -> None:
        self._target = b""
        self._is_last = False
        self._parser = httptools.HttpRequestParser(self)

    def parse(self, head: bytes) -> _Request:
        """Return the request with ``head``, including its empty line. Raises _BadRequest."""
        try:
            with contextlib.suppress(httptools.HttpParserUpgrade):  # upgrades are optional
                self._parser.feed_data(head)
            path = httptools.parse_url(self._target).path or b""
        except httptools.HttpParserError as error:
            raise _BadRequest from error
        if self._parser.get_http_version() not in _VERSIONS:
            raise _BadRequest
        return _Request(self._parser.get_method().decode(), path.decode("latin-1"), self._is_last)

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        field = name.lower()
        self._is_last |= field == b"transfer-encoding" or (field == b"content-length" and value.strip() != b"0")

    def on_headers_complete(self) -> None:
        self._is_last |= not self._parser.should_keep_alive()


def _status_answer(status: int) -> ProbeAnswer:
    return ProbeAnswer(f"{status}: {http.HTTPStatus(status).phrase}\n".encode(), status)


def _render_answer(answer: ProbeAnswer, request: _Request) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {http.HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
        *(["Allow: GET, HEAD"] if answer.status == 405 else []),
        *(["Connection: close"] if request.is_last else []),
    ]
    head = "".join(f"{line}\r\n" for line in lines) + "\r\n"
    return head.encode() + (b"" if request.method == "HEAD" else answer.body)


# The Prometheus text format. prometheus-client would cost every pod memory for an HTTP server, registry and sampling. A
# test compares the output with its.


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_ESCAPED_IN_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric with a value for each set of labels; without labels, one value for the empty set."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]
    suffixes: Sequence[str] = ()
    """Suffix of the name for each sample; empty if no sample has one."""


class Collector(Protocol):
    """Reads figures on request."""

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the current families."""
        ...


def counter(name: str, help_text: str, value: float) -> MetricFamily:
    """Return a counter; its suffix is added to ``name``."""
    return labelled_counter(name, help_text, [({}, value)])


def labelled_counter(name: str, help_text: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> MetricFamily:
    """Return a counter with labels."""
    return MetricFamily(f"{name}_total", "counter", help_text, samples)


def gauge(name: str, help_text: str, value: float) -> MetricFamily:
    """Return a gauge."""
    return labelled_gauge(name, help_text, [({}, value)])


def labelled_gauge(name: str, help_text: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> MetricFamily:
    """Return a gauge with labels."""
    return MetricFamily(name, "gauge", help_text, samples)


def histogram(name: str, help_text: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> MetricFamily:
    """Return a histogram. There is one more bucket than ``bounds``; ``total`` is the sum of the observations."""
    labels = [{"le": repr(float(bound))} for bound in bounds] + [{"le": "+Inf"}]
    at_most = list(accumulate(counts))
    samples: list[tuple[Mapping[str, str], float]] = list(zip(labels, at_most, strict=True))
    suffixes = [*("_bucket" for _ in labels), "_count", "_sum"]
    return MetricFamily(name, "histogram", help_text, [*samples, ({}, at_most[-1]), ({}, total)], suffixes)


def info(name: str, help_text: str, labels: Mapping[str, str]) -> MetricFamily:
    """Return a gauge that is always 1, with information in its labels; its suffix is added to ``name``."""
    return MetricFamily(f"{name}_info", "gauge", help_text, [(labels, 1)])


def render_metrics(collectors: Iterable[Collector]) -> bytes:
    """Return the answer to a scrape."""
    families = (family for collector in collectors for family in collector.collect())
    return "".join(line for family in families for line in _lines(family)).encode()


def _lines(family: MetricFamily) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help.translate(_ESCAPED_IN_HELP)}\n"
    yield f"# TYPE {family.name} {family.kind}\n"
    for (labels, value), suffix in zip(family.samples, family.suffixes or repeat(""), strict=False):
        pairs = ",".join(f'{name}="{text.translate(_ESCAPED)}"' for name, text in labels.items())
        yield f"{family.name}{suffix}{pairs and f'{{{pairs}}}'} {float(value)!r}\n"


METRICS_SECONDS: Final = 10.0
"""/metrics is answered 503 if figures take longer, as those of a process that hangs in the kernel may."""


class AdminPort:
    """The admin port. Every function is called for each request."""

    def __init__(
        self,
        explain_unready: Callable[[], str | None],
        status: Callable[[], Mapping[str, Any]],
        collectors: Iterable[Collector] = (),
    ) -> None:
        """``explain_unready`` returns why the service is not ready, as a sentence, or None."""
        self._explain_unready = explain_unready
        self._status = status
        self._collectors = tuple(collectors)
        self._collecting: asyncio.Future[bytes] | None = None

    async def start(self, listener: socket.socket) -> ProbeServer:
        """Serve on the bound socket ``listener`` until ``cleanup()`` of the returned server."""
        server = ProbeServer(self._answer)
        await server.start(listener)
        return server

    async def _answer(self, path: str) -> ProbeAnswer | None:
        match path:
            case "/healthz":
                return ProbeAnswer(b"ok\n")
            case "/readyz":
                reason = self._explain_unready()
                return ProbeAnswer(f"{to_utf8(reason or 'ready')}\n".encode(), 503 if reason else 200)
            case "/status":
                body = render_json(self._status(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
                return ProbeAnswer(body, content_type="application/json")
            case "/metrics":
                return await self._collect()
        return None

    async def _collect(self) -> ProbeAnswer:
        # In a thread: reading /proc takes long for a process with a large map. Waiting scrapes share one thread,
        # because threads are few.
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.ensure_future(asyncio.to_thread(render_metrics, self._collectors))
        try:
            async with asyncio.timeout(METRICS_SECONDS):  # wait_for would swallow a cancellation in the same turn
                text = await asyncio.shield(self._collecting)
        except TimeoutError:
            return ProbeAnswer(f"no figures within {METRICS_SECONDS:g} s\n".encode(), 503)
        return ProbeAnswer(text, content_type=CONTENT_TYPE)


class CounterCollector:
    """Shared-memory counters as metrics: ``lookups`` becomes ``<prefix>_lookups_total``.

    ``counters`` and ``gauges`` map names in shared memory to their help texts. Each worker sets its gauges, such as
    open connections; the metric is the sum.
    """

    def __init__(self, prefix: str, source: Counters, counters: Mapping[str, str], gauges: Mapping[str, str]) -> None:
        self.prefix = prefix
        self.source = source
        self.counters = counters
        self.gauges = gauges

    def collect(self) -> Iterator[MetricFamily]:
        """Yield one family for each name."""
        for name, help_text in self.counters.items():
            yield counter(f"{self.prefix}_{name}", help_text, self.source.total(name))
        for name, help_text in self.gauges.items():
            yield gauge(f"{self.prefix}_{name}", help_text, self.source.total(name))


class ServiceCollector:
    """Readiness and restarts of a service, and private bytes and major faults of its processes."""

    def __init__(self, prefix: str, supervisor: Supervisor) -> None:
        self.prefix = prefix
        self.supervisor = supervisor

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the families. Processes are labelled ``supervisor``, ``worker-0``, …"""
        ready = self.supervisor.state == "ready"
        yield gauge(f"{self.prefix}_ready", "1 while the service answers lookups and does not drain.", int(ready))
        restarts = sum(worker.restarts.count for worker in self.supervisor.workers)
        yield counter(f"{self.prefix}_worker_restarts", "Workers restarted after they ended.", restarts)
        kills = sum(worker.kills for worker in self.supervisor.workers)
        help_text = "Workers killed because their event loop no longer ran."
        yield counter(f"{self.prefix}_workers_killed", help_text, kills)
        yield self._by_process(
            "private_bytes",
            "Memory that only this process owns, not backed by a file, including swap.",
            memory.private_bytes,
        )
        yield self._by_process(
            "major_faults",
            "Page faults of the running process that had to wait for the disk.",
            memory.major_faults,
        )
        figures = memory.container_memory()
        for name, help_text, value in (
            ("container_limit_bytes", "The container's memory limit.", figures.limit),
            ("container_anon_bytes", "The container's memory that cannot be dropped.", figures.anon),
            ("container_file_bytes", "The container's page cache, which holds the shard.", figures.file),
        ):
            if value is not None:
                yield gauge(f"{self.prefix}_{name}", help_text, value)

    def _by_process(self, name: str, help_text: str, read: Callable[[int], int | None]) -> MetricFamily:
        pids = [("supervisor", os.getpid()), *self.supervisor.pids.items()]
        figures = [(process, read(pid)) for process, pid in pids]
        samples = [({"process": process}, value) for process, value in figures if value is not None]
        return labelled_gauge(f"{self.prefix}_{name}", help_text, samples)
