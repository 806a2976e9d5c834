"""What routers report, and which of their reports count. A router has confirmed a routing table when all its workers
answer from it: from its version, and from the text that the operator has written under it.

The version alone does not tell. Somebody may have given an edited table the very version that the operator's next one
has, and routers take it up; put back before the operator looks, it leaves no trace but the digest of what they have
read. An older router reports none, and is believed without.
"""

from __future__ import annotations

from collections.abc import Mapping

from lookupdb.route.table.succession import describe_contradiction
from lookupdb_operator.model import Observed, Pod, RouterReport
from lookupdb_operator.names import ROUTER
from lookupdb_operator.status import TableStatus


def list_live_routers(observed: Observed) -> tuple[Pod, ...]:
    """Routers that are not about to go."""
    return tuple(
        pod
        for pod in observed.pods
        if pod.component == ROUTER and not pod.deleting and pod.phase not in ("Succeeded", "Failed")
    )


def list_answering_routers(observed: Observed) -> tuple[Pod, ...]:
    """Routers that may be answering from some table. One that takes requests counts, whatever is wrong with it. One
    that has not started, or that ends again and again, does not: it reads the table when it starts."""
    return tuple(pod for pod in list_live_routers(observed) if _may_answer(pod, observed.routers.get(pod.uid)))


def _may_answer(pod: Pod, report: RouterReport | None) -> bool:
    if pod.ready or pod.phase != "Running":
        return pod.ready
    if report is None or report.newest:
        return True
    # What a container died of stays in a pod's status long after it runs again: only of one that does not answer when
    # it is asked either does it say that nobody is there.
    return pod.trouble is None and not report.is_empty


def has_router_down(observed: Observed) -> bool:
    """Whether a router that was started does not answer now. When it starts anew it may read an older table: its
    kubelet syncs what is mounted a while later."""
    answering_uids = {pod.uid for pod in list_answering_routers(observed)}
    return any(pod.phase == "Running" and pod.uid not in answering_uids for pod in list_live_routers(observed))


def is_router_behind(observed: Observed, table: TableStatus) -> bool:
    """Whether a router answers from an older table than ``table``."""
    reports = (observed.routers.get(pod.uid) for pod in list_answering_routers(observed))
    return any(report is not None and 0 < (report.table_version or 0) < table.version for report in reports)


def is_contradicted(observed: Observed, table: TableStatus, digest: str) -> bool:
    """Whether a router answers from another table of the version of ``table``, whose text has ``digest``, and refuses
    this one. Empty: that is not known, and not compared."""
    if not observed.routers:  # as at most looks: they were not asked
        return False
    reports = (observed.routers.get(pod.uid) for pod in list_answering_routers(observed))
    return any(report is not None and _contradicts(report, table, digest) for report in reports)


def _contradicts(report: RouterReport, table: TableStatus, digest: str) -> bool:
    """Whether ``report`` says so, or that it has another text or generation than this version: what the router is given
    may be the other table still."""
    if describe_contradiction(table.version) in report.problem:
        return True
    if not _answers_from_version(report, table):
        return False
    return not report.generations <= {table.generation} or bool(digest and report.digests - {digest})


def _answers_from_version(report: RouterReport, table: TableStatus) -> bool:
    """Whether all workers do: one that has come before the others to a higher one has somebody else's."""
    return report.table_version == report.newest == table.version


def find_confirming_routers(observed: Observed, table: TableStatus, digest: str) -> frozenset[str]:
    """The uids of the routers that say that they answer from ``table``, whose text has ``digest``."""
    reports = ((pod.uid, observed.routers.get(pod.uid)) for pod in list_answering_routers(observed))
    return frozenset(uid for uid, report in reports if report is not None and _confirms(report, table, digest))


def _confirms(report: RouterReport, table: TableStatus, digest: str) -> bool:
    return _answers_from_version(report, table) and not _contradicts(report, table, digest)


def diagnose_late_routers(observed: Observed, table: TableStatus, digest: str) -> Mapping[str, str]:
    """Pod → why it does not answer from ``table`` yet, whose text has ``digest``; of routers that may be answering."""
    late: dict[str, str] = {}
    for pod in list_answering_routers(observed):
        report = observed.routers.get(pod.uid)
        if report is None:
            late[pod.name] = "it was not asked yet"
        elif report.table_version is None:
            late[pod.name] = report.problem or "it has no routing table"
        elif not _confirms(report, table, digest):
            late[pod.name] = report.problem or _describe_answers(report, table)
    return late


def _describe_answers(report: RouterReport, table: TableStatus) -> str:
    if _answers_from_version(report, table) and report.generations <= {table.generation}:
        return f"it answers from table {table.version} with other content than was written"
    to = f" to {report.newest}" if report.newest > (report.table_version or 0) else ""
    of = f", of {', '.join(sorted(report.generations))}" if report.generations else ""
    return f"it answers from table {report.table_version}{to}{of}"
