"""Looks at single datasets meet the queues that know all of them: each look is planned with the dataset's turns, and a
dataset whose turn has come is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from lookupdb_operator.config import Config
from lookupdb_operator.model import Observed, ObservedDataset, Plan
from lookupdb_operator.plan import standstill
from lookupdb_operator.plan.turn.turn_queues import TurnQueues
from lookupdb_operator.status import DatasetStatus
from lookupdb_operator.watch.cache import Key, ObjectCache

Decide = Callable[[Observed, Config, datetime], Plan]


class TurnTaking:
    """Reads from the statuses in ``cache``, once, which datasets have a turn; then each look notes what it saw and
    planned."""

    def __init__(
        self, queues: TurnQueues, *, cache: ObjectCache, config: Config, wake: Callable[[Key], None] = lambda key: None
    ) -> None:
        """``wake`` is called with each dataset whose turn has come."""
        self._queues = queues
        self._cache = cache
        self._config = config
        self._wake = wake
        self._is_loaded = False
        self._granted: frozenset[Key] = frozenset()

    def use_config(self, config: Config) -> None:
        """Plan with other settings from now on."""
        self._config = config

    def plan(self, observed: Observed, decide: Decide, now: datetime) -> Plan:
        """What ``decide`` plans for ``observed`` with its turns. Nothing else runs before the plan is noted: no turn is
        granted twice."""
        self._load(now)
        dataset = observed.dataset
        self._note(dataset, dataset.status, now)
        turns = self._queues.find_turns(dataset.key, dataset.status, now)
        try:
            plan = decide(replace(observed, turns=turns), self._config, now)
        except Exception:
            self.forget(dataset.key, now)  # nothing comes of its turn: others have it until the next look
            raise
        self._note(dataset, plan.status, now)
        self._wake_granted(now)
        return plan

    def withdraw(self, dataset: ObservedDataset, now: datetime, *, postpone: bool) -> None:
        """Note that the plan for ``dataset`` was not written: it has claimed nothing. With ``postpone``, because it
        cannot be written, others come before it for a while."""
        self._note(dataset, dataset.status, now)
        if postpone:
            self._queues.postpone(dataset.key, now)
        self._wake_granted(now, skipped=dataset.key)

    def forget(self, key: Key, now: datetime) -> None:
        """The dataset ``key`` is gone."""
        self._queues.forget(key)
        self._wake_granted(now)

    def _load(self, now: datetime) -> None:
        if not self._is_loaded:
            self._is_loaded = True
            for dataset in self._cache.datasets():
                self._note(dataset, dataset.status, now)

    def _note(self, dataset: ObservedDataset, status: DatasetStatus, now: datetime) -> None:
        """A dataset that is not ours to act on, or whose spec cannot be used, has no turn: it would never end."""
        if dataset.parsed is None or standstill.why_idle(dataset, self._config):
            self._queues.forget(dataset.key)
        else:
            self._queues.note(dataset.key, status, now)

    def _wake_granted(self, now: datetime, skipped: Key | None = None) -> None:
        granted = self._queues.list_granted(now)
        for key in granted - self._granted - {skipped}:
            self._wake(key)
        self._granted = granted
