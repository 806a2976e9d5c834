"""``kubectl lookupdb diff``."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import click
import orjson

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.api.client import AlreadyExists, ApiError, Refused
from lookupdb_operator.plugin.changes import NotPossible
from lookupdb_operator.plugin.dataset import Dataset, Members
from lookupdb_operator.plugin.difference_job import CONTAINER, render_difference_job
from lookupdb_operator.plugin.job_progress import JobProgress, judge_job
from lookupdb_operator.plugin.options import Seconds, name_argument, output_option, print_json, run, with_target
from lookupdb_operator.plugin.session import ClusterSession, Target
from lookupdb_operator.plugin.views.wording import clean
from lookupdb_operator.status import BuiltGeneration

_POLL_SECONDS: Final = 1.0
_CREATION_SECONDS: Final = 5.0
"""For which the answer to a Job's creation is waited for, before it is deleted."""
_LOG_LINES: Final = 5000
_SHOWN_CHARACTERS: Final = 200
_SAMPLES: Final = 5


class ComparisonFailed(LookupdbError):
    """The Job did not end well."""


@dataclass(frozen=True, slots=True)
class Patience:
    """For how many seconds a Job is waited for."""

    start: float
    """Until its pod runs."""
    end: float

    def judge(self, progress: JobProgress, seconds: float) -> str:
        """Why a Job that has come as far as ``progress`` in ``seconds`` is given up; empty while it is not."""
        if progress.phase == "Starting" and seconds >= self.start:
            return f"the Job had not started after {self.start:g} s (--start-timeout): {progress.why}"
        if seconds >= self.end:
            return f"it was not done after {self.end:g} s (--timeout): {progress.why}"
        return ""


@click.command("diff")
@name_argument()
@click.argument("before", required=False, metavar="[G1]")
@click.argument("after", required=False, metavar="[G2]")
@with_target
@output_option
@click.option("--exact", is_flag=True, help="Compare all keys, and not some 100,000 that their hashes have chosen.")
@click.option(
    "--start-timeout",
    type=Seconds(1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the Job's pod may take to start: a node may have to be added, and the image to be pulled.",
)
@click.option(
    "--timeout",
    type=Seconds(1),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long all of it may take.",
)
def command(
    name: str,
    before: str | None,
    after: str | None,
    target: Target,
    output: str | None,
    exact: bool,
    start_timeout: float,
    timeout: float,
) -> None:
    """Compare two generations of the dataset NAME, in the cluster.

    They are what serves and its candidate, what serves and G1, or G1 and G2. A Job reads both from the store; only
    counts and a few keys come back. It needs disk for a shard of each. What it waits for is told on standard error, and
    the Job is deleted when the command ends, also by Ctrl-C.

    \b
        kubectl lookupdb diff airports
        kubectl lookupdb diff airports g12 g13 --exact
    """
    patience = Patience(start_timeout, timeout)

    async def compare(session: ClusterSession) -> Mapping[str, Any]:
        dataset = await session.get_dataset(name)
        generations = choose_generations(dataset, before, after)
        shard_sets = await session.list_shard_sets(dataset)
        if not shard_sets:
            raise NotPossible(f"{dataset.key} has no shard server from which to know the store")
        job = render_difference_job(
            dataset,
            choose_shard_set(dataset, shard_sets),
            generations,
            sampled=not exact,
            samples=_SAMPLES,
            deadline_seconds=math.ceil(timeout),
        )
        return await _run(session, dataset, job, patience)

    document = run(target, compare)
    print_json(document) if output else click.echo(render_difference(document))


def choose_generations(
    dataset: Dataset, before: str | None, after: str | None
) -> tuple[BuiltGeneration, BuiltGeneration]:
    """What is compared: ``before`` and ``after``, or what serves and the candidate. What a gate has refused is whole in
    the store, too. Raises NotPossible."""
    status = dataset.parse_status()
    if after is None:
        after = status.candidate.generation if status.candidate is not None else None
        before, after = (status.generation, after) if before is None else (status.generation, before)
    if not before or not after:
        raise NotPossible(f"{dataset.key} has no candidate", hint="name two generations: diff NAME g12 g13")
    stored: dict[str, BuiltGeneration] = {generation.generation: generation for generation in status.generations}
    if status.refused is not None:
        stored[status.refused.generation] = status.refused
    if before == after or not {before, after} <= stored.keys():
        kept = ", ".join(sorted(stored, key=names.read_number)) or "nothing"
        raise NotPossible(f"{before} and {after} cannot be compared: the store has {kept}")
    return stored[before], stored[after]


def choose_shard_set(dataset: Dataset, shard_sets: Sequence[Members]) -> Members:
    """The one of ``shard_sets``, oldest first, from which the Job is made: the newest that serves, whose image and
    credentials have been of use. One that starts may never run. Without one that serves, the newest."""
    routed = dataset.routed_shards()
    serving = [body for body in shard_sets if _read_rollout(body) in routed]
    return (serving or shard_sets)[-1]


def _read_rollout(shard_set: Members) -> str | None:
    return (shard_set["metadata"].get("labels") or {}).get(names.ROLLOUT)


async def _run(
    session: ClusterSession, dataset: Dataset, job: Mapping[str, Any], patience: Patience
) -> Mapping[str, Any]:
    """The document that the Job writes. The Job is deleted afterwards, whatever comes of it."""
    namespace, name = dataset.namespace, str(job["metadata"]["name"])
    creation = asyncio.ensure_future(session.create_job(namespace, job))
    try:
        await asyncio.shield(creation)
        progress = await _wait_for_end(session, namespace, name, patience)
        log = ""
        if progress.pod:
            with suppress(ApiError):  # of a pod whose container never ran, there is none
                log = await session.read_log(namespace, progress.pod, CONTAINER, _LOG_LINES)
        return read_document(log, is_done=progress.phase == "Succeeded", why=progress.why)
    finally:
        await _delete(session, namespace, name, creation)


async def _wait_for_end(session: ClusterSession, namespace: str, name: str, patience: Patience) -> JobProgress:
    """How the Job has ended. What it waits for is told. Raises ComparisonFailed when patience is at its end."""
    began, told = time.monotonic(), ""
    while True:
        progress = await _look(session, namespace, name)
        if progress.phase in ("Succeeded", "Failed"):
            return progress
        if impatience := patience.judge(progress, time.monotonic() - began):
            raise ComparisonFailed(impatience)
        if progress.why != told:
            told = progress.why
            click.echo(clean(told), err=True)
        await asyncio.sleep(_POLL_SECONDS)


async def _look(session: ClusterSession, namespace: str, name: str) -> JobProgress:
    job, pods = await session.get_job(namespace, name), await session.list_pods_of_job(namespace, name)
    if job is None:
        return JobProgress("Failed", why=f"Job {name} is gone: somebody has deleted it")
    pod = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""), default=None)
    subject = ("Job", name) if pod is None else ("Pod", pod["metadata"]["name"])
    is_starting = pod is None or (pod.get("status") or {}).get("phase", "Pending") == "Pending"
    return judge_job(job, pod, await session.list_warnings(namespace, *subject) if is_starting else ())


