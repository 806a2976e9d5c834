"""`lookupdb fetch`: fetch one shard of a generation from a store into a folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from lookupdb import store
from lookupdb.cli.addressing import cluster_option, store_option, store_wait_option
from lookupdb.cli.options import GenerationAddress, Size, log_format, option
from lookupdb.cli.output import json_option, report_outcome, termination_log_option
from lookupdb.dataset.spec import LOCAL
from lookupdb.errors import UsageError
from lookupdb.store import StoreAddress
from lookupdb.store.fetch import PATIENCE_SECONDS, fetch_shard
from lookupdb.wording import check_path

patience_option = option(
    "--patience",
    type=click.FloatRange(min=0),
    default=PATIENCE_SECONDS,
    help="Seconds without a byte from a failing store before giving up.",
)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@store_option
@store_wait_option
@cluster_option
@option(
    "--namespace",
    default=None,
    show_default=False,
    help="Namespace of the dataset.  [default: that in --dataset, else default]",
)
@option("--dataset", metavar="[NAMESPACE/]NAME", required=True, help="Dataset of the generation.")
@option("--uid", default=LOCAL, help="Uid of the dataset; the first eight characters suffice.")
@option("--generation", type=GenerationAddress(), required=True, help="Generation of the shard.")
@option("--shard", type=click.IntRange(min=0), required=True, help="Number of the shard.")
@option("--rate", type=Size(), default="256MiB", help="Maximum bytes per second, to leave disk bandwidth to others.")
@patience_option
@termination_log_option
@json_option
@log_format
def command(
    folder: Path,
    store_url: str,
    store_wait: float,
    cluster_id: str,
    namespace: str | None,
    dataset: str,
    uid: str,
    generation: str,
    shard: int,
    rate: int,
    patience: float,
    termination_log: Path | None,
    as_json: bool,
) -> None:
    """Fetch one shard of a generation into FOLDER, from which `lookupdb serve FOLDER --shard N` serves it.

    \b
        lookupdb fetch --dataset airports --generation g1 --shard 0 /data
        lookupdb fetch --store s3://lookups/eu --cluster-id c1 --dataset team/people --uid 3f2b9c1e --generation g12 \\
            --shard 3 /data

    The file is verified (size, SHA-256) before it gets its name, and manifest.json is written last. A whole file is not
    fetched again, and leftovers of an interrupted fetch are removed. Written data do not stay in the page cache, which
    belongs to the serving processes. --json prints the result as one line, also that of a failure.
    """
    with report_outcome(termination_log, as_json, dataset=dataset, generation=generation, shard=shard) as result:
        check_path(folder)
        namespace, name = _find_names(namespace, dataset)
        result.update(dataset=f"{namespace}/{name}")
        place = store.open_store(store_url, cluster_id)
        place.wait(store_wait)
        address = StoreAddress(cluster_id, namespace, name, uid)
        fetched = fetch_shard(place.dataset_at(address), folder, generation, shard, rate=rate, patience=patience)
        verb = "fetched" if fetched.outcome == "fetched" else "found whole, and not fetched again"
        result.update(asdict(fetched), reason=fetched.outcome.capitalize(), message=f"{fetched.file}: {verb}")


def _find_names(namespace: str | None, dataset: str) -> tuple[str, str]:
    """Return the namespace and the name of ``dataset``. Raises UsageError if it has another namespace than is given."""
    own, slash, name = dataset.rpartition("/")
    if slash and not own:
        raise UsageError(f"--dataset {dataset} names no namespace", hint=f"give {name} for that of --namespace")
    if not slash:
        return "default" if namespace is None else namespace, name
    if namespace not in (None, own):
        raise UsageError(
            f"--dataset {dataset} is in the namespace {own}, and --namespace says {namespace}", hint="leave one out"
        )
    return own, name
