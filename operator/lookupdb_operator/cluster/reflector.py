"""A reflector keeps the objects of one kind up to date: it lists them once, page by page, then watches.

kopf keeps a task, two streams and a memory for each object. For the pods of some hundred datasets that takes minutes,
and more memory than the whole cache (see docs/measurements.md). Here each page is parsed and dropped.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

import orjson

from lookupdb.backoff import Backoff
from lookupdb_operator.cluster.api import ApiError, Expired, Unreachable
from lookupdb_operator.cluster.client import Api
from lookupdb_operator.cluster.parse import Header
from lookupdb_operator.names import Kind

log = logging.getLogger(__name__)

LISTS_AT_ONCE: Final = 2
"""Reflectors that list at once; each holds a page in memory."""
PAGE: Final = 250
"""Objects in a page: a page of pods is about 2 MB of JSON, and ten times as much during parsing."""
_WATCH_SECONDS: Final = (290, 580)
"""Range of seconds after which the API server ends a watch, so that watches do not all end together."""
_SILENCE_AT_MOST: Final = 150.0
"""Seconds without an event or bookmark after which a connection counts as dead; bookmarks come every minute."""
_GRACE: Final = 30.0
"""Seconds after which a watch is closed that the API server should have ended."""
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
        """``turns`` limits the number of reflectors that list at once: each holds a page in memory."""
        self._api = api
        self._kind = kind
        self._path = kind.path(namespace)
        self._namespace = namespace
        self._selector = selector
        self._sink = sink
        self._turns = turns
        self._version = ""
        self._backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY, random.random)
        self._deadline: asyncio.Timeout | None = None
        """The timeout of the open watch."""
        self.synced = asyncio.Event()
        """Set once everything was listed."""

    @property
    def kind(self) -> Kind:
        """The kind that it watches."""
        return self._kind

    def relist(self) -> None:
        """List everything again, because the watch cannot be trusted."""
        self._version = ""
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Expired:
                self._version = ""
                log.info("%s: the watch fell behind; listing again", self._kind.plural)
                await self._back_off()
            except ApiError as error:
                log.warning("%s: %s", self._kind.plural, error)
                await self._back_off()

    async def _back_off(self) -> None:
        """Wait before a retry. ``Api`` itself obeys ``Retry-After``."""
        await asyncio.sleep(self._backoff.fail())

    async def _list(self) -> None:
        known, uids = self._sink.known_headers(self._kind, self._namespace), set[str]()
        query, version = self._query() | {"limit": str(PAGE)}, ""
        async with self._turns:
            more = ""
            while True:
                answer = await self._api.request(
                    "GET",
                    self._path,
                    subject=f"all {self._kind.plural}",
                    query=query | ({"continue": more} if more else {}),
                )
                for body in answer.get("items") or ():
                    uids.add(body["metadata"]["uid"])
                    self._sink.on_changed(self._kind, body)
                meta = answer.get("metadata") or {}
                version, more = str(meta.get("resourceVersion") or ""), str(meta.get("continue") or "")
                del answer  # before the next page arrives
                if not more:
                    break
        self._sink.on_unlisted(self._kind, [header for uid, header in known.items() if uid not in uids])
        self._version = version
        self._backoff.reset()
        self.synced.set()

    async def _watch(self) -> None:
        """Process events until the watch ends, which happens every few minutes."""
        loop = asyncio.get_running_loop()
        began, version = loop.time(), self._version
        seconds = random.randint(*_WATCH_SECONDS)  # noqa: S311 - not a secret
        query = self._query() | {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        try:
            async with asyncio.timeout(seconds + _GRACE) as self._deadline:
                async for lines in self._api.stream(
                    self._path,
                    subject=f"the watch of {self._kind.plural}",
                    query=query,
                    silence_at_most=_SILENCE_AT_MOST,
                ):
                    for count, line in enumerate(lines, 1):
                        self._take_event(line)
                        if count % _EVENTS_AT_ONCE == 0:
                            await asyncio.sleep(0)
        except TimeoutError:
            log.debug("%s: the watch is ended by us", self._kind.plural)
        finally:
            self._deadline = None
        if self._version != version or loop.time() - began >= _LASTED:
            self._backoff.reset()
        elif self._version:
            await self._back_off()

    def _take_event(self, line: bytes) -> None:
        try:
            event = orjson.loads(line)
            kind, body = event["type"], event["object"]
            if kind == "ERROR":
                raise _error(self._kind, body)
            version = str(body["metadata"]["resourceVersion"])
        except (ValueError, KeyError, TypeError) as error:
            raise Unreachable(f"the watch of {self._kind.plural}", f"an event cannot be read: {error}") from error
        if kind == "DELETED":
            self._sink.on_deleted(self._kind, body)
        elif kind != "BOOKMARK":
            self._sink.on_changed(self._kind, body)
        self._version = version

    def _query(self) -> dict[str, str]:
        return {"labelSelector": self._selector} if self._selector else {}


def _error(kind: Kind, status: Mapping[str, Any]) -> ApiError:
    subject, message = f"the watch of {kind.plural}", str(status.get("message") or "the watch ended with an error")
    return Expired(subject, message) if status.get("code") == 410 else Unreachable(subject, message)
