"""Random conversations of clients that repeat themselves, nearly: a connection that recognises repeats answers, counts
and keeps what one that parses every request does."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from support.http import LIMITS, ScriptedLookups, generation, request

from lookupdb.process import worker
from lookupdb.records import FRAMES
from lookupdb.router.access import Gatekeeper, hash_token, read_token_hashes
from lookupdb.router.clients import ClientPhase
from lookupdb.router.counters import NAMES
from lookupdb.router.http import connection as http_connection
from lookupdb.router.http.connection import HttpConnection, RepeatedBatch, RepeatedLookup
from lookupdb.router.http.exchanges import HttpService
from support import invariants

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that histograms are equal."""
    for module in (worker, http_connection):
        monkeypatch.setattr(module, "monotonic_ns", lambda: 1)


CONVERSATIONS = 400
TOKEN = "kWm3Qx1c0VJ8yq4n7TtR2bZ5sLh9uGfE"
KEYS = ("a", "b", "none", "raw", "lost", "held", "")
FIELDS = (
    "Accept: application/json",
    f"Accept: {FRAMES}",
    "Accept: text/html",
    "Accept: */*",
    "Connection: keep-alive",
    "Connection: close",
    "Content-Type: application/json",
    "content-type: text/plain",
    "Content-Encoding: identity",
    "Content-Encoding: gzip",
    "Expect: 100-continue",
    "Lookupdb-Generation: g2",
    "Lookupdb-Generation: g9",
    "Lookupdb-Deadline-Ms: 400",
    "If-None-Match: *",
    'If-None-Match: "g1-0"',
    "Transfer-Encoding: chunked",
    "Upgrade: h2c",
    "Connection: Upgrade",
    "Content-Length: 13",
    "X-Content-Length: 13",
    "X: y\r\n folded",
    f"Authorization: Bearer {TOKEN[:-1]}x",
)
TARGETS = "/v1/lookup?a=b", "/v1/lookup/a?x=1", "/readyz", "/v1/lookup/a", "/v1/lookup?", "*", "http://router/v1/lookup"
USUAL = tuple(
    field
    for field in FIELDS
    if re.match("(Accept.*(json|frames)|Connection: keep|Content-T|L.*(g2|400)|If|X-C)", field)
)
LENGTHS: tuple[Callable[[int], str], ...] = (
    lambda size: f"Content-Length: {size + 1}",
    lambda size: f"Content-Length: {size - 1}",
    lambda size: f"Content-Length: 0{size}",
    lambda size: f"Content-Length: +{size}",
    lambda size: f"Content-Length: -{size}",
    lambda size: f"Content-Length:  {size} ",
    lambda size: f"Content-Length: {size} {size}",
    lambda size: f"Content-Length: {size}, {size}",
    lambda size: f"Content-Length: {size}\r\nContent-Length: {size}",
    lambda size: f"Content-Length: {size:x}",
    lambda size: f"Content-Length: {size}_0",
    lambda size: f"Content-Length: 1{size}",
    lambda size: f"Content-Length: {size + (1 << 64)}",
    lambda size: "Content-Length: ",
    lambda size: "Content-Length: ²",
    lambda size: f"content-length: {size}",
    lambda size: f"CONTENT-LENGTH:{size}",
    lambda size: f"Content-Length : {size}",
    lambda size: f"X: {size}",
)
BODIES = (
    b"",
    b"{}",
    b'{"keys":["a"]',
    b'{"keys":["a"],"more":1}',
    b'{"keys":"a"}',
    b'{"keys":[1]}',
    b'{"keys":["\xff"]}',
    b'{"keys":["\\ud800"]}',
    b'{"keys":["a","b","c","d","e","f","g"]}',
    b'{"keys":["' + b"a" * 500 + b'"]}',
    b'POST /v1/lookup HTTP/1.1\r\nHost: router\r\nContent-Length: 14\r\n\r\n{"keys":["a"]}',
)


class _Transport:
    """Keeps what is written, and whether it is to read."""

    def __init__(self) -> None:
        self.written = b""
        self.reads = True
        self.ends: list[str] = []

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.written += b"".join(pieces)

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def set_write_buffer_limits(self, high: int) -> None:
        assert high

    def get_write_buffer_size(self) -> int:
        return 0

    def write_eof(self) -> None:
        self.ends.append("eof")

    def close(self) -> None:
        self.ends.append("close")


