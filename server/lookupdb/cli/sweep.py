"""`lookupdb sweep`: removes from a store what belongs to no living dataset."""

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
from lookupdb.store import sweep as live_datasets
from lookupdb.store.sweep import Sweep

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[float]):
    """Seconds, as people write them: 24h, 30m, 7d, 90s."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Fails with a usage error for anything else."""
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
    help="Whose part of the store is swept; no other is touched.  [default: the cluster whose list it is]",
)
@option(
    "--living",
    "living_list",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The JSON file that names the cluster's datasets, as its operator writes it.",
)
@option(
    "--grace",
    type=Duration(),
    default="24h",
    help="How long a dataset must not have been living, and an unfinished generation not have changed.",
)
@option(
    "--max-age",
    type=Duration(),
    default="1h",
    help="How old the list may be: its operator writes it anew every ten minutes.",
)
@option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
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
    """Remove from a store what belongs to no living dataset of a cluster.

    \b
        lookupdb sweep --store s3://lookups/eu --cluster-id c1 --living living.json --dry-run

    Of a living dataset the newest generations stay, as many as it keeps, those that the list protects, and all that
    are newer than these: they may have come to serve since the list was read. Where it protects none, all stay.

    A dataset that the list does not name is marked by the first sweep that finds it so; a later one removes it, once
    the mark has stood for the grace period. A generation whose builder is alive stays, and so does whatever is not
    known.

    The list has the members formatVersion (1), cluster, writtenAt (ISO 8601), and datasets: [{namespace, name, uid,
    keep, protect, retain, adopt}]; with namespaces: [...], only what is in those is swept. What a dataset with retain:
    true leaves when it is deleted stays, and so does what those in retained: [{namespace, name, uid}] have left. What
    the dataset of the same name and the uid adopt has left stays for as long as that is named. A list of another
    cluster or format, or older than --max-age, is refused. Standard output gets a line for each thing removed, with
    --json as {"message": …}, and then the sums as one line of JSON.
    """
    with ended_in_time():
        cluster_id = cluster_id or live_datasets.read_cluster(living_list)
        place = store.open_store(store_url, cluster_id)
        now = time.time()
        live_datasets.check_age(living_list, now, max_age)
        live = live_datasets.read_live_datasets(living_list, cluster_id)
        retained = live_datasets.read_retained(living_list, cluster_id)
        sweep = Sweep(live, retained=retained, grace=grace, now=now, dry=dry_run)
        spanned = live_datasets.read_namespaces(living_list)
        for sentence in sweep.run(sweep.find(place, spanned)):
            message = f"would have: {sentence}" if dry_run else sentence
            click.echo(orjson.dumps({"message": message}) if as_json else message)
    summary = sweep.summary
    members = {to_camel_case(name): value for name, value in asdict(summary).items()}
    say = say_of_failure if summary.problems else click.echo
    say(orjson.dumps({"outcome": "failed" if summary.problems else "swept", "dryRun": dry_run, **members}))
    if summary.problems:
        more = f" (and {len(summary.problems) - 1} more)" if len(summary.problems) > 1 else ""
        raise StoreError(f"not everything could be swept: {summary.problems[0]}{more}", hint="it can be run again")
