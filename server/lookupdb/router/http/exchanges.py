"""From a parsed request to its answer.

``make_exchange`` picks the exchange of a request: it routes, and refuses what is invalid. An exchange asks the lookup
core, turns the result into HTTP, and answers through ``ClientConnection.answer``, which keeps answers in the order of
the requests.

``RepeatedLookup`` and ``RepeatedBatch`` skip the parser for repeats. A client sends the same head with each request:
only the key changes in a lookup; the body and its length change in a batch. A parser reads from the left. So bytes
after the target that were accepted once mean the same after any target of plain characters; the same holds for the
bytes after a length.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from lookupdb.batch_frames import MEDIA_TYPE as FRAMES
from lookupdb.keys import MAX_KEY_BYTES, InvalidKey
from lookupdb.router.access import Gatekeeper
from lookupdb.router.batch_keys import choose_keys
from lookupdb.router.budget import RouterLimits
from lookupdb.router.clients.life import JOINED_BYTES, Answer, ClientService
from lookupdb.router.counters import INDEX
from lookupdb.router.http import problems
from lookupdb.router.http import request as target
from lookupdb.router.http.problems import (
    CLOSE,
    CONTINUE,
    JSON,
    MAX_REPEATED_HEAD_BYTES,
    PERSISTENT,
    SLICE_BYTES,
    Answers,
    HttpProblem,
    missing_detail,
)
from lookupdb.router.http.request import (
    ACCEPT,
    AUTHORIZATION,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    DEADLINE,
    GENERATION,
    HOST,
    IF_NONE_MATCH,
    Request,
    parse_accept,
    parse_batch,
)
from lookupdb.router.lookup_core import LookupCore
from lookupdb.router.lookups import NO_TABLE, OVERLOADED, Problem, ServedGeneration

if TYPE_CHECKING:
    from lookupdb.router.batch_keys import BatchKeys, BatchValues
    from lookupdb.router.budget import RouterBudget
    from lookupdb.router.http.request import AcceptField
    from lookupdb.router.lookups import ScatterGather


class HttpService(ClientService):
    """The shared state of all HTTP connections of a worker."""

    __slots__ = ("answers", "is_ready", "keys_type")

    def __init__(
        self,
        lookups: LookupCore,
        limits: RouterLimits,
        counters: memoryview,
        gatekeeper: Gatekeeper | None = None,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(lookups, limits, counters, gatekeeper)
        self.is_ready = is_ready
        """True if the worker has reported ready, for ``/readyz``."""
        self.answers = Answers(limits.cache_control)
        self.keys_type = choose_keys()

    def tick(self, now: float) -> None:
        """Update deadlines and dates for ``now``, event loop time."""
        super().tick(now)
        self.answers.tick()


_MAX_CHARACTER_BYTES: Final = 12
"""At most 4 bytes of UTF-8, which normalisation can triple."""

_OK: Final = INDEX["requests_2xx"]
_NOT_MODIFIED: Final = INDEX["requests_3xx"]
_REFUSED: Final = INDEX["requests_4xx"]
_FAILED: Final = INDEX["requests_5xx"]
_OVERLOADED: Final = INDEX["requests_overloaded"]

_EXCHANGE_BYTES: Final = 1024
"""Memory of a waiting or pending request, without its key."""
_CHARACTER_BYTES: Final = 4
"""The most memory that Python needs for a character of text."""
_BATCH_KEY_BYTES: Final = 400
"""Memory of each pending key of a batch, without its text."""


class ClientConnection(Protocol):
    """A client connection as its exchanges use it."""

    service: HttpService
    lookups: LookupCore
    budget: RouterBudget
    answers: Answers
    counters: memoryview
    limits: RouterLimits

    def answer(self, exchange: Exchange, answer: Answer) -> None:
        """Send ``answer`` to ``exchange`` when its turn comes."""

    def choose_connection_field(self, exchange: Exchange) -> bytes:
        """Return the ``Connection`` field of the answer to ``exchange``."""

    def charge(self, exchange: Exchange) -> None:
        """Count what ``exchange`` holds until it is answered."""


class Exchange:
    """One request with its answer.

    ``answer`` is kept here while an earlier request of the connection is unanswered. ``charge`` is what the exchange
    has taken from the worker's budget.
    """

    __slots__ = ("answer", "bodyless", "charge", "connection", "connection_field")
    is_alone = False
    """True if no other request of the connection may be pending beside it."""

    def __init__(self, connection: ClientConnection, connection_field: bytes, *, bodyless: bool) -> None:
        self.connection = connection
        self.connection_field = connection_field
        self.bodyless = bodyless
        self.answer: Answer | None = None
        self.charge = 0

    def start(self) -> None:
        """Begin. ``ClientConnection.answer`` must then be called exactly once, now or later."""
        raise NotImplementedError

    def cost(self) -> int:
        """Return the bytes that the exchange holds until it is answered."""
        return _EXCHANGE_BYTES

    def abandon(self) -> None:
        """Stop, because the client is gone."""

    def refuse(self, problem: HttpProblem) -> None:
        """Answer with ``problem``."""
        connection = self.connection
        connection.counters[_FAILED if problem.kind.status >= 500 else _REFUSED] += 1
        head, body = connection.answers.encode_problem(problem, connection.choose_connection_field(self))
        connection.answer(self, head if self.bodyless else head + body)

    def unavailable(self, problem: Problem) -> None:
        """Answer that the key is unavailable, with the reason."""
        if problem is OVERLOADED:
            self.connection.counters[_OVERLOADED] += 1
        members: dict[str, object] = {"reason": problem.reason}
        if problem.shard is not None:
            members["shard"] = problem.shard
        self.refuse(HttpProblem(problems.UNAVAILABLE, problem.detail, members=members))

    def unknown_generation(self, name: str, active: ServedGeneration) -> None:
        """Answer that the generation is not served. During a shard-by-shard rollout none is served by name."""
        detail = f"the generation {name!r} is neither the active one nor a candidate; leave Lookupdb-Generation out"
        detail += " to ask the active one"
        if len(active.names) > 1:
            detail = (
                "the dataset is being rolled out shard by shard, and no generation is whole: its shards answer from "
                f"{active.name}; leave Lookupdb-Generation out to ask them"
            )
        self.refuse(HttpProblem(problems.UNKNOWN_GENERATION, detail, members={"active": list(active.names)}))


class ImmediateExchange(Exchange):
    """An exchange that ``respond`` answers at once, without a lookup."""

    __slots__ = ("_respond",)

    def __init__(
        self,
        connection: ClientConnection,
        connection_field: bytes,
        respond: Callable[[Exchange], None],
        *,
        bodyless: bool,
    ) -> None:
        super().__init__(connection, connection_field, bodyless=bodyless)
        self._respond = respond

    def start(self) -> None:
        """Answer."""
        self._respond(self)


def send_continue(exchange: Exchange) -> None:
    """Answer ``100 Continue``, before the answer to the same request."""
    exchange.connection.answer(exchange, CONTINUE)


def _answer_probe(exchange: Exchange, *, asks_ready: bool) -> None:
    """Answer ``/healthz``, or ``/readyz`` with ``asks_ready``, for load balancers on the public port. Not counted."""
    connection = exchange.connection
    status, text = 200, b"ready\n" if asks_ready else b"ok\n"
    if asks_ready and connection.service.draining:
        status, text = 503, b"draining\n"
    elif asks_ready and not connection.service.is_ready():
        status, text = 503, b"not ready\n"
    fields = {"Cache-Control": "no-store", "Content-Type": "text/plain; charset=utf-8"}
    head = connection.answers.encode_head(status, fields, len(text), connection.choose_connection_field(exchange))
    connection.answer(exchange, head if exchange.bodyless else head + text)


def _describe_dataset(exchange: Exchange) -> None:
    """Answer ``GET /v1/dataset`` from the routing table in effect."""
    connection = exchange.connection
    info = connection.lookups.dataset()
    if info is None:
        exchange.unavailable(NO_TABLE)
        return
    document = {
        "namespace": info.namespace,
        "name": info.name,
        "generation": info.generation,
        "records": info.records,
        "shards": info.shards,
        "builtAt": info.built_at,
        "ageSeconds": round(info.age, 3),
        "candidates": info.candidates,
    }
    if info.shard_generations:
        document["shardGenerations"] = info.shard_generations
    connection.counters[_OK] += 1
    fields = {"Content-Type": JSON, "Lookupdb-Generation": ", ".join(info.shard_generations or (info.generation,))}
    body = orjson.dumps(document)
    head = connection.answers.encode_head(200, fields, len(body), connection.choose_connection_field(exchange))
    connection.answer(exchange, head if exchange.bodyless else head + body)


class LookupExchange(Exchange):
    """A lookup of one key: a ``lookups.Waiter``."""

    __slots__ = ("accept", "generation", "key")

    def __init__(
        self,
        connection: ClientConnection,
        connection_field: bytes,
        key: str,
        generation: str | None = None,
        accept: AcceptField | None = None,
        *,
        bodyless: bool = False,
    ) -> None:
        # No super().__init__(): this runs for every lookup.
        self.connection = connection
        self.connection_field = connection_field
        self.bodyless = bodyless
        self.answer = None
        self.charge = 0
        self.key = key
        self.generation = generation
        self.accept = accept

    def cost(self) -> int:
        """Include the key as text and as bytes."""
        return _EXCHANGE_BYTES + 2 * _CHARACTER_BYTES * len(self.key)

    def start(self) -> None:
        """Ask the lookup core."""
        self.connection.lookups.find(self.key, self, self.generation)

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """Answer with the key's value."""
        connection = self.connection
        answers = connection.answers
        heads = answers.known_heads.get(generation) or answers.heads(generation)
        if self.accept is not None and not self.accept.allows(heads.media_type):
            detail = f"the values of this dataset are {heads.media_type}, which Accept rules out"
            self.refuse(HttpProblem(problems.NOT_ACCEPTABLE, detail))
            return
        connection.counters[_OK] += 1
        if self.connection_field is PERSISTENT and not (self.bodyless or connection.service.draining):
            size = len(value)
            connection.answer(self, (heads.found_by_size.get(size) or heads.add_found_head(size)) + value)
            return
        connection_field = connection.choose_connection_field(self)
        body = b"" if self.bodyless else value
        connection.answer(self, b"%b%d\r\n%b\r\n%b" % (heads.found, len(value), connection_field, body))

    def missing(self, generation: ServedGeneration) -> None:
        """Answer that no record has the key, and why if no record can have it."""
        connection = self.connection
        if not self.key.strip() or len(self.key) > MAX_KEY_BYTES // _MAX_CHARACTER_BYTES:
            detail = missing_detail(generation)
            try:
                generation.encode(self.key)
            except InvalidKey as error:
                detail = f"no record can have this key: {error}"
            fields = connection.answers.lookup_fields(generation)
            self.refuse(HttpProblem(problems.MISSING, detail, fields=fields))
            return
        connection.counters[_REFUSED] += 1
        heads = connection.answers.heads(generation)
        connection_field = connection.choose_connection_field(self)
        body = b"" if self.bodyless else heads.missing_body
        connection.answer(self, b"%b%b\r\n%b" % (heads.missing, connection_field, body))


