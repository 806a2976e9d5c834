"""What is announced in the store of the active generation: to those who map it on machines of their own, and ask no
router (``lookupdb sync``).

It is due once every router has confirmed a table of another generation, and is written to status when the store has it.
Until then status has none, and it is written again: a write that is done twice is the same. Nothing else waits for it.

A dataset with a store of its own is announced by its routing table alone, and so is every dataset where no gateway
stands before the store: the operator has no credentials there that it could use.
"""

from __future__ import annotations

from lookupdb.store.announcement import Announcement
from lookupdb_operator.model import Observed, Trouble
from lookupdb_operator.plan import reasons
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import AnnouncedStatus, DatasetStatus


def note_announced(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` in which is announced what the store was seen to have; nothing from when on another generation is
    due: a write whose answer is lost may have had its effect, and what was announced before is announced anew then."""
    due, done = find_due(status, situation), situation.observed.announcement.written
    if due is None:
        return status
    if done is not None and _identify(done) == _identify(due):
        return replace(status, announced=AnnouncedStatus(due.generation, due.version))
    return status if status.announced is None else replace(status, announced=None)


def _identify(announcement: Announcement) -> tuple[str, str, int]:
    return announcement.uid, announcement.generation, announcement.version


def find_due(status: DatasetStatus, situation: Situation) -> Announcement | None:
    """What is to be announced, and is not yet; None where nothing is, or nobody can."""
    table, dataset = status.table, situation.dataset
    if not situation.config.announces or not situation.shares_store:
        return None
    if table is None or not table.confirmed_at or table.is_mixed:
        return None
    if status.announced is not None and status.announced.generation == table.generation:
        return None
    return Announcement(
        dataset.namespace, dataset.name, dataset.uid, table.generation, table.version, table.confirmed_at
    )


def diagnose_announcement(observed: Observed) -> Trouble | None:
    """Why an announcement has not succeeded for long."""
    problem = observed.announcement.problem
    if not problem:
        return None
    return Trouble(
        reasons.ANNOUNCEMENT_FAILED,
        f"What routers answer from is not announced in the store, and `lookupdb sync` stays behind: {problem}",
    )
