"""The objects of a simulated cluster, each kept as the JSON of its answers."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from lookupdb_operator import names

Object = dict[str, Any]
Place = tuple[str, str, str]
"""Kind, namespace, name."""

_HISTORY: Final = 500_000


@dataclass(slots=True)
class Stored:
    """One object."""

    uid: str
    owner: str
    is_labelled: bool
    """True if the operator's selector matches it."""
    text: bytes
    metadata: bytes
    """The object as PartialObjectMetadata."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change, as in watches."""

    version: int
    type: str
    namespace: str
    stored: Stored


@dataclass
class Store:
    """All objects. Watchers are woken by ``changed``."""

    objects: dict[str, dict[tuple[str, str], Stored]] = field(default_factory=lambda: defaultdict(dict))
    owned: dict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))
    version: int = 1000
    uids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.history: dict[str, deque[Event]] = defaultdict(lambda: deque(maxlen=_HISTORY))
        self.changed: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def __getstate__(self) -> Object:
        last = next(self.uids)
        return {
            "objects": {kind: dict(held) for kind, held in self.objects.items()},
            "owned": dict(self.owned),
            "version": self.version,
            "uids": last,
        }

    def __setstate__(self, state: Object) -> None:
        self.objects = defaultdict(dict, state["objects"])
        self.owned = defaultdict(set, state["owned"])
        self.version = state["version"]
        self.uids = itertools.count(state["uids"] + 1)
        self.__post_init__()

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """An object's content."""
        stored = self.objects[kind].get((namespace, name))
        return None if stored is None else orjson.loads(stored.text)

    def put(self, item: Object) -> bytes:
        """Create or replace ``item``. Return its text with uid and version."""
        meta, kind = item["metadata"], item["kind"]
        place = (meta.get("namespace", ""), meta["name"])
        before = self.objects[kind].get(place)
        self.version += 1
        meta["uid"] = before.uid if before else f"{next(self.uids):08x}-0000-4000-8000-000000000000"
        meta["resourceVersion"] = str(self.version)
        meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        owner = next((owner["uid"] for owner in meta.get("ownerReferences", ())), "")
        partial = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": meta}
        stored = Stored(
            uid=meta["uid"],
            owner=owner,
            is_labelled=kind == names.KIND or names.DATASET in meta.get("labels", {}),
            text=orjson.dumps(item),
            metadata=orjson.dumps(partial),
        )
        self.objects[kind][place] = stored
        if owner:
            self.owned[owner].add((kind, *place))
        self._tell(kind, Event(self.version, "MODIFIED" if before else "ADDED", place[0], stored))
        return stored.text

    def remove(self, kind: str, namespace: str, name: str) -> list[Object]:
        """Delete an object and all that it owns, and return them."""
        stored = self.objects[kind].pop((namespace, name), None)
        if stored is None:
            return []
        if stored.owner:
            self.owned[stored.owner].discard((kind, namespace, name))
        self.version += 1
        self._tell(kind, Event(self.version, "DELETED", namespace, stored))
        gone = [orjson.loads(stored.text)]
        for place in self.owned.pop(stored.uid, set()):
            gone += self.remove(*place)
        return gone

    def _tell(self, kind: str, event: Event) -> None:
        self.history[kind].append(event)
        self.changed[kind].set()
        self.changed[kind] = asyncio.Event()
