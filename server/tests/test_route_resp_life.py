"""The life of a connection of RESP: it passes through the transitions of all connections, and keeps its invariants."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.http import ScriptedLookups, eventually
from support.resp import RespClient, RespServer, command, serving_resp

from lookupdb.router.clients import front, life
from lookupdb.router.clients.life import TRANSITIONS, ClientPhase
from lookupdb.router.resp import connection as protocol
from lookupdb.router.resp.connection import INVARIANTS, RedisClientConnection
from lookupdb.router.resp.reader import TURN_BYTES

GET = command("GET", "a")
HELD = command("GET", "held") * 2
PART = GET[:12]
BAD = b"*1\r\n+PING\r\n"
HUGE = command("GET", "huge")
MUCH = command("MGET", *["k" * 60] * (TURN_BYTES // 64))

Edge = tuple[ClientPhase, ClientPhase]
EDGES = [(begin, end) for begin, ends in TRANSITIONS.items() for end in ends]


@dataclass
class Record:
    """What the connections of a test passed through, and which invariants were broken after which event."""

    edges: list[Edge] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    connections: list[RedisClientConnection] = field(default_factory=list)


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    """Connections made from now on write down every transition, and look at the invariants after every event."""
    record = Record()

    class WatchedConnection(RedisClientConnection):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            record.connections.append(self)

        def _enter(self, phase: ClientPhase) -> None:
            record.edges.append((self.phase, phase))
            super()._enter(phase)

    def watch(name: str) -> None:
        original = getattr(RedisClientConnection, name)

        def watched(self: RedisClientConnection, *arguments: Any) -> Any:
            result = original(self, *arguments)
            if not self._is_advancing:
                record.broken += [
                    f"{rule!r} after {name} in {self.phase.name}"
                    for rule, holds in INVARIANTS.items()
                    if not holds(self)
                ]
            return result

        setattr(WatchedConnection, name, watched)

    for event in ("connection_made", "data_received", "eof_received", "pause_writing", "resume_writing", "_end_rest"):
        watch(event)
    for event in ("handle_deadline", "finish", "close", "abort", "connection_lost", "answer", "forget_access"):
        watch(event)
    monkeypatch.setattr(protocol, "RedisClientConnection", WatchedConnection)
    monkeypatch.setattr(front, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(life, "LINGER_SECONDS", 0.3)
    return record


@pytest.fixture
def server(record: Record, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[RespServer]:
    lookups = ScriptedLookups(values={"a": b"1", "held": b"2", "huge": b" " * 20_000_000}, held={"held"})
    limits: dict[str, Any] = {"header_timeout_seconds": 0.3, "idle_timeout_seconds": 0.6}
    scenario = getattr(request.node, "callspec", None)
    edge = (scenario.params.get("begin"), scenario.params.get("end")) if scenario else None
    if edge in SCENARIOS and SCENARIOS[edge] not in ([Stage.read_all], [receive, Stage.read_all]):
        limits = dict.fromkeys(limits, 60)  # no deadline passes between two steps
    if edge == (ClientPhase.LINGERING, ClientPhase.CLOSING):
        monkeypatch.setattr(life, "LINGER_SECONDS", 60)
    with serving_resp(lookups, **limits, write_timeout_seconds=60) as server:
        yield server


@dataclass
class Stage:
    """Where a scenario plays: one client of ``server``."""

    server: RespServer
    client: RespClient
    record: Record

    def wait(self, *phases: ClientPhase) -> None:
        eventually(lambda: any(end in phases for _, end in self.record.edges))

    def release(self) -> None:
        """Answer the lookups that are held."""
        self.server.call(self.server.lookups.release)

    def drain(self) -> None:
        self.server.call(self.server.front.drain)

    def break_off(self) -> None:
        """Reset the connection, as a client does that is killed."""
        self.client.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.raw.close()

    def read_all(self) -> None:
        with contextlib.suppress(OSError):
            while self.client.raw.recv(1 << 20):
                pass

    def abort(self) -> None:
        """As the front does with what is not done when it closes."""

        def abort() -> None:
            for connection in self.record.connections:
                connection.abort()

        self.server.call(abort)


def fill_and_end(stage: Stage) -> None:
    """Have more come while a lookup is held, and then the end: no event loop tells it while reading pauses, but it
    might."""
    connection = stage.record.connections[0]

    def receive() -> bool:
        connection.data_received(HELD)
        connection.data_received(GET * 3)
        return connection.eof_received()

    assert stage.server.call(receive)
    stage.wait(ClientPhase.READING_HALF_CLOSED)


def linger(stage: Stage) -> None:
    stage.client.send(command("QUIT"))
    stage.wait(ClientPhase.LINGERING)


def receive(stage: Stage) -> None:
    stage.client.send(PART)
    stage.wait(ClientPhase.RECEIVING)


def read_held(stage: Stage) -> None:
    stage.client.send(HELD)
    eventually(lambda: stage.server.lookups.batches)


def finish(stage: Stage) -> None:
    """The budget is used up: no further command is read, and what is under way is answered."""
    read_held(stage)
    budget = stage.server.lookups.budget
    stage.server.call(lambda: budget.take(budget.limit))
    stage.client.send(GET)
    stage.wait(ClientPhase.FINISHING)
    stage.server.call(lambda: budget.release(budget.limit))


def finish_half_closed(stage: Stage) -> None:
    stage.client.send(HELD).half_close()
    stage.wait(ClientPhase.FINISHING_HALF_CLOSED)


Step = Callable[[Stage], Any]
SCENARIOS: dict[Edge, list[Step]] = {
    (ClientPhase.READING, ClientPhase.RECEIVING): [receive],
    (ClientPhase.READING, ClientPhase.READING_HALF_CLOSED): [lambda stage: stage.client.send(GET).half_close()],
    (ClientPhase.READING, ClientPhase.FINISHING): [finish],
    (ClientPhase.READING, ClientPhase.LINGERING): [read_held, Stage.drain, Stage.release],
    (ClientPhase.READING, ClientPhase.CLOSING): [Stage.read_all],
    (ClientPhase.READING, ClientPhase.CLOSED): [Stage.break_off],
    (ClientPhase.RECEIVING, ClientPhase.READING): [receive, lambda stage: stage.client.send(GET[12:]).reply()],
    (ClientPhase.RECEIVING, ClientPhase.READING_HALF_CLOSED): [receive, lambda stage: stage.client.half_close()],
    (ClientPhase.RECEIVING, ClientPhase.FINISHING): [receive, Stage.read_all],
    (ClientPhase.RECEIVING, ClientPhase.CLOSED): [receive, Stage.break_off],
    (ClientPhase.READING_HALF_CLOSED, ClientPhase.FINISHING_HALF_CLOSED): [finish_half_closed],
    (ClientPhase.READING_HALF_CLOSED, ClientPhase.CLOSING): [fill_and_end, Stage.release, Stage.read_all],
    (ClientPhase.READING_HALF_CLOSED, ClientPhase.CLOSED): [fill_and_end, Stage.abort],
    (ClientPhase.FINISHING, ClientPhase.FINISHING_HALF_CLOSED): [finish, lambda stage: stage.client.half_close()],
    (ClientPhase.FINISHING, ClientPhase.LINGERING): [finish, Stage.release],
    (ClientPhase.FINISHING, ClientPhase.CLOSED): [finish, Stage.abort],
    (ClientPhase.FINISHING_HALF_CLOSED, ClientPhase.CLOSING): [finish_half_closed, Stage.release],
    (ClientPhase.FINISHING_HALF_CLOSED, ClientPhase.CLOSED): [finish_half_closed, Stage.abort],
    (ClientPhase.LINGERING, ClientPhase.CLOSING): [linger, lambda stage: stage.client.half_close()],
    (ClientPhase.LINGERING, ClientPhase.CLOSED): [linger],
    (ClientPhase.CLOSING, ClientPhase.CLOSED): [Stage.read_all],
}


@pytest.mark.parametrize(
    ("begin", "end"), EDGES, ids=[f"{begin.name.lower()} to {end.name.lower()}" for begin, end in EDGES]
)
def test_every_transition_of_the_table_happens_and_keeps_the_invariants(
    server: RespServer, record: Record, begin: ClientPhase, end: ClientPhase
) -> None:
    with server.connect(receive_buffer=4096) as client:
        eventually(lambda: record.connections)
        stage = Stage(server, client, record)
        for step in SCENARIOS[begin, end]:
            step(stage)
        eventually(lambda: (begin, end) in record.edges)
    stage.release()
    eventually(lambda: server.call(lambda: record.connections[0].phase) is ClientPhase.CLOSED)
    assert record.broken == []
    eventually(lambda: server.lookups.budget.used == 0)


@pytest.mark.parametrize("piece", [MUCH, MUCH + PART, MUCH * 2, b"PING\r\n" * 20_000], ids=len)
def test_who_sends_much_at_once_keeps_the_invariants(server: RespServer, record: Record, piece: bytes) -> None:
    with server.connect() as client:
        eventually(lambda: record.connections)
        connection = record.connections[0]
        server.call(lambda: connection.data_received(piece))
        eventually(lambda: server.call(lambda: connection._exchange is None and not connection._is_resting))
        assert not connection._is_paused
        assert connection._turn_bytes < TURN_BYTES
        client.half_close()
        Stage(server, client, record).read_all()
    assert record.broken == []


def test_what_came_before_an_answer_was_waited_for_is_of_no_turn_any_more(server: RespServer, record: Record) -> None:
    with server.connect() as client:
        part = command("MGET", "held", *["k" * 60] * (TURN_BYTES // 300))  # one slice of the parser
        for count in range(1, 4):
            server.lookups.held.add("held")
            client.send(part)
            eventually(lambda count=count: len(server.lookups.batches) == count)  # type: ignore[misc]
            server.call(lambda: None)  # all of that turn is done
            assert TURN_BYTES / 6 < record.connections[0]._turn_bytes < TURN_BYTES
            server.call(server.lookups.release)
            assert len(client.reply()) == part.count(b"k" * 60) + 1
            assert record.connections[0]._turn_bytes == 0
    assert record.broken == []


PIECES = [MUCH, GET, GET * 3, command("MGET", "a", "b"), b"PING\r\n", PART, HUGE, HELD, BAD, command("QUIT"), GET[12:]]


@pytest.mark.parametrize("seed", range(6))
def test_random_lives_keep_the_invariants(record: Record, seed: int) -> None:
    """Each ends, whatever a client sends, takes and leaves, and nothing is held for it any more."""
    chance = random.Random(seed)
    lookups = ScriptedLookups(values={"a": b"1", "held": b"2", "huge": b" " * 3_000_000})
    timeouts: dict[str, Any] = {
        "header_timeout_seconds": 0.2,
        "idle_timeout_seconds": 0.3,
        "write_timeout_seconds": 0.2,
    }
    with serving_resp(lookups, **timeouts) as server:
        for _ in range(25):
            with server.connect(receive_buffer=4096) as client, contextlib.suppress(OSError):
                for _ in range(chance.randrange(1, 8)):
                    client.send(chance.choice(PIECES))
                    if chance.random() < 0.3:
                        client.raw.recv(chance.choice([1, 100, 1 << 20]))
                if chance.random() < 0.4:
                    client.half_close()
                if chance.random() < 0.2:
                    server.call(server.front.drain)
                    server.service.draining = False
        eventually(lambda: all(connection.phase is ClientPhase.CLOSED for connection in record.connections))
        assert record.broken == []
        eventually(lambda: lookups.budget.used == 0)


def test_one_connection_too_many() -> None:
    with (
        serving_resp(ScriptedLookups(values={"a": b"1"}), max_connections=2) as server,
        server.connect() as first,
        server.connect() as second,
    ):
        assert first.ask("PING") == second.ask("PING") == b"PONG"
        with server.connect() as third:
            assert third.refusal().startswith("ERR max number of clients reached")
            assert third.ended()
        assert first.ask("GET", "a") == b"1"
        assert server.count("connections_refused") == 1
