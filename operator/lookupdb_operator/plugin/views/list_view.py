"""All datasets, a line each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from lookupdb_operator.plugin.dataset import Dataset
from lookupdb_operator.plugin.views.wording import format_age, format_columns

_HEAD: Final = ("NAME", "READY", "PHASE", "HEALTH", "GENERATION", "DATA AGE", "SHARDS", "RECORDS")


def render(datasets: Sequence[Dataset], now: datetime, *, everywhere: bool, namespace: str) -> str:
    """A table of ``datasets``; with ``everywhere`` their namespaces too."""
    if not datasets:
        return (
            "There are no LookupDatasets." if everywhere else f"There are no LookupDatasets in namespace {namespace}."
        )
    head = ("NAMESPACE", *_HEAD) if everywhere else _HEAD
    rows = [(dataset.namespace, *_row(dataset, now)) if everywhere else _row(dataset, now) for dataset in datasets]
    return "\n".join(format_columns([head, *rows]))


def summarize(dataset: Dataset) -> dict[str, Any]:
    """The same for machines."""
    return {"namespace": dataset.namespace, "name": dataset.name, "status": dict(dataset.status)}


def _row(dataset: Dataset, now: datetime) -> tuple[str, ...]:
    status = dataset.status
    return (
        dataset.name,
        str(dataset.condition("Ready").get("status", "")),
        str(status.get("phase", "")),
        str(dataset.condition("Degraded").get("reason", "")),
        str(status.get("generation", "")),
        format_age(str(status.get("builtAt", "")), now),
        str(status.get("shards", "")),
        f"{status['records']:,}" if "records" in status else "",
    )
