"""Parts of objects as Kubernetes 1.34 writes them, for tests of parsers."""

from __future__ import annotations

from typing import Any

from lookupdb_operator import names


def meta(**members: Any) -> dict[str, Any]:
    return {
        "name": "airports",
        "namespace": "maps",
        "uid": "uid-1",
        "resourceVersion": "41",
        "generation": 2,
        "creationTimestamp": "2026-03-01T12:00:00Z",
        "managedFields": [{"manager": "kubectl", "operation": "Apply"}],
        **members,
    }


def job(conditions: list[dict[str, Any]], **status: Any) -> dict[str, Any]:
    return {
        "metadata": meta(
            name="airports-g3-build",
            labels=names.labels("airports", "ds-1", names.BUILDER) | {names.GENERATION: "g3"},
            annotations={names.DIGEST: "0123456789abcdef"},
        ),
        "spec": {"activeDeadlineSeconds": 21600, "backoffLimit": 0},
        "status": {"conditions": conditions, "ready": 0, "uncountedTerminatedPods": {}, **status},
    }


def condition(kind: str, reason: str, status: str = "True") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": "…", "lastProbeTime": "2026-03-01T12:00:00Z"}
