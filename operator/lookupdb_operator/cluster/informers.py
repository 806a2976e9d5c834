"""The informers feed the cache and queue the dataset of every changed object. They decide and write nothing.

kopf logs in, starts and stops, and watches LookupDatasets. The objects that belong to them, a hundred times as many,
come from one reflector for each kind. kopf's handlers of changes, timers and daemons are not used: they write
finalizers and annotations, and lose work on errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import kopf

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.cluster.cache import Key, ObjectCache
from lookupdb_operator.cluster.client import Api
from lookupdb_operator.cluster.cluster import Listing
from lookupdb_operator.cluster.parse import Header
from lookupdb_operator.cluster.reflector import LISTS_AT_ONCE, Reflector
from lookupdb_operator.names import Kind

log = logging.getLogger(__name__)

# kopf's watch of LookupDatasets. The API server ends it after so many seconds (it accepts integers only); the client
# closes it later. Bookmarks come every minute.
_SERVER_TIMEOUT: Final = 290
_CLIENT_TIMEOUT: Final = 310.0
_REQUEST_TIMEOUT: Final = 30.0
_CONNECT_TIMEOUT: Final = 5.0
_PAGE: Final = 100

Hook = Callable[[], Awaitable[None]]


class Informers:
    """Feeds ``cache`` from watches and wakes each changed dataset, after ``open``."""

    def __init__(
        self,
        cache: ObjectCache,
        wake: Callable[[Key], None],
        api: Api,
        namespaces: tuple[str, ...] = (),
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """``wake`` is called with each dataset to reconcile, ``on_progress`` after each list page."""
        self._cache = cache
        self._wake_dataset = wake
        self._on_progress = on_progress
        self._is_open = False
        turns = asyncio.Semaphore(LISTS_AT_ONCE)
        self._reflectors = tuple(
            Reflector(api, kind, namespace, names.DATASET, self, turns)
            for kind in names.WATCHED
            for namespace in namespaces or ("",)
        )

        self.start_error: LookupdbError | None = None
        """Why the operator cannot start, if it cannot."""

    async def run(self) -> None:
        """Run all reflectors until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name=f"reflector of {reflector.kind.plural}")

    async def wait_synced(self) -> None:
        """Return once all objects that belong to datasets were listed."""
        for reflector in self._reflectors:
            await reflector.synced.wait()

    def open(self) -> None:
        """Wake datasets from now on; the caller queues those already cached."""
        self._is_open = True

    def relist(self, kind: Kind) -> None:
        """List ``kind`` again; not for LookupDatasets."""
        for reflector in self._reflectors:
            if reflector.kind == kind:
                reflector.relist()

    # Called by reflectors and kopf.

    def on_changed(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Cache the object ``body``."""
        if not self._is_open:
            self._on_progress()
        self._wake(self._cache.put(kind.name, body))

    def on_deleted(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Forget the deleted object."""
        meta = body["metadata"]
        version = meta.get("resourceVersion") or ""
        self._wake(self._cache.drop(kind.name, meta.get("namespace", ""), meta["name"], meta["uid"], version))

    def known_headers(self, kind: Kind, namespace: str) -> Mapping[str, Header]:
        """Return the headers of cached objects of ``kind`` in ``namespace`` (empty: anywhere), by uid."""
        headers = self._cache.headers(kind.name)
        return {header.uid: header for header in headers if namespace in ("", header.namespace)}

    def on_unlisted(self, kind: Kind, headers: Collection[Header]) -> None:
        """Forget cached objects that a list no longer has."""
        for header in headers:
            log.info("%s %s/%s is gone, unnoticed", kind.name, header.namespace, header.name)
            place = (header.namespace, header.name)
            self._wake(self._cache.drop(kind.name, *place, header.uid, header.resource_version))

    def _wake(self, key: Key | None) -> None:
        if key is not None and self._is_open:
            self._wake_dataset(key)

    async def compare(self, kind: Kind, listing: Listing) -> int:
        """Drop cached objects of ``kind`` whose deletion no watch reported. Return the number of existing objects that
        are missing from the cache."""
        before = self.known_headers(kind, "")
        listed = await listing.list_uids(kind)
        self.on_unlisted(kind, [header for uid, header in before.items() if uid not in listed])
        return len(listed - before.keys() - self.known_headers(kind, "").keys())

    def make_registry(self, *, start: Hook, stop: Hook) -> kopf.OperatorRegistry:
        """Return kopf's handlers; ``start`` and ``stop`` are called before and after all others."""
        registry = kopf.OperatorRegistry()
        # kopf's default is to retry a failed start every minute, silently.
        once = kopf.ErrorsMode.PERMANENT

        async def begin(**_: Any) -> None:
            try:
                await start()
            except LookupdbError as error:  # kopf would log a traceback
                self.start_error = error
                raise kopf.PermanentError(str(error)) from error

        async def end(**_: Any) -> None:
            await stop()

        async def event(event: kopf.RawEvent, body: kopf.Body, **_: Any) -> None:
            if event["type"] == "DELETED":
                self.on_deleted(names.DATASET_KIND, body)
            else:
                self.on_changed(names.DATASET_KIND, body)

        kopf.on.startup(id="start", errors=once, registry=registry)(begin)
        kopf.on.cleanup(id="stop", errors=once, registry=registry)(end)
        kopf.on.login(id="service-account", errors=once, registry=registry)(kopf.login_with_service_account)
        kopf.on.login(id="kubeconfig", errors=once, registry=registry)(kopf.login_with_kubeconfig)
        where = (names.DATASET_KIND.group, names.DATASET_KIND.version, names.DATASET_KIND.plural)
        kopf.on.event(*where, id="event", registry=registry)(event)
        return registry


def make_settings() -> kopf.OperatorSettings:
    """kopf's settings."""
    chosen = kopf.OperatorSettings()
    chosen.peering.standalone = True  # never pause for a peering object of another operator
    chosen.posting.enabled = False  # the operator posts its own events
    chosen.scanning.disabled = True  # needs no permission to watch CRDs and namespaces
    chosen.networking.request_timeout = _REQUEST_TIMEOUT
    chosen.networking.connect_timeout = _CONNECT_TIMEOUT
    chosen.watching.server_timeout = _SERVER_TIMEOUT
    chosen.watching.client_timeout = _CLIENT_TIMEOUT
    chosen.watching.chunk_size = _PAGE
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # else a line for every event
    return chosen
