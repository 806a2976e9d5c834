"""From the API server's JSON to ``model``: pure, forgiving of what is absent; what is wrong is said in sentences."""

from __future__ import annotations

from lookupdb_operator.parse.build_result import parse_build_result
from lookupdb_operator.parse.dataset import parse_dataset
from lookupdb_operator.parse.header import Header, parse_header
from lookupdb_operator.parse.messages import diagnose_warning
from lookupdb_operator.parse.pod_diagnosis import diagnose_pod
from lookupdb_operator.parse.pods import awaits_images, parse_pod
from lookupdb_operator.parse.workloads import (
    Drift,
    compare_fields,
    parse_existing,
    parse_job,
    parse_push,
    parse_shard_set,
)

__all__ = [
    "Drift",
    "Header",
    "awaits_images",
    "compare_fields",
    "diagnose_pod",
    "diagnose_warning",
    "parse_build_result",
    "parse_dataset",
    "parse_existing",
    "parse_header",
    "parse_job",
    "parse_pod",
    "parse_push",
    "parse_shard_set",
]
