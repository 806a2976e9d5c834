"""`lookupdb up`: build, serve and route a dataset on this machine."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from lookupdb.cli.options import GenerationAddress, Size, log_format, option
from lookupdb.process import launch
from lookupdb.process.launch import drop_unwritten
from lookupdb.tracing import open_tracing
from lookupdb.up.run_state import DATA_DIRECTORY
from lookupdb_operator.local.limits import MAX_SERVERS
from lookupdb_operator.local.up import BuildFailed, Up, UpOptions


@click.command("up")
@option(
    "--file",
    "-f",
    "manifests",
    type=click.Path(path_type=Path),
    required=True,
    multiple=True,
    help="A manifest, or a folder of them, listed once. May be repeated: several datasets share one router.",
)
@option(
    "--port", type=click.IntRange(0, 65535), default=8080, help="Port of the router on 127.0.0.1; 0 takes a free one."
)
@option(
    "--resp-port",
    type=click.IntRange(0, 65535),
    help="Port for the Redis protocol, on 127.0.0.1; 0 takes a free one.  [default: 6379, or the next free one]",
)
@option(
    "--watch/--no-watch",
    default=False,
    help="Rebuild and cut over while serving when the manifest or the source changes.",
)
@option("--watch-seconds", type=click.FloatRange(0.05, 86400), default=2.0, help="Interval of --watch.")
@option(
    "--data-dir",
    "--data",
    "data",
    type=click.Path(path_type=Path, file_okay=False),
    default=DATA_DIRECTORY,
    help="Folder of generations and logs.",
)
@option(
    "--memory-limit",
    type=Size(),
    default=None,
    help="Memory limit of a build, for example 512MiB; the default is that of `lookupdb build`.",
)
@option(
    "--volume",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder that volume:// URLs refer to.",
)
@option(
    "--max-servers",
    type=click.IntRange(min=1),
    default=MAX_SERVERS,
    help="Reject a dataset with more shard servers (shards × replicas). Each is two or more processes.",
)
@option(
    "--override-gates",
    type=GenerationAddress(),
    help="Override the gates that rejected this generation.",
)
@option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Write a file for `kubectl --kubeconfig FILE`, and answer it: get lds, apply, annotate.",
)
@log_format
def command(**values: Any) -> None:
    """Build datasets, serve their shards and route lookups to them, all on this machine.

    Reads the same YAML as `kubectl apply`. A whole generation whose source has not changed is reused. Dead processes
    are restarted. Ctrl-C stops everything. Listens on 127.0.0.1 only.

    It is the operator's loop with processes for pods: pins (spec.generation), suspend, promotion, rollouts and
    refresh.schedule work as in a cluster. Fields for clusters only are checked but have no effect here: adopt,
    deletionPolicy, sync, store (generations are in --data-dir), router.tls, router.auth, and settings of pods.

    With several datasets, requests name one, as /v1/datasets/NAME/lookup/KEY. If one fails, the others keep serving.
    There is no port for the Redis protocol, and spec.router of the first one applies.

    \b
        lookupdb up -f examples/airports.yaml
        curl http://127.0.0.1:8080/v1/lookup/KJFK
        redis-cli GET KJFK
    """
    up = Up(UpOptions(**values), _say)
    try:
        with open_tracing("lookupdb-up"):
            asyncio.run(_run_until_signal(up))
    except BuildFailed as error:  # the builder has printed why
        _say("nothing can be served, so `up` ends; correct what failed and start it again")
        sys.exit(error.exit_code)
    finally:
        drop_unwritten()
    if launch.are_unfinished():
        launch.end_at_once(0)


async def _run_until_signal(up: Up) -> None:
    """Run ``up`` until SIGINT or SIGTERM. A second signal kills a builder that is still running."""
    running = asyncio.current_task()
    assert running is not None
    loop = asyncio.get_running_loop()
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            running.cancel()
        else:
            up.kill_builder()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await up.run()
    except asyncio.CancelledError:
        if not stopping:
            raise
        _say("stopped")


def _say(line: str) -> None:
    """Print ``line``, or drop it if standard output is closed, so that serving continues."""
    with suppress(OSError):
        click.echo(line)
