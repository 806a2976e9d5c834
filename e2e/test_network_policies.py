"""With NetworkPolicies enforced, ports answer only the pods that need them, and a rebuild under load loses no answer.

It runs alone, because the policies of all pods of the cluster are enforced.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from e2e.support import console, pods, release, router_pods, store
from e2e.support.figures import record
from e2e.support.kubectl import Manifest, apply, delete, find, kubectl, run_in, until
from e2e.support.scenario import BRISK, PATIENT, Scenario

ENFORCER_IMAGE: Final = os.environ.get("E2E_ENFORCER", "")
"""The image of ``e2e/enforcer``, which enforces policies on kind's nodes, whose network does not. ``e2e/run`` sets
the variable there. Other clusters must enforce policies by themselves."""
ENFORCER: Final = "lookupdb-e2e-enforcer"
SYSTEM: Final = "kube-system"
_META: Final = {"name": ENFORCER, "namespace": SYSTEM}
DATASET: Final = "records"
SHARD: Final = "app.kubernetes.io/component=shard"
REACH: Final = (pods.INSIDE / "reach.py").read_text()
STRANGER: Final = "e2e-stranger"
LOAD: Final = "e2e-load"
CLIENTS: Final = [{"podSelector": {"matchLabels": {"app": name}}} for name in (pods.CLIENT, LOAD)]
ROUTERS: Final = 2
ROUTER: Final = frozenset({"router", "router for Redis"})
OPEN_TO: Final = {
    "client": ROUTER,
    "stranger": frozenset[str](),
    "who looks like a builder": frozenset({"gateway"}),
    "router": frozenset({"shard"}),
    "operator": frozenset({"router admin", "shard admin", "gateway"}),
    "console": frozenset({"router admin", "shard admin"}),
}
"""The ports that each pod may reach. Only the gateway and the sweep reach the store."""


class Place(NamedTuple):
    """An address that something listens on."""

    host: str
    port: int


class Who(NamedTuple):
    """A pod that tries to connect."""

    pod: str
    namespace: str


def test_a_port_answers_those_whose_business_it_is(scenario: Scenario) -> None:
    keys = scenario.source("records", version="v1", records=500)
    scenario.apply(pods.stranger(STRANGER), pods.intruder({}))
    router = PATIENT | {"replicas": ROUTERS, "clients": CLIENTS}
    scenario.apply(scenario.dataset(DATASET, "records", shards=2, router=router, rollout=BRISK))
    scenario.wait_settled(DATASET)
    for name in (STRANGER, pods.INTRUDER):
        kubectl("wait", "--for=condition=Ready", f"pod/{name}", "-n", scenario.namespace, "--timeout=50s")
    scenario.wait_client()
    if ENFORCER_IMAGE:
        assert all(_reached(who, _places(scenario)) >= {*_places(scenario)} for who in _everybody(scenario).values()), (
            "or what is silent below is silent for another reason"
        )

    with _enforced():
        until(lambda: _is_enforced(scenario), seconds=60, what="NetworkPolicies enforced")
        _check_ports(scenario)
        with scenario.load(DATASET, keys, per_second=100) as load:
            load.wait_answers(300, seconds=120)
            scenario.source("records", version="v2", records=500)
            scenario.refresh(DATASET)
            load.wait_generation("g2", seconds=240)
            scenario.wait_settled(DATASET, generation="g2")
            load.wait_answers(load.report().answers + 300, seconds=120)
            report = load.stop()
        record("network-policies", "answers while they are enforced", report.answers)
        lost = report.failed + report.mixed + report.wrong
        record("network-policies", "failed, wrong or mixed answers", lost, at_most=0)
        report.check(g1="v1", g2="v2")
        _check_ports(scenario)

        scenario.change(DATASET, router={"clients": [{"podSelector": {"matchLabels": {"app": STRANGER}}}]})
        who, places = _everybody(scenario), _places(scenario)
        until(lambda: _reached(who["stranger"], places) >= ROUTER, seconds=60, what="another client let in")
        until(lambda: not _reached(who["client"], places), seconds=60, what="the client of before kept out")


def _everybody(scenario: Scenario) -> dict[str, Who]:
    _, router = _router_pods(scenario)  # the first one is the target, and a pod always reaches itself
    return {
        "client": Who(pods.CLIENT, scenario.namespace),
        "stranger": Who(STRANGER, scenario.namespace),
        "who looks like a builder": Who(pods.INTRUDER, scenario.namespace),
        "router": Who(router["metadata"]["name"], scenario.namespace),
        "operator": Who(release.operator_pod()["metadata"]["name"], release.NAMESPACE),
        "console": Who(console.pod()["metadata"]["name"], release.NAMESPACE),
    }


def _places(scenario: Scenario) -> dict[str, Place]:
    """Return the addresses of pods, which policies apply to. The operator's own are left out: only its node may ask
    them."""
    router = _address(_router_pods(scenario))
    shard = _address(find("pods", scenario.namespace, SHARD))
    gateway = _address(find("pods", release.NAMESPACE, release.GATEWAY))
    return {
        "router": Place(router, 8080),
        "router for Redis": Place(router, 6379),
        "router admin": Place(router, 9090),
        "shard": Place(shard, 7000),
        "shard admin": Place(shard, 9090),
        "gateway": Place(gateway, 7071),
        "gateway admin": Place(gateway, 9090),
        "store": Place(_address([store.pod()]), 7070),
    }


def _router_pods(scenario: Scenario) -> list[Manifest]:
    found = [pod for pod in router_pods.pods(scenario.namespace) if _runs(pod)]
    assert len(found) == ROUTERS, [pod["metadata"]["name"] for pod in found]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def _address(found: Iterable[Manifest]) -> str:
    (first, *_) = (str(pod["status"]["podIP"]) for pod in found if _runs(pod))
    return first


def _runs(pod: Manifest) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and bool(pod["status"]["phase"] == "Running")


def _is_enforced(scenario: Scenario) -> bool:
    return not _reached(_everybody(scenario)["stranger"], _places(scenario))


def _check_ports(scenario: Scenario) -> None:
    places, everybody = _places(scenario), _everybody(scenario)
    with ThreadPoolExecutor(len(everybody)) as threads:  # each waits for the ports that are silent
        reached = threads.map(lambda who: _reached(who, places), everybody.values())
        assert dict(zip(everybody, reached, strict=True)) == OPEN_TO


def _reached(who: Who, places: dict[str, Place]) -> frozenset[str]:
    """Return the names of the ``places`` that answer."""
    asked = json.dumps([*places.values()])
    result = json.loads(run_in(who.pod, who.namespace, "python", "-c", REACH, stdin=asked))
    return frozenset(name for name, is_open in zip(places, result, strict=True) if is_open)


@contextlib.contextmanager
def _enforced() -> Iterator[None]:
    """Enforce NetworkPolicies while the block runs."""
    if not ENFORCER_IMAGE:
        yield
        return
    apply(*_enforcer())
    try:
        kubectl("rollout", "status", f"daemonset/{ENFORCER}", "--namespace", SYSTEM, "--timeout=120s", timeout=130)
        yield
    finally:
        delete("daemonset", ENFORCER, SYSTEM, "--cascade=foreground")
        for kind in ("clusterrolebinding", "clusterrole"):
            delete(kind, ENFORCER, None)
        delete("serviceaccount", ENFORCER, SYSTEM)


def _enforcer() -> list[Manifest]:
    """Return the DaemonSet, and its right to read what policies name."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ENFORCER}
    rules = [
        {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]},
    ]
    account = {"kind": "ServiceAccount", "name": ENFORCER, "namespace": SYSTEM}
    labels = {"app": ENFORCER}
    pod: dict[str, Any] = {
        "hostNetwork": True,
        "serviceAccountName": ENFORCER,
        "terminationGracePeriodSeconds": 20,  # it removes its rules on shutdown
        "tolerations": [{"operator": "Exists"}],
        "containers": [
            {
                "name": "main",
                "image": ENFORCER_IMAGE,
                "imagePullPolicy": "Never",
                "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "securityContext": {"privileged": True},
            }
        ],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _META},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": ENFORCER},
            "rules": rules,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": ENFORCER},
            "roleRef": role,
            "subjects": [account],
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": _META,
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
        },
    ]
