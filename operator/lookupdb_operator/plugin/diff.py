"""``kubectl lookupdb diff``: render the Job, run it, and print the difference in its log."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from typing import Any, Final

import click
import orjson

from lookupdb.wording import format_count
from lookupdb_operator import names
from lookupdb_operator.plugin.changes import Dataset, Members, NotPossible
from lookupdb_operator.plugin.job_run import JobFailed, Patience, run_job, start_timeout_option
from lookupdb_operator.plugin.jobs import (
    CONTAINER_MEMBERS,
    SCRATCH,
    SPARE_BYTES,
    STORAGE,
    choose_shard_set,
    find_fetcher,
    find_store_access,
    read_store_words,
    render_job,
)
from lookupdb_operator.plugin.options import Seconds, name_argument, output_option, print_json, run, with_target
from lookupdb_operator.plugin.session import ClusterSession, Target
from lookupdb_operator.plugin.views import clean
from lookupdb_operator.status import BuiltGeneration

# Render the Job that compares two generations near their store, so that nothing is downloaded to the user's machine.
#
# The Job copies a shard's StatefulSet: its init container has the image, the store's address, and a token for the
# gateway or a reference to the store's credentials. So the user needs the right to create Jobs, but not to read
# Secrets. Servers that map shards from a volume have no such container: then the Job reads that volume, too. The
# operator does not manage the Job.


LABELS: Final = {names.APP: "lookupdb", names.COMPONENT: names.DIFF}
"""Labels that the operator does not take for its own. The chart's NetworkPolicy for the store admits them."""
CONTAINER: Final = names.DIFF
_SUFFIX_BYTES: Final = 4
_CONTAINER_MEMBERS: Final = (*CONTAINER_MEMBERS, "envFrom")


def render_difference_job(
    dataset: Dataset,
    shard_set: Members,
    generations: tuple[BuiltGeneration, BuiltGeneration],
    *,
    sampled: bool,
    samples: int,
    deadline_seconds: int,
) -> dict[str, Any]:
    """Return the Job that compares ``generations``, made from a StatefulSet of ``dataset``, with a limit of
    ``deadline_seconds``. Its log is the output of ``lookupdb diff --json``. Its name is chosen here, so that it can be
    deleted even if the answer to its creation is lost. Raises NotPossible if the dataset's servers reach no store."""
    return render_job(
        dataset,
        shard_set,
        names.difference_job(dataset.name, secrets.token_hex(_SUFFIX_BYTES)),
        LABELS,
        _render_container(dataset, shard_set, generations, sampled=sampled, samples=samples),
        [
            _render_scratch(generations, sampled=sampled),
            *find_store_access(shard_set["spec"]["template"]["spec"].get("volumes", ())),
        ],
        deadline_seconds=deadline_seconds,
    )


def _render_container(
    dataset: Dataset,
    shard_set: Members,
    generations: tuple[BuiltGeneration, BuiltGeneration],
    *,
    sampled: bool,
    samples: int,
) -> dict[str, Any]:
    fetcher = find_fetcher(shard_set)
    how = ["--json", "--samples", str(samples), *(["--sampled"] if sampled else [])]
    return {
        **{member: fetcher[member] for member in _CONTAINER_MEMBERS if member in fetcher},
        "name": CONTAINER,
        "resources": _render_resources(fetcher, _count_scratch_bytes(generations, sampled=sampled) + SPARE_BYTES),
        "args": [
            "diff",
            *(generation.generation for generation in generations),
            *read_store_words(fetcher, dataset),
            *how,
        ],
        "env": [*fetcher.get("env", ()), {"name": "TMPDIR", "value": SCRATCH}],
        "volumeMounts": [
            {"name": "scratch", "mountPath": SCRATCH},
            {"name": "scratch", "mountPath": "/tmp"},  # noqa: S108 - of the pod's own
            *find_store_access(fetcher.get("volumeMounts", ())),
        ],
    }


def _render_resources(fetcher: Members, storage_bytes: int) -> dict[str, Any]:
    """Return the fetcher's resources, with room for ``storage_bytes`` on the node's disk."""
    resources, storage = fetcher.get("resources", {}), {STORAGE: str(storage_bytes)}
    limits = resources.get("limits", {})
    return {
        **resources,
        "requests": {**resources.get("requests", {}), **storage},
        "limits": {**limits, **(storage if STORAGE in limits else {})},
    }