class ConditionalLookupExchange(LookupExchange):
    """A lookup with a deadline of ``deadline_ms`` or an If-None-Match, ``condition``. A separate class, so that other
    lookups carry neither."""

    __slots__ = ("condition", "deadline_ms")

    def __init__(
        self,
        connection: ClientConnection,
        connection_field: bytes,
        key: str,
        generation: str | None = None,
        accept: AcceptField | None = None,
        *,
        deadline_ms: int | None,
        condition: bytes | None,
        bodyless: bool = False,
    ) -> None:
        super().__init__(connection, connection_field, key, generation, accept, bodyless=bodyless)
        self.deadline_ms = deadline_ms
        self.condition = condition

    def cost(self) -> int:
        """Include the condition."""
        return super().cost() + len(self.condition or b"")

    def start(self) -> None:
        """Ask the lookup core."""
        self.connection.lookups.find(self.key, self, self.generation, deadline_ms=self.deadline_ms)

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """Answer with the key's value, or 304 if the client has it. A missing key is 404 in any case (RFC 9110,
        13.2.1)."""
        connection, condition = self.connection, self.condition
        heads = connection.answers.heads(generation)
        etag, is_accepted = heads.etag, self.accept is None or self.accept.allows(heads.media_type)
        # Tags contain no quotes, so no quoted tag is part of another in a list.
        is_known = condition is not None and (condition.strip() == b"*" or (etag != b"" and etag in condition))
        if not is_accepted or not is_known:
            super().found(value, generation)
            return
        connection.counters[_NOT_MODIFIED] += 1
        connection.answer(self, b"%b%b\r\n" % (heads.not_modified, connection.choose_connection_field(self)))


