"""The decisions of a lookup, between what callers ask and what connections do. No I/O: data in, data out.

Lookups of single keys that are made at the same time leave as one batch: ``may_leave_together`` and the bounds beside
it say who may, and ``SharedAnswer`` gives each caller its part. ``ManyKeys`` splits a large call into parts, and keeps
them to one generation. A request that fails becomes a ``ConnectionFailure``, and ``Attempts`` decides whether it is
sent again. ``ClientCore`` is what a client knows: settings, token, cache, and the limit of keys that it has learnt.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
import re
import socket
import time
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from lookupdb.client.answers import MISSING, KeyAnswer, KeysAnswer, LookupResults, make_unavailable
from lookupdb.client.cache import GenerationCache
from lookupdb.client.settings import ClientSettings, TokenSource
from lookupdb.client.wire import MAX_TARGET_CHARACTERS, check_keys, render_deadline
from lookupdb.errors import InvalidAnswer, LookupFailed, RequestRefused, Unavailable, UnknownGeneration
from lookupdb.tls_failures import (
    describe_tls_error,
    find_certificate_refusal,
    find_trust_hint,
    has_ended_early,
    is_not_valid_now,
    speaks_no_tls,
)

DEADLINE: Final = "Deadline"
UNREACHABLE: Final = "RouterUnreachable"
CONNECTION_LOST: Final = "ConnectionLost"
TOO_MANY_CONNECTIONS: Final = "TooManyConnections"
NO_CONNECTION: Final = "NoConnectionFree"
QUEUE_FULL: Final = "ClientQueueFull"
GENERATION_CHANGED: Final = "GenerationChanged"

PATIENCE_SECONDS: Final = 0.005
"""After which a lookup leaves beside the batches that are under way, rather than with the next."""
MAX_FLIGHTS: Final = 8
"""Batches under way at a time."""
MAX_WAITING: Final = 10_000
MAX_WAITING_CHARACTERS: Final = MAX_WAITING * MAX_TARGET_CHARACTERS
"""Of the keys of all who wait: those that records have never reach it. A character has four bytes at most, so 20 MB.
Who waits alone may have a longer key."""
MAX_REQUEST_CHARACTERS: Final = 200_000
"""Keys of one request have so many characters, so that it fits a request body of 1 MiB."""
UNAUTHENTICATED: Final = 401
PIECE_BYTES: Final = 1 << 16
"""Bytes received at once. Beyond 128 KiB an allocator may map memory that the kernel clears for each piece, which takes
longer than two reads."""

_TRACE: Final = re.compile(r"[0-9A-Za-z-]{1,512}", re.ASCII)
"""A traceparent of W3C's Trace Context."""
_MAX_PASSES: Final = 6
_FIRST_PAUSE_SECONDS: Final = 0.02
"""Before everything is asked again; twice as long each time. Routers of one dataset cut over within moments."""
_TOO_LARGE: Final = 413
_IMMUTABLE: Final = (str, int, float, bool, bytes, type(None))
_SHOW_ONE: Final = "give the certificate that this client was given, by cert_file= and key_file="
_BY_FILE: Final = "give the certificate of the authority that signed it, by ca_file="


