"""The informers: they feed the cache, and wake the dataset of every object that has changed. Nothing is decided or
written here.

kopf logs in, starts and stops, and watches LookupDatasets, of which there are some hundred. The objects that belong
to them, a hundred times as many, come by one reflector a kind. kopf's handlers of changes, timers and daemons are not
used: they write finalizers and annotations, and lose work on errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import kopf

from lookupdb.errors import LookupdbError
from lookupdb_operator import kinds, names
from lookupdb_operator.api.client import Api
from lookupdb_operator.api.listing import Listing
from lookupdb_operator.kinds import Kind
from lookupdb_operator.parse import Header
from lookupdb_operator.watch.cache import Key, ObjectCache
from lookupdb_operator.watch.reflector import Reflector

log = logging.getLogger(__name__)

_LISTS_AT_ONCE: Final = 2
"""A page of each is in memory."""

# kopf's watch of LookupDatasets. The API server ends it after so long, and we do when it has not; bookmarks come every
# minute. It refuses a number of seconds that is not an integer.
_SERVER_TIMEOUT: Final = 290
_CLIENT_TIMEOUT: Final = 310.0
_REQUEST_TIMEOUT: Final = 30.0
_CONNECT_TIMEOUT: Final = 5.0
_PAGE: Final = 100

Hook = Callable[[], Awaitable[None]]


class Informers:
    """Feeds ``cache`` from watches, and wakes each dataset that has changed; none before ``open``."""

    def __init__(
        self,
        cache: ObjectCache,
        wake: Callable[[Key], None],
        api: Api,
        namespaces: tuple[str, ...] = (),
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """``wake`` is called with each dataset to look at, ``on_progress`` whenever something was listed."""
        self._cache = cache
        self._wake_dataset = wake
        self._on_progress = on_progress
        self._is_open = False
        turns = asyncio.Semaphore(_LISTS_AT_ONCE)
        self._reflectors = tuple(
            Reflector(api, kind, namespace, names.DATASET, self, turns)
            for kind in kinds.WATCHED
            for namespace in namespaces or ("",)
        )

        self.start_error: LookupdbError | None = None
        """Why the operator cannot start, if it cannot."""

    async def run(self) -> None:
        """Reflect all objects that belong to datasets, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name=f"reflector of {reflector.kind.plural}")

    async def wait_synced(self) -> None:
        """Return when all objects that belong to datasets were listed once."""
        for reflector in self._reflectors:
            await reflector.synced.wait()

    def open(self) -> None:
        """Wake datasets from now on; the caller queues what was cached before."""
        self._is_open = True

    def relist(self, kind: Kind) -> None:
        """List ``kind``, which is not LookupDatasets, again."""
        for reflector in self._reflectors:
            if reflector.kind == kind:
                reflector.relist()

    # Called by reflectors and kopf.

    def on_changed(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Cache the object as ``body`` says."""
        if not self._is_open:
            self._on_progress()
        self._wake(self._cache.put(kind.name, body))

    def on_deleted(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Forget the object that was deleted."""
        meta = body["metadata"]
        version = meta.get("resourceVersion") or ""
        self._wake(self._cache.drop(kind.name, meta.get("namespace", ""), meta["name"], meta["uid"], version))

    def known_headers(self, kind: Kind, namespace: str) -> Mapping[str, Header]:
        """The header of each cached object of ``kind`` in ``namespace`` (empty: anywhere), by uid."""
        headers = self._cache.headers(kind.name)
        return {header.uid: header for header in headers if namespace in ("", header.namespace)}

    def on_unlisted(self, kind: Kind, headers: Collection[Header]) -> None:
        """Forget objects that were cached and that a list does not have any more."""
        for header in headers:
            log.info("%s %s/%s is gone, unnoticed", kind.name, header.namespace, header.name)
            place = (header.namespace, header.name)
            self._wake(self._cache.drop(kind.name, *place, header.uid, header.resource_version))

    def _wake(self, key: Key | None) -> None:
        if key is not None and self._is_open:
            self._wake_dataset(key)

    async def compare(self, kind: Kind, listing: Listing) -> int:
        """Drop the objects of ``kind`` that are gone though no watch said so. Returns how many exist that are not
        cached."""
        before = self.known_headers(kind, "")
        listed = await listing.list_uids(kind)
        self.on_unlisted(kind, [header for uid, header in before.items() if uid not in listed])
        return len(listed - before.keys() - self.known_headers(kind, "").keys())

    def make_registry(self, *, start: Hook, stop: Hook) -> kopf.OperatorRegistry:
        """All of kopf's handlers; ``start`` and ``stop`` are called before and after all others."""
        registry = kopf.OperatorRegistry()
        # By default kopf repeats what failed every minute, and would idle in silence.
        once = kopf.ErrorsMode.PERMANENT

        async def begin(**_: Any) -> None:
            try:
                await start()
            except LookupdbError as error:  # a sentence for people, of which kopf would log a traceback
                self.start_error = error
                raise kopf.PermanentError(str(error)) from error

        async def end(**_: Any) -> None:
            await stop()

        async def event(event: kopf.RawEvent, body: kopf.Body, **_: Any) -> None:
            if event["type"] == "DELETED":
                self.on_deleted(kinds.DATASET, body)
            else:
                self.on_changed(kinds.DATASET, body)

        kopf.on.startup(id="start", errors=once, registry=registry)(begin)
        kopf.on.cleanup(id="stop", errors=once, registry=registry)(end)
        kopf.on.login(id="service-account", errors=once, registry=registry)(kopf.login_with_service_account)
        kopf.on.login(id="kubeconfig", errors=once, registry=registry)(kopf.login_with_kubeconfig)
        where = (kinds.DATASET.group, kinds.DATASET.version, kinds.DATASET.plural)
        kopf.on.event(*where, id="event", registry=registry)(event)
        return registry


def make_settings() -> kopf.OperatorSettings:
    """kopf's settings."""
    chosen = kopf.OperatorSettings()
    chosen.peering.standalone = True  # never pause for a peering object of another operator
    chosen.posting.enabled = False  # we post events ourselves, on transitions
    chosen.scanning.disabled = True  # needs no right to watch CRDs and namespaces
    chosen.networking.request_timeout = _REQUEST_TIMEOUT
    chosen.networking.connect_timeout = _CONNECT_TIMEOUT
    chosen.watching.server_timeout = _SERVER_TIMEOUT
    chosen.watching.client_timeout = _CLIENT_TIMEOUT
    chosen.watching.chunk_size = _PAGE
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # else a line for every event
    return chosen
