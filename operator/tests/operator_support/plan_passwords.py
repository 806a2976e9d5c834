"""Passwords of servers in the model cluster, as ``lookupdb route`` and ``serve`` handle them: a router mounts and
remembers the keys of Secrets, and a server takes one password for its whole life."""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

from lookupdb import credentials
from operator_support.plan_invariants import Broken
from operator_support.plan_objects import Process

if TYPE_CHECKING:
    from operator_support.plan_world import World


def mount_keys(world: World, pod: Process) -> None:
    """Give the router ``pod`` the keys that exist by now."""
    for secret, mark in _mounted_secrets(pod.template):
        if secret in world.keys:
            pod.keys[mark] = base64.b64decode(world.keys[secret]["data"]["key"])


def missing_keys(world: World, pod: Process) -> frozenset[str]:
    """Return the keys that the router reports as missing, for the tables that it answers from or is about to."""
    there = {mark for secret, mark in _mounted_secrets(pod.template) if secret in world.keys}
    tables = (table for table in (pod.table, pod.mounted) if table is not None)
    return frozenset(mark for table in tables for *_, mark in _servers(orjson.dumps(table)) if mark) - there


def can_open(world: World, pod: Process, table: dict[str, Any]) -> bool:
    """Return whether all existing servers of the active generation of ``table`` let the router in."""
    return not any(refusing_servers(world, pod, {**table, "generations": table["generations"][:1]}))


def refusing_servers(world: World, pod: Process, table: dict[str, Any]) -> list[str]:
    """Return the StatefulSets of all generations of ``table`` whose servers refuse the router's password."""
    return [
        name
        for name, shard, rollout, mark in _servers(orjson.dumps(table))
        if world.password_of(name) not in (None, _hash(pod.keys[mark], rollout, shard) if mark in pod.keys else "")
    ]


def check_lets_in(world: World, pod: Process) -> None:
    """Check that the servers let a router in for as long as it answers."""
    if pod.ready and pod.table is not None and not can_open(world, pod, pod.table):
        raise Broken(f"{pod.name} is ready, and servers of its table refuse its password:\n{world.describe()}")


@functools.lru_cache(256)
def _mounted_secrets(template: str) -> tuple[tuple[str, str], ...]:
    """Return Secret and fingerprint of each key."""
    spec = orjson.loads(template)["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    words = spec["containers"][0]["args"]
    if "--password-key-dir" not in words:
        return ()
    folder = words[words.index("--password-key-dir") + 1]
    sources = [
        source["secret"]
        for name, path in mounts.items()
        if path == folder
        for source in volumes[name]["projected"]["sources"]
    ]
    assert all(secret["optional"] for secret in sources)
    return tuple((secret["name"], item["path"]) for secret in sources for item in secret["items"])


@functools.lru_cache(1024)
def _hash(key: bytes, rollout: str, shard: int) -> str:
    return credentials.hash_password(credentials.derive_password(key, rollout, shard).encode())


@functools.lru_cache(1024)
def _servers(table: bytes) -> tuple[tuple[str, int, str, str], ...]:
    """Return StatefulSet, shard, rollout and fingerprint of each server in the table."""
    return tuple(_list_servers(orjson.loads(table)))


def _list_servers(table: dict[str, Any]) -> Iterator[tuple[str, int, str, str]]:
    for entry in table["generations"]:
        for number, shard in enumerate(entry["shards"]):
            named = shard if "rollout" in shard else entry
            for endpoint in shard["endpoints"]:
                name = endpoint.partition(".")[0].rpartition("-")[0]
                yield name, number, named["rollout"], named.get("passwordKey", "")
