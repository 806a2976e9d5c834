"""The commands of a RESP client that the router answers, and the exchanges that look keys up for them.

``RespService`` holds what the connections of a worker share; ``ClientSession`` what a client has set, and whether it
may look up. An exchange answers lookups that belong together; a connection has one at a time. ``COMMANDS`` is the table
of commands; ``resp.commands`` has those that all servers know.
"""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from lookupdb.credentials import NO_ACCESS_DATA, Admitted, Denial, Denied
from lookupdb.resp import commands as resp
from lookupdb.resp.requests import CRLF, MANY_KEYS, OK, Command, CommandLimits, bulk, error, integer, list_keys
from lookupdb.router.access import Gatekeeper
from lookupdb.router.batch_keys import UNAVAILABLE, BatchKeys, BatchValues, Values, choose_keys
from lookupdb.router.budget import RouterBudget, RouterLimits
from lookupdb.router.clients import JOINED_BYTES, Answer, ClientService
from lookupdb.router.counters import FAILED, INDEX, REFUSED, count_requests, find_histogram
from lookupdb.router.lookup_core import LookupCore
from lookupdb.router.lookups import NO_TABLE, OVERLOADED, Problem, ScatterGather, ServedGeneration
from lookupdb.router.resp.reader import BEFORE_AUTH, MAX_ARGUMENTS, MAX_INLINE_BYTES


class RespService(ClientService):
    """The shared state of all RESP connections of a worker."""

    def __init__(
        self, lookups: LookupCore, limits: RouterLimits, gatekeeper: Gatekeeper | None = None, port: int = 0
    ) -> None:
        super().__init__(lookups, limits, gatekeeper)
        self.keys_type: Final = choose_keys()
        self.fields: Final[resp.FieldReader] = resp.choose_fields()
        self.read_limits: Final = CommandLimits(MAX_ARGUMENTS, limits.max_body_bytes, MAX_INLINE_BYTES)
        self.port: Final = port
        """The port that clients connect to, for ``INFO``."""
        self.started_at: Final = time.monotonic()
        self.last_id = 0
        """The number of the newest client."""


_ERRORS: Final = INDEX["resp_errors"]
_UNAUTHENTICATED: Final = INDEX["requests_unauthenticated"]
_FORBIDDEN: Final = INDEX["requests_forbidden"]


class ClientSession(resp.RespSession):
    """A client of the router. An accepted token is kept, to judge it again when access changes."""

    __slots__ = ("_token", "_until", "_watched", "may_ask", "service")

    def __init__(self, service: RespService) -> None:
        self.service = service
        service.last_id += 1
        self._token: bytes | None = None
        super().__init__(service.last_id, service.fields, has_passwords=service.gatekeeper is not None)

    def reset(self) -> None:
        """Forget what the client has set since it connected."""
        self._keep_token(None)
        self.may_ask = self.service.gatekeeper is None
        """True if the client may look up; False if ``find_denial`` must judge again."""
        self._until = math.inf
        super().reset()

    def begin_transaction(self) -> None:
        """Start to queue commands, up to the keys of one MGET and the bytes of one command."""
        self.transaction = resp.Transaction(self.service.limits.max_keys, self.service.limits.max_body_bytes)

    def end_transaction(self) -> None:
        """Drop queued commands and watches."""
        super().end_transaction()
        self._watched: Callable[[], object] | None = None
        """Returns the routing table in effect at WATCH, or None once it is gone."""

    def watch(self) -> None:
        """Make the next EXEC execute nothing if another routing table takes effect before it."""
        live = self.service.lookups.live
        self._watched = self._watched or ((lambda: None) if live is None else weakref.ref(live))

    @property
    def is_outdated(self) -> bool:
        """Return whether the routing table has changed since the client began to watch."""
        return self._watched is not None and self._watched() is not self.service.lookups.live

    @property
    def limits(self) -> CommandLimits:
        """Limits of the client's next command."""
        has_shown = self.may_ask or self._token is not None
        return self.service.read_limits if has_shown else BEFORE_AUTH

    def count_error(self) -> None:
        """Count an error reply."""
        self.service.counters[_ERRORS] += 1

    def authorise(self, user: bytes, password: bytes) -> str | None:
        """Admit the client if ``password`` is an accepted token, else return the error. Any ``user`` will do."""
        del user
        verdict = self._judge(password)
        if isinstance(verdict, Admitted):
            return None
        if verdict.denial is Denial.UNDECIDED:
            return f"UNAVAILABLE {NO_ACCESS_DATA} {verdict.detail}"
        self.service.counters[_FORBIDDEN if verdict.denial is Denial.FORBIDDEN else _UNAUTHENTICATED] += 1
        if verdict.denial is Denial.FORBIDDEN:
            return f"NOPERM {verdict.detail}"
        return f"WRONGPASS invalid username-password pair or user is disabled: {verdict.detail}"

    def find_denial(self) -> str | None:
        """Return why the client may not look up, or None. Judges an accepted token again if it may have expired."""
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
        """Judge the token again before the next command if its access may have ended by ``now`` (seconds since 1970).
        With ``math.inf``, always do."""
        if self._until <= now and self.service.gatekeeper is not None:
            self.may_ask = False

    def close(self) -> None:
        """Release everything, because the client is gone."""
        self._keep_token(None)
        self.end_transaction()

    def _judge(self, token: bytes) -> Admitted | Denied:
        gatekeeper = self.service.gatekeeper
        assert gatekeeper is not None, "without tokens there is nothing to judge"
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


