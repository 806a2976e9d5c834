"""A collector of traces: an HTTP server that decodes what OpenTelemetry exports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from lookupdb.telemetry import ENDPOINTS
from support.waiting import until
from support.web import QuietHandler, web_server

SETTINGS = (*ENDPOINTS, "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG", "OTEL_SDK_DISABLED", "OTEL_SERVICE_NAME")


def attributes_of(span: Span) -> dict[str, Any]:
    """The attributes of a span, by name."""
    return {item.key: getattr(item.value, str(item.value.WhichOneof("value"))) for item in span.attributes}


@dataclass
class Collector:
    """What has arrived."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    status: int = 200

    @property
    def requests(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in list(self.bodies)]

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def services(self) -> set[str]:
        return {
            item.value.string_value
            for request in self.requests
            for resource in request.resource_spans
            for item in resource.resource.attributes
            if item.key == "service.name"
        }

    def wait_for(self, count: int) -> list[Span]:
        until(lambda: len(self.spans) >= count, f"{count} spans have arrived")
        return self.spans


@contextlib.contextmanager
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector, which the environment names to processes of the test."""
    collector = Collector()

    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802 - http.server calls it so
            assert self.path == "/v1/traces"
            collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with web_server(Handler) as collector.url:
        for name in SETTINGS:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield collector
