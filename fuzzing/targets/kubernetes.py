"""Input of the operator: datasets and their status, a builder's termination message, pods."""

from __future__ import annotations

from typing import Any, Final

import orjson

from fuzzing.target import JSON_WORDS, Target
from lookupdb_operator.cluster.parse import parse_build_result, parse_dataset
from lookupdb_operator.cluster.workloads import diagnose_warning
from lookupdb_operator.status import to_json

_META: Final = {"namespace": "default", "name": "airports", "uid": "8d3f6b1a", "generation": 1, "resourceVersion": "1"}
_SPEC: Final = {"source": {"url": "s3://b/f.csv"}, "key": {"columns": ["id"]}, "shards": 2}
_STATUS: Final = {"phase": "Ready", "activeGeneration": "g1", "lastGeneration": 1, "conditions": [], "rollouts": []}


def check_dataset(data: bytes) -> None:
    """A dataset is accepted, or has a problem with a reason. A status is accepted if it can be written."""
    members = _parse(data)
    body: dict[str, Any] = {"metadata": dict(_META), "spec": members.get("spec"), "status": members.get("status")}
    if not all(isinstance(body[name], dict | None) for name in ("spec", "status")):
        return  # the API server enforces the CRD's shape up to here
    dataset = parse_dataset(body)
    assert (dataset.parsed is None) == (dataset.problem is not None)
    if dataset.status_problem is None:
        orjson.dumps(to_json(dataset.status))


def check_build_result(data: bytes) -> None:
    """A builder's termination message is a result that fits into the status, or none."""
    result = parse_build_result(data.decode(errors="replace"))
    if result is None:
        return
    for count in (result.records, result.file_bytes, result.largest_shard_bytes, result.exit_code):
        assert type(count) is int and 0 <= count < 2**53
    assert type(result.seconds) is float and 0 <= result.seconds < 1e9


def check_warning(data: bytes) -> None:
    """Statuses of pods become a trouble of one line, or none."""
    text = data.decode(errors="replace")
    reason, _, message = text.partition(" ")
    trouble = diagnose_warning("Pod", "airports-build-x", reason, message, component="builder")
    if trouble is not None:
        assert "\n" not in trouble.message


def _parse(data: bytes) -> dict[str, Any]:
    try:
        members = orjson.loads(data)
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}


TARGETS: Final = (
    Target(
        "datasets",
        check_dataset,
        (orjson.dumps({"spec": _SPEC, "status": _STATUS}),),
        (*JSON_WORDS, b'"refresh"', b'"gates"'),
    ),
    Target(
        "build-results",
        check_build_result,
        (
            b'loading\n{"outcome":"built","generation":"g1","records":3,"fileBytes":4096,"seconds":1.5,"builtAt":"2026-01-01T00:00:00Z"}',
            b'{"outcome":"failed","exitCode":3,"reason":"BadSource","message":"no such file"}',
        ),
        (*JSON_WORDS, b'"records"', b'"seconds"', b'"exitCode"', b"1.5", b"\n"),
    ),
    Target(
        "warnings",
        check_warning,
        (
            b'FailedMount MountVolume.SetUp failed for volume "tls" : secret "x" not found',
            b"FailedScheduling 0/3 nodes are available: 3 Insufficient memory.",
            b'Failed Failed to pull image "x": not found',
        ),
        (b'"', b"secret", b"configmap", b"\n", b"0/3", b"exceeded quota", b"FailedCreate ", b"forbidden"),
    ),
)