_OVERLOADED: Final = INDEX["requests_overloaded"]
LOOKUP: Final = find_histogram("resp", "lookup")
BATCH: Final = find_histogram("resp", "batch")
OTHER: Final = find_histogram("resp", "other")
_EXCHANGE_BYTES: Final = 1024
_BYTE_BYTES: Final = 5
"""Upper bound of memory per byte of a command: four bytes as text, and one in the key that is sent to the shard."""
_TURN_SECONDS: Final = 0.01
"""The longest time for which the replies of a transaction are made without a break."""
_KEY_BYTES: Final = 400


class ExchangeOwner(Protocol):
    """A client connection as its exchanges use it."""

    service: RespService
    session: ClientSession
    lookups: LookupCore
    budget: RouterBudget
    counters: memoryview
    is_blocked: bool
    arrived: int
    observe: Callable[..., None]

    def answer(self, exchange: RespExchange, answer: Answer, histogram: int, commands: int = 1) -> None:
        """Send ``answer``, the last part of the answer to ``exchange``, and count ``commands`` in ``histogram``."""

    def reply_at_once(self, command: Command) -> bytes:
        """Return the reply to ``command``, which is valid and not a lookup."""

    def send_part(self, exchange: RespExchange, answer: Answer) -> None:
        """Send ``answer``, a part of the answer to ``exchange``."""

    def replace(self, exchange: RespExchange, other: RespExchange) -> None:
        """Make ``other`` answer instead of ``exchange``."""


def judge(problem: Problem) -> int:
    """Return the outcome of a command whose keys are unavailable."""
    return REFUSED if problem.is_of_client else FAILED


def find_outcome(message: str) -> int:
    """Return the outcome of a command that is answered with the error ``message``."""
    return FAILED if message.startswith("UNAVAILABLE") else REFUSED


def describe_problem(problem: Problem) -> str:
    """Return the error for ``problem``."""
    return f"UNAVAILABLE {problem.reason} {problem.detail}"


def encode_value(value: bytes) -> Answer:
    """Return the reply to a GET whose key has ``value``."""
    return bulk(value) if len(value) <= JOINED_BYTES else [b"$%d\r\n" % len(value), value, CRLF]


class RespExchange:
    """The common part of all exchanges. ``charge`` is what it has taken from the worker's budget."""

    __slots__ = ("arrived", "charge", "connection")
    histogram = BATCH
    """Counts ``commands`` when the answer is complete."""
    commands = 1

    def __init__(self, connection: ExchangeOwner) -> None:
        self.connection = connection
        self.charge = 0
        self.arrived = connection.arrived

    def start(self) -> None:
        """Begin. ``ExchangeOwner.answer`` must then be called exactly once, now or later."""
        raise NotImplementedError

    def resume(self) -> None:
        """Continue, because the client has read its replies."""

    def abandon(self) -> None:
        """Stop, because the client is gone."""

    def _take_charge(self, size: int, key_count: int) -> None:
        """Count the memory of ``key_count`` keys, sent in ``size`` bytes, until they are answered."""
        charge = _EXCHANGE_BYTES + _BYTE_BYTES * size + _KEY_BYTES * key_count
        self.charge += charge
        self.connection.budget.take(charge)

    def _refuse(self, message: str, outcome: int) -> None:
        """Answer all commands with the error ``message``."""
        self.connection.counters[_ERRORS] += self.commands
        self.connection.answer(self, error(message) * self.commands, self.histogram + outcome, self.commands)

    def unavailable(self, problem: Problem) -> None:
        """Answer that the key or all keys are unavailable."""
        self._refuse(self._explain(problem), judge(problem))

    def _explain(self, problem: Problem) -> str:
        """Return the error for ``problem``, which makes the key or all keys unavailable. Count it if it is overload."""
        if problem is OVERLOADED:
            self.connection.counters[_OVERLOADED] += 1
        return describe_problem(problem)

    def unknown_generation(self, name: str, active: ServedGeneration) -> None:
        """Refuse an unknown generation, which cannot happen because RESP names none."""
        self._refuse(f"ERR the generation {name} is not served, but {active.name}", REFUSED)


