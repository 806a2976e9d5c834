"""The routers of the model cluster, and the kubelet that writes the routing table for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from lookupdb.router.routing_table import describe_contradiction, digest_table
from lookupdb_operator import names
from operator_support.plan_objects import NAME, Process, Thing
from operator_support.plan_passwords import can_open, check_lets_in, mount_keys

if TYPE_CHECKING:
    from operator_support.plan_world import World


def keep_routers(world: World, thing: Thing) -> None:
    """Keep the desired number of routers. Those of an older pod template go one by one, each when another one is
    ready."""
    living = [pod for pod in world.pods.values() if pod.owner == thing.uid and pod.dies_at is None]
    replicas = thing.manifest["spec"]["replicas"]
    template = orjson.dumps(thing.manifest["spec"]["template"]).decode()
    outdated = [pod for pod in living if pod.template != template]
    for _ in range(replicas + bool(outdated) - len(living)):
        world.add(f"{thing.manifest['metadata']['name']}-{world.made}", thing, names.ROUTER, thing.manifest)
    current = [pod for pod in living if pod.template == template]
    replaceable = [pod for pod in outdated if not pod.ready] or outdated[: all(pod.ready for pod in current)]
    surplus = replaceable if outdated else current
    for pod in surplus[: max(0, len(living) - replicas)]:
        world.stop(pod)


def run_router(world: World, pod: Process) -> None:
    """Take up the routing table that the kubelet has synced, or restart after a crash."""
    table = world.things.get(("ConfigMap", names.routing_table(NAME)))
    if pod.dies_at is not None or table is None or world.age(pod) < world.takes.router_start:
        return
    content = _table(table.manifest["data"][names.TABLE_FILE])
    mount_keys(world, pod)
    check_lets_in(world, pod)
    _sync_mount(world, pod, table, content)
    if pod.down_until is not None:
        if world.now < pod.down_until or pod.mounted is None:
            return
        pod.down_until, pod.trouble = None, None
        pod.ready = can_open(world, pod, pod.mounted)
    if pod.mounted is None:
        return
    if pod.table is None or pod.table["version"] < pod.mounted["version"]:
        if pod.table is not None and world.proves_servers and not _proves(world, pod.table, pod.mounted):
            return
        if pod.table is not None and not can_open(world, pod, pod.mounted):
            return
        if pod.table is not None:
            world.invariants.left(pod.table, world.now)
        pod.table = pod.mounted
        world.invariants.took(pod.table)
    elif pod.table["version"] >= content["version"]:
        pod.ready = pod.trouble is None and (pod.ready or can_open(world, pod, pod.table))


def edit_table(world: World, change: Callable[[str], str], *, annotations: Mapping[str, str] | None = None) -> None:
    """Edit the ConfigMap of the routing table by hand: the text of the table, and perhaps annotations."""
    thing = world.things["ConfigMap", names.routing_table(NAME)]
    meta = thing.manifest["metadata"]
    thing.manifest = thing.edited = {
        **thing.manifest,
        "metadata": {**meta, "annotations": {**meta["annotations"], **(annotations or {})}},
        "data": {names.TABLE_FILE: change(thing.manifest["data"][names.TABLE_FILE])},
    }
    thing.changed = world.now


def edit_label(world: World) -> None:
    """Edit a label of the routing table's ConfigMap by hand, which no router reads."""
    thing = world.things["ConfigMap", names.routing_table(NAME)]
    meta = thing.manifest["metadata"]
    labels = {**meta["labels"], "app.kubernetes.io/managed-by": "gitops"}
    thing.manifest = thing.edited = {**thing.manifest, "metadata": {**meta, "labels": labels}}
    thing.changed = world.now


def with_wrong_address(text: str) -> str:
    """Return the routing table ``text`` with an unused address for its last shard."""
    before, colon, after = text.rpartition(":7000")
    return f"{before}:9{after}" if colon else text


def with_version(text: str, version: int) -> str:
    """Return the routing table ``text`` with another version."""
    return orjson.dumps(orjson.loads(text) | {"version": version}).decode()


def diagnose_refusal(pod: Process) -> str:
    """Return why a router does not answer from its mounted table; empty when it does, or is about to."""
    if pod.table is None or pod.mounted is None or pod.table["version"] != pod.mounted["version"]:
        return ""
    return "" if pod.table == pod.mounted else f"{describe_contradiction(pod.table['version'])}; a change needs another"


def digest_held(table: dict[str, Any]) -> str:
    """Return the digest that a router reports after reading ``table`` as the operator writes it. An edit changes the
    digest."""
    return digest_table(orjson.dumps(table) + b"\n")


def _proves(world: World, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether each shard of ``after`` that another generation serves than in ``before`` has a server that is
    ready."""
    ready = {pod.name for pod in world.pods.values() if pod.ready and pod.dies_at is None}
    entry, entry_before = after["generations"][0], before["generations"][0]
    generations = [shard.get("generation", entry_before["generation"]) for shard in entry_before["shards"]]
    for i, shard in enumerate(entry["shards"]):
        is_same = len(generations) == len(entry["shards"]) and generations[i] == shard.get(
            "generation", entry["generation"]
        )
        if not is_same and not any(host.split(".")[0] in ready for host in shard["endpoints"]):
            return False
    return True


def _sync_mount(world: World, pod: Process, table: Thing, content: dict[str, Any]) -> None:
    """The kubelet writes the ConfigMap's content for the router, some time after it is asked to."""
    if pod.mounted is not None and (pod.mounted["version"] > content["version"] or pod.mounted == content):
        return
    nudged = pod.nudged is not None and pod.annotation == str(content["version"])
    if pod.mounted is not None and pod.mounted["version"] == content["version"]:
        nudged = False  # it has synced the earlier content
    since = pod.nudged if nudged and pod.nudged is not None else max(pod.born, table.changed)
    if (world.now - since).total_seconds() >= (world.takes.table if nudged else world.takes.slow_table):
        pod.mounted = content


@functools.lru_cache(64)
def _table(text: str) -> dict[str, Any]:
    content: dict[str, Any] = orjson.loads(text)
    return content
