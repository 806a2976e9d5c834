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
import resource
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import httptools
import orjson

from lookupdb import __version__
from lookupdb.process import launch, listeners, memory
from lookupdb.process.supervisor import Fleet, Supervisor, WorkerState, reported_error
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
_READY_FILE_SECONDS: Final = 1.0
"""The pause before another attempt to write the ready file."""
_END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
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
    """The bytes are not a valid request."""


class ProbeServer:
    """Answers every path with the result of ``answer``; None is 404."""

    def __init__(self, answer: Callable[[str], Awaitable[ProbeAnswer | None]]) -> None:
        self._answer = answer
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Open connections, oldest first."""
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> Self:
        """Return this server, which accepts clients of the bound socket ``listener`` until ``cleanup``."""
        # asyncio accepts up to ``backlog`` clients at once, before ``_accept`` counts the first.
        backlog = MAX_CONNECTIONS
        self._server = await asyncio.start_server(self._accept, sock=listener, backlog=backlog, limit=MAX_HEAD_BYTES)
        return self

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
# test compares the output with that of prometheus-client.


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_ESCAPED_IN_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


Labels: TypeAlias = Mapping[str, str]
Observations: TypeAlias = tuple[Labels, Sequence[int], float]
"""One series of a histogram: labels, observations in each bucket, and the sum of the observed values."""


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric with a value for each set of labels; without labels, one value for the empty set."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[tuple[Labels, float]]
    suffixes: Sequence[str] = ()
    """Suffix of the name for each sample; empty if no sample has one."""


Collector: TypeAlias = Callable[[], Iterable[MetricFamily]]
"""Returns the current families."""


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


def histogram(name: str, help_text: str, bounds: Sequence[float], series: Iterable[Observations]) -> MetricFamily:
    """Return a histogram. There is one more bucket than ``bounds``."""
    les = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    samples: list[tuple[Labels, float]] = []
    suffixes: list[str] = []
    for labels, counts, total in series:
        at_most = list(accumulate(counts))
        samples += [({**labels, "le": le}, count) for le, count in zip(les, at_most, strict=True)]
        samples += [(labels, at_most[-1]), (labels, total)]
        suffixes += [*("_bucket" for _ in les), "_count", "_sum"]
    return MetricFamily(name, "histogram", help_text, samples, suffixes)


def add_labels(family: MetricFamily, labels: Labels) -> MetricFamily:
    """Return ``family`` with ``labels`` before those that it has."""
    return replace(family, samples=[({**labels, **own}, value) for own, value in family.samples])


def info(name: str, help_text: str, labels: Mapping[str, str]) -> MetricFamily:
    """Return a gauge that is always 1, with information in its labels; its suffix is added to ``name``."""
    return MetricFamily(f"{name}_info", "gauge", help_text, [(labels, 1)])


def render_metrics(collectors: Iterable[Collector]) -> bytes:
    """Return the answer to a scrape."""
    families = (family for collect in collectors for family in collect())
    return "".join(line for family in families for line in _lines(family)).encode()


def _lines(family: MetricFamily) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help.translate(_ESCAPED_IN_HELP)}\n"
    yield f"# TYPE {family.name} {family.kind}\n"
    for (labels, value), suffix in zip(family.samples, family.suffixes or repeat(""), strict=False):
        pairs = ",".join(f'{name}="{text.translate(_ESCAPED)}"' for name, text in labels.items())
        yield f"{family.name}{suffix}{pairs and f'{{{pairs}}}'} {float(value)!r}\n"


METRICS_SECONDS: Final = 10.0
"""/metrics returns 503 if collecting them takes longer, for example because a process hangs in the kernel."""


class AdminPort(ProbeServer):
    """The admin port. Each request calls the functions that it needs."""

    def __init__(
        self,
        explain_unready: Callable[[], str | None],
        status: Callable[[], Mapping[str, Any]],
        collectors: Iterable[Collector] = (),
    ) -> None:
        """``explain_unready`` returns why the service is not ready, as a sentence, or None."""
        super().__init__(self._answer_about)
        self._explain_unready = explain_unready
        self._status = status
        self._collectors = tuple(collectors)
        self._collecting: asyncio.Future[bytes] | None = None

    async def _answer_about(self, path: str) -> ProbeAnswer | None:
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
            return ProbeAnswer(f"no metrics within {METRICS_SECONDS:g} s\n".encode(), 503)
        return ProbeAnswer(text, content_type=CONTENT_TYPE)


class CounterTotals:
    """Sums of shared-memory counters over all workers. ``labels`` returns the labels of each block.

    All blocks but the first omit zeros, because a router may serve hundreds of datasets.
    """

    def __init__(self, source: Counters, labels: Callable[[], Sequence[Labels]]) -> None:
        self.source = source
        self.labels = labels

    def samples(self, name: str, **more: str) -> list[tuple[Labels, float]]:
        """Return the sum of ``name`` in each block, with its labels and ``more``."""
        totals = ((labels, self.source.total(name, block)) for block, labels in enumerate(self.labels()))
        return [({**labels, **more}, total) for block, (labels, total) in enumerate(totals) if total or not block]

    def observations(self, names: Sequence[str], unit: float, **more: str) -> list[Observations]:
        """Return the histogram of each block. ``names`` are the counters of its buckets and of its sum, in units of
        ``unit`` seconds.
        """
        found: list[Observations] = []
        for block, labels in enumerate(self.labels()):
            *counts, total = (self.source.total(name, block) for name in names)
            if not block or any(counts):
                found.append(({**labels, **more}, counts, total * unit))
        return found


def collect_counters(
    prefix: str, totals: CounterTotals, counters: Mapping[str, str], gauges: Mapping[str, str]
) -> Iterator[MetricFamily]:
    """Yield shared-memory counters as metrics: ``lookups`` becomes ``<prefix>_lookups_total``.

    ``counters`` and ``gauges`` map names in shared memory to their help texts. Each worker sets its gauges, such as
    open connections; the metric is the sum.
    """
    for name, help_text in counters.items():
        yield labelled_counter(f"{prefix}_{name}", help_text, totals.samples(name))
    for name, help_text in gauges.items():
        yield labelled_gauge(f"{prefix}_{name}", help_text, totals.samples(name))


def build_info(component: str) -> MetricFamily:
    """Return the version of ``component``: router, shard, operator, gateway or sync."""
    return info("lookupdb_build", "The version that runs.", {"component": component, "version": __version__})


def process_families(pids: Sequence[int], labels: Labels) -> Iterator[MetricFamily]:
    """Yield the process metrics of Prometheus' libraries, for this process and its workers, ``pids``."""
    figures = [found for pid in (os.getpid(), *pids) if (found := memory.process_figures(pid))]
    ended = sum(os.times()[2:4])  # of workers that have ended, so that the sum never falls
    for name, help_text, value in (
        ("cpu_seconds_total", "CPU time of all processes.", ended + sum(process.cpu for process in figures)),
        (
            "resident_memory_bytes",
            "Memory of all processes. A shared page counts once for each.",
            sum(process.resident for process in figures),
        ),
        ("virtual_memory_bytes", "Address space of all processes.", sum(process.virtual for process in figures)),
        ("start_time_seconds", "Start of the main process.", figures[0].started),
        ("open_fds", "Open files of the process that has the most.", max(process.open_files for process in figures)),
        ("max_fds", "Limit of open files of a process.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ):
        kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
        yield MetricFamily(f"process_{name}", kind, help_text, [(labels, value)])


def collect_service(component: str, supervisor: Supervisor, labels: Labels) -> Iterator[MetricFamily]:
    """Yield version, readiness and restarts of a service, and figures of its processes."""
    yield build_info(component)
    yield from process_families([*supervisor.pids.values()], labels)
    for family in _collect_own(f"lookupdb_{component}", supervisor):
        yield add_labels(family, labels)


def _collect_own(prefix: str, supervisor: Supervisor) -> Iterator[MetricFamily]:
    """Yield the families without labels. Processes are labelled ``supervisor``, ``worker-0``, …"""
    ready = supervisor.state == "ready"
    yield gauge(f"{prefix}_ready", "1 while the service answers lookups and does not drain.", int(ready))
    restarts = sum(worker.restarts.count for worker in supervisor.workers)
    yield counter(f"{prefix}_worker_restarts", "Workers restarted after they ended.", restarts)
    kills = sum(worker.kills for worker in supervisor.workers)
    yield counter(f"{prefix}_workers_killed", "Workers killed because their event loop no longer ran.", kills)
    pids = {"supervisor": os.getpid(), **supervisor.pids}

    def by_process(read: Callable[[int], int | None]) -> list[tuple[Labels, float]]:
        figures = ((process, read(pid)) for process, pid in pids.items())
        return [({"process": process}, value) for process, value in figures if value is not None]

    help_text = "Memory that only this process owns, not backed by a file, including swap."
    yield labelled_gauge(f"{prefix}_private_bytes", help_text, by_process(memory.private_bytes))
    help_text = "Page faults of the running process that had to wait for the disk."
    yield labelled_counter(f"{prefix}_major_faults", help_text, by_process(memory.major_faults))
    figures = memory.container_memory()
    for name, help_text, value in (
        ("container_limit_bytes", "The container's memory limit.", figures.limit),
        ("container_anon_bytes", "The container's memory that cannot be dropped.", figures.anon),
        ("container_file_bytes", "The container's page cache, which holds the shard.", figures.file),
    ):
        if value is not None:
            yield gauge(f"{prefix}_{name}", help_text, value)


# Runs a long-running role: signals, admin port, preparation, sockets, workers, ready file.
#
# ``lookupdb serve`` and ``lookupdb route`` describe themselves as a ``Service``, and call ``run_service``.


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of a role. The ready file has ``ready_members`` and ``pid``, ``kernels`` and ``admin``."""

    fleet: Fleet
    ports: Sequence[Sequence[socket.socket]]
    """The fleet's sockets, grouped by port."""
    admin_listener: socket.socket
    ready_members: Mapping[str, Any]
    ready_file: Path | None = None
    prepare: Callable[[], Awaitable[None]] = field(default=partial(asyncio.sleep, 0))
    """Awaited before the workers start, while the admin port already reports that the service is not ready."""
    collectors: Callable[[Supervisor], Sequence[Collector]] = field(default=lambda _: ())
    status: Callable[[], Mapping[str, Any]] = field(default=dict)


async def run_service(service: Service) -> None:
    """Run ``service`` until SIGTERM, SIGINT or SIGHUP and the drain that follows; a second signal ends it at once.

    Raises LookupdbError if preparation fails, a worker cannot be started, or a port is in use by now.
    """
    supervisor = Supervisor(service.fleet)
    preparation = asyncio.ensure_future(service.prepare())

    def stop() -> None:
        preparation.cancel()
        supervisor.drain()

    def describe() -> dict[str, Any]:
        return {
            "version": __version__,
            "pid": os.getpid(),
            "state": supervisor.state,
            **service.ready_members,
            "workers": [worker.describe() for worker in supervisor.workers],
            **service.status(),
        }

    admin = AdminPort(
        explain_unready=lambda: _explain_unready(supervisor, preparation),
        status=describe,
        collectors=service.collectors(supervisor),
    )
    loop = asyncio.get_running_loop()
    for number in _END_SIGNALS:
        loop.add_signal_handler(number, stop)
    server = await admin.start(service.admin_listener)
    announcement = asyncio.create_task(_announce(service, supervisor))
    try:
        await asyncio.wait((preparation,))
        if not preparation.cancelled():
            preparation.result()
            for sockets in service.ports:
                listeners.listen(sockets)
        await supervisor.run()
    finally:
        announcement.cancel()
        if service.ready_file:
            service.ready_file.unlink(missing_ok=True)
        await server.cleanup()


async def _announce(service: Service, supervisor: Supervisor) -> None:
    """Announce the ports once the service is ready: nothing else shows which free ports it took."""
    await supervisor.wait_ready()
    ports = {**service.ready_members, "admin": listeners.bound_port(service.admin_listener)}
    kernels = supervisor.workers[0].report["kernels"]
    log.info("ready", extra={**ports, "kernels": kernels})
    while service.ready_file:
        try:
            return launch.write(service.ready_file, {"pid": os.getpid(), "kernels": kernels, **ports})
        except OSError as error:  # the disk may have room again
            log.warning("ready file not written", extra={"error": str(error)})
            await asyncio.sleep(_READY_FILE_SECONDS)


def _explain_unready(supervisor: Supervisor, preparation: asyncio.Future[None]) -> str | None:
    match supervisor.state:
        case WorkerState.READY:
            return None
        case WorkerState.DRAINING:
            return "draining"
        case _ if not preparation.done():
            return "preparing"
        case _:
            unready_workers = [worker for worker in supervisor.workers if worker.state is not WorkerState.READY]
            reason = next((f": {error}" for worker in unready_workers if (error := reported_error(worker.report))), "")
            if any(worker.state is WorkerState.STALLED for worker in unready_workers):
                reason = ": its event loop does not run"
            return f"not ready: worker {', '.join(str(worker.index) for worker in unready_workers)}{reason}"
