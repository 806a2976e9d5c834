"""The life of one connection to an endpoint: made, proven, broken, made again, less and less often."""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from dataclasses import dataclass, field
from typing import Final, Protocol

from lookupdb.route.budget import RouterBudget
from lookupdb.route.counters import INDEX
from lookupdb.route.servers.connection import ServerConnection
from lookupdb.route.servers.heartbeat import Heartbeat
from lookupdb.route.servers.identity import ShardIdentity
from lookupdb.route.servers.proof import NotProven, connect
from lookupdb.route.shards.coalescer import Coalescer
from lookupdb.route.table.routing_table import ServerAddress

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 2.0
"""To resolve, connect and prove."""
FIRST_BACKOFF_SECONDS: Final = 0.05
LONGEST_BACKOFF_SECONDS: Final = 2.0
"""A replica that is back is used again within so long. Both are halved at random, so that routers spread out."""
STEADY_SECONDS: Final = 1.0
"""An endpoint that was ready for so long is connected again quickly."""
_BROKEN: Final = INDEX["endpoints_broken"]
_PROOFS_FAILED: Final = INDEX["proofs_failed"]


class LinkState(enum.StrEnum):
    """Of a link; only a READY one is used."""

    CONNECTING = "connecting"
    """Until the endpoint has proven what it serves."""
    READY = "ready"
    BROKEN = "broken"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Settings:
    """What all endpoints of a worker share."""

    deadline_seconds: float
    """A batch of which nothing comes for longer breaks its connection."""
    max_queued_keys: int
    counters: memoryview
    """The worker's slot (see ``counters``)."""
    random: random.Random
    budget: RouterBudget
    password: str | None = None
    """Given to every endpoint before it is asked who it is."""
    gathering: Coalescer = field(default_factory=Coalescer)
    heartbeat: Heartbeat = field(default_factory=Heartbeat)


class LinkUser(Protocol):
    """Who uses a link."""

    def opened(self, connection: ServerConnection) -> None:
        """The endpoint has proven itself on ``connection``."""

    def lost(self, why: str) -> None:
        """That connection is gone, or another could not be made."""

    def state_changed(self) -> None:
        """The link has become ready or has ceased to be, or is not for another reason than before."""


class Link:
    """A connection to ``address``, which must prove to be ``identity``, from ``start()`` to ``close()``."""

    def __init__(
        self, address: ServerAddress, identity: ShardIdentity, settings: Settings, user: LinkUser, lane: str
    ) -> None:
        self.state = LinkState.CONNECTING
        self.why: str | None = None
        """Why it is not ready: the last failure."""
        self.broken_at = float("-inf")
        """The loop's time when it was ready for the last time, if it may be back in a moment."""
        self.was_ready = False
        self._is_silent = False
        """It did not break but stands still: nobody knows for how long."""
        self._address = address
        self._identity = identity
        self._settings = settings
        self._user = user
        self._names = {
            "endpoint": str(address),
            "generation": identity.generation,
            "shard": identity.shard,
            "lane": lane,
        }
        self._loop = asyncio.get_running_loop()
        self._connection: ServerConnection | None = None
        self._lost: asyncio.Future[str] = self._loop.create_future()
        """Why the connection that was ready is gone."""
        self._life: asyncio.Task[None] | None = None

    @property
    def is_started(self) -> bool:
        """Whether it was told to connect."""
        return self._life is not None

    def start(self) -> None:
        """Connect, and connect again whenever the connection breaks."""
        self._life = self._loop.create_task(self._live())

    def close(self) -> None:
        """Close the connection for good."""
        self._set_state(LinkState.CLOSED, "closed")
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
            ready_at = await self._connect()
            if ready_at is not None:
                self._fail(await self._lost)
                if self._loop.time() - ready_at > STEADY_SECONDS:
                    backoff = FIRST_BACKOFF_SECONDS
            await asyncio.sleep(backoff * (1 - self._settings.random.random() / 2))
            backoff = min(2 * backoff, LONGEST_BACKOFF_SECONDS)

    async def _connect(self) -> float | None:
        """Become ready, or say why not; the loop's time when it did."""
        self._lost = self._loop.create_future()
        self._set_state(LinkState.CONNECTING, self.why)
        settings = self._settings
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await connect(
                    self._address, self._identity, settings.password, self._broken, settings.budget
                )
        except TimeoutError:
            self._miss(f"did not connect and prove itself within {CONNECT_SECONDS:g} s")
        except NotProven as error:
            settings.counters[_PROOFS_FAILED] += 1
            self._miss(str(error))
        except OSError as error:
            self._miss(f"cannot be connected to: {error.strerror or error}")
        else:
            self._connection = connection
            self._is_silent = False
            self._user.opened(connection)
            settings.heartbeat.watch(connection, self._fall_silent)
            self._set_state(LinkState.READY, None)
            return self._loop.time()
        return None

    def _miss(self, why: str) -> None:
        """No connection could be made."""
        self._fail(why)
        self._user.lost(why)

    def _fail(self, why: str) -> None:
        self._set_state(LinkState.BROKEN, why)
        self.break_connection(why)

    def _fall_silent(self) -> None:
        """The idle connection is dead: the first lookup on it would wait in vain, and so would the next ones."""
        self._is_silent = True
        self.break_connection(f"did not answer PING within {self._settings.heartbeat.silence_seconds:g} s")

    def _broken(self, why: str) -> None:
        """The connection is gone."""
        self._connection = None
        if self.state is LinkState.READY:
            self._settings.counters[_BROKEN] += 1
            self._set_state(LinkState.BROKEN, why)
        self._user.lost(why)
        if not self._lost.done():
            self._lost.set_result(why)

    def _set_state(self, state: LinkState, why: str | None) -> None:
        was_ready, is_ready = self.state is LinkState.READY, state is LinkState.READY
        if self.state is LinkState.CLOSED:
            return
        is_news = state is LinkState.BROKEN and why != self.why
        if is_news:
            log.warning("endpoint not usable: %s", why, extra=self._names)
        self.state, self.why = state, why
        if was_ready:
            self.broken_at = float("-inf") if self._is_silent else self._loop.time()
        self.was_ready = self.was_ready or is_ready
        if is_ready:
            log.info("endpoint ready", extra=self._names)
        if was_ready != is_ready or is_news:
            self._user.state_changed()
