"""A connection's states: every transition of its table, driven by what a client or the worker really does."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.invariants import check_invariants
from support.lone_connection import LoneConnection, keep_turns_going, moment
from support.shards import write_generation
from test_serve import request

from lookupdb.shard import connection as connections
from lookupdb.shard.commands import execute
from lookupdb.shard.connection import (
    ANSWERING,
    BROKEN,
    CLOSED,
    CLOSING,
    DRAIN_ANSWERING,
    DRAIN_READING,
    DRAIN_SENDING,
    EVENTS,
    HALF_CLOSED,
    READ,
    READING,
    SENDING,
    TRANSITIONS,
    WRITE,
    RespState,
)
from lookupdb.shard.limits import ServerLimits
from lookupdb.shardfile import ShardReader

BIG = request(b"GET", b"big")
REPLY = b"$60000\r\n%b\r\n" % (b"v" * 60_000)
MANY = request(b"MGET", *[b"big"] * 50)
MANY_REPLIES = b"*50\r\n" + REPLY * 50
QUIT = request(b"QUIT")
LIMITS = ServerLimits(output_high=250_000, slow_seconds=10, idle_seconds=1000)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> ShardReader:
    directory: Path = tmp_path_factory.mktemp("states")
    return ShardReader(next(write_generation(directory, {"big": b"v" * 60_000}).glob("*.lmdb")))


@pytest.fixture
def talk(shard: ShardReader, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoneConnection]:
    """A connection that reads."""
    keep_turns_going(monkeypatch)
    with contextlib.closing(LoneConnection(shard, LIMITS)) as talk:
        yield talk


def send_more_than_it_takes(talk: LoneConnection) -> None:
    talk.send(BIG)
    assert talk.connection.state in (SENDING, DRAIN_SENDING)


def ask_for_too_much(talk: LoneConnection) -> None:
    talk.send(MANY)
    talk.turn_until_full()
    assert talk.connection.state in (ANSWERING, DRAIN_ANSWERING)


def take_until(talk: LoneConnection, state: RespState) -> None:
    while talk.connection.state is not state:
        assert talk.take(1000)


class TestWhileTheWorkerServes:
    def test_a_reply_that_is_taken_at_once_changes_nothing(self, talk: LoneConnection) -> None:
        talk.send(request(b"GET", b"none") * 3)
        talk.send(b"PING\r\n")
        assert talk.take_rest() == b"$-1\r\n" * 3 + b"+PONG\r\n"
        assert talk.connection.moves == []

    def test_a_part_of_a_request_changes_nothing_but_who_reads_the_rest(self, talk: LoneConnection) -> None:
        talk.send(BIG[:5])
        assert talk.connection.moves == []
        talk.send(BIG[5:])
        assert talk.take(len(REPLY)) == REPLY

    def test_a_client_that_takes_less_than_a_reply_may_ask_on(self, talk: LoneConnection) -> None:
        send_more_than_it_takes(talk)
        talk.send(b"PING\r\n")
        assert talk.connection.state is SENDING
        assert talk.take_rest() == REPLY + b"+PONG\r\n"
        assert talk.connection.moves == [(READING, SENDING), (SENDING, READING)]

    def test_a_client_that_leaves_too_much_may_ask_again_when_it_has_taken_half(self, talk: LoneConnection) -> None:
        ask_for_too_much(talk)
        taken = talk.take(len(MANY_REPLIES) - LIMITS.output_high // 4)
        assert talk.connection.state is SENDING
        assert taken + talk.take_rest() == MANY_REPLIES
        assert talk.connection.moves == [(READING, ANSWERING), (ANSWERING, SENDING), (SENDING, READING)]

    def test_a_client_that_takes_one_reply_too_few_asks_for_too_much(self, talk: LoneConnection) -> None:
        send_more_than_it_takes(talk)
        ask_for_too_much(talk)
        assert talk.take_rest() == REPLY + MANY_REPLIES
        assert (SENDING, ANSWERING) in talk.connection.moves

    def test_a_turn_that_is_over_is_continued_behind_the_others(
        self, talk: LoneConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "TIME_SLICE_SECONDS", -1.0)
        talk.send(b"PING\r\n" * 3)
        assert talk.connection.state is ANSWERING
        assert talk.take_rest() == b"+PONG\r\n" * 3
        assert talk.connection.moves == [(READING, ANSWERING), (ANSWERING, READING)]


class TestItsLastReplies:
    @pytest.mark.parametrize("state", [SENDING, DRAIN_SENDING])
    def test_a_client_that_ends_its_stream_gets_what_it_asked_for(self, talk: LoneConnection, state: RespState) -> None:
        send_more_than_it_takes(talk)
        if state is DRAIN_SENDING:
            talk.connection.drain()
        end_stream(talk)
        assert talk.connection.moves[-1] == (state, CLOSING)
        assert talk.take_rest() == REPLY
        assert talk.connection.moves[-1] == (CLOSING, CLOSED)

    def test_one_that_is_owed_nothing_is_closed(self, talk: LoneConnection) -> None:
        end_stream(talk)
        assert talk.connection.moves == [(READING, CLOSED)]

    @pytest.mark.parametrize("last", [QUIT, b"*1\r\n+"])
    @pytest.mark.parametrize("draining", [False, True])
    def test_after_quit_or_what_is_not_resp_nothing_is_read(
        self, talk: LoneConnection, last: bytes, draining: bool
    ) -> None:
        if draining:
            talk.connection.drain()
        talk.send(BIG + b"PING\r\n" + last + BIG)
        assert talk.connection.moves[-1] == (DRAIN_READING if draining else READING, CLOSING)
        answer = talk.take_rest()
        assert answer.startswith(REPLY + b"+PONG\r\n" + (b"+OK\r\n" if last == QUIT else b"-ERR Protocol error"))
        assert answer.count(b"v") == 60_000
        assert talk.connection.moves[-1] == (CLOSING, CLOSED)

    @pytest.mark.parametrize("draining", [False, True])
    def test_quit_that_comes_while_replies_are_sent(self, talk: LoneConnection, draining: bool) -> None:
        send_more_than_it_takes(talk)
        if draining:
            talk.connection.drain()
        talk.send(QUIT)
        assert talk.connection.moves[-1] == (DRAIN_SENDING if draining else SENDING, CLOSING)
        assert talk.take_rest() == REPLY + b"+OK\r\n"
        assert talk.connection.state is CLOSED

    @pytest.mark.parametrize("draining", [False, True])
    def test_quit_behind_more_than_the_client_takes(self, talk: LoneConnection, draining: bool) -> None:
        talk.send(BIG * 50 + QUIT)
        talk.turn_until_full()
        if draining:
            talk.connection.drain()
        assert talk.take_rest() == REPLY * 50 + b"+OK\r\n"
        assert talk.connection.moves[-2:] == [(DRAIN_ANSWERING if draining else ANSWERING, CLOSING), (CLOSING, CLOSED)]


class TestWhenTheWorkerEnds:
    def test_the_next_reply_is_the_last(self, talk: LoneConnection) -> None:
        talk.connection.drain()
        talk.send(request(b"GET", b"none"))
        assert talk.take_rest() == b"$-1\r\n"
        assert talk.connection.moves == [(READING, DRAIN_READING), (DRAIN_READING, HALF_CLOSED)]

    def test_a_client_that_asks_nothing_more_is_told_and_what_it_then_sends_is_dropped(
        self, talk: LoneConnection
    ) -> None:
        talk.connection.drain()
        talk.connection.end()
        assert talk.client.recv(10) == b""
        talk.send(BIG)
        assert talk.take_rest() == b""
        talk.client.close()
        talk.turn()
        assert talk.connection.moves == [(READING, DRAIN_READING), (DRAIN_READING, HALF_CLOSED), (HALF_CLOSED, CLOSED)]

    def test_a_last_reply_that_is_not_taken_at_once_is_sent_to_its_end(self, talk: LoneConnection) -> None:
        talk.connection.drain()
        send_more_than_it_takes(talk)
        talk.connection.end()
        assert talk.take_rest() == REPLY
        assert talk.connection.moves[1:] == [(DRAIN_READING, DRAIN_SENDING), (DRAIN_SENDING, HALF_CLOSED)]

    def test_so_is_a_large_one(self, talk: LoneConnection) -> None:
        talk.connection.drain()
        ask_for_too_much(talk)
        taken = talk.take(len(MANY_REPLIES) - LIMITS.output_high // 4)
        talk.connection.end()
        assert taken + talk.take_rest() == MANY_REPLIES
        assert talk.connection.moves[1:] == [
            (DRAIN_READING, DRAIN_ANSWERING),
            (DRAIN_ANSWERING, DRAIN_SENDING),
            (DRAIN_SENDING, HALF_CLOSED),
        ]

    def test_a_client_that_asks_on_while_it_is_sent_its_replies(self, talk: LoneConnection) -> None:
        send_more_than_it_takes(talk)
        talk.connection.drain()
        ask_for_too_much(talk)
        assert talk.take_rest() == REPLY + MANY_REPLIES
        assert (DRAIN_SENDING, DRAIN_ANSWERING) in talk.connection.moves
        assert talk.connection.state is HALF_CLOSED

    def test_replies_that_are_being_made_are_the_last(
        self, talk: LoneConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "TIME_SLICE_SECONDS", -1.0)
        talk.send(b"PING\r\n" * 3)
        talk.connection.drain()
        assert talk.take_rest() == b"+PONG\r\n" * 3
        assert talk.connection.moves[1:] == [(ANSWERING, DRAIN_ANSWERING), (DRAIN_ANSWERING, HALF_CLOSED)]

    def test_a_client_that_has_ended_its_stream_gets_them_all_and_no_reset_for_what_it_asked_behind(
        self, talk: LoneConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "TIME_SLICE_SECONDS", -1.0)
        talk.send(b"PING\r\n" * 3)
        talk.client.sendall(b"PING\r\n" * 5000)
        talk.client.shutdown(socket.SHUT_WR)
        talk.connection.drain()
        assert talk.take_rest() == b"+PONG\r\n" * 3
        assert talk.client.recv(10) == b""
        assert talk.connection.moves[-1] == (HALF_CLOSED, CLOSED)


def bring_to(state: RespState, talk: LoneConnection) -> None:
    if state in (DRAIN_READING, DRAIN_SENDING, DRAIN_ANSWERING, HALF_CLOSED):
        talk.connection.drain()
    if state in (SENDING, DRAIN_SENDING):
        send_more_than_it_takes(talk)
    elif state in (ANSWERING, DRAIN_ANSWERING):
        ask_for_too_much(talk)
    elif state is CLOSING:
        talk.send(BIG + QUIT)
    elif state is HALF_CLOSED:
        talk.connection.end()
    assert talk.connection.state is state


ENDABLE = [state for state in RespState if state is not CLOSED]


@pytest.mark.parametrize("state", ENDABLE)
def test_in_every_state_a_client_that_is_gone_is_closed(talk: LoneConnection, state: RespState) -> None:
    bring_to(state, talk)
    talk.client.close()
    assert talk.turn() & BROKEN
    assert talk.connection.moves[-1] == (state, CLOSED)
    assert talk.worker.budget.total == 0


def test_an_event_of_the_client_that_had_its_descriptor_when_the_turn_began_closes_nobody(talk: LoneConnection) -> None:
    talk.connection.handle_events(BROKEN)
    talk.send(b"PING\r\n")
    assert talk.take_rest() == b"+PONG\r\n"


UNAWAITED = [(state, event) for state in ENDABLE for event in (READ, WRITE) if not event & EVENTS[state]]


@pytest.mark.parametrize(("state", "event"), UNAWAITED)
def test_an_event_that_has_waited_since_the_client_was_in_another_state_does_nothing(
    talk: LoneConnection, state: RespState, event: int
) -> None:
    bring_to(state, talk)
    talk.client.sendall(b"PING\r\n")
    before = list(talk.connection.moves)
    talk.connection.handle_events(event)
    check_invariants(talk.connection)
    assert talk.connection.moves == before
    if state is ANSWERING:
        assert talk.take(len(MANY_REPLIES) + 7) == MANY_REPLIES + b"+PONG\r\n"


def test_nothing_is_read_for_a_client_whose_lookups_wait_for_a_disk(talk: LoneConnection) -> None:
    parked: list[object] = []
    talk.poller.park = parked.append
    talk.connection.choose_path()
    talk.send(BIG)
    assert parked == [talk.connection]
    talk.client.sendall(request(b"GET", b"none"))
    talk.connection.handle_events(READ)
    talk.poller.park = None
    talk.connection.unpark()
    assert talk.take(len(REPLY) + 5) == REPLY + b"$-1\r\n"


def test_a_time_slice_may_end_between_any_two_large_values_of_an_exists(talk: LoneConnection) -> None:
    replies = execute(talk.connection._session, [b"EXISTS", *[b"big"] * 20])
    assert list(replies).count(b"") >= 9


@pytest.mark.parametrize("state", ENDABLE)
def test_in_every_state_a_client_that_does_nothing_is_cut(talk: LoneConnection, state: RespState) -> None:
    bring_to(state, talk)
    now = moment()
    patience = LIMITS.slow_seconds if EVENTS[state] != EVENTS[READING] else LIMITS.idle_seconds
    assert not talk.is_cut(now)
    assert not talk.is_cut(now + patience - 1)
    assert talk.is_cut(now + patience + 1)
    assert talk.connection.moves[-1] == (state, CLOSED)


def test_one_without_the_password_is_cut_soon_whatever_it_does(shard: ShardReader) -> None:
    with contextlib.closing(LoneConnection(shard, replace(LIMITS, auth_seconds=5), b"secret")) as talk:
        now = moment()
        for second in range(4):
            talk.send(b"PING\r\n")
            assert not talk.is_cut(now + second)
        assert talk.is_cut(now + 6)


EVERY_TRANSITION = {(state, following) for state, others in TRANSITIONS.items() for following in others}
IMPOSSIBLE = [pair for pair in itertools.permutations(RespState, 2) if pair not in EVERY_TRANSITION]


@pytest.mark.parametrize("state", sorted({state for state, _ in IMPOSSIBLE}))
def test_a_transition_that_is_not_in_the_table_is_impossible(talk: LoneConnection, state: RespState) -> None:
    if state is CLOSED:
        talk.connection.close()
    else:
        bring_to(state, talk)
    for begin, following in IMPOSSIBLE:
        if begin is state:
            with pytest.raises(RuntimeError, match=f"cannot go from {state.name} to {following.name}"):
                talk.connection._enter(following)


def queue(talk: LoneConnection, requests: bytes) -> None:
    """Let a turn be over before the first of ``requests`` is answered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "TIME_SLICE_SECONDS", -1.0)
        talk.send(requests)


