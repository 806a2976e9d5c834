"""Which routers' word counts, and from which routing table they answer."""

from __future__ import annotations

from collections.abc import Mapping

from lookupdb_operator.model import Observed, Pod, RouterReport
from lookupdb_operator.names import ROUTER
from lookupdb_operator.status import Table


def living(observed: Observed) -> tuple[Pod, ...]:
    """Routers that are not about to go."""
    return tuple(
        pod
        for pod in observed.pods
        if pod.component == ROUTER and not pod.deleting and pod.phase not in ("Succeeded", "Failed")
    )


def answering(observed: Observed) -> tuple[Pod, ...]:
    """Routers that may be answering from some table. One that has not started yet, or that ends again and again, reads
    the table when it starts; one that takes requests counts, whatever is wrong with it."""
    return tuple(pod for pod in living(observed) if _may_answer(pod, observed.routers.get(pod.uid)))


def has_down(observed: Observed) -> bool:
    """Whether a router that was started does not answer now. When it starts anew it may read an older table: its
    kubelet syncs what is mounted a while later."""
    answers = {pod.uid for pod in answering(observed)}
    return any(pod.phase == "Running" and pod.uid not in answers for pod in living(observed))


def behind(observed: Observed, table: Table) -> Mapping[str, str]:
    """Pod → why it does not answer from ``table`` yet, of routers that may be answering."""
    late: dict[str, str] = {}
    for pod in answering(observed):
        report = observed.routers.get(pod.uid)
        if report is None:
            late[pod.name] = "it was not asked yet"
        elif report.table_version is None:
            late[pod.name] = report.problem or "it has no routing table"
        elif report.table_version != table.version:
            late[pod.name] = report.problem or f"it answers from table {report.table_version}"
    return late


def newest_table(observed: Observed) -> int:
    """The highest version of a routing table that anyone has: 0 for none. More than status knows of, when that was
    set back: a router takes up none but a newer one."""
    return max((written_table(observed), *(report.newest for report in observed.routers.values())))


def written_table(observed: Observed) -> int:
    """The version of the routing table that is written: 0 for none."""
    return max((existing.table_version for existing in observed.others), default=0)


def _may_answer(pod: Pod, report: RouterReport | None) -> bool:
    if pod.ready or pod.phase != "Running":
        return pod.ready
    if report is None or report.newest:
        return True
    # What a container died of stays in a pod's status long after it runs again: only of one that does not answer when
    # it is asked either does it say that nobody is there.
    return pod.trouble is None and not report.is_empty
