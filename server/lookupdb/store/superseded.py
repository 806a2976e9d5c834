"""Which generations of a dataset that lives are superseded, and which are spared: the one place that decides it, for
sweeps, builders and `lookupdb up`.

What is announced of a dataset (``announcement``) is spared by whoever removes on its own account: others follow that
generation, and would find nothing. A cluster's sweep goes by its operator's list, which names what serves.
"""

from __future__ import annotations

from collections.abc import Collection

from lookupdb.errors import CorruptFile
from lookupdb.manifest import generation_number
from lookupdb.store.announcement import read_announcement
from lookupdb.store.dataset import Inventory, StoredDataset, is_older, sort_generations


def find_superseded(found: Inventory, keep: int, protect: Collection[str], announced: str | None = None) -> list[str]:
    """The generations that the dataset neither keeps nor protects, and that cannot serve any more: they are older than
    the newest of ``protect``. Without the ``announced`` one; oldest first."""
    newest = max(map(generation_number, protect), default=0)
    candidates = sort_generations([*found.usable[:-keep], *found.damaged, *found.refused])
    older = [generation for generation in candidates if generation_number(generation) < newest]
    return [generation for generation in older if generation not in protect and generation != announced]


def find_prunable(found: Inventory, keep: int, protect: Collection[str], announced: str | None = None) -> list[str]:
    """All but the newest ``keep`` whole generations, those in ``protect`` and the ``announced`` one: also damaged ones
    that are older than these, and refused ones that are older than the newest. Oldest first."""
    newest = found.usable[-keep:]
    if not newest:
        return []
    older = [name for name in (*found.usable, *found.damaged, *found.refused) if is_older(name, newest[0])]
    refused = [name for name in found.refused if is_older(name, newest[-1])]
    removable = sort_generations({*older, *refused})
    return [name for name in removable if name not in protect and name != announced]


def remove_superseded(dataset: StoredDataset, keep: int, protect: Collection[str]) -> list[str]:
    """Remove of ``dataset``, which lives, the generations that a sweep would remove: those that are none of the newest
    ``keep``, not in ``protect``, not announced, and older than the newest of ``protect``. Returns them. Raises
    StoreError."""
    found = dataset.take_inventory()
    return _remove(dataset, find_superseded(found, keep, protect, find_announced(dataset)))


def prune(dataset: StoredDataset, keep: int, protect: Collection[str] = ()) -> list[str]:
    """Remove of ``dataset`` what ``find_prunable`` finds. Returns it. Raises StoreError."""
    found = dataset.take_inventory()
    return _remove(dataset, find_prunable(found, keep, protect, find_announced(dataset)))


def find_announced(dataset: StoredDataset) -> str | None:
    """The generation that is announced; None where none is, also by a note that is no announcement: nobody follows
    that. Raises StoreError."""
    try:
        standing = read_announcement(dataset)
    except CorruptFile:
        return None
    return None if standing is None else standing.generation


def _remove(dataset: StoredDataset, generations: list[str]) -> list[str]:
    for generation in generations:
        dataset.remove(generation)
    return generations
