"""Lookups of one client that are answered together, and their replies. A connection has one exchange at a time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from lookupdb.resp.reads import READS
from lookupdb.resp.replies import CRLF, bulk, error, integer
from lookupdb.resp.requests import Command, list_keys
from lookupdb.resp.transactions import Transaction
from lookupdb.route.clients.limits import JOINED_BYTES
from lookupdb.route.counters import INDEX
from lookupdb.route.lookups.batch_keys import UNAVAILABLE, Values
from lookupdb.route.lookups.generation import ServedGeneration
from lookupdb.route.lookups.waiters import OVERLOADED, Problem

if TYPE_CHECKING:
    from lookupdb.route.budget import RouterBudget
    from lookupdb.route.lookup_core import LookupCore
    from lookupdb.route.lookups.batch_keys import BatchKeys, BatchValues
    from lookupdb.route.lookups.scatter_gather import ScatterGather
    from lookupdb.route.resp.service import RespService
    from lookupdb.route.resp.session import ClientSession

Answer = bytes | list[bytes]
"""One piece, or several that follow each other."""

_ERRORS: Final = INDEX["resp_errors"]
_OVERLOADED: Final = INDEX["requests_overloaded"]
_EXCHANGE_BYTES: Final = 1024
"""An exchange takes so much without its keys."""
_BYTE_BYTES: Final = 5
"""What a byte of a command may become: text of four bytes a character, and a byte of the key that is sent on."""
_TURN_SECONDS: Final = 0.01
"""For so long are the replies of a transaction made at once."""
_KEY_BYTES: Final = 400
"""Each key takes so much while it is looked up, without its text."""


class ExchangeOwner(Protocol):
    """A client's connection, as its exchanges see it."""

    service: RespService
    session: ClientSession
    lookups: LookupCore
    budget: RouterBudget
    counts: memoryview
    is_blocked: bool

    def answer(self, exchange: RespExchange, answer: Answer) -> None:
        """Send ``answer``, the last part of what answers ``exchange``."""

    def reply_at_once(self, command: Command) -> bytes:
        """The reply to ``command``, which is in order, and no lookup."""

    def send_part(self, exchange: RespExchange, answer: Answer) -> None:
        """Send ``answer``, a part of what answers ``exchange``."""

    def replace(self, exchange: RespExchange, other: RespExchange) -> None:
        """Have ``other`` answer what ``exchange`` was to answer."""


def describe_problem(problem: Problem) -> str:
    """The error that tells ``problem``."""
    return f"UNAVAILABLE {problem.reason} {problem.detail}"


def encode_value(value: bytes) -> Answer:
    """The reply to a GET whose key has ``value``."""
    return bulk(value) if len(value) <= JOINED_BYTES else [b"$%d\r\n" % len(value), value, CRLF]


class RespExchange:
    """What all exchanges have. ``charge`` is what the exchange has taken of the worker's budget."""

    __slots__ = ("charge", "connection")

    def __init__(self, connection: ExchangeOwner) -> None:
        self.connection = connection
        self.charge = 0

    def start(self) -> None:
        """Begin. ``ExchangeOwner.answer`` is called sooner or later, exactly once."""
        raise NotImplementedError

    def resume(self) -> None:
        """Go on: the client has taken what it was sent."""

    def abandon(self) -> None:
        """Stop: the client has gone."""

    def _take_charge(self, size: int, key_count: int) -> None:
        """Count what ``key_count`` keys hold, of which the client sent ``size`` bytes, until they are answered."""
        charge = _EXCHANGE_BYTES + _BYTE_BYTES * size + _KEY_BYTES * key_count
        self.charge += charge
        self.connection.budget.take(charge)

    def _refuse(self, message: str, commands: int = 1) -> None:
        """Answer ``commands`` with the error ``message``."""
        self.connection.counts[_ERRORS] += commands
        self.connection.answer(self, error(message) * commands)

    def _count_overload(self, problem: Problem) -> None:
        if problem is OVERLOADED:
            self.connection.counts[_OVERLOADED] += 1

    def unknown_generation(self, name: str, active: ServedGeneration) -> None:
        """There is no generation of this name: RESP names none, so this does not happen."""
        self._refuse(f"ERR the generation {name} is not served, but {active.name}")


class KeyExchange(RespExchange):
    """One GET. A ``lookups.Waiter``."""

    __slots__ = ("key",)

    def __init__(self, connection: ExchangeOwner, key: str) -> None:
        # Not through super(): this is the hot path.
        self.connection = connection
        self.charge = 0
        self.key = key

    def start(self) -> None:
        """Ask the lookup core."""
        self.connection.lookups.find(self.key, self)

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """The key's value."""
        self.connection.answer(self, encode_value(value))

    def missing(self, generation: ServedGeneration) -> None:
        """No record of the generation has the key."""
        connection = self.connection
        connection.answer(self, connection.session.nil)

    def unavailable(self, problem: Problem) -> None:
        """Nothing can be said about the key now."""
        self._count_overload(problem)
        self._refuse(describe_problem(problem))


