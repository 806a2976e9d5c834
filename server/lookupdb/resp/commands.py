"""Commands that all servers share, the table that checks and executes commands, and reads of one key's value.

A server adds its own commands to a ``CommandTable``. A reply is an iterable of pieces. A large one is yielded, to be
sent while it is made: a tuple would keep all of it in memory while its client reads.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from lookupdb import __version__, native
from lookupdb.resp.requests import NIL, OK, PONG, Command, array, bulk, error, integer, list_keys, mapping

# The fields of a value are the members of its JSON object, for HGET and similar commands.
#
# A string is answered with its text, any other value with its JSON as stored, digit for digit. ``null`` is not a field.
# The last of several members with the same name counts. The content of a member's value is skipped, not parsed.


class FieldReader:
    """Reads fields: the Python fallback of the functions of ``lookupdb._native``."""

    def select_fields(self, value: bytes, names: list[bytes], /) -> list[bytes | None] | None:
        """Return the texts of the fields ``names``, None for one that is missing or null. None if ``value`` is not a
        JSON object."""
        members = _read_members(value)
        if members is None:
            return None
        return [None if (text := members.get(name, _NULL)) == _NULL else _field_text(text) for name in names]

    def encode_fields(self, value: bytes, names: bool, values: bool, /) -> tuple[int, bytes] | None:
        """Return the number of fields in ``value``, and their ``names``, ``values`` or both alternately as bulk
        strings. None if it is not a JSON object."""
        members = _read_members(value)
        if members is None:
            return None
        fields = [(name, text) for name, text in members.items() if text != _NULL]
        replies = (
            (bulk(name) if names else b"") + (bulk(_field_text(text)) if values else b"") for name, text in fields
        )
        return len(fields), b"".join(replies)


def choose_fields() -> FieldReader:
    """Return the native kernels if enabled, else the Python fallback."""
    kernels: Any = native.kernels()
    return FieldReader() if kernels is None else kernels


_NULL: Final = b"null"
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NAME: Final = re.compile(rb"(%b)[ \t\n\r]*+:[ \t\n\r]*+" % _STRING, re.DOTALL)
_BEGIN: Final = re.compile(rb"[ \t\n\r]*+\{[ \t\n\r]*+")
_PLAIN: Final = re.compile(rb"%b|[-+.0-9A-Za-z]++" % _STRING, re.DOTALL)
_BRACKET: Final = re.compile(rb'%b|["\[\]{}]' % _STRING, re.DOTALL)
_BEHIND: Final = re.compile(rb"[ \t\n\r]*+([,}])[ \t\n\r]*+")
_ESCAPES: Final = re.compile(rb"(?:\\u[0-9A-Fa-f]{4})+|\\.", re.DOTALL)


def _read_members(text: bytes) -> dict[bytes, bytes] | None:
    """Return the members of the object ``text``, with values as written, or None if it is not an object."""
    begin = _BEGIN.match(text)
    if begin is None:
        return None
    members: dict[bytes, bytes] = {}
    at = begin.end()
    if text[at : at + 1] == b"}":
        return members if not text[at + 1 :].strip(b" \t\n\r") else None
    while (name := _NAME.match(text, at)) is not None:
        end = _find_end(text, name.end())
        behind = _BEHIND.match(text, end)
        if end < 0 or behind is None:
            return None
        members[_field_text(name[1])] = text[name.end() : end]
        at = behind.end()
        if behind[1] == b"}":
            return members if at == len(text) else None
    return None


def _find_end(text: bytes, start: int) -> int:
    """Return the end of the value at ``start``, or -1 if there is none."""
    if text[start : start + 1] not in (b"{", b"["):
        plain = _PLAIN.match(text, start)
        return -1 if plain is None else plain.end()
    depth = 0
    for found in _BRACKET.finditer(text, start):
        if found[0] in (b"{", b"["):
            depth += 1
        elif found[0] in (b"}", b"]"):
            depth -= 1
            if not depth:
                return found.end()
        elif len(found[0]) == 1:  # a string without an end
            return -1
    return -1


def _field_text(value: bytes) -> bytes:
    """Return the text of a JSON string, or the bytes of any other value or invalid string as they are."""
    if not value.startswith(b'"'):
        return value
    if b"\\" not in value:
        return value[1:-1]
    try:
        return _ESCAPES.sub(lambda found: json.loads(b'"%b"' % found[0]).encode(), value[1:-1])
    except ValueError:
        return value


# Clients cannot write, so EXEC promises only that its replies come from one generation.

QUEUED: Final = b"+QUEUED\r\n"
_COMMAND_BYTES: Final = 120
_ARGUMENT_BYTES: Final = 48
"""Memory of a command and of each of its words in Python, besides their bytes."""


class Transaction:
    """Commands queued between MULTI and EXEC, up to ``max_keys`` keys (at least one per command) and ``max_bytes``."""

    __slots__ = ("_keys", "_max_bytes", "_max_keys", "commands", "held_bytes", "is_aborted")

    def __init__(self, max_keys: int, max_bytes: int) -> None:
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._keys = 0
        self.commands: list[Command] = []
        self.held_bytes = 0
        self.is_aborted = False
        """True if a command was refused: EXEC executes none, and no more are kept."""

    def add(self, command: Command, key_count: int) -> str | None:
        """Keep ``command`` until EXEC, or return the error if that is too much."""
        if self.is_aborted:
            return None
        keys = self._keys + max(1, key_count)
        size = self.held_bytes + _COMMAND_BYTES + sum(map(len, command)) + _ARGUMENT_BYTES * len(command)
        if keys > self._max_keys:
            return f"ERR too many keys in one transaction: {keys}, the limit is {self._max_keys}; send EXEC sooner"
        if size > self._max_bytes:
            return f"ERR the transaction is larger than {self._max_bytes} bytes, which is the limit; send EXEC sooner"
        self._keys, self.held_bytes = keys, size
        self.commands.append(command)
        return None

    def abort(self) -> None:
        """Make EXEC execute nothing."""
        self.is_aborted = True
        self.commands = []
        self.held_bytes = 0


Reply = Iterable[bytes]

ANY: Final = 1 << 30
"""The most arguments of commands that take any number."""


class RespSession:
    """A server's client, without sockets."""

    __slots__ = ("fields", "has_passwords", "id", "is_closing", "name", "nil", "protocol", "transaction")

    def __init__(self, number: int, fields: FieldReader, *, has_passwords: bool) -> None:
        """``number`` is unique among all clients of the process. ``has_passwords``: clients must authenticate."""
        self.id: Final = number
        self.fields = fields
        self.has_passwords: Final = has_passwords
        self.is_closing = False
        self.reset()

    def reset(self) -> None:
        """Forget what the client has set since it connected."""
        self.name = b""
        self.end_transaction()
        self.use_protocol(2)

    def use_protocol(self, protocol: int) -> None:
        """Use RESP ``protocol``, 2 or 3."""
        self.protocol = protocol
        self.nil = NIL[protocol]
        """The reply for a missing key."""

    def begin_transaction(self) -> None:
        """Start to queue commands."""
        raise NotImplementedError

    def end_transaction(self) -> None:
        """Drop queued commands and watches."""
        self.transaction: Transaction | None = None
        """Commands queued since MULTI, until EXEC or DISCARD."""

    def watch(self) -> None:
        """Make the next EXEC execute nothing if the served data changes before it. A shard's file never changes."""

    def find_denial(self) -> str | None:
        """Return why the client may not look up, in the words of Redis, or None."""
        raise NotImplementedError

    def authorise(self, user: bytes, password: bytes) -> str | None:
        """Admit the client, or return the error in the words of Redis."""
        raise NotImplementedError

    def count_error(self) -> None:
        """Count an error reply."""
        raise NotImplementedError


