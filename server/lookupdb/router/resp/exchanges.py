"""The commands of a router's client. ``resp.commands`` has those that all servers know."""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from lookupdb.resp.commands import READS, FieldReader, Transaction, choose_fields
from lookupdb.resp.requests import CRLF, NIL, Command, CommandLimits, bulk, error, integer, list_keys
from lookupdb.router.access import Gatekeeper
from lookupdb.router.batch_keys import UNAVAILABLE, Values
from lookupdb.router.budget import RouterLimits
from lookupdb.router.clients.life import JOINED_BYTES, ClientService
from lookupdb.router.counters import INDEX
from lookupdb.router.lookup_core import LookupCore
from lookupdb.router.lookups import OVERLOADED, Problem, ServedGeneration
from lookupdb.router.resp.reader import BEFORE_AUTH, choose_codec, make_read_limits
from lookupdb.router.subjects import Admitted, Denial, Denied

if TYPE_CHECKING:
    from lookupdb.router.batch_keys import BatchKeys, BatchValues
    from lookupdb.router.budget import RouterBudget
    from lookupdb.router.lookup_core import LookupCore
    from lookupdb.router.lookups import ScatterGather
from collections.abc import Iterable

from lookupdb.resp.commands import (
    ANY,
    CommandTable,
    InfoFields,
    Reply,
    describe_server,
    printable,
    render_sections,
    reply_error,
)
from lookupdb.resp.requests import MANY_KEYS, OK
from lookupdb.router.lookups import NO_TABLE

# What all RESP connections of one worker share.


