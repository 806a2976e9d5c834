"""From a parsed request to its answer.

``make_exchange`` picks the exchange of a request: it routes, and refuses what is invalid. An exchange asks the lookup
core, turns the result into HTTP, and answers through ``ClientConnection.answer``, which keeps answers in the order of
the requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

import orjson

from lookupdb.keys import MAX_KEY_BYTES, InvalidKey
from lookupdb.records import FRAMES
from lookupdb.router.access import Gatekeeper
from lookupdb.router.batch_keys import BatchKeys, BatchValues, choose_keys
from lookupdb.router.budget import RouterBudget, RouterLimits
from lookupdb.router.clients import JOINED_BYTES, Answer, ClientService
from lookupdb.router.counters import CODES, FAILED, INDEX, REFUSED, find_histogram
from lookupdb.router.http import problems
from lookupdb.router.http import request as target
from lookupdb.router.http.problems import JSON, MAX_HEADS, PERSISTENT, Answers, HttpProblem, missing_detail
from lookupdb.router.http.request import CONTENT_TYPE, FETCH_SITE, HOST, ORIGIN, LookupFields, Request
from lookupdb.router.lookup_core import LookupCore
from lookupdb.router.lookups import NO_TABLE, OVERLOADED, Problem, ScatterGather, ServedGeneration


class HttpService(ClientService):
    """The shared state of all HTTP connections of a worker."""

    def __init__(
        self,
        lookups: LookupCore,
        limits: RouterLimits,
        gatekeeper: Gatekeeper | None = None,
        is_ready: Callable[[], bool] = lambda: True,
        datasets: Mapping[str, LookupCore] | None = None,
        begin_trace: Callable[[Exchange, Request], None] | None = None,
        *,
        samples_roots: bool = False,
    ) -> None:
        super().__init__(lookups, limits, gatekeeper)
        self.begin_trace = begin_trace
        """Begins the span of a request, if it is sampled. None without traces."""
        self.samples_roots = samples_roots
        """True if any request may be sampled. Then no request skips the parser."""
        self.datasets = datasets or {}
        """The datasets that requests may name."""
        self.has_several = len(self.datasets) > 1
        """True if requests must name their dataset."""
        self.is_ready = is_ready
        """True if the worker has reported ready, for ``/readyz``."""
        self.answers = Answers(limits.cache_control)
        self.keys_type = choose_keys()
        self.console: ConsoleForwarder | None = None
        """Answers requests outside of the API."""

    def tick(self, now: float) -> None:
        """Update deadlines and dates for ``now``, event loop time."""
        super().tick(now)
        self.answers.tick()


_MAX_CHARACTER_BYTES: Final = 12
"""At most 4 bytes of UTF-8, which normalisation can triple."""

_CODES: Final = {code: INDEX[f"requests_{code}"] for code in CODES}
_OK: Final = _CODES[200]
_LOOKUP: Final = find_histogram("http", "lookup")
_BATCH: Final = find_histogram("http", "batch")
_OTHER: Final = find_histogram("http", "other")
NOT_COUNTED: Final = 0
"""The histogram of requests that are not counted."""
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
    limits: RouterLimits
    arrived: int

    def answer(self, exchange: Exchange, answer: Answer, counter: int | None = None) -> None:
        """Send ``answer`` to ``exchange`` when its turn comes. ``counter`` counts its status."""

    def choose_connection_field(self, exchange: Exchange) -> bytes:
        """Return the ``Connection`` field of the answer to ``exchange``."""

    def charge(self, exchange: Exchange) -> None:
        """Count what ``exchange`` holds until it is answered."""


class Exchange:
    """One request with its answer.

    ``answer`` is kept here while an earlier request of the connection is unanswered. ``charge`` is what the exchange
    has taken from the worker's budget. ``histogram`` counts the request when it is answered, in the counters of
    ``lookups``, the core of the request's dataset.
    """

    __slots__ = (
        *("answer", "arrived", "bodyless", "charge", "connection", "connection_field", "counter", "histogram"),
        "lookups",
    )
    counter: int | None
    """The counter for the status of ``answer``, kept with it."""
    is_alone = False
    """True if no other request of the connection may be pending beside it."""

    def __init__(
        self, connection: ClientConnection, connection_field: bytes, *, bodyless: bool, histogram: int
    ) -> None:
        self.connection = connection
        self.lookups = connection.lookups
        self.arrived = connection.arrived
        self.histogram = histogram
        self.connection_field = connection_field
        self.bodyless = bodyless
        self.answer: Answer | None = None
        self.charge = 0

    def start(self) -> None:
        """Begin. ``ClientConnection.answer`` must then be called exactly once, now or later."""
        raise NotImplementedError

    def cost(self) -> int:
        """Return the number of bytes that the exchange holds until it is answered."""
        return _EXCHANGE_BYTES

    def abandon(self) -> None:
        """Stop, because the client is gone."""

    def refuse(self, problem: HttpProblem, *, is_of_client: bool = False) -> None:
        """Answer with ``problem``. It is the client's fault if its status says so, or if ``is_of_client``."""
        connection = self.connection
        if problem.kind is not problems.MISSING and self.histogram:
            self.histogram += FAILED if problem.kind.status >= 500 and not is_of_client else REFUSED
        head, body = connection.answers.encode_problem(problem, connection.choose_connection_field(self))
        connection.answer(self, head if self.bodyless else head + body, _CODES[problem.kind.status])

    def respond(self, status: int, fields: dict[str, str], body: bytes, counter: int | None) -> None:
        """Answer with ``fields`` and ``body``, or without the body if the request is a HEAD."""
        connection = self.connection
        head = connection.answers.encode_head(status, fields, len(body), connection.choose_connection_field(self))
        connection.answer(self, head if self.bodyless else head + body, counter)

    def unavailable(self, problem: Problem) -> None:
        """Answer that the key is unavailable, with the reason."""
        if problem is OVERLOADED:
            self.lookups.counters[_OVERLOADED] += 1
        members: dict[str, object] = {"reason": problem.reason}
        if problem.shard is not None:
            members["shard"] = problem.shard
        self.refuse(
            HttpProblem(problems.UNAVAILABLE, problem.detail, members=members), is_of_client=problem.is_of_client
        )

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
        histogram: int = _OTHER,
    ) -> None:
        super().__init__(connection, connection_field, bodyless=bodyless, histogram=histogram)
        self._respond = respond

    def start(self) -> None:
        """Answer."""
        self._respond(self)