def end_stream(talk: LoneConnection) -> None:
    talk.client.shutdown(socket.SHUT_WR)
    talk.turn()


def go_away(talk: LoneConnection) -> None:
    talk.client.close()
    talk.turn()


DRIVES: dict[tuple[RespState, RespState], Callable[[LoneConnection], object]] = {
    (READING, SENDING): lambda talk: talk.send(BIG),
    (READING, ANSWERING): ask_for_too_much,
    (READING, DRAIN_READING): lambda talk: talk.connection.drain(),
    (READING, CLOSING): lambda talk: talk.send(BIG + QUIT),
    (READING, CLOSED): lambda talk: talk.send(QUIT),
    (SENDING, READING): lambda talk: talk.take_rest(),
    (SENDING, ANSWERING): ask_for_too_much,
    (SENDING, DRAIN_SENDING): lambda talk: talk.connection.drain(),
    (SENDING, CLOSING): end_stream,
    (SENDING, CLOSED): lambda talk: talk.connection.cut(),
    (ANSWERING, READING): lambda talk: talk.take_rest(),
    (ANSWERING, SENDING): lambda talk: take_until(talk, SENDING),
    (ANSWERING, DRAIN_ANSWERING): lambda talk: talk.connection.drain(),
    (ANSWERING, CLOSING): lambda talk: talk.turn_until_full(),
    (ANSWERING, CLOSED): lambda talk: talk.connection.cut(),
    (DRAIN_READING, DRAIN_SENDING): lambda talk: talk.send(BIG),
    (DRAIN_READING, DRAIN_ANSWERING): ask_for_too_much,
    (DRAIN_READING, CLOSING): lambda talk: talk.send(BIG + QUIT),
    (DRAIN_READING, HALF_CLOSED): lambda talk: talk.connection.end(),
    (DRAIN_READING, CLOSED): lambda talk: talk.send(QUIT),
    (DRAIN_SENDING, DRAIN_ANSWERING): ask_for_too_much,
    (DRAIN_SENDING, CLOSING): end_stream,
    (DRAIN_SENDING, HALF_CLOSED): lambda talk: talk.take_rest(),
    (DRAIN_SENDING, CLOSED): lambda talk: talk.connection.cut(),
    (DRAIN_ANSWERING, DRAIN_SENDING): lambda talk: take_until(talk, DRAIN_SENDING),
    (DRAIN_ANSWERING, CLOSING): lambda talk: talk.turn_until_full(),
    (DRAIN_ANSWERING, HALF_CLOSED): lambda talk: talk.take_rest(),
    (DRAIN_ANSWERING, CLOSED): lambda talk: talk.connection.cut(),
    (CLOSING, CLOSED): lambda talk: talk.take_rest(),
    (HALF_CLOSED, CLOSED): go_away,
}
"""The transitions between states, with real sockets."""
QUEUED: dict[tuple[RespState, RespState], bytes] = {
    (ANSWERING, READING): b"PING\r\n" * 3,
    (ANSWERING, CLOSING): b"PING\r\n" + BIG + QUIT,
    (DRAIN_ANSWERING, CLOSING): b"PING\r\n" + BIG + QUIT,
    (DRAIN_ANSWERING, HALF_CLOSED): b"PING\r\n" * 3,
}
"""The replies that are still owed in the first state, unless they depend on the client alone."""


