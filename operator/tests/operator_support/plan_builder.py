"""The Jobs of the model cluster and their builder: the generations it publishes, the gates it checks, and its
messages."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from lookupdb_operator import names
from lookupdb_operator.model import BuildResult, Manifest, Trouble, format_moment
from lookupdb_operator.plan import reasons
from operator_support.plan_objects import NAME, UID, Process, Thing, label

if TYPE_CHECKING:
    from operator_support.plan_world import World

_NO_SECRET: Final = Trouble(reasons.SECRET_MISSING, "the store's Secret does not exist")
_STORE_SECRET: Final = {"secretRef": {"name": names.store_secret(NAME, UID)}}
_LOST: Final = Trouble(reasons.GENERATION_MISSING, "the store has no such generation")
_NO_FILE: Final = Trouble(reasons.VOLUME_MISSING, "a volume cannot be mounted: its ConfigMap does not exist")


def run_job(world: World, job: Thing) -> None:
    """Start the builder of ``job``, or end it when its time has come."""
    if job.manifest.get("state", "Running") != "Running":
        return
    pods = [pod for pod in world.pods.values() if pod.owner == job.uid]
    if not pods:
        world.add(f"{job.manifest['metadata']['name']}-{world.made}", job, names.BUILDER, job.manifest)
        return
    pod = pods[0]
    if lacks_secret(world, pod) or pod.dies_at is not None or world.age(pod) < world.takes.build:
        return
    generation = label(job, names.GENERATION)
    config_map = world.things.get(("ConfigMap", job.manifest["metadata"]["name"]))
    if config_map is None:
        return
    built = orjson.loads(config_map.manifest["data"][names.DATASET_FILE])["spec"]
    fault = world.fails(built)
    if fault is None:
        pod.result = _run_builder(world, generation, built, job.manifest)
    elif isinstance(fault, BuildResult):
        pod.result = fault
    else:
        pod.trouble = fault
    pod.ended = True
    ended_well = pod.result is not None and pod.result.outcome != "failed"
    job.manifest = {**job.manifest, "state": "Succeeded" if ended_well else "Failed"}


def run_push(world: World, job: Thing) -> None:
    """Run the Job of a push, and end it when its time has come and nothing keeps it. It never gives up, unless a rule
    of somebody else ends it."""
    if job.manifest.get("state", "Running") != "Running":
        return
    pods = [pod for pod in world.pods.values() if pod.owner == job.uid]
    if not pods:
        world.add(f"{job.manifest['metadata']['name']}-{world.made}", job, names.PUSHER, job.manifest)
        return
    pod = pods[0]
    if lacks_secret(world, pod) or pod.dies_at is not None or world.age(pod) < world.takes.build:
        return
    pod.trouble = world.fails_to_push
    if world.fails_push_jobs is not None:
        pod.ended = True
        job.manifest = {**job.manifest, "state": "Failed", "failure": world.fails_push_jobs}
    elif pod.trouble is None:
        pod.ended = True
        job.manifest = {**job.manifest, "state": "Succeeded"}


def need_files(world: World, pod: Process) -> None:
    """Report builders and servers that cannot start: both need the store's Secret, builders a mounted ConfigMap, and
    servers their files."""
    lacks = None if pod.component == names.ROUTER or pod.ready or pod.ended else _find_lack(world, pod)
    if lacks is not None and pod.trouble is None:
        pod.trouble = lacks
    elif lacks is None and pod.trouble in (_NO_SECRET, _NO_FILE, _LOST):
        pod.trouble = None


def lacks_secret(world: World, pod: Process) -> bool:
    """Return whether ``pod`` waits for the store's Secret. Behind a gateway none does."""
    return pod.needs_secret and world.secret is None


def refers_to_secret(manifest: Manifest) -> bool:
    """Return whether a container of ``manifest`` takes its environment from the store's Secret."""
    pod = manifest["spec"]["template"]["spec"]
    containers = (*pod.get("initContainers", ()), *pod["containers"])
    return any(_STORE_SECRET in container.get("envFrom", ()) for container in containers)


def _find_lack(world: World, pod: Process) -> Trouble | None:
    if lacks_secret(world, pod):
        return _NO_SECRET
    if pod.component == names.SHARDS and pod.labels.get(names.GENERATION) in world.lost:
        return _LOST
    build = names.build(NAME, pod.labels.get(names.GENERATION, ""))
    is_whole = pod.component != names.BUILDER or ("ConfigMap", build) in world.things
    return None if is_whole else _NO_FILE


def _run_builder(world: World, generation: str, built: dict[str, Any], job: Manifest) -> BuildResult:
    """Return the result of the builder of ``generation`` with the Job ``job`` and the spec ``built``."""
    words = job["spec"]["template"]["spec"]["containers"][0].get("args") or []
    content = world.content_of_source(orjson.dumps([built["source"], built["key"], built["shards"]]).decode())
    flags = dict(itertools.pairwise(words))
    known = world.published.get(generation)
    if known is not None and (known, world.built_by[generation]) != (content, flags["--build-id"]):
        return _number_taken(generation, world)
    if generation in world.refused:
        return _refusal(generation, content, world.now)
    is_there = any(known == content and name not in world.lost for name, known in world.published.items())
    is_unchanged = is_there and flags.get("--unless-fingerprint") == content[-64:]
    judged_by = (content, orjson.dumps(built["gates"]).decode(), flags.get("--active", ""))
    known_refusal = flags.get("--unless-refused", "")
    is_refused_again = not is_unchanged and world.refused.get(known_refusal) == judged_by
    world.invariants.read(generation, content[-64:], publishes=not is_unchanged and not is_refused_again)
    if is_unchanged:
        return BuildResult("unchanged", fingerprint=content[-64:])
    if is_refused_again:
        return _refusal(known_refusal, content, world.now)
    world.published[generation] = content
    world.built_by[generation] = flags["--build-id"]
    if known is None and world.closes_gate(content):
        world.refused[generation] = judged_by
        world.invariants.refuse(generation)
        return _refusal(generation, content, world.now)
    outcome = "built" if known is None else "adopted"
    built_at = format_moment(world.now)
    return BuildResult(outcome, generation, content[-64:], 10, 1000, 500, built_at)  # type: ignore[arg-type]


def _number_taken(generation: str, world: World) -> BuildResult:
    next_free = names.generation_name(1 + max(map(names.read_number, world.published)))
    return BuildResult(
        "failed",
        exit_code=5,
        reason=reasons.GENERATION_EXISTS,
        message=f"{generation} exists",
        next_free=next_free,
    )


def _refusal(generation: str, content: str, moment: datetime) -> BuildResult:
    # As in lookupdb.builder.existing and lookupdb.cli.addressing.
    message = (
        "maxShrinkPercent: expected at most 20 % fewer records, found 10 where g1 has 100 (-90.0 %)"
        "\n  fewer in shard 0"
        "\nmaxRejectedRows: expected at most 0 excluded rows, found 1"
        f"\n  {generation} is in the store for inspection, and does not serve: correct the source, change spec.gates,"
        " or override the gate:"
        f"\n    kubectl lookupdb diff airports -n default g1 {generation}"
        f"\n    kubectl annotate lds airports -n default {names.OVERRIDE_GATES}={generation} --overwrite"
    )
    return BuildResult(
        *("failed", generation, content[-64:], 10, 1000, 500, format_moment(moment)),
        exit_code=4,
        reason=reasons.GATE_CLOSED,
        message=message,
    )
