"""Cutover: a new routing table takes effect once its endpoints have proven themselves; until then the old serves.

Afterwards the generation before can still be asked by name for PREVIOUS_SECONDS, as long as each of its shards has an
endpoint that answers: who reads many keys of one generation, in several requests, can finish.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from lookupdb.route.counters import INDEX, TABLE_VERSION
from lookupdb.route.servers.link_state import LinkState
from lookupdb.route.shards.endpoint import Endpoint
from lookupdb.route.shards.settings import EndpointSettings
from lookupdb.route.table import succession
from lookupdb.route.table.live_table import EndpointPool, LiveTable, RoutedGeneration
from lookupdb.route.table.routing_table import RoutingTable

log = logging.getLogger(__name__)

READY_SECONDS: Final = 10.0
"""After a table has been in effect for so long, one shard that was reached is enough to be ready: others' keys are
better answered than none, and a shard that is down must not keep every new router out of service."""
PREVIOUS_SECONDS: Final = 10.0
"""The least for which its servers stay by default: ``drainSeconds``."""
WAITING: Final = "no routing table yet"
_MAX_REPORTED: Final = 20
"""Reports to the supervisor name at most so many endpoints."""
_RELOADS: Final = INDEX["reloads"]
_REFUSED: Final = INDEX["reloads_refused"]
_VERSION: Final = INDEX[TABLE_VERSION]
_ENDPOINTS: Final = INDEX["endpoints_ready"], INDEX["endpoints_unready"]
_CANDIDATE_ENDPOINTS: Final = INDEX["candidate_endpoints_ready"], INDEX["candidate_endpoints_unready"]


class TableUser(Protocol):
    """Who looks keys up in the table in effect."""

    live: LiveTable | None
    previous: RoutedGeneration | None
    """Was active before, and may still be asked by name."""


class Cutover:
    """Puts routing tables into effect in ``lookups``. ``on_change`` is called when ``status()`` has changed.

    With ``dataset_uid``, a table of any other dataset is refused, the first one too.
    """

    def __init__(
        self,
        lookups: TableUser,
        settings: EndpointSettings,
        on_change: Callable[[], None],
        dataset_uid: str | None = None,
    ) -> None:
        self._lookups = lookups
        self._settings = settings
        self._counters = settings.link.counters
        self._on_change = on_change
        self._dataset_uid = dataset_uid
        self._pool = EndpointPool(settings)
        self._next: LiveTable | None = None
        self._previous: LiveTable | None = None
        self._previous_timer: asyncio.TimerHandle | None = None
        self._retiring: list[LiveTable] = []
        self._error: str | None = None
        self._seen_version: int | None = None
        self._digest: str | None = None
        """Of the text of the table in effect: of the last one, if several said the same."""
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._ready_timer: asyncio.TimerHandle | None = None
        self._may_lack_shards = False

    def offer(self, table: RoutingTable) -> None:
        """Put ``table`` into effect as soon as it can be; the newest table offered wins."""
        self._seen_version = table.version
        current = self._lookups.live
        why = succession.diagnose_refusal(table, current.table if current else None, self._dataset_uid)
        if why:
            self.refuse(why)
            return
        self._error = None
        self._abandon()
        if current is None or table != current.table:
            self._next = self._connect(table)
        else:
            self._digest = table.digest
        self._close_unused()
        self._consider()

    def refuse(self, why: str) -> None:
        """Keep the table in effect, and log once ``why`` a new one cannot be used; ``status()`` says it too."""
        if why != self._error:
            self._counters[_REFUSED] += 1
            log.warning("routing table refused: %s", why, extra={"inEffect": self._counters[_VERSION]})
            self._error = why
            self._on_change()

    def status(self) -> dict[str, Any]:
        """What this worker reports: whose table and which version is in effect, the digest of its text, the version
        seen, and what is wrong."""
        live = self._lookups.live
        reported = self._next or live
        return {
            "datasetUid": live.table.dataset.uid if live else None,
            "tableVersion": live.table.version if live else None,
            "tableDigest": self._digest,
            "tableSeen": self._seen_version,
            "generation": live.table.active if live else None,
            "shardGenerations": live.mixture if live else None,
            "unreachedShards": live.unreached[:_MAX_REPORTED] if live else None,
            "error": self._error or self._waiting(),
            "endpoints": reported.problems(_MAX_REPORTED) if reported else [],
            "missingKeys": self._missing_keys(),
        }

    @property
    def is_complete(self) -> bool:
        """Whether a table is in effect and each shard of its active generation has been reached at least once.

        READY_SECONDS after the first table took effect, one shard is enough.
        """
        live = self._lookups.live
        if live is None:
            return False
        unreached = live.unreached
        return not unreached or (self._may_lack_shards and len(unreached) < len(live.active.shards))

    def close(self) -> None:
        """Close all connections."""
        if self._ready_timer:
            self._ready_timer.cancel()
        self._abandon()
        self._end_previous()
        self._lookups.live = None
        self._pool.close_unused(())

    def _missing_keys(self) -> list[str]:
        """Of passwords, by the keys' fingerprints: those that a table names and that no file holds now."""
        passwords = {ref for live in (self._next, self._lookups.live) if live for ref in live.passwords}
        return self._settings.link.passwords.list_missing(passwords)[:_MAX_REPORTED]

    def _waiting(self) -> str | None:
        if not self._next:
            return None if self._lookups.live else WAITING
        awaited = self._awaited_shards(self._next)
        if not awaited:  # it takes effect in a moment
            return None
        shards = ", ".join(map(str, awaited[:_MAX_REPORTED]))
        why = self._next.password_failure(awaited)
        waits = f"version {self._next.table.version} waits for an endpoint to prove itself of shard {shards}"
        return f"{waits}: {why}" if why else waits

    def _awaited_shards(self, new: LiveTable) -> list[int]:
        current = self._lookups.live
        return succession.awaited_shards(
            new.table,
            new.proven,
            current.table if current else None,
            current.proven if current else (),
        )

    def _connect(self, table: RoutingTable) -> LiveTable:
        live = self._pool.connect(table)
        for endpoint in live.endpoints():
            endpoint.observers.append(self._on_endpoint_change)
        return live

    def _release(self, live: LiveTable) -> None:
        for endpoint in live.endpoints():
            endpoint.observers.remove(self._on_endpoint_change)
        live.close()

    def _on_endpoint_change(self) -> None:
        """Consider soon, once for all changes of this iteration of the event loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._consider)

    def _consider(self) -> None:
        self._is_scheduled = False
        if self._previous and not all(self._previous.proven):
            self._end_previous()
        new = self._next
        if new and not self._awaited_shards(new):
            self._take_over(new)
        self._count_endpoints()
        self._on_change()

    def _take_over(self, new: LiveTable) -> None:
        old, self._lookups.live, self._next = self._lookups.live, new, None
        self._digest = new.table.digest
        counters = self._counters
        counters[_RELOADS] += 1
        counters[_VERSION] = new.table.version
        log.info("routing table in effect", extra={"tableVersion": new.table.version, "generation": new.active.name})
        if not self._ready_timer:
            self._ready_timer = self._loop.call_later(READY_SECONDS, self._accept_unreached_shards)
        if old:
            self._succeed(new, old)

    def _succeed(self, new: LiveTable, old: LiveTable) -> None:
        """Keep of ``old`` what may be asked for by name, or of the table before it, and retire what may not."""
        previous = self._previous
        if previous and succession.may_still_ask_for_previous(new.table, old.table, previous.table):
            self._begin_retirement(old)
            return
        self._end_previous()
        if succession.may_ask_for_previous(new.table, old.table):
            self._previous, self._lookups.previous = old, old.active
            self._previous_timer = self._loop.call_later(PREVIOUS_SECONDS, self._end_previous)
        else:
            self._begin_retirement(old)

    def _end_previous(self) -> None:
        """From now on the generation before cannot be asked for."""
        previous, self._previous, self._lookups.previous = self._previous, None, None
        if self._previous_timer:
            self._previous_timer.cancel()
            self._previous_timer = None
        if previous:
            self._begin_retirement(previous)
            self._count_endpoints()

    def _begin_retirement(self, old: LiveTable) -> None:
        # Whatever was asked of it has been answered, or given up, by then.
        self._retiring.append(old)
        self._loop.call_later(self._settings.deadline_seconds, self._retire, old)

    def _accept_unreached_shards(self) -> None:
        self._may_lack_shards = True
        self._on_change()

    def _retire(self, old: LiveTable) -> None:
        self._retiring.remove(old)
        self._release(old)
        self._close_unused()

    def _abandon(self) -> None:
        """Release the next table: another has come before it could take effect."""
        if self._next:
            abandoned, self._next = self._next, None
            self._release(abandoned)

    def _close_unused(self) -> None:
        self._pool.close_unused(
            live for live in (self._lookups.live, self._next, self._previous, *self._retiring) if live
        )

    def _count_endpoints(self) -> None:
        live, previous = self._lookups.live, self._previous
        self._count(_ENDPOINTS, live.active_endpoints() if live else ())
        candidates = live.candidate_endpoints() if live else ()
        self._count(_CANDIDATE_ENDPOINTS, (*candidates, *(previous.active_endpoints() if previous else ())))

    def _count(self, gauges: tuple[int, int], endpoints: Iterable[Endpoint]) -> None:
        states = [endpoint.state is LinkState.READY for endpoint in endpoints]
        ready, unready = gauges
        self._counters[ready] = sum(states)
        self._counters[unready] = len(states) - sum(states)
