"""One request and its answer: the waiters that turn what the lookup core found into HTTP.

An exchange is begun by its connection, which calls ``start`` in the order of the requests, and answers through
``Connection.answer``, at once or later, which keeps the answers in that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from lookupdb.keys import MAX_KEY_BYTES, InvalidKey
from lookupdb.route import http_problems as problems
from lookupdb.route.counters import INDEX
from lookupdb.route.http_answers import CONTINUE, JSON, STAY, batch_body, missing_detail
from lookupdb.route.http_limits import MAX_ANSWER_BYTES
from lookupdb.route.http_problems import HttpProblem
from lookupdb.route.lookups import UNAVAILABLE, Generation, Problem, Values

if TYPE_CHECKING:
    from lookupdb.route.http_accept import Accept
    from lookupdb.route.http_connection import Connection

_LONGEST_CHARACTER: Final = 12
"""Bytes: a character has at most 4 in UTF-8, and normalisation makes it three at most."""

_OK: Final = INDEX["requests_2xx"]
_REFUSED: Final = INDEX["requests_4xx"]
_FAILED: Final = INDEX["requests_5xx"]


class Exchange:
    """What all exchanges have: their connection, the ``Connection`` field of the answer, and whether it has a body.

    ``answer`` is kept here while the answer to an earlier request of the connection is still due.
    """

    __slots__ = ("answer", "bodyless", "connection", "line")

    def __init__(self, connection: Connection, line: bytes, *, bodyless: bool) -> None:
        self.connection = connection
        self.line = line
        self.bodyless = bodyless
        self.answer: bytes | None = None

    def start(self) -> None:
        """Begin. The connection is told the answer sooner or later, exactly once."""
        raise NotImplementedError

    def refuse(self, problem: HttpProblem) -> None:
        """Answer with ``problem``."""
        connection = self.connection
        connection.counts[_FAILED if problem.kind.status >= 500 else _REFUSED] += 1
        head, body = connection.answers.problem(problem, connection.line_of(self))
        connection.answer(self, head if self.bodyless else head + body)

    def unavailable(self, problem: Problem) -> None:
        """Nothing can be said now."""
        members: dict[str, object] = {"reason": problem.reason}
        if problem.shard is not None:
            members["shard"] = problem.shard
        self.refuse(HttpProblem(problems.UNAVAILABLE, problem.detail, members=members))

    def unknown_generation(self, name: str) -> None:
        """The generation asked for is neither active nor a candidate."""
        detail = f"the generation {name!r} is neither the active one nor a candidate; leave Lookupdb-Generation out"
        self.refuse(HttpProblem(problems.UNKNOWN_GENERATION, detail + " to ask the active one"))


class Interim(Exchange):
    """``100 Continue``: sent in its turn, before the answer to the same request."""

    __slots__ = ()

    def start(self) -> None:
        """Answer at once."""
        self.connection.answer(self, CONTINUE)


class Refusal(Exchange):
    """A request that is answered with a problem, without any lookup."""

    __slots__ = ("problem",)

    def __init__(self, connection: Connection, line: bytes, problem: HttpProblem, *, bodyless: bool) -> None:
        super().__init__(connection, line, bodyless=bodyless)
        self.problem = problem

    def start(self) -> None:
        """Answer at once."""
        self.refuse(self.problem)


class Options(Exchange):
    """OPTIONS: which methods a resource knows."""

    __slots__ = ("methods",)

    def __init__(self, connection: Connection, line: bytes, methods: str) -> None:
        super().__init__(connection, line, bodyless=True)
        self.methods = methods

    def start(self) -> None:
        """Answer at once."""
        connection = self.connection
        connection.counts[_OK] += 1
        connection.answer(self, connection.answers.allowed(self.methods, connection.line_of(self)))


class Dataset(Exchange):
    """GET /v1/dataset."""

    __slots__ = ()

    def start(self) -> None:
        """Answer at once, out of the routing table in effect."""
        connection = self.connection
        info = connection.lookups.dataset()
        if info is None:
            self.unavailable(Problem("NoTable", "the router has no routing table yet"))
            return
        body = orjson.dumps(
            {
                "namespace": info.namespace,
                "name": info.name,
                "generation": info.generation,
                "records": info.records,
                "shards": info.shards,
                "builtAt": info.built_at,
                "ageSeconds": round(info.age, 3),
                "candidates": info.candidates,
            }
        )
        connection.counts[_OK] += 1
        fields = {"Lookupdb-Generation": info.generation}
        head, body = connection.answers.document(JSON, body, connection.line_of(self), fields)
        connection.answer(self, head if self.bodyless else head + body)


class Lookup(Exchange):
    """One key. A ``lookups.Waiter``."""

    __slots__ = ("accept", "generation", "key")

    def __init__(
        self,
        connection: Connection,
        line: bytes,
        key: str,
        generation: str | None = None,
        accept: Accept | None = None,
        *,
        bodyless: bool = False,
    ) -> None:
        # Spelled out rather than super().__init__(): this runs once a lookup.
        self.connection = connection
        self.line = line
        self.bodyless = bodyless
        self.answer = None
        self.key = key
        self.generation = generation
        self.accept = accept

    def start(self) -> None:
        """Ask the lookup core."""
        self.connection.lookups.find(self.key, self, self.generation)

    def found(self, value: bytes, generation: Generation) -> None:
        """The key's value."""
        connection = self.connection
        heads = connection.answers.heads(generation)
        if self.accept is not None and not self.accept.allows(heads.media_type):
            self._not_acceptable(heads.media_type)
            return
        connection.counts[_OK] += 1
        if self.line is STAY and not (self.bodyless or connection.front.draining):
            size = len(value)
            connection.answer(self, (heads.found_of.get(size) or heads.found_with(size)) + value)
            return
        line = connection.line_of(self)
        body = b"" if self.bodyless else value
        connection.answer(self, b"%b%d\r\n%b\r\n%b" % (heads.found, len(value), line, body))

    def missing(self, generation: Generation) -> None:
        """No record of the generation has the key."""
        connection = self.connection
        heads = connection.answers.heads(generation)
        if not self.key.strip() or len(self.key) > MAX_KEY_BYTES // _LONGEST_CHARACTER:
            self._missing_because(generation)
            return
        connection.counts[_REFUSED] += 1
        line = connection.line_of(self)
        body = b"" if self.bodyless else heads.missing_body
        connection.answer(self, b"%b%b\r\n%b" % (heads.missing, line, body))

    def _missing_because(self, generation: Generation) -> None:
        """Missing, and maybe no record of any generation can have such a key: then say why."""
        detail = missing_detail(generation)
        try:
            generation.encode(self.key)
        except InvalidKey as error:
            detail = f"no record can have this key: {error}"
        fields = {"Lookupdb-Generation": generation.name, "Vary": "Lookupdb-Generation"}
        self.refuse(HttpProblem(problems.MISSING, detail, fields=fields))

    def _not_acceptable(self, media_type: str) -> None:
        self.refuse(
            HttpProblem(problems.NOT_ACCEPTABLE, f"the values of this dataset are {media_type}, which Accept rules out")
        )


