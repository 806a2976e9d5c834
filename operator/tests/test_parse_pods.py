"""Pods in every known kind of trouble, from JSON as Kubernetes 1.34 writes it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from lookupdb_operator import names
from lookupdb_operator.cluster.parse import parse_build_result
from lookupdb_operator.cluster.workloads import awaits_images, parse_pod
from lookupdb_operator.model import Absence, BuildResult, Trouble
from lookupdb_operator.plan import reasons

IMAGE = "registry.example/lookupdb:0.1.0"

Json = dict[str, Any]


def pod(status: Json, component: str = names.SHARDS, **meta: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "airports-x",
            "namespace": "maps",
            "uid": "uid-9",
            "resourceVersion": "77",
            "creationTimestamp": "2026-03-01T12:00:00Z",
            "labels": names.labels("airports", "ds-1", component),
            **meta,
        },
        "spec": {
            "initContainers": [{"name": "fetch", "image": IMAGE}],
            "containers": [
                {"name": "main", "image": IMAGE, "resources": {"limits": {"memory": "1Gi"}}},
            ],
        },
        "status": {"conditions": conditions(), "hostIP": "172.18.0.3", "qosClass": "Burstable", **status},
    }


def conditions(**changed: Any) -> list[Json]:
    usual = {"PodReadyToStartContainers": "True", "Initialized": "True", "Ready": "False", "PodScheduled": "True"}
    return [
        {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": "2026-03-01T12:00:00Z"}
        for kind, status in (usual | changed).items()
    ]


def container(state: Json, *last: Json, name: str = "main", ready: bool = False) -> Json:
    before = last[0] if last else {}
    return {"name": name, "state": state, "lastState": before, "ready": ready, "image": IMAGE, "imageID": ""}


def waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def ended(code: int, reason: str = "Error", message: str = "") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "containerID": "containerd://1c02"}}


RUNNING: Json = {"running": {"startedAt": "2026-03-01T12:00:00Z"}}


def with_main(*states: Json, phase: str = "Pending") -> Json:
    return {"phase": phase, "containerStatuses": [container(*states)]}


def with_fetch(*states: Json) -> Json:
    fetch = container(*states, name="fetch")
    main = container(waiting("PodInitializing"))
    return {"phase": "Pending", "initContainerStatuses": [fetch], "containerStatuses": [main]}


def unscheduled(message: str) -> Json:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [scheduled]}


def trouble(status: Json, component: str = names.SHARDS, **meta: Any) -> Trouble:
    found = parse_pod(pod(status, component, **meta)).trouble
    assert found is not None
    return found


def test_a_serving_pod() -> None:
    labels = names.labels("airports", "ds-1", names.SHARDS) | {
        names.GENERATION: "g3",
        names.ROLLOUT: "r2",
        names.SHARD: "0",
    }
    status = {"phase": "Running", "podIP": "10.244.1.6", "conditions": conditions(Ready="True")}
    status["containerStatuses"] = [container(RUNNING, ended(137, "OOMKilled"), ready=True)]
    parsed = parse_pod(pod(status, labels=labels))
    assert (parsed.name, parsed.uid, parsed.component, parsed.ip) == ("airports-x", "uid-9", "shard", "10.244.1.6")
    assert (parsed.rollout, parsed.shard, parsed.generation) == ("r2", 0, "g3")
    assert parsed.ready
    assert parsed.trouble is None, "what happened to it before it was ready is over"


def test_a_router() -> None:
    parsed = parse_pod(pod({"phase": "Running"}, names.ROUTER, annotations={names.TABLE_VERSION: "4"}))
    assert (parsed.component, parsed.table_version, parsed.shard, parsed.ready) == ("router", "4", -1, False)


def test_a_pod_that_nobody_has_looked_at_yet() -> None:
    body = pod({})
    del body["status"]
    parsed = parse_pod(body)
    assert (parsed.phase, parsed.ready, parsed.trouble, parsed.ip) == ("Pending", False, None, "")
    assert awaits_images({**body, "status": {"phase": "Pending"}})


@pytest.mark.parametrize(
    ("reason", "message", "told"),
    [
        pytest.param(
            "ImagePullBackOff",
            f'Back-off pulling image "{IMAGE}": ErrImagePull: rpc error: code = NotFound desc = failed to pull and '
            f'unpack image "{IMAGE}": not found',
            f'cannot be pulled: failed to pull and unpack image "{IMAGE}": not found;',
            id="back-off",
        ),
        pytest.param(
            "ErrImagePull",
            f'rpc error: code = NotFound desc = failed to pull and unpack image "{IMAGE}": not found',
            f'cannot be pulled: failed to pull and unpack image "{IMAGE}": not found;',
            id="the same, just now",
        ),
        pytest.param("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"', "cannot be pulled; correct", id="older"),
        pytest.param("InvalidImageName", "invalid reference format", "invalid reference format", id="no name"),
        pytest.param("ErrImageNeverPull", "", "cannot be pulled; correct", id="not there, and never pulled"),
        pytest.param(
            "ErrImagePull",
            "dial tcp: lookup registry.example: read udp 10.0.0.2:41532->10.96.0.10:53: i/o timeout",
            "read udp 10.0.0.2->10.96.0.10:53: i/o timeout",
            id="without the port, which changes",
        ),
    ],
)
def test_an_image_that_cannot_be_pulled(reason: str, message: str, told: str) -> None:
    found = trouble(with_main(waiting(reason, message)))
    assert found.reason == reasons.IMAGE_PULL_FAILED
    assert IMAGE in found.message
    assert told in found.message


@pytest.mark.parametrize(
    ("message", "reason", "told"),
    [
        pytest.param('secret "airports-store" not found', reasons.SECRET_MISSING, "Secret airports-store", id="secret"),
        pytest.param(
            "couldn't find key TOKEN in Secret maps/mine", reasons.SECRET_MISSING, "key TOKEN in Secret mine", id="key"
        ),
        pytest.param('configmap "mine" not found', reasons.VOLUME_MISSING, "ConfigMap mine", id="config map"),
        pytest.param(
            'container has runAsNonRoot and image will run as root (pod: "a_b(19d59eeb)", container: main)',
            reasons.CRASH_LOOPING,
            "image will run as root;",
            id="root",
        ),
    ],
)
def test_a_container_that_cannot_be_made(message: str, reason: str, told: str) -> None:
    found = trouble(with_main(waiting("CreateContainerConfigError", message)))
    assert found.reason == reason
    assert told in found.message


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(
            '0/3 nodes are available: persistentvolumeclaim "mine" not found. not found',
            reasons.VOLUME_MISSING,
            id="no claim",
        ),
        pytest.param(
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
            reasons.VOLUME_MISSING,
            id="an unbound claim",
        ),
        pytest.param(
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient memory. no new claims to "
            "deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
            reasons.UNSCHEDULABLE,
            id="no room",
        ),
    ],
)
def test_a_pod_that_no_node_takes(message: str, reason: str) -> None:
    found = trouble(unscheduled(message))
    assert found.reason == reason
    assert "reemption" not in found.message
    assert "claims to deallocate" not in found.message


def test_a_crash_is_one_trouble_all_along() -> None:
    crash = ended(3, message="oh no\n")
    back_off = waiting("CrashLoopBackOff", "back-off 2m40s restarting failed container=main pod=a_b(3c46)")
    told = {trouble(with_main(*states, phase="Running")) for states in ((crash,), (back_off, crash), (RUNNING, crash))}
    assert told == {
        Trouble(reasons.CRASH_LOOPING, "container main of pod airports-x ended (exit code 3: oh no); look at its log")
    }


def test_a_program_that_is_not_there() -> None:
    found = trouble(with_main(ended(128, "StartError", 'exec: "/nope": no such file or directory'), phase="Running"))
    assert found.reason == reasons.CRASH_LOOPING
    assert "cannot be started" in found.message


@pytest.mark.parametrize(
    ("component", "field"),
    [
        (names.BUILDER, "spec.build.resources.limits.memory"),
        (names.SHARDS, "spec.serving.resources.limits.memory"),
        (names.ROUTER, "spec.router.resources.limits.memory"),
    ],
)
def test_killed_for_memory(component: str, field: str) -> None:
    found = trouble(with_main(ended(137, "OOMKilled"), phase="Failed"), component)
    assert found.reason == reasons.OUT_OF_MEMORY
    assert "limit of 1Gi" in found.message
    assert field in found.message


def test_a_builder_that_was_killed_is_taken_to_have_lacked_memory() -> None:
    found = trouble(with_main(ended(137), phase="Failed"), names.BUILDER)
    assert found.reason == reasons.OUT_OF_MEMORY
    assert "most likely" in found.message


def test_a_server_that_was_killed_may_have_failed_its_probe() -> None:
    assert trouble(with_main(ended(137), phase="Running")).reason == reasons.CRASH_LOOPING


def test_a_node_that_was_rebooted() -> None:
    lost = ended(137, "ContainerStatusUnknown", "The container could not be located when the pod was terminated")
    assert trouble(with_main(lost, phase="Failed"), names.BUILDER).reason == reasons.EVICTED


@pytest.mark.parametrize(
    ("said", "reason", "told"),
    [
        pytest.param(
            '{"reason":"CorruptFile","message":"shard 3: sha256 differs\\n  build it again"}\n',
            reasons.CORRUPT_FILE,
            "(exit code 5: shard 3: sha256 differs; build it again)",
            id="json",
        ),
        pytest.param(
            '{"reason":"StoreDenied","message":"no"}', reasons.STORE_DENIED, "(exit code 5: no)", id="a better word"
        ),
        pytest.param("Traceback", reasons.FETCH_FAILED, "(exit code 5: Traceback)", id="a log"),
        pytest.param("", reasons.FETCH_FAILED, "(exit code 5)", id="nothing"),
    ],
)
def test_a_shard_that_cannot_be_fetched(said: str, reason: str, told: str) -> None:
    found = trouble(with_fetch(waiting("CrashLoopBackOff", "back-off 10s"), ended(5, message=said)))
    assert found.reason == reason
    assert told in found.message


def failed_server(reason: str) -> Json:
    said = orjson.dumps({"outcome": "failed", "exitCode": 5, "reason": reason, "message": "/data holds no c1"})
    server = container(waiting("CrashLoopBackOff"), ended(5, message=said.decode()), name="serve")
    return {"phase": "Running", "containerStatuses": [server]}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("NotOnVolume", "NotOnVolume"),
        ("StoreUnavailable", "NotOnVolume"),
        ("CorruptFile", "CorruptFile"),
        ("InvalidUsage", "CrashLooping"),
    ],
)
def test_a_shard_that_its_volume_does_not_show(said: str, reason: str) -> None:
    found = trouble(failed_server(said))
    assert found.reason == reason
    assert "/data holds no c1" in found.message
    assert found.reason not in reasons.SHARED_REASONS, "the volume is this dataset's"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("RegistryDenied", "RegistryDenied"),
        ("RegistryUnavailable", "RegistryUnavailable"),
        ("GenerationMissing", "GenerationMissing"),
        ("InvalidUsage", "PushFailed"),
    ],
)
def test_images_that_cannot_be_pushed(said: str, reason: str) -> None:
    text = orjson.dumps({"outcome": "failed", "exitCode": 5, "reason": said, "message": "it answers 403"}).decode()
    push = container(waiting("CrashLoopBackOff"), ended(5, message=text), name="push")
    found = trouble({"phase": "Running", "containerStatuses": [push]}, names.PUSHER)
    assert found.reason == reason
    assert "cannot push the images of its rollout (exit code 5: it answers 403)" in found.message


@pytest.mark.parametrize(
    ("reason", "said", "found"),
    [
        ("ErrImagePull", "rpc error: code = NotFound desc = failed to resolve reference {0!r}: {0}: not found", True),
        ("ImagePullBackOff", 'Back-off pulling image "{0}": ErrImagePull: rpc error: code = NotFound desc = …', True),
        ("ErrImagePull", "initializing source docker://{0}: reading manifest g1 in r.example: manifest unknown", True),
        ("ErrImagePull", "rpc error: code = Unknown desc = failed to resolve reference {0!r}: 503", False),
        ("ImagePullBackOff", 'Back-off pulling image "{0}"', False),
    ],
)
def test_the_image_of_a_shard_that_is_not_in_its_registry_is_a_trouble_of_its_own(
    reason: str, said: str, found: bool
) -> None:
    reference = "r.example/lookups:people-8d3f6b1a-g1-shard-00000"
    body = pod(with_main(waiting(reason, said.format(reference))))
    body["spec"] = {
        **body.get("spec", {}),
        "volumes": [{"name": "tmp"}, {"name": "data", "image": {"reference": reference}}],
    }
    told = parse_pod(body).trouble
    assert told is not None
    assert told.reason == (reasons.IMAGE_NOT_FOUND if found else reasons.IMAGE_PULL_FAILED)
    assert f"image {reference}" in told.message
    assert IMAGE not in told.message


def test_a_program_that_is_not_in_its_registry_is_not_pushed_again() -> None:
    body = pod(with_main(waiting("ErrImagePull", f"rpc error: code = NotFound desc = {IMAGE}: not found")))
    body["spec"] = {
        **body.get("spec", {}),
        "volumes": [{"name": "data", "image": {"reference": "r.example/lookups:p"}}],
    }
    told = parse_pod(body).trouble
    assert told is not None
    assert told.reason == reasons.IMAGE_PULL_FAILED


def test_fetching_is_no_trouble() -> None:
    assert parse_pod(pod(with_fetch(RUNNING))).trouble is None
    fetched = with_fetch(ended(0, "Completed"), ended(5))
    assert parse_pod(pod(fetched)).trouble is None


@pytest.mark.parametrize(
    ("status", "reason", "told"),
    [
        pytest.param(
            {"reason": "Evicted", "message": "The node was low on resource: memory. "},
            reasons.EVICTED,
            "The node was low on resource: memory",
            id="memory of the node",
        ),
        pytest.param(
            {"reason": "Evicted", "message": 'Usage of EmptyDir volume "scratch" exceeds the limit "10Gi". '},
            reasons.OUT_OF_DISK,
            "raise spec.build.scratchSize",
            id="scratch",
        ),
        pytest.param(
            {"reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds the total limit of containers"},
            reasons.OUT_OF_DISK,
            "raise spec.build.scratchSize",
            id="disk",
        ),
        pytest.param(
            {"reason": "DeadlineExceeded", "message": "Pod was active on the node longer than the specified deadline"},
            reasons.DEADLINE_EXCEEDED,
            "spec.build.deadlineSeconds",
            id="deadline",
        ),
        pytest.param(
            {"reason": "NodeShutdown", "message": "Pod was rejected: node is shutting down"},
            reasons.EVICTED,
            "shutting down",
            id="shutdown",
        ),
    ],
)
def test_a_pod_that_its_cluster_ended(status: Json, reason: str, told: str) -> None:
    lost = ended(137, "ContainerStatusUnknown", "The container could not be located when the pod was terminated")
    found = trouble({**with_main(lost, lost, phase="Failed"), **status}, names.BUILDER)
    assert found.reason == reason
    assert told in found.message


def test_a_pod_that_is_drained_away() -> None:
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API",
    }
    status = {"phase": "Running", "conditions": [*conditions(), target], "containerStatuses": [container(RUNNING)]}
    assert parse_pod(pod(status)).trouble is None, "it may yet stay"
    assert trouble(status, deletionTimestamp="2026-03-01T12:00:00Z").reason == reasons.EVICTED


RESULT: Json = {
    "outcome": "built",
    "dataset": "maps/airports",
    "generation": "g3",
    "fingerprint": "f",
    "records": 7698,
    "fileBytes": 1000,
    "largestShardBytes": 600,
    "builtAt": "2026-03-01T12:00:00Z",
    "exitCode": 0,
    "reason": "Built",
    "message": "",
}


def test_a_builders_result() -> None:
    text = orjson.dumps(RESULT).decode()
    status = with_main(ended(0, "Completed", text), phase="Succeeded")
    parsed = parse_pod(pod(status, names.BUILDER))
    assert parsed.trouble is None
    assert parsed.result == BuildResult(
        "built", "g3", "f", 7698, 1000, 600, built_at="2026-03-01T12:00:00Z", exit_code=0, reason="Built"
    )
    assert parse_pod(pod(status, names.SHARDS)).result is None


def test_a_failed_builders_result_is_what_went_wrong() -> None:
    text = orjson.dumps(RESULT | {"outcome": "failed", "generation": None, "exitCode": 3, "message": "row 3"}).decode()
    parsed = parse_pod(pod(with_main(ended(3, message=text), phase="Failed"), names.BUILDER))
    assert parsed.trouble is None
    assert parsed.result is not None
    assert (parsed.result.outcome, parsed.result.generation, parsed.result.message) == ("failed", "", "row 3")


@pytest.mark.parametrize(
    "message",
    [
        None,
        "",
        "Killed",
        "[]",
        '{"outcome": "burst"}',
        '{"outcome": ["built"]}',
        '{"outcome": "built", "records": "x"}',
        '{"outcome": "built", "records": -1}',
        '{"outcome": "built", "fileBytes": 9007199254740992}',
        '{"outcome": "built", "reason": 3}',
        '{"outcome": "bui',
    ],
)
def test_what_is_no_result(message: str | None) -> None:
    assert parse_build_result(message) is None


def test_a_builder_without_a_result() -> None:
    found = trouble(with_main(ended(1, message="Traceback\nKeyError: 1"), phase="Failed"), names.BUILDER)
    assert found.reason == reasons.BUILD_FAILED
    assert "(exit code 1: Traceback; KeyError: 1)" in found.message


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({"phase": "Pending", "conditions": conditions(PodReadyToStartContainers="False")}, True, id="no"),
        pytest.param(with_main(waiting("ContainerCreating")), False, id="an image is being pulled"),
        pytest.param({**with_fetch(RUNNING), "conditions": []}, False, id="fetching, on an older kubelet"),
        pytest.param({"phase": "Running", "conditions": []}, False, id="running"),
    ],
)
def test_what_only_events_can_explain(status: Json, expected: bool) -> None:
    assert awaits_images(pod(status)) is expected


def test_sentences_are_bounded() -> None:
    assert len(trouble(with_main(waiting("CreateContainerError", "x" * 5000))).message) < 1000


@pytest.mark.parametrize(
    ("grace", "unready", "lost_after"),
    [
        pytest.param(None, "12:00:00", None, id="not being deleted"),
        pytest.param(60, None, None, id="ready: its node answers"),
        pytest.param(60, "12:00:40", Absence(300, 90), id="five minutes, and its grace and a little more"),
        pytest.param(900, "12:00:40", Absence(300, 930), id="a long grace"),
    ],
)
def test_how_long_a_pod_that_is_being_deleted_must_be_seen_so_until_it_counts_as_lost(
    grace: int | None, unready: str | None, lost_after: Absence | None
) -> None:
    at = "2026-03-01T{}Z".format
    ready = {"type": "Ready", "status": "False" if unready else "True", "lastTransitionTime": at(unready or "11:00:00")}
    deletion: Json = {} if grace is None else {"deletionTimestamp": at("12:06:00"), "deletionGracePeriodSeconds": grace}
    parsed = parse_pod(pod({"conditions": [ready]}, **deletion))
    assert parsed.lost_after == lost_after
    assert parsed.unready_since == (at(unready) if unready else "")
