"""What is known of a dataset and of all that belongs to it: from informers' objects to ``Observed``.

``Held`` is memory: small parsed objects, never whole bodies. ``Observer`` adds what only matters at times: Warning
events about what does not get on, and what routers tell.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from lookupdb_operator import kinds, names, parse
from lookupdb_operator.api import ApiError
from lookupdb_operator.cluster import Cluster, Warned
from lookupdb_operator.config import StoreAccess
from lookupdb_operator.model import BuildJob, Dataset, Existing, Observed, Pod, Predecessor, RouterReport, ShardSet
from lookupdb_operator.parse import Header

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of a dataset."""

_GONE_REMEMBERED: Final = 4096
_QUIET_SECONDS: Final = 5.0
"""How long something may not get on before events are read for why."""
_ROUTERS_ASKED_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """One object that is held."""

    head: Header
    item: Dataset | BuildJob | ShardSet | Pod | Existing
    waiting: bool = False
    """Of a pod: whether not even its image is pulled yet, which only events can explain."""


class Held:
    """All objects of all datasets, by dataset. Informers put them here, and so may whoever has just written one:
    what is older than what is held, or known to be gone, is not taken."""

    def __init__(self) -> None:
        self._held: dict[Key, dict[tuple[str, str], Entry]] = {}
        self._where: dict[tuple[str, str, str], Key] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()

    def put(self, kind: str, body: Mapping[str, Any]) -> Key | None:
        """Hold the object ``body`` of ``kind`` as it is now. The dataset to look at; None when it belongs to none, or
        when nothing new was told."""
        head = parse.header(body)
        name = head.name if kind == names.KIND else head.dataset
        key = (head.namespace, name)
        place = (kind, head.namespace, head.name)
        if head.uid in self._gone:
            return None
        if self._where.get(place, key) != key or not name:
            self.drop(*place)  # its label was changed, or taken away
        if not name:
            return None
        before = self._held.get(key, {}).get((kind, head.name))
        if before is not None and not _newer(head, before.head):
            return None
        self._held.setdefault(key, {})[kind, head.name] = _entry(kind, head, body, before)
        self._where[place] = key
        return key

    def drop(self, kind: str, namespace: str, name: str, uid: str = "") -> Key | None:
        """Forget an object; with its ``uid``, for good and only that one. The dataset to look at; None when nothing
        was forgotten."""
        if uid:
            self._gone[uid] = None
            if len(self._gone) > _GONE_REMEMBERED:
                self._gone.popitem(last=False)
        place = (kind, namespace, name)
        key = self._where.get(place)
        if key is None or uid not in ("", self._held[key][kind, name].head.uid):
            return None
        del self._where[place]
        del self._held[key][kind, name]
        if not self._held[key]:
            del self._held[key]
        return key

    def keys(self) -> tuple[Key, ...]:
        """Every dataset that there is."""
        return tuple(key for key, held in self._held.items() if (names.KIND, key[1]) in held)

    def of(self, key: Key) -> Observed | None:
        """The dataset ``key`` with all that belongs to it; None when there is no such dataset."""
        entry = self._held.get(key, {}).get((names.KIND, key[1]))
        if entry is None or not isinstance(entry.item, Dataset):
            return None
        items = [entry.item for entry in self.belonging(key)]
        return Observed(
            dataset=entry.item,
            jobs=tuple(item for item in items if isinstance(item, BuildJob)),
            sets=tuple(item for item in items if isinstance(item, ShardSet)),
            pods=tuple(item for item in items if isinstance(item, Pod)),
            others=tuple(item for item in items if isinstance(item, Existing)),
            predecessors=tuple(self._predecessors(key, entry.item)),
        )

    def belonging(self, key: Key) -> Iterator[Entry]:
        """What belongs to the dataset ``key``, in order of kind and name: to this one by its uid, not to one that had
        the name before it."""
        held = self._held.get(key, {})
        dataset = held.get((names.KIND, key[1]))
        if dataset is None:
            return
        uid = dataset.head.uid
        ours = {entry.head.uid for entry in held.values() if entry.head.owner_uid == uid}
        for at in sorted(held):
            entry = held[at]
            if entry.head.uid in ours or (isinstance(entry.item, Pod) and _made_by(entry.head, uid, ours, key[1])):
                yield entry

    def _predecessors(self, key: Key, dataset: Dataset) -> Iterator[Predecessor]:
        """What was made for a dataset that had the name of ``dataset`` before it. Of what has no uid label, nothing
        was made by us."""
        held = self._held[key]
        for kind, name in sorted(held):
            head = held[kind, name].head
            if kind != kinds.POD.name and head.dataset_uid not in ("", dataset.uid) and head.owner_uid != dataset.uid:
                yield Predecessor(kind, name, head.dataset_uid, orphaned=head.owner_kind != names.KIND)


