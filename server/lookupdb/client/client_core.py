"""What both kinds of client share: what they know, and what becomes of an answer. No I/O."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import NoReturn

from lookupdb.client.answers import KeyAnswer, KeysAnswer
from lookupdb.client.cache import GenerationCache
from lookupdb.client.credentials import TokenSource
from lookupdb.client.many_keys import ManyKeys
from lookupdb.client.requests import check_keys, render_deadline, render_trace
from lookupdb.client.settings import ClientSettings
from lookupdb.errors import RequestRefused


def refuse_copy(lookups: object) -> NoReturn:
    """Raises TypeError: connections go neither into a pickle nor to a second client."""
    raise TypeError(
        f"cannot pickle or copy {lookups!r}, which has connections: make one client in each process, where it starts"
        " (processes that are forked off, and threads, may share the one that is there)"
    )


class ClientCore:
    """A client's settings, its token, its cache, and the most keys that its router takes at once."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.tokens = TokenSource(settings.token, settings.token_file)
        self.cache = GenerationCache(settings.cache_bytes, settings.cache_seconds) if settings.cache_bytes else None
        self.max_keys = settings.max_keys

    def renew_after_fork(self) -> None:
        """Forget what a thread of the parent may have been changing."""
        self.tokens = TokenSource(self.settings.token, self.settings.token_file)
        if self.cache is not None:
            self.cache = GenerationCache(self.settings.cache_bytes, self.settings.cache_seconds)

    def render_fields(self, token: bytes, now: float, deadline: float, answer_by: float | None) -> bytes:
        """The lines of a request's head that change: that of the ``token``, how long the router has of what is left of
        the call, and the trace. No trace keeps a lookup from being asked.

        The router should answer until ``answer_by``, if that is not ``deadline``. Where that is over already, as of a
        request that is sent again, it has all that is left. It never has more than is waited for a byte.
        """
        end = deadline if answer_by is None or answer_by <= now else answer_by
        seconds = end - now
        if self.settings.read_timeout is not None:
            seconds = min(seconds, self.settings.read_timeout)
        trace = b""
        if self.settings.traceparent is not None:
            with contextlib.suppress(Exception):
                trace = render_trace(self.settings.traceparent())
        return token + render_deadline(seconds) + trace

    def find_cached(self, key: str, generation: str | None) -> KeyAnswer | None:
        """What is known of ``key`` already."""
        if self.cache is None or generation is not None:
            return None
        known = self.cache.find(key, time.monotonic())
        return KeyAnswer(*known) if known is not None else None

    def begin_many(self, keys: Iterable[str], generation: str | None, *, partial: bool) -> ManyKeys:
        """The plan of a ``get_many``. Raises TypeError and ValueError for what is no key."""
        if isinstance(keys, str):
            raise TypeError(f"keys are several texts, found one: {keys!r:.60}; get() takes one")
        distinct, characters = check_keys(keys)
        cached = None
        if self.cache is not None and generation is None:
            cached = self.cache.find_many(distinct, time.monotonic())
        return ManyKeys(
            distinct, characters, max_keys=self.max_keys, partial=partial, generation=generation, cached=cached
        )

    def learn_key(self, key: str, answer: KeyAnswer, sent_at: float) -> None:
        """Take an answer of the active generation into the cache."""
        if self.cache is not None:
            is_found = answer.is_found
            self.cache.learn(
                answer.generation, {key: answer.value} if is_found else {}, () if is_found else (key,), sent_at
            )

    def learn_batch(self, answer: KeysAnswer, sent_at: float) -> None:
        """The same of a batch."""
        if self.cache is not None:
            self.cache.learn(answer.generation, answer.found, answer.missing, sent_at)

    def learn_limit(self, error: Exception) -> None:
        """Heed the router's own limit of keys, if ``error`` tells it."""
        if isinstance(error, RequestRefused) and error.limit is not None:
            self.max_keys = min(self.max_keys, error.limit)
