"""What containers request and may use: Kubernetes' quantities, what a dataset says, what follows when it says nothing.

Every container requests cpu and memory, so that a namespace with a quota on requests takes the pods.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

Resources = dict[str, dict[str, str]]
"""requests and limits, by resource."""

MI: Final = 1 << 20
PROCESS_BYTES: Final = 64 * MI
"""Of a shard server's supervisor, and of each of its workers, without the shard."""
BUILD_PERCENT: Final = 80
"""Of its memory limit that a builder is told to keep within: the rest is for what it cannot count."""
FETCH_MEMORY: Final = "128Mi"
"""What the container that fetches a shard requests. It streams: the shard's size does not matter. A pod's request is
the greater of its containers', and a server's is 128Mi at least: this one adds nothing."""
FETCH_MEMORY_LIMIT: Final = "256Mi"
CPU_REQUEST: Final = "50m"
"""Of a shard server, unless the dataset says otherwise."""
_REQUESTED: Final = {"cpu": CPU_REQUEST}

_QUANTITY: Final = re.compile(r"(\d+\.?\d*|\.\d+)(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?")
_SUFFIXES: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}


def quantity(text: str | int | float) -> Fraction:
    """The number that a quantity (500m, 1Gi, 1e3, 2) is. Raises ValueError for what is none."""
    match = _QUANTITY.fullmatch(str(text))
    if not match:
        raise ValueError(f"a quantity is a number like 2, 500m or 1Gi, found {text!r}")
    number, suffix, exponent = match.groups()
    return Fraction(number.rstrip(".")) * _SUFFIXES.get(suffix, Fraction(1)) * Fraction(10) ** int(exponent or 0)


def mebibytes(size: float | Fraction) -> str:
    """``size`` in bytes as a quantity, rounded up to whole Mi."""
    return f"{math.ceil(size / MI)}Mi"


def builder(spec: Mapping[str, Any]) -> Resources:
    """Of a builder, by ``spec.build.resources``. Memory that is not requested is requested as it is limited."""
    given = _given(spec["build"].get("resources"))
    memory = given["limits"].get("memory")
    return _fitted(given, {"memory": memory} if memory else {}, {"cpu": "100m"})


def builder_memory(resources: Resources) -> int | None:
    """The bytes that a builder of these resources is told to keep within; None when they limit no memory."""
    limit = resources["limits"].get("memory") or resources["requests"].get("memory")
    return int(quantity(limit) * BUILD_PERCENT / 100) if limit else None


def builder_threads(resources: Resources) -> int | None:
    """How many cores a builder of these resources can use; None for all there are."""
    limit = resources["limits"].get("cpu")
    return min(256, max(1, math.ceil(quantity(limit)))) if limit else None


def router(spec: Mapping[str, Any]) -> Resources:
    """Of a router, by ``spec.router.resources``."""
    defaults = {"cpu": CPU_REQUEST, "memory": "128Mi"}
    return _fitted(_given(spec["router"].get("resources")), defaults, defaults)


def server(spec: Mapping[str, Any], largest_shard_bytes: int) -> Resources:
    """Of a shard server, by ``spec.serving``: memory that is not given follows from the generation.

    The request is the limit, because the kubelet counts the pages of the shard that are in use, and evicts first what
    uses more than it requests. All shards get what the largest needs: their pods differ in nothing but the shard.
    """
    serving = spec["serving"]
    given = _given(serving.get("resources"))
    requests, limits = given["requests"], given["limits"]
    needed = server_memory(serving["workers"], serving["hotFraction"], largest_shard_bytes)
    if "memory" not in limits:
        limits["memory"] = max(needed, requests.get("memory", needed), key=quantity)
    return _fitted(given, {"cpu": CPU_REQUEST, "memory": limits["memory"]}, _REQUESTED)


def server_memory(workers: int, hot_fraction: float, largest_shard_bytes: int) -> str:
    """What a shard server needs: its processes, and the part of its shard that is in use at a time."""
    return mebibytes(PROCESS_BYTES * (1 + workers) + Fraction(str(hot_fraction)) * largest_shard_bytes)


def fetcher(server: Resources) -> Resources:
    """Of the container that fetches a server's shard before it starts: the server's own but for the memory.

    What else a quota or a limit range asks for (a limit of cpu, ephemeral-storage) is thereby there too.
    """
    limits = server["limits"] | {"memory": FETCH_MEMORY_LIMIT}
    return {"requests": server["requests"] | {"memory": FETCH_MEMORY}, "limits": limits}


def _given(resources: Mapping[str, Any] | None) -> Resources:
    return {
        part: {k: str(v) for k, v in ((resources or {}).get(part) or {}).items()} for part in ("requests", "limits")
    }


def _fitted(resources: Resources, defaults: Mapping[str, str], yielding: Mapping[str, str]) -> Resources:
    """``resources`` with requests by default, none above its limit, as the API server demands it.

    A user may give the limits alone, or the requests alone, and the CRD's defaults fill in the other. So a request
    that is as ``yielding`` has it gives way to its limit; any other is meant, and lifts the limit.
    """
    requests, limits = {**defaults, **resources["requests"]}, dict(resources["limits"])
    for name, limit in limits.items():
        request = requests.get(name)
        if request is None or quantity(request) <= quantity(limit):
            continue
        if request == yielding.get(name):
            requests[name] = limit
        else:
            limits[name] = request
    return {"requests": requests, "limits": limits}
