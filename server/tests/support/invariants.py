"""Conditions that hold for clients' connections between two events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lookupdb.router.clients import FINISHING, LINGERING, READING, READING_HALF_CLOSED, RECEIVING
from lookupdb.router.resp.reader import TURN_BYTES
from lookupdb.shard.connection import (
    ANSWERING,
    BUSY,
    CLOSED,
    CLOSING,
    DRAIN_ANSWERING,
    DRAIN_SENDING,
    NOTHING_DUE,
    SENDING,
    RespConnection,
)

CLIENTS: Final[dict[str, Callable[[Any], bool]]] = {
    "READING: no partial request has arrived": lambda connection: (
        connection.phase is not READING or not connection._has_part()
    ),
    "RECEIVING: a partial request has arrived": lambda connection: (
        connection.phase is not RECEIVING or connection._has_part()
    ),
    "READING_HALF_CLOSED: something is unread, or the client blocked": lambda connection: (
        connection.phase is not READING_HALF_CLOSED or connection._has_unread() or connection.is_blocked
    ),
    "FINISHING: answers are due": lambda connection: (
        not FINISHING <= connection.phase < LINGERING or connection._is_due()
    ),
    "from LINGERING on: nothing is due or kept": lambda connection: (
        connection.phase < LINGERING
        or not (connection._is_due() or connection._has_unread() or connection._input_bytes)
    ),
    "bytes are unsent only while the client is blocked": lambda connection: (
        not connection._unsent_bytes or connection.is_blocked
    ),
}
"""Conditions that hold for every connection between two events."""

HTTP: Final[dict[str, Callable[[Any], bool]]] = {
    **CLIENTS,
    "from LINGERING on: no answer is kept": lambda connection: (
        connection.phase < LINGERING or not connection._waiting_answer_bytes
    ),
    "a request waits only for another, or for the client": lambda connection: (
        not connection._waiting or bool(connection._pending) or connection.is_blocked
    ),
    "bytes are unread only while a request waits": lambda connection: (
        not connection._unread or bool(connection._waiting)
    ),
    "an answer is kept only behind one that is due": lambda connection: (
        not connection._waiting_answer_bytes or bool(connection._pending)
    ),
}
"""Conditions that hold for every ``HttpConnection`` between two events."""

RESP: Final[dict[str, Callable[[Any], bool]]] = {
    **CLIENTS,
    "commands are unread only while one is under way, the client blocked, or others have their turn": lambda it: (
        not it._reader.has_unread or it._exchange is not None or it.is_blocked or it._is_resting
    ),
    "a partial command is parsed as far as it goes": lambda it: not (it._reader.is_partial and it._reader.is_empty),
    "nothing is read while something is unread, or others have their turn": lambda it: (
        it.phase >= FINISHING
        or it.is_blocked  # pauses reading, too
        or it._is_paused is (it._is_resting or (it._reader.has_unread and not it._reader.is_partial))
    ),
    "a client that has sent much waits for others": lambda it: (
        it.phase >= FINISHING or it._is_resting or it._turn_bytes < TURN_BYTES
    ),
    "replies of a turn are sent when it ends": lambda it: not it._replies,
    "all received bytes are counted": lambda it: it.phase >= LINGERING or it._input_bytes == it._measure_input(),
}
"""Conditions that hold for every ``RedisClientConnection`` between two events."""


def check_invariants(it: RespConnection) -> None:
    """Raise AssertionError if an invariant does not hold between two events."""
    state, replies, output = it._state, it._replies, it._output
    if state in NOTHING_DUE:
        assert replies is None, f"{state.name}: replies are still to be made"
        assert not output.unsent, f"{state.name}: replies are still to be sent"
    elif state in (SENDING, DRAIN_SENDING):
        assert replies is None, f"{state.name}: replies are still to be made"
        assert output.unsent, f"{state.name}: everything is sent"
        assert not output.is_paused, f"{state.name}: still reads from a client that does not read its replies"
    elif state in (ANSWERING, DRAIN_ANSWERING):
        assert replies is not None or output.is_paused, f"{state.name}: nothing keeps the client from asking"
    elif state is CLOSING:
        assert replies is not None or output.unsent, "CLOSING: there is nothing to wait for"
    assert output.unsent or not output.is_paused, "nothing unsent, and yet too much of it"
    assert state in (CLOSING, CLOSED) or not it._session.is_closing, f"{state.name}: its last reply is made"
    assert state is CLOSED or it.held_bytes == it._measure_held_bytes(), "the budget counts something else"
    assert (it.fd in it._worker.connections) is (state is not CLOSED), "the worker's list is wrong"
    if state is not CLOSED:
        is_fast = it._is_for_hot_path()
        assert (it._poller.fast_path[it.fd] != BUSY) is is_fast, f"{state.name}: fast path {not is_fast}"
