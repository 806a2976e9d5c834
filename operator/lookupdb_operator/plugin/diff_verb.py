"""``kubectl lookupdb diff``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import click
import orjson

from lookupdb.errors import LookupdbError
from lookupdb_operator.plugin.changes import NotPossible
from lookupdb_operator.plugin.dataset import Dataset
from lookupdb_operator.plugin.difference_job import CONTAINER, render_difference_job
from lookupdb_operator.plugin.options import name_argument, output_option, print_json, run, with_target
from lookupdb_operator.plugin.session import ClusterSession, Target
from lookupdb_operator.plugin.views.wording import clean
from lookupdb_operator.status import GenerationStatus

_POLL_SECONDS: Final = 1.0
_LOG_LINES: Final = 5000
_SHOWN_CHARACTERS: Final = 200
_SAMPLES: Final = 5


class ComparisonFailed(LookupdbError):
    """The Job did not end well."""


@click.command("diff")
@name_argument()
@click.argument("before", required=False, metavar="[G1]")
@click.argument("after", required=False, metavar="[G2]")
@with_target
@output_option
@click.option("--exact", is_flag=True, help="Compare all keys, and not some 100,000 that their hashes have chosen.")
@click.option("--timeout", type=click.FloatRange(min=1), default=3600.0, show_default=True, metavar="SECONDS")
def command(
    name: str, before: str | None, after: str | None, target: Target, output: str | None, exact: bool, timeout: float
) -> None:
    """Compare two generations of the dataset NAME in the cluster: what serves and its candidate, or G1 and G2.

    A Job reads both from the store; only counts and a few keys come back. It needs disk for a shard of each.
    """

    async def compare(session: ClusterSession) -> Mapping[str, Any]:
        dataset = await session.get_dataset(name)
        generations = choose_generations(dataset, before, after)
        shard_sets = await session.list_shard_sets(dataset)
        if not shard_sets:
            raise NotPossible(f"{dataset.key} has no shard server from which to know the store")
        job = render_difference_job(dataset, shard_sets[-1], generations, sampled=not exact, samples=_SAMPLES)
        async with asyncio.timeout(timeout):
            return await _run(session, dataset, job)

    try:
        document = run(target, compare)
    except TimeoutError as error:
        raise ComparisonFailed(f"it was not done in {timeout:g} s") from error
    print_json(document) if output else click.echo(render_difference(document))


def choose_generations(
    dataset: Dataset, before: str | None, after: str | None
) -> tuple[GenerationStatus, GenerationStatus]:
    """What is compared: ``before`` and ``after``, or what serves and the candidate. Raises NotPossible."""
    status = dataset.parse_status()
    if after is None:
        after = status.candidate.generation if status.candidate is not None else None
        before, after = (status.generation, after) if before is None else (status.generation, before)
    if not before or not after:
        raise NotPossible(f"{dataset.key} has no candidate", hint="name two generations: diff NAME g12 g13")
    chosen = status.find_generation(before), status.find_generation(after)
    if chosen[0] is None or chosen[1] is None or before == after:
        kept = ", ".join(generation.generation for generation in status.generations) or "nothing"
        raise NotPossible(f"{before} and {after} cannot be compared: the store has {kept}")
    return chosen[0], chosen[1]


async def _run(session: ClusterSession, dataset: Dataset, job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document that the Job writes. The Job is deleted afterwards, whatever comes of it."""
    name = await session.create_job(dataset.namespace, job)
    try:
        while True:
            pods = await session.list_pods_of_job(dataset.namespace, name)
            phase = (pods[-1].get("status") or {}).get("phase") if pods else None
            if phase in ("Succeeded", "Failed"):
                log = await session.read_log(dataset.namespace, pods[-1]["metadata"]["name"], CONTAINER, _LOG_LINES)
                return read_document(log, is_done=phase == "Succeeded")
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        await session.delete_job(dataset.namespace, name)


def read_document(log: str, *, is_done: bool) -> Mapping[str, Any]:
    """The JSON in the Job's log, behind what it has logged. Raises ComparisonFailed."""
    start = 0 if log.startswith("{\n") else log.find("\n{\n") + 1
    try:
        if is_done and log[start:].startswith("{\n"):
            document: Mapping[str, Any] = orjson.loads(log[start:])
            return document
    except ValueError:
        pass
    lines = [line for line in log.splitlines() if line.strip()]
    raise ComparisonFailed(f"the Job failed: {clean(lines[-1]) if lines else 'it has logged nothing'}")


def render_difference(document: Mapping[str, Any]) -> str:
    """For people."""
    sides = [document[side] for side in ("before", "after")]
    lines = [f"{side['generation']}, {side['records']:,} records" for side in sides]
    if not document["isWhole"]:
        lines.append("of the keys that were compared, a sample:")
    for kind in ("same", "added", "removed", "changed"):
        lines.append(f"{kind:<8} {document[kind]:,}")
        lines += [f"    {clean(sample['key'])[:_SHOWN_CHARACTERS]}" for sample in document["samples"].get(kind, ())]
    return "\n".join(lines)
