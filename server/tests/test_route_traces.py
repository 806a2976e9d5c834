"""Spans of requests, from a router as a user starts it to a collector."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
import pytest
from support.collectors import Collector, attributes_of, collecting
from support.fleets import Shards, fleet, fleet_entry
from support.ports import free_port
from support.routers import Router, routing
from support.routing import table_file
from support.shards import Running, write_generation
from support.waiting import until

from lookupdb.telemetry import parse_traceparent
from support import launching

pytestmark = pytest.mark.long

SECRET = "person-4711"
KEYS = {SECRET: b"value of a person", **{f"other-{i}": b"v%d" % i for i in range(40)}}
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OTHER = {"namespace": "default", "name": "other", "uid": "local"}
SAMPLED = [("traceparent", f"00-{TRACE}-{CALLER}-01")]


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generation(tmp_path_factory.mktemp("store"), KEYS, shards=2)


@pytest.fixture(scope="module")
def shards(generation: Path) -> Iterator[Shards]:
    with fleet(generation) as shards:
        yield shards


@pytest.fixture
def table(tmp_path: Path, generation: Path, shards: Shards) -> Path:
    path = tmp_path / "table.json"
    path.write_bytes(table_file(fleet_entry(generation, shards)))
    return path


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting(monkeypatch) as collector:
        yield collector


def ask(
    router: Router,
    target: str,
    fields: Sequence[tuple[str, str]] = (),
    keys: Sequence[str] | None = None,
    *,
    seconds: float = 60,
) -> int:
    """Send one request, and return the status of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=seconds)
    body = b"" if keys is None else orjson.dumps({"keys": keys})
    connection.putrequest("GET" if keys is None else "POST", target)
    for name, value in fields:
        connection.putheader(name, value)
    if keys is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    # A client that gives up resets the connection: a router answers one that only stops sending.
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.closing(connection):
        response = connection.getresponse()
        response.read()
        return response.status