def _answer_probe(exchange: Exchange, *, asks_ready: bool) -> None:
    """Answer ``/healthz``, or ``/readyz`` with ``asks_ready``, for load balancers on the public port. Not counted."""
    service = exchange.connection.service
    status, text = 200, b"ready\n" if asks_ready else b"ok\n"
    if asks_ready and service.draining:
        status, text = 503, b"draining\n"
    elif asks_ready and not service.is_ready():
        status, text = 503, b"not ready\n"
    fields = {"Cache-Control": "no-store", "Content-Type": "text/plain; charset=utf-8"}
    exchange.respond(status, fields, text, None)


def _describe_dataset(exchange: Exchange) -> None:
    """Answer ``GET /v1/dataset`` from the routing table in effect."""
    document = exchange.lookups.describe_dataset()
    if document is None:
        exchange.unavailable(NO_TABLE)
        return
    generations = document.get("shardGenerations") or (document["generation"],)
    fields = {"Content-Type": JSON, "Lookupdb-Generation": ", ".join(generations)}
    exchange.respond(200, fields, orjson.dumps(document), _OK)


class LookupExchange(Exchange):
    """A lookup of one key: a ``lookups.Waiter``."""

    __slots__ = ("fields", "key")

    def __init__(
        self,
        connection: ClientConnection,
        connection_field: bytes,
        key: str,
        fields: LookupFields = target.NO_FIELDS,
        *,
        bodyless: bool = False,
    ) -> None:
        # No super().__init__(): this runs for every lookup.
        self.connection = connection
        self.lookups = connection.lookups
        self.arrived = connection.arrived
        self.histogram = _LOOKUP
        self.connection_field = connection_field
        self.bodyless = bodyless
        self.answer = None
        self.charge = 0
        self.key = key
        self.fields = fields

    def cost(self) -> int:
        """Include the key as text and as bytes, and the condition."""
        return _EXCHANGE_BYTES + 2 * _CHARACTER_BYTES * len(self.key) + len(self.fields.condition or b"")

    def start(self) -> None:
        """Ask the lookup core."""
        fields = self.fields
        self.lookups.find(self.key, self, fields.generation, deadline_ms=fields.deadline_ms)

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """Answer with the key's value, or 304 if the client has it. A missing key is 404 in any case (RFC 9110,
        13.2.1)."""
        connection = self.connection
        answers = connection.answers
        heads = answers.known_heads.get(generation) or answers.heads(generation)
        accept, condition = self.fields.accept, self.fields.condition
        if accept is not None and not accept.allows(heads.media_type):
            detail = f"the values of this dataset are {heads.media_type}, which Accept rules out"
            self.refuse(HttpProblem(problems.NOT_ACCEPTABLE, detail))
            return
        # Tags contain no quotes, so no quoted tag is part of another in a list.
        if condition is not None and (condition.strip() == b"*" or (heads.etag and heads.etag in condition)):
            answer = b"%b%b\r\n" % (heads.not_modified, connection.choose_connection_field(self))
            connection.answer(self, answer, _CODES[304])
            return
        if self.connection_field is PERSISTENT and not (self.bodyless or connection.service.draining):
            size = len(value)
            head = heads.found_by_size.get(size)
            if head is None:
                if len(heads.found_by_size) >= MAX_HEADS:
                    heads.found_by_size.clear()
                head = heads.found_by_size[size] = b"%b%d\r\n\r\n" % (heads.found, size)
            connection.answer(self, head + value, _OK)
            return
        connection_field = connection.choose_connection_field(self)
        body = b"" if self.bodyless else value
        connection.answer(self, b"%b%d\r\n%b\r\n%b" % (heads.found, len(value), connection_field, body), _OK)

    def missing(self, generation: ServedGeneration) -> None:
        """Answer that no record has the key, and why if no record can have it."""
        connection = self.connection
        if not self.key.strip() or len(self.key) > MAX_KEY_BYTES // _MAX_CHARACTER_BYTES:
            detail = missing_detail(generation)
            try:
                generation.encode(self.key)
            except InvalidKey as error:
                detail = f"no record can have this key: {error}"
            fields = {"Lookupdb-Generation": generation.name, "Vary": "Lookupdb-Generation"}
            fields |= connection.answers.cache_fields
            self.refuse(HttpProblem(problems.MISSING, detail, fields=fields))
            return
        heads = connection.answers.heads(generation)
        connection_field = connection.choose_connection_field(self)
        body = b"" if self.bodyless else heads.missing_body
        connection.answer(self, b"%b%b\r\n%b" % (heads.missing, connection_field, body), _CODES[404])


