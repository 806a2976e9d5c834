"""A real operator: kopf, the real client, and an API server in memory. One scenario a test."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from operator_support.kube import Kube, Refusal, Write
from operator_support.kube_story import (
    all_steps,
    condition,
    dataset,
    quiet,
    respecified,
    seen,
    status_of,
    step_to_build,
    step_to_ready,
    step_to_servers,
    step_to_table,
)
from operator_support.kubelet import Kubelet
from operator_support.running import Running, operating, options, until

pytest_plugins = ["operator_support.cluster_fixtures"]
pytestmark = pytest.mark.timeout(240)  # a scenario has many steps, each with its own patience


async def looked(operator: Running, times: int = 1) -> None:
    """Wait until ``operator`` has made its passes, and has nothing left to do."""

    async def done() -> bool:
        _, text = await operator.ask("/metrics")
        return sample(text, 'reconciles_total{outcome="done"}') >= times and sample(text, "queue_depth") == 0

    await until(done, "the operator to have looked", every=0.1)


def _living(kube: Kube, member: str) -> list[object]:
    """Return one member of each dataset of the list of live datasets."""
    written = kube.get("ConfigMap", "lookupdb", "living") or {"data": {"living.json": '{"datasets": []}'}}
    return [dataset[member] for dataset in orjson.loads(written["data"]["living.json"])["datasets"]]


def sample(text: str, name: str) -> float:
    """Return one of the metrics of the operator or its datasets."""
    prefix = "" if name.startswith("dataset_") else "operator_"
    found = re.search(rf"^lookupdb_{prefix}{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def test_from_applied_to_ready_and_then_nothing_more_is_written(kube: Kube, kubelet: Kubelet) -> None:
    kube.put(dataset())
    chosen = options(
        admin_port=kubelet.admin_port, store_secret="store", create_store_secret=True, living_list="living"
    )
    async with operating(chosen) as operator:
        await all_steps(kube, kubelet)
        await until(lambda: condition(kube, "RolledOut")["reason"] == "UpToDate", "the end", lambda: seen(kube))
        await quiet(kube)
        text = (await operator.ask("/metrics"))[1]
        assert await operator.ask("/healthz") == (200, "ok\n")
        await until(lambda: _living(kube, "protect") == [["g1"]], "the living list", lambda: _living(kube, "protect"))

    assert {condition["type"]: condition["status"] for condition in status_of(kube)["conditions"]} == {
        "Ready": "True",
        "Built": "True",
        "RolledOut": "True",
        "Degraded": "False",
    }
    reasons = [(event["type"], event["reason"]) for event in kube.all("Event")]
    assert ("Normal", "Serving") in reasons
    for reason in ("Building", "GenerationBuilt", "StartingServers", "Confirming", "UpToDate"):
        assert reasons.count(("Normal", reason)) == 1, "one event a transition"
    # StatefulSets and pods have separate watches, one of which may lag on a busy machine.
    assert {reason for kind, reason in reasons if kind == "Warning"} <= {"ShardsUnavailable"}

    credentials = (kube.get("Secret", "lookupdb", "store") or {})["data"]
    (secret,) = kube.all("Secret", "shop")
    assert secret["metadata"]["name"].startswith("airports-store-")
    handed_on = secret["data"]
    assert handed_on["LOOKUPDB_STORE_AWS_SECRET_ACCESS_KEY"] == credentials["AWS_SECRET_ACCESS_KEY"]
    secrets_read = {path for _, path in kube.reads if "secrets" in path}
    assert secrets_read == {"/api/v1/namespaces/lookupdb/secrets/store"}, "and no other Secret"
    assert _living(kube, "name") == ["airports"]

    ready = 'condition="Ready",dataset="airports",namespace="shop",status="True"'
    assert sample(text, f"dataset_condition{{{ready}}}") == 1
    told = sum(float(value) for value in re.findall(r"^lookupdb_operator_api_writes_total\{.*\} (\S+)$", text, re.M))
    assert told >= len(kube.writes) - 2, "every write is counted; two came after the scrape at most"

    settled = len(kube.writes)
    async with operating(chosen) as operator:
        await looked(operator)
        await quiet(kube)
        assert not re.search("^lookupdb_operator_api_writes_total", (await operator.ask("/metrics"))[1], re.M)
    assert kube.writes[settled:] == []


async def test_behind_a_gateway_no_secret_is_read_or_written_but_to_make_the_embedded_stores(
    kube: Kube, kubelet: Kubelet
) -> None:
    kube.put(dataset())
    gateway = {"gateway": "http://lookupdb-gateway.lookupdb.svc:7071"}
    chosen = options(
        admin_port=kubelet.admin_port, store_secret="store", create_store_secret=True, config=gateway, resync_seconds=1
    )
    async with operating(chosen) as operator:
        await all_steps(kube, kubelet)
        await until(lambda: condition(kube, "RolledOut")["reason"] == "UpToDate", "the end", lambda: seen(kube))
        await looked_again(operator)
    assert kube.get("Secret", "lookupdb", "store") is not None
    assert kube.all("Secret", "shop") == []
    assert [path for _, path in kube.reads if "secrets" in path] == ["/api/v1/namespaces/lookupdb/secrets/store"]


async def test_shard_servers_have_passwords_whose_keys_are_made_and_never_read_but_the_releases(
    kube: Kube, kubelet: Kubelet
) -> None:
    kube.put(dataset())
    gateway = {"gateway": "http://lookupdb-gateway.lookupdb.svc:7071"}
    chosen = options(
        admin_port=kubelet.admin_port, shard_key_secret="lookupdb-shard-key", config=gateway, resync_seconds=1
    )
    async with operating(chosen) as operator:
        await all_steps(kube, kubelet)
        await until(lambda: condition(kube, "RolledOut")["reason"] == "UpToDate", "the end", lambda: seen(kube))
        await looked_again(operator)
        first = copy.deepcopy(_password_secrets(kube))
        assert len(first) == 1
        made = [write for write in kube.writes if write.kind == "Secret" and write.namespace == "shop"]
        assert {write.verb for write in made} == {"post"}
        settled = len(kube.writes)
        await looked_again(operator)
        assert kube.writes[settled:] == [], "a Secret that is there is not made again"
        # Deleting the release's key changes all passwords.
        del kube.objects["Secret", "lookupdb", "lookupdb-shard-key"]
        await until(lambda: len(_password_secrets(kube)) == 2, "the Secret of another key", lambda: seen(kube))
        await until(lambda: status_of(kube)["lastRollout"] == 2, "another rollout", lambda: seen(kube))
        assert {name: _password_secrets(kube)[name] for name in first} == first
    secrets_read = {path for _, path in kube.reads if "secrets" in path}
    assert secrets_read == {"/api/v1/namespaces/lookupdb/secrets/lookupdb-shard-key"}


def _password_secrets(kube: Kube) -> dict[str, Any]:
    """Return the data of each password Secret, by name."""
    return {secret["metadata"]["name"]: secret["data"] for secret in kube.all("Secret", "shop")}


async def test_an_operator_that_is_started_again_at_every_step_goes_on(kube: Kube, kubelet: Kubelet) -> None:
    kube.put(dataset())
    chosen = options(admin_port=kubelet.admin_port)
    async with operating(chosen):
        await step_to_build(kube)
    async with operating(chosen):
        await step_to_servers(kube, kubelet)
    async with operating(chosen):
        await step_to_table(kube, kubelet)
    async with operating(chosen):
        await step_to_ready(kube)
    status = status_of(kube)
    assert (status["lastGeneration"], status["lastRollout"], status["table"]["version"]) == (1, 1, 1)


async def test_nothing_is_looked_at_before_everything_was_listed(kube: Kube) -> None:
    kube.put(dataset())
    gate = kube.closed["/apis/networking.k8s.io/v1/networkpolicies"] = asyncio.Event()
    async with operating(options()):
        watched = {("WATCH", "/api/v1/pods"), ("WATCH", "/apis/lookupdb.dev/v1alpha1/lookupdatasets")}
        await until(lambda: watched <= set(kube.reads), "the other watches", lambda: kube.reads)
        for _ in range(10):
            await asyncio.sleep(0.1)
        assert kube.writes == []
        gate.set()
        await step_to_build(kube)


async def test_what_is_refused_shows_in_a_condition_until_it_is_taken(kube: Kube, kubelet: Kubelet) -> None:
    def refuse(write: Write) -> None:
        if write.kind == "StatefulSet":
            raise Refusal(403, "forbidden by somebody's policy", "Forbidden")

    kube.before_write = refuse
    kube.put(dataset())
    async with operating(options(admin_port=kubelet.admin_port)):
        await step_to_build(kube)
        message = "forbidden by somebody's policy"

        def is_refused() -> bool:
            kubelet.end_builds()  # every time: a build whose Job is seen to end before its pod is seen runs again
            return message in condition(kube, "Degraded")["message"]

        await until(is_refused, "the refusal", lambda: seen(kube))
        assert condition(kube, "Degraded")["status"] == "True"
        assert kube.get("Service", "shop", "airports-r1"), "what was not refused is there"
        kube.before_write = lambda write: None
        await until(lambda: condition(kube, "Degraded")["status"] == "False", "recovery", lambda: seen(kube))
        assert len(kube.all("StatefulSet")) == 2
    warnings = [event for event in kube.all("Event") if event["type"] == "Warning"]
    assert len(warnings) == 1
    assert message in warnings[0]["message"]


OTHERS = [
    pytest.param(
        {"kind": "ConfigMap", "apiVersion": "v1", "data": {"notes": "mine"}}, "routing-table", id="routing table"
    ),
    pytest.param({"kind": "ConfigMap", "apiVersion": "v1", "data": {}}, "g1-build", id="a build's ConfigMap"),
    pytest.param({"kind": "Secret", "apiVersion": "v1", "data": {"password": "Z2g="}}, "store", id="Secret"),
]


@pytest.mark.parametrize(("mine", "suffix"), OTHERS)
async def test_what_a_user_called_as_we_would_stays_the_users(
    kube: Kube, kubelet: Kubelet, mine: dict[str, Any], suffix: str
) -> None:
    mine = kube.put({**mine, "metadata": {"name": f"airports-{suffix}", "namespace": "shop"}})
    where = (mine["kind"], "shop", mine["metadata"]["name"])
    kube.put(dataset())
    async with operating(options(admin_port=kubelet.admin_port)):
        await step_to_build(kube)
        if suffix != "g1-build":
            await step_to_servers(kube, kubelet)
        if suffix == "routing-table":
            kubelet.start_servers()
        if suffix != "store":
            message = f"{where[2]} exists and is not this dataset's"
            await until(lambda: message in condition(kube, "Degraded")["message"], "a word", lambda: seen(kube))
            assert condition(kube, "Degraded")["reason"] == "ApplyRefused"
        assert kube.get(*where) == mine
        kube.remove("LookupDataset", "shop", "airports")
        assert kube.get(*where) == mine, "it is not collected with the dataset"


async def test_a_write_that_fails_or_comes_second_is_done_again(kube: Kube, caplog: pytest.LogCaptureFixture) -> None:
    failures = [Refusal(409, "modified", "Conflict"), Refusal(500, "etcd is away"), Refusal(429, "too many requests")]

    def fail(write: Write) -> None:
        if failures and write.kind != "Event":
            raise failures.pop(0)

    kube.before_write = fail
    kube.put(dataset())
    async with operating(options()) as operator:
        await step_to_build(kube)
        text = (await operator.ask("/metrics"))[1]
    assert failures == []
    assert sample(text, 'reconciles_total{outcome="conflict"}') == 1
    assert sample(text, "reconcile_errors_total") == 2
    assert status_of(kube)["lastGeneration"] == 1
    assert "etcd is away" in caplog.text


async def test_of_two_operators_one_acts(kube: Kube) -> None:
    one, two = (options(config={"identity": f"{name}/lookupdb"}) for name in ("one", "two"))
    async with operating(one) as first, operating(two) as second:
        kube.put(dataset())
        await step_to_build(kube)
        await asyncio.gather(looked(first), looked(second))
        await quiet(kube)
        kube.put(respecified(kube, shards=3))
        await until(lambda: kube.get("Job", "shop", "airports-g2-build"), "the next build", lambda: seen(kube))
        await quiet(kube)
        texts = [(await operator.ask("/metrics"))[1] for operator in (first, second)]
    owner = status_of(kube)["operator"]
    acted = ["one/lookupdb", "two/lookupdb"].index(owner)
    assert sample(texts[acted], 'api_writes_total{kind="Job",verb="apply"}') == 2
    assert sample(texts[1 - acted], 'api_writes_total{kind="Job",verb="apply"}') == 0
    assert "lookupdb_dataset_info{" in texts[acted]
    assert "lookupdb_dataset_info{" not in texts[1 - acted]
    for text, identity in zip(texts, ("one/lookupdb", "two/lookupdb"), strict=True):
        assert sample(text, f'info{{operator="{identity}"}}') == 1, "by which an alert knows that it lives"
    unattended = f'dataset="airports",namespace="shop",operator="{owner}",reason="OtherOperator"'
    assert sample(texts[1 - acted], f"dataset_unattended{{{unattended}}}") == 1
    assert "lookupdb_dataset_unattended{" not in texts[acted]


async def test_what_is_deleted_while_no_watch_sees_it_comes_back(kube: Kube) -> None:
    kube.put(dataset())
    async with operating(options(resync_seconds=1.0)):
        await step_to_build(kube)
        await until(lambda: kube.get("Service", "shop", "airports-router"), "the routers' Service", lambda: seen(kube))
        await quiet(kube)
        kube.lose("Service", "shop", "airports-router")
        await until(lambda: kube.get("Service", "shop", "airports-router"), "it to be back", lambda: seen(kube))
        kube.interrupt(forget=False)
        kube.put(dataset("rivers"))
        await until(lambda: kube.get("Job", "shop", "rivers-g1-build"), "news after it", lambda: seen(kube))


async def test_what_loses_its_labels_gets_them_back_and_is_seen_again(kube: Kube) -> None:
    """A watch by label reports a deletion, and later a new object."""
    kube.put(dataset())
    async with operating(options()) as operator:
        await step_to_build(kube)
        await quiet(kube)
        policy = kube.all("NetworkPolicy", "shop")[0]
        name, labels = policy["metadata"]["name"], policy["metadata"]["labels"]
        kube.put({**policy, "metadata": {**policy["metadata"], "labels": {}}})
        await until(
            lambda: (found := kube.get("NetworkPolicy", "shop", name)) and found["metadata"]["labels"] == labels,
            "its labels",
        )
        await quiet(kube)
        before = len(kube.writes)
        thing = kube.all("LookupDataset", "shop")[0]
        kube.put({**thing, "metadata": {**thing["metadata"], "annotations": {"somebody": "looks"}}})
        await looked(operator)
        await quiet(kube)
        assert [write for write in kube.writes[before:] if write.kind == "NetworkPolicy"] == []
    found = kube.get("NetworkPolicy", "shop", name)
    assert found is not None
    assert found["metadata"]["uid"] == policy["metadata"]["uid"], "it was adopted, not made again"


async def test_only_the_namespaces_given_are_acted_on(kube: Kube) -> None:
    kube.put(dataset(namespace="elsewhere"))
    kube.put(dataset())
    async with operating(options(namespaces=("shop",))) as operator:
        await step_to_build(kube)
        await looked(operator)
        kube.remove("LookupDataset", "shop", "airports")
        await until(lambda: not kube.all("Job"), "the end of it", lambda: seen(kube))

        async def forgotten() -> bool:
            return "lookupdb_dataset_info{" not in (await operator.ask("/metrics"))[1]

        await until(forgotten, "no metrics of it")
    assert {write.namespace for write in kube.writes} == {"shop"}
    assert all("/namespaces/" in path for method, path in kube.reads if method == "WATCH")


def _with_another_image(item: dict[str, Any]) -> None:
    item["spec"]["template"]["spec"]["containers"][0]["image"] = "somebody/elses:1"


def _with_another_selector(item: dict[str, Any]) -> None:
    item["spec"]["selector"] = {"app": "something-else"}


def _without_ports(item: dict[str, Any]) -> None:
    item["spec"]["ports"] = []


def _scaled_to_none(item: dict[str, Any]) -> None:
    item["spec"]["replicas"] = 0


def _allowing_none(item: dict[str, Any]) -> None:
    item["spec"]["maxUnavailable"] = 0


def _wide_open(item: dict[str, Any]) -> None:
    item["spec"]["ingress"] = [{}]


def _bounded_otherwise(item: dict[str, Any]) -> None:
    item["spec"]["maxReplicas"] = 1


def _relabelled(item: dict[str, Any]) -> None:
    item["metadata"]["labels"]["app.kubernetes.io/name"] = "mine"


CHANGES = (
    ("Deployment", "airports-router", _scaled_to_none),
    ("Deployment", "airports-router", _with_another_image),
    ("Service", "airports-router", _with_another_selector),
    ("Service", "airports-router", _relabelled),
    ("Service", "airports-r1", _without_ports),
    ("StatefulSet", "airports-r1-s1", _scaled_to_none),
    ("StatefulSet", "airports-r1-s1", _with_another_image),
    ("PodDisruptionBudget", "airports-r1-s0", _allowing_none),
    ("NetworkPolicy", "airports-shard", _wide_open),
    ("HorizontalPodAutoscaler", "airports-router", _bounded_otherwise),
)
AUTOSCALED: dict[str, Any] = {"router": {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}}}


def content(item: dict[str, Any] | None) -> dict[str, Any]:
    """Return an object as people wrote it."""
    assert item is not None
    own = ("labels", "annotations", "ownerReferences")
    metadata = {name: member for name, member in item["metadata"].items() if name in own}
    return {**{name: item[name] for name in item if name in ("spec", "data")}, "metadata": metadata}


@pytest.fixture
async def at_rest(kube: Kube, kubelet: Kubelet) -> AsyncIterator[Running]:
    """Run an operator whose one dataset serves, with nothing left to do."""
    kube.put(dataset(**AUTOSCALED))
    async with operating(options(admin_port=kubelet.admin_port, resync_seconds=2.0)) as operator:
        await all_steps(kube, kubelet)
        await until(lambda: condition(kube, "RolledOut")["reason"] == "UpToDate", "the end", lambda: seen(kube))
        await quiet(kube)
        yield operator


async def repaired(kube: Kube, before: dict[str, Any], what: str) -> None:
    """Wait until an object is as it was before."""
    where = (before["kind"], "shop", before["metadata"]["name"])
    await until(lambda: content(kube.get(*where)) == content(before), f"the end of {what}", lambda: seen(kube))


async def test_what_somebody_changes_by_hand_is_put_right_once(kube: Kube, at_rest: Running) -> None:
    kube.writes.clear()
    for kind, name, change in CHANGES:
        before = kube.get(kind, "shop", name)
        changed = copy.deepcopy(before)
        assert changed is not None
        change(changed)
        kube.put(changed)
        assert content(kube.get(kind, "shop", name)) != content(before)
        await repaired(kube, before or {}, change.__name__)
    await quiet(kube)
    written = [(write.kind, write.name) for write in kube.writes if write.kind not in ("LookupDataset", "Event")]
    assert written == [(kind, name) for kind, name, _ in CHANGES], "each once, and nothing else"


async def test_what_was_changed_while_no_operator_ran_is_put_right(kube: Kube, kubelet: Kubelet) -> None:
    kube.put(dataset())
    async with operating(options(admin_port=kubelet.admin_port)):
        await all_steps(kube, kubelet)
    service = copy.deepcopy(kube.get("Service", "shop", "airports-r1"))
    assert service is not None
    kube.put({**service, "spec": {**service["spec"], "ports": []}})
    async with operating(options(admin_port=kubelet.admin_port)):
        await repaired(kube, service, "the edit")


async def test_what_others_add_to_our_objects_is_theirs(kube: Kube, at_rest: Running) -> None:
    kube.writes.clear()
    for kind, name in (("Deployment", "airports-router"), ("Service", "airports-router")):
        item = copy.deepcopy(kube.get(kind, "shop", name))
        assert item is not None
        item["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "2"
        item["metadata"]["labels"]["team"] = "maps"
        item["spec"]["clusterIP"] = "10.0.0.7"
        kube.put(item)
    deployment = copy.deepcopy(kube.get("Deployment", "shop", "airports-router"))
    assert deployment is not None
    template = deployment["spec"]["template"]
    template["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "2030-01-01T00:00:00Z"
    template["spec"]["dnsPolicy"] = "ClusterFirst"
    deployment["spec"]["replicas"] = 3  # within the autoscaler's bounds
    kube.put(deployment)
    await looked_again(at_rest)
    await quiet(kube)
    assert kube.writes == []


async def test_a_webhook_that_changes_what_we_write_is_not_fought(kube: Kube, kubelet: Kubelet) -> None:
    def admit(applied: dict[str, Any]) -> dict[str, Any]:
        if applied["kind"] in ("Deployment", "StatefulSet"):
            for container in applied["spec"]["template"]["spec"]["containers"]:
                container["image"] = f"mirror.example/{container['image'].removeprefix('mirror.example/')}"
        return applied

    kube.admit = admit
    kube.put(dataset())
    async with operating(options(admin_port=kubelet.admin_port, resync_seconds=2.0)) as operator:
        await all_steps(kube, kubelet)
        await until(lambda: condition(kube, "RolledOut")["reason"] == "UpToDate", "the end", lambda: seen(kube))
        await quiet(kube)
        kube.writes.clear()
        await looked_again(operator)
        assert kube.writes == []
    async with operating(options(admin_port=kubelet.admin_port, resync_seconds=2.0)) as operator:
        await looked(operator)
        await looked_again(operator)
        again = [write.name for write in kube.writes if write.kind != "LookupDataset"]
        assert sorted(again) == ["airports-r1-s0", "airports-r1-s1", "airports-router"], "once for each operator"


async def looked_again(operator: Running) -> None:
    """Wait until ``operator`` has looked at all of its datasets since this call."""
    _, text = await operator.ask("/metrics")
    await looked(operator, int(sample(text, 'reconciles_total{outcome="done"}')) + 2)
