"""What is active by a routing table file, which whoever cuts over writes: the ConfigMap of an operator, say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from lookupdb.errors import LookupdbError
from lookupdb.route.table.routing_table import InvalidTable, RoutedDataset, RoutingTable
from lookupdb.route.table.succession import diagnose_refusal
from lookupdb.route.table.watcher import TableWatcher
from lookupdb.sync.target import SyncTarget, target_by_table

_MISSING: Final = (
    "give the file that whoever cuts over writes: .lookupdb/run/NAMESPACE.NAME/routing-table.json of `lookupdb up`, in"
    " a pod that of the ConfigMap; --store-wait says how long one that is to come is waited for"
)


class UnusableTable(InvalidTable):
    """The file that --table names is not there, or is no table that can be used."""

    exit_code = 2


class TableFeed:
    """Watches the table at ``path``, and calls ``on_change`` when what it says has changed, or what is wrong with it.

    ``dataset`` is the one that the first good table names: a table of another name is refused from then on, but one of
    another uid is followed, for the dataset was made again.
    """

    def __init__(self, path: Path, on_change: Callable[[], None]) -> None:
        self.path = path
        self.dataset: RoutedDataset | None = None
        self.target: SyncTarget | None = None
        self.is_mixed = False
        """Whether the table in effect is a step of a rollout shard by shard: what was active before it still is."""
        self.problem: LookupdbError | None = UnusableTable(f"there is no routing table yet: {path}", hint=_MISSING)
        self._on_change = on_change
        self._table: RoutingTable | None = None
        self._watcher = TableWatcher(path, self._take, self._refuse)

    def start(self) -> None:
        """Look now, and again until ``stop``."""
        self._watcher.start()

    def stop(self) -> None:
        """Look no more."""
        self._watcher.stop()

    def _take(self, table: RoutingTable) -> None:
        refusal = diagnose_refusal(table, self._table)
        if self.dataset is not None and str(table.dataset) != str(self.dataset):
            refusal = f"it is the table of {table.dataset}, and this file was that of {self.dataset}"
        if refusal is not None:
            self._refuse(f"{self.path}: {refusal}")
            return
        self.dataset, self._table, self.problem = table.dataset, table, None
        target = target_by_table(table)
        self.is_mixed = target is None
        if target is not None:
            self.target = target
        elif self.target is not None and self.target.uid != table.dataset.uid[:8]:
            self.target = None
        self._on_change()

    def _refuse(self, reason: str) -> None:
        self.problem = UnusableTable(reason, hint="look who writes that file, and whether --table is to name it")
        self._on_change()