def metric(router: Router, name: str) -> float:
    """The value of ``lookupdb_router_NAME``, whatever its labels."""
    text = router.get("/metrics", admin=True)[1].decode()
    found = re.search(rf"^lookupdb_router_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def loads_opentelemetry(router: Router) -> bool:
    pid = router.status()["workers"][0]["pid"]
    return "google/_upb" in Path(f"/proc/{pid}/maps").read_text()


def test_a_sampled_lookup_has_a_span_of_its_caller_and_a_child_for_its_shard(table: Path, collector: Collector) -> None:
    with routing(table) as router:
        assert ask(router, f"/v1/lookup/{SECRET}", SAMPLED) == 200
        spans = collector.wait_for(2)
        lookup, child = sorted(spans, key=lambda span: span.name)
        assert loads_opentelemetry(router)
    assert collector.services == {"lookupdb-router"}
    assert (lookup.name, lookup.kind) == ("GET /v1/lookup/{key}", lookup.SPAN_KIND_SERVER)
    assert {lookup.trace_id.hex(), child.trace_id.hex()} == {TRACE}
    assert lookup.parent_span_id.hex() == CALLER
    assert child.parent_span_id == lookup.span_id
    assert attributes_of(lookup) == {
        "http.request.method": "GET",
        "http.route": "/v1/lookup/{key}",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "lookupdb.namespace": "default",
        "lookupdb.dataset": "sample",
        "lookupdb.generation": "g1",
    }
    facts = attributes_of(child)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", facts.pop("lookupdb.replica"))
    assert facts.pop("lookupdb.shard") in (0, 1)
    assert facts == {"lookupdb.keys": 1, "lookupdb.generation": "g1", "lookupdb.outcome": "Answered"}
    assert lookup.start_time_unix_nano <= child.start_time_unix_nano <= child.end_time_unix_nano
    assert child.end_time_unix_nano <= lookup.end_time_unix_nano


def test_a_sampled_batch_has_a_child_for_each_shard(table: Path, collector: Collector) -> None:
    with routing(table) as router:
        assert ask(router, "/v1/lookup", SAMPLED, [*KEYS, "missing"]) == 200
        spans = collector.wait_for(3)
        until(lambda: metric(router, "spans_exported_total") == 3, "they are counted")
        assert metric(router, "spans_dropped_total") == 0
    batch = next(span for span in spans if span.name == "POST /v1/lookup")
    children = [attributes_of(span) for span in spans if span.parent_span_id == batch.span_id]
    assert sorted(facts["lookupdb.shard"] for facts in children) == [0, 1]
    assert sum(facts["lookupdb.keys"] for facts in children) == len(KEYS) + 1
    assert attributes_of(batch)["http.response.status_code"] == 200


def test_nothing_that_a_client_sends_is_exported_but_its_ids(table: Path, collector: Collector) -> None:
    paths = (
        f"/v1/lookup/{SECRET}",
        f"/v1/lookup?key={SECRET}",
        f"/{SECRET}",
        f"/v1/lookup/{SECRET}?x=%",
        "/v1/dataset",
    )
    with routing(table, "--max-keys", "2") as router:
        statuses = [ask(router, path, SAMPLED) for path in paths]
        statuses += [ask(router, "/v1/lookup", SAMPLED, keys) for keys in ([SECRET], [SECRET, "missing"], [*KEYS])]
        statuses.append(ask(router, f"http://router/v1/datasets/{SECRET}/lookup/{SECRET}", SAMPLED))
        count = len(statuses)
        until(lambda: sum(span.kind == span.SPAN_KIND_SERVER for span in collector.spans) >= count, "all are exported")
    assert statuses == [200, 200, 404, 200, 200, 200, 200, 413, 404]
    assert not any(SECRET.encode() in body or KEYS[SECRET] in body for body in collector.bodies)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [("traceparent", f"00-{TRACE}-{CALLER}-00")],
        [("traceparent", f"01-{TRACE}-{CALLER}-01")],
        [("traceparent", f"00-{TRACE.upper()}-{CALLER}-01")],
        [("traceparent", f"00-{'0' * 32}-{CALLER}-01")],
        [*SAMPLED, *SAMPLED],
    ],
)
def test_a_request_that_is_not_sampled_exports_nothing(
    table: Path, collector: Collector, fields: list[tuple[str, str]]
) -> None:
    with routing(table) as router:
        assert ask(router, f"/v1/lookup/{SECRET}", fields) == 200
        assert ask(router, "/readyz", SAMPLED) == 200
    assert collector.bodies == []


