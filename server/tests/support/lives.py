"""Client connections of a router that write down their transitions, and the steps of scenarios, for any protocol."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from lookupdb.router import clients
from lookupdb.router.clients import TRANSITIONS, ClientPhase
from support.http import eventually

Edge = tuple[ClientPhase, ClientPhase]
EDGES = [(begin, end) for begin, ends in TRANSITIONS.items() for end in ends]
EDGE_NAMES = [f"{begin.name.lower()} to {end.name.lower()}" for begin, end in EDGES]
EVENTS = ("connection_made", "data_received", "eof_received", "pause_writing", "resume_writing") + (
    "handle_deadline",
    "finish",
    "close",
    "abort",
    "connection_lost",
)


@dataclass
class Record:
    """The states that a test's connections were in, and the invariants broken after each event."""

    edges: list[Edge] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    connections: list[Any] = field(default_factory=list)

    def phases(self) -> list[ClientPhase]:
        """The current phase of each connection."""
        return [connection.phase for connection in self.connections]


def watch_connections(
    monkeypatch: pytest.MonkeyPatch,
    protocol: ModuleType,
    name: str,
    invariants: Mapping[str, Callable[[Any], bool]],
    more_events: Iterable[str] = (),
) -> Record:
    """Make connections of the class ``protocol.name`` record every transition and check invariants after every event.

    Sweeps are frequent, and connections do not linger for long.
    """
    record = Record()
    kind: Any = getattr(protocol, name)

    class WatchedConnection(kind):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            record.connections.append(self)

        def _enter(self, phase: ClientPhase) -> None:
            record.edges.append((self.phase, phase))
            super()._enter(phase)

    def watch(event: str) -> None:
        original = getattr(kind, event)

        def watched(self: Any, *arguments: Any) -> Any:
            result = original(self, *arguments)
            if not self._is_advancing:
                record.broken += [
                    f"{rule!r} after {event} in {self.phase.name}"
                    for rule, holds in invariants.items()
                    if not holds(self)
                ]
            return result

        setattr(WatchedConnection, event, watched)

    for event in (*EVENTS, *more_events):
        watch(event)
    monkeypatch.setattr(protocol, name, WatchedConnection)
    monkeypatch.setattr(clients, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(clients, "LINGER_SECONDS", 0.3)
    return record


@dataclass
class Stage:
    """One client of ``server``, with the steps of scenarios."""

    server: Any
    client: Any
    record: Record

    def wait(self, *phases: ClientPhase) -> None:
        """Wait until the connection has entered one of ``phases``."""
        eventually(lambda: any(end in phases for _, end in self.record.edges))

    def release(self) -> None:
        """Answer the lookups that are held."""
        self.server.call(self.server.lookups.release)

    def drain(self) -> None:
        """Make answers close their connections from now on."""
        self.server.call(self.server.front.drain)

    def break_off(self) -> None:
        """Reset the connection, as if the client were killed."""
        self.client.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.raw.close()

    def read_all(self) -> None:
        """Read until the end of the stream."""
        with contextlib.suppress(OSError):
            while self.client.raw.recv(1 << 20):
                pass

    def abort(self) -> None:
        """Abort all connections, as the front does on shutdown."""

        def abort() -> None:
            for connection in self.record.connections:
                connection.abort()

        self.server.call(abort)


def play(stage: Stage, steps: Iterable[Callable[[Stage], object]], edge: Edge) -> None:
    """Wait for the connection, take ``steps``, and wait for their transition."""
    eventually(lambda: stage.record.connections)
    for step in steps:
        step(stage)
    eventually(lambda: edge in stage.record.edges)


def check_end(stage: Stage) -> None:
    """Check that the connection ends, broke no invariant, and holds nothing."""
    stage.release()
    eventually(lambda: stage.server.call(stage.record.phases)[0] is ClientPhase.CLOSED)
    assert stage.record.broken == []
    eventually(lambda: stage.server.lookups.budget.used == 0)