async def _delete(session: ClusterSession, namespace: str, name: str, creation: asyncio.Future[None]) -> None:
    """Delete the Job. It may have been made though nobody has heard of it."""
    await asyncio.wait((creation,), timeout=_CREATION_SECONDS)
    creation.cancel()
    if creation.done() and not creation.cancelled() and isinstance(creation.exception(), Refused | AlreadyExists):
        return
    try:
        await session.delete_job(namespace, name)
    except ApiError as error:
        click.echo(clean(f"Job {name} is not deleted, and ends by itself: {error}"), err=True)


def read_document(log: str, *, is_done: bool, why: str = "") -> Mapping[str, Any]:
    """The JSON in the Job's log, behind what it has logged. Raises ComparisonFailed, which says ``why`` if that is
    known, and else the last line."""
    start = 0 if log.startswith("{\n") else log.find("\n{\n") + 1
    try:
        if is_done and log[start:].startswith("{\n"):
            document: Mapping[str, Any] = orjson.loads(log[start:])
            return document
    except ValueError:
        pass
    lines = [line for line in log.splitlines() if line.strip()]
    raise ComparisonFailed(f"the Job failed: {clean(why or (lines or ['it has logged nothing'])[-1])}")


def render_difference(document: Mapping[str, Any]) -> str:
    """For people. Raises ComparisonFailed when another version wrote ``document``."""
    try:
        return "\n".join(_list_differences(document))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ComparisonFailed(
            f"what the Job has written is not what this version reads: {type(error).__name__}: {error}",
            hint="print it with -o json, or use the kubectl-lookupdb of the version of the shard servers' image",
        ) from error


def _list_differences(document: Mapping[str, Any]) -> list[str]:
    sides = [document[side] for side in ("before", "after")]
    lines = [f"{side['generation']}, {side['records']:,} records" for side in sides]
    if not document["isWhole"]:
        lines.append("of the keys that were compared, a sample:")
    for kind in ("same", "added", "removed", "changed"):
        lines.append(f"{kind:<8} {document[kind]:,}")
        lines += [f"    {clean(sample['key'])[:_SHOWN_CHARACTERS]}" for sample in document["samples"].get(kind, ())]
    return lines
