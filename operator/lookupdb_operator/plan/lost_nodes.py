"""Pods whose node is lost: Kubernetes has begun to delete them, and nobody is there to end them.

A StatefulSet makes no other pod of a name while the old one is there, so a shard would lack a server for as long as the
node is away. What a shard server serves never changes, and a router keeps nothing: two of one name do no harm, should
the node come back. So Kubernetes is told to forget the old one. A builder writes: it is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import Observed, Pod, Ref

_AGAIN_AFTER: Final = 300.0
"""Seconds until one that is still there though it was deleted by force (a finalizer holds it) is tried again."""


def find_lost_pods(observed: Observed, now: datetime) -> tuple[Ref, ...]:
    """The pods that are to be deleted by force."""
    return tuple(
        Ref("Pod", pod.name, pod.uid, by_force=True)
        for pod in _pods_that_serve(observed)
        if pod.lost_at is not None and pod.lost_at <= now
    )


def next_lost_in(observed: Observed, now: datetime) -> float | None:
    """Seconds until the next pod counts as lost, should it still be there; None for never."""
    waits = ((pod.lost_at - now).total_seconds() for pod in _pods_that_serve(observed) if pod.lost_at is not None)
    return min((wait if wait > 0 else _AGAIN_AFTER for wait in waits), default=None)


def _pods_that_serve(observed: Observed) -> Iterator[Pod]:
    return (pod for pod in observed.pods if pod.component in (names.SHARDS, names.ROUTER))
