"""The list of a cluster's live datasets, written by its operator and read by the sweep. The sweep refuses a list that
is incomplete or of another cluster, because it removes what the list does not name."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.errors import UsageError
from lookupdb.store.layout import StoreAddress, check_generation

FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class LiveDataset:
    """A dataset that exists in the cluster, and what the store must keep of it."""

    address: StoreAddress
    keep: int
    """How many of its newest generations to keep."""
    protect: frozenset[str]
    """Generations that serve or are rolled out: these are kept too, and so is everything newer than all of them. If
    there are none, everything is kept."""
    retain: bool = False
    """Whether its generations stay in the store when it is deleted."""
    predecessor: StoreAddress | None = None
    """The earlier dataset whose generation it is to begin with, and does not have yet: what that one has left stays
    meanwhile."""


def check_age(path: Path, now: float, max_seconds: float) -> None:
    """Raises UsageError if the list at ``path`` is too old at ``now``, or has no date: an old list lacks datasets that
    were created since, and generations that began to serve since."""
    try:
        written_at = datetime.datetime.fromisoformat(
            _check_type(orjson.loads(_read_text(path))["writtenAt"], str, "writtenAt")
        )
        age = now - written_at.timestamp()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} does not say when it was written: {_reason(error)}",
            hint="its operator writes writtenAt, and the list anew, every ten minutes: look whether it runs",
        ) from error
    if not -max_seconds <= age <= max_seconds:
        when = "in the future" if age < 0 else f"{age / 3600:.1f} hours ago"
        raise UsageError(
            f"{path} was written at {written_at.isoformat()}, {when}: "
            f"expected at most {max_seconds / 3600:g} hours ago",
            hint="its operator writes it anew every ten minutes: look whether it runs, or give --max-age",
        )


def read_cluster(path: Path) -> str:
    """The cluster of the list at ``path``. Raises UsageError if the list does not name it."""
    try:
        return str(
            _check_type(_check_type(orjson.loads(_read_text(path)), dict, "the list")["cluster"], str, "cluster")
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a list of living datasets: {_reason(error)}") from error


def read_namespaces(path: Path) -> frozenset[str] | None:
    """The namespaces that the list covers; None for all. An operator that sees only some must not make other operators'
    datasets look deleted. Raises UsageError."""
    try:
        found = orjson.loads(_read_text(path)).get("namespaces")
        return (
            None
            if found is None
            else frozenset(_check_type(name, str, "namespaces") for name in _check_type(found, list, ""))
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a list of living datasets: {_reason(error)}") from error


def read_live_datasets(path: Path, cluster: str) -> dict[StoreAddress, LiveDataset]:
    """The live datasets in the list at ``path``. Raises UsageError if the list is incomplete or not of ``cluster``."""
    text = _read_text(path)
    try:
        return _parse(orjson.loads(text), cluster)
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise UsageError(f"{path} is not the list of living datasets of cluster {cluster}: {_reason(error)}") from error


def read_retained(path: Path, cluster: str) -> frozenset[StoreAddress]:
    """The datasets of ``cluster`` that were deleted, and whose generations stay, in the list at ``path``. Raises
    UsageError."""
    try:
        entries = _check_type(orjson.loads(_read_text(path)).get("retained", []), list, "retained")
        return frozenset(_parse_address(entry, cluster) for entry in entries)
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise UsageError(f"{path} is not the list of living datasets of cluster {cluster}: {_reason(error)}") from error


def _read_text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the list of living datasets {path} cannot be read: {error.strerror}", hint="without it nothing is swept"
        ) from error


def _parse(members: dict[str, Any], cluster: str) -> dict[StoreAddress, LiveDataset]:
    if members["formatVersion"] != FORMAT_VERSION:
        raise ValueError(f"format version {members['formatVersion']!r}; this lookupdb reads {FORMAT_VERSION}")
    if members["cluster"] != cluster:
        raise ValueError(f"it is of cluster {members['cluster']!r}")
    datasets = _check_type(members["datasets"], list, "datasets")
    found = (_parse_dataset(entry, cluster) for entry in datasets)
    return {dataset.address: dataset for dataset in found}


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
    """What is wrong with the list, for whoever wrote it by hand."""
    match error:
        case UsageError():
            return error.message
        case KeyError():
            return f"it has no member {error}"
        case orjson.JSONDecodeError():
            return f"it is not JSON: {error}"
        case AttributeError():
            return "it is not a JSON object, or an entry of datasets is none"
    return str(error)


def _check_type(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, expected {kind.__name__}")
    return value
