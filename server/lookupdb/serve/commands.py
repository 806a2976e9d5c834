"""The commands of a client. A reply is an iterable of pieces: a large one is sent as it is made, and is yielded, not
returned in a tuple: that would keep it beside what its client has not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from lookupdb.serve import info, shard_counters
from lookupdb.serve.damage import DAMAGED
from lookupdb.serve.limits import CHUNK_BYTES
from lookupdb.serve.resp import OK, PONG, Command, array, bulk, error, integer, mapping
from lookupdb.serve.session import Session

Reply = Iterable[bytes]
Handler = Callable[[Session, Command], Reply]


def execute(session: Session, command: Command) -> Iterator[bytes]:
    """Yield the reply to ``command``, which has a name at least."""
    session.worker.slot[shard_counters.COMMANDS] += 1
    failure = _diagnose_refusal(session, command)
    if failure is None:
        yield from COMMANDS[command[0].upper()][2](session, command)
    else:
        yield from _reply_error(session, failure)


def _diagnose_refusal(session: Session, command: Command) -> str | None:
    """Return why the command is refused, in the words of Redis, which clients know; None when it is not."""
    name = command[0].upper()
    if not session.is_authorised and name not in _BEFORE_AUTH:
        return "NOAUTH Authentication required."
    if name in WRITES:
        return "READONLY a shard is immutable: build a new generation of the dataset"
    if name not in COMMANDS:
        name_text = _printable(command[0])
        return f"ERR unknown command '{name_text}', with args beginning with: {_show_arguments(command[1:])}"
    min_arguments, max_arguments, _ = COMMANDS[name]
    if not min_arguments <= len(command) - 1 <= max_arguments:
        return f"ERR wrong number of arguments for '{_printable(name.lower())}' command"
    return None


def _reply_error(session: Session, message: str) -> Reply:
    session.worker.slot[shard_counters.ERRORS] += 1
    return (error(message),)


def _printable(text: bytes) -> str:
    return text[:128].decode(errors="replace")


def _show_arguments(arguments: Command) -> str:
    return "".join(f"'{_printable(argument)}' " for argument in arguments[:8])[:256]


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


def _ping(_: Session, command: Command) -> Reply:
    yield bulk(command[1]) if len(command) > 1 else PONG


def _echo(_: Session, command: Command) -> Reply:
    yield bulk(command[1])


def _info(session: Session, command: Command) -> Reply:
    return (bulk(info.render(session.worker, [_printable(name) for name in command[1:]])),)


def _auth(session: Session, command: Command) -> Reply:
    if session.worker.password_sha256 is None:
        return _reply_error(session, "ERR AUTH called without any password configured for the shard server")
    user = command[1] if len(command) == 3 else b"default"
    if user == b"default" and session.authorise(command[-1]):
        return (OK,)
    return _reply_error(session, "WRONGPASS invalid username-password pair or user is disabled.")


def _hello(session: Session, command: Command) -> Reply:
    protocol = session.protocol
    options = command[1:]
    if options:
        if options[0] not in (b"2", b"3"):
            return _reply_error(session, "NOPROTO unsupported protocol version")
        protocol = int(options[0])
    if len(options) > _HELLO_WORDS:
        return _reply_error(
            session, f"ERR Syntax error in HELLO: expected at most {_HELLO_WORDS} words, found {len(options)}"
        )
    name, remaining = None, options[1:]
    while remaining:
        match remaining[0].upper(), len(remaining):
            case b"AUTH", length if length >= 3:
                if remaining[1] != b"default" or not session.authorise(remaining[2]):
                    return _reply_error(session, "WRONGPASS invalid username-password pair or user is disabled.")
                remaining = remaining[3:]
            case b"SETNAME", length if length >= 2:
                name, remaining = remaining[1], remaining[2:]
            case _:
                return _reply_error(session, f"ERR Syntax error in HELLO option '{_printable(remaining[0])}'")
    if not session.is_authorised:
        return _reply_error(session, "NOAUTH HELLO must be called with the client already authenticated")
    if name is not None and not _is_name(name):
        return _reply_error(session, _BAD_NAME)
    session.name = session.name if name is None else name
    session.use_protocol(protocol)
    about = {
        "server": bulk("redis"),
        "version": bulk("7.0.0"),
        "proto": integer(protocol),
        "id": integer(session.id),
        "mode": bulk("standalone"),
        "role": bulk("master"),
        "modules": array(()),
    }
    return (mapping(((bulk(key), value) for key, value in about.items()), protocol),)


_HELLO_WORDS: Final = 16
"""Three times what any client says: to read the options of a HELLO as long as a command may be took seconds."""
_BAD_NAME: Final = "ERR Client names cannot contain spaces, newlines or special characters."


def _is_name(name: bytes) -> bool:
    return len(name) <= 128 and all(0x21 <= byte <= 0x7E for byte in name)


def _client(session: Session, command: Command) -> Reply:
    match command[1].upper(), command[2:]:
        case b"SETNAME", [name]:
            if not _is_name(name):
                return _reply_error(session, _BAD_NAME)
            session.name = name
            return (OK,)
        case b"GETNAME", []:
            return (bulk(session.name) if session.name else session.nil,)
        case b"ID", []:
            return (integer(session.id),)
        case (b"SETINFO", [_, _]) | ((b"NO-EVICT" | b"NO-TOUCH"), [_]):
            return (OK,)
        case _:
            return _reply_error(session, f"ERR unknown subcommand or wrong arguments for '{_printable(command[1])}'")


def _command(_: Session, command: Command) -> Reply:
    # COUNT counts; the descriptions (DOCS, INFO, LIST) are for completion on a terminal and may be empty.
    if len(command) > 1 and command[1].upper() == b"COUNT":
        return (integer(len(COMMANDS)),)
    return (array(()),)


def _config(session: Session, command: Command) -> Reply:
    if command[1].upper() != b"GET" or len(command) < 3:
        return _reply_error(session, "ERR only CONFIG GET is known: a shard server is configured when it is started")
    names = {name.lower() for name in command[2:]}
    settings = [(bulk(name), bulk(value)) for name, value in _SETTINGS.items() if name.encode() in names]
    return (mapping(settings, session.protocol),)


_SETTINGS: Final = {"save": "", "appendonly": "no", "maxmemory": "0", "databases": "1"}
"""What tools such as redis-benchmark ask for; nothing is ever saved."""


def _select(session: Session, command: Command) -> Reply:
    return (OK,) if command[1] == b"0" else _reply_error(session, "ERR DB index is out of range")


def _quit(session: Session, _: Command) -> Reply:
    session.is_closing = True
    return (OK,)


def _reset(session: Session, _: Command) -> Reply:
    session.reset()
    return (b"+RESET\r\n",)


ANY: Final = 1 << 30

COMMANDS: Final[dict[bytes, tuple[int, int, Handler]]] = {
    b"GET": (1, 1, _get),
    b"MGET": (1, ANY, _mget),
    b"EXISTS": (1, ANY, _exists),
    b"DBSIZE": (0, 0, _dbsize),
    b"PING": (0, 1, _ping),
    b"ECHO": (1, 1, _echo),
    b"INFO": (0, ANY, _info),
    b"AUTH": (1, 2, _auth),
    b"HELLO": (0, ANY, _hello),
    b"CLIENT": (1, ANY, _client),
    b"COMMAND": (0, ANY, _command),
    b"CONFIG": (1, ANY, _config),
    b"SELECT": (1, 1, _select),
    b"QUIT": (0, ANY, _quit),
    b"RESET": (0, 0, _reset),
}
"""Name → least arguments, most arguments, handler."""

_BEFORE_AUTH: Final = frozenset((b"AUTH", b"HELLO", b"QUIT", b"RESET"))

WRITES: Final = frozenset(
    b"""
    APPEND BITFIELD BITOP BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN COPY DECR DECRBY DEL
    EVAL EVALSHA EXPIRE EXPIREAT FLUSHALL FLUSHDB FUNCTION GEOADD GETDEL GETEX GETSET HDEL HINCRBY HINCRBYFLOAT
    HMSET HSET HSETNX INCR INCRBY INCRBYFLOAT LINSERT LMOVE LMPOP LPOP LPUSH LPUSHX LREM LSET LTRIM MIGRATE
    MOVE MSET MSETNX PERSIST PEXPIRE PEXPIREAT PFADD PFMERGE PSETEX RENAME RENAMENX RESTORE RPOP RPOPLPUSH
    RPUSH RPUSHX SADD SDIFFSTORE SET SETBIT SETEX SETNX SETRANGE SINTERSTORE SMOVE SORT SPOP SREM SUNIONSTORE
    SWAPDB TOUCH UNLINK XACK XADD XDEL XGROUP XTRIM ZADD ZINCRBY ZINTERSTORE ZPOPMAX ZPOPMIN ZRANGESTORE ZREM
    ZUNIONSTORE
    """.split()
)
"""Redis' commands that write. They are refused with a reason of their own, which unknown commands do not have."""