class BatchExchange(Exchange):
    """A batch of distinct keys, from a body of ``body_bytes``: a ``lookups.BatchWaiter``."""

    __slots__ = ("accept", "body_bytes", "deadline_ms", "gather", "generation", "keys", "partial")
    is_alone = True

    def __init__(
        self,
        connection: ClientConnection,
        connection_field: bytes,
        keys: BatchKeys,
        generation: str | None,
        accept: AcceptField | None,
        *,
        partial: bool,
        body_bytes: int = 0,
        deadline_ms: int | None = None,
    ) -> None:
        super().__init__(connection, connection_field, bodyless=False)
        self.keys = keys
        self.generation = generation
        self.accept = accept
        self.partial = partial
        self.body_bytes = body_bytes
        self.deadline_ms = deadline_ms
        self.gather: ScatterGather | None = None

    def cost(self) -> int:
        """Include the keys as text and as bytes."""
        return _EXCHANGE_BYTES + (_CHARACTER_BYTES + 1) * self.body_bytes + _BATCH_KEY_BYTES * len(self.keys)

    def start(self) -> None:
        """Ask the lookup core."""
        self.connection.charge(self)
        lookups = self.connection.lookups
        self.gather = lookups.find_many(self.keys, self, self.generation, deadline_ms=self.deadline_ms)

    def abandon(self) -> None:
        """Stop, because the client is gone: ask no further shard, and keep nothing."""
        if self.gather:
            self.gather.abandon()
            self.connection.budget.release(self.charge)
            self.charge = 0

    def too_large(self, limit: int) -> None:
        """Answer that the values exceed ``limit`` bytes together."""
        detail = f"the values are more than {limit} bytes together, which is the limit; send fewer keys at once"
        self.refuse(HttpProblem(problems.ANSWER_TOO_LARGE, detail))

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """Answer with ``values`` of ``size`` bytes. With ``problem``, some keys are unavailable."""
        if problem and not self.partial:
            detail = (
                f"{values.unavailable_count} of {len(self.keys)} keys cannot be looked up now; send them again, or "
                f'with "partial": true to get what can be had; the first: {problem.detail}'
            )
            self.unavailable(Problem(problem.reason, detail, problem.shard))
            return
        connection = self.connection
        connection.counters[_OK] += 1
        heads = connection.answers.heads(generation)
        field, keys = connection.choose_connection_field(self), self.keys
        if self.accept is not None and self.accept.prefers_frames(generation.value_format):
            head = heads.frames
            if size <= JOINED_BYTES:
                connection.answer(self, values.encode_frames(head, field, keys))
                return
            pieces = values.encode_frames_in_pieces(keys)
        else:
            head, is_raw = heads.batch, generation.value_format == "raw"
            start = b'%b,"found":{' % orjson.dumps(generation.members)[:-1]
            if size <= JOINED_BYTES:
                connection.answer(self, values.encode(head, field, start, keys, is_raw, self.partial))
                return
            pieces = values.encode_in_pieces(start, keys, is_raw, self.partial)
        connection.answer(self, [b"%b%d\r\n%b\r\n" % (head, sum(map(len, pieces)), field), *pieces])


