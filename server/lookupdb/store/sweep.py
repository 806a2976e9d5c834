"""The sweep removes datasets that no longer exist in a cluster, and old generations of live ones, from a store.

A deleted dataset is first marked by a note in its folder, and removed when the mark is older than the grace period: a
dataset that comes back in time only loses its mark. Generations whose builder is alive stay. The list of live datasets
is older than the sweep. So a live dataset loses only generations older than the newest protected one, because newer
ones may serve by now; without a protected one it loses nothing. Only whole generations that passed their gates count as
kept; damaged and rejected ones are removed at the same age. The announcement of a dataset goes with its last
generation. The sweep never touches unknown files, nor another cluster's.

A dataset that is to be retained gets a note in its folder while it lives, or when the list first says that it was
deleted. With the note it is never marked, and its generations stay until somebody deletes the folder. A note without
generations is marked and removed like a dataset. A generation that a live dataset is to adopt is spared without a note,
as long as the list says so.

Pushes to a live dataset stay: each new push removes old ones. Pushes to a deleted one are marked and removed as a
dataset of their own, even if the dataset is to be retained: its generations are copies.
"""

from __future__ import annotations

import datetime
import logging
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.errors import GenerationExists, StoreDenied, StoreError, StoreUnreachable, UsageError
from lookupdb.manifest import ANNOUNCEMENT_NOTE, generation_number
from lookupdb.store import Store
from lookupdb.store.dataset import (
    Inventory,
    StoreAddress,
    StoredDataset,
    check_cluster_id,
    check_generation,
    find_announced,
    is_older,
    sort_generations,
)

# The list of a cluster's live datasets, written by its operator. The sweep rejects an incomplete list or another
# cluster's, because it removes everything that the list does not name.


FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class LiveDataset:
    """A dataset that exists in the cluster, and what the store must keep of it."""

    address: StoreAddress
    keep: int
    """Number of its newest generations to keep."""
    protect: frozenset[str]
    """Generations that serve or are rolled out: these are kept too, and so is everything newer than all of them. If
    there are none, everything is kept."""
    retain: bool = False
    """True if its generations stay in the store when it is deleted."""
    predecessor: StoreAddress | None = None
    """The earlier dataset to adopt a generation from, until that is done: its generations stay meanwhile."""


@dataclass(frozen=True, slots=True)
class LiveList:
    """The list of a cluster's live datasets."""

    cluster: str
    namespaces: frozenset[str] | None
    """The namespaces that the list covers; None for all. An operator that sees only some must not make other operators'
    datasets look deleted."""
    datasets: dict[StoreAddress, LiveDataset]
    retained: frozenset[StoreAddress]
    """Deleted datasets whose generations stay."""


def read_live_list(path: Path, cluster: str | None, now: float, max_seconds: float) -> LiveList:
    """Return the list at ``path``, of ``cluster`` if given.

    Raises UsageError if it is incomplete, of another cluster, or not written within ``max_seconds`` of ``now``: an old
    list lacks newer datasets, and generations that began to serve later.
    """
    try:
        members = _read_json(path)
        written_at = datetime.datetime.fromisoformat(_check_type(members["writtenAt"], str, "writtenAt"))
        age = now - written_at.timestamp()
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(
            f"{path} does not say when it was written: {_reason(error)}",
            hint="its operator updates the list every ten minutes: check that it runs",
        ) from error
    if not -max_seconds <= age <= max_seconds:
        when = "in the future" if age < 0 else f"{age / 3600:.1f} hours ago"
        raise UsageError(
            f"{path} was written at {written_at.isoformat()}, {when}: "
            f"expected at most {max_seconds / 3600:g} hours ago",
            hint="its operator updates it every ten minutes: check that it runs, or set --max-age",
        )
    try:
        if members["formatVersion"] != FORMAT_VERSION:
            raise ValueError(f"format version {members['formatVersion']!r}; this lookupdb reads {FORMAT_VERSION}")
        if _check_type(members["cluster"], str, "cluster") != (cluster or members["cluster"]):
            raise ValueError(f"it belongs to cluster {members['cluster']!r}, expected {cluster}")
        cluster = check_cluster_id(members["cluster"])
        found = [_parse_dataset(entry, cluster) for entry in _check_type(members["datasets"], list, "datasets")]
        retained = _check_type(members.get("retained", []), list, "retained")
        spanned = members.get("namespaces")
        if spanned is not None:
            spanned = frozenset(
                _check_type(name, str, "namespaces") for name in _check_type(spanned, list, "namespaces")
            )
        return LiveList(
            cluster,
            spanned,
            {dataset.address: dataset for dataset in found},
            frozenset(_parse_address(entry, cluster) for entry in retained),
        )
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise UsageError(f"{path} is not the list of live datasets of this cluster: {_reason(error)}") from error


