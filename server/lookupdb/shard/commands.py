"""The commands of a shard server's clients: lookups and INFO. ``resp.commands`` has the common commands."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lmdb

from lookupdb import native
from lookupdb.process.worker import REQUEST_BOUNDS
from lookupdb.resp import commands as resp
from lookupdb.resp.requests import Command, error, integer
from lookupdb.shard import limits
from lookupdb.shard.limits import ServerBudget, ServerIdentity, ServerLimits
from lookupdb.shardfile import DamagedValue, ShardReader, expand

if TYPE_CHECKING:
    from lookupdb._native import ShardKernel

# The RESP replies to keys of the shard, checked for damage. A damaged value or page is an error for its key alone.
#
# ``NativeReplies`` looks many keys up together in a fraction of the time; ``KeyReplies`` is the Python fallback, which
# looks up one key after the other.


log = logging.getLogger(__name__)

DAMAGED: Final = error(
    "ERR the stored value of this key is damaged: fetch the shard file or build its generation again"
)
"""The reply to a GET of a damaged key; in the reply to an MGET, its element."""
LOG_SECONDS: Final = 60.0
"""Interval of log lines: a damaged key may be requested thousands of times per second."""


class DamageReport:
    """Counts damaged lookups in ``slot``, and logs them at a limited rate."""

    def __init__(self, path: Path, slot: memoryview) -> None:
        self._path = path
        self._slot = slot
        self._logged_at: float | None = None
        self._logged_count = slot[limits.DAMAGED_LOOKUPS]

    def add(self, problem: Exception, lookups: int = 1) -> None:
        """Count lookups that ended in ``problem``, and log it unless one was logged recently."""
        self._slot[limits.DAMAGED_LOOKUPS] += lookups
        now = time.monotonic()
        if self._logged_at is not None and now - self._logged_at < LOG_SECONDS:
            return
        count = self._slot[limits.DAMAGED_LOOKUPS]
        log.error(
            "%s: a stored value is damaged, and its key is answered with an error: %s; fetch or build the file again",
            self._path,
            problem,
            extra={"lookups": count - self._logged_count},
        )
        self._logged_at, self._logged_count = now, count


CHUNK_KEYS: Final = 512
"""Maximum number of keys whose replies are made together."""

Answer = tuple[bytes, list[bytes], bytes, bool, bool]
"""Replies to lookups; counted keys that are still to be answered; the bytes of other requests behind these lookups;
whether these bytes are only the beginning of a lookup, to be passed again with more; and whether the keys are the rest
of an MGET.
"""


class KeyReplies:
    """Reads replies from a worker's shard, and counts lookups and misses: the Python fallback."""

    def __init__(self, shard: ShardReader, slot: memoryview) -> None:
        self._shard = shard
        self._slot = slot
        self._damage = DamageReport(shard.path, slot)

    def answer(self, data: bytes, nil: bytes, arrived: int) -> Answer:
        """Answer the lookups at the beginning of ``data``, with ``nil`` for missing keys, and count them in histograms.
        This class leaves all lookups to the parser of requests."""
        return b"", [], data, False, False

    def find(self, key: bytes) -> bytes | None:
        """Count the lookup, and return the reply to ``key``: the stored bulk string, or an error if it is damaged. None
        if it is missing, like every key that cannot exist.
        """
        self._slot[limits.LOOKUPS] += 1
        return self._find(key)

    def remaining_replies(self, keys: list[bytes], nil: bytes) -> Iterator[bytes]:
        """Yield, in chunks, the replies to ``keys``, which were counted."""
        start = 0
        while start < len(keys):
            chunk: list[Any] = list(self._make_chunk(nil, keys[start : start + CHUNK_KEYS]))
            start += chunk.pop()
            yield chunk.pop()  # not kept here while the client does not read: no budget would count it

    def _make_chunk(self, nil: bytes, keys: list[bytes]) -> tuple[bytes, int]:
        """Return the replies to the first of ``keys``, and their number."""
        size, replies = 0, []
        for key in keys:
            reply = self._find(key) or nil
            replies.append(reply)
            size += len(reply)
            if size > limits.CHUNK_BYTES:
                break
        return b"".join(replies), len(replies)

    def _find(self, key: bytes) -> bytes | None:
        try:
            stored = self._shard.txn.get(key) if key else None
            if stored is not None:
                return expand(stored, self._shard.inflate)
        except lmdb.Error as problem:
            self._shard.renew()
            self._damage.add(problem)
            return DAMAGED
        except DamagedValue as problem:
            self._damage.add(problem)
            return DAMAGED
        self._slot[limits.MISSES] += 1
        return None


_PLACES = (limits.LOOKUPS, limits.MISSES, limits.COMMANDS, limits.SENT_BYTES, limits.GET)


