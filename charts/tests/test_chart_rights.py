"""The operator's rights: the chart's roles grant all requests that it makes in a whole life, and every granted right is
used."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_support.kube import Kube, serving
from operator_support.kube_rights import Grant, Need, grants
from operator_support.kube_story import all_steps, condition, dataset, respecified, seen, step_to_build, step_to_servers
from operator_support.kubelet import Kubelet, kubelet_of
from operator_support.running import operating, until
from support.ports import free_port

from chart_support import EXTERNAL, NAMESPACE, NO_GATEWAY, ROOT, Rendered, Values, parse_arguments, render
from lookupdb.spark.pods import VERBS
from lookupdb_operator import command, names
from lookupdb_operator.cluster import workloads
from lookupdb_operator.main import OperatorOptions

UNUSED = [
    # OpenShift's admission plugin OwnerReferencesPermissionEnforcement wants it for blockOwnerDeletion.
    ("update", "lookupdb.dev/lookupdatasets/finalizers"),
]

NO_PASSWORDS: Values = {"shardPasswords": {"enabled": False}}
VARIANTS: dict[str, Values] = {
    "everywhere": {},
    "in a listed namespace": {"watchNamespaces": ["shop"]},
    "everywhere, without a gateway": NO_GATEWAY,
    "in a listed namespace, without a gateway": {"watchNamespaces": ["shop"], **NO_GATEWAY},
    "everywhere, without passwords": NO_PASSWORDS,
}

SPEC: dict[str, Any] = {
    "router": {"autoscaling": {"maxReplicas": 3}, "resources": {"requests": {"cpu": "1"}}, "deadlineMilliseconds": 100},
    "rollout": {"drainSeconds": 0},
    "sync": {},
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
async def test_the_operator_may_do_what_it_does_and_no_more(
    values: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    for name in ("_NODE_AWAY", "_SLOW_KUBELET"):  # minutes, which the operator counts itself
        monkeypatch.setattr(workloads, name, 0.2)
    rendered = render(values)
    async with serving(tmp_path) as kube, kubelet_of(kube) as kubelet:
        await lived(kube, kubelet, chosen_by(rendered, kubelet))

    given = granted(rendered)
    assert [need for need in sorted(kube.used) if not any(one.covers(need) for one in given)] == []
    idle = [one for one in sorted(given) if not any(one.covers(need) for need in kube.used)]
    assert [(one.verb, one.resource) for one in idle] == UNUSED


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["shop"]}, EXTERNAL])
def test_with_a_gateway_a_secret_of_a_datasets_namespace_can_be_made_and_else_nothing(values: Values) -> None:
    assert verbs_on_secrets_elsewhere(values) == {"create"}
    assert verbs_on_secrets_elsewhere({**values, **NO_PASSWORDS}) == set()
    assert verbs_on_secrets_elsewhere({**values, **NO_GATEWAY}) == {"create", "patch"}


@pytest.mark.parametrize("values", [{}, EXTERNAL, NO_GATEWAY, NO_PASSWORDS])
def test_of_its_own_namespace_the_operator_may_read_what_it_reads_by_name(values: Values) -> None:
    secrets = [grant for grant in granted(render(values)) if grant.resource == "/secrets"]
    assert all(grant.names for grant in secrets if grant.verb not in ("create", "patch"))
    read = {name for grant in secrets if grant.verb == "get" for name in grant.names}
    assert ("lookupdb-shard-key" in read) == (values is not NO_PASSWORDS)


def verbs_on_secrets_elsewhere(values: Values) -> set[str]:
    """Return the operator's rights to Secrets outside of the release's namespace."""
    return {
        grant.verb for grant in granted(render(values)) if grant.resource == "/secrets" and grant.namespace != NAMESPACE
    }


def test_what_a_rule_covers() -> None:
    need = Need("create", "/configmaps", "shop", "airports-routing-table")
    assert Grant("create", "/configmaps").covers(need)
    assert not Grant("patch", "/configmaps").covers(need)
    assert not Grant("create", "/configmaps", "elsewhere").covers(need)
    assert not Grant("create", "/configmaps", names=(need.name,)).covers(need), "no name is known yet"


def chosen_by(rendered: Rendered, kubelet: Kubelet) -> OperatorOptions:
    """Return the operator's options in the chart, with local addresses."""
    chosen = command.options(**parse_arguments(command.command, rendered.operator_arguments()[1:]))
    return replace(chosen, host="127.0.0.1", port=free_port(), admin_port=kubelet.admin_port)


def granted(rendered: Rendered) -> set[Grant]:
    """Return the rights from every role that is bound to the operator's ServiceAccount."""
    roles = [*rendered.find_all("Role"), *rendered.find_all("ClusterRole")]
    bindings = [*rendered.find_all("RoleBinding"), *rendered.find_all("ClusterRoleBinding")]
    bound = {(one["roleRef"]["kind"], one["roleRef"]["name"], one["metadata"].get("namespace")) for one in bindings}
    return grants(
        role for role in roles if (role["kind"], role["metadata"]["name"], role["metadata"].get("namespace")) in bound
    )


