"""The commands of a shard server's clients: lookups and INFO. ``resp.commands`` has the common commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lookupdb.resp.commands import (
    ANY,
    READS,
    CommandTable,
    FieldReader,
    InfoFields,
    Reply,
    Transaction,
    choose_fields,
    describe_server,
    find_transaction,
    printable,
    render_sections,
    reply_error,
)
from lookupdb.resp.requests import NIL, Command, bulk, integer
from lookupdb.shard import limits
from lookupdb.shard import limits as shard_counters
from lookupdb.shard.limits import CHUNK_BYTES, ServerBudget, ServerIdentity, ServerLimits
from lookupdb.shard.replies import DAMAGED, KeyReplies, open_native_replies
from lookupdb.shardfile import ShardReader


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
    fields: FieldReader = field(default_factory=choose_fields)
    started: float = field(default_factory=time.monotonic)
    connections: dict[int, Any] = field(default_factory=dict)
    unauthenticated: dict[int, Any] = field(default_factory=dict)
    """Connections that have not authenticated, by file descriptor, oldest first."""
    budget: ServerBudget = field(init=False)
    limits_before_auth: ServerLimits = field(init=False)
    last_id: int = 0

    def __post_init__(self) -> None:
        self.replies = open_native_replies(self.shard, self.slot) or KeyReplies(self.shard, self.slot)
        self.budget = ServerBudget(self.limits.max_held_bytes)
        self.limits_before_auth = self.limits.before_auth


class Session:
    """One client's state: protocol, access and name."""

    __slots__ = (
        "id",
        "is_authorised",
        "is_closing",
        "name",
        "nil",
        "protocol",
        "transaction",
        "unauthenticated_since",
        "worker",
    )
    transaction: Transaction | None

    def __init__(self, worker: WorkerContext) -> None:
        self.worker = worker
        worker.last_id += 1
        self.id: Final = worker.last_id
        self.is_closing = False
        self.reset()

    def reset(self) -> None:
        """Forget what the client has set since it connected."""
        self.is_authorised = self.worker.password_sha256 is None
        self.unauthenticated_since = time.monotonic()
        """When the client connected or was reset without a password."""
        self.name = b""
        self.transaction = None
        self.use_protocol(2)

    @property
    def fields(self) -> FieldReader:
        """The reader of fields in values."""
        return self.worker.fields

    def begin_transaction(self) -> None:
        """Start to queue commands, together up to the limits of one command."""
        self.transaction = Transaction(self.limits.max_arguments, self.limits.max_request_bytes)

    def end_transaction(self) -> None:
        """Drop queued commands."""
        self.transaction = None

    def watch(self) -> None:
        """Do nothing: the file never changes."""

    @property
    def limits(self) -> ServerLimits:
        """The client's limits, narrow until it has authenticated."""
        return self.worker.limits if self.is_authorised else self.worker.limits_before_auth

    def use_protocol(self, protocol: int) -> None:
        """Use RESP ``protocol``, 2 or 3."""
        self.protocol = protocol
        self.nil = NIL[protocol]

    @property
    def has_passwords(self) -> bool:
        """True if clients need a password."""
        return self.worker.password_sha256 is not None

    def find_denial(self) -> str | None:
        """Return why the client may not look up, or None."""
        return None if self.is_authorised else "NOAUTH Authentication required."

    def count_command(self) -> None:
        """Count a command."""
        self.worker.slot[shard_counters.COMMANDS] += 1

    def count_error(self) -> None:
        """Count an error reply."""
        self.worker.slot[shard_counters.ERRORS] += 1

    def authorise(self, user: bytes, password: bytes) -> str | None:
        """Admit the client if the password is right, else return the error."""
        if user == b"default" and self._knows(password):
            self.is_authorised = True
            return None
        return "WRONGPASS invalid username-password pair or user is disabled."

    def _knows(self, password: bytes) -> bool:
        expected = self.worker.password_sha256
        import hashlib  # here, because OpenSSL costs half a MB that servers without a password save
        import hmac

        return expected is not None and hmac.compare_digest(hashlib.sha256(password).digest(), expected)


