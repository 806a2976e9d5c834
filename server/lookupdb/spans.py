"""Spans through the SDK of OpenTelemetry, which only ``lookupdb.telemetry`` imports, and only if spans are wanted.

Spans wait in a bounded queue for the exporter's thread. A full queue drops new spans, and a failing collector loses a
whole batch: both are counted, and neither delays the caller. A span never contains a key, a value or a message.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import DEFAULT_OFF, DEFAULT_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from lookupdb import __version__

Attribute: TypeAlias = str | int
Kind: TypeAlias = Literal["INTERNAL", "SERVER", "CLIENT"]
Count: TypeAlias = Callable[[int, int], None]
"""Called in the exporter's thread with the numbers of spans that were exported and dropped."""

SAMPLER: Final = "OTEL_TRACES_SAMPLER"
QUEUE_SPANS: Final = 2048
"""The SDK's default, which OTEL_BSP_MAX_QUEUE_SIZE overrides."""
_QUIET_SECONDS: Final = 60.0
"""The shortest time between two log lines of the exporter."""


class TimedSpan:
    """A running span."""

    def __init__(self, span: trace.Span, tracer: trace.Tracer) -> None:
        self._span = span
        self._tracer = tracer
        context = span.get_span_context()
        self.ids = {
            "trace_id": trace.format_trace_id(context.trace_id),
            "span_id": trace.format_span_id(context.span_id),
        }

    @property
    def is_kept(self) -> bool:
        """Return whether the sampler keeps the span."""
        return self._span.is_recording()

    def describe(self, **attributes: Attribute | None) -> None:
        """Add ``attributes``, called ``lookupdb.NAME``; None adds nothing."""
        self.add({f"lookupdb.{name}": value for name, value in attributes.items() if value is not None})

    def add(self, attributes: dict[str, Attribute]) -> None:
        """Add attributes by their whole names."""
        self._span.set_attributes(attributes)

    def fail(self, reason: str) -> None:
        """Mark the span as failed for ``reason``."""
        self._span.set_attribute("error.type", reason)
        self._span.set_status(Status(StatusCode.ERROR, reason))

    def begin_child(self, name: str, kind: Kind = "INTERNAL", start: int | None = None) -> TimedSpan:
        """Begin a child, now or at ``start`` (nanoseconds since 1970)."""
        context = trace.set_span_in_context(self._span)
        return TimedSpan(self._tracer.start_span(name, context, SpanKind[kind], start_time=start), self._tracer)

    def end(self, moment: int | None = None) -> None:
        """End the span, now or at ``moment`` (nanoseconds since 1970)."""
        self._span.end(moment)


class Spans:
    """Makes the spans of a process, and exports those that the sampler keeps."""

    def __init__(self, service: str, *, samples_roots: bool) -> None:
        chosen = os.environ.get(SAMPLER)
        self.may_sample_roots = samples_roots or bool(chosen)
        """True if a span without a parent, or with one that is not sampled, may be kept."""
        own = {
            "service.name": service,
            "service.version": __version__,
            "service.instance.id": f"{socket.gethostname()}/{os.getpid()}",
        }
        self._exporter = _CountingExporter()

        self._provider = TracerProvider(
            sampler=None if chosen else DEFAULT_ON if samples_roots else DEFAULT_OFF,  # None: the environment's
            resource=Resource.create(own).merge(OTELResourceDetector().detect()),  # the environment takes precedence
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(_BoundedProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("lookupdb", __version__)

    def count_by(self, count: Count) -> None:
        """Report exported and dropped spans to ``count``."""
        self._exporter.count = count

    def begin(
        self,
        name: str,
        kind: Kind = "INTERNAL",
        parent: tuple[int, int, int] | None = None,
        attributes: dict[str, Attribute] | None = None,
        start: int | None = None,
    ) -> TimedSpan:
        """Begin a span, now or at ``start`` (nanoseconds since 1970). ``parent`` is a span of another process: the
        ids of trace and span, and flags."""
        context = None
        if parent is not None:
            trace_id, span_id, flags = parent
            caller = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
            context = trace.set_span_in_context(NonRecordingSpan(caller))
        span = self._tracer.start_span(name, context, SpanKind[kind], attributes, start_time=start)
        return TimedSpan(span, self._tracer)

    def close(self, seconds: float) -> None:
        """Export the queued spans, for ``seconds`` at most."""
        # Not in this thread: the processor would wait up to 30 seconds for a dead collector.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(seconds)


class _CountingExporter(SpanExporter):
    """Exports by OTLP over HTTP, and counts."""

    def __init__(self) -> None:
        self._exporter = trace_exporter.OTLPSpanExporter()
        logging.getLogger(trace_exporter.__name__).addFilter(_OccasionalFilter())
        self.count: Count = lambda exports, drops: None
        self.taken = 0
        """Spans that have left the queue."""
        self.overflow = 0
        """Spans that the full queue has dropped, in all."""
        self._counted_overflow = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send ``spans``, in the exporter's thread."""
        self.taken += len(spans)
        result = self._exporter.export(spans)
        overflow, self._counted_overflow = self.overflow - self._counted_overflow, self.overflow
        is_exported = result is SpanExportResult.SUCCESS
        self.count(len(spans) if is_exported else 0, overflow + (0 if is_exported else len(spans)))
        return result

    def shutdown(self) -> None:
        """End retries that wait."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class _BoundedProcessor(BatchSpanProcessor):
    """Drops new spans while the queue is full, and counts them. The SDK drops the oldest, and counts nothing."""

    def __init__(self, exporter: _CountingExporter) -> None:
        self._limit = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_SPANS))
        super().__init__(exporter, self._limit)
        self._counting = exporter
        self._queued = 0
        """Spans that have entered the queue."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue ``span``."""
        if self._queued - self._counting.taken >= self._limit:
            self._counting.overflow += 1
            return
        self._queued += 1
        super().on_end(span)


class _OccasionalFilter(logging.Filter):
    """Passes a line now and then, because a dead collector logs several failures for every batch."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether ``record`` is logged."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _QUIET_SECONDS
        return True
