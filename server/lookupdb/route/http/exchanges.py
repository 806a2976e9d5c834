"""One request and its answer: the waiters that turn what the lookup core found into HTTP.

A connection starts its exchanges in the order of the requests. An exchange answers at once or later, through
``ClientConnection.answer``, which keeps the answers in that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import orjson

from lookupdb.keys import MAX_KEY_BYTES, InvalidKey
from lookupdb.route.clients.limits import JOINED_BYTES
from lookupdb.route.counters import INDEX
from lookupdb.route.http import problems
from lookupdb.route.http.answers import CONTINUE, JSON, PERSISTENT, missing_detail
from lookupdb.route.http.problems import HttpProblem
from lookupdb.route.lookups.generation import ServedGeneration
from lookupdb.route.lookups.waiters import NO_TABLE, OVERLOADED, Problem

if TYPE_CHECKING:
    from lookupdb.route.budget import RouterBudget
    from lookupdb.route.http.accept import AcceptField
    from lookupdb.route.http.answers import Answers
    from lookupdb.route.http.service import HttpService
    from lookupdb.route.limits import RouterLimits
    from lookupdb.route.lookup_core import LookupCore
    from lookupdb.route.lookups.batch_keys import BatchKeys, BatchValues
    from lookupdb.route.lookups.scatter_gather import ScatterGather

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