async def lived(kube: Kube, kubelet: Kubelet, chosen: OperatorOptions) -> None:
    """Live a dataset from its first build to its second rollout, with troubles and remnants."""
    kube.put(dataset(**SPEC))
    async with operating(chosen):
        await step_to_build(kube)
        await asked_for_events(kube)
        await all_steps(kube, kubelet)
        await rolled_out_again(kube, kubelet)
        await tidied(kube)
        await lost_a_node(kube)
        await until(lambda: kube.get("ConfigMap", chosen.namespace, chosen.living_list), "the living list")


async def asked_for_events(kube: Kube) -> None:
    """Make a Job old that has no pod: only events say why."""
    (job,) = kube.all("Job")
    job = {**job, "metadata": {**job["metadata"], "creationTimestamp": "2020-01-01T00:00:00Z"}}
    kube.put(job)

    def looked() -> bool:
        (thing,) = kube.all("LookupDataset")  # its changes are looked at, an older Job alone is not
        annotations = {"version": thing["metadata"]["resourceVersion"]}
        kube.put({**thing, "metadata": {**thing["metadata"], "annotations": annotations}})
        return any(one.resource == "/events" and one.verb == "list" for one in kube.used)

    await until(looked, "a look at events", lambda: seen(kube), every=0.5)


async def rolled_out_again(kube: Kube, kubelet: Kubelet) -> None:
    """Change the number of shards: a build, a rollout, and the end of the one before."""
    kube.put(respecified(kube, **SPEC, shards=3))
    await until(lambda: kube.get("Job", "shop", "airports-g2-build"), "the next build", lambda: seen(kube))
    await step_to_servers(kube, kubelet, count=5)
    kubelet.start_servers()
    await until(lambda: len(kube.all("StatefulSet")) == 3, "the first rollout's end", lambda: seen(kube))
    await until(lambda: condition(kube, "RolledOut")["reason"] == "UpToDate", "the end", lambda: seen(kube))


async def tidied(kube: Kube) -> None:
    """Leave objects as an operator of another version may, also of kinds that are never deleted otherwise."""
    left = []
    for kind in (names.DEPLOYMENT, names.DAEMON_SET, names.AUTOSCALER, names.NETWORK_POLICY):
        like = copy.deepcopy(kube.all(kind.name)[0])
        del like["metadata"]["uid"]
        kube.put({**like, "metadata": {**like["metadata"], "name": "left-over"}})
        left.append((kind.name, "shop", "left-over"))
    await until(lambda: not any(one in kube.objects for one in left), "the end of what was left", lambda: seen(kube))


async def lost_a_node(kube: Kube) -> None:
    """Mark a serving pod as being deleted; its kubelet never reports its end."""
    pod = copy.deepcopy(next(pod for pod in kube.all("Pod") if pod["metadata"]["labels"].get(names.SHARD) == "0"))
    pod["metadata"]["deletionTimestamp"] = "2020-01-01T00:06:00Z"
    pod["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"},
    ]
    kube.put(pod)
    where = ("Pod", "shop", pod["metadata"]["name"])
    await until(lambda: where not in kube.objects, "the end of a lost pod", lambda: seen(kube))


def test_drivers_of_spark_get_pods_of_the_listed_namespaces_and_nothing_else() -> None:
    listed = ["shop", "search"]
    rendered = render({"spark": {"namespaces": listed, "serviceAccountName": "driver"}})
    plain = render()
    for kind in ("ServiceAccount", "Role", "RoleBinding"):
        before = plain.find_all(kind)
        added = [item for item in rendered.find_all(kind) if item not in before]
        assert [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in added] == [
            (namespace, "driver") for namespace in listed
        ]
    roles = [item for item in rendered.find_all("Role") if item["metadata"]["name"] == "driver"]
    assert [role["rules"] for role in roles] == [[{"apiGroups": [""], "resources": ["pods"], "verbs": [*VERBS]}]] * 2
    for binding in rendered.find_all("RoleBinding"):
        if binding["roleRef"]["name"] == "driver":
            account = {"kind": "ServiceAccount", "name": "driver", "namespace": binding["metadata"]["namespace"]}
            assert (binding["subjects"], binding["roleRef"]["kind"]) == ([account], "Role")


def test_the_page_shows_the_role_that_the_chart_makes() -> None:
    page = (ROOT / "docs" / "operations" / "spark.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]
    shown = [item for block in blocks for item in yaml.safe_load_all(block) if item["kind"] == "Role"]
    rendered = render({"spark": {"namespaces": ["search"]}})
    assert [role["rules"] for role in shown] == [rendered.get_object("Role", "lookupdb-spark")["rules"]]
