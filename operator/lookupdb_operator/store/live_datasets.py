"""The list of live datasets: the store's sweep removes nothing that it names."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from lookupdb_operator import kinds, names
from lookupdb_operator.api.client import Refused
from lookupdb_operator.api.cluster import Cluster
from lookupdb_operator.model import Manifest, ObservedDataset
from lookupdb_operator.parse.header import read_labels
from lookupdb_operator.watch.cache import ObjectCache

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
DATA_KEY: Final = "living.json"
WRITTEN_AT: Final = "writtenAt"
_ADDRESS: Final = ("namespace", "name", "uid")
RETAIN: Final = "Retain"
MOST_RETAINED: Final = 2000
"""Deleted datasets that the list names: the sweep, which runs every night, notes in the store that they are retained.
Some 200 KB."""
_SHORT_UID: Final = re.compile(r"[A-Za-z0-9]{1,8}")
"""As a folder in the store ends with it. The sweep refuses a list with another one."""
_DEFAULT_KEEP: Final = 3
"""keepGenerations of a dataset whose spec cannot be read."""
REFRESH_SECONDS: Final = 600.0
"""Age at which a list is written anew though nothing has changed: the sweep refuses one that is older than an hour."""


class LiveDatasetsWriter:
    """Writes the list when it changes, and every ten minutes, because it carries its age.

    ``write`` must not be called before the cache holds every dataset.
    """

    def __init__(
        self,
        cache: ObjectCache,
        cluster: Cluster,
        *,
        namespace: str,
        name: str,
        cluster_id: str,
        namespaces: tuple[str, ...],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cache = cache
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._cluster_id = cluster_id
        self._namespaces = namespaces
        self._now = now
        self._written: Mapping[str, Any] | None = None

    async def write(self) -> None:
        """Write the list if the cluster has another one, or an old one. Raises what ``api`` raises."""
        datasets = sorted(self._cache.datasets(), key=lambda dataset: dataset.key)
        if self._written is None:
            self._written = await self._read()
        retained = find_retained(self._written, datasets)
        desired = render_live_datasets(self._cluster_id, self._namespaces, datasets, self._now(), retained)
        if _needs_writing(desired, self._written):
            await self._cluster.apply(self._render_config_map(desired))
            self._written = desired

    async def _read(self) -> Mapping[str, Any] | None:
        """The list that the cluster has; None when there is none. Raises Refused when the ConfigMap is not ours."""
        found = await self._cluster.get(kinds.CONFIG_MAP, self._namespace, self._name)
        if found is None:
            return None
        if read_labels(found).get(names.MANAGED_BY) != names.FIELD_MANAGER:
            raise Refused(
                f"ConfigMap {self._name}",
                f"it is not the operator's, which would keep the list of datasets in it: rename or delete it in"
                f" namespace {self._namespace}; until then the sweep removes nothing",
            )
        return _parse((found.get("data") or {}).get(DATA_KEY))

    def _render_config_map(self, desired: Mapping[str, Any]) -> Manifest:
        text = orjson.dumps(desired).decode()  # not indented: a ConfigMap takes 1 MiB, 6,000 datasets instead of 4,000
        return {
            "apiVersion": kinds.CONFIG_MAP.api_version,
            "kind": kinds.CONFIG_MAP.name,
            "metadata": {"namespace": self._namespace, "name": self._name, "labels": dict(names.OPERATOR_LABELS)},
            "data": {DATA_KEY: text},
        }


def _parse(text: str | None) -> Mapping[str, Any] | None:
    """The list that the cluster has; None when ``text`` is no list."""
    try:
        members = orjson.loads(text or "")
    except ValueError:
        return None
    return members if isinstance(members, dict) else None


def _needs_writing(desired: Mapping[str, Any], existing: Mapping[str, Any] | None) -> bool:
    if existing is None or {**existing, WRITTEN_AT: None} != {**desired, WRITTEN_AT: None}:
        return True
    try:
        age = datetime.fromisoformat(desired[WRITTEN_AT]) - datetime.fromisoformat(existing[WRITTEN_AT])
    except (ValueError, KeyError, TypeError):
        return True
    return abs(age.total_seconds()) >= REFRESH_SECONDS


def find_retained(previous: Mapping[str, Any] | None, datasets: Iterable[ObservedDataset]) -> list[dict[str, str]]:
    """The deleted datasets whose generations stay in the store: those that the previous list named as such, and those
    that lived by it, and are gone. Oldest first."""
    alive = {dataset.uid for dataset in datasets}
    known = _list_entries(previous or {}, "retained")
    known += [entry for entry in _list_entries(previous or {}, "datasets") if entry.get("retain")]
    gone = {entry["uid"]: {name: entry[name] for name in _ADDRESS} for entry in known if entry["uid"] not in alive}
    return list(gone.values())[-MOST_RETAINED:]


def _list_entries(members: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The datasets that ``members`` list under ``name``, and that have an address."""
    entries = members.get(name)
    return [
        entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and all(isinstance(entry.get(part), str) for part in _ADDRESS)
    ]


def render_live_datasets(
    cluster_id: str,
    namespaces: tuple[str, ...],
    datasets: list[ObservedDataset],
    now: float,
    retained: Sequence[Mapping[str, str]] = (),
) -> Mapping[str, Any]:
    """The list as of ``now``. It is complete for ``namespaces``; empty means all."""
    return {
        "formatVersion": FORMAT_VERSION,
        "cluster": cluster_id,
        WRITTEN_AT: datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        **({"namespaces": sorted(namespaces)} if namespaces else {}),
        "datasets": [
            {
                "namespace": dataset.namespace,
                "name": dataset.name,
                "uid": dataset.uid,
                "keep": _keep(dataset),
                "protect": sorted(dataset.status.protected_generations(_pinned(dataset)), key=_number),
                **({"retain": True} if dataset.spec.get("deletionPolicy") == RETAIN else {}),
                **({"adopt": predecessor} if (predecessor := _find_predecessor(dataset)) else {}),
            }
            for dataset in datasets
        ],
        **({"retained": list(retained)} if retained else {}),
    }


def _pinned(dataset: ObservedDataset) -> str:
    return str(dataset.spec.get("generation", ""))


def _find_predecessor(dataset: ObservedDataset) -> str:
    """The short uid of the earlier dataset that builders are told to adopt, as long as they are; else empty."""
    adopt = dataset.spec.get("adopt")
    uid = adopt.get("uid") if isinstance(adopt, dict) else None
    if not isinstance(uid, str) or not dataset.status.has_nothing_of_its_own:
        return ""
    return uid[:8] if _SHORT_UID.fullmatch(uid[:8]) else ""


def _keep(dataset: ObservedDataset) -> int:
    keep = dataset.spec.get("keepGenerations", _DEFAULT_KEEP)
    return keep if isinstance(keep, int) and keep > 0 else _DEFAULT_KEEP


def _number(generation: str) -> tuple[int, str]:
    return (int(generation[1:]) if generation[1:].isdecimal() else 0, generation)
