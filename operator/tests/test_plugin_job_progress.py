"""Progress of a comparison's Job: each way in which its pod fails to start, or ends, as Kubernetes 1.34 reports it."""

from __future__ import annotations

from typing import Any

import pytest

from lookupdb_operator.plugin.jobs import JobProgress, judge_job

NAME, POD = "airports-diff-1f3a9c00", "airports-diff-1f3a9c00-x7k2p"
IMAGE = "registry.example/lookupdb:0.1.0"


def _job(*conditions: tuple[str, str, str]) -> dict[str, Any]:
    held = [{"type": kind, "status": "True", "reason": why, "message": text} for kind, why, text in conditions]
    spec = {"activeDeadlineSeconds": 90}
    return {"kind": "Job", "metadata": {"name": NAME}, "spec": spec, "status": {"conditions": held}}


def _pod(phase: str = "Pending", *, container: Any = None, **status: Any) -> dict[str, Any]:
    containers = [{"name": "diff", "image": IMAGE, "state": container}] if container else []
    return {
        "kind": "Pod",
        "metadata": {"name": POD, "labels": {}},
        "spec": {"containers": [{"name": "diff", "resources": {"limits": {"memory": "256Mi"}}}]},
        "status": {"phase": phase, "containerStatuses": containers, **status},
    }


def _ended(code: int, reason: str, message: str = "") -> dict[str, Any]:
    return _pod("Failed", container={"terminated": {"exitCode": code, "reason": reason, "message": message}})


def _warning(reason: str, message: str, moment: str = "2026-01-02T12:00:00Z") -> dict[str, Any]:
    return {"kind": "Event", "reason": reason, "message": message, "lastTimestamp": moment}


REFUSED = f'Error creating: pods "{POD}" is forbidden: '
UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available."}


@pytest.mark.parametrize(
    ("job", "pod", "warnings", "told"),
    [
        pytest.param(_job(), None, [], f"Job {NAME} has no pod yet", id="just made"),
        pytest.param(
            _job(),
            None,
            [_warning("FailedCreate", REFUSED + "exceeded quota: small, requested: requests.memory=256Mi")],
            "cannot create its pods: exceeded quota: small, requested: requests.memory=256Mi; raise the namespace's"
            " quota or lower spec.serving.resources",
            id="quota",
        ),
        pytest.param(
            _job(),
            None,
            [
                _warning("FailedCreate", REFUSED + "exceeded quota: small", "2026-01-02T12:00:00Z"),
                _warning("FailedCreate", REFUSED + "violates PodSecurity", "2026-01-02T12:00:09Z"),
            ],
            "cannot create its pods: violates PodSecurity; see what the namespace's policies allow",
            id="admission: the last word counts",
        ),
        pytest.param(_job(("Suspended", "JobSuspended", "")), None, [], "resume it", id="suspended"),
        pytest.param(_job(), _pod(), [], f"pod {POD} has not started yet", id="about to start"),
        pytest.param(
            _job(), _pod(conditions=[UNPLACED]), [], f"no node takes pod {POD}: 0/3 nodes are available", id="no node"
        ),
        pytest.param(
            _job(),
            _pod(container={"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}),
            [],
            f"image {IMAGE} of pod {POD} cannot be pulled: not found",
            id="image",
        ),
        pytest.param(
            _job(),
            _pod(container={"waiting": {"reason": "ContainerCreating"}}),
            [_warning("FailedMount", 'MountVolume.SetUp failed: secret "airports-store" not found')],
            f"pod {POD} needs Secret airports-store, which does not exist",
            id="a Secret that is gone",
        ),
    ],
)
def test_starting_it_waits_for(job: Any, pod: Any, warnings: list[Any], told: str) -> None:
    progress = judge_job(job, pod, warnings)
    assert progress.phase == "Starting"
    assert told in progress.why


@pytest.mark.parametrize(
    ("job", "pod", "told"),
    [
        pytest.param(
            _job(),
            _ended(137, "OOMKilled"),
            "was killed for using more memory than its limit of 256Mi; raise spec.serving.resources.limits.memory",
            id="OOMKilled",
        ),
        pytest.param(_job(), _ended(137, "Error"), "most likely", id="killed and nobody says for what"),
        pytest.param(
            _job(),
            _pod("Failed", reason="Evicted", message="The node was low on resource: memory."),
            "was ended by its cluster: The node was low on resource: memory",
            id="evicted",
        ),
        pytest.param(
            _job(("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")),
            None,
            f"Job {NAME} took longer than 90 seconds and was ended; raise --timeout",
            id="deadline",
        ),
        pytest.param(
            _job(("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")),
            None,
            f"the pod of Job {NAME} failed, and is gone",
            id="its pod is gone",
        ),
        pytest.param(
            _job(("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")),
            _pod("Running"),
            f"Job {NAME} took longer than 90 seconds and was ended; raise --timeout",
            id="deadline, and its pod is still being ended",
        ),
        pytest.param(_job(), _ended(5, "Error", "{}"), "", id="by itself: its log says more"),
        pytest.param(
            _job(("Failed", "PodFailurePolicy", "Container diff failed")), None, "Container diff failed", id="else"
        ),
    ],
)
def test_it_failed_because(job: Any, pod: Any, told: str) -> None:
    progress = judge_job(job, pod, [])
    assert progress.phase == "Failed"
    assert told in progress.why
    assert bool(progress.why) == bool(told)
    assert progress.pod == (POD if pod is not None and pod["status"]["phase"] == "Failed" else ""), "whose log is read"


def test_a_pod_that_ran_counts_whatever_the_job_says_meanwhile() -> None:
    assert judge_job(_job(), _pod("Running"), []) == JobProgress("Running", POD, f"pod {POD} runs")
    job = _job(("Complete", "CompletionsReached", ""))
    assert judge_job(job, _pod("Succeeded"), []) == JobProgress("Succeeded", POD)