METHODS: Final = {
    target.LOOKUP_KEY: "GET, HEAD, OPTIONS",
    target.LOOKUP: "GET, HEAD, OPTIONS, POST",
    target.DATASET: "GET, HEAD, OPTIONS",
    target.HEALTHZ: "GET, HEAD, OPTIONS",
    target.READYZ: "GET, HEAD, OPTIONS",
    target.SERVER: "GET, HEAD, OPTIONS, POST",
}
"""The methods of each resource. ``LOOKUP_KEY`` covers every path below it."""

_KEY_AT: Final = len(target.LOOKUP_KEY)
_DEADLINE_MS: Final = re.compile(rb"[1-9][0-9]{0,5}")

_JSON_MEDIA_TYPES: Final = (JSON, "application/x-www-form-urlencoded")
"""``curl -d`` sends the second type for any body."""


def make_exchange(request: Request, connection: ClientConnection) -> Exchange:
    """Return the exchange that answers ``request``. Never raises: an invalid request gets a refusal."""
    requested = request.target
    try:
        if request.is_plain and request.method == b"GET" and requested.startswith(target.LOOKUP_KEY):
            # A shortcut for nearly all requests, with the same result as below.
            return LookupExchange(connection, request.connection_field, target.decode_key_in_path(requested[_KEY_AT:]))
        return _route(request, connection)
    except HttpProblem as problem:
        return make_refusal(connection, request.connection_field, problem, bodyless=request.method == b"HEAD")


