"""The life of a client connection: real ones pass through every transition of the table, and keep what it promises."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.http import ScriptedLookups, Server, eventually, request, serving
from support.lives import EDGE_NAMES, EDGES, Edge, Record, Stage, check_end, play, watch_connections

from lookupdb.router import clients
from lookupdb.router.clients import TRANSITIONS, ClientPhase
from lookupdb.router.http import connection as connection_module
from lookupdb.router.http import connection as protocol
from lookupdb.router.http.problems import SLICE_BYTES
from support import invariants

GET = request("/v1/lookup/a")
HELD = request("/v1/lookup/held")
CLOSE = request("/v1/lookup/a", "Connection: close")
HELD_CLOSE = request("/v1/lookup/held", "Connection: close")
HUGE = request("/v1/lookup/huge")
PART = GET[:20]
FILLED = request("/v1/lookup/a", "X: " + "y" * 500)
"""So many that not all are begun at once are more than is read at once, too."""
MANY = HELD + FILLED * 200
assert len(MANY) > 2 * SLICE_BYTES


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    return watch_connections(monkeypatch, protocol, "HttpConnection", invariants.HTTP)


@pytest.fixture
def server(record: Record, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server, whose write timeout is the test's parameter, or longer than any step of a scenario."""
    lookups = ScriptedLookups(values={"a": b"1", "held": b"2", "huge": b" " * 20_000_000}, held={"held"})
    limits = {"header_timeout_seconds": 0.3, "idle_timeout_seconds": 0.6}
    scenario = getattr(request.node, "callspec", None)
    edge = (scenario.params.get("begin"), scenario.params.get("end")) if scenario else None
    if edge in SCENARIOS and SCENARIOS[edge] not in ([Stage.read_all], [receive, Stage.read_all]):
        limits = dict.fromkeys(limits, 60)  # no deadline passes between two steps
    if edge == (ClientPhase.LINGERING, ClientPhase.CLOSING):
        monkeypatch.setattr(clients, "LINGER_SECONDS", 60)
    with serving(lookups, **limits, write_timeout_seconds=getattr(request, "param", 60)) as server:
        yield server


def fill_and_end(stage: Stage) -> None:
    """Deliver more than is read at once while a lookup is held, and then the end of the stream, which no event loop
    reports while reading is paused, although it might. A real socket could cut within a request."""
    connection = stage.record.connections[0]

    def receive() -> bool:
        connection.data_received(MANY)
        assert connection._unread
        return bool(connection.eof_received())

    assert stage.server.call(receive)
    stage.wait(ClientPhase.READING_HALF_CLOSED)


def linger(stage: Stage) -> None:
    stage.client.send(CLOSE)
    stage.wait(ClientPhase.LINGERING)


def receive(stage: Stage) -> None:
    stage.client.send(PART)
    stage.wait(ClientPhase.RECEIVING)


def finish(stage: Stage) -> None:
    stage.client.send(HELD_CLOSE)
    stage.wait(ClientPhase.FINISHING)


def finish_half_closed(stage: Stage) -> None:
    stage.client.send(HELD).half_close()
    stage.wait(ClientPhase.FINISHING_HALF_CLOSED)


def read_held(stage: Stage) -> None:
    stage.client.send(HELD)
    eventually(lambda: stage.server.lookups.asked)


