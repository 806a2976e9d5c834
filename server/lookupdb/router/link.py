"""The life of one link to an endpoint: connect, verify, use, and reconnect with backoff after a failure.

``Passwords`` holds the passwords of shard servers: a common one, or one per shard and rollout, derived from a key that
the routing table names. ``connect`` sends the password, asks ``INFO lookupdb``, and compares the answer with the
expected ``ShardIdentity``. That is necessary because the address of a deleted pod may belong to another pod by now.
``TRANSITIONS`` is the table of a link's states; ``Link`` performs each transition.
"""

from __future__ import annotations

import asyncio
import enum
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
from lookupdb.router.server_connection import SURPLUS, Heartbeat, ServerAddress, ServerConnection

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
        """Check that nothing has arrived unasked. Raises NotProven and ConnectionError."""
        if not self._replies.empty():
            self._take(self._replies.get_nowait())
            raise NotProven(SURPLUS)
        if self._connection.received != self._answered:
            raise NotProven(SURPLUS)

    def _take(self, reply: Any) -> Any:
        if isinstance(reply, NotProven | ConnectionError):
            raise reply
        return reply


# The events of a link:
#
# | event | condition | place |
# | --- | --- | --- |
# | START | a routing table names the endpoint | ``Endpoint.start`` |
# | START | the first slice of large work arrives | ``Endpoint.submit`` |
# | PROOF | the server is connected and has proven what it serves | ``Link._live`` |
# | FAILURE | it has not within 2 s (``CONNECT_SECONDS``), or an OSError | ``Link._connect`` |
# | FAILURE | it serves something else, refuses the password, says too much | ``NotProven``, raised in ``connect`` |
# | FAILURE | the key of its password is missing | ``UnknownKey``, raised in ``Passwords.find`` |
# | LOSS | the other end closes or resets, or TCP keepalive gives it up | ``ServerConnection.connection_lost`` |
# | LOSS | it sends invalid RESP, or more than was requested | ``ServerConnection.data_received``, ``_keep`` |
# | LOSS | it sends an unrequested reply, or one of the wrong shape | ``Lane._on_reply`` |
# | LOSS | it stalls: too little of a batch arrives in a deadline | ``StallWatch`` → ``Lane._close_stalled`` |
# | SILENCE | it is idle and does not answer a PING within 2 s | ``Heartbeat`` → ``Link._on_silence`` |
# | RETRY | the backoff has passed: at most 2 s (``MAX_BACKOFF_SECONDS``) | ``Link._live`` |
# | CLOSE | no routing table names the endpoint, or the worker ends | ``EndpointPool.close_unused``, through |
# | | | ``Endpoint.close``, ``Lane.close``, ``Link.close`` |
#
# LOSS and SILENCE fail the try of what is in flight. If no replica is then ready, a lookup is parked after LOSS until
# its deadline (``ShardReplicas._park``): a restarted server is back soon, and a stalled one gets a smaller batch. After
# SILENCE it is given up at once, because nobody knows when a frozen server returns. Queued large work waits in its lane
# for the next connection after both, while the endpoint is ready.
#
# Invariants: a link has a connection exactly when it is READY. It starts once, and does not connect after CLOSE.


class LinkState(enum.StrEnum):
    """The states of a link. Only a READY link is used."""

    NEW = "new"
    CONNECTING = "connecting"
    """Lasts until the server has proven what it serves."""
    READY = "ready"
    BROKEN = "broken"
    """Lasts until the backoff has passed."""
    CLOSED = "closed"


class LinkEvent(enum.Enum):
    """The events of a link."""

    START = enum.auto()
    PROOF = enum.auto()
    """The server is connected and has proven itself."""
    FAILURE = enum.auto()
    """The connection attempt failed, or the server serves something else."""
    LOSS = enum.auto()
    """The connection broke. The server may be back soon, for example after a restart."""
    SILENCE = enum.auto()
    """The idle connection is dead. The server is frozen, and nobody knows for how long."""
    RETRY = enum.auto()
    CLOSE = enum.auto()


TRANSITIONS: Final = {
    (LinkState.NEW, LinkEvent.START): LinkState.CONNECTING,
    (LinkState.CONNECTING, LinkEvent.PROOF): LinkState.READY,
    (LinkState.CONNECTING, LinkEvent.FAILURE): LinkState.BROKEN,
    (LinkState.READY, LinkEvent.LOSS): LinkState.BROKEN,
    (LinkState.READY, LinkEvent.SILENCE): LinkState.BROKEN,
    (LinkState.BROKEN, LinkEvent.RETRY): LinkState.CONNECTING,
    **{(state, LinkEvent.CLOSE): LinkState.CLOSED for state in LinkState},
}
"""All possible transitions; a KeyError is a bug."""


log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 2.0
"""Limit to resolve, connect and verify."""
FIRST_BACKOFF_SECONDS: Final = 0.05
MAX_BACKOFF_SECONDS: Final = 2.0
"""A replica that returns is used again within this time. Backoffs are randomly halved to spread routers out."""
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
    heartbeat: Heartbeat = field(default_factory=Heartbeat)


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
        self.state = LinkState.NEW
        self.last_failure: str | None = None
        """The reason why it is not ready, or None if nothing has failed since it was ready or started."""
        self.broken_at = float("-inf")
        """Event loop time when it was last ready, if it may be back soon."""
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
        self._enter(LinkEvent.START)
        self._life = self._loop.create_task(self._live())

    def close(self) -> None:
        """Close the connection for good."""
        self._enter(LinkEvent.CLOSE, "closed")
        if self._life:
            self._life.cancel()
        self.break_connection("closed")

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
                self._enter(LinkEvent.PROOF)
                self._settings.heartbeat.watch(connection, self._on_silence)
                await self._lost.wait()
                if self._loop.time() - ready_at > STEADY_SECONDS:
                    backoff.reset()
            await asyncio.sleep(backoff.fail())
            self._enter(LinkEvent.RETRY, self.last_failure)

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
        self._enter(LinkEvent.FAILURE, why)
        self._user.on_no_connection(why)
        return None

    def _on_silence(self) -> None:
        """Close the connection: the next lookups on it would wait in vain."""
        why = f"did not answer PING within {self._settings.heartbeat.silence_seconds:g} s"
        self._settings.counters[_BROKEN] += 1
        self._enter(LinkEvent.SILENCE, why)
        self.break_connection(why)

    def _on_lost(self, why: str) -> None:
        """Handle a lost connection. ``_connect`` reports one that was not verified."""
        if self._connection is None:
            return
        self._connection = None
        try:
            if self.state is LinkState.READY:
                self._settings.counters[_BROKEN] += 1
                self._enter(LinkEvent.LOSS, why)
            self._user.on_no_connection(why)
        finally:  # an error of a lookup must not stop the reconnection
            self._lost.set()

    def _enter(self, event: LinkEvent, why: str | None = None) -> None:
        """Make the transition of ``event`` for the reason ``why``, and notify the user of a change."""
        before = self.state
        state = TRANSITIONS[before, event]
        is_new_failure = state is LinkState.BROKEN and why != self.last_failure
        self.state, self.last_failure = state, why
        if is_new_failure:
            log.warning("endpoint not usable: %s", why, extra=self._log_fields)
        if before is LinkState.READY:
            self.broken_at = float("-inf") if event is LinkEvent.SILENCE else self._loop.time()
        if state is LinkState.READY:
            self.was_ready = True
            log.info("endpoint ready", extra=self._log_fields)
        if is_new_failure or (before is LinkState.READY) != (state is LinkState.READY):
            self._user.on_state_change()