def _open_native_replies(shard: ShardReader, slot: memoryview) -> NativeReplies | None:
    """Open the file of ``shard`` a second time, for the native kernel. Return None without a kernel, or if it does not
    know the file's format.
    """
    module = native.kernels()
    if module is None:
        return None
    try:
        kernel = module.ShardKernel(
            shard.path,
            (slot, _PLACES, REQUEST_BOUNDS),
            DAMAGED,
            read_bytes=limits.READ_BYTES,
            chunk_bytes=limits.CHUNK_BYTES,
            slice_seconds=limits.TIME_SLICE_SECONDS,
        )
    except (OSError, ValueError) as problem:
        log.warning("%s: served by Python, because the native kernel cannot read it: %s", shard.path, problem)
        return None
    return NativeReplies(kernel, DamageReport(shard.path, slot))


class NativeReplies(KeyReplies):
    """Replies with ``kernel``, which counts in the worker's slot."""

    def __init__(self, kernel: ShardKernel, damage: DamageReport) -> None:
        self.kernel = kernel
        self._damage = damage

    def answer(self, data: bytes, nil: bytes, arrived: int) -> Answer:
        """See ``KeyReplies``."""
        answer = self.kernel.answer(data, nil, arrived)
        self.report_damage()
        return answer

    def find(self, key: bytes) -> bytes | None:
        """See ``KeyReplies``."""
        reply = self.kernel.find(key)
        return DAMAGED if self.report_damage() else reply

    def _make_chunk(self, nil: bytes, keys: list[bytes]) -> tuple[bytes, int]:
        chunk = self.kernel.replies(keys, nil)
        self.report_damage()
        return chunk

    def report_damage(self) -> bool:
        """Report damaged lookups since the last call. Return whether there were any."""
        damage = self.kernel.take_damage()
        if damage is None:
            return False
        lookups, problem = damage
        self._damage.add(DamagedValue(problem), lookups)
        return True


_BEFORE_AUTH_ARGUMENTS: Final = 16
"""HELLO with AUTH and SETNAME has seven words."""
BEFORE_AUTH_BYTES: Final = 4 << 10
"""A password has at most 1,024 bytes."""


@dataclass(slots=True)
class WorkerContext:
    """The shared state of a worker's connections."""

    shard: ShardReader
    identity: ServerIdentity
    limits: ServerLimits
    slot: memoryview
    """The worker's counters; ``shard.limits`` has their places."""
    password_sha256: bytes | None = None
    """Hash of the password, or None if clients need none."""
    port: int = 0
    file_bytes: int = 0
    replies: KeyReplies = field(init=False)
    fields: resp.FieldReader = field(default_factory=resp.choose_fields)
    started: float = field(default_factory=time.monotonic)
    connections: dict[int, Any] = field(default_factory=dict)
    unauthenticated: dict[int, Any] = field(default_factory=dict)
    """Connections that have not authenticated, by file descriptor, oldest first."""
    budget: ServerBudget = field(init=False)
    limits_before_auth: ServerLimits = field(init=False)
    """Enough for AUTH or HELLO."""
    last_id: int = 0

    def __post_init__(self) -> None:
        self.replies = _open_native_replies(self.shard, self.slot) or KeyReplies(self.shard, self.slot)
        self.budget = ServerBudget(self.limits.max_held_bytes)
        self.limits_before_auth = replace(
            self.limits,
            max_arguments=_BEFORE_AUTH_ARGUMENTS,
            max_request_bytes=BEFORE_AUTH_BYTES,
            max_inline_bytes=BEFORE_AUTH_BYTES,
            output_high=BEFORE_AUTH_BYTES,
        )


class Session(resp.RespSession):
    """A client of the shard server."""

    __slots__ = ("is_authorised", "unauthenticated_since", "worker")

    def __init__(self, worker: WorkerContext) -> None:
        self.worker = worker
        worker.last_id += 1
        super().__init__(worker.last_id, worker.fields, has_passwords=worker.password_sha256 is not None)

    def reset(self) -> None:
        """Forget what the client has set since it connected."""
        self.is_authorised = self.worker.password_sha256 is None
        self.unauthenticated_since = time.monotonic()
        """When the client connected or was reset: it has given no password since then."""
        super().reset()

    def begin_transaction(self) -> None:
        """Start to queue commands; all of them share the limits of one command."""
        self.transaction = resp.Transaction(self.limits.max_arguments, self.limits.max_request_bytes)

    @property
    def limits(self) -> ServerLimits:
        """The client's limits, narrow until it has authenticated."""
        return self.worker.limits if self.is_authorised else self.worker.limits_before_auth

    def find_denial(self) -> str | None:
        """Return why the client may not look up, or None."""
        return None if self.is_authorised else "NOAUTH Authentication required."

    def count_error(self) -> None:
        """Count an error reply."""
        self.worker.slot[limits.ERRORS] += 1

    def authorise(self, user: bytes, password: bytes) -> str | None:
        """Admit the client if the password is right, else return the error."""
        if user == b"default" and (expected := self.worker.password_sha256) is not None:
            import hashlib  # here: servers without a password save the half MB of OpenSSL
            import hmac

            if hmac.compare_digest(hashlib.sha256(password).digest(), expected):
                self.is_authorised = True
                return None
        return "WRONGPASS invalid username-password pair or user is disabled."