def _read_json(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"the list of live datasets {path} cannot be read: {error.strerror}", hint="no list: nothing is swept"
        ) from error


def _parse_dataset(entry: dict[str, Any], cluster: str) -> LiveDataset:
    address = _parse_address(entry, cluster)
    keep = _check_type(entry["keep"], int, "keep")
    if keep < 1:
        raise ValueError(f"keep is {keep}, expected 1 or more")
    protect = _check_type(entry.get("protect", []), list, "protect")
    retain = entry.get("retain", False)
    if not isinstance(retain, bool):
        raise TypeError(f"retain is {retain!r}, expected true or false")
    protected = frozenset(check_generation(_check_type(name, str, "protect")) for name in protect)
    adopt = entry.get("adopt")
    predecessor = None if adopt is None else _parse_address({**entry, "uid": adopt}, cluster)
    return LiveDataset(address, keep, protected, retain, predecessor)


def _parse_address(entry: dict[str, Any], cluster: str) -> StoreAddress:
    return StoreAddress(cluster, *(_check_type(entry[name], str, name) for name in ("namespace", "name", "uid")))


def _reason(error: Exception) -> str:
    """Return what is wrong with the list, for its author."""
    return f"it has no member {error}" if isinstance(error, KeyError) else str(error)


def _check_type(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, expected {kind.__name__}")
    return value


# Which generations of a live dataset are superseded, and which are spared: for sweeps, builders and `lookupdb up`.
#
# Builders and `lookupdb up` spare the announced generation, because others follow it. A cluster's sweep goes by its
# operator's list, which names the generations that serve.


def find_superseded(found: Inventory, keep: int, protect: Collection[str], announced: str | None = None) -> list[str]:
    """Return the generations that are neither kept nor protected nor ``announced``, and can no longer serve: they are
    older than the newest of ``protect``. Oldest first."""
    newest = max(map(generation_number, protect), default=0)
    candidates = sort_generations([*found.usable[:-keep], *found.damaged, *found.refused])
    older = [generation for generation in candidates if generation_number(generation) < newest]
    return [generation for generation in older if generation not in protect and generation != announced]


def find_prunable(dataset: StoredDataset, keep: int, protect: Collection[str] = ()) -> list[str]:
    """Return the generations to remove, oldest first: all that are older than the newest ``keep`` whole ones, and
    rejected ones older than the newest. Those in ``protect`` and the announced one stay. Raises StoreError."""
    found, announced = dataset.take_inventory(), find_announced(dataset)
    newest = found.usable[-keep:]
    if not newest:
        return []
    older = [name for name in (*found.usable, *found.damaged, *found.refused) if is_older(name, newest[0])]
    refused = [name for name in found.refused if is_older(name, newest[-1])]
    removable = sort_generations({*older, *refused})
    return [name for name in removable if name not in protect and name != announced]


def remove_superseded(dataset: StoredDataset, keep: int, protect: Collection[str]) -> list[str]:
    """Remove and return the generations of the live ``dataset`` that a sweep would remove, except the announced one:
    not among the newest ``keep``, not in ``protect``, but older than the newest of ``protect``. Raises StoreError."""
    found = dataset.take_inventory()
    return _remove(dataset, find_superseded(found, keep, protect, find_announced(dataset)))


def prune(dataset: StoredDataset, keep: int, protect: Collection[str] = ()) -> list[str]:
    """Remove and return the generations that ``find_prunable`` finds. Raises StoreError."""
    return _remove(dataset, find_prunable(dataset, keep, protect))


def _remove(dataset: StoredDataset, generations: list[str]) -> list[str]:
    for generation in generations:
        dataset.remove(generation)
    return generations


log = logging.getLogger(__name__)

MARK_NOTE: Final = "swept.json"
"""The note with the time at which a dataset was found to be deleted."""
RETAIN_NOTE: Final = "retained.json"
"""The note that says that a dataset's generations stay when it is deleted."""
_LEFT_NOTES: Final = (RETAIN_NOTE, ANNOUNCEMENT_NOTE)
"""Notes that may be left without generations; the mark is removed after them."""
_DEAD_SECONDS: Final = 3600.0
"""A claim of this age is not watched, because its builder would have renewed it every few seconds. Watching every claim
would leave no time for other datasets."""
_MOST_REMAINS: Final = 200
"""A sweep removes at most this many remains of one dataset, each by some requests. The next sweep continues."""
_MAX_MARK_BYTES: Final = 1024
_RETAINED: Final = orjson.dumps({"formatVersion": 1, "deletionPolicy": "Retain"}, option=orjson.OPT_APPEND_NEWLINE)


@dataclass(slots=True)
class SweepSummary:
    """The results of a sweep, or of a dry run."""

    datasets: int = 0
    """Number of datasets that the sweep looked at."""
    marked: int = 0
    unmarked: int = 0
    removed_generations: int = 0
    removed_remains: int = 0
    """The remains of dead builders and interrupted removals."""
    removed_datasets: int = 0
    retained_datasets: int = 0
    """Deleted datasets whose generations stay."""
    problems: list[str] = field(default_factory=list)


class Sweep:
    """One pass over the datasets of one cluster; ``run`` yields a sentence after each action."""

    def __init__(
        self,
        live: Mapping[StoreAddress, LiveDataset],
        *,
        retained: Collection[StoreAddress] = (),
        grace: float,
        now: float,
        dry: bool,
    ) -> None:
        """``retained`` are deleted datasets whose generations stay."""
        self._live_datasets = live
        self._retained = retained
        self._predecessors = {dataset.predecessor for dataset in live.values()}
        self._grace = grace
        self._now = now
        self._dry = dry
        self.summary = SweepSummary()

    def find(self, store: Store, spanned: Collection[str] | None = None) -> Iterator[StoredDataset]:
        """Yield every dataset of ``store``, or of the namespaces ``spanned``. A namespace that cannot be listed becomes
        a problem in the summary, and does not stop the sweep of others. Raises StoreError if the store cannot be
        reached."""
        for namespace in store.namespaces():
            if spanned is not None and namespace not in spanned:
                continue
            try:
                addresses = store.walk_addresses_in(namespace)
            except (StoreDenied, StoreUnreachable):
                raise
            except StoreError as error:
                self.summary.problems.append(f"{namespace}: {error.message}")
                continue
            for address in addresses:
                yield store.dataset_at(address)
                yield store.dataset_at(replace(address, is_inbox=True))

    def run(self, datasets: Iterator[StoredDataset]) -> Iterator[str]:
        """Sweep all datasets. One that cannot be swept becomes a problem in the summary, and the sweep continues."""
        for dataset in datasets:
            is_inbox = dataset.address.is_inbox
            self.summary.datasets += not is_inbox
            try:
                live = self._live_datasets.get(replace(dataset.address, is_inbox=False))
                if live is not None and is_inbox:
                    yield from self._remove_remains(dataset)
                else:
                    yield from self._sweep_live(dataset, live) if live else self._sweep_absent(dataset)
            except StoreError as error:
                self.summary.problems.append(f"{dataset.address}: {error.message}")
            except Exception as error:  # users write a dataset's files, and must not stop the sweep
                log.exception("a dataset cannot be swept because of a bug", extra={"dataset": str(dataset.address)})
                self.summary.problems.append(f"{dataset.address}: {type(error).__name__}: {error}")

    def _sweep_live(self, dataset: StoredDataset, live: LiveDataset) -> Iterator[str]:
        if dataset.read_note(MARK_NOTE) is not None:
            self._note(dataset, MARK_NOTE, None)
            self.summary.unmarked += 1
            yield f"{_describe_dataset(dataset)}: unmarked: the dataset exists"
        has_note = dataset.read_note(RETAIN_NOTE) is not None
        if live.retain != has_note and dataset.published_generations():
            self._note(dataset, RETAIN_NOTE, _RETAINED if live.retain else None)
            yield f"{_describe_dataset(dataset)}: {'retained' if live.retain else 'not retained'} when it is deleted"
        found = dataset.take_inventory()
        for generation in find_superseded(found, live.keep, live.protect):
            yield from self._remove(dataset, generation)
        yield from self._remove_remains(dataset)

    def _sweep_absent(self, dataset: StoredDataset) -> Iterator[str]:
        published, unfinished = dataset.published_generations(), dataset.unfinished_generations()
        mark = dataset.read_note(MARK_NOTE)
        is_empty = not (published or unfinished)
        if is_empty and mark is None and all(dataset.read_note(note) is None for note in _LEFT_NOTES):
            return  # nothing of ours
        if not is_empty and (self._is_retained(dataset) or dataset.address in self._predecessors):
            # Keep its whole generations, to be retained or adopted; remove only remains.
            self.summary.retained_datasets += 1
            if dataset.address in self._retained and dataset.read_note(RETAIN_NOTE) is None:
                self._note(dataset, RETAIN_NOTE, _RETAINED)
                yield f"{_describe_dataset(dataset)}: retained: the dataset no longer exists"
            if mark is not None:
                self._note(dataset, MARK_NOTE, None)
                self.summary.unmarked += 1
            yield from self._remove_remains(dataset)
            return
        marked_at = None if mark is None else _parse_mark(mark, self._now)
        if marked_at is None:
            members = {"formatVersion": 1, "notLivingSince": _format_time(self._now)}
            self._note(dataset, MARK_NOTE, orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE))
            self.summary.marked += not dataset.address.is_inbox
            yield f"{_describe_dataset(dataset)}: marked: the dataset no longer exists"
        elif self._now - marked_at >= self._grace:
            for generation in published:
                if self._is_retained(dataset):  # a copy that began meanwhile retains it, and reuses what it finds
                    return
                yield from self._remove(dataset, generation)
            yield from self._remove_remains(dataset)
            if self._dry or not (dataset.published_generations() or dataset.unfinished_generations()):
                for note in (*_LEFT_NOTES, MARK_NOTE):
                    self._note(dataset, note, None)
                self.summary.removed_datasets += not dataset.address.is_inbox
                yield f"{_describe_dataset(dataset)}: removed: it has not existed since {_format_time(marked_at)}"

    def _is_retained(self, dataset: StoredDataset) -> bool:
        return dataset.address in self._retained or dataset.read_note(RETAIN_NOTE) is not None

    def _remove(self, dataset: StoredDataset, generation: str) -> Iterator[str]:
        if not self._dry:
            dataset.remove(generation)
        self.summary.removed_generations += 1
        yield f"{_describe_dataset(dataset)}: removed {generation}"

    def _remove_remains(self, dataset: StoredDataset) -> Iterator[str]:
        """Claim and release a generation, which removes its remains unless its builder is alive."""
        found = dataset.unfinished_generations().items()
        old = [generation for generation, changed in found if self._now - changed >= self._grace]
        for generation in sort_generations(old)[:_MOST_REMAINS]:
            if not self._dry and not _reclaim(dataset, generation):
                continue
            yield f"{_describe_dataset(dataset)}: removed the remains of {generation}"
            self.summary.removed_remains += 1

    def _note(self, dataset: StoredDataset, name: str, content: bytes | None) -> None:
        if not self._dry:
            dataset.write_note(name, content)