SessionT = TypeVar("SessionT", bound=RespSession)

Handler = Callable[[SessionT, Command], Reply]
Entry = tuple[int, int, Handler[SessionT]]
"""Least arguments, most arguments, handler."""


class CommandTable(Generic[SessionT]):
    """The commands of a kind of ``server``: its ``own``, and those that all servers share.

    ``immutable`` is the sentence that refuses writes.
    """

    def __init__(self, server: str, immutable: str, own: Mapping[bytes, Entry[SessionT]]) -> None:
        self._server = server
        self._immutable = immutable
        common: dict[bytes, Entry[Any]] = {
            b"PING": (0, 1, _ping),
            b"ECHO": (1, 1, _echo),
            b"AUTH": (1, 2, self._auth),
            b"HELLO": (0, ANY, _hello),
            b"CLIENT": (1, ANY, _client),
            b"COMMAND": (0, ANY, self._command),
            b"CONFIG": (1, ANY, self._config),
            b"SELECT": (1, 1, _select),
            b"QUIT": (0, ANY, _quit),
            b"RESET": (0, 0, _reset),
            b"MULTI": (0, 0, _multi),
            b"DISCARD": (0, 0, _discard),
            b"WATCH": (1, ANY, _watch),
            b"UNWATCH": (0, 0, _unwatch),
        }
        self.entries: Final[Mapping[bytes, Entry[SessionT]]] = {**own, **common}
        """Entries by name in capitals."""

    def execute(self, session: SessionT, command: Command) -> Iterator[bytes]:
        """Yield the reply to ``command``, which has at least a name."""
        refusal = self.find_refusal(session, command)
        if (reply := self.queue(session, command, refusal)) is not None:
            yield reply
        elif refusal is None:
            yield from self.entries[command[0].upper()][2](session, command)
        else:
            yield from reply_error(session, refusal)

    def find_refusal(self, session: SessionT, command: Command) -> str | None:
        """Return why the command is refused, in the words of Redis, which clients know, or None."""
        name = command[0].upper()
        if name not in _BEFORE_AUTH and (denial := session.find_denial()) is not None:
            return denial
        if name in WRITES:
            return f"READONLY {self._immutable}"
        if name not in self.entries:
            name_text = printable(command[0])
            if name in _LISTINGS:
                return f"ERR unknown command '{name_text}': {self._server} lists no keys. {_NO_LISTING}"
            arguments = "".join(f"'{printable(argument)}' " for argument in command[1:9])
            return f"ERR unknown command '{name_text}', with args beginning with: {arguments[:256]}"
        min_arguments, max_arguments, _ = self.entries[name]
        if not min_arguments <= len(command) - 1 <= max_arguments:
            return f"ERR wrong number of arguments for '{printable(name.lower())}' command"
        return None

    def queue(self, session: SessionT, command: Command, refusal: str | None) -> bytes | None:
        """Queue ``command`` if a transaction has begun, and return the reply. Return None if it must be answered now. A
        ``refusal`` aborts the transaction."""
        transaction, name = session.transaction, command[0].upper()
        if transaction is None or (refusal is None and name in _NEVER_QUEUED):
            return None
        refusal = refusal or transaction.add(command, len(list_keys(command)))
        if refusal is None:
            return QUEUED
        session.count_error()
        transaction.abort()
        if name == b"EXEC":
            session.end_transaction()
            return error(f"EXECABORT Transaction discarded because of: {refusal}")
        return error(refusal)

    def _auth(self, session: SessionT, command: Command) -> Reply:
        if not session.has_passwords and len(command) == 3:
            return (OK,)  # like Redis, whose default user may send a password that it does not need
        if not session.has_passwords:
            return reply_error(session, f"ERR AUTH called without any password configured for {self._server}")
        user = command[1] if len(command) == 3 else b"default"
        refusal = session.authorise(user, command[-1])
        return (OK,) if refusal is None else reply_error(session, refusal)

    def _command(self, _: SessionT, command: Command) -> Reply:
        # COUNT is the number of commands; descriptions (DOCS, INFO, LIST) are for completion, and may be empty.
        if len(command) > 1 and command[1].upper() == b"COUNT":
            return (integer(len(self.entries)),)
        return (array(()),)

    def _config(self, session: SessionT, command: Command) -> Reply:
        if command[1].upper() != b"GET" or len(command) < 3:
            known = f"ERR only CONFIG GET is known: {self._server} is configured when it is started"
            return reply_error(session, known)
        names = {name.lower() for name in command[2:]}
        settings = [(bulk(name), bulk(value)) for name, value in _SETTINGS.items() if name.encode() in names]
        return (mapping(settings, session.protocol),)


