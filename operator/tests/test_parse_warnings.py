"""Events of pods that cannot be created, with the messages of Kubernetes 1.34."""

from __future__ import annotations

import pytest

from lookupdb_operator.cluster.workloads import diagnose_warning
from lookupdb_operator.plan import reasons


@pytest.mark.parametrize(
    ("reason", "message", "expected", "told"),
    [
        pytest.param(
            "FailedCreate",
            'Error creating: pods "x-qq6rq" is forbidden: exceeded quota: q, requested: requests.cpu=2, used: '
            "requests.cpu=0, limited: requests.cpu=1",
            reasons.QUOTA_EXCEEDED,
            "cannot create its pods: exceeded quota: q, requested",
            id="quota of a Job",
        ),
        pytest.param(
            "FailedCreate",
            'create Pod x-0 in StatefulSet x failed error: pods "x-0" is forbidden: failed quota: q: must specify '
            "requests.cpu for: serve",
            reasons.QUOTA_EXCEEDED,
            "must specify requests.cpu for: serve; set",
            id="quota of a StatefulSet",
        ),
        pytest.param(
            "FailedCreate",
            'Error creating: pods "x-abcde" is forbidden: maximum memory usage per Container is 512Mi',
            reasons.QUOTA_EXCEEDED,
            "maximum memory usage per Container is 512Mi",
            id="a limit range",
        ),
        pytest.param(
            "FailedCreate",
            'Error creating: pods "x-abcde" is forbidden: violates PodSecurity "restricted:latest": seccompProfile',
            reasons.APPLY_REFUSED,
            "cannot create its pods: violates PodSecurity",
            id="pod security",
        ),
        pytest.param(
            "FailedMount",
            'MountVolume.SetUp failed for volume "source" : configmap "mine" not found',
            reasons.VOLUME_MISSING,
            "ConfigMap mine",
            id="a config map",
        ),
        pytest.param(
            "FailedAttachVolume",
            'Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node',
            reasons.VOLUME_MISSING,
            "Multi-Attach error",
            id="another pod has it",
        ),
        pytest.param(
            "FailedCreatePodSandBox",
            f'Failed to create pod sandbox: plugin type="x" failed (add): sandbox "{"a1" * 32}": no address left',
            reasons.CRASH_LOOPING,
            "no address left",
            id="no address",
        ),
    ],
)
def test_warnings(reason: str, message: str, expected: str, told: str) -> None:
    found = diagnose_warning("Job", "x", reason, message)
    assert found is not None
    assert found.reason == expected
    assert told in found.message
    assert "a1a1" not in found.message


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("FailedMount", 'MountVolume.SetUp failed for volume "table" : failed to sync configmap cache: timed out'),
        ("FailedScheduling", "0/3 nodes are available"),
        ("BackOff", "Back-off restarting failed container"),
        ("Unhealthy", "Readiness probe failed"),
        ("", ""),
    ],
)
def test_warnings_that_pass_or_are_reported_better_elsewhere(reason: str, message: str) -> None:
    assert diagnose_warning("Pod", "x", reason, message) is None
