"""Spans and log lines of reconcile passes."""

from __future__ import annotations

import json
import logging
from datetime import datetime

import pytest
from operator_support.reconcile_bench import KEY, Bench
from support.collectors import attributes_of, collecting

from lookupdb import telemetry
from lookupdb.telemetry import open_tracing
from lookupdb_operator.cluster.api import Unreachable
from lookupdb_operator.loop.queue import RequeueRequested
from lookupdb_operator.model import Config, Observed, Plan

NAMESPACE, NAME = KEY


def _decide_nothing(observed: Observed, config: Config, now: datetime) -> Plan:
    raise Unreachable("API server", "no answer")


async def test_a_pass_is_a_span_with_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    with collecting(monkeypatch) as collector:
        with open_tracing("lookupdb-operator"):
            await bench.look()
            bench.decide = _decide_nothing
            with pytest.raises(RequeueRequested):
                await bench.look()
        done, failed = collector.spans
    assert collector.services == {"lookupdb-operator"}
    facts = {"lookupdb.namespace": NAMESPACE, "lookupdb.dataset": NAME}
    assert attributes_of(done) == {**facts, "lookupdb.outcome": "done"}
    assert attributes_of(failed) == {**facts, "lookupdb.outcome": "unreachable", "error.type": "unreachable"}
    assert failed.status.code == failed.status.STATUS_CODE_ERROR
    assert not done.parent_span_id


async def test_lines_of_a_pass_carry_its_dataset_and_span(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench()
    telemetry.configure_logging("json")
    bench.decide = _decide_nothing
    with collecting(monkeypatch) as collector:
        with open_tracing("lookupdb-operator"), pytest.raises(RequeueRequested):
            await bench.look()
        (span,) = collector.spans
    line = json.loads(capsys.readouterr().err.splitlines()[0])
    assert line["dataset"] == f"{NAMESPACE}/{NAME}"
    assert (line["trace_id"], line["span_id"]) == (span.trace_id.hex(), span.span_id.hex())
    logging.getLogger().info("afterwards")
    assert "dataset" not in json.loads(capsys.readouterr().err)


async def test_without_an_endpoint_lines_carry_the_dataset_alone(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench()
    telemetry.configure_logging("json")
    bench.decide = _decide_nothing
    with open_tracing("lookupdb-operator"), pytest.raises(RequeueRequested):
        await bench.look()
    line = json.loads(capsys.readouterr().err)
    assert line["dataset"] == f"{NAMESPACE}/{NAME}"
    assert "trace_id" not in line