def reply_error(session: RespSession, message: str) -> Reply:
    """Count an error, and return its reply."""
    session.count_error()
    return (error(message),)


def printable(text: bytes) -> str:
    """Return the beginning of ``text``, for a message."""
    return text[:128].decode(errors="replace")


def _ping(_: RespSession, command: Command) -> Reply:
    yield bulk(command[1]) if len(command) > 1 else PONG


def _echo(_: RespSession, command: Command) -> Reply:
    yield bulk(command[1])


def _hello(session: RespSession, command: Command) -> Reply:
    protocol = session.protocol
    options = command[1:]
    if options:
        if options[0] not in (b"2", b"3"):
            return reply_error(session, "NOPROTO unsupported protocol version")
        protocol = int(options[0])
    if len(options) > _HELLO_WORDS:
        return reply_error(
            session, f"ERR Syntax error in HELLO: expected at most {_HELLO_WORDS} words, found {len(options)}"
        )
    name, remaining = None, options[1:]
    while remaining:
        match remaining[0].upper(), len(remaining):
            case b"AUTH", length if length >= 3:
                refusal = session.authorise(remaining[1], remaining[2]) if session.has_passwords else None
                if refusal is not None:
                    return reply_error(session, refusal)
                remaining = remaining[3:]
            case b"SETNAME", length if length >= 2:
                name, remaining = remaining[1], remaining[2:]
            case _:
                return reply_error(session, f"ERR Syntax error in HELLO option '{printable(remaining[0])}'")
    if session.find_denial() is not None:
        return reply_error(session, "NOAUTH HELLO must be called with the client already authenticated")
    if name is not None and not _is_name(name):
        return reply_error(session, _BAD_NAME)
    session.name = session.name if name is None else name
    session.use_protocol(protocol)
    about = {
        "server": bulk("redis"),
        "version": bulk(REDIS_VERSION),
        "proto": integer(protocol),
        "id": integer(session.id),
        "mode": bulk("standalone"),
        "role": bulk("master"),
        "modules": array(()),
    }
    return (mapping(((bulk(key), value) for key, value in about.items()), protocol),)