def make_refusal(
    connection: ClientConnection, connection_field: bytes, problem: HttpProblem, *, bodyless: bool
) -> Exchange:
    """Return the exchange of a request that is answered with ``problem``."""
    return ImmediateExchange(connection, connection_field, lambda it: it.refuse(problem), bodyless=bodyless)


def _route(request: Request, connection: ClientConnection) -> Exchange:
    if request.refusal is not None:
        raise request.refusal
    requested = request.target
    if not requested.startswith(b"/"):
        requested = target.to_origin_form(requested)
    if requested.startswith(target.LOOKUP_KEY):
        if request.method == b"GET" or request.method == b"HEAD":
            return _make_lookup(request, connection, target.decode_key_in_path(requested[_KEY_AT:]))
        return _make_options(request, connection, target.LOOKUP_KEY)
    path, _, query = requested.partition(b"?")
    if path not in METHODS:
        raise HttpProblem(
            problems.NO_SUCH_RESOURCE,
            "expected /v1/lookup/{key}, /v1/lookup?key=…, /v1/lookup, /v1/dataset, /healthz or /readyz",
        )
    target.refuse_fragment(query)
    field, bodyless = request.connection_field, request.method == b"HEAD"
    if path in target.PROBES and request.method in (b"GET", b"HEAD"):
        respond = partial(_answer_probe, asks_ready=path == target.READYZ)
        return ImmediateExchange(connection, field, respond, bodyless=bodyless)
    if path == target.DATASET and request.method in (b"GET", b"HEAD"):
        target.refuse_key_in_query(query, "/v1/dataset is about all of them; ask /v1/lookup?key=… for one")
        return ImmediateExchange(connection, field, _describe_dataset, bodyless=bodyless)
    if path == target.LOOKUP and request.method in (b"GET", b"HEAD"):
        return _make_lookup(request, connection, target.decode_key_in_query(query))
    if path == target.LOOKUP and request.method == b"POST":
        target.refuse_key_in_query(query, "POST takes its keys in the body; GET looks up one in the query")
        return _make_batch(request, connection)
    return _make_options(request, connection, path)


def _make_options(request: Request, connection: ClientConnection, resource: bytes) -> Exchange:
    """Answer OPTIONS; refuse a method that ``resource`` does not support."""
    methods = METHODS[resource]
    if request.method != b"OPTIONS":
        raise HttpProblem(
            problems.METHOD_NOT_ALLOWED,
            f"expected one of {methods}, found {request.method.decode()}",
            fields={"Allow": methods},
        )

    def respond(exchange: Exchange) -> None:
        connection.counters[_OK] += 1
        field = connection.choose_connection_field(exchange)
        connection.answer(exchange, connection.answers.encode_head(204, {"Allow": methods}, None, field))

    return ImmediateExchange(connection, request.connection_field, respond, bodyless=True)


def _make_lookup(request: Request, connection: ClientConnection, key: str) -> LookupExchange:
    fields = request.fields
    generation, accept = _requested_generation(fields), parse_accept(fields.get(ACCEPT))
    field, bodyless = request.connection_field, request.method == b"HEAD"
    deadline_ms, condition = _shorter_deadline(request, connection), fields.get(IF_NONE_MATCH)
    if deadline_ms is None and condition is None:
        return LookupExchange(connection, field, key, generation, accept, bodyless=bodyless)
    return ConditionalLookupExchange(
        *(connection, field, key, generation, accept), deadline_ms=deadline_ms, condition=condition, bodyless=bodyless
    )


def _requested_generation(fields: dict[str, bytes]) -> str | None:
    field = fields.get(GENERATION)
    return None if field is None else field.strip().decode("latin-1")