class KeyExchange(RespExchange):
    """One GET: a ``lookups.Waiter``."""

    __slots__ = ("key",)
    histogram = LOOKUP

    def __init__(self, connection: ExchangeOwner, key: str) -> None:
        # No super(): this is the hot path.
        self.connection = connection
        self.charge = 0
        self.arrived = connection.arrived
        self.key = key

    def start(self) -> None:
        """Ask the lookup core."""
        self.connection.lookups.find(self.key, self)

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """Answer with the key's value."""
        self.connection.answer(self, encode_value(value), LOOKUP)

    def missing(self, generation: ServedGeneration) -> None:
        """Answer that no record has the key."""
        connection = self.connection
        connection.answer(self, connection.session.nil, LOOKUP)


class ReadExchange(KeyExchange):
    """A command of ``READS``."""

    __slots__ = ("_command",)

    def __init__(self, connection: ExchangeOwner, command: Command) -> None:
        super().__init__(connection, command[1].decode("utf-8", "surrogateescape"))
        self._command = command

    def start(self) -> None:
        """Ask the lookup core."""
        self._take_charge(sum(map(len, self._command)), len(self._command) - 1)
        super().start()

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """Answer from the key's value."""
        self._reply(value, generation)

    def missing(self, generation: ServedGeneration) -> None:
        """Answer for a missing key."""
        self._reply(None, generation)

    def _reply(self, value: bytes | None, generation: ServedGeneration) -> None:
        read = resp.READS[self._command[0].upper()][2]
        reply = read(self.connection.session, self._command, value, generation.value_format == "json")
        self.connection.answer(self, reply, LOOKUP)


class SerialExchange(RespExchange):
    """GETs whose values are too large to be held together: each is looked up when the client has read the previous
    ones. A ``lookups.Waiter``."""

    __slots__ = ("_is_advancing", "_is_asking", "_keys")
    histogram = LOOKUP

    def __init__(self, connection: ExchangeOwner, keys: list[str]) -> None:
        super().__init__(connection)
        self._keys = deque(keys)
        self._is_asking = False
        """True if a key is unanswered; stays true once abandoned."""
        self._is_advancing = False
        """True if ``resume`` is running: its lookups may be answered at once."""

    def start(self) -> None:
        """Look up the first key."""
        self.resume()

    def resume(self) -> None:
        """Look up further keys while they are answered at once and the client reads."""
        if self._is_advancing:
            return
        self._is_advancing = True
        connection = self.connection
        while self._keys and not self._is_asking and not connection.is_blocked:
            self._is_asking = True
            connection.lookups.find(self._keys.popleft(), self)
        self._is_advancing = False
        if not self._keys and not self._is_asking:
            connection.answer(self, b"", LOOKUP, 0)  # each key was counted when it was answered

    def abandon(self) -> None:
        """Look up no more keys."""
        self._keys.clear()
        self._is_asking = True

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """Answer with a key's value."""
        self._continue(encode_value(value), LOOKUP)

    def missing(self, generation: ServedGeneration) -> None:
        """Answer that no record has the key."""
        self._continue(self.connection.session.nil, LOOKUP)

    def unavailable(self, problem: Problem) -> None:
        """Answer that the key is unavailable."""
        self.connection.counters[_ERRORS] += 1
        self._continue(error(self._explain(problem)), LOOKUP + judge(problem))

    def _continue(self, answer: Answer, histogram: int) -> None:
        self._is_asking = False
        self.connection.send_part(self, answer)
        self.connection.observe(histogram, self.arrived)
        self.resume()