def _render_scratch(generations: tuple[BuiltGeneration, BuiltGeneration], *, sampled: bool) -> dict[str, Any]:
    return {"name": "scratch", "emptyDir": {"sizeLimit": str(_count_scratch_bytes(generations, sampled=sampled))}}


def _count_scratch_bytes(generations: tuple[BuiltGeneration, BuiltGeneration], *, sampled: bool) -> int:
    """Return the room for files that are compared at once: one of each generation, unless all keys are
    compared and shard counts differ."""
    before, after = generations
    if sampled or before.shards == after.shards:
        size = before.largest_shard_bytes + after.largest_shard_bytes
    else:
        size = before.bytes + after.bytes
    return size + SPARE_BYTES


_SHOWN_CHARACTERS: Final = 200
_SAMPLES: Final = 5


class ComparisonFailed(JobFailed):
    """The Job failed."""


@click.command("diff")
@name_argument()
@click.argument("before", required=False, metavar="[G1]")
@click.argument("after", required=False, metavar="[G2]")
@with_target
@output_option
@click.option("--exact", is_flag=True, help="Compare all keys, instead of about 100,000 chosen by their hashes.")
@start_timeout_option
@click.option(
    "--timeout",
    type=Seconds(1),
    default="1h",
    show_default=True,
    metavar="TIME",
    help="Time limit, as 20s, 5m, 1h or a number of seconds.",
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

    They are the active one and its candidate, the active one and G1, or G1 and G2. A Job reads both from the store, and
    returns only counts and a few keys. It needs disk space for a shard of each. Progress goes to standard error. The
    Job is deleted when the command ends, also by Ctrl-C.

    \b
        kubectl lookupdb diff airports
        kubectl lookupdb diff airports g12 g13 --exact
    """
    patience = Patience(start_timeout, timeout)

    async def compare(session: ClusterSession) -> Mapping[str, Any]:
        dataset = await session.get_dataset(name)
        generations = choose_generations(dataset, before, after)
        shard_set = choose_shard_set(dataset, await session.list_shard_sets(dataset))
        job = render_difference_job(
            dataset,
            shard_set,
            generations,
            sampled=not exact,
            samples=_SAMPLES,
            deadline_seconds=math.ceil(timeout),
        )
        ended = await run_job(session, dataset.namespace, job, names.DIFF, patience)
        return read_document(ended.log, is_done=ended.progress.phase == "Succeeded", why=ended.progress.why)

    document = run(target, compare)
    print_json(document) if output else click.echo(render_difference(document))


def choose_generations(
    dataset: Dataset, before: str | None, after: str | None
) -> tuple[BuiltGeneration, BuiltGeneration]:
    """Return the generations to compare: ``before`` and ``after``, or the active one and the candidate. Generations
    that failed a gate are in the store, too. Raises NotPossible."""
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


def read_document(log: str, *, is_done: bool, why: str = "") -> Mapping[str, Any]:
    """Return the JSON at the end of the Job's log. Raises ComparisonFailed with ``why`` if that is known, else with the
    last line."""
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
    """Return the difference as text. Raises ComparisonFailed when another version wrote ``document``."""
    try:
        return "\n".join(_list_differences(document))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ComparisonFailed(
            f"what the Job has written is not what this version reads: {type(error).__name__}: {error}",
            hint="print it with -o json, or use the kubectl-lookupdb of the version of the shard servers' image",
        ) from error


def _list_differences(document: Mapping[str, Any]) -> list[str]:
    sides = [document[side] for side in ("before", "after")]
    lines = [f"{side['generation']}, {format_count(side['records'], 'record')}" for side in sides]
    if not document["isWhole"]:
        lines.append("of the keys that were compared, a sample:")
    for kind in ("same", "added", "removed", "changed"):
        lines.append(f"{kind:<8} {document[kind]:,}")
        lines += [f"    {clean(sample['key'])[:_SHOWN_CHARACTERS]}" for sample in document["samples"].get(kind, ())]
    return lines
