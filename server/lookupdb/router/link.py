"""The life of one link to an endpoint: connect, verify, use, and reconnect with backoff after a failure.

``Passwords`` holds the passwords of shard servers: a common one, or one per shard and rollout, derived from a key that
the routing table names. ``connect`` sends the password, asks ``INFO lookupdb``, and compares the answer with the
expected ``ShardIdentity``. That is necessary because the address of a deleted pod may belong to another pod by now.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import hiredis

from lookupdb import credentials
from lookupdb.backoff import Backoff
from lookupdb.keys import FORMAT_VERSION
from lookupdb.process.watched_files import Content
from lookupdb.router.budget import RouterBudget
from lookupdb.router.counters import INDEX
from lookupdb.router.server_connection import SURPLUS, ServerAddress, ServerConnection

# Keys are files named by their fingerprint in a watched folder. A key that was read is remembered until the process
# ends. Removing its file revokes nothing, because servers accept the password as long as they live.

MOST_KEYS: Final = 64
"""Limit of remembered keys. A dataset has at most one per rollout, and a new key restarts the routers."""


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
        valid: set[str] = set()
        for path, key in content.items():
            is_whole = key is not None and len(key) == credentials.KEY_BYTES
            if key is not None and is_whole and credentials.fingerprint_key(key) == path.name:
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
        return credentials.derive_password(key, ref.rollout, shard)

    def list_missing(self, refs: Iterable[PasswordRef]) -> list[str]:
        """Return the fingerprints in ``refs`` of keys whose file is missing now, even if the keys are remembered."""
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
    """The endpoint's own password; None if it has the common one, or needs none."""

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
        lines = [line.partition(":") for line in answer.decode(errors="replace").splitlines()]
        found = {name.strip(): value.strip() for name, colon, value in lines if colon}
        wrong = [
            f"{name} {expected!r}, found {found.get(name, 'none')[:200]!r}"
            for name, expected in self.members().items()
            if found.get(name) != expected
        ]
        return f"serves something else: expected {'; '.join(wrong)}" if wrong else None


class NotProven(Exception):
    """The endpoint has not proven what it serves."""


