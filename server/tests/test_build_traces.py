"""Spans and log lines of builds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from support.build_project import Project
from support.collectors import attributes_of, collecting
from support.ports import free_port


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_build_is_a_span_with_a_child_for_each_phase(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(monkeypatch) as collector:
        project.built()
        spans = collector.spans
    assert collector.services == {"lookupdb-build"}
    build = next(span for span in spans if span.name == "build")
    assert attributes_of(build) == {
        "lookupdb.namespace": "default",
        "lookupdb.dataset": "people",
        "lookupdb.generation": "g1",
        "lookupdb.records": 1000,
        "lookupdb.outcome": "built",
    }
    phases = [span.name for span in sorted(spans, key=lambda span: span.start_time_unix_nano) if span is not build]
    assert phases == ["read", "training", "writing", "syncing", "publishing"]
    assert {span.parent_span_id for span in spans if span is not build} == {build.span_id}


def test_a_failed_build_names_its_reason_and_no_row(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.rows(10, "p1,somebody else,1\n")
    with collecting(monkeypatch) as collector:
        assert project.build().exception is not None
        build = next(span for span in collector.spans if span.name == "build")
    assert attributes_of(build)["lookupdb.outcome"] == attributes_of(build)["error.type"] == "BadSource"
    assert build.status.code == build.status.STATUS_CODE_ERROR
    assert not any(b"p1" in body for body in collector.bodies)


def test_a_dead_collector_fails_no_build(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(monkeypatch):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
        assert project.built()["outcome"] == "built"


def test_lines_of_a_build_carry_its_dataset_and_span(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.describe(gates={"maxShrinkPercent": 1})
    with collecting(monkeypatch) as collector:
        program = (
            "import logging, sys; from lookupdb.builder import build\n"
            "from lookupdb.cli.build import command; make = build.build_generation\n"
            "def noisy(*given): logging.getLogger('here').warning('hello'); return make(*given)\n"
            "build.build_generation = noisy; command(sys.argv[1:])"
        )
        words = [
            "-f",
            str(project.manifest),
            "--store",
            str(project.store),
            "--log-format",
            "json",
            "--generation",
            "g1",
        ]
        command = [sys.executable, "-c", program, *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        build = next(span for span in collector.spans if span.name == "build")
    line = next(orjson.loads(line) for line in done.stderr.splitlines() if '"hello"' in line)
    assert (line["dataset"], line["generation"]) == ("default/people", "g1")
    assert (line["trace_id"], line["span_id"]) == (build.trace_id.hex(), build.span_id.hex())


def test_without_an_endpoint_a_build_does_not_load_opentelemetry(project: Project) -> None:
    program = "import sys; from lookupdb.cli.build import command\ntry: command(sys.argv[1:])\n"
    program += "finally: print('opentelemetry' in sys.modules)"
    words = ["-f", str(project.manifest), "--store", str(project.store)]
    done = subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False"
