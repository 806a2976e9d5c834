"""The living list: which datasets a cluster has, written by its operator, read by the sweep. Refused unless it is whole
and of the very cluster that is swept: what it does not name is removed."""

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
    """One dataset that lives, and what of it stays in the store."""

    address: StoreAddress
    keep: int
    """So many of the newest generations."""
    protect: frozenset[str]
    """And these: what serves, what is rolled out. What is newer than all of them stays too; none: everything stays."""


def check_age(path: Path, now: float, max_seconds: float) -> None:
    """Raises UsageError when the list in the file at ``path`` is older than that at ``now``, or does not tell its age:
    a dataset that came since would be taken for dead, and what has come to serve since for old."""
    try:
        written = datetime.datetime.fromisoformat(
            _check_type(orjson.loads(_read_text(path))["writtenAt"], str, "writtenAt")
        )
        age = now - written.timestamp()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} does not say when it was written: {_reason(error)}",
            hint="its operator writes writtenAt, and the list anew, every ten minutes: look whether it runs",
        ) from error
    if not -max_seconds <= age <= max_seconds:
        when = "in the future" if age < 0 else f"{age / 3600:.1f} hours ago"
        raise UsageError(
            f"{path} was written at {written.isoformat()}, {when}: expected at most {max_seconds / 3600:g} hours ago",
            hint="its operator writes it anew every ten minutes: look whether it runs, or give --max-age",
        )


def read_cluster(path: Path) -> str:
    """The cluster whose list it is that is in the file at ``path``. Raises UsageError when it does not say."""
    try:
        return str(
            _check_type(_check_type(orjson.loads(_read_text(path)), dict, "the list")["cluster"], str, "cluster")
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a living list: {_reason(error)}") from error


def read_namespaces(path: Path) -> frozenset[str] | None:
    """The namespaces that the list is whole for, None for all: an operator may see some only, and another one's
    datasets are not dead for that. Raises UsageError when it cannot be told."""
    try:
        found = orjson.loads(_read_text(path)).get("namespaces")
        return (
            None
            if found is None
            else frozenset(_check_type(name, str, "namespaces") for name in _check_type(found, list, ""))
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a living list: {_reason(error)}") from error


def read_live_datasets(path: Path, cluster: str) -> dict[StoreAddress, LiveDataset]:
    """The list in the file at ``path``. Raises UsageError for any other than a whole one of ``cluster``."""
    text = _read_text(path)
    try:
        return _parse(orjson.loads(text), cluster)
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise UsageError(f"{path} is not the living list of cluster {cluster}: {_reason(error)}") from error


def _read_text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the living list {path} cannot be read: {error.strerror}", hint="without it nothing is swept"
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
    address = StoreAddress(cluster, *(_check_type(entry[name], str, name) for name in ("namespace", "name", "uid")))
    keep = _check_type(entry["keep"], int, "keep")
    if keep < 1:
        raise ValueError(f"keep is {keep}, expected 1 or more")
    protect = _check_type(entry.get("protect", []), list, "protect")
    return LiveDataset(
        address, keep, frozenset(check_generation(_check_type(name, str, "protect")) for name in protect)
    )


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
