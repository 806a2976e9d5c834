"""The fields of a spec that hold in a cluster alone: which a manifest has, and what a laptop does instead, in words.

They are checked everywhere, so that one manifest serves both. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

CLUSTER_FIELDS: Final = {
    "store": "its credentials are a Secret; here, generations are kept where --data-dir (of `up`) or --store says",
    "adopt": "here, each dataset has the uid local, and the source is built; `lookupdb build --adopt` adopts what a "
    "store has",
    "sync": "it needs nodes; here, `lookupdb sync DIR --dataset NAME` keeps a folder beside `up`",
    "router.tls": "its certificate is a Secret; here, `up` answers plain HTTP, and this machine alone "
    "(`lookupdb route --tls-cert` speaks TLS)",
    "router.auth": "it names a Secret, or service accounts; here, `up` asks for no token, and answers this machine "
    "alone (`lookupdb route --auth-tokens` asks for one)",
}
"""Each field by its path in the spec → why, and what is done where there is no cluster."""


def find_cluster_fields(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of CLUSTER_FIELDS that ``spec``, which is complete, has."""
    return tuple(path for path in CLUSTER_FIELDS if _has(spec, path))


def describe_left_out(paths: Iterable[str]) -> Iterator[str]:
    """A line for each of ``paths``, out of CLUSTER_FIELDS: that it is left out, why, and what is done instead."""
    return (f"spec.{path} holds in a cluster alone: {CLUSTER_FIELDS[path]}" for path in paths)


def _has(spec: Mapping[str, Any], path: str) -> bool:
    parent, _, field = path.rpartition(".")
    return field in (spec.get(parent, {}) if parent else spec)
