"""NetworkPolicies are enforced: a dataset is built, served, and built again under load with no answer lost, and a port
answers those alone whose business it is. It runs alone: all pods of the cluster are held to their policies."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from e2e.support import enforcer, pods, release, router_pods, store
from e2e.support.figures import record
from e2e.support.kubectl import Manifest, find, kubectl, run_in, until
from e2e.support.story import BRISK, PATIENT, Story

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
}
"""Who may reach which ports. Nobody but the gateway and the sweep reaches the store."""


class Place(NamedTuple):
    """Where somebody listens."""

    host: str
    port: int


class Who(NamedTuple):
    """A pod that tries."""

    pod: str
    namespace: str


def test_a_port_answers_those_whose_business_it_is(story: Story) -> None:
    keys = story.source("records", version="v1", records=500)
    story.apply(pods.stranger(STRANGER), pods.intruder({}))
    router = PATIENT | {"replicas": ROUTERS, "clients": CLIENTS}
    story.apply(story.dataset(DATASET, "records", shards=2, router=router, rollout=BRISK))
    story.wait_settled(DATASET)
    for name in (STRANGER, pods.INTRUDER):
        kubectl("wait", "--for=condition=Ready", f"pod/{name}", "-n", story.namespace, "--timeout=50s")
    story.wait_client()
    if enforcer.IMAGE:
        assert all(_reached(who, _places(story)) >= {*_places(story)} for who in _everybody(story).values()), (
            "or what is silent below is silent for another reason"
        )

    with enforcer.enforced():
        until(lambda: _is_enforced(story), seconds=60, what="NetworkPolicies enforced")
        _check_ports(story)
        with story.load(DATASET, keys, per_second=100) as load:
            load.wait_answers(300, seconds=120)
            story.source("records", version="v2", records=500)
            story.refresh(DATASET)
            load.wait_generation("g2", seconds=240)
            story.wait_settled(DATASET, generation="g2")
            load.wait_answers(load.report().answers + 300, seconds=120)
            report = load.stop()
        record("network-policies", "answers while they are enforced", report.answers)
        lost = report.failed + report.mixed + report.wrong
        record("network-policies", "failed, wrong or mixed answers", lost, at_most=0)
        report.check(g1="v1", g2="v2")
        _check_ports(story)

        story.change(DATASET, router={"clients": [{"podSelector": {"matchLabels": {"app": STRANGER}}}]})
        who, places = _everybody(story), _places(story)
        until(lambda: _reached(who["stranger"], places) >= ROUTER, seconds=60, what="another client let in")
        until(lambda: not _reached(who["client"], places), seconds=60, what="the client of before kept out")


def _everybody(story: Story) -> dict[str, Who]:
    _, router = _router_pods(story)  # the first is what is tried, and whoever is in a pod reaches that
    return {
        "client": Who(pods.CLIENT, story.namespace),
        "stranger": Who(STRANGER, story.namespace),
        "who looks like a builder": Who(pods.INTRUDER, story.namespace),
        "router": Who(router["metadata"]["name"], story.namespace),
        "operator": Who(release.operator_pod()["metadata"]["name"], release.NAMESPACE),
    }


def _places(story: Story) -> dict[str, Place]:
    """By the addresses of pods, to which policies hold. Those of the operator are only its own node's to ask."""
    router = _address(_router_pods(story))
    shard = _address(find("pods", story.namespace, SHARD))
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


def _router_pods(story: Story) -> list[Manifest]:
    found = [pod for pod in router_pods.pods(story.namespace) if _runs(pod)]
    assert len(found) == ROUTERS, [pod["metadata"]["name"] for pod in found]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def _address(found: Iterable[Manifest]) -> str:
    (first, *_) = (str(pod["status"]["podIP"]) for pod in found if _runs(pod))
    return first


def _runs(pod: Manifest) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and bool(pod["status"]["phase"] == "Running")


def _is_enforced(story: Story) -> bool:
    return not _reached(_everybody(story)["stranger"], _places(story))


def _check_ports(story: Story) -> None:
    places = _places(story)
    reached = {name: _reached(who, places) for name, who in _everybody(story).items()}
    assert reached == OPEN_TO


def _reached(who: Who, places: dict[str, Place]) -> frozenset[str]:
    """The names of the ``places`` that answer."""
    asked = json.dumps([*places.values()])
    told = json.loads(run_in(who.pod, who.namespace, "python", "-c", REACH, stdin=asked))
    return frozenset(name for name, is_open in zip(places, told, strict=True) if is_open)
