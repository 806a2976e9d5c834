"""Opens a connection to an endpoint and has the endpoint prove what it serves, before it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import hiredis

from lookupdb.process.watched_files import Content
from lookupdb.router.budget import RouterBudget
from lookupdb.router.servers.connection import SURPLUS, ServerAddress, ServerConnection
from lookupdb.shard_name import FORMAT_VERSION

# The passwords that a worker shows to shard servers: one for all, or, of servers whose routing table entry names a
# key, that of their shard and rollout, derived from the key.
#
# Keys are files named by their fingerprint, in a folder that is watched. A key that was there once is remembered until
# the process ends: what serves goes on serving when its file goes, and to take a file away revokes nothing, because the
# servers take the password as long as they live.


MOST_KEYS: Final = 64
"""That are remembered. A dataset has one a rollout at most, and routers start anew with each."""


@dataclass(frozen=True, slots=True)
class PasswordRef:
    """Which passwords the servers of a rollout ask for, by the routing table. Nothing of it is secret."""

    rollout: str
    key: str
    """Fingerprint of the key that the password is derived from."""

    def __str__(self) -> str:
        return f"password of rollout {self.rollout} (key {self.key})"


class UnknownKey(Exception):
    """A routing table names a key that is not there; the message says so."""


class Passwords:
    """The passwords of one worker. ``common`` is for servers whose routing table entry names no key."""

    def __init__(self, common: str | None = None) -> None:
        self._common = common
        self._keys: dict[str, bytes] = {}
        self._present: frozenset[str] = frozenset()
        self._wrong: frozenset[str] = frozenset()

    def take_files(self, content: Content) -> None:
        """Take the keys that the files hold, and remember those of before."""
        from lookupdb import shard_passwords  # here, because it brings OpenSSL, which a router without keys spares

        valid: set[str] = set()
        for path, key in content.items():
            is_whole = key is not None and len(key) == shard_passwords.KEY_BYTES
            if key is not None and is_whole and shard_passwords.fingerprint_key(key) == path.name:
                valid.add(path.name)
                self._keys.pop(path.name, None)  # the last one taken is forgotten last
                self._keys[path.name] = key
        self._present = frozenset(valid)
        self._wrong = frozenset(path.name for path in content) - valid
        while len(self._keys) > MOST_KEYS:
            del self._keys[next(iter(self._keys))]

    def find(self, ref: PasswordRef | None, shard: int) -> str | None:
        """The password of ``shard`` that ``ref`` asks for; None when none is to be shown. Raises UnknownKey."""
        if ref is None:
            return self._common
        key = self._keys.get(ref.key)
        if key is None:
            found = "holds another key or none" if ref.key in self._wrong else "is not there"
            raise UnknownKey(f"cannot be shown the {ref}: the file of that key {found} (--password-key-dir)")
        from lookupdb import shard_passwords

        return shard_passwords.derive_password(key, ref.rollout, shard)

    def list_missing(self, refs: Iterable[PasswordRef]) -> list[str]:
        """The fingerprints of keys that ``refs`` name and that no file holds now, also if they are remembered."""
        return sorted({ref.key for ref in refs} - self._present)


# What an endpoint must prove before it is used: that it serves the very shard the routing table says.
#
# The address of a pod that is gone may be another pod's by now; a wrong answer is worse than no answer.


QUESTION: Final = b"*2\r\n$4\r\nINFO\r\n$8\r\nlookupdb\r\n"
"""``INFO lookupdb``, whose answer is lines of ``name:value``."""


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """What one endpoint is expected to serve."""

    dataset: str
    """``namespace/name``."""
    uid: str
    generation: str
    shard: int
    shards: int
    normalize: tuple[str, ...]
    value_format: str
    password: PasswordRef | None = None
    """Which password it asks for; None: the one that all ask for, or none."""

    def members(self) -> dict[str, str]:
        """As ``INFO lookupdb`` names them."""
        return {
            "format_version": str(FORMAT_VERSION),
            "dataset": self.dataset,
            "dataset_uid": self.uid,
            "generation": self.generation,
            "shard": str(self.shard),
            "shards": str(self.shards),
            "normalize": ",".join(self.normalize),
            "value_format": self.value_format,
        }

    def mismatch(self, answer: object) -> str | None:
        """What in the ``answer`` to QUESTION is not as expected, for a message; None when all is."""
        if not isinstance(answer, bytes):
            return f"does not tell what it serves: {str(answer)[:200]}"
        found = dict(_parse_lines(answer))
        wrong = [
            f"{name} {expected!r}, found {found.get(name, 'none')[:200]!r}"
            for name, expected in self.members().items()
            if found.get(name) != expected
        ]
        return f"serves something else: expected {'; '.join(wrong)}" if wrong else None


def _parse_lines(answer: bytes) -> Iterator[tuple[str, str]]:
    for line in answer.decode(errors="replace").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip(), value.strip()


class NotProven(Exception):
    """The endpoint does not serve what it should, or does not tell; the message says what was found."""


async def connect(
    address: ServerAddress,
    identity: ShardIdentity,
    password: str | None,
    on_lost: Callable[[str], None],
    budget: RouterBudget,
) -> ServerConnection:
    """A connection to ``address``, which has proven to be ``identity``. Raises NotProven or OSError.

    ``on_lost`` is the connection's; give it an ``on_reply`` and a ``sink`` at once.
    """
    replies: asyncio.Queue[Any] = asyncio.Queue()

    def fail(why: str) -> None:
        replies.put_nowait(NotProven(why) if why == SURPLUS else ConnectionError(why))
        on_lost(why)

    connection = await ServerConnection.open(address, lambda reply: None, fail, budget)
    dialogue = _Dialogue(connection, replies)
    try:
        if password:
            admitted = await dialogue.ask(hiredis.pack_command(("AUTH", password)))  # type: ignore[arg-type]
            if admitted != b"OK":
                which = identity.password or "password"
                raise NotProven(f"does not accept the {which}: {str(admitted)[:200]}")
        answer = await dialogue.ask(QUESTION)
        if isinstance(answer, hiredis.ReplyError) and str(answer).startswith("NOAUTH"):
            raise NotProven(f"wants a password, and the routing table names none: {str(answer)[:200]}")
        mismatch = identity.mismatch(answer)
        if mismatch:
            raise NotProven(mismatch)
        dialogue.check_silence()
    except BaseException:
        connection.close("not proven")
        raise
    return connection


class _Dialogue:
    """One question after the other on ``connection``. What comes before it was asked for answers nothing."""

    def __init__(self, connection: ServerConnection, replies: asyncio.Queue[Any]) -> None:
        """``replies`` also has, as an exception, why there will be no more."""
        self._connection = connection
        self._replies = replies
        self._told = 0
        """Bytes until the end of the last reply."""
        connection.on_reply = self._on_reply

    def _on_reply(self, reply: Any) -> None:
        self._told = self._connection.received
        self._replies.put_nowait(reply)

    async def ask(self, question: bytes) -> Any:
        """The answer to ``question``. Raises NotProven and ConnectionError."""
        self.check_silence()
        self._connection.write(question)
        return self._take(await self._replies.get())

    def check_silence(self) -> None:
        """Nothing has come that was not asked for. Raises NotProven and ConnectionError."""
        if not self._replies.empty():
            self._take(self._replies.get_nowait())
            raise NotProven(SURPLUS)
        if self._connection.received != self._told:
            raise NotProven(SURPLUS)

    def _take(self, reply: Any) -> Any:
        if isinstance(reply, NotProven | ConnectionError):
            raise reply
        return reply
