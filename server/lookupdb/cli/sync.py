"""`lookupdb sync`: keep the active generation of chosen datasets in a folder."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Final

import click

from lookupdb.cli.addressing import STORE_WAIT_SECONDS, cluster_option, store_option
from lookupdb.cli.options import Size, log_format, option
from lookupdb.errors import LookupdbError, UsageError
from lookupdb.process import launch
from lookupdb.sync.feeds import Subscription
from lookupdb.sync.service import SyncOptions, SyncService
from lookupdb.wording import escape_controls

_LAST_CALLS_SECONDS: Final = 0.3
_UMASK: Final = 0o022  # other users can read a folder from the moment it exists, even if this process is killed then


@click.command(short_help="Keep the active generation of datasets in a folder, for programs that map it.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@option(
    "--dataset",
    "names",
    metavar="[NAMESPACE/]NAME[@UID]",
    multiple=True,
    show_default=False,
    help="Dataset to keep. May be repeated. Without a uid: the live dataset of that name.",
)
@option(
    "--table",
    "tables",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    show_default=False,
    help="Routing table whose dataset is kept, at the generation that it names as active. May be repeated.",
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
@option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help='Write this when all datasets are there: {"pid": …, "admin": …}.',
)
@log_format
def command(
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
    are linked, not copied. With --once, exit codes are those of every command, and a dataset that has any generation
    is no failure.
    """
    if not names and not tables:
        raise UsageError(
            "nothing is to be kept", hint="name a dataset with --dataset, or its routing table with --table"
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
    code = 0
    try:
        asyncio.run(_run(options, once=once))
    except SystemExit as end:
        code = int(end.code or 0)
    except LookupdbError as error:
        if not _has_calls_left():
            raise
        click.echo(escape_controls(f"error: {error}"), err=True)
        code = error.exit_code
    if _has_calls_left():
        launch.end_at_once(code)
    if code:
        raise SystemExit(code)


def _has_calls_left() -> bool:
    """Return whether a check or a fetch still waits for a store. One with its answer needs a moment to end."""
    deadline = time.monotonic() + _LAST_CALLS_SECONDS
    while launch.are_unfinished() and time.monotonic() < deadline:
        time.sleep(0.01)
    return launch.are_unfinished()


async def _run(options: SyncOptions, *, once: bool) -> None:
    service = SyncService(options)
    await (service.run_once() if once else service.run())