class KeysExchange(RespExchange):
    """Keys of one routing table, sent in ``size`` bytes: one MGET. Also a base class. A ``lookups.BatchWaiter``."""

    __slots__ = ("gather", "keys", "size")
    are_single = False
    """True if each key is a command of its own."""

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
        """Stop: ask no further shard, and keep nothing."""
        if self.gather:
            self.gather.abandon()

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """Answer with ``values`` of ``size`` bytes. With ``problem``, some keys are unavailable. The answer is then an
        error, because nil would mean missing."""
        if problem is None:
            self.connection.answer(self, self._encode(values, size, b"", is_list=True), BATCH)
        else:
            self._refuse(self._describe_some(values, problem), judge(problem))

    def too_large(self, limit: int) -> None:
        """Answer that the values exceed ``limit`` bytes together."""
        detail = f"the values are more than {limit} bytes together, which is the limit; ask for fewer keys at once"
        self._refuse(f"ERR {detail}", REFUSED)

    def _encode(self, values: BatchValues, size: int, refusal: bytes, *, is_list: bool) -> Answer:
        encode = values.encode_replies if size <= JOINED_BYTES else values.encode_replies_in_pieces
        return encode(is_list, self.connection.session.nil, refusal)

    def _describe_some(self, values: BatchValues, problem: Problem) -> str:
        """Return the error for keys that are unavailable while others are not."""
        count = values.unavailable_count
        if count == 1:
            return describe_problem(problem)
        first = f"{count} of {len(self.keys)} keys requested together cannot be looked up now; the first: "
        return f"UNAVAILABLE {problem.reason} {first}{problem.detail}"


class GetsExchange(KeysExchange):
    """GETs that arrived together, each with its own reply."""

    __slots__ = ("commands",)
    histogram = LOOKUP
    are_single = True

    def __init__(self, connection: ExchangeOwner, keys: BatchKeys, size: int) -> None:
        super().__init__(connection, keys, size)
        self.commands = len(keys)

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """Answer each GET."""
        refusal = b""
        if problem is not None:
            count = values.unavailable_count
            self.connection.counters[_ERRORS] += count
            self.connection.observe(LOOKUP + judge(problem), self.arrived, count)
            self.commands -= count
            refusal = error(self._describe_some(values, problem))
        self.connection.answer(self, self._encode(values, size, refusal, is_list=False), LOOKUP, self.commands)

    def too_large(self, limit: int) -> None:
        """Answer one GET after the other, because the values exceed ``limit`` bytes together."""
        connection = self.connection
        connection.replace(self, SerialExchange(connection, self.keys.to_list()))


class ExistsExchange(KeysExchange):
    """One EXISTS: the number of keys that exist, counting repeats."""

    __slots__ = ()

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """Answer with the number, or an error if a key is unavailable."""
        if problem is None:
            self.connection.answer(self, integer(values.found_count), BATCH)
        else:
            self._refuse(self._describe_some(values, problem), judge(problem))


class TransactionExchange(KeysExchange):
    """One EXEC, which looks up the keys of all its commands together in one routing table."""

    __slots__ = ("_commands", "_held_bytes", "_outcome", "_pieces", "_replies", "_reply_bytes")

    def __init__(self, connection: ExchangeOwner, transaction: resp.Transaction) -> None:
        keys = [key for command in transaction.commands for key in list_keys(command)]
        super().__init__(connection, connection.service.keys_type.from_bytes(keys), sum(map(len, keys)))
        self._commands = transaction.commands
        self._held_bytes = transaction.held_bytes
        self._replies: Iterator[list[bytes]] | None = None
        self._pieces = [b"*%d\r\n" % len(transaction.commands)]
        self._reply_bytes = 0
        self._outcome = 0

    def start(self) -> None:
        """Ask the lookup core."""
        self.charge = self._held_bytes
        self.connection.budget.take(self.charge)
        super().start()

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """Answer each command."""
        refusal = b""
        if problem is not None:
            self._outcome = judge(problem)
            refusal = error(self._describe_some(values, problem))
        self.charge += size
        self.connection.budget.take(size)
        self._answer(values.to_list(UNAVAILABLE), refusal, is_json=generation.value_format == "json")

    def unavailable(self, problem: Problem) -> None:
        """Answer the commands when all keys are unavailable."""
        self._outcome = judge(problem)
        self._answer([UNAVAILABLE] * len(self.keys), error(self._explain(problem)), is_json=False)

    def abandon(self) -> None:
        """Stop: ask no further shard, and make no further reply."""
        self._replies = None
        super().abandon()

    def _answer(self, values: Values, refusal: bytes, *, is_json: bool) -> None:
        """Answer with the list of replies; ``refusal`` replaces those with an unavailable key."""
        self._replies = self._make_replies(values, refusal, is_json=is_json)
        self._make_more_replies()

    def _make_more_replies(self) -> None:
        """Make replies for a while, and then give other clients a turn, because a reply may parse a large value."""
        connection, limit, end = self.connection, self.connection.budget.answer_bytes, time.monotonic() + _TURN_SECONDS
        for replies in self._replies or ():
            self._pieces += replies
            self._reply_bytes += sum(map(len, replies))
            if self._reply_bytes > limit:
                self.too_large(limit)
                return
            if time.monotonic() > end:
                asyncio.get_running_loop().call_soon(self._make_more_replies)
                return
        if self._replies is not None:
            answer = self._pieces if self._reply_bytes > JOINED_BYTES else b"".join(self._pieces)
            connection.answer(self, answer, BATCH + self._outcome)

    def _make_replies(self, values: Values, refusal: bytes, *, is_json: bool) -> Iterator[list[bytes]]:
        start = 0
        for command in self._commands:
            own_values = values[start : start + len(list_keys(command))]
            start += len(own_values)
            if UNAVAILABLE in own_values:
                self.connection.counters[_ERRORS] += 1
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
            case _ if name in resp.READS:
                return [resp.READS[name][2](connection.session, command, values[0], is_json)]
            case _:
                return [connection.reply_at_once(command)]


