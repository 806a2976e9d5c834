"""Recognises a repeated request, for another key or for other keys, by its bytes and without the parser.

A client sends the same head with each request. Of a lookup, only the key in the target changes; of a batch, the body
and the digits of its length. A parser reads from the left and does not look back: what follows the target was accepted
once, so it is accepted after any other target that is made of the same kind of characters, and means the same. The same
holds of what follows the digits, with a body of that length behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from lookupdb.keys import MAX_KEY_BYTES, InvalidKey
from lookupdb.router.access import Gatekeeper
from lookupdb.router.budget import RouterLimits
from lookupdb.router.clients.life import JOINED_BYTES, ClientService
from lookupdb.router.counters import INDEX
from lookupdb.router.http import problems
from lookupdb.router.http.batches import choose_batches
from lookupdb.router.http.problems import CONTINUE, JSON, PERSISTENT, Answers, HttpProblem, missing_detail
from lookupdb.router.lookup_core import LookupCore
from lookupdb.router.lookups import NO_TABLE, OVERLOADED, Problem, ServedGeneration

if TYPE_CHECKING:
    from lookupdb.router.batch_keys import BatchKeys, BatchValues
    from lookupdb.router.budget import RouterBudget, RouterLimits
    from lookupdb.router.http.problems import Answers
    from lookupdb.router.http.request import AcceptField
    from lookupdb.router.lookup_core import LookupCore
    from lookupdb.router.lookups import ScatterGather
import re

from lookupdb.batch_frames import MEDIA_TYPE as FRAMES
from lookupdb.router.http import request as target
from lookupdb.router.http.problems import CLOSE, MAX_REPEATED_HEAD_BYTES, SLICE_BYTES
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
)

# What all HTTP connections of one worker share.


class HttpService(ClientService):
    """With what answers are made of."""

    __slots__ = ("answers", "batches", "is_ready")

    def __init__(
        self,
        lookups: LookupCore,
        limits: RouterLimits,
        counts: memoryview,
        gatekeeper: Gatekeeper | None = None,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(lookups, limits, counts, gatekeeper)
        self.is_ready = is_ready
        """Whether the worker has been reported ready, as ``/readyz`` answers while it does not drain."""
        self.answers = Answers(limits.cache_control)
        self.batches = choose_batches()

    def tick(self, now: float) -> None:
        """It is ``now`` by the event loop: deadlines and dates follow."""
        super().tick(now)
        self.answers.tick()


# One request and its answer: the waiters that turn what the lookup core found into HTTP.
#
# A connection starts its exchanges in the order of the requests. An exchange answers at once or later, through
# ``ClientConnection.answer``, which keeps the answers in that order.


_MAX_CHARACTER_BYTES: Final = 12
"""Bytes: a character has at most 4 in UTF-8, and normalisation makes it three at most."""

_OK: Final = INDEX["requests_2xx"]
_NOT_MODIFIED: Final = INDEX["requests_3xx"]
_REFUSED: Final = INDEX["requests_4xx"]
_FAILED: Final = INDEX["requests_5xx"]
_OVERLOADED: Final = INDEX["requests_overloaded"]

_EXCHANGE_BYTES: Final = 1024
"""A request that waits or is looked up takes so much, without its key."""
_CHARACTER_BYTES: Final = 4
"""Python needs at most so much for a character of text."""
_BATCH_KEY_BYTES: Final = 400
"""Each key of a batch takes so much while it is looked up, without its text."""

Answer = bytes | list[bytes]
"""One piece, or several that follow each other."""


class ClientConnection(Protocol):
    """A client's connection, as its exchanges see it."""

    service: HttpService
    lookups: LookupCore
    budget: RouterBudget
    answers: Answers
    counts: memoryview
    limits: RouterLimits

    def answer(self, exchange: Exchange, answer: Answer) -> None:
        """Send ``answer``, the one to ``exchange``, when it is its turn."""

    def choose_connection_field(self, exchange: Exchange) -> bytes:
        """The ``Connection`` field of the answer to ``exchange``."""

    def charge(self, exchange: Exchange) -> None:
        """Count what ``exchange`` holds until it is answered."""


