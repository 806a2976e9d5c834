"""One RESP client connection: commands arrive, and replies leave in their order.

A connection has one pending exchange: GETs that arrived together, up to ``GROUP_KEYS``, one other lookup command, or
one EXEC. Meanwhile the connection reads nothing, so that GETs from a client's many threads gather in the socket.
Between MULTI and EXEC, commands are queued. All other commands are answered at once. Nothing begins while the client
does not read its replies. The worker's budget counts everything beyond the fixed cost of a connection.

``clients`` has the phases of a connection and everything that ends it.
"""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import Final

from lookupdb.resp.commands import find_transaction
from lookupdb.resp.requests import (
    CRLF,
    GET_ENDS,
    GET_HEADS,
    GET_KEYS,
    LOOKUPS,
    MANY_KEYS,
    NO_ARRAY,
    Command,
    ProtocolError,
    error,
)
from lookupdb.router.batch_keys import GETS
from lookupdb.router.clients import (
    FINISHING,
    LINGERING,
    READING,
    RECEIVING,
    Answer,
    ClientFront,
    ConnectionLife,
    ConnectionRefusal,
)
from lookupdb.router.counters import FAILED, INDEX, REFUSED
from lookupdb.router.lookups import OVERLOADED
from lookupdb.router.resp import exchanges
from lookupdb.router.resp.exchanges import BATCH, LOOKUP, OTHER, GetsExchange, KeyExchange, KeysExchange
from lookupdb.router.resp.reader import REPLY_BYTES, TURN_BYTES, TURN_COMMANDS, CommandReader, LookupCommands

_ERRORS: Final = INDEX["resp_errors"]
_REQUESTS_REFUSED: Final = INDEX["requests_refused"]
_OVERLOADED: Final = INDEX["requests_overloaded"]
_HEADS: Final = len(GET_HEADS)
_REFUSALS: Final = {
    ConnectionRefusal.MALFORMED: ("ERR Protocol error:", REFUSED),
    ConnectionRefusal.LATE: ("ERR Protocol error:", REFUSED),
    ConnectionRefusal.OVERLOADED: (f"UNAVAILABLE {OVERLOADED.reason}", FAILED),
    ConnectionRefusal.TOO_MANY_CONNECTIONS: ("ERR max number of clients reached:", None),
}
_WRONG_PROTOCOL: Final = error("ERR this port speaks TLS: connect with it (rediss://, --tls)")


