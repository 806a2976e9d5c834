"""Whether the version of the routing table is taken: other content was written under it than should be, or a router
says that it answers from such. Somebody has edited the ConfigMap, or what it is rendered from in status.

A router takes up no second content under one version, and one that has started meanwhile may have read the other one.
So what should be there goes out under the next version (``table_content``). That is claimed once for each time it is
found so: while it is claimed and not written yet, what is there is of another version. Who edits again and again is
left alone for longer each time, as with any other object (``loop.repairs``), and no table is written until then. That
it was found so is noted at once all the same: whoever edits it may put it back meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from lookupdb_operator import manifests, names
from lookupdb_operator.plan.rollout import router_reports, table_versions
from lookupdb_operator.plan.situation import Situation, table_content, table_stamps
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import DatasetStatus, GenerationStatus, TableStatus


def is_version_taken(status: DatasetStatus, situation: Situation) -> bool:
    """Whether what the routing table of ``status`` says is to be written under the next version, now."""
    table = status.table
    if table is None:
        return False
    generations = find_generations(table, status)
    if generations is None:
        return False
    is_noted = table_versions.known_table_version(status) > table.version
    is_read = is_contradicted(table, status, situation)
    is_taken = is_noted or is_read or _is_written_otherwise(table, generations, situation)
    return is_taken and not _is_left_alone(table, generations, situation)


def note_taken_version(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with a higher version claimed than any that is seen, when that of its routing table is taken and the
    ConfigMap is left alone; once, and again when a still higher one is seen. No table gets this one: that a higher one
    than the table's is claimed says that it is to have another, and routers may have read what somebody has written."""
    table = status.table
    generations = None if table is None else find_generations(table, status)
    if table is None or generations is None or not _is_left_alone(table, generations, situation):
        return status
    if not _is_written_otherwise(table, generations, situation):
        return status
    newest = max(table.version + 1, table_versions.newest_table_version(situation.observed))
    return replace(status, last_table=max(status.last_table, newest))


def is_contradicted(table: TableStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether a router says that it answers from another table of the version of ``table``, which is that of
    ``status``."""
    return router_reports.is_contradicted(situation.observed, table, find_digest(table, status, situation))


def find_digest(table: TableStatus, status: DatasetStatus, situation: Situation) -> str:
    """What routers report that have read ``table`` as it should be written; empty when nobody was asked, or when what
    it references is not known."""
    generations = find_generations(table, status) if situation.observed.routers else None
    return "" if generations is None else table_content(situation.ingredients, table, generations)


def find_generations(table: TableStatus, status: DatasetStatus) -> Mapping[str, GenerationStatus] | None:
    """All that ``status`` knows of, by name; None when one that ``table`` routes to is not among them."""
    known = {generation.generation: generation for generation in status.generations}
    return known if {table.generation, *(part.generation for part in table.parts)} <= known.keys() else None


def _is_written_otherwise(
    table: TableStatus, generations: Mapping[str, GenerationStatus], situation: Situation
) -> bool:
    """Whether the ConfigMap has other content than should be there, under the version of ``table``. In what somebody
    has edited, the version may be edited, too: it was written if it was confirmed, and this or a higher one may have
    been read. One that is not overtaken would say so of each next one, too, while that cannot be written. Of labels
    and annotations alone routers read nothing: they are put right under the same version."""
    name = names.routing_table(situation.dataset.name)
    objects = situation.observed.other_objects
    live = next((item for item in objects if (item.ref.kind, item.ref.name) == ("ConfigMap", name)), None)
    if live is None:
        return False
    newest = table_versions.find_highest((live.table_version, live.text_version))
    is_edited = live.changed and (table.confirmed_at or newest >= table.version)
    if not is_edited and live.table_version != table.version:
        return False
    stamps = table_stamps(situation.ingredients, table, generations)
    if not live.changed and ("ConfigMap", name, live.digest) in stamps:
        return False
    return live.content != table_content(situation.ingredients, table, generations)


def _is_left_alone(table: TableStatus, generations: Mapping[str, GenerationStatus], situation: Situation) -> bool:
    """Whether somebody else keeps changing the ConfigMap, and it is not to be written now."""
    name = names.routing_table(situation.dataset.name)
    held = {
        contest.mark
        for contest in situation.observed.contests
        if contest.is_held and (contest.kind, contest.name) == ("ConfigMap", name)
    }
    if not held:
        return False
    return manifests.write_mark(manifests.render_routing_table(situation.dataset, table, generations)) in held