class Exchange:
    """What all exchanges have: their connection, the ``Connection`` field of the answer, and whether it has a body.

    ``answer`` is kept here while the answer to an earlier request of the connection is still due. ``charge`` is what
    the exchange has taken of the worker's budget.
    """

    __slots__ = ("answer", "bodyless", "charge", "connection", "connection_field")
    is_alone = False
    """No other request of the connection is begun beside it."""

    def __init__(self, connection: ClientConnection, connection_field: bytes, *, bodyless: bool) -> None:
        self.connection = connection
        self.connection_field = connection_field
        self.bodyless = bodyless
        self.answer: Answer | None = None
        self.charge = 0

    def start(self) -> None:
        """Begin. ``ClientConnection.answer`` is called sooner or later, exactly once."""
        raise NotImplementedError

    def cost(self) -> int:
        """Bytes that the exchange holds, until it is answered."""
        return _EXCHANGE_BYTES

    def abandon(self) -> None:
        """Stop: the client has gone."""

    def refuse(self, problem: HttpProblem) -> None:
        """Answer with ``problem``."""
        connection = self.connection
        connection.counts[_FAILED if problem.kind.status >= 500 else _REFUSED] += 1
        head, body = connection.answers.encode_problem(problem, connection.choose_connection_field(self))
        connection.answer(self, head if self.bodyless else head + body)

    def unavailable(self, problem: Problem) -> None:
        """Answer that nothing is known about the key now, and why."""
        if problem is OVERLOADED:
            self.connection.counts[_OVERLOADED] += 1
        members: dict[str, object] = {"reason": problem.reason}
        if problem.shard is not None:
            members["shard"] = problem.shard
        self.refuse(HttpProblem(problems.UNAVAILABLE, problem.detail, members=members))

    def unknown_generation(self, name: str, active: ServedGeneration) -> None:
        """The routing table in effect has no generation of this name, or is mixed and has none of any name."""
        detail = f"the generation {name!r} is neither the active one nor a candidate; leave Lookupdb-Generation out"
        detail += " to ask the active one"
        if len(active.names) > 1:
            detail = (
                "the dataset is being rolled out shard by shard, and no generation is whole: its shards answer from "
                f"{active.name}; leave Lookupdb-Generation out to ask them"
            )
        self.refuse(HttpProblem(problems.UNKNOWN_GENERATION, detail, members={"active": list(active.names)}))


class ContinueExchange(Exchange):
    """``100 Continue``: sent in its turn, before the answer to the same request."""

    __slots__ = ()

    def start(self) -> None:
        """Answer at once."""
        self.connection.answer(self, CONTINUE)


class RefusalExchange(Exchange):
    """A request that is answered with a problem, without any lookup."""

    __slots__ = ("problem",)

    def __init__(
        self, connection: ClientConnection, connection_field: bytes, problem: HttpProblem, *, bodyless: bool
    ) -> None:
        super().__init__(connection, connection_field, bodyless=bodyless)
        self.problem = problem

    def start(self) -> None:
        """Answer at once."""
        self.refuse(self.problem)


class OptionsExchange(Exchange):
    """OPTIONS: which methods a resource knows."""

    __slots__ = ("methods",)

    def __init__(self, connection: ClientConnection, connection_field: bytes, methods: str) -> None:
        super().__init__(connection, connection_field, bodyless=True)
        self.methods = methods

    def start(self) -> None:
        """Answer at once."""
        connection = self.connection
        connection.counts[_OK] += 1
        connection.answer(
            self, connection.answers.encode_options(self.methods, connection.choose_connection_field(self))
        )


