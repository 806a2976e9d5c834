"""All datasets' objects as small records, parsed on arrival; the API server's bodies are not kept.

The cost of one reconcile pass depends only on the objects of its dataset, not on the number of datasets.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.cluster.parse import Header, parse_dataset, parse_header
from lookupdb_operator.cluster.workloads import (
    Drift,
    awaits_images,
    compare_fields,
    parse_existing,
    parse_job,
    parse_pod,
    parse_push,
    parse_shard_set,
)
from lookupdb_operator.model import BuildJob, ExistingObject, Observed, ObservedDataset, Pod, Predecessor, ShardSet

Key = tuple[str, str]
"""Namespace and name of a dataset."""
Body = Mapping[str, Any]
"""An object as the API server sends it."""

_DELETED_UIDS_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True)
class CachedObject:
    """The part of an object that decisions depend on."""

    header: Header
    item: ObservedDataset | BuildJob | ShardSet | Pod | ExistingObject
    awaits_images: bool = False
    """For a pod: whether it still waits for a node, its volumes or its network. If it has a node, only events say
    what is wrong."""
    accepted: str = ""
    """If a mutating webhook changed the operator's fields: their hash after the write. Writing them again would not
    help."""
    drift: Drift | None = None
    """The difference from the written object, even if it was accepted; None: not compared."""


@dataclass(slots=True)
class _DatasetObjects:
    """The objects labelled with the name of one dataset."""

    dataset: CachedObject | None = None
    children: dict[tuple[str, str], CachedObject] = field(default_factory=dict)
    """By kind and name."""


class ObjectCache:
    """All objects of all datasets. Informers fill it; the reconciler adds the result of each write. Versions older than
    the cached one, and versions of deleted objects, are ignored."""

    def __init__(self) -> None:
        self._objects: dict[Key, _DatasetObjects] = {}
        self._keys: dict[str, dict[Key, Key]] = {kind.name: {} for kind in (names.DATASET_KIND, *names.WATCHED)}
        """Kind → namespace and name of each object → its dataset."""
        self._deleted: OrderedDict[str, str] = OrderedDict()
        """uid → resource version of the deletion."""

    def put(self, kind: str, body: Body, *, is_own_write: bool = False) -> Key | None:
        """Cache the object ``body`` of ``kind``. Return the dataset to reconcile; None if the object belongs to none or
        nothing relevant changed. ``is_own_write``: ``body`` answers the operator's own write."""
        header = parse_header(body)
        location = (header.namespace, header.name)
        key = location if kind == names.DATASET_KIND.name else (header.namespace, header.dataset)
        if header.uid in self._deleted:
            new, deleted = header.resource_version, self._deleted[header.uid]
            if not (new.isdecimal() and deleted.isdecimal() and int(new) > int(deleted)):
                return None
            # A watch by label reports an object as deleted when its label is removed, as added when the label is back.
            del self._deleted[header.uid]
        if not key[1] or self._keys[kind].get(location, key) != key:
            self.drop(kind, *location)  # its label was changed or removed
        if not key[1]:
            return None
        before = self._find(kind, key, header.name)
        if before is not None and not _is_newer(header, before.header):
            if is_own_write:  # the watch has reported it already
                self._store(kind, key, _accept(before, _changed_fields(_parse(kind, header, body, before))))
            return None
        after = _parse(kind, header, body, before)
        known = before.accepted if before is not None and before.header.uid == header.uid else ""
        after = _accept(after, _changed_fields(after) if is_own_write else known)
        self._store(kind, key, after)
        if before is None or kind == names.DATASET_KIND.name:
            return key
        was = (before.header.uid, before.header.owner_uid, before.item, before.awaits_images)
        return None if was == (header.uid, header.owner_uid, after.item, after.awaits_images) else key

    def drop(self, kind: str, namespace: str, name: str, uid: str = "", version: str = "") -> Key | None:
        """Forget an object. With ``uid``, forget only the object with that uid, and ignore its versions up to
        ``version``, the deletion's. Return the dataset to reconcile; None if nothing was forgotten.
        """
        if uid:
            self._deleted[uid] = version
            if len(self._deleted) > _DELETED_UIDS_REMEMBERED:
                self._deleted.popitem(last=False)
        key = self._keys[kind].get((namespace, name))
        if key is None:
            return None
        cached = self._find(kind, key, name)
        if cached is None or uid not in ("", cached.header.uid):
            return None
        del self._keys[kind][namespace, name]
        objects = self._objects[key]
        if kind == names.DATASET_KIND.name:
            objects.dataset = None
        else:
            del objects.children[kind, name]
        if objects.dataset is None and not objects.children:
            del self._objects[key]
        return key

    def headers(self, kind: str) -> Iterator[Header]:
        """Return the header of every object of ``kind``. Do not change the cache while iterating."""
        for (_, name), key in self._keys[kind].items():
            if cached := self._find(kind, key, name):
                yield cached.header

    def dataset_keys(self) -> Collection[Key]:
        """Return the key of every dataset. Do not change the cache while iterating."""
        return self._keys[names.DATASET_KIND.name].keys()

    def datasets(self) -> Iterator[ObservedDataset]:
        """Return every dataset without its objects. Do not change the cache while iterating."""
        for key in self.dataset_keys():
            if dataset := self.dataset(key):
                yield dataset

    def dataset(self, key: Key) -> ObservedDataset | None:
        """Return the dataset ``key`` without its objects; None if there is none."""
        objects = self._objects.get(key)
        cached = None if objects is None else objects.dataset
        return cached.item if cached is not None and isinstance(cached.item, ObservedDataset) else None

    def observed(self, key: Key) -> Observed | None:
        """Return the dataset ``key`` with all its objects; None if there is none."""
        dataset = self.dataset(key)
        if dataset is None:
            return None
        items = [cached.item for cached in self.owned_objects(key)]
        return Observed(
            dataset=dataset,
            jobs=tuple(item for item in items if isinstance(item, BuildJob)),
            shard_sets=tuple(item for item in items if isinstance(item, ShardSet)),
            pods=tuple(item for item in items if isinstance(item, Pod)),
            other_objects=tuple(item for item in items if isinstance(item, ExistingObject)),
            predecessors=tuple(_predecessors(self._objects[key].children, dataset)),
        )

    def owned_objects(self, key: Key) -> Iterator[CachedObject]:
        """Return the objects owned by the dataset ``key``, by kind and name, without those of an earlier dataset of
        this name."""
        dataset = self.dataset(key)
        if dataset is None:
            return
        children = self._objects[key].children
        owned = {child.header.uid for child in children.values() if child.header.owner_uid == dataset.uid}
        for location in sorted(children):
            child = children[location]
            is_pod = isinstance(child.item, Pod) and _is_dataset_pod(child.header, dataset, owned, children)
            if is_pod or child.header.uid in owned:
                yield child

    def _find(self, kind: str, key: Key, name: str) -> CachedObject | None:
        objects = self._objects.get(key)
        if objects is None:
            return None
        return objects.dataset if kind == names.DATASET_KIND.name else objects.children.get((kind, name))

    def _store(self, kind: str, key: Key, cached: CachedObject) -> None:
        objects = self._objects.setdefault(key, _DatasetObjects())
        if kind == names.DATASET_KIND.name:
            objects.dataset = cached
        else:
            objects.children[sys.intern(kind), cached.header.name] = cached
        self._keys[kind][cached.header.namespace, cached.header.name] = key