class Batch(Exchange):
    """Many distinct keys. A ``lookups.BatchWaiter``."""

    __slots__ = ("generation", "keys", "partial")

    def __init__(
        self, connection: Connection, line: bytes, keys: list[str], generation: str | None, *, partial: bool
    ) -> None:
        super().__init__(connection, line, bodyless=False)
        self.keys = keys
        self.generation = generation
        self.partial = partial

    def start(self) -> None:
        """Ask the lookup core."""
        self.connection.lookups.find_many(self.keys, self, self.generation)

    def done(self, generation: Generation, values: Values) -> None:
        """What was found, aligned with the keys."""
        unavailable = sum(value is UNAVAILABLE for value in values)
        if unavailable and not self.partial:
            detail = (
                f"{unavailable} of {len(self.keys)} keys cannot be looked up now; send them again, or with "
                '"partial": true to get what can be had'
            )
            self.refuse(HttpProblem(problems.UNAVAILABLE, detail, members={"reason": "Unreachable"}))
            return
        size = sum(len(value) for value in values if isinstance(value, bytes))
        if size > MAX_ANSWER_BYTES:
            detail = f"the values are {size} bytes together, the limit is {MAX_ANSWER_BYTES}; send fewer keys at once"
            self.refuse(HttpProblem(problems.ANSWER_TOO_LARGE, detail))
            return
        connection = self.connection
        connection.counts[_OK] += 1
        body = batch_body(generation, self.keys, values, partial=self.partial)
        head = connection.answers.heads(generation).batch
        connection.answer(self, b"%b%d\r\n%b\r\n%b" % (head, len(body), connection.line_of(self), body))