class ProbeExchange(Exchange):
    """``/healthz``, or ``/readyz`` with ``asks_ready``, as load balancers ask on the public port. Not counted."""

    __slots__ = ("asks_ready",)

    def __init__(
        self, connection: ClientConnection, connection_field: bytes, *, asks_ready: bool, bodyless: bool
    ) -> None:
        super().__init__(connection, connection_field, bodyless=bodyless)
        self.asks_ready = asks_ready

    def start(self) -> None:
        """Answer at once."""
        connection = self.connection
        status, text = 200, b"ready\n" if self.asks_ready else b"ok\n"
        if self.asks_ready and connection.service.draining:
            status, text = 503, b"draining\n"
        elif self.asks_ready and not connection.service.is_ready():
            status, text = 503, b"not ready\n"
        head = connection.answers.encode_probe_head(status, len(text), connection.choose_connection_field(self))
        connection.answer(self, head if self.bodyless else head + text)


class DatasetExchange(Exchange):
    """GET /v1/dataset."""

    __slots__ = ()

    def start(self) -> None:
        """Answer at once, out of the routing table in effect."""
        connection = self.connection
        info = connection.lookups.dataset()
        if info is None:
            self.unavailable(NO_TABLE)
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
        body = orjson.dumps(document)
        connection.counts[_OK] += 1
        fields = {"Lookupdb-Generation": ", ".join(info.shard_generations or (info.generation,))}
        head, body = connection.answers.encode_document(JSON, body, connection.choose_connection_field(self), fields)
        connection.answer(self, head if self.bodyless else head + body)


class LookupExchange(Exchange):
    """One key. A ``lookups.Waiter``."""

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
        # Spelled out rather than super().__init__(): this runs once a lookup.
        self.connection = connection
        self.connection_field = connection_field
        self.bodyless = bodyless
        self.answer = None
        self.charge = 0
        self.key = key
        self.generation = generation
        self.accept = accept

    def cost(self) -> int:
        """With the key, as text and as bytes."""
        return _EXCHANGE_BYTES + 2 * _CHARACTER_BYTES * len(self.key)

    def start(self) -> None:
        """Ask the lookup core."""
        self.connection.lookups.find(self.key, self, self.generation)

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """The key's value."""
        connection = self.connection
        answers = connection.answers
        heads = answers.known_heads.get(generation) or answers.heads(generation)
        if self.accept is not None and not self.accept.allows(heads.media_type):
            self._refuse_media_type(heads.media_type)
            return
        connection.counts[_OK] += 1
        if self.connection_field is PERSISTENT and not (self.bodyless or connection.service.draining):
            size = len(value)
            connection.answer(self, (heads.found_by_size.get(size) or heads.add_found_head(size)) + value)
            return
        connection_field = connection.choose_connection_field(self)
        body = b"" if self.bodyless else value
        connection.answer(self, b"%b%d\r\n%b\r\n%b" % (heads.found, len(value), connection_field, body))

    def missing(self, generation: ServedGeneration) -> None:
        """No record of the generation has the key."""
        connection = self.connection
        heads = connection.answers.heads(generation)
        if not self.key.strip() or len(self.key) > MAX_KEY_BYTES // _MAX_CHARACTER_BYTES:
            self._explain_missing(generation)
            return
        connection.counts[_REFUSED] += 1
        connection_field = connection.choose_connection_field(self)
        body = b"" if self.bodyless else heads.missing_body
        connection.answer(self, b"%b%b\r\n%b" % (heads.missing, connection_field, body))

    def _explain_missing(self, generation: ServedGeneration) -> None:
        """Answer that the key is missing, and why if no record can have such a key."""
        detail = missing_detail(generation)
        try:
            generation.encode(self.key)
        except InvalidKey as error:
            detail = f"no record can have this key: {error}"
        fields = self.connection.answers.lookup_fields(generation)
        self.refuse(HttpProblem(problems.MISSING, detail, fields=fields))

    def _refuse_media_type(self, media_type: str) -> None:
        self.refuse(
            HttpProblem(problems.NOT_ACCEPTABLE, f"the values of this dataset are {media_type}, which Accept rules out")
        )


