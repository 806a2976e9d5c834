"""The result of a load: one JSON document, from which all that people see is made. Its schema is
docs/reference/load-result.schema.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from lookupdb import __version__
from lookupdb.load.document import FORMAT_VERSION, KIND
from lookupdb.load.fail_if import FailCondition
from lookupdb.load.histogram import thin_curve
from lookupdb.load.preflight import DatasetFacts
from lookupdb.load.recording import Recording
from lookupdb.load.sender_plan import LoadPlan

PERCENTILES: Final = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)
_LAG_PERCENTILES: Final = (50.0, 99.0)


@dataclass(frozen=True, slots=True)
class LoadSetting:
    """What was loaded, and by what."""

    url: str
    facts: DatasetFacts
    generation: str | None
    """That was asked for by name."""
    plan: LoadPlan
    keys: int
    """From which was chosen."""
    key_source: str
    started_at: str
    """ISO 8601, UTC: when measuring began."""


def make_document(
    setting: LoadSetting,
    recording: Recording,
    *,
    seconds: float,
    is_interrupted: bool,
    conditions: Sequence[FailCondition] = (),
) -> dict[str, Any]:
    """The result, of which ``seconds`` were measured."""
    total, latencies = recording.total, recording.latencies
    wanted = {*PERCENTILES, *(condition.percentile for condition in conditions if condition.percentile is not None)}
    keys_asked = total.found + total.missing + total.unavailable_keys
    document: dict[str, Any] = {
        "formatVersion": FORMAT_VERSION,
        "kind": KIND,
        "lookupdb": __version__,
        "target": {
            "url": setting.url,
            "namespace": setting.facts.namespace,
            "name": setting.facts.name,
            "records": setting.facts.records,
            "generation": setting.facts.generation,
            "isAskedByName": setting.generation is not None,
        },
        "plan": _describe_plan(setting),
        "startedAt": setting.started_at,
        "seconds": round(seconds, 3),
        "isInterrupted": is_interrupted,
        "requests": {
            "scheduled": total.scheduled,
            "answered": total.answered,
            **{kind: dict(sorted(labels.items())) for kind, labels in total.failures.items()},
            "timeouts": total.timeouts,
            "unsent": total.unsent,
            "heldBack": total.held_back,
        },
        "keys": {
            "asked": keys_asked,
            "found": total.found,
            "missing": total.missing,
            "unavailable": total.unavailable_keys,
        },
        "mixed": total.mixed,
        "rate": {
            "scheduled": round(total.scheduled / seconds, 2) if seconds else 0.0,
            "answered": round(total.answered / seconds, 2) if seconds else 0.0,
        },
        "latency": {
            **latencies.summarize(sorted(wanted), recording.failure_count),
            "curve": [[percentile, value] for percentile, value in thin_curve(latencies, recording.failure_count)],
            "histogram": latencies.encode(),
        },
        "failureLatency": recording.failure_latencies.summarize(PERCENTILES),
        "senders": {
            "lag": recording.lags.summarize(_LAG_PERCENTILES),
            "busy": round(total.busy / seconds / setting.plan.processes, 3) if seconds else 0.0,
        },
        "generations": [
            {
                "name": name,
                "answers": span.answers,
                "firstSeconds": round(span.first, 3),
                "lastSeconds": round(span.last, 3),
            }
            for name, span in sorted(recording.total.generations.items(), key=lambda item: item[1].first)
        ],
        "points": [point.to_json() for point in recording.points],
    }
    document["failIf"] = [condition.judge(document) for condition in conditions]
    return document


def _describe_plan(setting: LoadSetting) -> dict[str, Any]:
    plan = setting.plan
    return {
        "profile": [
            {"seconds": segment.seconds, "start": segment.start, "end": segment.end}
            for segment in plan.profile.segments
        ],
        "arrivals": plan.arrivals,
        "warmupSeconds": plan.warmup,
        "durationSeconds": round(plan.duration, 6),
        "batch": plan.batch,
        "partial": plan.partial,
        "keys": setting.keys,
        "keySource": setting.key_source,
        "hitRatio": plan.hit_ratio,
        "distribution": str(plan.distribution),
        "seed": plan.seed,
        "maxInFlight": plan.max_in_flight,
        "processes": plan.processes,
        "timeoutSeconds": plan.timeout,
    }
