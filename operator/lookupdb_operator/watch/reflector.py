"""A reflector keeps the cache up to date with one kind of object: it lists it once, page by page, then watches.

kopf does not do this: it keeps a task, two streams and a memory for each object, which for the pods of some hundred
datasets takes minutes, and more memory than the whole cache (docs/measurements.md has figures). Here a page is parsed
and dropped before the next one is requested.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

import orjson

from lookupdb_operator.api.client import Api, ApiError, Expired, Unreachable
from lookupdb_operator.kinds import Kind
from lookupdb_operator.parse import Header

log = logging.getLogger(__name__)

PAGE: Final = 250
"""Objects: a page of pods is about 2 MB of JSON, which takes ten times as much while it is parsed."""
_WATCH_SECONDS: Final = (290, 580)
"""The API server ends a watch after a number of seconds between these, so that watches which began together do not
end together."""
_SILENCE_AT_MOST: Final = 150.0
"""Seconds without an event or a bookmark, which come every minute, after which a connection is taken to be dead."""
_GRACE: Final = 30.0
"""Seconds after which we end a watch that the API server should have ended."""
_FIRST_DELAY: Final = 0.5
_LONGEST_DELAY: Final = 30.0
_JITTER: Final = 0.5
_LASTED: Final = 5.0
"""A watch that ends sooner than after so many seconds, without an event, counts as a failure."""
_EVENTS_AT_ONCE: Final = 100
"""Events that are taken before other tasks get a turn."""


class EventSink(Protocol):
    """Receives the objects that a reflector reads."""

    def on_changed(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Take an object that was listed, added or changed. ``body`` must not be kept."""

    def on_deleted(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Take note that an object was deleted; ``body`` is its last version."""

    def known_headers(self, kind: Kind, namespace: str) -> Mapping[str, Header]:
        """The header of each cached object of ``kind`` in ``namespace`` (empty: anywhere), by uid."""

    def on_unlisted(self, kind: Kind, headers: Collection[Header]) -> None:
        """Take note of objects that were cached and that a list does not have any more."""


class Reflector:
    """Lists and watches the objects of ``kind`` in ``namespace`` (empty: all) that ``selector`` selects."""

    def __init__(
        self, api: Api, kind: Kind, namespace: str, selector: str, sink: EventSink, turns: asyncio.Semaphore
    ) -> None:
        """``turns`` bounds how many reflectors list at once: each holds a page in memory."""
        self._api = api
        self._kind = kind
        self._path = kind.path(namespace)
        self._namespace = namespace
        self._selector = selector
        self._sink = sink
        self._turns = turns
        self._version = ""
        self._failures = 0
        self._deadline: asyncio.Timeout | None = None
        """Of the open watch."""
        self.synced = asyncio.Event()
        """Set once everything was listed."""

    @property
    def kind(self) -> Kind:
        """The kind that it lists and watches."""
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
        """``Retry-After`` is no concern of ours: ``Api`` holds all requests back."""
        delay = min(_FIRST_DELAY * 2.0**self._failures, _LONGEST_DELAY) * random.uniform(1 - _JITTER, 1)  # noqa: S311
        self._failures = min(self._failures + 1, 16)
        await asyncio.sleep(delay)

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
                version, more = self._take_page(answer, uids)
                del answer  # before the next one is there
                if not more:
                    break
        self._sink.on_unlisted(self._kind, [header for uid, header in known.items() if uid not in uids])
        self._version, self._failures = version, 0
        self.synced.set()

    def _take_page(self, page: Mapping[str, Any], uids: set[str]) -> tuple[str, str]:
        """Take the objects of ``page``. Returns the version of the list, and the token of its next page."""
        for body in page.get("items") or ():
            uids.add(body["metadata"]["uid"])
            self._sink.on_changed(self._kind, body)
        meta = page.get("metadata") or {}
        return str(meta.get("resourceVersion") or ""), str(meta.get("continue") or "")

    async def _watch(self) -> None:
        """Take events until the watch ends, which it does every few minutes."""
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
                    await self._take_events(lines)
        except TimeoutError:
            log.debug("%s: the watch is ended by us", self._kind.plural)
        finally:
            self._deadline = None
        if self._version != version or loop.time() - began >= _LASTED:
            self._failures = 0
        elif self._version:
            await self._back_off()

    async def _take_events(self, lines: list[bytes]) -> None:
        for count, line in enumerate(lines, 1):
            self._take_event(line)
            if count % _EVENTS_AT_ONCE == 0:
                await asyncio.sleep(0)

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
