"""A plan, what two senders have reported of it, and its result; the schema of results."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson

from lookupdb.load.plan import (
    DatasetFacts,
    LoadOrder,
    LoadPlan,
    SenderPlan,
    Tally,
    make_profile,
    make_target,
)
from lookupdb.load.result import Recording, make_document, parse_condition

SCHEMA = orjson.loads((Path(__file__).parents[3] / "docs" / "reference" / "load-result.schema.json").read_bytes())


def make_plan(**changes: Any) -> LoadPlan:
    rate, seconds = changes.pop("rate", 100), changes.pop("duration", 10)
    members: dict[str, Any] = {
        "profile": make_profile(rate, rate, ramp=0, duration=seconds, warmup=1),
        "arrivals": "poisson",
        "warmup": 1,
        "batch": 1,
        "partial": False,
        "hit_ratio": 1.0,
        "distribution": "zipf:1.1",
        "seed": 1,
        "max_in_flight": 10,
        "processes": 2,
        "timeout": 5.0,
    }
    return LoadPlan(**{**members, **changes})


def make_recording() -> Recording:
    """Two senders, ten seconds, a cutover, and all kinds of failures."""
    recording, source = Recording(10, 2), random.Random(1)
    for step in range(40):
        for process in (0, 1):
            tally = Tally(scheduled=14, held_back=1, answered=10, found=8, missing=2, busy=0.05)
            tally.latencies = [int(source.expovariate(1 / 2000)) + 100 for _ in range(10)]
            tally.lags = [50] * 14
            tally.count_generation("g1" if step < 20 else "g2", step / 4)
            tally.failures["unavailable"] = {"Deadline": 1}
            tally.failures["httpErrors"] = {"401 unauthenticated": 1}
            tally.failures["broken"] = {"reset": 1}
            tally.failures["invalid"] = {"not <xml> & \x1b[2J": 1}
            tally.unavailable_keys = 1
            tally.failure_latencies = [10, 20, 30, 40]
            recording.take(process, step / 4, Tally(**orjson.loads(orjson.dumps(tally))))
    recording.take(0, 14.9, Tally(timeouts=3, latencies=[5_000_000] * 3))
    recording.finish()
    return recording


def make_result(*conditions: str, recording: Recording | None = None) -> dict[str, Any]:
    facts = DatasetFacts("shop", "people", 3000, "g1")
    sender = SenderPlan(make_plan(), make_target("http://a:80", None, None, []), 0, None, ["key"] * 1000)
    document = make_document(
        LoadOrder(sender, facts, is_asked_by_name=False, key_source="keys.txt"),
        recording or make_recording(),
        started_at="2026-11-24T00:00:00.000Z",
        seconds=10.0,
        is_interrupted=False,
        conditions=[parse_condition(text) for text in conditions],
    )
    parsed: dict[str, Any] = orjson.loads(orjson.dumps(document))
    return parsed
