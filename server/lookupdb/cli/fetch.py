"""`lookupdb fetch` and `lookupdb sync`: bring one shard, or the active generation of datasets, to a local folder."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from lookupdb import store
from lookupdb.cli.addressing import STORE_WAIT_SECONDS, cluster_option, patience_option, store_option, store_wait_option
from lookupdb.cli.options import (
    FILE,
    FOLDER,
    GenerationAddress,
    Size,
    json_option,
    log_format,
    option,
    termination_log_option,
)
from lookupdb.cli.program import report_outcome
from lookupdb.dataset.spec import LOCAL
from lookupdb.errors import UsageError
from lookupdb.store import StoreAddress
from lookupdb.store.generations import fetch_shard
from lookupdb.wording import check_path


@click.command()
@click.argument("folder", type=FOLDER)
@store_option
@store_wait_option
@cluster_option
@option("--namespace", help="Namespace of the dataset.  [default: that in --dataset, else default]")
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
    belongs to the serving processes. --json prints the result, or the failure, as one line.
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
    """Return the namespace and the name of ``dataset``. Raises UsageError if ``namespace`` is another one."""
    own, slash, name = dataset.rpartition("/")
    if slash and not own:
        raise UsageError(f"--dataset {dataset} names no namespace", hint=f"give {name} alone to use --namespace")
    if not slash:
        return "default" if namespace is None else namespace, name
    if namespace not in (None, own):
        raise UsageError(
            f"--dataset {dataset} is in the namespace {own}, and --namespace says {namespace}", hint="leave one out"
        )
    return own, name


_UMASK: Final = 0o022  # other users can read a folder from the moment it exists, even if this process is killed then


@click.command(short_help="Keep the active generation of datasets in a folder, for programs that map it.")
@click.argument("folder", metavar="DIR", type=FOLDER)
@option(
    "--dataset",
    "names",
    metavar="[NAMESPACE/]NAME[@UID]",
    multiple=True,
    help="Dataset to keep. May be repeated. Without a uid: the live dataset of that name.",
)
@option(
    "--table",
    "tables",
    metavar="FILE",
    type=FILE,
    multiple=True,
    help="Routing table. The generation that it names as active is kept for its dataset. May be repeated.",
)
@store_option
@cluster_option
@option(
    "--keep",
    type=click.IntRange(1, 100),
    default=2,
    help="Number of newest generations to keep, besides the current one and those that programs have mapped.",
)
@option(
    "--rate", type=Size(), default="256MiB", help="Bytes per second of all fetches, to leave disk bandwidth to others."
)
@option("--once", is_flag=True, help="Exit when all datasets are there, for an init container.")
@option(
    "--store-wait",
    type=click.FloatRange(min=0),
    default=STORE_WAIT_SECONDS,
    help="With --once: seconds to wait for a store that does not answer or has no generation yet.",
)
@option("--host", default="127.0.0.1", help="Address of the admin port; * or :: is all, IPv4 and IPv6.")
@option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    default=9090,
    help="Port for health, status and metrics; 0 takes a free one.",
)
@option("--ready-file", type=FILE, help='Write this when all datasets are there: {"pid": …, "admin": …}.')
@log_format
def sync(
    folder: Path,
    names: tuple[str, ...],
    tables: tuple[Path, ...],
    store_url: str,
    cluster_id: str,
    keep: int,
    rate: int,
    once: bool,
    store_wait: float,
    host: str,
    admin_port: int,
    ready_file: Path | None,
) -> None:
    """Keep the active generation of datasets in DIR, for programs that map it (lookupdb.open).

    \b
        lookupdb sync /var/lib/lookupdb --dataset airports
        lookupdb sync /data --store s3://lookups/eu --cluster-id c1 --dataset team/people --dataset team/offers
        lookupdb sync /data --store http://gateway:7071 --cluster-id c1 --table /etc/lookupdb/people/routing-table.json

    DIR/NAMESPACE/NAME holds a folder for each generation, such as g12, and the link `current` to the active one. The
    link changes by one rename, after every file of the new generation is verified (size, SHA-256) and on disk.
    Generations that another program has mapped stay until it releases them.

    With a table, the active generation is the one it names (or a newer announced one, if the dataset is named too).
    Else it is the one announced in the store (active.json, written at each cutover); else the newest whole one that no
    gate rejected. Rollbacks are followed. If a generation is damaged or the store is away, the folder stays as it is,
    and sync retries.

    The admin port answers /healthz, /readyz (every dataset is there), /status (problems too) and /metrics. SIGTERM ends
    it at once; an unfinished fetch is resumed at the next start. From a store in a directory on the same disk, files
    are linked, not copied. With --once, exit codes are as usual; a dataset with any generation is no failure.
    """
    # here, because `fetch` needs none of these
    import asyncio

    from lookupdb.sync.feeds import Subscription
    from lookupdb.sync.service import SyncOptions, SyncService

    if not names and not tables:
        raise UsageError(
            "there is nothing to keep", hint="name a dataset with --dataset, or its routing table with --table"
        )
    subscriptions = tuple(dict.fromkeys(map(Subscription.parse, names)))
    if len({str(subscription) for subscription in subscriptions}) < len(subscriptions):
        raise UsageError("a dataset is named with two uids", hint="a folder holds one dataset of a name")
    options = SyncOptions(
        root=folder.absolute(),
        subscriptions=subscriptions,
        tables=tuple(dict.fromkeys(tables)),
        store_url=store_url,
        cluster=cluster_id,
        keep=keep,
        rate=rate,
        host=host,
        admin_port=admin_port,
        ready_file=ready_file,
        wait_seconds=store_wait,
    )
    os.umask(_UMASK)
    service = SyncService(options)
    asyncio.run(service.run_once() if once else service.run())
