"""Log lines and traces.

A log line is one event, to standard error, as text or JSON. Lookups are never logged. Traces of requests, builds and
reconciles are exported by OpenTelemetry if the environment names an endpoint. All code for OpenTelemetry is in
``lookupdb.spans``, which is imported only then: without an endpoint, traces cost nothing.
"""

from __future__ import annotations

import datetime
import io
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lookupdb.wording import escape_controls, render_json

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import ReadableBuffer

    from lookupdb.spans import Attribute, Spans, TimedSpan

log = logging.getLogger(__name__)

LOG_FILE: Final = "LOOKUPDB_LOG_FILE"
"""The variable that names the file to which a build of `lookupdb up` writes its log, besides the terminal."""
NAMED_ERRORS: Final = "LOOKUPDB_NAMED_ERRORS"
"""The variable that makes a build's error name its dataset. `lookupdb up` sets it if it serves several."""
_context: ContextVar[Mapping[str, str]] = ContextVar("log_fields", default=MappingProxyType({}))
_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class YieldingFile(io.FileIO):
    """A file that pretends to accept whatever is written to it."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write ``data``, or drop it if the file refuses it. Return the number of bytes that count as written."""
        try:
            written = super().write(data)
        except OSError:  # the disk is full, or the reader is gone
            written = None
        return memoryview(data).nbytes if written is None else written


def open_log(path: str | Path) -> io.TextIOWrapper:
    """Open the log at ``path`` to append lines. It drops what it cannot write. Raises OSError."""
    return io.TextIOWrapper(io.BufferedWriter(YieldingFile(path, "a")), "utf-8")


def configure_logging(style: str) -> None:
    """Send all log records to standard error in ``style``, text or json. Fields given as ``extra=`` follow the message.
    The file that LOG_FILE names, if any, gets the records too, as text."""
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    handlers[0].setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    if path := os.environ.get(LOG_FILE):
        handlers.append(logging.StreamHandler(open_log(path)))
        handlers[1].setFormatter(_TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)


@contextmanager
def log_fields(**fields: str | None) -> Iterator[None]:
    """Add ``fields`` to the JSON lines that this thread or task logs in the block; None adds nothing."""
    given = {name: value for name, value in fields.items() if value is not None}
    token = _context.set({**_context.get(), **given})
    try:
        yield
    finally:
        _context.reset(token)


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}


def _format_time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _extra_fields(record).items())
        source = record.name.removeprefix("lookupdb.")
        line = f"{_format_time(record)} {record.levelname:<7} {source}: {record.getMessage()}{fields}"
        return escape_controls(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _format_time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return render_json({**entry, **_context.get(), **_extra_fields(record)}, default=str).decode()


# Traces.


ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SAMPLED: Final = 0x01
"""The flag of a ``traceparent`` whose sender keeps the trace."""
_FLUSH_SECONDS: Final = 3.0
"""Time to export the last spans when a build or an operator ends."""

_TRACEPARENT: Final = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16


class TraceParent(NamedTuple):
    """The caller's span, from the header field ``traceparent`` (W3C Trace Context)."""

    trace_id: int
    span_id: int
    flags: int


def parse_traceparent(field: bytes | None) -> TraceParent | None:
    """Return the caller's span; None without one, or if ``field`` is invalid: the request then begins its own trace."""
    found = None if field is None else _TRACEPARENT.fullmatch(field)
    if found is None or found[1] == _NO_TRACE or found[2] == _NO_SPAN:
        return None
    return TraceParent(*(int(part, 16) for part in found.groups()))


def is_wanted() -> bool:
    """Return whether the environment names an endpoint for spans."""
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not is_disabled and any(os.environ.get(name) for name in ENDPOINTS)


def open_spans(service: str, *, samples_roots: bool) -> Spans | None:
    """Return the maker of the spans of ``service``; None if the environment wants no spans, or, with a warning, if they
    are impossible.

    ``samples_roots``: keep spans without a parent. A sampler in the environment takes precedence.
    """
    if not is_wanted():
        return None
    try:
        from lookupdb.spans import Spans

        return Spans(service, samples_roots=samples_roots)
    except ImportError as error:
        named = next(name for name in ENDPOINTS if os.environ.get(name))
        log.warning("no traces: %s is set, but %s; pip install 'lookupdb[otel]'", named, error)
    except Exception as error:  # an invalid setting of OpenTelemetry is no reason to stop serving
        log.warning("no traces: the settings of OpenTelemetry are not accepted: %s", error)
    return None


_spans: ContextVar[Spans | None] = ContextVar("spans", default=None)
"""Makes the spans of ``open_span``; None without traces."""


@contextmanager
def open_tracing(service: str) -> Iterator[None]:
    """Export the spans of ``open_span`` in the block, and in its tasks, if the environment names an endpoint."""
    spans = open_spans(service, samples_roots=True)
    token = _spans.set(spans)
    try:
        yield
    finally:
        _spans.reset(token)
        if spans is not None:
            spans.close(_FLUSH_SECONDS)


class SpanHandle:
    """The span of a block, or nothing if there are no traces."""

    def __init__(self, span: TimedSpan | None) -> None:
        self._span = span
        self._phase: TimedSpan | None = None
        self.is_settled = False
        """True if the outcome is known: no exception changes it."""

    def describe(self, **attributes: Attribute | None) -> None:
        """Add ``attributes``, called ``lookupdb.NAME``; None adds nothing."""
        if self._span is not None:
            self._span.describe(**attributes)

    def settle(self, outcome: str, *, is_failure: bool) -> None:
        """Record the ``outcome``, a single word, because messages may contain data."""
        if self.is_settled:
            return
        self.is_settled = True
        self.describe(outcome=outcome)
        for span in (self._phase, self._span):
            if is_failure and span is not None:
                span.fail(outcome)

    def begin_phase(self, name: str, total: int | None, unit: str) -> None:
        """Begin a child span for a phase. A progress display has the same methods."""
        if self._span is not None:
            self._phase = self._span.begin_child(name)

    def advance(self, amount: int, rows: int = 0) -> None:
        """Add nothing: a span has no progress."""

    def end_phase(self) -> None:
        """End the child."""
        if self._phase is not None:
            self._phase.end()
            self._phase = None


@contextmanager
def open_span(name: str, namespace: str, dataset: str, generation: str | None = None) -> Iterator[SpanHandle]:
    """Time the block as a span of a dataset. Its structured log lines carry the dataset, and the ids of the span."""
    fields = {"dataset": f"{namespace}/{dataset}", "generation": generation}
    spans = _spans.get()
    span = None if spans is None else spans.begin(name)
    handle = SpanHandle(span)
    handle.describe(namespace=namespace, dataset=dataset, generation=generation)
    with log_fields(**fields, **({} if span is None else span.ids)):
        try:
            yield handle
        except BaseException as error:
            handle.settle(getattr(error, "reason", type(error).__name__), is_failure=True)
            raise
        finally:
            handle.end_phase()
            if span is not None:
                span.end()
