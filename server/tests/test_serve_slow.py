"""A client that takes nothing of its replies is cut, however little it is owed. The test says what time it is."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.shards import write_generation
from test_serve import request

from lookupdb.serve import connection as connections
from lookupdb.serve import counted
from lookupdb.serve.connection import Connection
from lookupdb.serve.limits import Limits
from lookupdb.serve.session import Host, Identity
from lookupdb.serve.watch import READ, WRITE, Watch
from lookupdb.shardfile import ShardReader

VALUE = b"v" * 60_000
REPLY = b"$60000\r\n%b\r\n" % VALUE
LIMITS = Limits(output_high=1 << 30, slow_seconds=10, idle_seconds=1000)
"""Nothing pauses a client here."""


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> ShardReader:
    generation = write_generation(tmp_path_factory.mktemp("slow"), {"big": VALUE})
    return ShardReader(next(generation.glob("*.lmdb")))


class Talk:
    """One client and the worker's end of it, whose loop is the test: ``turn`` is one round of it."""

    def __init__(self, shard: ShardReader, limits: Limits = LIMITS) -> None:
        self.slot = memoryview(bytearray(8 * len(counted.NAMES) + 8)).cast("q")
        identity = Identity(1, "default/slow", "", "generation", 0, 1, 1, (), "raw")
        self.host = Host(shard=shard, identity=identity, limits=limits, slot=self.slot)
        server, self.client = socket.socketpair()
        server.setblocking(False)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.watch = Watch()
        self.connection = Connection(self.host, self.watch, server)
        self.host.connections[self.connection.fd] = self.connection

    def ask(self, *keys: bytes) -> None:
        self.client.sendall(b"".join(request(b"GET", key) for key in keys))
        self.turn()

    def turn(self) -> int:
        """What was ready is handled."""
        ready = 0
        for _, events in self.watch.epoll.poll(0):
            ready |= events
            self.connection.ready(events)
        return ready

    def turn_until_full(self) -> None:
        while self.turn() & WRITE:
            pass

    def take(self, size: int) -> bytes:
        taken = bytearray()
        while len(taken) < size and select.select([self.client], [], [], 10)[0]:
            taken += self.client.recv(size - len(taken))
            self.turn()
        return bytes(taken)

    def is_cut(self, now: float) -> bool:
        """Whether the sweep at ``now`` cuts it, or an earlier one has."""
        if self.host.connections:
            self.connection.sweep(now)
        return self.slot[counted.CONNECTIONS_CUT] == 1


@pytest.fixture
def talk(shard: ShardReader) -> Iterator[Talk]:
    talk = Talk(shard)
    with contextlib.closing(talk.client):
        yield talk
        talk.connection.close()


def start() -> float:
    """A time after the connection was made."""
    return time.monotonic() + 1


def test_who_takes_nothing_is_cut_although_it_is_owed_less_than_pauses_it(talk: Talk) -> None:
    talk.ask(b"big", b"big")
    talk.turn_until_full()
    now = start()
    assert not talk.is_cut(now)
    assert not talk.is_cut(now + 9)
    assert talk.is_cut(now + 11)


def test_also_when_its_turn_was_over_before_anything_was_owed(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TURN_SECONDS", -1.0)
    talk.client.sendall(request(b"PING") * 1000)
    talk.turn_until_full()
    now = start()
    assert not talk.is_cut(now)
    assert talk.is_cut(now + 11)


def test_who_goes_on_asking_and_takes_nothing_is_cut(talk: Talk) -> None:
    talk.ask(b"big")
    now = start()
    for second in range(11):
        assert not talk.is_cut(now + second)
        talk.client.sendall(request(b"PING"))
        assert talk.turn() == READ
    assert talk.is_cut(now + 11)


def test_who_takes_something_now_and_then_is_not_cut_and_gets_everything(talk: Talk) -> None:
    talk.ask(*[b"big"] * 20)
    now, taken = start(), b""
    for number in range(20):
        taken += talk.take(len(REPLY))
        assert not talk.is_cut(now + 9 * number)
    assert taken == REPLY * 20


def test_who_asks_after_a_long_pause_has_all_its_time_to_take_the_reply(talk: Talk) -> None:
    now = start()
    assert not talk.is_cut(now)
    assert not talk.is_cut(now + 990)
    talk.connection.received(request(b"GET", b"big"))  # as the loop does, which reads by itself
    assert not talk.is_cut(now + 1010)
    assert not talk.is_cut(now + 1019)
    assert talk.is_cut(now + 1021)


def test_who_has_taken_everything_may_be_idle_for_longer(talk: Talk) -> None:
    talk.ask(b"big")
    assert talk.take(len(REPLY)) == REPLY
    now = start()
    assert not talk.is_cut(now)
    assert not talk.is_cut(now + 999)
    assert talk.is_cut(now + 1001)


def test_idle_seconds_of_0_spare_nobody_who_takes_nothing(shard: ShardReader) -> None:
    talk = Talk(shard, replace(LIMITS, idle_seconds=0))
    with contextlib.closing(talk.client):
        now = start()
        assert not talk.is_cut(now)
        assert not talk.is_cut(now + 1e6)
        talk.ask(b"big")
        assert not talk.is_cut(now + 1e6)
        assert talk.is_cut(now + 1e6 + 11)
        talk.connection.close()
