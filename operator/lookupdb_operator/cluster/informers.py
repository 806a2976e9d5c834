"""The informers feed the cache and queue the dataset of every changed object. They decide and write nothing.

kopf logs in, starts and stops, and watches LookupDatasets. Its handlers of changes, timers and daemons are not used:
they write finalizers and annotations, and lose work on errors. The objects that belong to datasets, a hundred times as
many, come from one reflector for each kind: it lists them once, page by page, then watches. kopf keeps a task, two
streams and a memory for each object. For the pods of some hundred datasets that takes minutes, and more memory than
the whole cache (see docs/measurements.md). A reflector parses each page and drops it. The console uses only reflectors.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from lookupdb.backoff import Backoff
from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.cluster.api import ApiError, Expired, Unreachable, read_pages
from lookupdb_operator.cluster.cache import Key, ObjectCache
from lookupdb_operator.cluster.client import Api
from lookupdb_operator.cluster.cluster import Listing
from lookupdb_operator.cluster.parse import Header
from lookupdb_operator.names import Kind

if TYPE_CHECKING:
    import kopf

log = logging.getLogger(__name__)

LISTS_AT_ONCE: Final = 2
"""Reflectors that list at the same time; each holds a page in memory."""
PAGE: Final = 250
"""Objects in a page: a page of pods is about 2 MB of JSON, and ten times as much during parsing."""
_WATCH_SECONDS: Final = (290, 580)
"""Range of seconds after which the API server ends a watch, so that watches do not all end together."""
_SILENCE_AT_MOST: Final = 150.0
"""Seconds without an event or bookmark after which a connection counts as dead; bookmarks come every minute."""
_GRACE: Final = 30.0
"""Seconds to wait for the API server to end a watch before the client closes it."""
_FIRST_DELAY: Final = 0.5
_LONGEST_DELAY: Final = 30.0
_LASTED: Final = 5.0
"""A watch without events that ends in fewer seconds counts as a failure."""
_EVENTS_AT_ONCE: Final = 100
"""Events to process before other tasks run."""


class EventSink(Protocol):
    """Receives the objects that a reflector reads."""

    def on_changed(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Process an object that was listed, added or changed. ``body`` must not be kept."""

    def on_deleted(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Process a deletion; ``body`` is the last version."""

    def known_headers(self, kind: Kind, namespace: str) -> Mapping[str, Header]:
        """Return the headers of cached objects of ``kind`` in ``namespace`` (empty: anywhere), by uid."""

    def on_unlisted(self, kind: Kind, headers: Collection[Header]) -> None:
        """Process cached objects that a list no longer has."""


class Reflector:
    """Lists and watches the objects of ``kind`` in ``namespace`` (empty: all) that ``selector`` selects."""

    def __init__(
        self, api: Api, kind: Kind, namespace: str, selector: str, sink: EventSink, turns: asyncio.Semaphore
    ) -> None:
        """``turns`` limits the reflectors that list at the same time: each holds a page in memory."""
        self._api = api
        self.kind = kind
        self._path = kind.path(namespace)
        self._namespace = namespace
        self._query = {"labelSelector": selector} if selector else {}
        self._sink = sink
        self._turns = turns
        self._version = ""
        self._backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY, random.random)
        self._deadline: asyncio.Timeout | None = None
        """The timeout of the open watch."""
        self.synced = asyncio.Event()
        """Set once everything was listed."""

    def relist(self) -> None:
        """List everything again, because the watch cannot be trusted."""
        self._version = ""
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """List and watch until cancelled. ``Api`` itself obeys ``Retry-After``."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Expired:
                self._version = ""
                log.info("%s: the watch fell behind; listing again", self.kind.plural)
                await asyncio.sleep(self._backoff.fail())
            except ApiError as error:
                log.warning("%s: %s", self.kind.plural, error)
                await asyncio.sleep(self._backoff.fail())

    async def _list(self) -> None:
        known, uids = self._sink.known_headers(self.kind, self._namespace), set[str]()
        version, subject = "", f"all {self.kind.plural}"
        async with self._turns:
            async for page in read_pages(self._api, self._path, subject=subject, query=self._query, limit=PAGE):
                for body in page.get("items") or ():
                    uids.add(body["metadata"]["uid"])
                    self._sink.on_changed(self.kind, body)
                version = str((page.get("metadata") or {}).get("resourceVersion") or "")
                del page  # before the next one arrives
        self._sink.on_unlisted(self.kind, [header for uid, header in known.items() if uid not in uids])
        self._version = version
        self._backoff.reset()
        self.synced.set()

    async def _watch(self) -> None:
        """Process events until the watch ends, which happens every few minutes."""
        loop = asyncio.get_running_loop()
        began, version = loop.time(), self._version
        seconds = random.randint(*_WATCH_SECONDS)  # noqa: S311 - not a secret
        query = self._query | {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        try:
            async with asyncio.timeout(seconds + _GRACE) as self._deadline:
                async for lines in self._api.stream(
                    self._path,
                    subject=f"the watch of {self.kind.plural}",
                    query=query,
                    silence_at_most=_SILENCE_AT_MOST,
                ):
                    for count, line in enumerate(lines, 1):
                        self._take_event(line)
                        if count % _EVENTS_AT_ONCE == 0:
                            await asyncio.sleep(0)
        except TimeoutError:
            log.debug("%s: the watch is ended by us", self.kind.plural)
        finally:
            self._deadline = None
        if self._version != version or loop.time() - began >= _LASTED:
            self._backoff.reset()
        elif self._version:
            await asyncio.sleep(self._backoff.fail())

    def _take_event(self, line: bytes) -> None:
        subject = f"the watch of {self.kind.plural}"
        try:
            event = orjson.loads(line)
            kind, body = event["type"], event["object"]
            if kind == "ERROR":
                error_class = Expired if body.get("code") == 410 else Unreachable
                raise error_class(subject, str(body.get("message") or "the watch ended with an error"))
            version = str(body["metadata"]["resourceVersion"])
        except (ValueError, KeyError, TypeError) as error:
            raise Unreachable(subject, f"an event cannot be read: {error}") from error
        if kind == "DELETED":
            self._sink.on_deleted(self.kind, body)
        elif kind != "BOOKMARK":
            self._sink.on_changed(self.kind, body)
        self._version = version


# kopf's watch of LookupDatasets. The API server ends it after this many seconds (it accepts integers only); the client
# closes it later. Bookmarks come every minute.
_SERVER_TIMEOUT: Final = 290
_CLIENT_TIMEOUT: Final = 310.0
_REQUEST_TIMEOUT: Final = 30.0
_CONNECT_TIMEOUT: Final = 5.0
_DATASETS_A_PAGE: Final = 100

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
        """``wake`` is called with each dataset to reconcile, ``on_progress`` for each object before ``open``."""
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
        """List the objects of ``kind`` again. ``kind`` must not be LookupDataset."""
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
            log.info("%s %s/%s is gone, and no watch has reported it", kind.name, header.namespace, header.name)
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
        import kopf  # not at the top: the console watches without it

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
    """Return kopf's settings."""
    import kopf  # not at the top: the console watches without it

    chosen = kopf.OperatorSettings()
    chosen.peering.standalone = True  # never pause for a peering object of another operator
    chosen.posting.enabled = False  # the operator posts its own events
    chosen.scanning.disabled = True  # needs no permission to watch CRDs and namespaces
    chosen.networking.request_timeout = _REQUEST_TIMEOUT
    chosen.networking.connect_timeout = _CONNECT_TIMEOUT
    chosen.watching.server_timeout = _SERVER_TIMEOUT
    chosen.watching.client_timeout = _CLIENT_TIMEOUT
    chosen.watching.chunk_size = _DATASETS_A_PAGE
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # else a line for every event
    return chosen