def test_a_sampler_keeps_requests_without_a_caller(
    table: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1.0")
    with routing(table) as router:
        for _ in range(3):
            assert ask(router, f"/v1/lookup/{SECRET}") == 200
        spans = collector.wait_for(6)
        assert ask(router, f"/v1/lookup/{SECRET}", [("traceparent", f"00-{TRACE}-{CALLER}-00")]) == 200
    assert len(collector.spans) == 6, "a caller that does not sample decides for its requests"
    assert len({span.trace_id for span in spans}) == 3
    assert sum(not span.parent_span_id for span in spans) == 3


def test_without_an_endpoint_nothing_is_loaded(
    table: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    with routing(table) as router:
        assert ask(router, f"/v1/lookup/{SECRET}", SAMPLED) == 200
        assert not loads_opentelemetry(router)
    assert collector.bodies == []


def test_a_dead_collector_harms_no_lookup_and_delays_no_stop(
    table: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    with routing(table, "--deadline-ms", "5000") as router:
        for _ in range(30):
            assert ask(router, f"/v1/lookup/{SECRET}", SAMPLED) == 200
        until(lambda: metric(router, "spans_dropped_total") == 60, "all drops are counted: two spans for each lookup")
        assert metric(router, "spans_exported_total") == 0
        began = time.monotonic()
    assert time.monotonic() - began < 4
    assert capfd.readouterr().err.count("opentelemetry.exporter") == 1, "it says so now and then"


def test_an_unavailable_shard_is_an_error_with_its_reason(
    tmp_path: Path, generation: Path, collector: Collector
) -> None:
    with fleet(generation) as shards:
        path = tmp_path / "table.json"
        path.write_bytes(table_file(fleet_entry(generation, shards)))
        with routing(path, "--deadline-ms", "500") as router:
            for replicas in shards:
                replicas[0].kill()
            until(lambda: metric(router, "endpoints_ready") == 0, "no shard is reachable")
            assert ask(router, "/v1/lookup", SAMPLED, [*KEYS]) == 503
            spans = collector.wait_for(3)
    batch = next(span for span in spans if span.name == "POST /v1/lookup")
    children = [span for span in spans if span.parent_span_id == batch.span_id]
    assert {span.status.code for span in spans} == {batch.status.STATUS_CODE_ERROR}
    assert attributes_of(batch)["error.type"] == "503"
    assert {attributes_of(span)["lookupdb.outcome"] for span in children} <= {"Unreachable", "Deadline"}


def test_a_batch_whose_client_leaves_ends_as_abandoned(tmp_path: Path, generation: Path, collector: Collector) -> None:
    with fleet(generation) as shards:
        path = tmp_path / "table.json"
        path.write_bytes(table_file(fleet_entry(generation, shards)))
        with routing(path) as router:
            frozen = [worker["pid"] for running in (shards[0][0], shards[1][0]) for worker in running_workers(running)]
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(TimeoutError):
                    ask(router, "/v1/lookup", SAMPLED, [*KEYS], seconds=0.5)
                spans = collector.wait_for(3)
            finally:
                for pid in frozen:
                    with contextlib.suppress(ProcessLookupError):  # the supervisor kills a worker that hangs
                        os.kill(pid, signal.SIGCONT)
    assert {attributes_of(span)["error.type"] for span in spans} == {"Abandoned"}
    assert len(spans) == 3


def running_workers(running: Running) -> list[dict[str, int]]:
    workers: list[dict[str, int]] = Router(running.process, 0, running.admin).status()["workers"]
    return workers


def test_a_router_of_several_datasets_names_the_one_that_is_asked(
    tmp_path: Path, table: Path, shards: Shards, collector: Collector
) -> None:
    other = write_generation(tmp_path, {"a": b"1"}, name="other")
    with fleet(other) as others:
        second = tmp_path / "other.json"
        second.write_bytes(table_file(fleet_entry(other, others), dataset=OTHER))
        ready = tmp_path / "ready.json"
        words = ["--dataset", f"sample={table}", "--dataset", f"other={second}", "--port", "0", "--admin-port", "0"]
        process = launching.start("route", [*words, "--ready-file", str(ready), "--drain-seconds", "0"])
        try:
            until(ready.exists, "the router is ready", 90)
            ports = orjson.loads(ready.read_bytes())
            router = Router(process, ports["port"], ports["admin"])
            until(lambda: ask(router, "/v1/datasets/other/lookup/a") == 200, "it answers")
            assert ask(router, "/v1/datasets/other/lookup/a", SAMPLED) == 200
            assert ask(router, "/v1/lookup/a", SAMPLED) == 404
            spans = collector.wait_for(3)
        finally:
            process.terminate()
            process.wait(30)
    named, unnamed = (span for span in spans if span.kind == span.SPAN_KIND_SERVER)
    assert named.name == "GET /v1/datasets/{name}/lookup/{key}"
    assert attributes_of(named)["lookupdb.dataset"] == "other"
    assert "lookupdb.dataset" not in attributes_of(unnamed)


def test_a_missing_extra_is_named(
    table: Path,
    collector: Collector,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "lookalike" / "opentelemetry").mkdir(parents=True)
    (tmp_path / "lookalike" / "opentelemetry" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lookalike"))
    with routing(table) as router:
        assert ask(router, f"/v1/lookup/{SECRET}", SAMPLED) == 200
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is set" in (line := capfd.readouterr().err)
    assert "pip install 'lookupdb[otel]'" in line
    assert collector.bodies == []


@pytest.mark.parametrize(
    "field",
    [b"", b"00", b"00-" + b"1" * 32 + b"-" + b"0" * 16 + b"-01", b"00-" + b"1" * 32 + b"-" + b"1" * 16 + b"-01-x"],
)
def test_an_invalid_traceparent_is_ignored(field: bytes) -> None:
    assert parse_traceparent(field) is None


def test_a_valid_traceparent_is_read() -> None:
    assert parse_traceparent(SAMPLED[0][1].encode()) == (int(TRACE, 16), int(CALLER, 16), 1)