def _memory(worker: WorkerContext) -> resp.InfoFields:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        # Anonymous memory belongs to this process. The mapped shard belongs to the page cache, and is listed
        # separately.
        "used_memory": _kib(status["RssAnon"]),
        "used_memory_rss": _kib(status["VmRSS"]),
        "shard_file_bytes": worker.file_bytes,
    }


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024


def _stats(worker: WorkerContext) -> resp.InfoFields:
    slot = worker.slot
    return {
        "total_connections_received": slot[limits.CONNECTIONS],
        "total_commands_processed": slot[limits.COMMANDS],
        "total_net_output_bytes": slot[limits.SENT_BYTES],
        "total_error_replies": slot[limits.ERRORS],
        "rejected_connections": slot[limits.CONNECTIONS_REFUSED],
        "keyspace_hits": slot[limits.LOOKUPS] - slot[limits.MISSES] - slot[limits.DAMAGED_LOOKUPS],
        "keyspace_misses": slot[limits.MISSES],
    }


def _lookupdb(worker: WorkerContext) -> resp.InfoFields:
    return {**asdict(worker.identity), "normalize": ",".join(worker.identity.normalize)}


SECTIONS: Final[dict[str, Callable[[WorkerContext], resp.InfoFields]]] = {
    "server": lambda worker: resp.describe_server(worker.port, worker.started),
    "clients": lambda worker: {
        "connected_clients": len(worker.connections),
        "maxclients": worker.limits.max_connections,
    },
    "memory": _memory,
    "stats": _stats,
    "replication": lambda _: {"role": "master", "connected_slaves": 0},
    "keyspace": lambda worker: {"db0": f"keys={worker.identity.records},expires=0,avg_ttl=0"},
    "lookupdb": _lookupdb,
}


def _get(session: Session, command: Command) -> resp.Reply:
    yield session.worker.replies.find(command[1]) or session.nil


def _mget(session: Session, command: Command) -> resp.Reply:
    lookups, nil, keys = session.worker.replies, session.nil, command[1:]
    session.worker.slot[limits.LOOKUPS] += len(keys)
    yield b"*%d\r\n" % len(keys)
    yield from lookups.remaining_replies(keys, nil)


def _exists(session: Session, command: Command) -> resp.Reply:
    found = cost = 0
    for reply in map(session.worker.replies.find, command[1:]):
        if reply is DAMAGED:
            yield reply
            return
        found += reply is not None
        cost += _LOOKUP_COST + len(reply or b"")
        if cost > limits.CHUNK_BYTES:
            cost = 0
            del reply  # no budget counts it while other clients have their turn
            yield b""  # the client's time slice may be over
    yield integer(found)


_LOOKUP_COST: Final = 256
"""Cost of a lookup: as many bytes of a value could be decompressed in the same time."""


def _read(session: Session, command: Command) -> resp.Reply:
    yield _make_read_reply(session, command)


def _make_read_reply(session: Session, command: Command) -> bytes:
    # A generator would keep the value, which no budget counts, while the client does not read.
    worker = session.worker
    reply = worker.replies.find(command[1])
    if reply is DAMAGED:
        return reply
    value = None if reply is None else reply[reply.index(b"\n") + 1 : -2]
    return resp.READS[command[0].upper()][2](session, command, value, worker.identity.value_format == "json")


def _exec(session: Session, _: Command) -> resp.Reply:
    transaction = resp.find_transaction(session)
    if isinstance(transaction, str):
        yield from resp.reply_error(session, transaction)
        return
    yield b"*%d\r\n" % len(transaction.commands)
    for command in transaction.commands:
        yield from COMMANDS[command[0].upper()][2](session, command)
    session.end_transaction()  # only now, because queued commands are held until the last reply is made


_TABLE: Final = resp.CommandTable[Session](
    "the shard server",
    "a shard is immutable: build a new generation of the dataset",
    {
        b"GET": (1, 1, _get),
        b"MGET": (1, resp.ANY, _mget),
        **dict.fromkeys((b"EXISTS", b"TOUCH"), (1, resp.ANY, _exists)),
        **{name: (least, most, _read) for name, (least, most, _) in resp.READS.items()},
        b"EXEC": (0, 0, _exec),
        b"DBSIZE": (0, 0, lambda session, _: (integer(session.worker.identity.records),)),
        b"INFO": (0, resp.ANY, lambda session, command: resp.reply_info(SECTIONS, session.worker, command)),
    },
)
COMMANDS: Final = _TABLE.entries
execute: Final = _TABLE.execute
