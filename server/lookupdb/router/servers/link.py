"""The life of one link to an endpoint: a connection made, proven, broken, made again, less and less often.

``link_state`` is its table of states; here is what each transition does.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from dataclasses import dataclass, field
from typing import Final, Protocol

from lookupdb.router.budget import RouterBudget
from lookupdb.router.counters import INDEX
from lookupdb.router.servers.connection import Heartbeat, ServerAddress, ServerConnection
from lookupdb.router.servers.proof import NotProven, Passwords, ShardIdentity, UnknownKey, connect

# The life of a link as a table: which event leads from which state to which. No I/O.
#
# | event | what happens | where |
# | --- | --- | --- |
# | START | a routing table names the endpoint | ``Endpoint.start`` |
# | START | the first slice of large work comes | ``Endpoint._lane_for`` |
# | PROOF | the server is connected to, and proves what it serves | ``Link._use`` |
# | FAILURE | it does not within 2 s (``CONNECT_SECONDS``), or there is an OSError | ``Link._connect`` |
# | FAILURE | it serves something else, refuses the password, says too much | ``NotProven``, raised in ``proof`` |
# | FAILURE | the key of its password is not there | ``UnknownKey``, raised in ``Passwords.find`` |
# | LOSS | the other end closes or resets, or TCP keepalive gives it up | ``ServerConnection.connection_lost`` |
# | LOSS | it sends what is not RESP, or more than was asked | ``ServerConnection.data_received``, ``_keep`` |
# | LOSS | it sends a reply that was not asked for, or of the wrong shape | ``Lane._on_reply`` |
# | LOSS | it is busy and stalls: too little of a batch comes in a deadline | ``StallWatch`` → ``Lane._close_stalled`` |
# | SILENCE | it is idle and does not answer a PING within 2 s | ``Heartbeat`` → ``Link._on_silence`` |
# | RETRY | the backoff has passed: 2 s at most (``MAX_BACKOFF_SECONDS``) | ``Link._live`` |
# | CLOSE | no routing table names the endpoint, or the worker ends | ``EndpointPool.close_unused``, by way of |
# | | | ``Endpoint.close``, ``Lane.close``, ``Link.close`` |
#
# What is in flight fails its try either way. A lookup that then finds no ready replica is parked after a LOSS
# (``ShardReplicas._park``), until its deadline at most: a server that was restarted is back in a moment, and one that
# stalled gets a smaller batch next. After a SILENCE it is given up at once: an idle server that does not answer stands
# still, and nobody knows for how long. Large work that is queued waits in its lane for the next connection after both,
# while the endpoint is ready.
#
# Invariants: a link has a connection when it is READY, and then only. It is told to connect once, by START, and makes
# no connection after CLOSE.


class LinkState(enum.StrEnum):
    """Only a READY link is used."""

    NEW = "new"
    CONNECTING = "connecting"
    """Until the server has proven what it serves."""
    READY = "ready"
    BROKEN = "broken"
    """Until the backoff has passed."""
    CLOSED = "closed"


class LinkEvent(enum.Enum):
    """What happens to a link."""

    START = enum.auto()
    PROOF = enum.auto()
    """The server is connected to and has proven itself."""
    FAILURE = enum.auto()
    """It could not be connected to, or proved to be something else."""
    LOSS = enum.auto()
    """The connection broke. The server may be back in a moment: one that is restarted is."""
    SILENCE = enum.auto()
    """The idle connection is dead: the server stands still, and nobody knows for how long."""
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
"""What is not here cannot happen: a KeyError is a defect."""


log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 2.0
"""To resolve, connect and prove."""
FIRST_BACKOFF_SECONDS: Final = 0.05
MAX_BACKOFF_SECONDS: Final = 2.0
"""A replica that is back is used again within so long. Both are halved at random, so that routers spread out."""
STEADY_SECONDS: Final = 1.0
"""An endpoint that was ready for so long is connected again quickly."""
_BROKEN: Final = INDEX["endpoints_broken"]
_PROOFS_FAILED: Final = INDEX["proofs_failed"]


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What all links of a worker share."""

    counters: memoryview
    """The worker's slot (see ``counters``)."""
    random: random.Random
    budget: RouterBudget
    passwords: Passwords = field(default_factory=Passwords)
    """An endpoint is shown its password before it is asked for its proof."""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)


