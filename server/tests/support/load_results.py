"""A plan, what two senders have reported of it, and its result; the schema of results."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson

from lookupdb.load.fail_if import parse_condition
from lookupdb.load.key_choice import KeyDistribution
from lookupdb.load.preflight import DatasetFacts
from lookupdb.load.recording import Recording
from lookupdb.load.result import LoadSetting, make_document
from lookupdb.load.schedule import make_profile
from lookupdb.load.sender_plan import LoadPlan
from lookupdb.load.tally import Tally

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
        "distribution": KeyDistribution(1.1),
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
            tally.count_failure("unavailable", "Deadline")
            tally.count_failure("httpErrors", "401 unauthenticated")
            tally.count_failure("broken", "reset")
            tally.count_failure("invalid", "not <xml> & \x1b[2J")
            tally.unavailable_keys = 1
            tally.failure_latencies = [10, 20, 30, 40]
            recording.take(process, step / 4, Tally.from_json(orjson.loads(orjson.dumps(tally.to_json()))))
    recording.take(0, 14.9, Tally(timeouts=3, latencies=[5_000_000] * 3))
    recording.finish()
    return recording


def make_result(*conditions: str, recording: Recording | None = None) -> dict[str, Any]:
    facts = DatasetFacts("shop", "people", "g1", 3000)
    setting = LoadSetting("http://a:80", facts, None, make_plan(), 1000, "keys.txt", "2026-11-24T00:00:00.000Z")
    document = make_document(
        setting,
        recording or make_recording(),
        seconds=10.0,
        is_interrupted=False,
        conditions=[parse_condition(text) for text in conditions],
    )
    parsed: dict[str, Any] = orjson.loads(orjson.dumps(document))
    return parsed
