"""The informers: kopf lists and watches, and feeds ``ObjectCache`` and the queue. Nothing is decided or written here.

kopf's handlers of changes, timers and daemons write finalizers and annotations and lose work on errors: none is used.
An index is, for what it brings: kopf calls no event handler before every index has seen everything that there is, so
nothing is looked at while half of it is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import kopf

from lookupdb_operator import kinds, names
from lookupdb_operator.cache import Key, ObjectCache
from lookupdb_operator.kinds import Kind
from lookupdb_operator.listing import Listing
from lookupdb_operator.queue import Queue

log = logging.getLogger(__name__)

WATCHED: Final = (kinds.DATASET, *kinds.WATCHED)

# The API server ends a watch after this long, and we do when it has not; bookmarks come every minute. It refuses a
# number of seconds that is not an integer.
_SERVER_TIMEOUT: Final = 290
_CLIENT_TIMEOUT: Final = 310.0
_REQUEST_TIMEOUT: Final = 30.0
_CONNECT_TIMEOUT: Final = 5.0
_PAGE: Final = 500

Hook = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Sighting:
    """An object that an informer told of."""

    namespace: str
    name: str
    dataset: str
    """Empty when it is of none."""


class Watches:
    """Feeds ``cache`` and ``queue`` with what kopf tells."""

    def __init__(self, cache: ObjectCache, queue: Queue[Key]) -> None:
        self._cache = cache
        self._queue = queue
        self._seen: dict[str, dict[str, _Sighting]] = {kind.name: {} for kind in WATCHED}

    def registry(self, *, start: Hook, stop: Hook) -> kopf.OperatorRegistry:
        """kopf's handlers, all of them; ``start`` and ``stop`` are called before and after all others."""
        registry = kopf.OperatorRegistry()
        # By default kopf repeats what failed every minute, and would idle in silence.
        once = kopf.ErrorsMode.PERMANENT

        async def begin(**_: Any) -> None:
            await start()

        async def end(**_: Any) -> None:
            await stop()

        kopf.on.startup(id="start", errors=once, registry=registry)(begin)
        kopf.on.cleanup(id="stop", errors=once, registry=registry)(end)
        kopf.on.login(id="service-account", errors=once, registry=registry)(kopf.login_with_service_account)
        kopf.on.login(id="kubeconfig", errors=once, registry=registry)(kopf.login_with_kubeconfig)
        for kind in WATCHED:
            self._register(registry, kind)
        return registry

    def _register(self, registry: kopf.OperatorRegistry, kind: Kind) -> None:
        async def index(body: kopf.Body, **_: Any) -> None:
            self._seen[kind.name][body["metadata"]["uid"]] = _sighting(kind, body)
            self._cache.put(kind.name, body)

        async def event(event: kopf.RawEvent, body: kopf.Body, **_: Any) -> None:
            if event["type"] == "DELETED":
                meta = body["metadata"]
                self._drop(kind, meta["uid"], _sighting(kind, body), meta.get("resourceVersion") or "")
            else:
                self._wake(_sighting(kind, body))

        where = (kind.group, kind.version, kind.plural)
        kopf.index(*where, id=f"index-{kind.plural}", registry=registry)(index)
        kopf.on.event(*where, id=f"event-{kind.plural}", registry=registry)(event)

    def _drop(self, kind: Kind, uid: str, sighting: _Sighting, version: str = "") -> None:
        self._seen[kind.name].pop(uid, None)
        self._cache.drop(kind.name, sighting.namespace, sighting.name, uid, version)
        self._wake(sighting)

    def _wake(self, sighting: _Sighting) -> None:
        if sighting.dataset:
            self._queue.add((sighting.namespace, sighting.dataset))

    async def compare(self, listing: Listing) -> dict[str, int]:
        """Drop what is gone without a word; how many objects of each kind exist that no informer told of."""
        unseen = {}
        for kind in WATCHED:
            seen = self._seen[kind.name]
            before = frozenset(seen)
            listed = await listing.uids(kind)
            for uid in before - listed:
                if sighting := seen.get(uid):
                    log.info("%s %s/%s is gone, unnoticed", kind.name, sighting.namespace, sighting.name)
                    self._drop(kind, uid, sighting)
            if missing := len(listed - before - frozenset(seen)):
                unseen[kind.name] = missing
        return unseen


def _sighting(kind: Kind, body: Mapping[str, Any]) -> _Sighting:
    meta = body["metadata"]
    dataset = meta["name"] if kind == kinds.DATASET else (meta.get("labels") or {}).get(names.DATASET, "")
    return _Sighting(meta.get("namespace", ""), meta["name"], dataset)


def settings() -> kopf.OperatorSettings:
    """How kopf is to work."""
    chosen = kopf.OperatorSettings()
    chosen.peering.standalone = True  # never pause for a peering object that somebody else made
    chosen.posting.enabled = False  # events are told on transitions, by us
    chosen.scanning.disabled = True  # needs no right to watch CRDs and namespaces
    chosen.networking.request_timeout = _REQUEST_TIMEOUT
    chosen.networking.connect_timeout = _CONNECT_TIMEOUT
    chosen.watching.server_timeout = _SERVER_TIMEOUT
    chosen.watching.client_timeout = _CLIENT_TIMEOUT
    chosen.watching.chunk_size = _PAGE
    for kind in kinds.WATCHED:
        chosen.watching.label_selectors[kind.plural] = names.DATASET
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # else a line for every event
    return chosen
