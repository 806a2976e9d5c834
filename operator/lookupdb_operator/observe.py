"""What is known of a dataset and of all that belongs to it: from informers' objects to ``Observed``.

``Held`` is memory: small parsed objects, never whole bodies. ``Observer`` adds what only matters at times: Warning
events about what does not get on, and what routers tell.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from lookupdb_operator import kinds, names, parse
from lookupdb_operator.cluster import Cluster
from lookupdb_operator.config import StoreAccess
from lookupdb_operator.model import BuildJob, Dataset, Existing, Observed, Pod, RouterReport, ShardSet, Trouble

Key = tuple[str, str]
"""Namespace and name of a dataset."""

Parsed = Dataset | BuildJob | ShardSet | Pod | Existing

_GONE_REMEMBERED: Final = 4096
_QUIET_SECONDS: Final = 5.0
"""How long something may not get on before events are read for why."""
_ROUTERS_ASKED_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class _Entry:
    item: Parsed
    uid: str
    version: str
    owner: str
    """The uid of its controller."""
    created: datetime


class Held:
    """All objects of all datasets, by dataset."""

    def __init__(self) -> None:
        self._datasets: dict[Key, _Entry] = {}
        self._children: dict[Key, dict[tuple[str, str], _Entry]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()

    def put(self, kind: str, body: Mapping[str, Any]) -> Key | None:
        """Hold the object ``body`` of ``kind`` as it is now, unless something newer is held. The dataset to look at;
        None when it belongs to none."""
        raise NotImplementedError

    def drop(self, kind: str, body: Mapping[str, Any]) -> Key | None:
        """Forget the object ``body``, for good. The dataset to look at; None when it belongs to none."""
        raise NotImplementedError

    def keys(self) -> tuple[Key, ...]:
        """Every dataset that there is."""
        return tuple(self._datasets)

    def of(self, key: Key) -> Observed | None:
        """The dataset ``key`` with all that belongs to it; None when there is no such dataset."""
        raise NotImplementedError


class Observer:
    """Completes what is held with what has to be asked."""

    def __init__(self, held: Held, cluster: Cluster, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._held = held
        self._cluster = cluster
        self._clock = clock

    async def observe(
        self,
        key: Key,
        *,
        ask_routers: bool = False,
        refusals: Mapping[tuple[str, str], str] | None = None,
        store: StoreAccess | None = None,
    ) -> Observed | None:
        """The dataset ``key`` as it is now; None when there is no such dataset."""
        raise NotImplementedError
