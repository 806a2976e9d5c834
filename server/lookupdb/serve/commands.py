"""The commands of a shard's client: lookups, and what is told of the server. ``resp.commands`` has the common ones."""

from __future__ import annotations

from typing import Final

from lookupdb.resp.commands import ANY, CommandTable, Reply, printable
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
        b"EXISTS": (1, ANY, _exists),
        b"DBSIZE": (0, 0, _dbsize),
        b"INFO": (0, ANY, _info),
    },
)
COMMANDS: Final = _TABLE.entries
execute: Final = _TABLE.execute