class BatchExchange(Exchange):
    """A batch of distinct keys, from a body of ``body_bytes``: a ``lookups.BatchWaiter``."""

    __slots__ = ("body_bytes", "fields", "gather", "keys", "partial")
    is_alone = True

    def __init__(
        self,
        connection: ClientConnection,
        connection_field: bytes,
        keys: BatchKeys,
        fields: LookupFields,
        *,
        partial: bool,
        body_bytes: int,
    ) -> None:
        super().__init__(connection, connection_field, bodyless=False, histogram=_BATCH)
        self.keys = keys
        self.fields = fields
        self.partial = partial
        self.body_bytes = body_bytes
        self.gather: ScatterGather | None = None

    def cost(self) -> int:
        """Include the keys as text and as bytes, and the condition, which is ignored."""
        text_bytes = (_CHARACTER_BYTES + 1) * self.body_bytes + len(self.fields.condition or b"")
        return _EXCHANGE_BYTES + text_bytes + _BATCH_KEY_BYTES * len(self.keys)

    def start(self) -> None:
        """Ask the lookup core."""
        self.connection.charge(self)
        fields = self.fields
        self.gather = self.lookups.find_many(self.keys, self, fields.generation, deadline_ms=fields.deadline_ms)

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
                f'with "partial": true to get the others; the first problem: {problem.detail}'
            )
            self.unavailable(Problem(problem.reason, detail, problem.shard, problem.is_of_client))
            return
        if problem:
            self.histogram += REFUSED if problem.is_of_client else FAILED
        connection = self.connection
        heads = connection.answers.heads(generation)
        field, keys = connection.choose_connection_field(self), self.keys
        accept = self.fields.accept
        if accept is not None and accept.prefers_frames(generation.value_format):
            head = heads.frames
            if size <= JOINED_BYTES:
                connection.answer(self, values.encode_frames(head, field, keys), _OK)
                return
            pieces = values.encode_frames_in_pieces(keys)
        else:
            head, is_raw = heads.batch, generation.value_format == "raw"
            start = b'%b,"found":{' % orjson.dumps(generation.members)[:-1]
            if size <= JOINED_BYTES:
                connection.answer(self, values.encode(head, field, start, keys, is_raw, self.partial), _OK)
                return
            pieces = values.encode_in_pieces(start, keys, is_raw, self.partial)
        connection.answer(self, [b"%b%d\r\n%b\r\n" % (head, sum(map(len, pieces)), field), *pieces], _OK)