def _entry(kind: str, head: Header, body: Mapping[str, Any], before: Entry | None) -> Entry:
    match kind:
        case kinds.DATASET.name:
            known = before.item if before is not None and isinstance(before.item, Dataset) else None
            return Entry(head, parse.dataset(body, known))
        case kinds.JOB.name:
            return Entry(head, parse.job(body))
        case kinds.STATEFUL_SET.name:
            return Entry(head, parse.shard_set(body))
        case kinds.POD.name:
            return Entry(head, parse.pod(body), parse.waiting(body))
    return Entry(head, parse.existing(kind, body))


def _newer(head: Header, held: Header) -> bool:
    """Whether ``head`` is not an earlier version of the object ``held``. Versions of one object are decimal and grow
    (KEP-5504); those of an API server that has others are all taken."""
    told, known = head.resource_version, held.resource_version
    if head.uid != held.uid or not told.isdecimal() or not known.isdecimal():
        return True
    return int(told) > int(known)


def _made_by(head: Header, uid: str, ours: set[str], dataset: str) -> bool:
    """Whether a pod is of one of our Jobs or StatefulSets, or of our Deployment: its ReplicaSets are not watched."""
    if head.dataset_uid != uid:
        return False
    if head.owner_kind == "ReplicaSet":
        return head.owner_name.startswith(f"{names.router(dataset)}-")
    return head.owner_uid in ours


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
        observed = self._held.of(key)
        if observed is None:
            return None
        stuck = _stuck(self._held.belonging(key), self._clock())
        if stuck:
            observed = _explained(observed, await self._warnings(key[0], stuck))
        return replace(
            observed,
            routers=await self._ask(observed) if ask_routers else {},
            refusals=refusals or {},
            store=store or StoreAccess(),
        )

    async def _warnings(self, namespace: str, uids: frozenset[str]) -> Mapping[str, Warned]:
        try:
            return await self._cluster.warnings(namespace, uids)
        except ApiError as error:
            log.warning("events cannot be read", extra={"namespace": namespace, "reason": str(error)})
            return {}

    async def _ask(self, observed: Observed) -> dict[str, RouterReport]:
        turns = asyncio.Semaphore(_ROUTERS_ASKED_AT_ONCE)

        async def ask(pod: Pod) -> tuple[str, RouterReport]:
            async with turns:
                return pod.uid, await self._cluster.ask_router(pod.ip, observed.dataset.uid)

        routers = [pod for pod in observed.pods if pod.component == names.ROUTER and pod.phase == "Running" and pod.ip]
        return dict(await asyncio.gather(*(ask(pod) for pod in routers if not pod.deleting)))


def _stuck(entries: Iterable[Entry], now: datetime) -> frozenset[str]:
    """The uids of what does not get on for a reason that is in no object: a Job or StatefulSet without its pods, a
    pod whose containers the kubelet does not even begin with."""
    entries = tuple(entries)
    pods = Counter(entry.head.owner_uid for entry in entries if isinstance(entry.item, Pod) and not entry.item.deleting)
    stuck = set()
    for entry in entries:
        if (now - entry.head.created).total_seconds() <= _QUIET_SECONDS:
            continue
        match entry.item:
            case BuildJob(state="Running", deleting=False, failure=None):
                lacking = not pods[entry.head.uid]
            case ShardSet(deleting=False) as shards:
                lacking = pods[entry.head.uid] < shards.replicas
            case Pod(trouble=None, deleting=False):
                lacking = entry.waiting
            case _:
                lacking = False
        if lacking:
            stuck.add(entry.head.uid)
    return frozenset(stuck)


def _explained(observed: Observed, warnings: Mapping[str, Warned]) -> Observed:
    def why(kind: str, name: str, uid: str) -> Any:
        warned = warnings.get(uid)
        return parse.warned(kind, name, warned.reason, warned.message) if warned else None

    return replace(
        observed,
        jobs=tuple(replace(job, failure=job.failure or why("Job", job.ref.name, job.ref.uid)) for job in observed.jobs),
        sets=tuple(replace(one, trouble=why("StatefulSet", one.ref.name, one.ref.uid)) for one in observed.sets),
        pods=tuple(replace(pod, trouble=pod.trouble or why("Pod", pod.name, pod.uid)) for pod in observed.pods),
    )
