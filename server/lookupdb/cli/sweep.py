"""`lookupdb sweep`: remove data of deleted datasets from a store."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
import orjson

from lookupdb import store
from lookupdb.cli.addressing import store_option
from lookupdb.cli.options import log_format, option
from lookupdb.cli.output import say_of_failure
from lookupdb.cli.program import ended_in_time
from lookupdb.dataset.schema import to_camel_case
from lookupdb.errors import StoreError
from lookupdb.store.sweep import Sweep, read_cluster, read_live_list
from lookupdb.wording import format_count

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _describe_outcome(outcome: dict[str, Any]) -> str:
    counts = {
        "marked": outcome["marked"],
        "unmarked": outcome["unmarked"],
        "generations removed": outcome["removedGenerations"],
        "remains removed": outcome["removedRemains"],
        "datasets removed": outcome["removedDatasets"],
        "retained": outcome["retainedDatasets"],
        "problems": len(outcome["problems"]),
    }
    listed = ", ".join(f"{what}: {count:,}" for what, count in counts.items() if count)
    return f"{format_count(outcome['datasets'], 'dataset')} looked at; {listed or 'nothing to do'}"


class Duration(click.ParamType[float]):
    """A duration in seconds, written as 24h, 30m, 7d or 90s."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds, or fail with a usage error."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value).strip())
        if not match:
            self.fail(f"{value!r} is not a duration; write it as 24h, 30m, 7d or 90s", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


@click.command()
@store_option
@option(
    "--cluster-id",
    default=None,
    help="Cluster whose part of the store is swept; no other is touched.  [default: the cluster whose list it is]",
)
@option(
    "--living",
    "living_list",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON file with the live datasets of the cluster, written by its operator.",
)
@option(
    "--grace",
    type=Duration(),
    default="24h",
    help="Minimum time since a dataset was deleted, or since an unfinished generation changed.",
)
@option(
    "--max-age",
    type=Duration(),
    default="1h",
    help="Maximum age of the list, which the operator writes every ten minutes.",
)
@option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Write every line as JSON.")
@log_format
def command(
    store_url: str,
    cluster_id: str | None,
    living_list: Path,
    grace: float,
    max_age: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove data of deleted datasets of a cluster from a store.

    \b
        lookupdb sweep --store s3://lookups/eu --cluster-id c1 --living living.json --dry-run

    For live datasets, the newest generations stay (as many as the dataset keeps), and so do those that the list
    protects and all newer ones: they may have become active since the list was read. If it protects none, all stay.

    The first sweep that misses a dataset in the list marks it. A later sweep removes it once the mark is older than the
    grace period. A generation whose builder is alive stays, and so does every unknown file.

    The list has the members formatVersion (1), cluster, writtenAt (ISO 8601), and datasets: [{namespace, name, uid,
    keep, protect, retain, adopt}]. With namespaces: [...], only those namespaces are swept. Generations of deleted
    datasets stay if the dataset had retain: true, or if it is in retained: [{namespace, name, uid}]. Generations of
    the dataset that `adopt` names are kept while it is named. A list of another cluster or format, or one older than
    --max-age, is rejected. Standard output gets a line for each removal, and then the totals; with --json as
    {"message": …} and one object.
    """
    with ended_in_time():
        cluster_id = cluster_id or read_cluster(living_list)
        place = store.open_store(store_url, cluster_id)
        now = time.time()
        live = read_live_list(living_list, cluster_id, now, max_age)
        sweep = Sweep(live.datasets, retained=live.retained, grace=grace, now=now, dry=dry_run)
        for sentence in sweep.run(sweep.find(place, live.namespaces)):
            message = f"would have: {sentence}" if dry_run else sentence
            click.echo(orjson.dumps({"message": message}) if as_json else message)
    summary = sweep.summary
    members = {to_camel_case(name): value for name, value in asdict(summary).items()}
    say = say_of_failure if summary.problems else click.echo
    outcome = {"outcome": "failed" if summary.problems else "swept", "dryRun": dry_run, **members}
    say(orjson.dumps(outcome) if as_json else _describe_outcome(outcome))
    if summary.problems:
        more = f" (and {len(summary.problems) - 1} more)" if len(summary.problems) > 1 else ""
        raise StoreError(f"not everything could be swept: {summary.problems[0]}{more}", hint="it can be run again")
