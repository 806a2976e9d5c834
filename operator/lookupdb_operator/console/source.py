"""The place where the console's datasets, metrics and lookups come from: a cluster, or a `lookupdb up`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lookupdb_operator.console.answers import Lookup
from lookupdb_operator.console.dataset import Dataset, DatasetPods
from lookupdb_operator.model import Pod


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What the console cannot do here, and the command that does it, if there is one."""

    why: str
    command: str = ""


Difference = Mapping[str, Any]
"""The JSON document of `lookupdb diff --json`."""


class ConsoleSource(Protocol):
    """Everything that the console reads. Nothing is written."""

    def list_datasets(self) -> Sequence[DatasetPods]:
        """Return all datasets with their pods, by namespace and name. From a cache: called for every page."""

    def find_dataset(self, namespace: str, name: str) -> DatasetPods | None:
        """Return one dataset with its pods; None if there is none, or it must not be seen."""

    async def read_metrics(self, dataset: Dataset, pod: Pod) -> str:
        """Return the metrics of the admin port of ``pod``. Raises LookupdbError, ApiError, OSError."""

    async def look_up(self, dataset: Dataset, key: str, generation: str | None) -> Lookup | Elsewhere:
        """Look ``key`` up through a router, in ``generation`` or in the active one."""

    async def compare(self, dataset: Dataset, before: str, after: str) -> Difference | Elsewhere:
        """Compare the records of two generations. May take long; cancelled when the client leaves."""
