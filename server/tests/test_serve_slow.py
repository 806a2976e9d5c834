"""A client that reads none of its replies is cut, however few they are. The test sets the clock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.lone_connection import LoneConnection, keep_turns_going, moment
from support.shards import write_generation
from test_serve import request

from lookupdb.shard import connection as connections
from lookupdb.shard.connection import READ
from lookupdb.shard.limits import ServerLimits
from lookupdb.shardfile import ShardReader

VALUE = b"v" * 60_000
REPLY = b"$60000\r\n%b\r\n" % VALUE
LIMITS = ServerLimits(output_high=1 << 30, slow_seconds=10, idle_seconds=1000)
"""Nothing pauses a client here."""


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> ShardReader:
    generation = write_generation(tmp_path_factory.mktemp("slow"), {"big": VALUE})
    return ShardReader(next(generation.glob("*.lmdb")))


@pytest.fixture
def talk(shard: ShardReader, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoneConnection]:
    keep_turns_going(monkeypatch)
    talk = LoneConnection(shard, LIMITS)
    yield talk
    talk.close()


def ask(talk: LoneConnection, *keys: bytes) -> None:
    talk.send(b"".join(request(b"GET", key) for key in keys))


def test_who_takes_nothing_is_cut_although_it_is_owed_less_than_pauses_it(talk: LoneConnection) -> None:
    ask(talk, b"big", b"big")
    talk.turn_until_full()
    now = moment()
    assert not talk.is_cut(now)
    assert not talk.is_cut(now + 9)
    assert talk.is_cut(now + 11)


def test_also_when_its_turn_was_over_before_anything_was_owed(
    talk: LoneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TIME_SLICE_SECONDS", -1.0)
    talk.client.sendall(request(b"PING") * 1000)
    talk.turn_until_full()
    now = moment()
    assert not talk.is_cut(now)
    assert talk.is_cut(now + 11)


def test_who_goes_on_asking_and_takes_nothing_is_cut(talk: LoneConnection) -> None:
    ask(talk, b"big")
    now = moment()
    for second in range(11):
        assert not talk.is_cut(now + second)
        talk.client.sendall(request(b"PING"))
        assert talk.turn() == READ
    assert talk.is_cut(now + 11)


def test_who_takes_something_now_and_then_is_not_cut_and_gets_everything(talk: LoneConnection) -> None:
    ask(talk, *[b"big"] * 20)
    now, taken = moment(), b""
    for number in range(20):
        taken += talk.take(len(REPLY))
        assert not talk.is_cut(now + 9 * number)
    assert taken == REPLY * 20


def test_who_asks_after_a_long_pause_has_all_its_time_to_take_the_reply(talk: LoneConnection) -> None:
    now = moment()
    assert not talk.is_cut(now)
    assert not talk.is_cut(now + 990)
    talk.connection.receive(request(b"GET", b"big"))  # as the loop does, which reads by itself
    assert not talk.is_cut(now + 1010)
    assert not talk.is_cut(now + 1019)
    assert talk.is_cut(now + 1021)


def test_who_has_taken_everything_may_be_idle_for_longer(talk: LoneConnection) -> None:
    ask(talk, b"big")
    assert talk.take(len(REPLY)) == REPLY
    now = moment()
    assert not talk.is_cut(now)
    assert not talk.is_cut(now + 999)
    assert talk.is_cut(now + 1001)


def test_idle_seconds_of_0_spare_nobody_who_takes_nothing(shard: ShardReader) -> None:
    talk = LoneConnection(shard, replace(LIMITS, idle_seconds=0))
    with contextlib.closing(talk):
        now = moment()
        assert not talk.is_cut(now)
        assert not talk.is_cut(now + 1e6)
        ask(talk, b"big")
        assert not talk.is_cut(now + 1e6)
        assert talk.is_cut(now + 1e6 + 11)