def _parse(kind: str, header: Header, body: Body, before: CachedObject | None) -> CachedObject:
    match kind:
        case names.DATASET_KIND.name:
            known = before.item if before is not None and isinstance(before.item, ObservedDataset) else None
            return CachedObject(header, parse_dataset(body, known))
        case names.JOB.name:
            is_push = bool(names.read_rollout(header.name))
            return CachedObject(header, parse_push(body) if is_push else parse_job(body))
        case names.POD.name:
            return CachedObject(header, parse_pod(body), awaits_images(body))
    drift = compare_fields(body, None if before is None else before.drift)
    is_stateful = kind == names.STATEFUL_SET.name
    return CachedObject(
        header, parse_shard_set(body, drift) if is_stateful else parse_existing(kind, body, drift), drift=drift
    )


def _accept(cached: CachedObject, accepted: str) -> CachedObject:
    """Return ``cached``; the operator's fields count as unchanged if they hash to ``accepted``."""
    item = cached.item
    if not isinstance(item, ShardSet | ExistingObject):
        return cached
    changed = "" if item.changed == accepted else item.changed
    return replace(cached, item=replace(item, changed=changed), accepted=accepted)


def _changed_fields(cached: CachedObject) -> str:
    return cached.item.changed if isinstance(cached.item, ShardSet | ExistingObject) else ""


def _is_newer(header: Header, cached: Header) -> bool:
    """Return whether ``header`` is newer than ``cached``, or may be. Versions of an object are growing decimals
    (KEP-5504); other versions are always accepted."""
    new, old = header.resource_version, cached.resource_version
    if header.uid != cached.uid or not new.isdecimal() or not old.isdecimal():
        return True
    return int(new) > int(old)


def _is_dataset_pod(
    header: Header, dataset: ObservedDataset, owned: Collection[str], children: Collection[tuple[str, str]]
) -> bool:
    """Return whether a pod belongs or belonged to one of the dataset's ``owned`` objects. Pods of the DaemonSet are
    left out: there may be thousands, and no decision depends on them."""
    if header.dataset_uid != dataset.uid:
        return False
    match header.owner_kind:
        case names.DAEMON_SET.name:
            return False
        case names.POD.name:  # Spark's driver owns its executors
            return header.owner_name.startswith(f"{dataset.name}-g")
        case "ReplicaSet":  # they are not watched
            return header.owner_name.startswith(f"{names.router(dataset.name)}-")
    if header.owner_uid in owned:
        return True
    # A shard server whose StatefulSet is gone uses memory and disk until it ends.
    is_left = header.owner_kind == names.STATEFUL_SET.name and (header.owner_kind, header.owner_name) not in children
    return is_left and header.owner_name.startswith(f"{dataset.name}-")


def _predecessors(children: Mapping[tuple[str, str], CachedObject], dataset: ObservedDataset) -> Iterable[Predecessor]:
    """Return the objects of an earlier dataset of the same name. Objects without a uid label do not count."""
    for kind, name in sorted(
        location
        for location, child in children.items()
        if (child.header.dataset_uid not in ("", dataset.uid) and child.header.owner_uid != dataset.uid)
    ):
        header = children[kind, name].header
        if kind != names.POD.name:
            yield Predecessor(kind, name, header.dataset_uid, orphaned=header.owner_kind != names.KIND)
