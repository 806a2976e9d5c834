"""The living list: which datasets a cluster has, written by its operator, read by the sweep. Refused unless it is whole
and of the very cluster that is swept: what it does not name is removed."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.errors import UsageError
from lookupdb.store.layout import Address, checked_generation

FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Living:
    """One dataset that lives, and what of it stays in the store."""

    address: Address
    keep: int
    """So many of the newest generations."""
    protect: frozenset[str]
    """And these: what serves, what is rolled out. What is newer than all of them stays too; none: everything stays."""


def check_age(path: Path, now: float, most_seconds: float) -> None:
    """Raises UsageError when the list in the file at ``path`` is older than that at ``now``, or does not tell its age:
    a dataset that came since would be taken for dead, and what has come to serve since for old."""
    try:
        written = datetime.datetime.fromisoformat(_typed(orjson.loads(_text(path))["writtenAt"], str, "writtenAt"))
        age = now - written.timestamp()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} does not say when it was written: {_reason(error)}",
            hint="its operator writes writtenAt, and the list anew, every ten minutes: look whether it runs",
        ) from error
    if not -most_seconds <= age <= most_seconds:
        when = "in the future" if age < 0 else f"{age / 3600:.1f} hours ago"
        raise UsageError(
            f"{path} was written at {written.isoformat()}, {when}: expected at most {most_seconds / 3600:g} hours ago",
            hint="its operator writes it anew every ten minutes: look whether it runs, or give --max-age",
        )


def cluster_of(path: Path) -> str:
    """The cluster whose list it is that is in the file at ``path``. Raises UsageError when it does not say."""
    try:
        return str(_typed(_typed(orjson.loads(_text(path)), dict, "the list")["cluster"], str, "cluster"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a living list: {_reason(error)}") from error


def namespaces_of(path: Path) -> frozenset[str] | None:
    """The namespaces that the list is whole for, None for all: an operator may see some only, and another one's
    datasets are not dead for that. Raises UsageError when it cannot be told."""
    try:
        found = orjson.loads(_text(path)).get("namespaces")
        return None if found is None else frozenset(_typed(name, str, "namespaces") for name in _typed(found, list, ""))
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a living list: {_reason(error)}") from error


def read(path: Path, cluster: str) -> dict[Address, Living]:
    """The list in the file at ``path``. Raises UsageError for any other than a whole one of ``cluster``."""
    text = _text(path)
    try:
        return _parse(orjson.loads(text), cluster)
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise UsageError(f"{path} is not the living list of cluster {cluster}: {_reason(error)}") from error


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the living list {path} cannot be read: {error.strerror}", hint="without it nothing is swept"
        ) from error


def _parse(members: dict[str, Any], cluster: str) -> dict[Address, Living]:
    if members["formatVersion"] != FORMAT_VERSION:
        raise ValueError(f"format version {members['formatVersion']!r}; this lookupdb reads {FORMAT_VERSION}")
    if members["cluster"] != cluster:
        raise ValueError(f"it is of cluster {members['cluster']!r}")
    datasets = _typed(members["datasets"], list, "datasets")
    found = (_living(entry, cluster) for entry in datasets)
    return {living.address: living for living in found}


def _living(entry: dict[str, Any], cluster: str) -> Living:
    address = Address(cluster, *(_typed(entry[name], str, name) for name in ("namespace", "name", "uid")))
    keep = _typed(entry["keep"], int, "keep")
    if keep < 1:
        raise ValueError(f"keep is {keep}, expected 1 or more")
    protect = _typed(entry.get("protect", []), list, "protect")
    return Living(address, keep, frozenset(checked_generation(_typed(name, str, "protect")) for name in protect))


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


def _typed(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{what} is {value!r}, expected {kind.__name__}")
    return value
