"""``kubectl lookupdb logs``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.plugin.options import name_argument, run, with_target
from lookupdb_operator.plugin.session import ClusterSession, Target


class NoBuilder(LookupdbError):
    """There is no pod of a build."""


@click.command("logs")
@name_argument()
@with_target
@click.option("--tail", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="So many lines.")
def command(name: str, target: Target, tail: int) -> None:
    """Print the log of the last build of the dataset NAME: of the one under way, or of the last one that failed.

    The pod of a build that succeeded is gone: `kubectl lookupdb status NAME` says what came of it.
    """

    async def read(session: ClusterSession) -> str:
        dataset = await session.get_dataset(name)
        builders = await session.list_pods(dataset, **{names.COMPONENT: names.BUILDER})
        if not builders:
            raise NoBuilder(
                f"{dataset.key} has no pod of a build",
                hint=f"the last one has succeeded, or none has begun: kubectl lookupdb status {name} says which",
            )
        newest = max(builders, key=_began)["metadata"]["name"]
        return await session.read_log(dataset.namespace, newest, "build", tail)

    click.echo(run(target, read), nl=False)


def _began(pod: Mapping[str, Any]) -> tuple[int, str]:
    labels = pod["metadata"].get("labels") or {}
    return names.read_number(labels.get(names.GENERATION, "")), pod["metadata"].get("creationTimestamp") or ""
