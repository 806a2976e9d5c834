"""The commands of a shard's client: lookups, and what is told of the server. ``resp.commands`` has the common ones."""

from __future__ import annotations

from typing import Final

from lookupdb.resp.commands import ANY, CommandTable, Reply, find_transaction, printable, reply_error
from lookupdb.resp.reads import READS
from lookupdb.resp.replies import bulk, integer
from lookupdb.resp.requests import Command
from lookupdb.serve import info, shard_counters
from lookupdb.serve.damage import DAMAGED
from lookupdb.serve.limits import CHUNK_BYTES
from lookupdb.serve.session import Session


def _get(session: Session, command: Command) -> Reply:
    yield session.worker.replies.find(command[1]) or session.nil


def _mget(session: Session, command: Command) -> Reply:
    lookups, nil, keys = session.worker.replies, session.nil, command[1:]
    session.worker.slot[shard_counters.LOOKUPS] += len(keys)
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
"""What a lookup costs, in bytes of a value that are decompressed in that time."""


def _read(session: Session, command: Command) -> Reply:
    """One of ``READS``."""
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
    session.end_transaction()  # only now: until the last reply is made, what is queued is held


def _dbsize(session: Session, _: Command) -> Reply:
    return (integer(session.worker.identity.records),)


def _info(session: Session, command: Command) -> Reply:
    return (bulk(info.render(session.worker, [printable(name) for name in command[1:]])),)


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
