"""From the API server's JSON to ``model``: pure, forgiving of what is absent; what is wrong is told in sentences."""

from __future__ import annotations

from lookupdb_operator.parse.build_result import parse_build_result
from lookupdb_operator.parse.dataset import dataset
from lookupdb_operator.parse.header import Header, header
from lookupdb_operator.parse.pods import pod, waiting
from lookupdb_operator.parse.trouble import warned
from lookupdb_operator.parse.workloads import Drift, compare, existing, job, shard_set

__all__ = [
    "Drift",
    "Header",
    "compare",
    "dataset",
    "existing",
    "header",
    "job",
    "parse_build_result",
    "pod",
    "shard_set",
    "waiting",
    "warned",
]