class ConditionalLookupExchange(LookupExchange):
    """One key, whose client waits for ``deadline_ms`` milliseconds, or has an answer already unless ``condition``, its
    If-None-Match, is none. A class of its own: others carry neither."""

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
        """With the condition."""
        return super().cost() + len(self.condition or b"")

    def start(self) -> None:
        """Ask the lookup core."""
        self.connection.lookups.find(self.key, self, self.generation, deadline_ms=self.deadline_ms)

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """The key's value, unless the client has it. A key must be found for that: a missing one is 404, whatever the
        client has of other keys of the generation (RFC 9110, 13.2.1)."""
        connection = self.connection
        heads = connection.answers.heads(generation)
        is_accepted = self.accept is None or self.accept.allows(heads.media_type)
        if self.condition is None or not is_accepted or not _names_tag(self.condition, heads.etag):
            super().found(value, generation)
            return
        connection.counts[_NOT_MODIFIED] += 1
        connection.answer(self, b"%b%b\r\n" % (heads.not_modified, connection.choose_connection_field(self)))


def _names_tag(condition: bytes, etag: bytes) -> bool:
    """Return whether ``condition``, an If-None-Match, names ``etag``: strong or weak, alone or among others. A quoted
    tag is part of no other, because a tag holds no quotes."""
    return condition.strip() == b"*" or (etag != b"" and etag in condition)


class BatchExchange(Exchange):
    """Many distinct keys, from a body of ``body_bytes``. A ``lookups.BatchWaiter``."""

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
        """With the keys, as text and as bytes."""
        return _EXCHANGE_BYTES + (_CHARACTER_BYTES + 1) * self.body_bytes + _BATCH_KEY_BYTES * len(self.keys)

    def start(self) -> None:
        """Ask the lookup core."""
        self.connection.charge(self)
        lookups = self.connection.lookups
        self.gather = lookups.find_many(self.keys, self, self.generation, deadline_ms=self.deadline_ms)

    def abandon(self) -> None:
        """Stop: the client has gone. No further shard is asked, and nothing is kept."""
        if self.gather:
            self.gather.abandon()
            self.connection.budget.release(self.charge)
            self.charge = 0

    def too_large(self, limit: int) -> None:
        """The values are more than ``limit`` bytes together."""
        detail = f"the values are more than {limit} bytes together, which is the limit; send fewer keys at once"
        self.refuse(HttpProblem(problems.ANSWER_TOO_LARGE, detail))

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """Answer with ``values`` of ``size`` bytes. With ``problem`` some are unavailable."""
        if problem and not self.partial:
            detail = (
                f"{values.unavailable_count} of {len(self.keys)} keys cannot be looked up now; send them again, or "
                f'with "partial": true to get what can be had; the first: {problem.detail}'
            )
            self.unavailable(Problem(problem.reason, detail, problem.shard))
            return
        connection = self.connection
        connection.counts[_OK] += 1
        batches = connection.service.batches
        heads = connection.answers.heads(generation)
        framed = self.accept is not None and self.accept.prefers_frames(generation.value_format)
        head = heads.frames if framed else heads.batch
        connection_field = connection.choose_connection_field(self)
        keys, partial = self.keys, self.partial
        if size <= JOINED_BYTES:
            connection.answer(
                self,
                batches.encode(head, connection_field, generation, keys, values, partial=partial, framed=framed),
            )
        else:
            pieces = batches.encode_in_pieces(generation, keys, values, partial=partial, framed=framed)
            start = b"%b%d\r\n%b\r\n" % (head, sum(map(len, pieces)), connection_field)
            connection.answer(self, [start, *pieces])


# From a whole request to its exchange: which resource, which method, which keys. Decides; touches no socket.


METHODS: Final = {
    target.LOOKUP_KEY: "GET, HEAD, OPTIONS",
    target.LOOKUP: "GET, HEAD, OPTIONS, POST",
    target.DATASET: "GET, HEAD, OPTIONS",
    target.HEALTHZ: "GET, HEAD, OPTIONS",
    target.READYZ: "GET, HEAD, OPTIONS",
    target.SERVER: "GET, HEAD, OPTIONS, POST",
}
"""Resource → the methods it knows. ``LOOKUP_KEY`` stands for every path below it."""

_KEY_AT: Final = len(target.LOOKUP_KEY)
_DEADLINE_MS: Final = re.compile(rb"[1-9][0-9]{0,5}")

