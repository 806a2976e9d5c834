"""Connects to an endpoint, and verifies what it serves before it is used.

``Passwords`` holds the passwords of shard servers: a common one, or one per shard and rollout, derived from a key that
the routing table names. ``connect`` sends the password, asks ``INFO lookupdb``, and compares the answer with the
expected ``ShardIdentity``. That is necessary because the address of a deleted pod may belong to another pod by now.
"""

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

# Keys are files named by their fingerprint in a watched folder. A key that was read is remembered until the process
# ends. Removing its file revokes nothing, because servers accept the password as long as they live.

MOST_KEYS: Final = 64
"""Limit of remembered keys. A dataset has at most one per rollout, and each rollout restarts the routers."""


@dataclass(frozen=True, slots=True)
class PasswordRef:
    """The passwords of a rollout's servers, as the routing table names them. Holds no secret."""

    rollout: str
    key: str
    """Fingerprint of the key that passwords are derived from."""

    def __str__(self) -> str:
        return f"password of rollout {self.rollout} (key {self.key})"


class UnknownKey(Exception):
    """The routing table names a key that is missing."""


class Passwords:
    """The passwords of one worker. ``common`` is for servers without a key in the routing table."""

    def __init__(self, common: str | None = None) -> None:
        self._common = common
        self._keys: dict[str, bytes] = {}
        self._present: frozenset[str] = frozenset()
        self._wrong: frozenset[str] = frozenset()

    def take_files(self, content: Content) -> None:
        """Add the keys in the files to the remembered ones."""
        from lookupdb import shard_passwords  # lazy: it loads OpenSSL, which a router without keys does not need

        valid: set[str] = set()
        for path, key in content.items():
            is_whole = key is not None and len(key) == shard_passwords.KEY_BYTES
            if key is not None and is_whole and shard_passwords.fingerprint_key(key) == path.name:
                valid.add(path.name)
                self._keys.pop(path.name, None)  # moves the key to the end, so that it is dropped last
                self._keys[path.name] = key
        self._present = frozenset(valid)
        self._wrong = frozenset(path.name for path in content) - valid
        while len(self._keys) > MOST_KEYS:
            del self._keys[next(iter(self._keys))]

    def find(self, ref: PasswordRef | None, shard: int) -> str | None:
        """Return the password of ``shard`` according to ``ref``, or None if there is none. Raises UnknownKey."""
        if ref is None:
            return self._common
        key = self._keys.get(ref.key)
        if key is None:
            found = "holds another key or none" if ref.key in self._wrong else "is not there"
            raise UnknownKey(f"missing {ref}: the file of that key {found} (--password-key-dir)")
        from lookupdb import shard_passwords

        return shard_passwords.derive_password(key, ref.rollout, shard)

    def list_missing(self, refs: Iterable[PasswordRef]) -> list[str]:
        """Return the fingerprints in ``refs`` that no file holds now, even if they are remembered."""
        return sorted({ref.key for ref in refs} - self._present)


QUESTION: Final = b"*2\r\n$4\r\nINFO\r\n$8\r\nlookupdb\r\n"
"""``INFO lookupdb``, which is answered with lines of ``name:value``."""


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """The expected content of an endpoint."""

    dataset: str
    """``namespace/name``."""
    uid: str
    generation: str
    shard: int
    shards: int
    normalize: tuple[str, ...]
    value_format: str
    password: PasswordRef | None = None
    """The endpoint's own password, or None for the common one or none."""

    def members(self) -> dict[str, str]:
        """Return the names and values in the answer to ``INFO lookupdb``."""
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
        """Return a message about what differs in the ``answer`` to QUESTION, or None."""
        if not isinstance(answer, bytes):
            return f"does not report what it serves: {str(answer)[:200]}"
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
    """The endpoint does not serve what it should, or does not report it."""


async def connect(
    address: ServerAddress,
    identity: ShardIdentity,
    password: str | None,
    on_lost: Callable[[str], None],
    budget: RouterBudget,
) -> ServerConnection:
    """Return a connection to ``address`` that has proven to be ``identity``. Raises NotProven or OSError.

    The connection keeps ``on_lost``; give it an ``on_reply`` and a ``sink`` at once.
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
            raise NotProven(f"requires a password, but the routing table names none: {str(answer)[:200]}")
        mismatch = identity.mismatch(answer)
        if mismatch:
            raise NotProven(mismatch)
        dialogue.check_silence()
    except BaseException:
        connection.close("not proven")
        raise
    return connection


class _Dialogue:
    """Asks one question at a time on ``connection``. A reply that arrives before its question is an error."""

    def __init__(self, connection: ServerConnection, replies: asyncio.Queue[Any]) -> None:
        """``replies`` also receives, as an exception, the reason why no more will come."""
        self._connection = connection
        self._replies = replies
        self._told = 0
        """Bytes up to the end of the last reply."""
        connection.on_reply = self._on_reply

    def _on_reply(self, reply: Any) -> None:
        self._told = self._connection.received
        self._replies.put_nowait(reply)

    async def ask(self, question: bytes) -> Any:
        """Return the answer to ``question``. Raises NotProven and ConnectionError."""
        self.check_silence()
        self._connection.write(question)
        return self._take(await self._replies.get())

    def check_silence(self) -> None:
        """Check that nothing has arrived unasked. Raises NotProven and ConnectionError."""
        if not self._replies.empty():
            self._take(self._replies.get_nowait())
            raise NotProven(SURPLUS)
        if self._connection.received != self._told:
            raise NotProven(SURPLUS)

    def _take(self, reply: Any) -> Any:
        if isinstance(reply, NotProven | ConnectionError):
            raise reply
        return reply
