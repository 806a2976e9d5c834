"""The life of a client connection: real ones pass through every transition of the table, and keep what it promises."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.http import Client, ScriptedLookups, Server, eventually, request, serving

from lookupdb.router.clients import front, life
from lookupdb.router.clients.life import TRANSITIONS, ClientPhase
from lookupdb.router.http import connection as connection_module
from lookupdb.router.http import connection as protocol
from lookupdb.router.http.connection import INVARIANTS, HttpConnection
from lookupdb.router.http.problems import SLICE_BYTES

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

Edge = tuple[ClientPhase, ClientPhase]
EDGES = [(begin, end) for begin, ends in TRANSITIONS.items() for end in ends]


@dataclass
class Record:
    """What the connections of a test passed through, and which invariants were broken after which event."""

    edges: list[Edge] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    connections: list[HttpConnection] = field(default_factory=list)

    def phases(self) -> list[ClientPhase]:
        """Of all connections, now."""
        return [connection.phase for connection in self.connections]


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    """Connections made from now on write down every transition, and look at the invariants after every event."""
    record = Record()

    class WatchedConnection(HttpConnection):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            record.connections.append(self)

        def _enter(self, phase: ClientPhase) -> None:
            record.edges.append((self.phase, phase))
            super()._enter(phase)

    def watch(name: str) -> None:
        original = getattr(HttpConnection, name)

        def watched(self: HttpConnection, *arguments: Any) -> Any:
            result = original(self, *arguments)
            if not self._is_advancing:
                record.broken += [
                    f"{rule!r} after {name} in {self.phase.name}"
                    for rule, holds in INVARIANTS.items()
                    if not holds(self)
                ]
            return result

        setattr(WatchedConnection, name, watched)

    for event in ("connection_made", "data_received", "eof_received", "pause_writing", "resume_writing"):
        watch(event)
    for event in ("handle_deadline", "finish", "close", "abort", "connection_lost"):
        watch(event)
    monkeypatch.setattr(protocol, "HttpConnection", WatchedConnection)
    monkeypatch.setattr(front, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(life, "LINGER_SECONDS", 0.3)
    return record


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
        monkeypatch.setattr(life, "LINGER_SECONDS", 60)
    with serving(lookups, **limits, write_timeout_seconds=getattr(request, "param", 60)) as server:
        yield server


@dataclass
class Stage:
    """Where a scenario plays: one client of ``server``."""

    server: Server
    client: Client
    record: Record

    def wait(self, *phases: ClientPhase) -> None:
        """Until the connection has come into one of ``phases``."""
        eventually(lambda: any(end in phases for _, end in self.record.edges))

    def release(self) -> None:
        """Answer the lookups that are held."""
        self.server.call(self.server.lookups.release)

    def drain(self) -> None:
        """Have answers close their connections from now on."""
        self.server.call(self.server.front.drain)

    def break_off(self) -> None:
        """Reset the connection, as a client does that is killed."""
        self.client.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.raw.close()

    def read_all(self) -> None:
        """Take what comes until the end."""
        with contextlib.suppress(OSError):
            while self.client.raw.recv(1 << 20):
                pass


def fill_and_end(stage: Stage) -> None:
    """Have more come than is read at once while a lookup is held, and then the end: no event loop tells it while
    reading pauses, but it might. By hand, since what a socket gives at once may end within a request."""
    connection = stage.record.connections[0]

    def receive() -> bool:
        connection.data_received(MANY)
        assert connection._unread
        return connection.eof_received()

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
        lambda stage: stage.server.call(abort_all(stage)),
    ],
    (ClientPhase.FINISHING, ClientPhase.FINISHING_HALF_CLOSED): [finish, lambda stage: stage.client.half_close()],
    (ClientPhase.FINISHING, ClientPhase.LINGERING): [finish, Stage.release],
    (ClientPhase.FINISHING, ClientPhase.CLOSED): [finish, Stage.break_off],
    (ClientPhase.FINISHING_HALF_CLOSED, ClientPhase.CLOSING): [finish_half_closed, Stage.release],
    (ClientPhase.FINISHING_HALF_CLOSED, ClientPhase.CLOSED): [
        finish_half_closed,
        lambda stage: stage.server.call(abort_all(stage)),
    ],
    (ClientPhase.LINGERING, ClientPhase.CLOSING): [linger, lambda stage: stage.client.half_close()],
    (ClientPhase.LINGERING, ClientPhase.CLOSED): [linger],
    (ClientPhase.CLOSING, ClientPhase.CLOSED): [Stage.read_all],
}


def abort_all(stage: Stage) -> Callable[[], None]:
    """As the front does with what is not done when it closes."""

    def abort() -> None:
        for connection in stage.record.connections:
            connection.abort()

    return abort


@pytest.mark.parametrize(
    ("begin", "end"), EDGES, ids=[f"{begin.name.lower()} to {end.name.lower()}" for begin, end in EDGES]
)
def test_every_transition_of_the_table_happens_and_keeps_the_invariants(
    server: Server, record: Record, begin: ClientPhase, end: ClientPhase
) -> None:
    with server.connect(receive_buffer=4096) as client:
        eventually(lambda: record.connections)
        stage = Stage(server, client, record)
        for step in SCENARIOS[begin, end]:
            step(stage)
        eventually(lambda: (begin, end) in record.edges)
    stage.release()
    eventually(lambda: server.call(record.phases)[0] is ClientPhase.CLOSED)
    assert record.broken == []
    eventually(lambda: server.lookups.budget.used == 0)


@pytest.mark.parametrize("begin", ClientPhase)
@pytest.mark.parametrize("end", ClientPhase)
def test_no_other_transition_is_possible(server: Server, begin: ClientPhase, end: ClientPhase) -> None:
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
    """But the first one, and ``_enter``."""
    assert inspect.getsource(life).count("self.phase = ") == 2
    assert "self.phase = " not in inspect.getsource(connection_module)


class TestOverdue:
    """What the table of deadlines says."""

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
