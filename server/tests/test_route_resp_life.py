"""The life of a connection of RESP: it passes through the transitions of all connections, and keeps its invariants."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.http import ScriptedLookups, eventually
from support.lives import EDGE_NAMES, EDGES, Edge, Record, Stage, check_end, play, watch_connections
from support.resp import RespServer, command, serving_resp

from lookupdb.router import clients
from lookupdb.router.clients import ClientPhase
from lookupdb.router.resp import connection as protocol
from lookupdb.router.resp.reader import TURN_BYTES
from support import invariants

GET = command("GET", "a")
HELD = command("GET", "held") * 2
PART = GET[:12]
BAD = b"*1\r\n+PING\r\n"
HUGE = command("GET", "huge")
MUCH = command("MGET", *["k" * 60] * (TURN_BYTES // 64))


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    return watch_connections(
        monkeypatch, protocol, "RedisClientConnection", invariants.RESP, ("_end_rest", "answer", "forget_access")
    )


@pytest.fixture
def server(record: Record, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[RespServer]:
    lookups = ScriptedLookups(values={"a": b"1", "held": b"2", "huge": b" " * 20_000_000}, held={"held"})
    limits: dict[str, Any] = {"header_timeout_seconds": 0.3, "idle_timeout_seconds": 0.6}
    scenario = getattr(request.node, "callspec", None)
    edge = (scenario.params.get("begin"), scenario.params.get("end")) if scenario else None
    if edge in SCENARIOS and SCENARIOS[edge] not in ([Stage.read_all], [receive, Stage.read_all]):
        limits = dict.fromkeys(limits, 60)  # no deadline passes between two steps
    if edge == (ClientPhase.LINGERING, ClientPhase.CLOSING):
        monkeypatch.setattr(clients, "LINGER_SECONDS", 60)
    with serving_resp(lookups, **limits, write_timeout_seconds=60) as server:
        yield server


def fill_and_end(stage: Stage) -> None:
    """Deliver more while a lookup is held, and then the end of the stream, which no event loop reports while reading is
    paused, although it might."""
    connection = stage.record.connections[0]

    def receive() -> bool:
        connection.data_received(HELD)
        connection.data_received(GET * 3)
        return bool(connection.eof_received())

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


@pytest.mark.parametrize(("begin", "end"), EDGES, ids=EDGE_NAMES)
def test_every_transition_of_the_table_happens_and_keeps_the_invariants(
    server: RespServer, record: Record, begin: ClientPhase, end: ClientPhase
) -> None:
    with server.connect(receive_buffer=4096) as client:
        stage = Stage(server, client, record)
        play(stage, SCENARIOS[begin, end], (begin, end))
    check_end(stage)


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
    """Each connection ends, whatever its client sends or does not read, and then holds none of the budget."""
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
            assert server.count_commands() == 2  # the refusal answers none
            assert third.ended()
        assert first.ask("GET", "a") == b"1"
        assert server.count("connections_refused") == 1