class RespService(ClientService):
    """With what commands are read and answered by."""

    __slots__ = ("_last_id", "codec", "fields", "port", "read_limits", "started_at")

    def __init__(
        self,
        lookups: LookupCore,
        limits: RouterLimits,
        counts: memoryview,
        gatekeeper: Gatekeeper | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(lookups, limits, counts, gatekeeper)
        self.codec: Final = choose_codec()
        self.fields: Final[FieldReader] = choose_fields()
        self.read_limits: Final = make_read_limits(limits.max_body_bytes)
        """Of a client that may ask."""
        self.port: Final = port
        """On which clients connect: ``INFO`` tells it."""
        self.started_at: Final = time.monotonic()
        self._last_id = 0

    def take_id(self) -> int:
        """The number of a client: each has another one."""
        self._last_id += 1
        return self._last_id


# One client of RESP apart from its socket: the protocol that it chose, its name, and whether it may ask.


NO_ACCESS_DATA: Final = "AccessUnknown"
"""Why nobody can be judged: the word that HTTP has for it, too."""
_COMMANDS: Final = INDEX["resp_commands"]
_ERRORS: Final = INDEX["resp_errors"]
_UNAUTHENTICATED: Final = INDEX["requests_unauthenticated"]
_FORBIDDEN: Final = INDEX["requests_forbidden"]


class ClientSession:
    """A ``resp.commands.RespSession``. A token that was accepted is kept, to be judged again when access changes."""

    __slots__ = (
        "_token",
        "_until",
        "_watched",
        "id",
        "is_closing",
        "may_ask",
        "name",
        "nil",
        "protocol",
        "service",
        "transaction",
    )
    transaction: Transaction | None

    def __init__(self, service: RespService) -> None:
        self.service = service
        self.id: Final = service.take_id()
        self.is_closing = False
        """Whether the connection is closed after the reply that is made now."""
        self._token: bytes | None = None
        self.reset()

    def reset(self) -> None:
        """Forget what the client has said of itself since it connected."""
        self._keep_token(None)
        self.may_ask = self.service.gatekeeper is None
        """Whether it may, as far as was judged: ``find_denial`` judges anew."""
        self._until = math.inf
        self.name = b""
        self.end_transaction()
        self.use_protocol(2)

    def use_protocol(self, protocol: int) -> None:
        """Speak RESP ``protocol``: 2 or 3."""
        self.protocol = protocol
        self.nil = NIL[protocol]

    # Transactions

    def begin_transaction(self) -> None:
        """Queue commands from now on: as many keys as one MGET may have, and as many bytes as one command."""
        self.transaction = Transaction(self.service.limits.max_keys, self.service.limits.max_body_bytes)

    def end_transaction(self) -> None:
        """Forget what is queued, and what is watched."""
        self.transaction = None
        self._watched: Callable[[], object] | None = None
        """Returns the routing table that was in effect at WATCH; None once it is gone."""

    def watch(self) -> None:
        """Have the next EXEC execute nothing if another routing table takes effect before."""
        live = self.service.lookups.live
        self._watched = self._watched or ((lambda: None) if live is None else weakref.ref(live))

    @property
    def is_outdated(self) -> bool:
        """Whether another routing table is in effect than when the client began to watch."""
        return self._watched is not None and self._watched() is not self.service.lookups.live

    @property
    def fields(self) -> FieldReader:
        """What reads the fields of values."""
        return self.service.fields

    @property
    def limits(self) -> CommandLimits:
        """Of the client's next command."""
        has_shown = self.may_ask or self._token is not None
        return self.service.read_limits if has_shown else BEFORE_AUTH

    def count_command(self) -> None:
        """A command is about to be answered."""
        self.service.counts[_COMMANDS] += 1

    def count_error(self) -> None:
        """One is answered with an error."""
        self.service.counts[_ERRORS] += 1

    # Who may ask

    @property
    def has_passwords(self) -> bool:
        """Whether clients show tokens."""
        return self.service.gatekeeper is not None

    def authorise(self, user: bytes, password: bytes) -> str | None:
        """Let the client ask from now on if ``password`` is a token that is accepted; the error if not. Tokens need no
        ``user``: it may be any."""
        del user
        verdict = self._judge(password)
        if isinstance(verdict, Admitted):
            return None
        if verdict.denial is Denial.UNDECIDED:
            return f"UNAVAILABLE {NO_ACCESS_DATA} {verdict.detail}"
        self.service.counts[_FORBIDDEN if verdict.denial is Denial.FORBIDDEN else _UNAUTHENTICATED] += 1
        if verdict.denial is Denial.FORBIDDEN:
            return f"NOPERM {verdict.detail}"
        return f"WRONGPASS invalid username-password pair or user is disabled: {verdict.detail}"

    def find_denial(self) -> str | None:
        """Why the client may not ask now; None if it may. A token that was accepted is judged again if it may not be
        good any more."""
        if self.may_ask:
            return None
        if self._token is None:
            return "NOAUTH Authentication required."
        verdict = self._judge(self._token)
        if isinstance(verdict, Admitted):
            return None
        if verdict.denial is Denial.UNDECIDED:
            return f"UNAVAILABLE {NO_ACCESS_DATA} {verdict.detail}"
        return "NOAUTH Authentication required: the token that was shown is not accepted any longer."

    def forget_access(self, now: float) -> None:
        """Judge the token again before the next command if it may not be good any more, ``now`` in seconds since 1970.
        ``math.inf``: in any case."""
        if self._until <= now and self.service.gatekeeper is not None:
            self.may_ask = False

    def close(self) -> None:
        """The client has gone."""
        self._keep_token(None)
        self.end_transaction()

    def _judge(self, token: bytes) -> Admitted | Denied:
        gatekeeper = self.service.gatekeeper
        assert gatekeeper is not None, "who asks for no token judges none"
        verdict = gatekeeper.judge_token(token)
        if isinstance(verdict, Admitted):
            self._keep_token(token)
            self.may_ask = True
            self._until = verdict.until
        return verdict

    def _keep_token(self, token: bytes | None) -> None:
        budget = self.service.budget
        budget.release(len(self._token or b""))
        self._token = token
        budget.take(len(token or b""))


# Lookups of one client that are answered together, and their replies. A connection has one exchange at a time.


Answer = bytes | list[bytes]
"""One piece, or several that follow each other."""

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


# INFO: a router worker's description of itself and of its dataset, in Redis' form.


def render(service: RespService, names: Iterable[str]) -> str:
    """The sections called ``names``, each once; all of them for none, ``default``, ``all`` or ``everything``."""
    return render_sections(SECTIONS, service, names)


def _server(service: RespService) -> InfoFields:
    return describe_server(service.port, service.started_at)


def _clients(service: RespService) -> InfoFields:
    return {
        "connected_clients": service.counts[INDEX["connections"]],
        "maxclients": service.limits.max_connections,
    }


def _memory(service: RespService) -> InfoFields:
    return {"used_memory": max(service.budget.used, 0), "maxmemory": service.budget.limit}


def _persistence(service: RespService) -> InfoFields:
    # Clients that look at it wait until a server has loaded its data.
    return {"loading": int(service.lookups.live is None)}


def _stats(service: RespService) -> InfoFields:
    counts = service.counts
    return {
        "total_connections_received": counts[INDEX["connections_accepted"]],
        "total_commands_processed": counts[INDEX["resp_commands"]],
        "total_error_replies": counts[INDEX["resp_errors"]],
        "rejected_connections": counts[INDEX["connections_refused"]],
        "keyspace_hits": counts[INDEX["keys_found"]],
        "keyspace_misses": counts[INDEX["keys_missing"]],
    }


def _replication(_: RespService) -> InfoFields:
    return {"role": "master", "connected_slaves": 0}


def _keyspace(service: RespService) -> InfoFields:
    dataset = service.lookups.dataset()
    return {} if dataset is None else {"db0": f"keys={dataset.records},expires=0,avg_ttl=0"}


def _lookupdb(service: RespService) -> InfoFields:
    dataset = service.lookups.dataset()
    if dataset is None:
        return {"generation": ""}
    fields: InfoFields = {
        "dataset": f"{dataset.namespace}/{dataset.name}",
        "generation": dataset.generation,
        "records": dataset.records,
        "shards": dataset.shards,
        "built_at": dataset.built_at,
        "age_seconds": round(dataset.age, 3),
        "candidates": ",".join(dataset.candidates),
    }
    if dataset.shard_generations:
        # As PerShard rollouts go on: how many shards each generation serves.
        counts = dataset.shard_generations.items()
        fields["shard_generations"] = ",".join(f"{name}={shards}" for name, shards in counts)
    return fields


SECTIONS: Final[dict[str, Callable[[RespService], InfoFields]]] = {
    "server": _server,
    "clients": _clients,
    "memory": _memory,
    "persistence": _persistence,
    "stats": _stats,
    "replication": _replication,
    "keyspace": _keyspace,
    "lookupdb": _lookupdb,
}


def _get_dbsize(session: ClientSession, _: Command) -> Reply:
    dataset = session.service.lookups.dataset()
    return reply_error(session, describe_problem(NO_TABLE)) if dataset is None else (integer(dataset.records),)


def _get_info(session: ClientSession, command: Command) -> Reply:
    return (bulk(render(session.service, [printable(name) for name in command[1:]])),)


def _accept(_: ClientSession, __: Command) -> Reply:
    return (OK,)


def _await_exchange(_: ClientSession, __: Command) -> Reply:
    """Nothing: a lookup is answered by its exchange."""
    return ()


_TABLE: Final = CommandTable[ClientSession](
    "the router",
    "a dataset's generations are immutable: build a new one",
    {
        b"GET": (1, 1, _await_exchange),
        **dict.fromkeys(MANY_KEYS, (1, ANY, _await_exchange)),
        **{name: (least, most, _await_exchange) for name, (least, most, _) in READS.items()},
        b"EXEC": (0, 0, _await_exchange),
        b"DBSIZE": (0, 0, _get_dbsize),
        b"INFO": (0, ANY, _get_info),
        b"READONLY": (0, 0, _accept),
    },
)
COMMANDS: Final = _TABLE.entries
find_refusal: Final = _TABLE.find_refusal
queue: Final = _TABLE.queue