Step = Callable[[Stage], Any]
SCENARIOS: dict[Edge, list[Step]] = {
    (ClientPhase.READING, ClientPhase.RECEIVING): [receive],
    (ClientPhase.READING, ClientPhase.READING_HALF_CLOSED): [lambda stage: stage.client.send(GET).half_close()],
    (ClientPhase.READING, ClientPhase.FINISHING): [finish],
    (ClientPhase.READING, ClientPhase.LINGERING): [read_held, Stage.drain, Stage.release],
    (ClientPhase.READING, ClientPhase.CLOSING): [Stage.read_all],
    (ClientPhase.READING, ClientPhase.CLOSED): [Stage.break_off],
    (ClientPhase.RECEIVING, ClientPhase.READING): [receive, lambda stage: stage.client.send(GET[20:]).response()],
    (ClientPhase.RECEIVING, ClientPhase.READING_HALF_CLOSED): [receive, lambda stage: stage.client.half_close()],
    (ClientPhase.RECEIVING, ClientPhase.FINISHING): [receive, Stage.read_all],
    (ClientPhase.RECEIVING, ClientPhase.CLOSED): [receive, Stage.break_off],
    (ClientPhase.READING_HALF_CLOSED, ClientPhase.FINISHING_HALF_CLOSED): [finish_half_closed],
    (ClientPhase.READING_HALF_CLOSED, ClientPhase.CLOSING): [fill_and_end, Stage.release, Stage.read_all],
    (ClientPhase.READING_HALF_CLOSED, ClientPhase.CLOSED): [
        fill_and_end,
        Stage.abort,
    ],
    (ClientPhase.FINISHING, ClientPhase.FINISHING_HALF_CLOSED): [finish, lambda stage: stage.client.half_close()],
    (ClientPhase.FINISHING, ClientPhase.LINGERING): [finish, Stage.release],
    (ClientPhase.FINISHING, ClientPhase.CLOSED): [finish, Stage.break_off],
    (ClientPhase.FINISHING_HALF_CLOSED, ClientPhase.CLOSING): [finish_half_closed, Stage.release],
    (ClientPhase.FINISHING_HALF_CLOSED, ClientPhase.CLOSED): [
        finish_half_closed,
        Stage.abort,
    ],
    (ClientPhase.LINGERING, ClientPhase.CLOSING): [linger, lambda stage: stage.client.half_close()],
    (ClientPhase.LINGERING, ClientPhase.CLOSED): [linger],
    (ClientPhase.CLOSING, ClientPhase.CLOSED): [Stage.read_all],
}


@pytest.mark.parametrize(("begin", "end"), EDGES, ids=EDGE_NAMES)
def test_every_transition_of_the_table_happens_and_keeps_the_invariants(
    server: Server, record: Record, begin: ClientPhase, end: ClientPhase
) -> None:
    with server.connect(receive_buffer=4096) as client:
        stage = Stage(server, client, record)
        play(stage, SCENARIOS[begin, end], (begin, end))
    check_end(stage)


def test_no_other_transition_is_possible(server: Server) -> None:
    for end in ClientPhase:
        for begin in ClientPhase:
            client = server.make_connection(server.service, server.front)
            client.phase = begin
            if end in TRANSITIONS[begin]:
                client._enter(end)
                assert client.phase is end
            else:
                with pytest.raises(AssertionError, match=f"cannot pass from {begin.name} to {end.name}"):
                    client._enter(end)
                assert client.phase is begin


def test_every_phase_leads_to_the_end_and_only_reading_is_come_back_to() -> None:
    assert {end for ends in TRANSITIONS.values() for end in ends} | {ClientPhase.READING} == set(ClientPhase)
    assert all(ClientPhase.CLOSED in ends for begin, ends in TRANSITIONS.items() if begin is not ClientPhase.CLOSED)
    assert [edge for edge in EDGES if edge[1] < edge[0]] == [(ClientPhase.RECEIVING, ClientPhase.READING)]


def test_nothing_else_sets_a_phase() -> None:
    """Only __init__ and ``_enter`` do."""
    assert inspect.getsource(clients).count("self.phase = ") == 2
    assert "self.phase = " not in inspect.getsource(connection_module)


class TestOverdue:
    """The table of deadlines."""

    @pytest.mark.parametrize("server", [0.5], indirect=True, ids=["after 0.5 s"])
    def test_a_blocked_client_is_cut_off_in_whatever_phase(self, server: Server, record: Record) -> None:
        for data in (HUGE, HUGE + CLOSE, HUGE + PART):
            with server.connect(receive_buffer=4096) as client:
                client.send(data)
                eventually(lambda: record.connections and record.connections[-1].is_blocked)
                eventually(lambda: record.connections[-1].phase is ClientPhase.CLOSED)
            record.connections.clear()
        assert server.count("clients_timed_out") == 3
        assert record.broken == []

    def test_lookups_that_are_due_are_waited_for(self, server: Server, record: Record) -> None:
        with server.connect() as client:
            client.send(HELD)
            eventually(lambda: record.connections and record.connections[0].deadline < server.call(now))
            assert record.connections[0].phase is ClientPhase.READING
            server.call(server.lookups.release)
            assert client.response().body == b"2"
        assert record.broken == []


def now() -> float:
    return asyncio.get_running_loop().time()