_JSON_MEDIA_TYPES: Final = (JSON, "application/x-www-form-urlencoded")
"""The second is what ``curl -d`` says of whatever it sends."""


def make_exchange(request: Request, connection: ClientConnection) -> Exchange:
    """The exchange that answers ``request``. Never raises: a bad request's exchange is a refusal."""
    requested = request.target
    try:
        if request.is_plain and request.method == b"GET" and requested.startswith(target.LOOKUP_KEY):
            # Nearly all requests end here; everything below would come to the same.
            return LookupExchange(connection, request.connection_field, target.decode_key_in_path(requested[_KEY_AT:]))
        return _route(request, connection)
    except HttpProblem as problem:
        return RefusalExchange(connection, request.connection_field, problem, bodyless=request.method == b"HEAD")


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
    if path in target.PROBES and request.method in (b"GET", b"HEAD"):
        asks_ready, bodyless = path == target.READYZ, request.method == b"HEAD"
        return ProbeExchange(connection, request.connection_field, asks_ready=asks_ready, bodyless=bodyless)
    if path == target.DATASET and request.method in (b"GET", b"HEAD"):
        target.refuse_key_in_query(query, "/v1/dataset is about all of them; ask /v1/lookup?key=… for one")
        return DatasetExchange(connection, request.connection_field, bodyless=request.method == b"HEAD")
    if path == target.LOOKUP and request.method in (b"GET", b"HEAD"):
        return _make_lookup(request, connection, target.decode_key_in_query(query))
    if path == target.LOOKUP and request.method == b"POST":
        target.refuse_key_in_query(query, "POST takes its keys in the body; GET looks up one in the query")
        return _make_batch(request, connection)
    return _make_options(request, connection, path)


def _make_options(request: Request, connection: ClientConnection, resource: bytes) -> Exchange:
    """OPTIONS, or a method that ``resource`` does not know."""
    if request.method == b"OPTIONS":
        return OptionsExchange(connection, request.connection_field, METHODS[resource])
    allowed = METHODS[resource]
    raise HttpProblem(
        problems.METHOD_NOT_ALLOWED,
        f"expected one of {allowed}, found {request.method.decode()}",
        fields={"Allow": allowed},
    )


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
    """Milliseconds for which the client waits, if the router would take longer. What is no such number is ignored: the
    router's own deadline holds anyway, and no lookup is refused for a hint."""
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
    keys, partial = connection.service.batches.parse(request.body, connection.limits.max_keys)
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
    """A body without Content-Type is taken for JSON, and so is what ``curl -d`` sends; any other type is refused."""
    if fields.get(CONTENT_TYPE) == b"application/json" and CONTENT_ENCODING not in fields:
        return  # as below, for nearly all
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
"""The smallest bytes greater than all that begin so: to compare with both costs half of ``startswith``."""
_REPEATED_KEY_AT: Final = len(_BEGINNING)
_END: Final = b"\r\n\r\n"
_FIELDS: Final = frozenset((HOST, ACCEPT, AUTHORIZATION, CONNECTION, GENERATION, DEADLINE, IF_NONE_MATCH))
"""None of them announces a body, an upgrade or an expectation. What was accepted of Authorization is accepted until the
connection is told to forget it (``HttpConnection.forget_access``)."""
_PLAIN: Final = bytes(byte if 0x21 <= byte < 0x7F and byte not in b"%?#" else 0xFF ^ byte for byte in range(256))
"""Translates to itself what stands for itself in a path, and everything else to something else."""

_POST: Final = b"POST "
_BATCH_FIELDS: Final = _FIELDS | {CONTENT_TYPE, CONTENT_LENGTH}
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]*)[ \t]*\r\n", re.IGNORECASE)
_MAX_DIGITS: Final = len(str(SLICE_BYTES))
"""Of a length: no more than a slice comes here."""

EAGER_ATTEMPTS: Final = 16
ATTEMPT_EVERY: Final = 256
"""Of so many requests in a row that were no repeats one is remembered, once there were ``EAGER_ATTEMPTS``."""


