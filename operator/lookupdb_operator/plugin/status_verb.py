"""``kubectl lookupdb status``."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

import click

from lookupdb.errors import UsageError
from lookupdb_operator.api.client import Unreachable
from lookupdb_operator.plugin.options import JSON, Seconds, name_argument, output_option, run, with_target
from lookupdb_operator.plugin.session import ClusterSession, Target
from lookupdb_operator.plugin.views import list_view, status_view
from lookupdb_operator.plugin.views.wording import clean

_CLEAR: Final = "\x1b[H\x1b[2J"
"""On a terminal; elsewhere click leaves it out."""
_pause = asyncio.sleep


@click.command("status")
@name_argument(required=False)
@with_target
@click.option("-A", "--all-namespaces", is_flag=True, help="The datasets of all namespaces.")
@output_option
@click.option("--watch", "-w", is_flag=True, help="Show it again every --interval seconds, until Ctrl-C.")
@click.option("--interval", type=Seconds(0.2), default="2s", show_default=True, metavar="TIME")
def command(
    name: str | None, target: Target, all_namespaces: bool, output: str | None, watch: bool, interval: float
) -> None:
    """Show the dataset NAME on one screen, or all in a table.

    The screen says what serves, the four conditions, what is waited for and for how long, the generations in the
    store, the rollouts with their servers, shards that lack some, the routers, and the last builds.

    \b
        kubectl lookupdb status
        kubectl lookupdb status airports --watch
    """
    if name and all_namespaces:
        raise UsageError("give either a name or -A: a name is one of a namespace")

    async def show(session: ClusterSession) -> None:
        while True:
            if not watch:
                click.echo(await _read(session, name, everywhere=all_namespaces, output=output))
                return
            try:
                text = await _read(session, name, everywhere=all_namespaces, output=output)
            except Unreachable as error:  # it comes back, or whoever watches has seen enough
                text = clean(str(error))
            click.echo(f"{_CLEAR}{text}")
            await _pause(interval)

    if output == JSON and watch:
        raise UsageError("-o json shows it once; kubectl get lds -o json --watch follows it")
    run(target, show)


async def _read(session: ClusterSession, name: str | None, *, everywhere: bool, output: str | None) -> str:
    now = datetime.now(UTC)
    if name is None:
        datasets = await session.list_datasets(everywhere=everywhere)
        if output == JSON:
            return status_view.to_json([list_view.summarize(dataset) for dataset in datasets])
        return list_view.render(datasets, now, everywhere=everywhere, namespace=session.namespace)
    view = await session.with_pods(await session.get_dataset(name))
    return status_view.to_json(status_view.summarize(view)) if output == JSON else status_view.render(view, now)