def render(worker: WorkerContext, names: Iterable[str]) -> str:
    """Return the INFO sections in ``names``, each once; all of them for none, ``default``, ``all`` or
    ``everything``."""
    return render_sections(SECTIONS, worker, names)


def _server(worker: WorkerContext) -> InfoFields:
    return describe_server(worker.port, worker.started)


def _clients(worker: WorkerContext) -> InfoFields:
    return {"connected_clients": len(worker.connections), "maxclients": worker.limits.max_connections}


def _memory(worker: WorkerContext) -> InfoFields:
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


def _stats(worker: WorkerContext) -> InfoFields:
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


def _replication(_: WorkerContext) -> InfoFields:
    return {"role": "master", "connected_slaves": 0}


def _keyspace(worker: WorkerContext) -> InfoFields:
    return {"db0": f"keys={worker.identity.records},expires=0,avg_ttl=0"}


def _lookupdb(worker: WorkerContext) -> InfoFields:
    identity = worker.identity
    return {
        "format_version": identity.format_version,
        "dataset": identity.dataset,
        "dataset_uid": identity.dataset_uid,
        "generation": identity.generation,
        "shard": identity.shard,
        "shards": identity.shards,
        "records": identity.records,
        "normalize": ",".join(identity.normalize),
        "value_format": identity.value_format,
    }


SECTIONS: Final[dict[str, Callable[[WorkerContext], InfoFields]]] = {
    "server": _server,
    "clients": _clients,
    "memory": _memory,
    "stats": _stats,
    "replication": _replication,
    "keyspace": _keyspace,
    "lookupdb": _lookupdb,
}


def _get(session: Session, command: Command) -> Reply:
    yield session.worker.replies.find(command[1]) or session.nil


def _mget(session: Session, command: Command) -> Reply:
    lookups, nil, keys = session.worker.replies, session.nil, command[1:]
    session.worker.slot[limits.LOOKUPS] += len(keys)
    yield b"*%d\r\n" % len(keys)
    yield from lookups.remaining_replies(keys, nil)


def _exists(session: Session, command: Command) -> Reply:
    found = cost = 0
    for reply in map(session.worker.replies.find, command[1:]):
        if reply is DAMAGED:
            yield reply
            return
        found += reply is not None
        cost += _LOOKUP_COST + len(reply or b"")
        if cost > CHUNK_BYTES:
            cost = 0
            yield b""  # its time slice may be over
    yield integer(found)


_LOOKUP_COST: Final = 256
"""Cost of a lookup, in bytes of a value that could be decompressed in the time."""


def _read(session: Session, command: Command) -> Reply:
    yield _make_read_reply(session, command)


def _make_read_reply(session: Session, command: Command) -> bytes:
    worker = session.worker
    reply = worker.replies.find(command[1])
    if reply is DAMAGED:
        return reply
    value = None if reply is None else reply[reply.index(b"\n") + 1 : -2]
    return READS[command[0].upper()][2](session, command, value, worker.identity.value_format == "json")


def _exec(session: Session, _: Command) -> Reply:
    transaction = find_transaction(session)
    if isinstance(transaction, str):
        yield from reply_error(session, transaction)
        return
    yield b"*%d\r\n" % len(transaction.commands)
    for command in transaction.commands:
        yield from COMMANDS[command[0].upper()][2](session, command)
    session.end_transaction()  # only now, because queued commands are held until the last reply is made


def _dbsize(session: Session, _: Command) -> Reply:
    return (integer(session.worker.identity.records),)


def _info(session: Session, command: Command) -> Reply:
    return (bulk(render(session.worker, [printable(name) for name in command[1:]])),)


_TABLE: Final = CommandTable[Session](
    "the shard server",
    "a shard is immutable: build a new generation of the dataset",
    {
        b"GET": (1, 1, _get),
        b"MGET": (1, ANY, _mget),
        **dict.fromkeys((b"EXISTS", b"TOUCH"), (1, ANY, _exists)),
        **{name: (least, most, _read) for name, (least, most, _) in READS.items()},
        b"EXEC": (0, 0, _exec),
        b"DBSIZE": (0, 0, _dbsize),
        b"INFO": (0, ANY, _info),
    },
)
COMMANDS: Final = _TABLE.entries
execute: Final = _TABLE.execute