class RepeatedRequest(Protocol):
    """The part that the requests of one connection share, and what it means."""

    def match(self, data: bytes, connection: ClientConnection) -> Exchange | None:
        """What ``data``, which begins a request, asks for; None if it is another request, or is to be refused."""


class RepeatedLookup:
    """Lookups share the bytes behind the key. A ``RepeatedRequest``."""

    __slots__ = ("_accept", "_condition", "_connection_field", "_deadline_ms", "_generation", "_key", "_tail")

    def __init__(self, tail: bytes, lookup: LookupExchange) -> None:
        self._tail = tail
        self._key = slice(_REPEATED_KEY_AT, -len(tail))
        """Where the key is in a repeat."""
        self._connection_field = lookup.connection_field
        self._generation = lookup.generation
        self._accept = lookup.accept
        self._deadline_ms: int | None = None
        self._condition: bytes | None = None
        if isinstance(lookup, ConditionalLookupExchange):
            self._deadline_ms, self._condition = lookup.deadline_ms, lookup.condition

    def match(self, data: bytes, connection: ClientConnection) -> LookupExchange | None:
        """The lookup that ``data`` asks for."""
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
    """Batches share the bytes before the digits of the length, and those from there to the body. A ``RepeatedRequest``.

    Nothing of the body is kept.
    """

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
        """Where the bytes behind them end at the latest."""
        self._connection_field = batch.connection_field
        self._generation = batch.generation
        self._accept = batch.accept
        self._deadline_ms = batch.deadline_ms

    def match(self, data: bytes, connection: ClientConnection) -> BatchExchange | None:
        """The batch that ``data`` asks for."""
        if not data.startswith(self._beginning):
            return None
        tail_at = data.find(self._tail, self._digits_at, self._digits_end)
        if tail_at < 0:
            return None
        body = data[tail_at + len(self._tail) :]
        limits = connection.limits
        # A length that is written in any other way is for the parser.
        if data[self._digits_at : tail_at] != b"%d" % len(body) or len(body) > limits.max_body_bytes:
            return None
        try:
            keys, partial = connection.service.batches.parse(body, limits.max_keys)
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


def is_worth_remembering(unmatched: int) -> bool:
    """Whether to be ready for repeats of the last of ``unmatched`` requests in a row that were none: that costs a tenth
    of what a batch does."""
    return unmatched <= EAGER_ATTEMPTS or unmatched % ATTEMPT_EVERY == 0


def recognise_repeats(data: bytes, request: Request, exchange: Exchange) -> RepeatedRequest | None:
    """A recogniser of ``request``, if ``data`` holds nothing else, and it is a lookup or a batch that keeps the
    connection open."""
    if request.connection_field is CLOSE:
        return None
    if isinstance(exchange, LookupExchange):
        return _recognise_lookup(data, request, exchange)
    return _recognise_batch(data, request, exchange) if isinstance(exchange, BatchExchange) else None


def _recognise_lookup(data: bytes, request: Request, lookup: LookupExchange) -> RepeatedLookup | None:
    if len(data) > MAX_REPEATED_HEAD_BYTES or request.method != b"GET":
        return None
    head = _GET + request.target
    tail = data[len(head) :]
    whole = data.startswith(_BEGINNING) and data.startswith(head) and tail.find(_END) == len(tail) - len(_END)
    return RepeatedLookup(tail, lookup) if whole and _FIELDS.issuperset(request.fields) else None


def _recognise_batch(data: bytes, request: Request, batch: BatchExchange) -> RepeatedBatch | None:
    head_end = data.find(_END, 0, MAX_REPEATED_HEAD_BYTES)
    if head_end < 0 or not data.startswith(_POST) or not _BATCH_FIELDS.issuperset(request.fields):
        return None
    body_at = head_end + len(_END)
    length = _LENGTH.search(data, 0, body_at)
    if length is None or body_at + int(length[1]) != len(data):
        return None
    return RepeatedBatch(data[: length.start(1)], data[length.end(1) : body_at], batch)
