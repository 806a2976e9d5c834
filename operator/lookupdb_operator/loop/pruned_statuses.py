"""Statuses of which the API server stores a part alone: its CustomResourceDefinition is older than this operator, and
what its schema does not know is pruned from all that is written.

Such a status differs from what is planned at every look, so that it would be written for ever, and nothing would come
of what is remembered there: a pause would begin anew each time. So this process goes by what it has written for as long
as the API server holds what it answered to that. A status that anybody has changed since is as it is. Where an answer
is lost, and in an operator that starts, what is stored is all that is known.

Nobody tells that the CustomResourceDefinition was upgraded: now and then one of these statuses is written again. When
what was pruned is stored, all others are written at their next look.
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
"""Without a pruned answer, of all datasets together, after which one is written again: less than the time between two
resyncs of the default, each of which looks at every dataset."""


@dataclass(frozen=True, slots=True)
class _PrunedStatus:
    uid: str
    intended: DatasetStatus
    """As it was written."""
    stored: DatasetStatus
    """What the API server answered to that."""


class PrunedStatuses:
    """The last status that this process has written of each dataset, if a part of it was pruned."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds that only grow."""
        self._clock = clock
        self._statuses: dict[Key, _PrunedStatus] = {}
        self._pruned_at = float("-inf")
        self._reported_path = ""
        """What the log was told of; empty when nothing is pruned, as far as is known."""

    def restore(self, dataset: ObservedDataset) -> ObservedDataset:
        """``dataset``, with its status as it was written if nothing but the API server's pruning makes it differ."""
        pruned = self._statuses.get(dataset.key)
        if pruned is None or dataset.status_problem or (pruned.uid, pruned.stored) != (dataset.uid, dataset.status):
            return dataset
        return replace(dataset, status=pruned.intended)

    def needs_probe(self, key: Key) -> bool:
        """Whether the status of the dataset ``key`` is to be written though it is as planned: it may be stored as a
        whole by now."""
        return key in self._statuses and self._clock() - self._pruned_at >= PROBE_SECONDS

    def note_write(self, dataset: ObservedDataset, status: DatasetStatus, answer: Manifest) -> None:
        """Note that ``status`` of ``dataset`` was written, and what the API server answered: the dataset as it is
        stored. Warns of what is pruned, once."""
        intended, stored = status.to_json(), answer.get("status") or {}
        differences = list(_list_differences(intended, stored))
        paths = [path for path, is_missing in differences if is_missing]
        self._report(intended, paths)
        self.forget(dataset.key)
        if not paths or len(paths) < len(differences):  # what somebody else has changed on the way is no pruning
            return
        try:
            self._statuses[dataset.key] = _PrunedStatus(dataset.uid, status, DatasetStatus.from_json(stored))
        except ValueError:  # the next look says so
            return

    def forget(self, key: Key) -> None:
        """The dataset ``key`` is gone."""
        self._statuses.pop(key, None)

    def _report(self, intended: Mapping[str, Any], paths: Sequence[str]) -> None:
        if self._reported_path and self._reported_path not in paths and _has_path(intended, self._reported_path):
            log.info("the API server stores status.%s now", self._reported_path)
            self._reported_path, self._pruned_at = "", float("-inf")
        if not paths:
            return
        self._pruned_at = self._clock()
        if not self._reported_path:
            self._reported_path = paths[0]
            log.warning(
                "the API server drops status.%s of what is written: the CustomResourceDefinition %s.%s is older than"
                " this operator. What it drops is known to this process alone, and lost when that ends. Upgrade it"
                " with that of the operator's version: kubectl apply --server-side -f crds/",
                self._reported_path,
                kinds.DATASET.plural,
                kinds.DATASET.group,
            )


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
