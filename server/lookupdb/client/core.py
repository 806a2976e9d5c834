"""The decisions of a lookup, between callers and connections. No I/O.

Concurrent lookups of single keys share a batch: ``may_leave_together`` and the limits beside it decide which, and
``SharedAnswer`` gives each caller its part. ``ManyKeys`` splits a large call into parts of one generation. A failed
request becomes a ``ConnectionFailure``, and is sent again if that may help. ``GenerationCache`` keeps
values. ``ClientCore`` is a client's state: settings, token, cache, and the router's limit of keys.
"""

from __future__ import annotations

import contextlib
import copy
import marshal
import os
import random
import re
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from lookupdb.client.settings import ClientSettings, TokenSource
from lookupdb.client.wire import (
    MAX_TARGET_CHARACTERS,
    MISSING,
    DatasetDescription,
    Decode,
    KeyAnswer,
    KeyColumns,
    KeysAnswer,
    LookupResults,
    check_keys,
    decode_json,
    make_unavailable,
    render_deadline,
)
from lookupdb.errors import (
    InvalidAnswer,
    LookupFailed,
    RequestRefused,
    Unavailable,
    UnknownGeneration,
    UsageError,
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
"""Seconds that a lookup waits for running batches to end, before it starts another one beside them."""
MAX_FLIGHTS: Final = 8  # the most batches at the same time
MAX_WAITING: Final = 10_000
MAX_WAITING_CHARACTERS: Final = MAX_WAITING * MAX_TARGET_CHARACTERS
"""The most characters of all waiting keys, 20 MB at four bytes each. Valid keys never reach it. A single waiting key
may be longer."""
MAX_REQUEST_CHARACTERS: Final = 200_000
"""The most characters of the keys of one request, which then fits into a body of 1 MiB."""
UNAUTHENTICATED: Final = 401
PIECE_BYTES: Final = 1 << 16
"""Bytes received at once. Beyond 128 KiB an allocator may map new memory for each piece, and clearing it takes longer
than two reads."""

_TRACE: Final = re.compile(r"[0-9A-Za-z-]{1,512}", re.ASCII)  # a traceparent (W3C Trace Context)
MAX_PASSES: Final = 6
_FIRST_PAUSE_SECONDS: Final = 0.02
"""Seconds before a call is repeated after a cutover, doubled each time: all routers of a dataset cut over within
moments."""
_TOO_LARGE: Final = 413
_ENTRY_BYTES: Final = 200  # memory of an entry in addition to its key and its value
_IMMUTABLE: Final = (str, int, float, bool, bytes, type(None), type(MISSING))


class ConnectionFailure(Exception):
    """A request was not answered because of its connection."""

    def __init__(self, reason: str, detail: str, *, is_stale: bool = False, refusal_hint: str | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.is_stale = is_stale
        """True for a reused connection that was closed before the answer: most likely the router closed it while
        idle."""
        self.refusal_hint = refusal_hint
        """Advice if certificates do not match. Another connection is still tried: it reads the files again."""

    def to_error(self, keys: Sequence[str]) -> LookupFailed:
        """Return the error for ``keys``."""
        if self.refusal_hint is not None:
            return RequestRefused(self.detail, hint=self.refusal_hint)
        return make_unavailable(tuple(keys), self.reason, self.detail)


def deadline_failure(seconds: float) -> ConnectionFailure:
    """Return the failure of a call that exceeded its timeout."""
    return ConnectionFailure(DEADLINE, f"the call has taken longer than its timeout of {seconds:g} s")


def timeout_failure(settings: ClientSettings, *, is_late: bool) -> ConnectionFailure:
    """Return the failure of a call that ``is_late``, or of a request that got no byte within ``read_timeout``."""
    if is_late or settings.read_timeout is None:
        return deadline_failure(settings.timeout)
    return ConnectionFailure(
        CONNECTION_LOST, f"the router sent nothing for {settings.read_timeout:g} s, the read_timeout"
    )


def no_connection_failure(settings: ClientSettings) -> ConnectionFailure:
    """Return the failure of a request that got no connection in time."""
    detail = f"all {settings.max_connections} connections were in use until the timeout"
    return ConnectionFailure(NO_CONNECTION, detail)


def connecting_error(error: OSError, settings: ClientSettings, *, is_late: bool) -> ConnectionFailure | InvalidAnswer:
    """Return the error for a failed connect. A server that does not speak TLS never will: InvalidAnswer. ``is_late`` is
    true if the whole call has timed out, not only ``connect_timeout``; a failed name resolution is reported as such
    in any case, because it cannot be interrupted."""
    if is_late and not isinstance(error, socket.gaierror):
        return deadline_failure(settings.timeout)
    if speaks_no_tls(error):
        plain = settings.address.url.replace("https:", "http:", 1)
        hint = f"for a router without a certificate, use {plain}"
        return InvalidAnswer(f"{settings.address.authority} does not speak TLS", hint=hint)
    return _certificate_failure(error, settings) or ConnectionFailure(UNREACHABLE, _describe(error, settings))


def lost_connection(error: BaseException | None, settings: ClientSettings, *, is_stale: bool) -> ConnectionFailure:
    """Return the failure of a request whose connection ended; ``error`` says why, if known. A router that requires a
    client's certificate reports that here: in TLS 1.3 it checks after the handshake."""
    if error is None:
        detail = "the connection was closed before the answer was whole"
        return ConnectionFailure(CONNECTION_LOST, detail, is_stale=is_stale)
    failure = ConnectionFailure(CONNECTION_LOST, _describe(error, settings), is_stale=is_stale)
    return _certificate_failure(error, settings) or failure


def _certificate_failure(error: BaseException, settings: ClientSettings) -> ConnectionFailure | None:
    """Return the failure if only other certificates can help; else None."""
    has_shown_one = settings.cert_file is not None
    if wants := find_certificate_refusal(error, has_shown_one=has_shown_one):
        hint = (
            "check that cert_file and key_file hold a certificate that the router accepts"
            if has_shown_one
            else "give the client a certificate, by cert_file= and key_file="
        )
        return ConnectionFailure(UNREACHABLE, f"{settings.address.authority} {wants}", refusal_hint=hint)
    if not getattr(error, "verify_message", None) or is_not_valid_now(error):
        return None
    unknown = "give the client the certificate of the CA that signed it, by ca_file="
    if settings.ca_file is not None:
        unknown = f"the ca_file {os.fspath(settings.ca_file)} does not have the CA that signed it"
    hint = find_trust_hint(error) or unknown
    return ConnectionFailure(UNREACHABLE, _describe(error, settings), refusal_hint=hint)


def _describe(error: BaseException, settings: ClientSettings) -> str:
    """Return a sentence for an error of a socket to the router."""
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
    if hasattr(error, "library"):  # only ssl has it
        return f"{where}: {describe_tls_error(error)}"
    return f"{where}: {getattr(error, 'strerror', None) or error}"


class Part(NamedTuple):
    """Keys of one request, for the named generation; None asks the active one, or that of ``at``."""

    keys: Sequence[str]
    generation: str | None


Step = Part | float  # a part to request, or seconds to wait
Outcome = KeysAnswer | LookupFailed | None  # the outcome of a Part; None after a wait


class ManyKeys:
    """One call of ``get_many``: many keys, several requests, one result of one generation.

    The first part goes to the active generation, all others to the one that answered, by name. If a cutover has ended
    it meanwhile (412), everything is requested again. During a rollout shard by shard no generation can be named, and
    the result lists all that answered.
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
        """``keys`` are distinct, with ``characters`` characters in all. ``generation`` is the caller's, if any.
        ``cached`` are known values, or MISSING, and their generation."""
        self.keys = keys
        self.max_keys = max_keys  # keys of one part; fewer once the router has refused a part as too large
        self._partial = partial
        self.fits_one_part = len(keys) <= max_keys and characters <= MAX_REQUEST_CHARACTERS and cached is None
        """True if the first part holds all keys, so that its answer is the result."""
        self._fixed = generation
        self._cached = cached

    def plan(self) -> Generator[Step, Outcome, LookupResults]:
        """Yield each step, and receive its outcome. Raises LookupFailed."""
        is_mixed = False
        for number in range(MAX_PASSES):
            try:
                return (yield from self._ask_all(is_mixed=is_mixed))
            except UnknownGeneration as error:
                if self._fixed is not None:
                    raise
                is_mixed = len(error.active) > 1
            self._cached = None
            yield _FIRST_PAUSE_SECONDS * (1 << number) * random.uniform(0.5, 1)  # noqa: S311 - no secret
        detail = f"the generation changed {MAX_PASSES} times while its keys were requested in parts; try again"
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
                    remaining += cached  # the cached values belong to another generation
                    cached = {}
                continue
            assert outcome is not None
            # The connection failed, not the request, for example because of a certificate: report what is known.
            is_of_connection = isinstance(outcome, RequestRefused) and not outcome.status
            if isinstance(outcome, RequestRefused) and is_divisible(outcome, part):
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
        if self._cached is not None:  # restore the requested order
            parts = found, missing, unavailable
            found, missing, unavailable = ({key: part[key] for key in self.keys if key in part} for part in parts)
        names = tuple(sorted(generations, key=lambda generation: int(generation[1:])))
        return LookupResults(found, [*missing], [*unavailable], names[0] if len(names) == 1 else None, names)

    def _widen(self, error: Unavailable) -> Unavailable:
        """Return the error for the whole call, in which no key has a result."""
        return make_unavailable(tuple(self.keys), error.reason, error.detail, error.shard)

    def _take_part(self, remaining: list[str]) -> list[str]:
        """Remove the first keys from ``remaining`` and return them: ``max_keys``, or fewer if they are long."""
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


Piece = KeysAnswer | KeyAnswer | LookupFailed  # the outcome of one request of a batch


def is_divisible(piece: Piece, keys: Sequence[str]) -> bool:
    """Return whether to split a refused batch of ``keys`` into halves; in the end, the key at fault is requested
    alone."""
    return isinstance(piece, RequestRefused) and piece.status == _TOO_LARGE and len(keys) > 1


class SharedAnswer:
    """The answer to a batch of several callers' lookups, from which each takes its own part.

    Callers share nothing: each gets its own error, and no two get the same mutable value.
    """

    __slots__ = ("_pieces", "_repeated")

    def __init__(self, keys: Sequence[str], pieces: Sequence[tuple[Sequence[str], Piece]]) -> None:
        """``keys`` are the callers', one each; ``pieces`` hold all of them."""
        self._pieces = {key: piece for part, piece in pieces for key in part}
        self._repeated: set[str] = set()
        if len(self._pieces) < len(keys):
            seen: set[str] = set()
            self._repeated = {key for key in keys if key in seen or seen.add(key)}  # type: ignore[func-returns-value]

    def is_late(self, key: str) -> bool:
        """Return whether ``key`` has no answer because the leading caller timed out. A timeout of the router does not
        count: it names the shard."""
        piece = self._pieces[key]
        return isinstance(piece, Unavailable) and piece.reason == DEADLINE and piece.shard is None

    def take(self, key: str) -> KeyAnswer:
        """Return the caller's own part. Raises LookupFailed."""
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
            raise make_unavailable((key,), "Unavailable", "its shard or its value cannot be read now")
        return KeyAnswer(copy_value(answer.value), answer.generation) if key in self._repeated else answer


def copy_value(value: Any) -> Any:
    """Return a deep copy of a JSON value, of any depth."""
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

    The router answers the whole batch by ``first``, so callers with later deadlines lose time: at most half of what
    each has left.
    """
    return last - now <= 2 * (first - now)


def check_room(key: str, waiting: int, characters: int) -> None:
    """Raise Unavailable if ``key`` may not wait with ``waiting`` others, which have ``characters`` characters."""
    if waiting and (waiting >= MAX_WAITING or characters + len(key) > MAX_WAITING_CHARACTERS):
        longest = f"at most {MAX_WAITING} may, with keys of {MAX_WAITING_CHARACTERS} characters in all"
        detail = f"{waiting} lookups of this client are waiting already: {longest}"
        raise make_unavailable((key,), QUEUE_FULL, detail)


def changing_error(keys: Sequence[str]) -> Unavailable:
    """Return the error for ``keys`` whose generations did not keep their key columns during a call."""
    return make_unavailable(tuple(keys), GENERATION_CHANGED, "the key columns changed again and again meanwhile")


def refuse_copy(lookups: object) -> NoReturn:
    """Raise TypeError: connections can be neither pickled nor copied."""
    raise TypeError(
        f"cannot pickle or copy {lookups!r}, which has connections: make one client in each process, where it starts"
        " (forked processes and threads may share one)"
    )


class GenerationCache:
    """Values of the active generation, encoded; the least recently used are dropped beyond ``max_bytes``.

    An answer of another generation empties the cache. Values expire ``max_seconds`` after the last request that their
    generation answered. Safe for threads. Each access decodes the value, so that no caller can change another one's.
    """

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        """Key → the value, encoded; empty for a missing key."""
        self._generation: str | None = None
        self._adopted_at = 0.0
        """Time of the request whose answer first named the generation. An answer to an earlier request is outdated."""
        self._confirmed_at = 0.0
        self.size = 0  # approximate bytes of the entries

    def find(self, key: str, now: float) -> tuple[Any, str] | None:
        """Return the value, or MISSING, and its generation; None if unknown."""
        with self._lock:
            if self._generation is None or now - self._confirmed_at > self._max_seconds or key not in self._entries:
                return None
            self._entries.move_to_end(key)
            entry, generation = self._entries[key], self._generation
        return _decode(entry), generation

    def find_many(self, keys: Iterable[str], now: float) -> tuple[dict[str, Any], str] | None:
        """Return the values, or MISSING, of the known ``keys``, and their generation; None if none is known."""
        with self._lock:
            if self._generation is None or now - self._confirmed_at > self._max_seconds:
                return None
            entries = {key: self._entries[key] for key in keys if key in self._entries}
            for key in entries:
                self._entries.move_to_end(key)
            generation = self._generation
        return ({key: _decode(entry) for key, entry in entries.items()}, generation) if entries else None

    def learn(self, generation: str | None, found: Mapping[str, Any], missing: Iterable[str], sent_at: float) -> None:
        """Keep an answer of the active ``generation`` to a request sent at ``sent_at``; None if several answered."""
        encoded = {key: _encode(value) for key, value in found.items()} if generation else {}
        with self._lock:
            if generation != self._generation:
                if sent_at < self._adopted_at:
                    return
                self._entries.clear()
                self.size = 0
                self._generation = generation
                self._adopted_at = self._confirmed_at = sent_at
            self._confirmed_at = max(self._confirmed_at, sent_at)
            if generation is None:
                return
            for key, entry in encoded.items():
                if entry is not None:
                    self._put(key, entry)
            for key in missing:
                self._put(key, b"")
            while self.size > self._max_bytes:
                key, dropped = self._entries.popitem(last=False)
                self.size -= _measure(key, dropped)

    def _put(self, key: str, entry: bytes) -> None:
        if key in self._entries:
            self.size -= _measure(key, self._entries.pop(key))
        self._entries[key] = entry
        self.size += _measure(key, entry)


def _measure(key: str, entry: bytes) -> int:
    return _ENTRY_BYTES + sys.getsizeof(key) + len(entry)


def _encode(value: Any) -> bytes | None:
    """Return the entry for ``value``; None if it is nested too deeply."""
    try:
        return marshal.dumps(value)
    except ValueError:
        return None


def _decode(entry: bytes) -> Any:
    return marshal.loads(entry) if entry else MISSING  # noqa: S302 - bytes of ``_encode``


class ClientCore:
    """A client's settings, token and cache, and its router's limit of keys in a request."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.max_keys = settings.max_keys
        self.cache: GenerationCache | None = None
        self.description: DatasetDescription | None = None
        """A router's last description, if keys of several columns were looked up."""
        self.known_columns: Mapping[str, KeyColumns] = {}
        """Generation → key columns, also from the previous description: during a cutover, routers differ."""
        self.decode_value: Decode = decode_json
        """Parses the JSON of a single key's answer. `lookupdb get` prints it as it is."""
        self.decode: Decode = decode_json
        """Parses the JSON of a batch's answer. `lookupdb get` has its own, which keeps the digits of floats."""
        self.begin()

    def begin(self) -> None:
        """Set the state up, also in a forked process: a thread of the parent may have been changing it."""
        settings = self.settings
        self.tokens = TokenSource(settings.token, settings.token_file)
        if settings.cache_bytes:
            self.cache = GenerationCache(settings.cache_bytes, settings.cache_seconds)

    def render_fields(self, token: bytes, now: float, deadline: float, answer_by: float | None) -> bytes:
        """Return the lines of a request's head that vary: the token, the router's deadline and the trace. A bad trace
        is left out.

        The router should answer by ``answer_by``, or by ``deadline`` if ``answer_by`` has passed, as in a repeated
        request. It never gets more time than ``read_timeout``.
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

    def begin_many(self, keys: Iterable[str], generation: str | None, now: float, *, partial: bool) -> ManyKeys:
        """Return the plan of a ``get_many``. Raises TypeError or ValueError for an invalid key."""
        if isinstance(keys, str):
            raise TypeError(f"get_many() takes several keys, found one text: {keys!r:.60}; get() takes one key")
        distinct, characters = check_keys(keys)
        cached = None
        if self.cache is not None and generation is None:
            cached = self.cache.find_many(distinct, now)
        return ManyKeys(
            distinct, characters, max_keys=self.max_keys, partial=partial, generation=generation, cached=cached
        )

    def key_columns(self, generation: str | None) -> KeyColumns | None:
        """Return the key columns of ``generation``, or of the active one; None if the router must be asked first."""
        if self.description is None:
            return None
        return self.description.keys.get(generation or self.description.generation)

    def learn_dataset(self, description: DatasetDescription, generation: str | None) -> KeyColumns:
        """Keep the router's ``description``, and return the key columns of ``generation``, or of the active one.
        Raises UsageError if the router names none, and UnknownGeneration."""
        before = self.description.keys if self.description is not None else {}
        self.known_columns = {**before, **description.keys}
        self.description, active = description, description.generation
        if generation is not None and generation not in (active, *description.candidates):
            text = f"{description.namespace}/{description.name} has no generation {generation} now; active is {active}"
            raise UnknownGeneration(text, generation=generation, active=(active,))
        columns = self.key_columns(generation)
        if columns is None:
            raise UsageError(
                f"expected a key as one text, found several columns: the router names no key columns for"
                f" {generation or active} of {description.namespace}/{description.name}",
                hint="if key.columns names several, join their text by key.separator, or build the dataset again",
            )
        return columns

    def find_columns(self, generations: Sequence[str]) -> KeyColumns | None:
        """Return the key columns that all ``generations`` have; None if these are not known."""
        found = {self.known_columns.get(name) for name in generations}
        return found.pop() if len(found) == 1 else None

    def confirms(self, generations: Sequence[str]) -> bool:
        """Return whether the key columns of the answering ``generations`` are known; True if none is named."""
        return not generations or self.find_columns(generations) is not None