class _Registry:
    def admit(self, connection: Any) -> None:
        pass

    def forget(self, connection: Any) -> None:
        pass


class _ParsingConnection(HttpConnection):
    """Remembers no request."""

    __slots__ = ()
    _repeated = property(lambda self: None, lambda self, repeated: None)


class Side:
    """One connection, with a worker of its own."""

    def __init__(self, kind: type[HttpConnection]) -> None:
        values = {"a": b"1", "b": b"2", "raw": b'"\\u00e4"', "held": b"3"}
        self.lookups = ScriptedLookups(values=values, unavailable={"lost"}, candidates=(generation("g2"),))
        self.lookups.held.add("held")
        self.gatekeeper = Gatekeeper(token_folder="tokens", accounts=None)
        self.admit(TOKEN)
        self._counts = memoryview(bytearray(8 * len(NAMES))).cast("Q")
        lookups = cast("Any", self.lookups)
        lookups.counters, lookups.observe = self._counts, partial(worker.observe, self._counts)
        limits = replace(LIMITS, max_body_bytes=400, max_keys=6)
        self.service = HttpService(lookups, limits, self.gatekeeper)
        self.service.answers._date = "now"  # of both, whatever second begins meanwhile
        self.transport = _Transport()
        self.connection = kind(self.service, cast("Any", _Registry()))
        self.connection.connection_made(cast("Any", self.transport))

    def admit(self, token: str) -> None:
        self.gatekeeper.take_hashes(read_token_hashes({Path("web"): hash_token(token.encode()).encode()}))

    def replace_token(self, token: str) -> None:
        self.admit(token)
        self.connection.forget_access(math.inf)

    def release(self) -> None:
        self.lookups.release()
        self.lookups.held.add("held")

    def drain(self) -> None:
        self.service.draining = True
        self.connection.finish()

    def end(self) -> None:
        self.connection.connection_lost(None)
        self.lookups.release()

    def describe(self) -> tuple[Any, ...]:
        """The results that must not depend on how requests are read."""
        connection, lookups, transport = self.connection, self.lookups, self.transport
        broken = [rule for rule, holds in invariants.HTTP.items() if not holds(connection)]
        return (
            *(transport.written, transport.reads, transport.ends, connection.phase, broken),
            *(lookups.asked, lookups.batches, lookups.deadlines, lookups.budget.used, list(self._counts)),
            *(len(connection._pending), len(connection._waiting)),
        )


def make_body(random: Random) -> bytes:
    keys = random.choices(KEYS[: 6 if random.random() < 0.1 else 5], k=random.randrange(7))
    partial = random.choice(("", ',"partial":true'))
    return b'{"keys":[%b]%b}' % (",".join(f'"{key}"' for key in keys).encode(), partial.encode())