REDIS_VERSION: Final = "7.0.0"
"""The commands are those of Redis 7. Clients choose by this version what they may send."""
_HELLO_WORDS: Final = 16
"""More than twice as many words as any client sends: reading the options of a HELLO of maximum size took seconds."""
_BAD_NAME: Final = "ERR Client names cannot contain spaces, newlines or special characters."


def _is_name(name: bytes) -> bool:
    return len(name) <= 128 and all(0x21 <= byte <= 0x7E for byte in name)


def _client(session: RespSession, command: Command) -> Reply:
    match command[1].upper(), command[2:]:
        case b"SETNAME", [name]:
            if not _is_name(name):
                return reply_error(session, _BAD_NAME)
            session.name = name
            return (OK,)
        case b"GETNAME", []:
            return (bulk(session.name) if session.name else session.nil,)
        case b"ID", []:
            return (integer(session.id),)
        case (b"SETINFO", [_, _]) | ((b"NO-EVICT" | b"NO-TOUCH"), [_]):
            return (OK,)
        case _:
            return reply_error(session, f"ERR unknown subcommand or wrong arguments for '{printable(command[1])}'")


_SETTINGS: Final = {"save": "", "appendonly": "no", "maxmemory": "0", "databases": "1"}
"""Settings that tools such as redis-benchmark request; nothing is ever saved."""


def _select(session: RespSession, command: Command) -> Reply:
    return (OK,) if command[1] == b"0" else reply_error(session, "ERR DB index is out of range")


def _quit(session: RespSession, _: Command) -> Reply:
    session.is_closing = True
    return (OK,)


def _reset(session: RespSession, _: Command) -> Reply:
    session.reset()
    return (b"+RESET\r\n",)


def _multi(session: RespSession, _: Command) -> Reply:
    if session.transaction is not None:
        return reply_error(session, "ERR MULTI calls can not be nested")
    session.begin_transaction()
    return (OK,)