def retain(dataset: StoredDataset) -> None:
    """Note that the generations of ``dataset`` stay although it is deleted. For a live dataset, its deletionPolicy
    decides."""
    dataset.write_note(RETAIN_NOTE, _RETAINED)


def _reclaim(dataset: StoredDataset, generation: str) -> bool:
    """Return whether the remains were removed: nobody is building ``generation``."""
    with tempfile.TemporaryDirectory(prefix="lookupdb-sweep-") as scratch:
        try:
            dataset.claim(generation, Path(scratch), dead_seconds=_DEAD_SECONDS).release()
        except GenerationExists:
            return False
        except StoreError as error:
            log.info("remains are kept", extra={"generation": generation, "reason": error.message})
            return False
    return True


def _describe_dataset(dataset: StoredDataset) -> str:
    return f"{'pushes to ' * dataset.address.is_inbox}{dataset.address} ({dataset.address.uid})"


def _parse_mark(mark: bytes, now: float) -> float | None:
    """Return the time of the mark; None if the note is invalid and will be written again. A time before 1970 is
    invalid, and so is one after ``now``, which would keep the dataset indefinitely."""
    if len(mark) > _MAX_MARK_BYTES:
        return None
    try:
        members = orjson.loads(mark)
        if members["formatVersion"] != 1:
            return None
        moment = datetime.datetime.fromisoformat(members["notLivingSince"]).timestamp()
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return moment if 0 <= moment <= now else None


def _format_time(moment: float) -> str:
    text = datetime.datetime.fromtimestamp(moment, datetime.UTC).isoformat(timespec="seconds")
    return text.replace("+00:00", "Z")