class RedisClientConnection(ConnectionLife):
    """One client connection, which is in ``registry`` until it is lost."""

    __slots__ = (
        "_exchange",
        "_farewell",
        "_is_advancing",
        "_is_paused",
        "_is_resting",
        "_reader",
        "_replies",
        "_reply_bytes",
        "_turn_bytes",
        "arrived",
        "lookups",
        "service",
        "session",
    )

    def __init__(self, service: exchanges.RespService, registry: ClientFront) -> None:
        super().__init__(service, registry)
        self.service: exchanges.RespService = service
        self.lookups = service.lookups
        self.session = exchanges.ClientSession(service)
        self._reader = CommandReader(service.keys_type, self.session.limits)
        self._exchange: exchanges.RespExchange | None = None
        """The pending exchange; nothing else begins meanwhile."""
        self._replies: list[bytes] = []
        self._reply_bytes = 0
        self._farewell = b""
        """A last reply that answers no command."""
        self._is_advancing = False
        """True if ``_advance`` is running: what it begins may be answered at once."""
        self._is_resting = False
        """True if other connections get a turn first, because this one had much to do."""
        self._turn_bytes = 0
        """Bytes received since this connection last rested or waited for an answer, and so gave others a turn."""
        self._is_paused = False
        """True if reading is paused because of unread bytes or a rest. (``clients`` pauses it for blocked clients.)"""
        self.arrived = monotonic_ns()
        """When the first byte of the next command arrived. Commands that wait unread keep that time."""

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up after the connection has closed or broken."""
        super().connection_lost(error)
        self.session.close()

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        if self.phase is not READING and self.phase >= FINISHING:
            return
        reader = self._reader
        session = self.session
        is_new = reader.is_empty
        if is_new:
            self.arrived = monotonic_ns()
        may_look_up = session.may_ask and session.transaction is None
        if self._exchange is None and is_new and may_look_up and not self.is_blocked:
            size = len(data)
            # Exactly one GET as client libraries write it: its size determines where the key is.
            if size < _HEADS and GET_HEADS[size] <= data < GET_ENDS[size] and data.endswith(CRLF):
                key = data[GET_KEYS[size]].decode("utf-8", "surrogateescape")
                exchange = self._exchange = KeyExchange(self, key)
                try:
                    self.lookups.find(key, exchange)
                except Exception as problem:
                    self._fail(exchange, problem)
                return
        reader.feed(data)
        self._advance()
        self._turn_bytes += len(data)
        if self._turn_bytes >= TURN_BYTES and not self._is_resting and self.phase < FINISHING:
            self._rest()
            self._is_paused = True
            self._transport.pause_reading()

    def _advance(self) -> None:
        """Answer what has arrived, within the limits; read on if nothing is pending."""
        if self._is_advancing or self.phase >= LINGERING:
            return
        self._is_advancing = True
        try:
            if self._exchange is not None:
                self._exchange.resume()
            self._take_commands()
        finally:
            self._is_advancing = False
        self._flush()
        self._settle()

    def _take_commands(self) -> None:
        """Answer or begin commands until an exchange is pending or a rest is due."""
        remaining = TURN_COMMANDS
        self._reader.begin_turn()
        while self._exchange is None and not (self.is_blocked or self._is_resting) and self.phase < FINISHING:
            is_continued = self.phase is RECEIVING
            request = self._read_next()
            if request is None:
                if self._reader.has_more:
                    self._rest()
                return
            if isinstance(request, LookupCommands):
                if is_continued and request.kind == GETS and len(request.keys) > 1:
                    self.arrived = monotonic_ns()  # the group counts from now, when all but its first GET arrived
                self._look_up(request)
            else:
                self._execute(request)
            if is_continued:
                self.arrived = monotonic_ns()  # the commands behind this one arrive now
            remaining -= 1
            if not remaining:
                self._rest()

    def _rest(self) -> None:
        """Wait until other connections had a turn."""
        self._is_resting = True
        asyncio.get_running_loop().call_soon(self._end_rest)

    def _end_rest(self) -> None:
        self._is_resting = False
        self._turn_bytes = 0
        self._advance()

    def _read_next(self) -> LookupCommands | Command | None:
        reader = self._reader
        reader.limits = self.session.limits
        reader.is_queueing = self.session.transaction is not None
        try:
            request = reader.next()
        except ProtocolError as problem:
            self.counters[_REQUESTS_REFUSED] += 1
            self.refuse(f"ERR Protocol error: {problem}")
            return None
        if request is not None and self.phase is RECEIVING:
            self._enter(READING)
        return request

    def _settle(self) -> None:
        """Enter the phase that follows from the input, and end the connection if that is due."""
        if self.phase >= LINGERING:
            return
        if self._exchange is None and (self.phase >= FINISHING or self.session.is_closing):
            if self.phase < FINISHING:
                self._end_requests()
            if self._farewell:
                self._write(self._farewell)
            self._end_answers()
            return
        self._count_input()
        if self.phase >= LINGERING:
            return
        if self._exchange is not None or self._is_resting or self.is_blocked:
            # Read on only if nothing waits: a client may send one read beyond the pending exchange.
            if self._is_resting or not self._reader.is_empty:
                self._is_paused = True
                self._transport.pause_reading()
            elif not self.is_blocked:
                self._resume_reading()
            return
        if self.is_half_closed:
            if not self._finish_input():
                self._end_answers()
            return
        if self._reader.is_partial:
            if self.phase is READING:
                self._enter(RECEIVING)
                self.deadline = self.service.header_deadline
        elif self.service.draining:
            self._end_answers()
            return
        else:
            self.deadline = self.service.idle_deadline
        self._resume_reading()

    def _resume_reading(self) -> None:
        self._is_paused = False
        self._transport.resume_reading()

    def _measure_input(self) -> int:
        transaction = self.session.transaction
        size = 0 if self._reader.is_empty else self._reader.held_bytes
        return size if transaction is None else size + transaction.held_bytes

    def _look_up(self, lookups: LookupCommands) -> None:
        is_mget, count = lookups.kind != GETS, len(lookups.keys)
        commands = 1 if is_mget else count
        refusal = self.session.find_denial()
        if refusal is None and is_mget and count > self.service.limits.max_keys:
            refusal = _refuse_keys(count, self.service.limits.max_keys)
        if refusal is not None:
            self.counters[_ERRORS] += commands
            self._send(error(refusal) * commands)
            histogram = (BATCH if is_mget else LOOKUP) + exchanges.find_outcome(refusal)
            self.observe(histogram, self.arrived, commands)
        elif is_mget:
            self._begin(KeysExchange(self, lookups.keys, lookups.size))
        elif count == 1:
            self._begin(KeyExchange(self, lookups.keys.to_list()[0]))
        else:
            self._begin(GetsExchange(self, lookups.keys, lookups.size))

    def _execute(self, command: Command) -> None:
        """Answer ``command`` or queue it for EXEC. ``command`` is neither a GET nor a valid MGET."""
        session, name, max_keys = self.session, command[0].upper(), self.service.limits.max_keys
        refusal = exchanges.find_refusal(session, command)
        if refusal is None and name in LOOKUPS and len(command) - 1 > max_keys:
            refusal = _refuse_keys(len(command) - 1, max_keys)
        if refusal is None and session.transaction is not None and self.budget.used > self.budget.batch_mark:
            self.counters[_OVERLOADED] += 1
            refusal = exchanges.describe_problem(OVERLOADED)
        if (reply := exchanges.queue(session, command, refusal)) is not None:
            self._reply(reply)
        elif refusal is not None:
            session.count_error()
            self._reply(error(refusal), BATCH if name in MANY_KEYS else LOOKUP if name in LOOKUPS else OTHER)
        elif name == b"EXEC":
            self._execute_transaction()
        elif name in MANY_KEYS:
            keys = command[1:]
            self._begin(exchanges.ExistsExchange(self, self.service.keys_type.from_bytes(keys), sum(map(len, keys))))
        elif name in LOOKUPS:
            self._begin(exchanges.ReadExchange(self, command))
        else:
            self._reply(self.reply_at_once(command))
            if session.is_closing:
                self._reader.clear()
                self._end_requests()

    def _execute_transaction(self) -> None:
        session = self.session
        transaction, is_outdated = find_transaction(session), session.is_outdated
        session.end_transaction()
        if isinstance(transaction, str):
            session.count_error()
            self._reply(error(transaction), BATCH)
        elif is_outdated:
            self._reply(NO_ARRAY[session.protocol], BATCH)
        else:
            self._begin(exchanges.TransactionExchange(self, transaction))

    def _reply(self, reply: bytes, histogram: int = OTHER) -> None:
        """Send the ``reply`` to a command that no exchange answers, and count it."""
        self._send(reply)
        if reply.startswith(b"-"):
            histogram += exchanges.find_outcome(reply[1:].decode("utf-8", "replace"))
        self.observe(histogram, self.arrived)

    def reply_at_once(self, command: Command) -> bytes:
        """Return the reply to ``command``, which is valid and not a lookup."""
        return b"".join(exchanges.COMMANDS[command[0].upper()][2](self.session, command))

    def _begin(self, exchange: exchanges.RespExchange) -> None:
        self._exchange = exchange
        try:
            exchange.start()
        except Exception as problem:
            self._fail(exchange, problem)

    def answer(self, exchange: exchanges.RespExchange, answer: Answer, histogram: int, commands: int = 1) -> None:
        """Send ``answer``, the last part of the answer to ``exchange``, and count ``commands`` in ``histogram``."""
        if exchange.charge:
            self.budget.release(exchange.charge)
            exchange.charge = 0
        if exchange is not self._exchange:
            return  # the client is gone
        self._exchange = None
        self._send(answer)
        self.observe(histogram, exchange.arrived, commands)
        if self._is_advancing:
            return
        self._turn_bytes = 0
        is_at_rest = self._reader.is_empty and not self._is_paused
        if is_at_rest and self.phase is READING and not self.service.draining:
            if not self.is_blocked:
                self.deadline = self.service.idle_deadline
            return
        self._advance()

    def send_part(self, exchange: exchanges.RespExchange, answer: Answer) -> None:
        """Send ``answer``, a part of the answer to ``exchange``."""
        if exchange is self._exchange:
            self._send(answer)

    def replace(self, exchange: exchanges.RespExchange, other: exchanges.RespExchange) -> None:
        """Make ``other`` answer instead of ``exchange``."""
        if exchange is self._exchange:
            other.charge, exchange.charge = exchange.charge, 0
            other.arrived = exchange.arrived
            self._begin(other)

    def _send(self, answer: Answer) -> None:
        if not self._is_advancing:
            self._write(answer)
            return
        if isinstance(answer, bytes):
            self._replies.append(answer)
            self._reply_bytes += len(answer)
        if not isinstance(answer, bytes) or self._reply_bytes > REPLY_BYTES:
            self._flush()
        if not isinstance(answer, bytes):
            self._write(answer)

    def _flush(self) -> None:
        if self._replies:
            replies, self._replies, self._reply_bytes = self._replies, [], 0
            self._write(b"".join(replies))

    def refuse(self, message: str, outcome: int | None = REFUSED) -> None:
        """Finish the pending exchange, send the error ``message``, and close. ``outcome`` is None if it answers no
        request."""
        if outcome is not None:
            self.observe(OTHER + outcome, self.arrived)
        if self.phase < FINISHING:
            self._end_requests()
        self._farewell = error(message)
        self._reader.clear()
        self._count_input()
        self._advance()

    def refuse_input(self, refusal: ConnectionRefusal, detail: str) -> None:
        """Send an error behind the replies, and close."""
        start, outcome = _REFUSALS[refusal]
        self.refuse(f"{start} {detail}", outcome)

    def encode_tls_refusal(self) -> bytes:
        """Return the answer to a client that does not use TLS."""
        return _WRONG_PROTOCOL

    def forget_access(self, now: float) -> None:
        """Judge the client's token again before its next command if its access may have ended."""
        self.session.forget_access(now)

    def _is_due(self) -> bool:
        return self._exchange is not None

    def _has_unread(self) -> bool:
        return self._reader.has_unread

    def _has_part(self) -> bool:
        return self._reader.is_partial

    def _drop(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self.budget.release(exchange.charge)
            exchange.charge = 0
            exchange.abandon()
        self._reader.clear()
        self.session.end_transaction()
        self._replies, self._reply_bytes = [], 0
        self.budget.release(self._input_bytes)
        self._input_bytes = 0


def _refuse_keys(count: int, limit: int) -> str:
    return f"ERR too many keys: {count}, the limit is {limit}; send them in several commands"