# Requests outside the API are forwarded to a console on this machine, if there is one, as in `lookupdb up`. Each has
# its own connection. Answers are bounded, and count in the worker's budget.

MAX_FORWARDED: Final = 16
MAX_FORWARDED_ANSWER_BYTES: Final = 4 << 20
MAX_FORWARDED_HEAD_BYTES: Final = 16 << 10
FORWARDED_SECONDS: Final = 60.0
_FORWARDED_FIELDS: Final = (HOST, CONTENT_TYPE, ORIGIN, FETCH_SITE)
_DROPPED_FIELDS: Final = (b"connection:", b"keep-alive:", b"server:")


class ConsoleForwarder:
    """The console at ``address``, a host and a port."""

    def __init__(self, address: str) -> None:
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self.turns = asyncio.Semaphore(MAX_FORWARDED)


class ForwardedExchange(Exchange):
    """A request that the console answers."""

    __slots__ = ("_console", "_request", "_task")
    is_alone = True

    def __init__(self, console: ConsoleForwarder, request: Request, connection: ClientConnection) -> None:
        super().__init__(
            connection, request.connection_field, bodyless=request.method == b"HEAD", histogram=NOT_COUNTED
        )
        self._console = console
        self._request = request
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ask the console."""
        self._task = asyncio.get_running_loop().create_task(self._forward())

    def abandon(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _forward(self) -> None:
        connection = self.connection
        connection.charge(self)
        try:
            async with asyncio.timeout(FORWARDED_SECONDS), self._console.turns:
                head, body = await self._ask()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            detail = f"the console does not answer: {str(error) or type(error).__name__}"
            self.refuse(HttpProblem(problems.UNAVAILABLE, detail))
        except asyncio.CancelledError:
            connection.budget.release(self.charge)
            self.charge = 0
            raise
        else:
            connection.answer(self, b"%b%b\r\n%b" % (head, connection.choose_connection_field(self), body))

    async def _ask(self) -> tuple[bytes, bytes]:
        """Return head and body of the answer. Raises OSError, EOFError, ValueError and LimitOverrunError."""
        request, console = self._request, self._console
        fields = [f"{name}: ".encode() + request.fields[name] for name in _FORWARDED_FIELDS if name in request.fields]
        length = b"Content-Length: %d" % len(request.body)
        head = (b"%b %b HTTP/1.1" % (request.method, request.target), *fields, length, b"Connection: close", b"", b"")
        reader, writer = await asyncio.open_connection(console.host, console.port, limit=MAX_FORWARDED_HEAD_BYTES)
        with contextlib.closing(writer):
            writer.write(b"\r\n".join(head) + request.body)
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n").split(b"\r\n")
            kept = [first, *(line for line in lines if not line.lower().startswith(_DROPPED_FIELDS))]
            sizes = [int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")]
            size = 0 if self.bodyless else sum(sizes)
            if not first.startswith(b"HTTP/1.1 ") or len(sizes) != 1 or not 0 <= size <= MAX_FORWARDED_ANSWER_BYTES:
                raise ValueError(
                    f"its answer is not HTTP with a length of at most {MAX_FORWARDED_ANSWER_BYTES:,} bytes"
                )
            self.connection.budget.take(size)
            self.charge += size
            return b"".join(line + b"\r\n" for line in kept), await reader.readexactly(size)


METHODS: Final = {
    target.LOOKUP_KEY: "GET, HEAD, OPTIONS",
    target.LOOKUP: "GET, HEAD, OPTIONS, POST",
    target.DATASET: "GET, HEAD, OPTIONS",
    target.HEALTHZ: "GET, HEAD, OPTIONS",
    target.READYZ: "GET, HEAD, OPTIONS",
    target.SERVER: "GET, HEAD, OPTIONS, POST",
}
"""The methods of each resource. ``LOOKUP_KEY`` covers every path below it."""

_API: Final = b"/v1"
_KEY_AT: Final = len(target.LOOKUP_KEY)


def make_exchange(request: Request, connection: ClientConnection) -> Exchange:
    """Return the exchange that answers ``request``. Never raises: an invalid request gets a refusal."""
    requested = request.target
    try:
        is_lookup = request.is_plain and request.method == b"GET" and requested.startswith(target.LOOKUP_KEY)
        if is_lookup and not connection.service.has_several:
            # A shortcut for nearly all requests, with the same result as below.
            return LookupExchange(connection, request.connection_field, target.decode_key_in_path(requested[_KEY_AT:]))
        return _route(request, connection)
    except HttpProblem as problem:
        histogram = _OTHER
        if b"/lookup" in requested:
            histogram = _BATCH if request.method == b"POST" else _LOOKUP
        bodyless = request.method == b"HEAD"
        return make_refusal(connection, request.connection_field, problem, bodyless=bodyless, histogram=histogram)


def make_refusal(
    connection: ClientConnection,
    connection_field: bytes,
    problem: HttpProblem,
    *,
    bodyless: bool,
    histogram: int = _OTHER,
) -> Exchange:
    """Return the exchange of a request that is answered with ``problem``."""
    return ImmediateExchange(
        connection, connection_field, lambda it: it.refuse(problem), bodyless=bodyless, histogram=histogram
    )


def _route(request: Request, connection: ClientConnection) -> Exchange:
    if request.refusal is not None:
        raise request.refusal
    requested = request.target
    if not requested.startswith(b"/"):
        requested = target.to_origin_form(requested)
    if requested.startswith(target.DATASETS):
        name, requested = target.split_dataset(requested)
        lookups = _find_dataset(connection, name)
        exchange = _route_to_resource(request, requested, connection)
        exchange.lookups = lookups
        return exchange
    if connection.service.has_several and requested.startswith((target.LOOKUP, target.DATASET)):
        _find_dataset(connection, None)
    return _route_to_resource(request, requested, connection)


def _route_to_resource(request: Request, requested: bytes, connection: ClientConnection) -> Exchange:
    """Return the exchange of ``request`` for the target ``requested``, which names no dataset."""
    if requested.startswith(target.LOOKUP_KEY):
        if request.method == b"GET" or request.method == b"HEAD":
            return _make_lookup(request, connection, target.decode_key_in_path(requested[_KEY_AT:]))
        return _make_options(request, connection, target.LOOKUP_KEY)
    path, _, query = requested.partition(b"?")
    if path not in METHODS:
        console = None if path.startswith(_API) else connection.service.console
        if console is not None and request.method in (b"GET", b"HEAD", b"POST"):
            return ForwardedExchange(console, request, connection)
        raise HttpProblem(
            problems.NO_SUCH_RESOURCE,
            "expected /v1/lookup/{key}, /v1/lookup?key=…, /v1/lookup, /v1/dataset, /healthz or /readyz",
        )
    target.refuse_fragment(query)
    field, bodyless = request.connection_field, request.method == b"HEAD"
    if path in target.PROBES and request.method in (b"GET", b"HEAD"):
        respond = partial(_answer_probe, asks_ready=path == target.READYZ)
        return ImmediateExchange(connection, field, respond, bodyless=bodyless, histogram=NOT_COUNTED)
    if path == target.DATASET and request.method in (b"GET", b"HEAD"):
        target.refuse_key_in_query(query, "/v1/dataset is about all of them; ask /v1/lookup?key=… for one")
        return ImmediateExchange(connection, field, _describe_dataset, bodyless=bodyless)
    if path == target.LOOKUP and request.method in (b"GET", b"HEAD"):
        return _make_lookup(request, connection, target.decode_key_in_query(query))
    if path == target.LOOKUP and request.method == b"POST":
        target.refuse_key_in_query(query, "POST takes its keys in the body; GET looks up one in the query")
        return _make_batch(request, connection)
    return _make_options(request, connection, path)


def _find_dataset(connection: ClientConnection, name: str | None) -> LookupCore:
    """Return the lookup core of the dataset ``name``. Raises HttpProblem if there is none."""
    datasets = connection.service.datasets
    if name is not None and name in datasets:
        return datasets[name]
    found = "no name" if name is None else repr(name)
    names = ", ".join(sorted(datasets)) or "none: this router serves one dataset, at /v1/lookup/{key}"
    detail = f"expected /v1/datasets/{{name}}/lookup/{{key}}, found {found}; the names: {names}"
    raise HttpProblem(problems.NO_SUCH_RESOURCE, detail)


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
        connection = exchange.connection
        field = connection.choose_connection_field(exchange)
        head = connection.answers.encode_head(204, {"Allow": methods}, None, field)
        connection.answer(exchange, head, _CODES[204])

    return ImmediateExchange(connection, request.connection_field, respond, bodyless=True)


def _make_lookup(request: Request, connection: ClientConnection, key: str) -> LookupExchange:
    fields = target.read_fields(request.fields, connection.limits.deadline_milliseconds)
    bodyless = request.method == b"HEAD"
    return LookupExchange(connection, request.connection_field, key, fields, bodyless=bodyless)


def _make_batch(request: Request, connection: ClientConnection) -> BatchExchange:
    target.check_media_type(request.fields)
    fields = target.read_fields(request.fields, connection.limits.deadline_milliseconds)
    if fields.accept is not None and not fields.accept.allows_batch():
        raise HttpProblem(
            problems.NOT_ACCEPTABLE, f"a batch is answered as {JSON} or {FRAMES}, and Accept rules both out"
        )
    body = request.body
    keys, partial = target.parse_batch(body, connection.limits.max_keys, connection.service.keys_type)
    return BatchExchange(connection, request.connection_field, keys, fields, partial=partial, body_bytes=len(body))
