"""Datasets, Jobs, StatefulSets and others, from JSON as Kubernetes 1.34 writes it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from operator_support.bodies import condition, job, meta

from lookupdb_operator import names
from lookupdb_operator.cluster import workloads
from lookupdb_operator.cluster.parse import parse_dataset, parse_header
from lookupdb_operator.cluster.workloads import (
    compare_fields,
    diagnose_warning,
    parse_existing,
    parse_job,
    parse_shard_set,
)
from lookupdb_operator.manifests.objects import stamp
from lookupdb_operator.model import BuildJob, Deletion, ExistingObject, ObjectRef, ShardSet
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import Condition, DatasetStatus

SPEC: dict[str, Any] = {"source": {"url": "example://airports"}, "key": {"columns": ["iata"]}}


def dataset(**members: Any) -> dict[str, Any]:
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": meta(), "spec": SPEC, **members}


def test_a_dataset_is_completed() -> None:
    parsed = parse_dataset(dataset())
    assert parsed.key == ("maps", "airports")
    assert (parsed.uid, parsed.resource_version, parsed.generation) == ("uid-1", "41", 2)
    assert parsed.problem is None
    assert parsed.parsed is not None
    assert (parsed.parsed.namespace, parsed.parsed.uid, parsed.parsed.shards) == ("maps", "uid-1", 1)
    assert parsed.spec["build"]["resources"]["limits"] == {"memory": "1Gi"}
    assert parsed.status == DatasetStatus()
    assert not parsed.deleting


def test_what_its_user_says_in_annotations() -> None:
    body = dataset(metadata=meta(annotations={names.REFRESH: "now", names.OPERATOR: "a/b"}, deletionTimestamp="x"))
    parsed = parse_dataset(body)
    assert (parsed.refresh, parsed.assigned, parsed.deleting) == ("now", "a/b", True)
    assert parsed.override_gates == ""


def test_annotations_of_any_length_take_little_room() -> None:
    """They are kept for every dataset, and a refresh annotation goes into the status."""
    long = "x" * 250_000
    parsed = parse_dataset(dataset(metadata=meta(annotations={names.REFRESH: long, names.OPERATOR: long})))
    other = parse_dataset(dataset(metadata=meta(annotations={names.REFRESH: long + "y"})))
    assert (len(parsed.refresh), len(parsed.assigned)) == (64, 512)
    assert other.refresh != parsed.refresh, "however long, another value asks for another refresh"
    longest = "x" * 256
    assert parse_dataset(dataset(metadata=meta(annotations={names.REFRESH: longest}))).refresh == longest


@pytest.mark.parametrize(("value", "read"), [("g13", "g13"), ("g13\n", "g13\n"), ("g1" * 1000, "g1" * 16)])
def test_an_override_of_gates_is_read_as_it_stands_and_cut_where_it_is_longer_than_any_name(
    value: str, read: str
) -> None:
    parsed = parse_dataset(dataset(metadata=meta(annotations={names.OVERRIDE_GATES: value})))
    assert parsed.override_gates == read


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        pytest.param({**SPEC, "shards": 0}, "shards", id="out of bounds"),
        pytest.param({"key": {"columns": ["a"]}}, "source", id="incomplete"),
        pytest.param({**SPEC, "source": {"url": "volume://a"}}, "volume", id="a broken rule"),
        pytest.param({**SPEC, "key": {"columns": "iata"}}, "columns", id="another type"),
        pytest.param({**SPEC, "refresh": {"schedule": "0 25 * * *"}}, "refresh.schedule: expected", id="a bad hour"),
        pytest.param(
            {**SPEC, "refresh": {"schedule": "0 2 * * *", "timeZone": "Europe/Berlim"}},
            "did you mean Europe/Berlin?",
            id="a zone that nobody knows",
        ),
        pytest.param(None, "source", id="nothing"),
    ],
)
def test_a_spec_that_cannot_be_used_is_a_sentence(spec: Any, word: str) -> None:
    parsed = parse_dataset(dataset(spec=spec))
    assert parsed.parsed is None
    assert word in (parsed.problem or "")
    assert "crds/" not in (parsed.problem or "")


def test_a_name_that_no_pod_can_have_is_a_problem() -> None:
    assert "name" in (parse_dataset(dataset(metadata=meta(name="a.b"))).problem or "")


def test_fields_of_a_newer_crd_are_left_out() -> None:
    newer = {**SPEC, "shine": True, "key": {"columns": ["iata"], "polish": [{"a": 1}]}}
    parsed = parse_dataset(dataset(spec=newer))
    assert parsed.problem is None
    assert "shine" not in parsed.spec
    assert "polish" not in parsed.spec["key"]


def test_free_maps_are_kept() -> None:
    selector = {"topology.kubernetes.io/zone": "a"}
    assert parse_dataset(dataset(spec={**SPEC, "scheduling": {"nodeSelector": selector}})).spec["scheduling"] == {
        "nodeSelector": selector
    }


def test_an_unchanged_spec_is_not_checked_again() -> None:
    before = parse_dataset(dataset())
    after = parse_dataset(dataset(metadata=meta(resourceVersion="42"), status={"lastGeneration": 3}), before)
    assert after.parsed is before.parsed
    assert (after.resource_version, after.status.last_generation) == ("42", 3)
    changed = parse_dataset(dataset(metadata=meta(generation=3), spec={**SPEC, "shards": 4}), before)
    assert changed.spec["shards"] == 4
    other = parse_dataset(dataset(metadata=meta(uid="uid-2"), spec={**SPEC, "shards": 5}), before)
    assert other.spec["shards"] == 5


def test_the_status_comes_back() -> None:
    status = DatasetStatus(conditions=(Condition("Ready", "True", "Serving", "It serves."),), last_rollout=4)
    assert parse_dataset(dataset(status=status.to_json())).status == status


def test_a_status_that_cannot_be_read_is_a_problem_of_its_own() -> None:
    parsed = parse_dataset(dataset(status={"lastGeneration": "three"}))
    assert parsed.status_problem is not None
    assert parsed.parsed is not None


@pytest.mark.parametrize("moment", ["yesterday", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
@pytest.mark.parametrize(
    "members",
    [
        lambda moment: {"nextCheck": moment},
        lambda moment: {"schedule": {"expression": "0 2 * * * UTC", "slot": moment}},
        lambda moment: {"rolloutTicket": {"since": moment}},
    ],
    ids=["of its own", "of a part", "of a ticket, which every dataset's turn depends on"],
)
def test_a_status_with_what_is_no_moment_cannot_be_read(members: Callable[[str], Any], moment: str) -> None:
    """A pass that calculates with it would fail, and with it the slots and metrics of all datasets."""
    parsed = parse_dataset(dataset(status=members(moment)))
    assert parsed.status_problem is not None
    assert repr(moment) in parsed.status_problem
    assert parse_dataset(dataset(status=members("2026-01-01T00:00:00Z"))).status_problem is None


@pytest.mark.parametrize(
    ("conditions", "state", "reason"),
    [
        pytest.param([], "Running", None, id="running"),
        pytest.param([condition("SuccessCriteriaMet", "CompletionsReached")], "Running", None, id="about to succeed"),
        pytest.param(
            [condition("SuccessCriteriaMet", "CompletionsReached"), condition("Complete", "CompletionsReached")],
            "Succeeded",
            None,
            id="succeeded",
        ),
        pytest.param([condition("FailureTarget", "BackoffLimitExceeded")], "Running", None, id="about to fail"),
        pytest.param([condition("Failed", "BackoffLimitExceeded")], "Failed", None, id="its pod failed"),
        pytest.param([condition("Failed", "DeadlineExceeded")], "Failed", reasons.DEADLINE_EXCEEDED, id="too long"),
        pytest.param([condition("Failed", "DeadlineExceeded", "False")], "Running", None, id="not failed"),
    ],
)
def test_jobs(conditions: list[dict[str, Any]], state: Any, reason: str | None) -> None:
    parsed = parse_job(job(conditions))
    assert (parsed.state, parsed.failure.reason if parsed.failure else None) == (state, reason)
    assert parsed.ref == ObjectRef("Job", "airports-g3-build", "uid-1")
    assert (parsed.generation, parsed.digest) == ("g3", "0123456789abcdef")


def test_a_job_that_nobody_has_looked_at_yet() -> None:
    body = job([])
    del body["status"]
    assert parse_job(body) == BuildJob(
        ObjectRef("Job", "airports-g3-build", "uid-1"), "g3", "0123456789abcdef", state="Running"
    )


def test_a_shards_servers() -> None:
    labels = names.labels("airports", "ds-1", names.SHARDS) | names.selector("airports", "ds-1", names.SHARDS, "r2", 13)
    body = {
        "metadata": meta(name="airports-r2-s13", labels=labels),
        "spec": {"replicas": 3},
        "status": {"observedGeneration": 2, "replicas": 3, "readyReplicas": 2, "availableReplicas": 2},
    }
    ref = ObjectRef("StatefulSet", "airports-r2-s13", "uid-1")
    assert parse_shard_set(body) == ShardSet(ref, "r2", "", 13, digest="", replicas=3, ready=2)


def test_what_holds_an_object_that_is_being_deleted_is_kept_cut() -> None:
    body = {"metadata": meta(finalizers=["a.io/x", "b" * 300, "c.io/z", "d.io/z"]), "spec": {"replicas": 3}}
    assert parse_shard_set(body).deletion is None, "of what stays nobody needs to know"
    body["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:30Z"
    due = datetime.fromisoformat("2026-03-01T12:00:30Z")
    assert parse_shard_set(body).deletion == Deletion(due, ("a.io/x", "b" * 100, "c.io/z"))


def test_readiness_that_is_not_of_the_newest_spec_does_not_count() -> None:
    body = {"metadata": meta(), "spec": {}, "status": {"observedGeneration": 1, "readyReplicas": 2}}
    parsed = parse_shard_set(body)
    assert (parsed.replicas, parsed.ready, parsed.shard) == (1, 0, -1)


def test_others_are_their_digest() -> None:
    body = {"metadata": meta(name="airports-r1", annotations={names.DIGEST: "d"}, deletionTimestamp="now")}
    body["metadata"].pop("managedFields")  # nobody says which fields are the operator's
    assert parse_existing("Service", body) == ExistingObject(
        ObjectRef("Service", "airports-r1", "uid-1"), "d", "r1", deleting=True
    )


EDITED = {names.ROLLOUT: "r1", names.GENERATION: "g1", names.SHARD: "7"}


@pytest.mark.parametrize(
    ("kind", "name", "rollout", "generation"),
    [
        ("Service", "airports-r3", "r3", "g1"),
        ("PodDisruptionBudget", "airports-r3-s0", "r3", "g1"),
        ("ConfigMap", "airports-g3-build", "", "g3"),
        ("ConfigMap", "airports-routing-table", "", ""),
        ("Deployment", "airports-router", "", ""),
        ("Deployment", "airports-r3-router", "", ""),
    ],
)
def test_an_object_is_what_its_name_says_whatever_its_labels_do(
    kind: str, name: str, rollout: str, generation: str
) -> None:
    parsed = parse_existing(kind, {"metadata": meta(name=name, labels=EDITED)})
    assert (parsed.rollout, parsed.generation) == (rollout, generation)


def test_so_are_a_job_and_a_shards_servers() -> None:
    """A copy under another name is what its labels say."""
    assert parse_job({"metadata": meta(name="airports-g3-build", labels=EDITED)}).generation == "g3"
    shard_sets = [
        parse_shard_set({"metadata": meta(name=name, labels=EDITED)}) for name in ("airports-r3-s0", "copy-s0")
    ]
    assert [(one.rollout, one.shard) for one in shard_sets] == [("r3", 0), ("r1", 7)]


def applied(**spec: Any) -> dict[str, Any]:
    """Return a StatefulSet as the API server holds it after our apply; ``spec`` is its desired state since then."""
    manifest = stamp(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "airports", "labels": {names.DATASET: "airports"}},
            "spec": {"serviceName": "airports", "replicas": 2},
        }
    )
    fields = {"f:metadata": {"f:labels": {f"f:{names.DATASET}": {}}}, "f:spec": {"f:serviceName": {}, "f:replicas": {}}}
    about = meta(labels={**manifest["metadata"]["labels"]}, annotations={**manifest["metadata"]["annotations"]})
    about["managedFields"] = [{"manager": names.FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}]
    return {"metadata": about, "spec": {**manifest["spec"], **spec}, "status": {}}


def test_fields_are_compared_again_only_after_a_change_of_what_is_not_status(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compare_fields(applied())
    assert before.changed == ""
    after = applied()
    after["metadata"] |= {"resourceVersion": "42"}
    after["status"] = {"readyReplicas": 2}
    with monkeypatch.context() as patch:
        patch.setattr(workloads, "hash_held_fields", lambda body: pytest.fail("they are hashed again"))
        assert compare_fields(after, before) == before
        assert compare_fields({"metadata": meta()}, before).changed == "", "not ours"


def take_label(body: dict[str, Any]) -> None:
    body["metadata"]["labels"][names.DATASET] = "others"


def take_owner(body: dict[str, Any]) -> None:
    body["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "another", "uid": "u"}]
    body["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:ownerReferences"] = {'k:{"uid":"u"}': {}}


def take_field(body: dict[str, Any]) -> None:
    del body["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:serviceName"]


def take_spec(body: dict[str, Any]) -> None:
    body["spec"]["serviceName"] = "another"


@pytest.mark.parametrize("take", [take_label, take_owner, take_field, take_spec])
def test_what_is_changed_without_a_new_generation_is_noticed(take: Callable[[dict[str, Any]], None]) -> None:
    before, body = compare_fields(applied()), applied()
    take(body)
    after = compare_fields(body, before)
    assert after.changed == compare_fields(body).changed != ""
    assert compare_fields(applied(), after) == before, "and that it was changed back"


def test_a_deployment_that_may_not_make_pods() -> None:
    message = (
        'pods "airports-router-5d9c7b7c6f-" is forbidden: exceeded quota: compute, requested: requests.cpu=50m, '
        "used: requests.cpu=1, limited: requests.cpu=1"
    )
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    parsed = parse_existing("Deployment", {"metadata": meta(), "status": {"conditions": [failure]}})
    assert parsed.trouble is not None
    assert parsed.trouble.reason == reasons.QUOTA_EXCEEDED
    assert "limited: requests.cpu=1" in parsed.trouble.message
    assert "5d9c7b7c6f" not in parsed.trouble.message


def test_a_header_without_the_usual_members() -> None:
    head = parse_header({"metadata": {"name": "a", "uid": "u", "labels": None, "ownerReferences": None}})
    assert (head.namespace, head.dataset, head.owner_uid, head.created.year) == ("", "", "", 1970)


@pytest.mark.parametrize(
    ("kind", "message", "remedy"),
    [
        pytest.param(
            "Job",
            'Error creating: pods "x-abcde" is forbidden: failed quota: q: must specify limits.cpu for: build',
            "set spec.build.resources.limits.cpu",
            id="a limit that a quota wants of a builder",
        ),
        pytest.param(
            "StatefulSet",
            'create Pod x-0 in StatefulSet x failed error: pods "x-0" is forbidden: failed quota: q: must specify '
            "limits.cpu for: fetch,serve; requests.ephemeral-storage for: fetch,serve",
            "set spec.serving.resources.limits.cpu and spec.serving.resources.requests.ephemeral-storage",
            id="two amounts of a server",
        ),
        pytest.param(
            "Deployment",
            'pods "x-1" is forbidden: failed quota: q: must specify cpu,memory',
            "set spec.router.resources.requests.cpu and spec.router.resources.requests.memory",
            id="what older API servers say of a router",
        ),
        pytest.param(
            "Job",
            'Error creating: pods "x" is forbidden: exceeded quota: q, requested: limits.cpu=1, used: limits.cpu=4',
            "raise the namespace's quota or lower spec.build.resources",
            id="a quota that is used up",
        ),
    ],
)
def test_a_quota_is_answered_by_the_field_to_set(kind: str, message: str, remedy: str) -> None:
    found = diagnose_warning(kind, "x", "FailedCreate", message)
    assert found is not None
    assert found.reason == "QuotaExceeded"
    assert found.message.endswith(f"; {remedy}")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("4", 4),
        ("0", 0),
        ("9" * 15, 10**15 - 1),
        ("9" * 16, 0),
        ("9" * 5000, 0),
        ("-4", 0),
        ("4.0", 0),
        ("", 0),
        ("²", 0),
    ],
)
def test_a_routing_table_whose_version_is_no_number_that_another_can_follow_has_none(text: str, version: int) -> None:
    body = {"metadata": meta(annotations={names.TABLE_VERSION: text})}
    assert parse_existing("ConfigMap", body).table_version == version


def test_the_version_that_the_text_of_a_routing_table_says_is_read_for_itself() -> None:
    for text, version in (
        ('{"version": 4}', 4),
        ('{"version": 999999999999999}', 10**15 - 1),
        ('{"version": 1000000000000000}', 0),
        ('{"version": ' + "9" * 5000 + "}", 0),
        ('{"version": -4}', 0),
        ('{"version": 4.0}', 0),
        ('{"version": true}', 0),
        ('{"version": "4"}', 0),
        ('{"version": null}', 0),
        ("{}", 0),
        ("[4]", 0),
        ("4", 0),
        ('"version"', 0),
        ("[" * 5000, 0),
        ("", 0),
    ):
        body = {"metadata": meta(annotations={names.TABLE_VERSION: "7"}), "data": {names.TABLE_FILE: text}}
        parsed = parse_existing("ConfigMap", body)
        assert (parsed.text_version, parsed.table_version) == (version, 7), text[:40]


def test_of_a_routing_table_the_content_alone_says_what_routers_read() -> None:
    def content(text: str, **annotations: str) -> str:
        body = {"metadata": meta(annotations=annotations), "data": {names.TABLE_FILE: text, "notes": str(annotations)}}
        return parse_existing("ConfigMap", body).content

    assert content("{}") == content("{}", edited="yes") != content("{} ")
    assert parse_existing("ConfigMap", {"metadata": meta(), "data": {"another": "{}"}}).content == ""
    assert parse_existing("ConfigMap", {"metadata": meta()}).content == ""