def _shorter_deadline(request: Request, connection: ClientConnection) -> int | None:
    """Return the client's deadline in milliseconds if it is shorter than the router's. Invalid values are ignored,
    because the router's own deadline holds anyway."""
    field = request.fields.get(DEADLINE)
    if field is None or not _DEADLINE_MS.fullmatch(field.strip()):
        return None
    milliseconds = int(field)
    return milliseconds if milliseconds < connection.limits.deadline_milliseconds else None


def _make_batch(request: Request, connection: ClientConnection) -> BatchExchange:
    _check_media_type(request.fields)
    accept = parse_accept(request.fields.get(ACCEPT))
    if accept is not None and not accept.allows_batch():
        raise HttpProblem(
            problems.NOT_ACCEPTABLE, f"a batch is answered as {JSON} or {FRAMES}, and Accept rules both out"
        )
    keys, partial = parse_batch(request.body, connection.limits.max_keys, connection.service.keys_type)
    generation = _requested_generation(request.fields)
    return BatchExchange(
        connection,
        request.connection_field,
        keys,
        generation,
        accept,
        partial=partial,
        body_bytes=len(request.body),
        deadline_ms=_shorter_deadline(request, connection),
    )


def _check_media_type(fields: dict[str, bytes]) -> None:
    """Accept JSON, a body without Content-Type and what ``curl -d`` sends; refuse any other type."""
    if fields.get(CONTENT_TYPE) == b"application/json" and CONTENT_ENCODING not in fields:
        return  # a shortcut for nearly all requests
    media_type, *parameters = (
        part.strip() for part in fields.get(CONTENT_TYPE, b"application/json").decode("latin-1").lower().split(";")
    )
    charsets = [part.partition("=")[2].strip('" ') for part in parameters if part.startswith("charset")]
    if media_type not in _JSON_MEDIA_TYPES or any(charset not in ("utf-8", "utf8", "us-ascii") for charset in charsets):
        raise HttpProblem(
            problems.UNSUPPORTED_MEDIA_TYPE,
            f"a batch is sent with Content-Type: {JSON}, in UTF-8",
            fields={"Accept-Post": JSON},
        )
    if fields.get(CONTENT_ENCODING, b"identity").strip().lower() not in (b"identity", b""):
        raise HttpProblem(
            problems.UNSUPPORTED_MEDIA_TYPE,
            "a batch is sent without Content-Encoding",
            fields={"Accept-Encoding": "identity"},
        )


_GET: Final = b"GET "
_BEGINNING: Final = _GET + target.LOOKUP_KEY
_BEGINNING_END: Final = _BEGINNING[:-1] + bytes((_BEGINNING[-1] + 1,))
"""The smallest bytes greater than all with this prefix: two comparisons cost half of ``startswith``."""
_REPEATED_KEY_AT: Final = len(_BEGINNING)
_END: Final = b"\r\n\r\n"
_FIELDS: Final = frozenset((HOST, ACCEPT, AUTHORIZATION, CONNECTION, GENERATION, DEADLINE, IF_NONE_MATCH))
"""Fields that announce no body, upgrade or expectation. An Authorization stays accepted until
``HttpConnection.forget_access``."""
_PLAIN: Final = bytes(byte if 0x21 <= byte < 0x7F and byte not in b"%?#" else 0xFF ^ byte for byte in range(256))
"""Translates characters that stand for themselves in a path to themselves, and all others to something else."""

_POST: Final = b"POST "
_BATCH_FIELDS: Final = _FIELDS | {CONTENT_TYPE, CONTENT_LENGTH}
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]*)[ \t]*\r\n", re.IGNORECASE)
_MAX_DIGITS: Final = len(str(SLICE_BYTES))
"""Digits of a length: at most a slice is matched."""

EAGER_ATTEMPTS: Final = 16
ATTEMPT_EVERY: Final = 256
"""After ``EAGER_ATTEMPTS`` requests in a row without a repeat, only one in this many is remembered."""


