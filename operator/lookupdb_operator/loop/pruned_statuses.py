"""Statuses of which the API server stores a part alone: its CustomResourceDefinition is older than this operator, and
what its schema does not know is pruned from all that is written.

Such a status differs from what is planned at every look, so that it would be written for ever, and nothing would come
of what is remembered there: a pause would begin anew each time. So this process goes by what it has written for as long
as the API server holds what it answered to that. Of a status that somebody has changed since, rollouts are restored
that are as they were stored. Where an answer is lost, and in an operator that starts, what is stored is all that is
known.

Nobody tells that the CustomResourceDefinition was upgraded: now and then one of these statuses is written again, each
in its turn, for not all lack the same. When what was pruned is stored, all others are written at their next look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from lookupdb_operator import kinds
from lookupdb_operator.model import Manifest, ObservedDataset
from lookupdb_operator.status import DatasetStatus
from lookupdb_operator.watch.cache import Key

log = logging.getLogger(__name__)

PROBE_SECONDS: Final = 240.0
"""Between two probes, of all datasets together: less than the time between two resyncs of the default, each of which
looks at every dataset."""


@dataclass(frozen=True, slots=True)
class _PrunedStatus:
    uid: str
    intended: DatasetStatus
    """As it was written."""
    stored: DatasetStatus
    """What the API server answered to that."""
    paths: tuple[str, ...]
    """What it has pruned, as ``rollouts[].push``."""


class PrunedStatuses:
    """The last status that this process has written of each dataset, if a part of it was pruned."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds that only grow."""
        self._clock = clock
        self._statuses: dict[Key, _PrunedStatus] = {}
        """First the one that was written, or probed, longest ago."""
        self._probed_at = float("-inf")
        self._due: set[Key] = set()
        """Those that are probed at their next look: something that was pruned of another one is stored now."""
        self._is_stored: dict[str, bool] = {}
        """Each path that the log was told of → whether it was told that it is stored now."""

    def restore(self, dataset: ObservedDataset) -> ObservedDataset:
        """``dataset``, with its status as it was written if nothing but the API server's pruning makes it differ; else
        with those rollouts as they were written of which that holds."""
        pruned = self._statuses.get(dataset.key)
        if pruned is None or dataset.status_problem or pruned.uid != dataset.uid:
            return dataset
        if dataset.status == pruned.stored:
            return replace(dataset, status=pruned.intended)
        intended = dict(zip(pruned.stored.rollouts, pruned.intended.rollouts, strict=False))
        rollouts = tuple(intended.get(rollout, rollout) for rollout in dataset.status.rollouts)
        return replace(dataset, status=replace(dataset.status, rollouts=rollouts))

    def take_probe(self, key: Key) -> bool:
        """Whether the status of the dataset ``key`` is to be written though it is as planned: it may be stored as a
        whole by now. Then it has had its turn, whatever comes of that."""
        if key in self._due:
            self._due.remove(key)
        elif key == next(iter(self._statuses), None) and self._clock() - self._probed_at >= PROBE_SECONDS:
            self._probed_at = self._clock()
        else:
            return False
        self._statuses[key] = self._statuses.pop(key)
        return True

    def note_write(self, dataset: ObservedDataset, status: DatasetStatus, answer: Manifest) -> None:
        """Note that ``status`` of ``dataset`` was written, and what the API server answered: the dataset as it is
        stored. Tells the log what is pruned, and that it is no longer, once of each path."""
        stored = answer.get("status") or {}
        differences = list(_list_differences(status.to_json(), stored))
        before = self._statuses.get(dataset.key)
        self.forget(dataset.key)
        if not all(is_missing for _, is_missing in differences):  # what somebody else changes on the way is no pruning
            return
        paths = tuple(dict.fromkeys(path for path, _ in differences))
        known = () if before is None else before.paths
        self._report(paths, [path for path in known if path not in paths and _has_path(stored, path)])
        if not paths:
            return
        if not self._statuses:
            self._probed_at = self._clock()
        try:
            self._statuses[dataset.key] = _PrunedStatus(dataset.uid, status, DatasetStatus.from_json(stored), paths)
        except ValueError:  # the next look says so
            return

    def forget(self, key: Key) -> None:
        """The dataset ``key`` is gone."""
        self._statuses.pop(key, None)
        self._due.discard(key)

    def _report(self, pruned: Sequence[str], stored: Sequence[str]) -> None:
        """``stored`` are those paths that were pruned of the same dataset before: others may be pruned by something
        else than the CustomResourceDefinition, in some namespace alone."""
        if news := [path for path in stored if not self._is_stored[path]]:
            self._is_stored.update(dict.fromkeys(news, True))
            self._due.update(self._statuses)
            log.info("the API server stores %s now", _join(news))
        if news := [path for path in pruned if path not in self._is_stored]:
            self._is_stored.update(dict.fromkeys(news, False))
            log.warning(
                "the API server drops %s of what is written: the CustomResourceDefinition %s.%s is older than this"
                " operator, or a webhook takes that away. What is dropped is known to this process alone, and lost when"
                " that ends. Upgrade the CustomResourceDefinition with that of the operator's version: kubectl apply"
                " --server-side -f crds/",
                _join(news),
                kinds.DATASET.plural,
                kinds.DATASET.group,
            )


def _join(paths: Sequence[str]) -> str:
    return ", ".join(f"status.{path}" for path in paths)


def _list_differences(intended: Any, stored: Any, path: str = "") -> Iterator[tuple[str, bool]]:
    """Where ``stored`` differs from ``intended``, as ``rollouts[].push``, and whether it is because it lacks that
    member, which pruning leaves out."""
    if isinstance(intended, Mapping) and isinstance(stored, Mapping):
        for name in (*intended, *(stored.keys() - intended.keys())):
            below = f"{path}.{name}" if path else name
            if name not in stored:
                yield below, True
            else:
                yield from _list_differences(intended.get(name), stored[name], below)
    elif isinstance(intended, list) and isinstance(stored, list) and len(intended) == len(stored):
        for member, counterpart in zip(intended, stored, strict=True):
            yield from _list_differences(member, counterpart, f"{path}[]")
    elif intended != stored:
        yield path, False


def _has_path(value: Any, path: str) -> bool:
    """Whether ``value`` has what ``path`` names, in any of its lists."""
    name, _, rest = path.partition(".")
    member = value.get(name.removesuffix("[]"))
    if member is None or not rest:
        return member is not None
    members = member if isinstance(member, list) else [member]
    return any(_has_path(item, rest) for item in members)
