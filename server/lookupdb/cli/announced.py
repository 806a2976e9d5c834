"""What a build says where the store announces another generation: whoever follows the announcement does not see it."""

from __future__ import annotations

from dataclasses import replace

import click

from lookupdb.build.build_report import BuildReport
from lookupdb.errors import CorruptFile, StoreError
from lookupdb.spec import DatasetSpec
from lookupdb.store import Store
from lookupdb.store.announcement import ANNOUNCEMENT_NOTE, is_stale, read_announcement


def with_note(report: BuildReport, store: Store, spec: DatasetSpec, active: str | None) -> BuildReport:
    """``report``, which says in its message, and on standard error, that another generation is announced. Who has
    named the ``active`` one cuts over, and announces, itself: nothing is said then."""
    if active is not None or report.outcome == "waiting":
        return report
    try:
        note = _describe_announced(report, store, spec)
    except StoreError:  # it was built, and whoever follows says what is wrong
        return report
    if note is None:
        return report
    click.echo(f"note: {note}", err=True)
    return replace(report, message=f"{report.message}; {note}" if report.message else note)


def _describe_announced(report: BuildReport, store: Store, spec: DatasetSpec) -> str | None:
    dataset = store.dataset(spec)
    built = report.generation or dataset.newest_generation()
    file = f"{dataset.url}/{ANNOUNCEMENT_NOTE}"
    try:
        announcement = read_announcement(dataset)
    except CorruptFile as error:
        return f"lookupdb.open and lookupdb sync do not follow {built}: {error.message}; {error.hint}"
    if announcement is None or built is None or announcement.generation == built:
        return None
    announced = announcement.generation
    if store.is_local and announced not in dataset.published_generations() and is_stale(announced, built):
        return None  # the newest is followed
    return (
        f"{file} announces {announced}: lookupdb.open and lookupdb sync follow that one, and not {built}, until "
        "lookupdb up or an operator announces another; where neither runs, remove that file, and they follow the newest"
    )
