"""The Job that compares two generations of a dataset where the store is: nothing of them is downloaded to a person's
machine. Pure but for a random name.

It is made from the StatefulSet of a shard, whose init container has the image, the store's address (that of spec.store,
if there is one), and a token for the gateway before it, or else the store's credentials by reference. So a person needs
the right to make Jobs in the namespace, and none to read Secrets. Servers that map their shards from a volume have no
such container: then the Job reads the store's folders there, too. The operator does not know the Job.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.plugin.dataset import Dataset, Members
from lookupdb_operator.plugin.job_template import (
    CONTAINER_MEMBERS,
    SCRATCH,
    SPARE_BYTES,
    STORAGE,
    find_fetcher,
    find_store_access,
    read_store_words,
    render_job,
)
from lookupdb_operator.status import BuiltGeneration

LABELS: Final = {names.APP: "lookupdb", names.COMPONENT: names.DIFF}
"""Not those by which the operator knows what is its own. The chart's NetworkPolicy of the store goes by them."""
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
    """The Job that compares ``generations``, from a StatefulSet of ``dataset``, for ``deadline_seconds`` at most. Its
    log is the document that ``lookupdb diff --json`` writes. Its name is its own before it is made: it can be deleted
    though nobody has heard that it was. Raises NotPossible if the dataset's servers reach no store."""
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
    """The fetcher's, but for what stands on the node's disk: a fetcher has one file, and perhaps not even there."""
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
    """Room for the files that are compared at a time: one of each generation, unless all keys are compared and their
    numbers of shards differ."""
    before, after = generations
    if sampled or before.shards == after.shards:
        size = before.largest_shard_bytes + after.largest_shard_bytes
    else:
        size = before.bytes + after.bytes
    return size + SPARE_BYTES