def _discard(session: RespSession, _: Command) -> Reply:
    if session.transaction is None:
        return reply_error(session, "ERR DISCARD without MULTI")
    session.end_transaction()
    return (OK,)


def _watch(session: RespSession, _: Command) -> Reply:
    if session.transaction is not None:
        return reply_error(session, "ERR WATCH inside MULTI is not allowed")
    session.watch()
    return (OK,)


def _unwatch(session: RespSession, _: Command) -> Reply:
    if session.transaction is None:
        session.end_transaction()
    return (OK,)


def find_transaction(session: RespSession) -> Transaction | str:
    """Return what EXEC must execute, or the error, after ending an aborted transaction."""
    transaction = session.transaction
    if transaction is None:
        return "ERR EXEC without MULTI"
    if transaction.is_aborted:
        session.end_transaction()
        return "EXECABORT Transaction discarded because of previous errors."
    return transaction


_BEFORE_AUTH: Final = frozenset((b"AUTH", b"HELLO", b"QUIT", b"RESET"))

_NEVER_QUEUED: Final = frozenset((b"MULTI", b"EXEC", b"DISCARD", b"WATCH", b"QUIT", b"RESET"))

_LISTINGS: Final = frozenset((b"KEYS", b"SCAN", b"RANDOMKEY"))
_NO_LISTING: Final = "DBSIZE counts them; lookupdb.open() in Python lists those of a generation on its machine"

WRITES: Final = frozenset(
    b"""
    APPEND BITFIELD BITOP BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN COPY DECR DECRBY DEL
    EVAL EVALSHA EXPIRE EXPIREAT FLUSHALL FLUSHDB FUNCTION GEOADD GETDEL GETEX GETSET HDEL HINCRBY HINCRBYFLOAT
    HMSET HSET HSETNX INCR INCRBY INCRBYFLOAT LINSERT LMOVE LMPOP LPOP LPUSH LPUSHX LREM LSET LTRIM MIGRATE
    MOVE MSET MSETNX PERSIST PEXPIRE PEXPIREAT PFADD PFMERGE PSETEX RENAME RENAMENX RESTORE RPOP RPOPLPUSH
    RPUSH RPUSHX SADD SDIFFSTORE SET SETBIT SETEX SETNX SETRANGE SINTERSTORE SMOVE SORT SPOP SREM SUNIONSTORE
    SWAPDB UNLINK XACK XADD XDEL XGROUP XTRIM ZADD ZINCRBY ZINTERSTORE ZPOPMAX ZPOPMIN ZRANGESTORE ZREM
    ZUNIONSTORE
    """.split()
)
"""Redis' write commands. Unlike unknown commands, they are refused with a reason of their own."""


ServerT = TypeVar("ServerT")

InfoFields = dict[str, Any]


def reply_info(sections: Mapping[str, Callable[[ServerT], InfoFields]], server: ServerT, command: Command) -> Reply:
    """Reply to INFO with the ``sections`` that ``command`` names, each once. Without names, or if one is ``default``,
    ``all`` or ``everything``, reply with all.
    """
    names = list(dict.fromkeys(printable(name).lower() for name in command[1:]))
    if not names or {"default", "all", "everything"} & set(names):
        names = list(sections)
    rendered = []
    for name in names:
        if name in sections:
            lines = [f"{field}:{value}" for field, value in sections[name](server).items()]
            rendered.append("\r\n".join([f"# {name.capitalize()}", *lines, ""]))
    return (bulk("\r\n".join(rendered)),)


def describe_server(port: int, started_at: float) -> InfoFields:
    """Return the section ``server`` of this process, with its ``port`` and start on the monotonic clock."""
    seconds = int(time.monotonic() - started_at)
    return {
        "redis_version": REDIS_VERSION,
        "redis_mode": "standalone",
        "server_name": "lookupdb",
        "lookupdb_version": __version__,
        "process_id": os.getpid(),
        "tcp_port": port,
        "uptime_in_seconds": seconds,
        "uptime_in_days": seconds // 86400,
    }


# Commands that read the value of one key, besides GET. Routers and shard servers look it up, and reply with ``READS``.