class RepeatingClient:
    """One client, which nearly always sends the same request."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._fields = random.sample(USUAL, random.randrange(4)) + random.choices(FIELDS, k=random.random() < 0.2)
        self._fields.insert(random.randrange(len(self._fields) + 1), f"Authorization: Bearer {TOKEN}")
        self._length_at = random.randrange(len(self._fields) + 1)
        self._version = random.choice((*[b"HTTP/1.1"] * 7, b"HTTP/1.0"))
        self._sends_batches = random.random() < 0.8

    def usual(self) -> bytes:
        """Its usual request."""
        return self._batch(make_body(self._random)) if self._sends_batches else self._lookup()

    def request(self) -> bytes:
        """Nearly always the request sent before, or another one."""
        random = self._random
        body = make_body(random)
        match random.randrange(24):
            case 0:
                return self._lookup()
            case 1:
                return self._batch(random.choice(BODIES))
            case 2:
                return self._batch(body, length=random.choice(LENGTHS)(len(body)))
            case 3:
                return self._batch(body, other=random.choice(FIELDS))
            case 4:
                return self._batch(body, target=random.choice(TARGETS))
            case 5 | 6:
                return damage(random, self.usual())
            case 7:
                return self.usual() + self.request()
            case _:
                return self.usual()

    def _lookup(self) -> bytes:
        return self._render(f"/v1/lookup/{self._random.choice(KEYS)}", self._fields, "GET")

    def _batch(self, body: bytes, *, length: str = "", other: str = "", target: str = "/v1/lookup") -> bytes:
        fields = list(self._fields)
        fields.insert(self._length_at, length or f"Content-Length: {len(body)}")
        if other:
            fields.insert(self._random.randrange(len(fields) + 1), other)
        return self._render(target, fields, "POST") + body

    def _render(self, target: str, fields: list[str], method: str) -> bytes:
        return request(target, *fields, method=method).replace(b"HTTP/1.1", self._version)


def damage(random: Random, data: bytes) -> bytes:
    at, to = sorted(random.randrange(len(data) + 1) for _ in range(2))
    byte = random.choice((b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b"0", b"9", b"+", b"a", b"\xff", b"{", b","))
    damages = data[:at], data[at:], data[:at] + byte + data[at:], data[:at] + byte + data[at + 1 :], data + byte
    return random.choice((*damages, byte + data, data[:at] + data[to:], data + data[:at]))


def cut(random: Random, data: bytes) -> list[bytes]:
    """``data`` in as many pieces as the network makes of it: mostly one."""
    if random.random() < 0.85 or len(data) < 2:
        return [data]
    if random.random() < 0.3:
        return [data, b"\r\n" * random.randrange(1, 40)]
    at = random.choice((random.randrange(1, len(data)), max(1, data.find(b"\r\n\r\n") + 4)))
    return [piece for piece in (data[:at], data[at:]) if piece]


def choose_event(random: Random) -> Callable[[Side], object]:
    """Choose an event of a connection other than a request."""
    return random.choice(
        (
            lambda side: side.replace_token("another-token-than-the-clients-own"),
            lambda side: side.replace_token(TOKEN),
            lambda side: side.connection.pause_writing(),
            lambda side: side.connection.resume_writing() if side.connection.is_blocked else None,
            Side.release,
            Side.release,
            Side.drain if random.random() < 0.2 else Side.release,
        )
    )


async def converse(random: Random) -> None:
    """One client, and the same to both connections."""
    sides = Side(HttpConnection), Side(_ParsingConnection)
    client = RepeatingClient(random)
    pieces = [client.usual()]
    for _ in range(random.randrange(1, 12)):
        pieces += cut(random, client.request())
    for piece in pieces:
        let_read(sides, piece)
        step(sides, lambda side, piece=piece: side.connection.data_received(piece), piece)  # type: ignore[misc]
        await asyncio.sleep(0)  # the turn of others
        if random.random() < 0.1:
            step(sides, choose_event(random), piece)
    step(sides, Side.end, b"")
    assert [side.lookups.budget.used for side in sides] == [0, 0]


def let_read(sides: tuple[Side, Side], piece: bytes) -> None:
    """Make both sides read again before ``piece`` comes, unless they are about to close."""
    while not sides[0].transport.reads and sides[0].connection.phase < ClientPhase.LINGERING:
        step(sides, Side.release, piece)
        step(sides, lambda side: side.connection.resume_writing(), piece)


def step(sides: tuple[Side, Side], event: Callable[[Side], object], piece: bytes) -> None:
    for side in sides:
        event(side)
    recognising, parsing = sides
    assert recognising.describe() == parsing.describe(), piece


@pytest.mark.parametrize("seed", range(8))
def test_a_connection_that_recognises_repeats_answers_as_one_that_parses_all(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recognised = {RepeatedLookup: 0, RepeatedBatch: 0}

    def count(kind: Any) -> None:
        match = kind.match

        def counted(self: Any, data: bytes, connection: Any) -> Any:
            found = match(self, data, connection)
            recognised[kind] += found is not None
            return found

        monkeypatch.setattr(kind, "match", counted)

    count(RepeatedLookup)
    count(RepeatedBatch)

    async def run() -> None:
        random = Random(seed)
        for _ in range(CONVERSATIONS):
            await converse(random)

    asyncio.run(run())
    assert recognised[RepeatedBatch] > CONVERSATIONS // 2
    assert recognised[RepeatedLookup] > CONVERSATIONS // 8
