"""What containers request and may use: what a dataset says of it, and what follows when it says nothing.

Every container requests cpu, memory and ephemeral-storage, so that a namespace with a quota on requests takes the
pods, and no node is filled with files that it has no room for. The CRD sees to it that no request that is given exceeds
its limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from lookupdb.schema import parse_quantity

Resources = dict[str, dict[str, str]]
"""requests and limits, by resource."""

MI: Final = 1 << 20
PROCESS_BYTES: Final = 64 * MI
"""Of a shard server's supervisor, and of each of its workers, without the shard."""
BUILD_PERCENT: Final = 80
"""The percent of its memory limit that a builder keeps within: the rest is for what it cannot count."""
FETCH_MEMORY: Final = "128Mi"
"""What the container that fetches a shard requests. It streams: the shard's size does not matter. A pod's request is
the greatest of its containers', and a server's is 128Mi at least unless it is told: this one adds nothing."""
FETCH_MEMORY_LIMIT: Final = "256Mi"
SPARE_STORAGE: Final = 64 * MI
"""Of a node's disk, beside the files that are known of: logs, a manifest, /tmp."""
TMP_STORAGE: Final = f"{SPARE_STORAGE // MI}Mi"
"""What may stand in a pod's /tmp. Nothing of ours writes there; libraries may."""
VOLUME_FACTOR: Final = 1.1
VOLUME_SPARE: Final = 512 * MI
_STORAGE: Final = "ephemeral-storage"
_BUILDER_REQUESTS: Final = {"cpu": "100m"}
_ROUTER_REQUESTS: Final = {"cpu": "50m", "memory": "128Mi", _STORAGE: TMP_STORAGE}
_SYNC_REQUESTS: Final = {"cpu": "50m", "memory": "64Mi", _STORAGE: TMP_STORAGE}
_SERVER_REQUESTS: Final = {"cpu": "50m"}
_MOST_THREADS: Final = 256
"""Of `lookupdb build`."""


def builder(spec: Mapping[str, Any]) -> Resources:
    """A builder's resources, by ``spec.build.resources``. The memory limit is requested if no request is declared, and
    of the node's disk all that its scratch volume may hold."""
    declared = _read_resources(spec["build"]["resources"])
    storage = {_STORAGE: str(spec["build"]["scratchSize"])}
    return _with_requests(declared, _BUILDER_REQUESTS | _memory(declared["limits"]) | storage)


def builder_memory(resources: Resources) -> int:
    """The bytes that a builder of these resources keeps within."""
    return int(parse_quantity(resources["limits"]["memory"]) * BUILD_PERCENT / 100)


def builder_threads(resources: Resources) -> int | None:
    """How many cores a builder of these resources uses; None for all there are."""
    limit = resources["limits"].get("cpu")
    return min(max(math.ceil(parse_quantity(limit)), 1), _MOST_THREADS) if limit else None


def router(spec: Mapping[str, Any]) -> Resources:
    """A router's resources, by ``spec.router.resources``."""
    return _with_requests(_read_resources(spec["router"]["resources"]), _ROUTER_REQUESTS)


def sync(spec: Mapping[str, Any]) -> Resources:
    """Those of a `lookupdb sync`, by ``spec.sync.resources``."""
    return _with_requests(_read_resources(spec["sync"]["resources"]), _SYNC_REQUESTS)


def server(spec: Mapping[str, Any], largest_shard_bytes: int) -> Resources:
    """A shard server's resources, by ``spec.serving``: memory that is not declared there follows from the generation.

    The request is the limit, because the kubelet counts the pages of the shard that are in use, and evicts first what
    uses more than it requests. All shards get what the largest needs: their pods differ in nothing but the shard.
    """
    serving = spec["serving"]
    declared = _read_resources(serving.get("resources") or {})
    needed = server_memory(serving["workers"], serving["hotFraction"], largest_shard_bytes)
    if "memory" not in declared["limits"]:
        declared["limits"]["memory"] = max(needed, declared["requests"].get("memory", needed), key=parse_quantity)
    # On a volume of any kind, the shard does not stand on the node's disk.
    is_on_node = serving["delivery"]["type"] == "Fetch" and "storageClassName" not in serving
    storage = {_STORAGE: shard_storage(largest_shard_bytes) if is_on_node else TMP_STORAGE}
    return _with_requests(declared, _SERVER_REQUESTS | _memory(declared["limits"]) | storage)


def shard_storage(shard_bytes: int) -> str:
    """What a shard server keeps on its node's disk, in whole Mi: the one file that it serves."""
    return f"{math.ceil((shard_bytes + SPARE_STORAGE) / MI)}Mi"


def shard_volume(shard_bytes: int) -> str:
    """How large a volume of its own must be, in whole Mi: with room for what a file system takes for itself. ext4
    takes 2 % and a journal of up to 1 GiB, and XFS makes none below 300 MiB."""
    return f"{math.ceil((shard_bytes * VOLUME_FACTOR + VOLUME_SPARE) / MI)}Mi"


def server_memory(workers: int, hot_fraction: float, largest_shard_bytes: int) -> str:
    """What a shard server needs, in whole Mi: its processes, and the part of its shard that is in use at a time."""
    size = PROCESS_BYTES * (1 + workers) + hot_fraction * largest_shard_bytes
    return f"{math.ceil(size / MI)}Mi"


def fetcher(server: Resources) -> Resources:
    """The resources of the container that fetches a server's shard before it starts: the server's but for the memory.

    What else a quota or a limit range asks for (a limit of cpu, ephemeral-storage) is thereby there too.
    """
    return {
        "requests": server["requests"] | {"memory": FETCH_MEMORY},
        "limits": server["limits"] | {"memory": FETCH_MEMORY_LIMIT},
    }


def _read_resources(resources: Mapping[str, Any]) -> Resources:
    """As text, which the API server takes a quantity for that stands as a number in YAML."""
    parts = {part: resources.get(part) or {} for part in ("requests", "limits")}
    return {part: {name: str(amount) for name, amount in amounts.items()} for part, amounts in parts.items()}


def _memory(limits: Mapping[str, str]) -> dict[str, str]:
    return {"memory": limits["memory"]}


def _with_requests(declared: Resources, defaults: Mapping[str, str]) -> Resources:
    """``declared``, with ``defaults`` for what is not requested, as far as the limits allow."""
    limits = declared["limits"]
    defaults = {name: min(amount, limits.get(name, amount), key=parse_quantity) for name, amount in defaults.items()}
    return {"requests": defaults | declared["requests"], "limits": limits}