Read = Callable[[RespSession, Command, "bytes | None", bool], bytes]
"""Returns the reply to a command from the value of its key, None if missing. The last argument is whether values are
JSON."""

MAX_REPEATED_BYTES: Final = 1 << 20
"""Limit of an HMGET reply with repeated fields, unless the value is larger."""


_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")


def _getrange(session: RespSession, command: Command, value: bytes | None, _: bool) -> bytes:
    bounds = [int(word) for word in command[2:] if _INTEGER.fullmatch(word)]
    if len(bounds) < len(command) - 2 or any(not -(1 << 63) <= bound < 1 << 63 for bound in bounds):
        return _refuse(session, "ERR value is not an integer or out of range")
    text = value or b""
    start, end = (max(bound + len(text), 0) if bound < 0 else bound for bound in bounds)
    # If both bounds count from the end, Redis compares them before it converts them.
    return bulk(b"" if bounds[1] < bounds[0] < 0 else text[start : end + 1])


def _hget(session: RespSession, command: Command, value: bytes | None, is_json: bool) -> bytes:
    """Reply to HGET, HEXISTS, HSTRLEN and HMGET."""
    name, fields = command[0].upper(), list(dict.fromkeys(command[2:]))
    texts = [None] * len(fields) if value is None else session.fields.select_fields(value, fields) if is_json else None
    if texts is None:
        return _refuse(session, _WRONG_TYPE)
    if name == b"HEXISTS":
        return integer(int(texts[0] is not None))
    if name == b"HSTRLEN":
        return integer(len(texts[0] or b""))
    if name == b"HGET":
        return session.nil if texts[0] is None else bulk(texts[0])
    found = dict(zip(fields, texts, strict=True))
    most = max(MAX_REPEATED_BYTES, len(value or b""))
    if sum(len(found[field] or b"") for field in command[2:]) > most:
        return _refuse(session, f"ERR with fields named more than once, the reply exceeds {most} bytes: name each once")
    replies = {field: session.nil if text is None else bulk(text) for field, text in found.items()}
    return array(replies[field] for field in command[2:])


def _hgetall(session: RespSession, command: Command, value: bytes | None, is_json: bool) -> bytes:
    """Reply to HGETALL, HKEYS, HVALS and HLEN."""
    name = command[0].upper()
    shows = name in (b"HGETALL", b"HKEYS"), name in (b"HGETALL", b"HVALS")
    fields = (0, b"") if value is None else session.fields.encode_fields(value, *shows) if is_json else None
    if fields is None:
        return _refuse(session, _WRONG_TYPE)
    count, replies = fields
    if name == b"HLEN":
        return integer(count)
    if name == b"HGETALL":
        return b"%b%d\r\n%b" % ((b"%", count, replies) if session.protocol == 3 else (b"*", 2 * count, replies))
    return b"*%d\r\n%b" % (count, replies)


_WRONG_TYPE: Final = (
    "WRONGTYPE Operation against a key holding the wrong kind of value: it is not a JSON object, so it has no fields. "
    "Use GET"
)


def _refuse(session: RespSession, message: str) -> bytes:
    session.count_error()
    return error(message)


READS: Final[Mapping[bytes, tuple[int, int, Read]]] = {
    b"TYPE": (1, 1, lambda _session, _command, value, _is_json: b"+none\r\n" if value is None else b"+string\r\n"),
    **dict.fromkeys(
        (b"TTL", b"PTTL", b"EXPIRETIME", b"PEXPIRETIME"),
        (1, 1, lambda _session, _command, value, _is_json: integer(-2 if value is None else -1)),
    ),
    b"STRLEN": (1, 1, lambda _session, _command, value, _is_json: integer(len(value or b""))),
    **dict.fromkeys((b"GETRANGE", b"SUBSTR"), (3, 3, _getrange)),
    **dict.fromkeys((b"HGET", b"HEXISTS", b"HSTRLEN"), (2, 2, _hget)),
    b"HMGET": (2, ANY, _hget),
    **dict.fromkeys((b"HGETALL", b"HKEYS", b"HVALS", b"HLEN"), (1, 1, _hgetall)),
}
"""Name → least and most arguments, and the function that replies. The first argument is the key."""