class ReadExchange(KeyExchange):
    """One of ``READS``."""

    __slots__ = ("_command",)

    def __init__(self, connection: ExchangeOwner, command: Command) -> None:
        super().__init__(connection, command[1].decode("utf-8", "surrogateescape"))
        self._command = command

    def start(self) -> None:
        """Ask the lookup core."""
        self._take_charge(sum(map(len, self._command)), len(self._command) - 1)
        super().start()

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """The key's value."""
        self._reply(value, generation)

    def missing(self, generation: ServedGeneration) -> None:
        """No record of the generation has the key."""
        self._reply(None, generation)

    def _reply(self, value: bytes | None, generation: ServedGeneration) -> None:
        read = READS[self._command[0].upper()][2]
        reply = read(self.connection.session, self._command, value, generation.value_format == "json")
        self.connection.answer(self, reply)


class SerialExchange(RespExchange):
    """GETs whose values are too many bytes to be held together: one is looked up after the other, as the client takes
    them. A ``lookups.Waiter``."""

    __slots__ = ("_is_advancing", "_is_asking", "_keys")

    def __init__(self, connection: ExchangeOwner, keys: list[str]) -> None:
        super().__init__(connection)
        self._keys = deque(keys)
        self._is_asking = False
        """For a key that is not answered yet; once abandoned, for ever."""
        self._is_advancing = False
        """``resume`` runs, and what it asks for may be answered at once."""

    def start(self) -> None:
        """Ask for the first."""
        self.resume()

    def resume(self) -> None:
        """Ask for the next ones, as far as they are answered at once and the client takes them."""
        if self._is_advancing:
            return
        self._is_advancing = True
        connection = self.connection
        while self._keys and not self._is_asking and not connection.is_blocked:
            self._is_asking = True
            connection.lookups.find(self._keys.popleft(), self)
        self._is_advancing = False
        if not self._keys and not self._is_asking:
            connection.answer(self, b"")

    def abandon(self) -> None:
        """Ask no more."""
        self._keys.clear()
        self._is_asking = True

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """A key's value."""
        self._continue(encode_value(value))

    def missing(self, generation: ServedGeneration) -> None:
        """No record of the generation has the key."""
        self._continue(self.connection.session.nil)

    def unavailable(self, problem: Problem) -> None:
        """Nothing can be said about the key now."""
        self._count_overload(problem)
        self.connection.counts[_ERRORS] += 1
        self._continue(error(describe_problem(problem)))

    def _continue(self, answer: Answer) -> None:
        self._is_asking = False
        self.connection.send_part(self, answer)
        self.resume()


class KeysExchange(RespExchange):
    """Keys of one routing table, of which the client sent ``size`` bytes. A ``lookups.BatchWaiter``."""

    __slots__ = ("gather", "keys", "size")
    are_single = False
    """Whether each is a command of its own."""

    def __init__(self, connection: ExchangeOwner, keys: BatchKeys, size: int) -> None:
        super().__init__(connection)
        self.keys = keys
        self.size = size
        self.gather: ScatterGather | None = None

    def start(self) -> None:
        """Ask the lookup core."""
        self._take_charge(self.size, len(self.keys))
        self.gather = self.connection.lookups.find_many(self.keys, self, are_single=self.are_single)

    def abandon(self) -> None:
        """Stop: no further shard is asked, and nothing is kept."""
        if self.gather:
            self.gather.abandon()

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """Answer with ``values`` of ``size`` bytes. With ``problem`` some are unavailable."""
        raise NotImplementedError

    def unavailable(self, problem: Problem) -> None:
        """Nothing can be said about any of the keys now."""
        self._count_overload(problem)
        self._refuse(describe_problem(problem))

    def too_large(self, limit: int) -> None:
        """The values are more than ``limit`` bytes together."""
        detail = f"the values are more than {limit} bytes together, which is the limit; ask for fewer keys at once"
        self._refuse(f"ERR {detail}")

    def _encode(self, values: BatchValues, size: int, refusal: bytes, *, is_list: bool) -> Answer:
        codec, nil = self.connection.service.codec, self.connection.session.nil
        encode = codec.encode if size <= JOINED_BYTES else codec.encode_in_pieces
        return encode(values, nil, refusal, is_list=is_list)

    def _describe_some(self, values: BatchValues, problem: Problem) -> str:
        """The error of keys that are unavailable while others are not."""
        count = values.unavailable_count
        if count == 1:
            return describe_problem(problem)
        first = f"{count} of {len(self.keys)} keys asked for together cannot be looked up now; the first: "
        return f"UNAVAILABLE {problem.reason} {first}{problem.detail}"