class ConnectionFailure(Exception):
    """A request was not answered, for a reason of its connection."""

    def __init__(self, reason: str, detail: str, *, is_stale: bool = False, refusal_hint: str | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.is_stale = is_stale
        """The connection had been used before, and was closed before a byte of the answer: most likely the router
        closed it while it was idle."""
        self.refusal_hint = refusal_hint
        """What to do if no later attempt can do better: certificates do not fit. Files are replaced, so that another
        connection, which reads them again, is tried all the same."""

    def to_error(self, keys: Sequence[str]) -> LookupFailed:
        """The error of ``keys``."""
        if self.refusal_hint is not None:
            return RequestRefused(self.detail, hint=self.refusal_hint)
        return make_unavailable(tuple(keys), self.reason, self.detail)


def deadline_failure(seconds: float) -> ConnectionFailure:
    """The failure of a call that has taken as long as it may."""
    return ConnectionFailure(DEADLINE, f"the call has taken longer than its timeout of {seconds:g} s")


def silence_failure(seconds: float | None) -> ConnectionFailure:
    """The failure of a request of which no byte of an answer came for as long as it may take."""
    return ConnectionFailure(CONNECTION_LOST, f"the router sent nothing for {seconds:g} s, the read_timeout")


def cut_failure(*, is_stale: bool) -> ConnectionFailure:
    """The failure of a request whose connection has ended without an error."""
    detail = "the connection was closed before the answer was whole"
    return ConnectionFailure(CONNECTION_LOST, detail, is_stale=is_stale)


def no_connection_failure(settings: ClientSettings) -> ConnectionFailure:
    """The failure of a request for which there was no connection in time."""
    detail = f"all {settings.max_connections} connections were in use until the timeout"
    return ConnectionFailure(NO_CONNECTION, detail)


def connecting_error(error: OSError, settings: ClientSettings, *, is_late: bool) -> ConnectionFailure | InvalidAnswer:
    """The error of a connection that could not be made. Who answers, and not in TLS, will never. ``is_late``: the time
    of the call is over, and not only ``connect_timeout``. The resolution of a name, which nobody can end, says why it
    failed all the same."""
    if is_late and not isinstance(error, socket.gaierror):
        return deadline_failure(settings.timeout)
    if speaks_no_tls(error):
        plain = settings.address.url.replace("https:", "http:", 1)
        hint = f"a router without a certificate of its own is {plain}"
        return InvalidAnswer(f"{settings.address.authority} does not speak TLS", hint=hint)
    return _certificate_failure(error, settings) or ConnectionFailure(UNREACHABLE, _describe(error, settings))


def lost_connection(error: BaseException, settings: ClientSettings, *, is_stale: bool) -> ConnectionFailure:
    """The failure of a request whose connection has ended in ``error``. A router that wants a client's certificate says
    so here: by TLS 1.3 the handshake is over before it has looked."""
    failure = ConnectionFailure(CONNECTION_LOST, _describe(error, settings), is_stale=is_stale)
    return _certificate_failure(error, settings) or failure


def _certificate_failure(error: BaseException, settings: ClientSettings) -> ConnectionFailure | None:
    """The failure if it comes again until somebody changes a certificate, or whom the client trusts."""
    has_shown_one = settings.cert_file is not None
    if wants := find_certificate_refusal(error, has_shown_one=has_shown_one):
        hint = "do cert_file and key_file hold what the router's clients are to show?" if has_shown_one else _SHOW_ONE
        return ConnectionFailure(UNREACHABLE, f"{settings.address.authority} {wants}", refusal_hint=hint)
    if not getattr(error, "verify_message", None) or is_not_valid_now(error):
        return None
    unknown = _BY_FILE
    if settings.ca_file is not None:
        unknown = f"the ca_file {os.fspath(settings.ca_file)} does not have the authority that signed it"
    hint = find_trust_hint(error) or unknown
    return ConnectionFailure(UNREACHABLE, _describe(error, settings), refusal_hint=hint)


def _describe(error: BaseException, settings: ClientSettings) -> str:
    """One sentence for an error of a socket to the router."""
    where = settings.address.authority
    match error:
        case socket.gaierror():
            return f"the host {settings.address.host} does not resolve: {error.strerror}"
        case ConnectionRefusedError():
            return f"{where} refuses connections: nothing listens there, or not yet"
        case TimeoutError():
            return f"{where} did not let us connect in time"
    if isinstance(error, ConnectionError) or has_ended_early(error):
        return f"{where} closed the connection"
    if verdict := getattr(error, "verify_message", None):
        return f"the certificate of {where} is not trusted: {verdict}"
    if hasattr(error, "library"):  # of ssl alone
        return f"{where}: {describe_tls_error(error)}"
    return f"{where}: {getattr(error, 'strerror', None) or error}"


class Attempts:
    """Counts the attempts of one request. What failed with a connection may be sent again on another one, because
    lookups change nothing."""

    __slots__ = ("_has_met_stale", "_left", "_may_refresh_token")

    def __init__(self, retries: int) -> None:
        self._left = retries
        self._has_met_stale = False
        self._may_refresh_token = True

    def allow_another(self, failure: ConnectionFailure) -> bool:
        """Whether the request is sent again after ``failure``. A stale connection does not count, but only once."""
        if failure.reason == DEADLINE:
            return False
        if failure.is_stale and not self._has_met_stale:
            self._has_met_stale = True
            return True
        self._left -= 1
        return self._left >= 0

    def allow_new_token(self) -> bool:
        """Whether a token that was not accepted may be looked at again: once."""
        may_refresh, self._may_refresh_token = self._may_refresh_token, False
        return may_refresh


class Part(NamedTuple):
    """Keys to be asked for at once, in the named generation, or in the one that is active or fixed."""

    keys: Sequence[str]
    generation: str | None


Step = Part | float
"""What is to be asked, or seconds to be waited for."""
Outcome = KeysAnswer | LookupFailed | None
"""What a Part came to; None of a wait."""


class ManyKeys:
    """One call of ``get_many``: many keys in several requests, and one result of one generation.

    The first part is asked of whichever generation is active, and all others by the name of the one that answered. When
    a cutover has ended that one meanwhile (412), everything is asked again. While the dataset is rolled out shard by
    shard no generation can be asked by name, and the result names all that have answered.
    """

    def __init__(
        self,
        keys: Sequence[str],
        characters: int,
        *,
        max_keys: int,
        partial: bool,
        generation: str | None = None,
        cached: tuple[dict[str, Any], str] | None = None,
    ) -> None:
        """``keys`` are distinct, and have so many ``characters`` together. ``generation`` is the one that the caller
        insists on. ``cached`` are values that are known already, or MISSING, and their generation."""
        self.keys = keys
        self.max_keys = max_keys
        """Of one part: less than at first once the router has refused one as too large."""
        self._partial = partial
        self.fits_one_part = len(keys) <= max_keys and characters <= MAX_REQUEST_CHARACTERS and cached is None
        """Whether the first step is a Part of all keys, and its answer the end unless it is an error."""
        self._fixed = generation
        self._cached = cached

    def plan(self) -> Generator[Step, Outcome, LookupResults]:
        """Yields what is to be asked or waited for, and is sent what came of it. Raises LookupFailed."""
        is_mixed = False
        for number in range(_MAX_PASSES):
            try:
                return (yield from self._ask_all(is_mixed=is_mixed))
            except UnknownGeneration as error:
                if self._fixed is not None:
                    raise
                is_mixed = len(error.active) > 1
            self._cached = None
            yield _FIRST_PAUSE_SECONDS * (1 << number) * random.uniform(0.5, 1)  # noqa: S311 - no secret
        detail = f"the generation changed {_MAX_PASSES} times while its keys were asked for in parts; ask again"
        raise make_unavailable(tuple(self.keys), GENERATION_CHANGED, detail)

    def _ask_all(self, *, is_mixed: bool) -> Generator[Step, Outcome, LookupResults]:
        cached, cached_generation = self._cached or ({}, "")
        found: dict[str, Any] = {}
        missing: dict[str, Any] = {}
        unavailable: dict[str, Any] = {}
        generations: set[str] = set()
        failure: Unavailable | None = None
        remaining = [key for key in self.keys if key not in cached]
        name: str | None = None
        while remaining:
            part = self._take_part(remaining)
            outcome = yield Part(part, name)
            if isinstance(outcome, KeysAnswer):
                if found:
                    found.update(outcome.found)
                else:
                    found = outcome.found
                missing.update(outcome.missing)
                unavailable.update(outcome.unavailable)
                generations.update(outcome.generations)
                is_mixed = is_mixed or outcome.generation is None
                name = None if is_mixed else outcome.generation
                if cached and name != cached_generation:
                    remaining += cached  # what is cached is of another generation
                    cached = {}
                continue
            assert outcome is not None
            # The connection failed, for example by its certificate, not the request: report what is known.
            is_of_connection = isinstance(outcome, RequestRefused) and not outcome.status
            if isinstance(outcome, RequestRefused) and outcome.status == _TOO_LARGE and len(part) > 1:
                limit = outcome.limit
                self.max_keys = limit if limit is not None and limit < len(part) else len(part) // 2
                remaining[:0] = part
            elif isinstance(outcome, Unavailable) and self._partial:
                failure = outcome
                unavailable.update(dict.fromkeys(part))
            elif is_of_connection and self._partial and (cached or found or missing):
                unavailable.update(dict.fromkeys(part))
            elif isinstance(outcome, Unavailable) and len(part) < len(self.keys):
                raise self._widen(outcome)
            else:
                raise outcome
        if failure is not None and len(unavailable) == len(self.keys):
            raise self._widen(failure)
        if cached:
            generations.add(cached_generation)
        for key, value in cached.items():
            (missing if value is MISSING else found)[key] = value
        if self._cached is not None:  # which were not asked for in their turn
            parts = found, missing, unavailable
            found, missing, unavailable = ({key: part[key] for key in self.keys if key in part} for part in parts)
        names = tuple(sorted(generations, key=lambda generation: int(generation[1:])))
        return LookupResults(found, [*missing], [*unavailable], names[0] if len(names) == 1 else None, names)

    def _widen(self, error: Unavailable) -> Unavailable:
        """The error of the whole call: no key has a result."""
        return make_unavailable(tuple(self.keys), error.reason, error.detail, error.shard)

    def _take_part(self, remaining: list[str]) -> list[str]:
        """Take the first keys out of ``remaining``: ``max_keys``, or fewer if they are long."""
        part = remaining[: self.max_keys]
        if sum(map(len, part)) > MAX_REQUEST_CHARACTERS:
            characters = 0
            for count, key in enumerate(part):
                characters += len(key)
                if count and characters > MAX_REQUEST_CHARACTERS:
                    del part[count:]
                    break
        del remaining[: len(part)]
        return part


Piece = KeysAnswer | KeyAnswer | LookupFailed
"""What one request of a batch came to."""


def is_divisible(piece: Piece, keys: Sequence[str]) -> bool:
    """Whether a batch of ``keys`` was refused as too large: it is asked for in halves, and a key that is at fault is at
    last asked for alone."""
    return isinstance(piece, RequestRefused) and piece.status == _TOO_LARGE and len(keys) > 1


class SharedAnswer:
    """The answer to a batch that lookups of several callers left in, of which each caller takes its own part.

    One caller's failure is its own: errors are raised again for each, and no two get the same mutable value.
    """

    __slots__ = ("_pieces", "_repeated")

    def __init__(self, keys: Sequence[str], pieces: Sequence[tuple[Sequence[str], Piece]]) -> None:
        """``keys`` are those of the callers, one each; ``pieces`` hold every one of them."""
        self._pieces = {key: piece for part, piece in pieces for key in part}
        self._repeated: set[str] = set()
        if len(self._pieces) < len(keys):
            seen: set[str] = set()
            self._repeated = {key for key in keys if key in seen or seen.add(key)}  # type: ignore[func-returns-value]

    def is_late(self, key: str) -> bool:
        """Whether nothing is known of ``key`` because the time was over of the caller who asked. A router whose own is
        over names the shard, and is not asked again."""
        piece = self._pieces[key]
        return isinstance(piece, Unavailable) and piece.reason == DEADLINE and piece.shard is None

    def take(self, key: str) -> KeyAnswer:
        """The caller's own part. Raises LookupFailed."""
        piece = self._pieces[key]
        if isinstance(piece, LookupFailed):
            if isinstance(piece, Unavailable):
                raise make_unavailable((key,), piece.reason, piece.detail, piece.shard) from piece
            raise copy.copy(piece) from piece
        if isinstance(piece, KeyAnswer):
            answer = piece
        elif key in piece.found:
            answer = KeyAnswer(piece.found[key], piece.generation)
        elif key in piece.missing:
            return KeyAnswer(MISSING, piece.generation)
        else:
            raise make_unavailable((key,), "Unavailable", "its shard cannot be reached now, or its value not be read")
        return KeyAnswer(copy_value(answer.value), answer.generation) if key in self._repeated else answer


def copy_value(value: Any) -> Any:
    """A value of JSON that is equal, and shares nothing that can be changed; however deep it is."""
    if isinstance(value, _IMMUTABLE):
        return value
    copied: list[Any] = [value]
    remaining: list[Any] = [copied]
    while remaining:
        place = remaining.pop()
        for name, child in [*place.items()] if isinstance(place, dict) else enumerate(place):
            if not isinstance(child, _IMMUTABLE):
                place[name] = child.copy()
                remaining.append(place[name])
    return copied[0]


def may_leave_together(now: float, first: float, last: float) -> bool:
    """Return whether callers may share a batch: the first deadline is ``first``, the last is ``last``.

    The router answers all of them by ``first``, so a caller with little time left takes at most half of another's.
    """
    return last - now <= 2 * (first - now)


def queue_full(key: str, waiting: int) -> Unavailable:
    """The error of ``key``, for which there is no room beside so many who wait."""
    longest = f"{MAX_WAITING} may, and keys of {MAX_WAITING_CHARACTERS} characters together"
    return make_unavailable((key,), QUEUE_FULL, f"{waiting} lookups of this client wait already: {longest}")


def refuse_copy(lookups: object) -> NoReturn:
    """Raises TypeError: connections go neither into a pickle nor to a second client."""
    raise TypeError(
        f"cannot pickle or copy {lookups!r}, which has connections: make one client in each process, where it starts"
        " (processes that are forked off, and threads, may share the one that is there)"
    )


def refuse_in(key: object) -> NoReturn:
    """Raises TypeError: ``in`` cannot wait for an answer."""
    raise TypeError(f"`{key!r:.60} in client` cannot wait for its answer: write `await client.has(…)`")


class ClientCore:
    """A client's settings, its token, its cache, and the most keys that its router takes at once."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.max_keys = settings.max_keys
        self.cache: GenerationCache | None = None
        self.begin()

    def begin(self) -> None:
        """Begin, or begin again in a process that was forked off: a thread of the parent may have been changing it."""
        settings = self.settings
        self.tokens = TokenSource(settings.token, settings.token_file)
        if settings.cache_bytes:
            self.cache = GenerationCache(settings.cache_bytes, settings.cache_seconds)

    def render_fields(self, token: bytes, now: float, deadline: float, answer_by: float | None) -> bytes:
        """The lines of a request's head that change: that of the ``token``, how long the router has of what is left of
        the call, and the trace. No trace keeps a lookup from being asked.

        The router should answer until ``answer_by``, if that is not ``deadline``. If that is over already, as of a
        request that is sent again, it has all that is left. It never has more than is waited for a byte.
        """
        end = deadline if answer_by is None or answer_by <= now else answer_by
        seconds = end - now
        if self.settings.read_timeout is not None:
            seconds = min(seconds, self.settings.read_timeout)
        trace = b""
        if self.settings.traceparent is not None:
            with contextlib.suppress(Exception):
                traceparent = self.settings.traceparent()
                if traceparent is not None and _TRACE.fullmatch(traceparent):
                    trace = f"traceparent: {traceparent}\r\n".encode()
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
            found, missing = ({key: answer.value}, ()) if answer.is_found else ({}, (key,))
            self.cache.learn(answer.generation, found, missing, sent_at)

    def learn_batch(self, answer: KeysAnswer, sent_at: float) -> None:
        """The same of a batch."""
        if self.cache is not None:
            self.cache.learn(answer.generation, answer.found, answer.missing, sent_at)

    def learn_limit(self, error: Exception) -> None:
        """Heed the router's own limit of keys, if ``error`` tells it."""
        if isinstance(error, RequestRefused) and error.limit is not None:
            self.max_keys = min(self.max_keys, error.limit)