@pytest.mark.parametrize(("state", "following"), sorted(EVERY_TRANSITION))
def test_every_transition_of_the_table_happens(talk: LoneConnection, state: RespState, following: RespState) -> None:
    if requests := QUEUED.get((state, following)):
        queue(talk, requests)
        if state is DRAIN_ANSWERING:
            talk.connection.drain()
    else:
        bring_to(state, talk)
    assert talk.connection.state is state
    moves = len(talk.connection.moves)
    DRIVES[state, following](talk)
    assert talk.connection.moves[moves] == (state, following)


def test_a_transaction_queues_lookups_and_is_none_of_the_hot_path(talk: LoneConnection) -> None:
    def is_fast() -> bool:
        return bool(talk.poller.fast_path[talk.connection.fd])

    data = BIG + request(b"MULTI") + BIG + request(b"mget", b"none") + request(b"GETRANGE", b"big", b"0", b"1") + BIG
    data += request(b"EXEC") + request(b"STRLEN", b"big") + BIG
    queued = b"+OK\r\n" + b"+QUEUED\r\n" * 4
    expected = REPLY + queued + b"*4\r\n" + REPLY + b"*1\r\n$-1\r\n$2\r\nvv\r\n" + REPLY + b":60000\r\n" + REPLY
    for cut in range(1, len(data), 3):
        for part in (data[:cut], data[cut:]):
            talk.send(part)
            assert not (is_fast() and talk.connection._session.transaction)
        assert talk.take(len(expected)) == expected
        assert is_fast()
    talk.send(request(b"MULTI"))
    talk.send(BIG)
    assert not is_fast()
    assert talk.connection.held_bytes > 100
    assert talk.take_rest() == b"+OK\r\n+QUEUED\r\n"
    talk.send(request(b"DISCARD"))
    assert talk.connection.held_bytes == 0
    assert is_fast()


def test_what_is_queued_is_held_until_the_last_reply_is_made(talk: LoneConnection) -> None:
    talk.send(request(b"MULTI") + request(b"ECHO", b"x" * 8_000) + BIG * 50 + request(b"EXEC") + b"PING\r\n")
    talk.turn_until_full()
    assert talk.connection.state is ANSWERING
    assert talk.connection.held_bytes > len(talk.connection._output.unsent) + 8_000 + 50 * 100
    answer = b"+OK\r\n" + b"+QUEUED\r\n" * 51 + b"*51\r\n$8000\r\n%b\r\n" % (b"x" * 8_000) + REPLY * 50 + b"+PONG\r\n"
    assert talk.take(len(answer)) == answer
    assert talk.connection.held_bytes == 0
