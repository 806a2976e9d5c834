"""``kubectl lookupdb logs``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.plugin.dataset import Dataset
from lookupdb_operator.plugin.options import name_argument, output_option, print_json, run, with_target
from lookupdb_operator.plugin.session import ClusterSession, Target


class NoBuilder(LookupdbError):
    """There is no pod of a build."""


@dataclass(frozen=True, slots=True)
class BuildLog:
    """What the pod of a build has written."""

    dataset: Dataset
    pod: str
    generation: str
    text: str

    def summarize(self) -> dict[str, Any]:
        """The same for machines."""
        lines = self.text.removesuffix("\n").split("\n") if self.text else []
        where = {"namespace": self.dataset.namespace, "name": self.dataset.name}
        return {**where, "pod": self.pod, "generation": self.generation, "lines": lines}


@click.command("logs")
@name_argument()
@with_target
@output_option
@click.option("--tail", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="So many lines.")
def command(name: str, target: Target, output: str | None, tail: int) -> None:
    """Print the log of a build of the dataset NAME.

    It is the build under way, or the last one that failed. The pod of a build that succeeded is gone: `kubectl lookupdb
    status NAME` says what came of it. With -o json it is one document: the pod, its generation, and the lines as they
    were written.

    \b
        kubectl lookupdb logs airports --tail 50
    """

    async def read(session: ClusterSession) -> BuildLog:
        dataset = await session.get_dataset(name)
        builders = await session.list_pods(dataset, **{names.COMPONENT: names.BUILDER})
        if not builders:
            raise NoBuilder(
                f"{dataset.key} has no pod of a build",
                hint="the last one has succeeded, or none has begun:"
                f" kubectl lookupdb status -n {dataset.namespace} {name} says which",
            )
        newest = max(builders, key=_began)
        pod, labels = newest["metadata"]["name"], newest["metadata"].get("labels") or {}
        text = await session.read_log(dataset.namespace, pod, "build", tail)
        return BuildLog(dataset, pod, labels.get(names.GENERATION, ""), text)

    log = run(target, read)
    if output is None:
        click.echo(log.text, nl=False)
    else:
        print_json(log.summarize())


def _began(pod: Mapping[str, Any]) -> tuple[int, str]:
    labels = pod["metadata"].get("labels") or {}
    return names.read_number(labels.get(names.GENERATION, "")), pod["metadata"].get("creationTimestamp") or ""
