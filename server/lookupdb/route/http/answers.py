"""HTTP answers as bytes. What is the same for every lookup of a generation is encoded once a second, not once a lookup.

Each head ends before the ``Connection`` field, which depends on the connection: ``b""``, ``CLOSE`` or ``KEEP_ALIVE``.
"""

from __future__ import annotations

import time
from typing import Final

from lookupdb.batch_frames import MEDIA_TYPE as FRAMES
from lookupdb.route.http import problems
from lookupdb.route.http.limits import MAX_GENERATIONS, MAX_HEADS
from lookupdb.route.http.problems import REASONS, HttpProblem
from lookupdb.route.lookups.generation import ServedGeneration

PERSISTENT: Final = b""
"""HTTP/1.1 connections persist unless one side says otherwise."""
CLOSE: Final = b"Connection: close\r\n"
KEEP_ALIVE: Final = b"Connection: keep-alive\r\n"

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
PROBLEM: Final = "application/problem+json"


class AnswerHeads:
    """The encoded heads of one generation's answers, good for one second (they tell the date)."""

    __slots__ = (
        *("batch", "etag", "found", "found_by_size", "frames", "media_type", "missing", "missing_body"),
        "not_modified",
    )

    def __init__(self, generation: ServedGeneration, date: str, cache_fields: dict[str, str]) -> None:
        common = {"Date": date, "Lookupdb-Generation": generation.name, "Vary": "Lookupdb-Generation"}
        of_lookup = {**common, **cache_fields}
        tagged = {**of_lookup, "ETag": generation.etag} if generation.etag else of_lookup
        self.etag = generation.etag.encode()
        self.media_type = JSON if generation.value_format == "json" else OCTETS
        self.found = _encode_open_head(200, {**tagged, "Content-Type": self.media_type})
        self.not_modified = _encode_head(304, tagged)
        self.found_by_size: dict[int, bytes] = {}
        """Size of a value → the whole head of an answer with it on a connection that stays open (``PERSISTENT``)."""
        of_batch = {**common, "Lookupdb-Value-Format": generation.value_format, "Vary": "Lookupdb-Generation, Accept"}
        self.batch = _encode_open_head(200, {**of_batch, "Content-Type": JSON})
        self.frames = _encode_open_head(200, {**of_batch, "Content-Type": FRAMES})
        self.missing_body = problems.problem_body(problems.MISSING, missing_detail(generation))
        self.missing = b"%b%d\r\n" % (
            _encode_open_head(404, {**of_lookup, "Content-Type": PROBLEM}),
            len(self.missing_body),
        )

    def add_found_head(self, size: int) -> bytes:
        """The new entry of ``found_by_size`` for values of ``size`` bytes."""
        if len(self.found_by_size) >= MAX_HEADS:
            self.found_by_size.clear()
        head = self.found_by_size[size] = b"%b%d\r\n\r\n" % (self.found, size)
        return head


def missing_detail(generation: ServedGeneration) -> str:
    """The sentence about a key that is missing."""
    holds = "generations {} hold" if len(generation.names) > 1 else "generation {} holds"
    return f"{holds.format(generation.name)} no record with this key"


class Answers:
    """The answers of one worker. ``tick()`` at least once a second keeps their date. ``cache_control`` goes with the
    answers to lookups of one key, found or missing; None: none does."""

    __slots__ = ("_cache_fields", "_date", "_second", "known_heads")

    def __init__(self, cache_control: str | None = None) -> None:
        self._cache_fields = {} if cache_control is None else {"Cache-Control": cache_control}
        self._second = 0
        self.tick()

    def tick(self) -> None:
        """Take the present second for the ``Date`` of answers from now on."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(second))
            self.known_heads: dict[ServedGeneration, AnswerHeads] = {}
            """Those of this second: where each lookup counts, look here before calling ``heads``."""

    def heads(self, generation: ServedGeneration) -> AnswerHeads:
        """The heads of answers out of ``generation``."""
        heads = self.known_heads.get(generation)
        if heads is None:
            if len(self.known_heads) >= MAX_GENERATIONS:
                self.known_heads.clear()
            heads = self.known_heads[generation] = AnswerHeads(generation, self._date, self._cache_fields)
        return heads

    def lookup_fields(self, generation: ServedGeneration) -> dict[str, str]:
        """Return the fields of the answer that a key is missing in ``generation``."""
        return {"Lookupdb-Generation": generation.name, "Vary": "Lookupdb-Generation", **self._cache_fields}

    def encode_document(
        self, media_type: str, body: bytes, connection_field: bytes, fields: dict[str, str]
    ) -> tuple[bytes, bytes]:
        """Head and body of a 200."""
        head = _encode_open_head(200, {"Date": self._date, "Content-Type": media_type, **fields})
        return b"%b%d\r\n%b\r\n" % (head, len(body), connection_field), body

    def encode_probe_head(self, status: int, size: int, connection_field: bytes) -> bytes:
        """Return the head of the answer to a probe, with a text of ``size`` bytes. No cache may keep it."""
        fields = {"Date": self._date, "Cache-Control": "no-store", "Content-Type": "text/plain; charset=utf-8"}
        return b"%b%d\r\n%b\r\n" % (_encode_open_head(status, fields), size, connection_field)

    def encode_options(self, methods: str, connection_field: bytes) -> bytes:
        """The answer to OPTIONS."""
        head = _encode_head(204, {"Date": self._date, "Allow": methods})
        return b"%b%b\r\n" % (head, connection_field)

    def encode_problem(self, problem: HttpProblem, connection_field: bytes) -> tuple[bytes, bytes]:
        """Head and body of the answer that tells ``problem``."""
        body = problem.body()
        fields = {"Date": self._date, "Content-Type": PROBLEM, **problem.fields}
        head = _encode_open_head(problem.kind.status, fields)
        return b"%b%d\r\n%b\r\n" % (head, len(body), connection_field), body


def _encode_head(status: int, fields: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS[status]}", *(f"{name}: {value}" for name, value in fields.items()), ""]
    return "\r\n".join(lines).encode("latin-1", "replace")


def _encode_open_head(status: int, fields: dict[str, str]) -> bytes:
    """A head that goes on with the number of bytes of its body."""
    return _encode_head(status, fields) + b"Content-Length: "