class RepeatedLookup:
    """Lookups that share the bytes after the key, and their meaning."""

    __slots__ = ("_accept", "_condition", "_connection_field", "_deadline_ms", "_generation", "_key", "_tail")

    def __init__(self, tail: bytes, lookup: LookupExchange) -> None:
        self._tail = tail
        self._key = slice(_REPEATED_KEY_AT, -len(tail))
        self._connection_field = lookup.connection_field
        self._generation = lookup.generation
        self._accept = lookup.accept
        self._deadline_ms: int | None = None
        self._condition: bytes | None = None
        if isinstance(lookup, ConditionalLookupExchange):
            self._deadline_ms, self._condition = lookup.deadline_ms, lookup.condition

    def match(self, data: bytes, connection: ClientConnection) -> LookupExchange | None:
        """Return the lookup that ``data`` requests, or None."""
        if data < _BEGINNING or data >= _BEGINNING_END or not data.endswith(self._tail):
            return None
        key = data[self._key]
        if not 0 < len(key) <= MAX_KEY_BYTES or key.translate(_PLAIN) != key:
            return None
        if self._deadline_ms is not None or self._condition is not None:
            return ConditionalLookupExchange(
                connection,
                self._connection_field,
                key.decode(),
                self._generation,
                self._accept,
                deadline_ms=self._deadline_ms,
                condition=self._condition,
            )
        return LookupExchange(connection, self._connection_field, key.decode(), self._generation, self._accept)


class RepeatedBatch:
    """Batches that share the head except for the length's digits. Keeps nothing of the body."""

    __slots__ = (
        "_accept",
        "_beginning",
        "_connection_field",
        "_deadline_ms",
        "_digits_at",
        "_digits_end",
        "_generation",
        "_tail",
    )

    def __init__(self, beginning: bytes, tail: bytes, batch: BatchExchange) -> None:
        self._beginning = beginning
        self._tail = tail
        self._digits_at = len(beginning)
        self._digits_end = self._digits_at + _MAX_DIGITS + len(tail)
        """The latest end of the bytes after the digits."""
        self._connection_field = batch.connection_field
        self._generation = batch.generation
        self._accept = batch.accept
        self._deadline_ms = batch.deadline_ms

    def match(self, data: bytes, connection: ClientConnection) -> BatchExchange | None:
        """Return the batch that ``data`` requests, or None."""
        if not data.startswith(self._beginning):
            return None
        tail_at = data.find(self._tail, self._digits_at, self._digits_end)
        if tail_at < 0:
            return None
        body = data[tail_at + len(self._tail) :]
        limits = connection.limits
        # The parser handles any other way to write the length.
        if data[self._digits_at : tail_at] != b"%d" % len(body) or len(body) > limits.max_body_bytes:
            return None
        try:
            keys, partial = parse_batch(body, limits.max_keys, connection.service.keys_type)
        except HttpProblem:
            return None
        return BatchExchange(
            connection,
            self._connection_field,
            keys,
            self._generation,
            self._accept,
            partial=partial,
            body_bytes=len(body),
            deadline_ms=self._deadline_ms,
        )


RepeatedRequest = RepeatedLookup | RepeatedBatch
"""``match`` returns the exchange of bytes that begin a request, or None if they are no valid repeat."""


def recognise_repeats(data: bytes, request: Request, exchange: Exchange, unmatched: int) -> RepeatedRequest | None:
    """Return a recogniser of ``request``, the last of ``unmatched`` without repeat, if ``data`` holds nothing else and
    it is a lookup or batch that keeps the connection open. That costs a tenth of a batch."""
    is_worth_it = unmatched <= EAGER_ATTEMPTS or unmatched % ATTEMPT_EVERY == 0
    if request.connection_field is CLOSE or not is_worth_it:
        return None
    if isinstance(exchange, LookupExchange):
        if len(data) > MAX_REPEATED_HEAD_BYTES or request.method != b"GET":
            return None
        head = _GET + request.target
        tail = data[len(head) :]
        whole = data.startswith(_BEGINNING) and data.startswith(head) and tail.find(_END) == len(tail) - len(_END)
        return RepeatedLookup(tail, exchange) if whole and _FIELDS.issuperset(request.fields) else None
    if isinstance(exchange, BatchExchange):
        head_end = data.find(_END, 0, MAX_REPEATED_HEAD_BYTES)
        if head_end < 0 or not data.startswith(_POST) or not _BATCH_FIELDS.issuperset(request.fields):
            return None
        body_at = head_end + len(_END)
        length = _LENGTH.search(data, 0, body_at)
        if length is not None and body_at + int(length[1]) == len(data):
            return RepeatedBatch(data[: length.start(1)], data[length.end(1) : body_at], exchange)
    return None