class GetsExchange(KeysExchange):
    """GETs that came together, each with a reply of its own."""

    __slots__ = ()
    are_single = True

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """Answer each."""
        refusal = b""
        if problem is not None:
            self.connection.counts[_ERRORS] += values.unavailable_count
            refusal = error(self._describe_some(values, problem))
        self.connection.answer(self, self._encode(values, size, refusal, is_list=False))

    def unavailable(self, problem: Problem) -> None:
        """Nothing can be said about any of the keys now."""
        self._count_overload(problem)
        self._refuse(describe_problem(problem), len(self.keys))

    def too_large(self, limit: int) -> None:
        """The values are more than ``limit`` bytes together: each has to be answered all the same."""
        connection = self.connection
        connection.replace(self, SerialExchange(connection, self.keys.to_list()))


class MgetExchange(KeysExchange):
    """One MGET: all values, or an error."""

    __slots__ = ()

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """Answer with all values; nothing is answered where one is unavailable, because nil would say missing."""
        if problem is not None:
            self._refuse(self._describe_some(values, problem))
            return
        self.connection.answer(self, self._encode(values, size, b"", is_list=True))


class ExistsExchange(KeysExchange):
    """One EXISTS: how many of the keys there are, each as often as it was named."""

    __slots__ = ()

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """Answer with the number, which cannot be told where a key is unavailable."""
        if problem is not None:
            self._refuse(self._describe_some(values, problem))
            return
        self.connection.answer(self, integer(self.connection.service.codec.count_found(values)))


class TransactionExchange(KeysExchange):
    """One EXEC: the keys of all its commands are looked up together, in one routing table."""

    __slots__ = ("_commands", "_held_bytes", "_pieces", "_replies", "_reply_bytes")

    def __init__(self, connection: ExchangeOwner, transaction: Transaction) -> None:
        keys = [key for command in transaction.commands for key in list_keys(command)]
        super().__init__(connection, connection.service.codec.make_keys(keys), sum(map(len, keys)))
        self._commands = transaction.commands
        self._held_bytes = transaction.held_bytes
        self._replies: Iterator[list[bytes]] | None = None
        """Those that are still to be made."""
        self._pieces = [b"*%d\r\n" % len(transaction.commands)]
        self._reply_bytes = 0

    def start(self) -> None:
        """Ask the lookup core."""
        self.charge = self._held_bytes
        self.connection.budget.take(self.charge)
        super().start()

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """Answer each command."""
        refusal = b"" if problem is None else error(self._describe_some(values, problem))
        self.charge += size
        self.connection.budget.take(size)
        self._answer(values.to_list(UNAVAILABLE), refusal, is_json=generation.value_format == "json")

    def unavailable(self, problem: Problem) -> None:
        """Nothing can be said about any of the keys now."""
        self._count_overload(problem)
        self._answer([UNAVAILABLE] * len(self.keys), error(describe_problem(problem)), is_json=False)

    def abandon(self) -> None:
        """Stop: no further shard is asked, no further reply made."""
        self._replies = None
        super().abandon()

    def _answer(self, values: Values, refusal: bytes, *, is_json: bool) -> None:
        """Answer with a list: the reply to each command, or ``refusal`` if a key of it is unavailable."""
        self._replies = self._make_replies(values, refusal, is_json=is_json)
        self._go_on()

    def _go_on(self) -> None:
        """Make replies for a while. Then other clients have their turn: a reply may take a large value apart."""
        connection, limit, end = self.connection, self.connection.budget.answer_bytes, time.monotonic() + _TURN_SECONDS
        for replies in self._replies or ():
            self._pieces += replies
            self._reply_bytes += sum(map(len, replies))
            if self._reply_bytes > limit:
                self.too_large(limit)
                return
            if time.monotonic() > end:
                asyncio.get_running_loop().call_soon(self._go_on)
                return
        if self._replies is not None:
            connection.answer(self, self._pieces if self._reply_bytes > JOINED_BYTES else b"".join(self._pieces))

    def _make_replies(self, values: Values, refusal: bytes, *, is_json: bool) -> Iterator[list[bytes]]:
        start = 0
        for command in self._commands:
            own_values = values[start : start + len(list_keys(command))]
            start += len(own_values)
            if UNAVAILABLE in own_values:
                self.connection.counts[_ERRORS] += 1
                yield [refusal]
            else:
                yield self._reply(command, own_values, is_json=is_json)

    def _reply(self, command: Command, values: list[Any], *, is_json: bool) -> list[bytes]:
        connection, name = self.connection, command[0].upper()
        match name:
            case b"GET" | b"MGET":
                replies = [] if name == b"GET" else [b"*%d\r\n" % len(values)]
                for value in values:
                    replies += (connection.session.nil,) if value is None else (b"$%d\r\n" % len(value), value, CRLF)
                return replies
            case b"EXISTS" | b"TOUCH":
                return [integer(len(values) - values.count(None))]
            case _ if name in READS:
                return [READS[name][2](connection.session, command, values[0], is_json)]
            case _:
                return [connection.reply_at_once(command)]