class LinkUser(Protocol):
    """Who uses a link."""

    def on_connection(self, connection: ServerConnection) -> None:
        """The endpoint has proven itself on ``connection``."""

    def on_no_connection(self, why: str) -> None:
        """That connection is gone, or another could not be made."""

    def on_state_change(self) -> None:
        """The link has become ready or has ceased to be, or is not for another reason than before."""


class Link:
    """A link to ``address``, which must prove to be ``identity``, from ``start()`` to ``close()``."""

    def __init__(
        self, address: ServerAddress, identity: ShardIdentity, settings: LinkSettings, user: LinkUser, lane: str
    ) -> None:
        self.state = LinkState.NEW
        self.last_failure: str | None = None
        """Why it is not ready; None if nothing has failed since it was, or since it began."""
        self.broken_at = float("-inf")
        """The loop's time when it was ready for the last time, if it may be back in a moment."""
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
        """The connection is gone."""
        self._life: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and connect again whenever the connection breaks."""
        self._enter(LinkEvent.START)
        self._life = self._loop.create_task(self._live())

    def close(self) -> None:
        """Close the connection for good."""
        self._enter(LinkEvent.CLOSE, "closed")
        if self._life:
            self._life.cancel()
        self.break_connection("closed")

    def break_connection(self, why: str) -> None:
        """Close the connection; another one is made."""
        if self._connection:
            self._connection.close(why)

    async def _live(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            connection = await self._connect()
            if connection:
                ready_at = self._loop.time()
                self._use(connection)
                await self._lost.wait()
                if self._loop.time() - ready_at > STEADY_SECONDS:
                    backoff = FIRST_BACKOFF_SECONDS
            await asyncio.sleep(backoff * (1 - self._settings.random.random() / 2))
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
            self._enter(LinkEvent.RETRY, self.last_failure)

    async def _connect(self) -> ServerConnection | None:
        """A connection to the endpoint, which has proven itself; None if there is none: then the user was told."""
        settings = self._settings
        try:
            password = settings.passwords.find(self._identity.password, self._identity.shard)
            async with asyncio.timeout(CONNECT_SECONDS):
                return await connect(self._address, self._identity, password, self._on_lost, settings.budget)
        except TimeoutError:
            self._fail(f"did not connect and prove itself within {CONNECT_SECONDS:g} s")
        except (NotProven, UnknownKey) as error:
            settings.counters[_PROOFS_FAILED] += 1
            self._fail(str(error))
        except OSError as error:
            self._fail(f"cannot be connected to: {error.strerror or error}")
        return None

    def _fail(self, why: str) -> None:
        """No connection could be made."""
        self._enter(LinkEvent.FAILURE, why)
        self._user.on_no_connection(why)

    def _use(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._lost.clear()
        self._user.on_connection(connection)
        self._enter(LinkEvent.PROOF)
        self._settings.heartbeat.watch(connection, self._on_silence)

    def _on_silence(self) -> None:
        """The first lookup on the connection would wait in vain, and so would the next ones."""
        why = f"did not answer PING within {self._settings.heartbeat.silence_seconds:g} s"
        self._settings.counters[_BROKEN] += 1
        self._enter(LinkEvent.SILENCE, why)
        self.break_connection(why)

    def _on_lost(self, why: str) -> None:
        """A connection is gone. One that had not proven itself is ``_connect``'s to tell."""
        if self._connection is None:
            return
        self._connection = None
        try:
            if self.state is LinkState.READY:
                self._settings.counters[_BROKEN] += 1
                self._enter(LinkEvent.LOSS, why)
            self._user.on_no_connection(why)
        finally:  # whatever is raised about the lookups on it, the next connection is made
            self._lost.set()

    def _enter(self, event: LinkEvent, why: str | None = None) -> None:
        """Go where ``event`` leads, for the reason ``why``, and tell the user if that is news."""
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
