"""The commands of a router's client. ``resp.commands`` has those that all servers know."""

from __future__ import annotations

from typing import Final

from lookupdb.resp.commands import ANY, CommandTable, Reply, printable, reply_error
from lookupdb.resp.reads import READS
from lookupdb.resp.replies import OK, bulk, integer
from lookupdb.resp.requests import MANY_KEYS, Command
from lookupdb.route.lookups.waiters import NO_TABLE
from lookupdb.route.resp import info
from lookupdb.route.resp.exchanges import describe_problem
from lookupdb.route.resp.session import ClientSession


def _get_dbsize(session: ClientSession, _: Command) -> Reply:
    dataset = session.service.lookups.dataset()
    return reply_error(session, describe_problem(NO_TABLE)) if dataset is None else (integer(dataset.records),)


def _get_info(session: ClientSession, command: Command) -> Reply:
    return (bulk(info.render(session.service, [printable(name) for name in command[1:]])),)


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
