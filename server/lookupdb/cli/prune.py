"""`lookupdb prune`: remove the generations of a dataset that nothing needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click
import orjson

from lookupdb.cli.addressing import NamedDataset, complete_datasets, with_dataset
from lookupdb.cli.options import GenerationAddress, option
from lookupdb.dataset.schema import complete_resource
from lookupdb.errors import UsageError
from lookupdb.manifest import find_generations
from lookupdb.store import sweep
from lookupdb.wording import format_some

_SHOWN: Final = 20


@click.command("prune")
@click.argument("dataset", metavar="DATASET", shell_complete=complete_datasets)
@with_dataset
@option(
    "--keep",
    type=click.IntRange(min=1),
    help="Number of generations to keep; without it, spec.keepGenerations of a dataset of `lookupdb up`.",
)
@option("--protect", type=GenerationAddress(), multiple=True, help="Keep this one, too. May be repeated.")
@option("--dry-run", is_flag=True, help="Remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(
    dataset: str,
    locate: Callable[[str | None], NamedDataset],
    keep: int | None,
    protect: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove the generations of DATASET that nothing needs.

    It keeps the newest (--keep), the announced one, and each one that serves, waits for promotion, is pinned, or can be
    rolled back to. It also removes older damaged and rejected generations. `lookupdb up` and builds in a cluster do the
    same after each build.

    \b
        lookupdb prune airports --dry-run
        lookupdb prune team/people --store s3://lookups/eu --cluster-id c1 --keep 3
    """
    named = locate(dataset)
    if keep is None:
        if not named.resource:
            raise UsageError(f"it is not known how many generations of {dataset} to keep", hint="give --keep")
        about = {member: named.resource["metadata"][member] for member in ("namespace", "name")}
        keep = complete_resource({**named.resource, "metadata": about})["spec"]["keepGenerations"]
    protected, stored = {*protect, *find_generations(named.status)}, named.locator.find_dataset()
    if dry_run:
        removed = sweep.find_prunable(stored.take_inventory(), keep, protected, sweep.find_announced(stored))
    else:
        removed = sweep.prune(stored, keep, protected)
    document = {"dataset": dataset, "dryRun": dry_run, "removed": removed}
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2) if as_json else render_removal(document))


def render_removal(document: Any) -> str:
    """Return the sentence about ``document``, of this program or of the Job of `kubectl lookupdb prune`."""
    verb = "would be removed" if document["dryRun"] else "removed"
    return f"{document['dataset']}: {verb}: {format_some(document['removed'], _SHOWN) or 'nothing'}"