# INFO: the worker and its dataset in Redis' format.


def _lookupdb(service: RespService) -> resp.InfoFields:
    dataset = service.lookups.describe_dataset()
    if dataset is None:
        return {"generation": ""}
    fields: resp.InfoFields = {
        "dataset": f"{dataset['namespace']}/{dataset['name']}",
        "generation": dataset["generation"],
        "records": dataset["records"],
        "shards": dataset["shards"],
        "built_at": dataset["builtAt"],
        "age_seconds": dataset["ageSeconds"],
        "candidates": ",".join(dataset["candidates"]),
    }
    if "shardGenerations" in dataset:
        # During a shard-by-shard rollout, the number of shards that each generation serves.
        counts = dataset["shardGenerations"].items()
        fields["shard_generations"] = ",".join(f"{name}={shards}" for name, shards in counts)
    return fields


SECTIONS: Final[dict[str, Callable[[RespService], resp.InfoFields]]] = {
    "server": lambda service: resp.describe_server(service.port, service.started_at),
    "clients": lambda service: {
        "connected_clients": service.counters[INDEX["connections"]],
        "maxclients": service.limits.max_connections,
    },
    "memory": lambda service: {"used_memory": max(service.budget.used, 0), "maxmemory": service.budget.limit},
    # Clients use this to wait until a server has loaded its data.
    "persistence": lambda service: {"loading": int(service.lookups.live is None)},
    "stats": lambda service: {
        "total_connections_received": service.counters[INDEX["connections_accepted"]],
        "total_commands_processed": count_requests(service.counters, "resp"),
        "total_error_replies": service.counters[INDEX["resp_errors"]],
        "rejected_connections": service.counters[INDEX["connections_refused"]],
        "keyspace_hits": service.counters[INDEX["keys_found"]],
        "keyspace_misses": service.counters[INDEX["keys_missing"]],
    },
    "replication": lambda _: {"role": "master", "connected_slaves": 0},
    "keyspace": lambda service: (
        {}
        if (dataset := service.lookups.describe_dataset()) is None
        else {"db0": f"keys={dataset['records']},expires=0,avg_ttl=0"}
    ),
    "lookupdb": _lookupdb,
}


def _get_dbsize(session: ClientSession, _: Command) -> resp.Reply:
    dataset = session.service.lookups.describe_dataset()
    return resp.reply_error(session, describe_problem(NO_TABLE)) if dataset is None else (integer(dataset["records"]),)


def _await_exchange(_: ClientSession, __: Command) -> resp.Reply:
    """Return nothing, because the exchange of the lookup answers."""
    return ()


_TABLE: Final = resp.CommandTable[ClientSession](
    "the router",
    "a dataset's generations are immutable: build a new one",
    {
        b"GET": (1, 1, _await_exchange),
        **dict.fromkeys(MANY_KEYS, (1, resp.ANY, _await_exchange)),
        **{name: (least, most, _await_exchange) for name, (least, most, _) in resp.READS.items()},
        b"EXEC": (0, 0, _await_exchange),
        b"DBSIZE": (0, 0, _get_dbsize),
        b"INFO": (0, resp.ANY, lambda session, command: resp.reply_info(SECTIONS, session.service, command)),
        b"READONLY": (0, 0, lambda _, __: (OK,)),
    },
)
COMMANDS: Final = _TABLE.entries
find_refusal: Final = _TABLE.find_refusal
queue: Final = _TABLE.queue