async def connect(
    address: ServerAddress,
    identity: ShardIdentity,
    password: str | None,
    on_lost: Callable[[str], None],
    budget: RouterBudget,
) -> ServerConnection:
    """Return a connection to ``address``, whose server has proven to be ``identity``. Raises NotProven or OSError.

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
        self._answered = 0
        """Bytes up to the end of the last reply."""
        connection.on_reply = self._on_reply

    def _on_reply(self, reply: Any) -> None:
        self._answered = self._connection.received
        self._replies.put_nowait(reply)

    async def ask(self, question: bytes) -> Any:
        """Return the answer to ``question``. Raises NotProven and ConnectionError."""
        self.check_silence()
        self._connection.write(question)
        return self._take(await self._replies.get())

    def check_silence(self) -> None:
        """Check that nothing has arrived unrequested. Raises NotProven and ConnectionError."""
        if not self._replies.empty():
            self._take(self._replies.get_nowait())
            raise NotProven(SURPLUS)
        if self._connection.received != self._answered:
            raise NotProven(SURPLUS)

    def _take(self, reply: Any) -> Any:
        if isinstance(reply, NotProven | ConnectionError):
            raise reply
        return reply


# A link connects when a routing table names its endpoint, or when its first slice of large work arrives. It is ready
# once the server has proven what it serves, until the connection breaks:
#
# | cause | place |
# | --- | --- |
# | the other end closes or resets, or TCP keepalive gives it up | ``ServerConnection.connection_lost`` |
# | it sends invalid RESP, or more than was requested | ``ServerConnection.data_received``, ``_keep`` |
# | it sends an unrequested reply, or one of the wrong shape | ``Lane._on_reply`` |
# | it stalls: too little of a batch arrives in a deadline | ``StallWatch`` → ``Lane._close_stalled`` |
# | no routing table names the endpoint, or the worker ends | ``EndpointPool.close_unused`` → ``Link.close`` |
#
# Then the tries in flight fail. If no replica is ready, a lookup is parked until its deadline
# (``ShardReplicas._park``): a restarted server is back soon, and a stalled one gets a smaller batch. Queued large work
# waits in its lane for the next connection while the endpoint is ready.


log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 2.0
"""Time limit of an attempt: to resolve, connect and verify."""
FIRST_BACKOFF_SECONDS: Final = 0.05
MAX_BACKOFF_SECONDS: Final = 2.0
"""A replica that returns is used again within this time. Backoffs are shortened at random, to spread routers out."""
STEADY_SECONDS: Final = 1.0
"""An endpoint that was ready for this long is reconnected quickly."""
_BROKEN: Final = INDEX["endpoints_broken"]
_PROOFS_FAILED: Final = INDEX["proofs_failed"]


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """The settings that all links of a worker share."""

    counters: memoryview
    random: random.Random
    budget: RouterBudget
    passwords: Passwords = field(default_factory=Passwords)
    """Passwords of the endpoints, which are sent before the proof is requested."""


class LinkUser(Protocol):
    """The user of a link."""

    def on_connection(self, connection: ServerConnection) -> None:
        """The endpoint has proven itself on ``connection``."""

    def on_no_connection(self, why: str) -> None:
        """The connection is lost, or an attempt failed."""

    def on_state_change(self) -> None:
        """The link has become ready or unready, or is unready for another reason."""


class Link:
    """A link to ``address``, which must prove to be ``identity``, from ``start()`` to ``close()``."""

    def __init__(
        self, address: ServerAddress, identity: ShardIdentity, settings: LinkSettings, user: LinkUser, lane: str
    ) -> None:
        self.is_ready = False
        """True while it has a connection whose server has proven itself. Only then is it used."""
        self.last_failure: str | None = None
        """The reason why it is not ready, or None if nothing has failed since it was ready or started."""
        self.broken_at = float("-inf")
        """Event loop time when it was last ready."""
        self.was_ready = False
        self._address = address
        self._identity = identity
        self._settings = settings
        self._user = user
        self._log_fields = {
            "endpoint": str(address),
            "generation": identity.generation,
            "shard": identity.shard,
            "lane": lane,
        }
        self._loop = asyncio.get_running_loop()
        self._connection: ServerConnection | None = None
        self._lost = asyncio.Event()
        """Set when the connection is lost."""
        self._life: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and reconnect whenever the connection breaks."""
        if self._life is None:
            self._life = self._loop.create_task(self._live())

    def close(self) -> None:
        """Close the connection for good."""
        if self._life:
            self._life.cancel()
        connection, self._connection = self._connection, None
        self.is_ready, self.last_failure = False, "closed"
        if connection:
            connection.close("closed")
            self._user.on_state_change()
            self._user.on_no_connection("closed")

    def break_connection(self, why: str) -> None:
        """Close the connection; ``_live`` makes another."""
        if self._connection:
            self._connection.close(why)

    async def _live(self) -> None:
        backoff = Backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, self._settings.random.random)
        while True:
            connection = await self._connect()
            if connection:
                ready_at = self._loop.time()
                self._connection = connection
                self._lost.clear()
                self._user.on_connection(connection)
                self.is_ready = self.was_ready = True
                self.last_failure = None
                log.info("endpoint ready", extra=self._log_fields)
                self._user.on_state_change()
                await self._lost.wait()
                if self._loop.time() - ready_at > STEADY_SECONDS:
                    backoff.reset()
            await asyncio.sleep(backoff.fail())

    async def _connect(self) -> ServerConnection | None:
        """Return a verified connection, or None after reporting the failure to the user."""
        settings = self._settings
        try:
            password = settings.passwords.find(self._identity.password, self._identity.shard)
            async with asyncio.timeout(CONNECT_SECONDS):
                return await connect(self._address, self._identity, password, self._on_lost, settings.budget)
        except TimeoutError:
            why = f"not connected and verified within {CONNECT_SECONDS:g} s"
        except (NotProven, UnknownKey) as error:
            settings.counters[_PROOFS_FAILED] += 1
            why = str(error)
        except OSError as error:
            why = f"cannot be connected to: {error.strerror or error}"
        self._fail(why)
        return None

    def _on_lost(self, why: str) -> None:
        """Handle a lost connection. ``_connect`` reports one that was not verified."""
        if self._connection is None:
            return
        self._connection = None
        self._settings.counters[_BROKEN] += 1
        self.is_ready, self.broken_at = False, self._loop.time()
        try:
            self._fail(why)
        finally:  # an error of a lookup must not stop the reconnection
            self._lost.set()

    def _fail(self, why: str) -> None:
        """Record ``why`` there is no connection, and report it to the user."""
        if why != self.last_failure:
            self.last_failure = why
            log.warning("endpoint not usable: %s", why, extra=self._log_fields)
            self._user.on_state_change()
        self._user.on_no_connection(why)
