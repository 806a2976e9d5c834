"""``kubectl lookupdb get``, ``diff``, ``prune`` and ``load``: commands for datasets of a cluster.

``get`` asks a router through the API server. The others run a Job, print the result from its log, and always delete the
Job. `lookupdb` has commands of the same names, which ask routers and stores directly."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import click
import orjson

from lookupdb.cli.load import SAMPLE, make_plan, plan_options, read_keys, render_words
from lookupdb.cli.options import GenerationAddress, Seconds, token_file
from lookupdb.cli.program import print_value
from lookupdb.errors import KeyMissing, LimitExceeded, LookupdbError, LookupFailed, Unavailable, UsageError
from lookupdb.load.plan import LoadPlan, make_target, take_sample
from lookupdb.load.result import KIND, list_exceeded, parse_condition, render_summary
from lookupdb_operator import names
from lookupdb_operator.cluster.api import AlreadyExists, ApiError, Refused
from lookupdb_operator.console.dataset import (
    AbsentKey,
    Dataset,
    FoundKey,
    Lookup,
    NotPossible,
    UnavailableKey,
    read_answer,
    read_refusal,
)
from lookupdb_operator.console.facts import clean
from lookupdb_operator.plugin import views
from lookupdb_operator.plugin.cluster_session import ClusterSession, open_cluster_session
from lookupdb_operator.plugin.jobs import (
    MAX_KEY_BYTES,
    JobProgress,
    LoadJobOptions,
    ObjectKey,
    choose_shard_set,
    judge_job,
    render_difference_job,
    render_load_job,
    render_prune_job,
)
from lookupdb_operator.plugin.options import (
    check_name,
    complete_generations,
    generation_argument,
    json_option,
    name_argument,
    print_json,
    run_in,
    with_cluster,
)
from lookupdb_operator.plugin.session import POLL_SECONDS, Polls, Target
from lookupdb_operator.status import BuiltGeneration

_AT_ONCE: Final = 16


@click.command("get")
@name_argument
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@with_cluster
@json_option
@click.option(
    "--generation",
    type=GenerationAddress(),
    metavar="gN",
    shell_complete=complete_generations,
    help="Look up in this generation, for example a candidate, instead of the active one.",
)
@token_file("Send the token in this file (or in LOOKUPDB_TOKEN), through `kubectl port-forward`.")
@click.pass_context
def get(
    context: click.Context,
    name: str,
    keys: tuple[str, ...],
    target: Target,
    as_json: bool,
    generation: str | None,
    token: str | None,
) -> None:
    """Look keys up in the DATASET, through its routers.

    For one key it prints the value: JSON as a line, a raw value byte for byte (on a terminal, followed by a line end).
    For several keys, `-` (one key a line on standard input) or `--json`, it prints a JSON object for each key: {"key":
    …, "generation": …, "value": …}, with "missing": true or "unavailable": reason instead of a value, and raw values as
    base64. Programs should use a router directly (status.endpoint).

    The command uses the API server's proxy of the routers' Service, and needs the right to get services/proxy. The
    proxy drops tokens, so with a token the command uses `kubectl port-forward`, and needs the right to create
    pods/portforward. Exit code 3: a key is missing. 4: a key is unavailable, and may or may not exist.

    \b
        kubectl lookupdb get airports KJFK
        kubectl lookupdb get airports KJFK EGLL --generation g13
    """
    asked = list(_expand(keys))

    async def look(session: ClusterSession) -> list[Lookup]:
        dataset, turns = await session.get_dataset(name), asyncio.Semaphore(_AT_ONCE)

        async with session.open_router(dataset, token, generation) as ask_router:

            async def ask(key: str) -> Lookup:
                async with turns:
                    answer = await ask_router(key)
                if (lookup := read_answer(key, answer.status, answer.headers, answer.body)) is not None:
                    return lookup
                if (refusal := read_refusal(answer.status, answer.body)) is not None:
                    raise LookupFailed(f"a router of {dataset.key} refused: {refusal[0]}", hint=refusal[1])
                raise answer.make_error(f"a router of {dataset.key}")

            return await asyncio.gather(*map(ask, asked))

    lookups = run_in(open_cluster_session(target), look)
    if as_json or keys == ("-",) or len(asked) != 1:
        for lookup in lookups:
            click.echo(views.render_line(lookup))
        kinds = set(map(type, lookups))
        missing = KeyMissing.exit_code if AbsentKey in kinds else 0
        context.exit(Unavailable.exit_code if UnavailableKey in kinds else missing)
    (lookup,) = lookups
    if isinstance(lookup, FoundKey):
        print_value(lookup.value, is_json=lookup.is_json)
    elif isinstance(lookup, AbsentKey):
        raise KeyMissing(f"{lookup.key!r} is not in {name}: {lookup.why}")
    else:
        raise Unavailable(f"{lookup.key!r} of {name} is unavailable: {lookup.why}")


def _expand(keys: tuple[str, ...]) -> list[str]:
    expanded: list[str] = []
    for key in keys:
        if key != "-":
            expanded.append(key)
            continue
        # Only line feeds end lines: a key may hold other characters that Python takes for line ends.
        lines = sys.stdin.read().split("\n")
        expanded += lines if lines[-1] else lines[:-1]
    if any("\udc80" <= character <= "\udcff" for key in expanded for character in key):
        raise UsageError("a key is not UTF-8; write it in UTF-8")
    return expanded


# Run a Job.


_CREATION_SECONDS: Final = 5.0
"""Seconds to wait for the answer to a Job's creation before deleting it."""
_DELETION_SECONDS: Final = 5.0
"""Seconds to retry a Job's deletion."""
_LOG_SECONDS: Final = 30.0
"""Seconds to retry reading the log of a Job that has ended: the log is its only result."""
_LOG_LINES: Final = 5000
_FOLLOWED_SECONDS: Final = 5.0
"""Seconds to wait for the last lines of a log after the pod has ended."""

start_timeout_option: Final = click.option(
    "--start-timeout",
    type=Seconds(1),
    default="5m",
    show_default=True,
    help="Time limit for the Job's pod to start, as 20s, 5m, 1h or a number of seconds; it may need a new node, and"
    " pull the image.",
)


class JobFailed(LookupdbError):
    """The Job failed."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits for a Job, in seconds."""

    start: float
    """Seconds until its pod runs."""
    end: float

    def judge(self, progress: JobProgress, seconds: float, *, is_known: bool = True) -> str:
        """Return why to give up a Job with this ``progress`` after ``seconds``; empty to keep waiting. Unless
        ``is_known``, the progress is outdated, and the Job may have started."""
        if is_known and progress.phase == "Starting" and seconds >= self.start:
            return f"the Job had not started after {self.start:g} s (--start-timeout): {progress.why}"
        if seconds >= self.end:
            return f"it was not done after {self.end:g} s (--timeout): {progress.why}"
        return ""


async def run_job(
    session: ClusterSession,
    namespace: str,
    job: Mapping[str, Any],
    component: str,
    patience: Patience,
    take_line: Callable[[str], None] | None = None,
) -> tuple[JobProgress, str]:
    """Run ``job``, whose only container is called ``component``, and print what it waits for. Return how it ended, and
    its log, whose lines ``take_line`` gets meanwhile. The Job is always deleted. Raises ApiError, and
    JobFailed at a time limit."""
    name = str(job["metadata"]["name"])
    creation = asyncio.ensure_future(session.create_job(namespace, job))
    following: list[asyncio.Task[None]] = []

    async def follow(pod: str) -> None:
        assert take_line is not None
        with suppress(ApiError):  # the whole log is still read at the end
            async for line in session.follow_log(namespace, pod, component):
                take_line(line)

    def note(progress: JobProgress) -> None:
        if take_line is not None and progress.phase == "Running" and not following:
            following.append(asyncio.ensure_future(follow(progress.pod)))

    try:
        await asyncio.shield(creation)
        progress = await _wait_for_end(session, namespace, name, component, patience, note)
        log = ""
        if progress.pod:
            if following:
                await asyncio.wait(following, timeout=_FOLLOWED_SECONDS)
            log = await _read_log(session, namespace, progress, component)
        return progress, log
    finally:
        for task in following:
            task.cancel()
        await _delete(session, namespace, name, creation)


async def _read_log(session: ClusterSession, namespace: str, progress: JobProgress, component: str) -> str:
    """Return the log of a Job that has ended; empty if it failed and its log cannot be read, because a container that
    never ran has no log. Raises JobFailed."""
    polls = Polls(f"the log of pod {progress.pod}", _LOG_SECONDS)
    try:
        return await polls.insist(lambda: session.read_log(namespace, progress.pod, component, _LOG_LINES))
    except ApiError as error:
        if progress.phase == "Succeeded":
            raise JobFailed(f"the Job has succeeded, but its log cannot be read: {error}") from error
        return ""


async def _wait_for_end(
    session: ClusterSession,
    namespace: str,
    name: str,
    component: str,
    patience: Patience,
    note: Callable[[JobProgress], None],
) -> JobProgress:
    """Return how the Job ended. Report what it waits for. Raises JobFailed when time is up."""
    began, polls = time.monotonic(), Polls(f"Job {name}", patience.end)
    progress = JobProgress("Starting", why="it has not been seen yet")
    reported = progress.why
    while True:
        progress = await polls.look(lambda: _look(session, namespace, name, component)) or progress
        if progress.phase in ("Succeeded", "Failed"):
            return progress
        note(progress)
        if impatience := patience.judge(progress, time.monotonic() - began, is_known=not polls.trouble):
            raise JobFailed(f"{impatience}{polls.describe_trouble()}")
        if progress.why != reported:
            reported = progress.why
            click.echo(clean(reported), err=True)
        await asyncio.sleep(POLL_SECONDS)


async def _look(session: ClusterSession, namespace: str, name: str, component: str) -> JobProgress:
    job, pods = await session.get_job(namespace, name), await session.list_pods_of_job(namespace, name)
    if job is None:
        return JobProgress("Failed", why=f"Job {name} is gone: somebody has deleted it")
    pod = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""), default=None)
    subject = ("Job", name) if pod is None else ("Pod", pod["metadata"]["name"])
    is_starting = pod is None or (pod.get("status") or {}).get("phase", "Pending") == "Pending"
    warnings = await session.list_warnings(namespace, *subject) if is_starting else ()
    return judge_job(job, pod, warnings, component)


async def _delete(session: ClusterSession, namespace: str, name: str, creation: asyncio.Future[None]) -> None:
    """Delete the Job. It may exist even if the request to create it got no reply."""
    await asyncio.wait((creation,), timeout=_CREATION_SECONDS)
    creation.cancel()
    if creation.done() and not creation.cancelled() and isinstance(creation.exception(), Refused | AlreadyExists):
        return

    async def delete() -> bool:
        await session.delete_job(namespace, name)
        return True

    try:
        await Polls(f"Job {name}", _DELETION_SECONDS).insist(delete)
    except ApiError as error:
        click.echo(clean(f"Job {name} could not be deleted; it will end by itself: {error}"), err=True)


# ``kubectl lookupdb diff``.


_SAMPLES: Final = 5
_PRUNING_SECONDS: Final = 900


@click.command("diff")
@name_argument
@generation_argument("before", metavar="[G1]")
@generation_argument("after", metavar="[G2]")
@with_cluster
@json_option
@click.option(
    "--sampled/--exact",
    default=True,
    help="Compare a sample of about 100,000 keys, chosen by hash (the default), or all keys.",
)
@start_timeout_option
@click.option(
    "--timeout",
    type=Seconds(1),
    default="1h",
    show_default=True,
    help="Time limit, as 20s, 5m, 1h or a number of seconds.",
)
def diff(
    name: str,
    before: str | None,
    after: str | None,
    target: Target,
    as_json: bool,
    sampled: bool,
    start_timeout: float,
    timeout: float,
) -> None:
    """Compare two generations of DATASET, in the cluster.

    Compare the active one and the candidate, the active one and G1, or G1 and G2. A Job reads both from the store, and
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
            dataset, shard_set, generations, sampled=sampled, samples=_SAMPLES, deadline_seconds=math.ceil(timeout)
        )
        ended, log = await run_job(session, dataset.namespace, job, names.DIFF, patience)
        return read_document(log, is_done=ended.phase == "Succeeded", why=ended.why)

    from lookupdb.cli.stores import render_difference  # here, because it loads the builder

    document = run_in(open_cluster_session(target), compare)
    try:
        text = "" if as_json else "\n".join(map(clean, render_difference(document)))
    except (KeyError, TypeError, ValueError) as error:
        why = f"the Job's result is of another version of lookupdb: {error!r}"
        raise JobFailed(why, hint="--json prints it as it is") from error
    print_json(document) if as_json else click.echo(text)


@click.command("prune")
@name_argument
@with_cluster
@click.option("--dry-run", is_flag=True, help="Remove nothing.")
@json_option
@start_timeout_option
def prune(name: str, target: Target, dry_run: bool, as_json: bool, start_timeout: float) -> None:
    """Remove the generations of DATASET that nothing needs, in the cluster.

    The newest stay (spec.keepGenerations), and so do all that the status names: they serve, wait for promotion, are
    pinned, or can be rolled back to. Each build does the same, so prune only between builds. A Job runs `lookupdb
    prune` with the store access of the shard servers.

    \b
        kubectl lookupdb prune airports --dry-run
    """

    async def remove(session: ClusterSession) -> Mapping[str, Any]:
        dataset = await session.get_dataset(name)
        shard_set = choose_shard_set(dataset, await session.list_shard_sets(dataset))
        job = render_prune_job(dataset, shard_set, ["--dry-run"] if dry_run else [], _PRUNING_SECONDS)
        patience = Patience(start_timeout, _PRUNING_SECONDS)
        ended, log = await run_job(session, dataset.namespace, job, names.DIFF, patience)
        return read_document(log, is_done=ended.phase == "Succeeded", why=ended.why)

    from lookupdb.cli.stores import render_removal  # here, because it loads the builder

    document = run_in(open_cluster_session(target), remove)
    print_json(document) if as_json else click.echo(clean(render_removal(document)))


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
    """Return the JSON at the end of the Job's log. Raises JobFailed with ``why`` if that is known, else with the
    last line."""
    start = 0 if log.startswith("{\n") else log.find("\n{\n") + 1
    try:
        if is_done and log[start:].startswith("{\n"):
            document: Mapping[str, Any] = orjson.loads(log[start:])
            return document
    except ValueError:
        pass
    lines = [line for line in log.splitlines() if line.strip()]
    raise JobFailed(f"the Job failed: {clean(why or (lines or ['it has logged nothing'])[-1])}")


# ``kubectl lookupdb load``.


_SAMPLING_SECONDS: Final = 600.0
"""Seconds for sampling keys, and for the pod to end."""
_RESULT_MARK: Final = f'"kind":"{KIND}"'


def _parse_object_key(
    default: str, context: click.Context, parameter: click.Parameter, value: str | None
) -> ObjectKey | None:
    """Return the parsed NAME[/KEY]; without a key, ``default``."""
    if value is None:
        return None
    name, _, key = value.partition("/")
    check_name(context, parameter, name)
    return ObjectKey(name, key or default)


@click.command("load")
@name_argument
@plan_options
@click.option(
    "--request-timeout",
    "timeout",
    type=Seconds(0.05, 60),
    default="5s",
    show_default=True,
    help="Time limit of a request, from its intended start.",
)
@click.option(
    "--keys",
    metavar="FILE|-|sample",
    default=SAMPLE,
    show_default=True,
    help="A file with one key a line; or sample: keys of the generation that answers.",
)
@click.option(
    "--token-secret",
    metavar="NAME[/KEY]",
    callback=partial(_parse_object_key, "token"),
    help="Send the token in this Secret of the namespace.",
)
@click.option(
    "--ca-secret",
    metavar="NAME[/KEY]",
    callback=partial(_parse_object_key, "ca.crt"),
    help="Trust the CA in this Secret; by default ca.crt beside the routers' certificate.",
)
@click.option(
    "--ca-config-map",
    metavar="NAME[/KEY]",
    callback=partial(_parse_object_key, "ca.crt"),
    help="Trust the CA in this ConfigMap.",
)
@start_timeout_option
@with_cluster
@json_option
@click.pass_context
def load(context: click.Context, /, name: str, target: Target, as_json: bool, **options: Any) -> None:
    """Put a load on the routers of DATASET, within the cluster, and measure.

    A Job runs `lookupdb load` in the dataset's namespace, with the image of its servers and without a token of the API
    server. It uses the routers' Service as any client does. Progress goes to standard error, the result to standard
    output. The Job is deleted when the command ends, also by Ctrl-C.

    NetworkPolicies that restrict clients of routers must admit pods with the labels app.kubernetes.io/name: lookupdb
    and app.kubernetes.io/component: load. Exit code 7: a condition of --fail-if holds.

    \b
        kubectl lookupdb load airports --rate 500 --duration 30
        kubectl lookupdb load airports --at g13 --batch 100 --fail-if 'p99>20ms' --fail-if 'errors>0'
    """
    plan = make_plan(context, options)
    conditions = [parse_condition(text) for text in options["conditions"]]
    make_target("http://router", None, None, options["headers"])  # refuse bad headers here rather than in a pod
    keys = None if options["keys"] == SAMPLE else fit_keys(read_keys(options["keys"], plan.seed), plan)

    def show_line(line: str) -> None:
        if _RESULT_MARK not in line:
            click.echo(clean(line), err=True)

    async def measure(session: ClusterSession) -> Mapping[str, Any]:
        dataset = await session.get_dataset(name)
        shard_set = choose_shard_set(dataset, await session.list_shard_sets(dataset))
        running = plan.profile.seconds + plan.timeout + _SAMPLING_SECONDS
        patience = Patience(options["start_timeout"], options["start_timeout"] + running)
        job_options = LoadJobOptions(
            words=render_words(options),
            processes=plan.processes,
            keys=keys,
            largest_shard_bytes=_find_largest_shard(dataset, options["generation"]) if keys is None else 0,
            token=options["token_secret"],
            ca_secret=options["ca_secret"],
            ca_config_map=options["ca_config_map"],
            deadline_seconds=math.ceil(patience.end),
        )
        job = render_load_job(dataset, shard_set, job_options)
        ended, log = await run_job(session, dataset.namespace, job, names.LOAD, patience, show_line)
        return read_result(log.splitlines(), ended.why)

    document = run_in(open_cluster_session(target), measure)
    print_json(document) if as_json else click.echo(render_summary(document))
    if exceeded := list_exceeded(conditions, document):
        raise LimitExceeded("\n".join(exceeded))


def _find_largest_shard(dataset: Dataset, generation: str | None) -> int:
    """Return the bytes of the largest shard file of the sampled generation. Raises NotPossible."""
    status = dataset.parse_status()
    sampled = generation or status.generation
    for stored in status.generations:
        if stored.generation == sampled:
            return stored.largest_shard_bytes
    raise NotPossible(
        f"{dataset.key} serves nothing yet" if not sampled else f"the store of {dataset.key} has no {sampled}",
        hint="give keys in a file, by --keys",
    )


def fit_keys(keys: list[str], plan: LoadPlan) -> list[str]:
    """Return as many of ``keys`` as a Job can hold, and say so if some are left out. Raises UsageError."""
    size = count_bytes(keys)
    kept = keys if size <= MAX_KEY_BYTES else take_sample(keys, len(keys) * MAX_KEY_BYTES // size, plan.seed)
    while (size := count_bytes(kept)) > MAX_KEY_BYTES:
        kept = kept[: len(kept) * MAX_KEY_BYTES // size]
    if len(kept) < len(keys):
        used = f"{len(kept):,} of {len(keys):,} are used, chosen at random"
        click.echo(f"a Job holds {MAX_KEY_BYTES:,} bytes of keys: {used}", err=True)
    if len(kept) < plan.batch:
        raise UsageError(
            f"a batch needs {plan.batch:,} keys, but only {len(kept):,} fit into the Job",
            hint="give a smaller --batch, or --keys sample",
        )
    return kept


def count_bytes(keys: Iterable[str]) -> int:
    """Return the size of the annotation with ``keys``."""
    return sum(len(key.encode()) + 1 for key in keys)


def read_result(lines: list[str], why: str) -> Mapping[str, Any]:
    """Return the result in the Job's log. Raises JobFailed with ``why`` if that is known, else with the last error."""
    for line in reversed(lines):
        if line.startswith("{") and _RESULT_MARK in line:
            try:
                document: Mapping[str, Any] = orjson.loads(line)
            except ValueError:
                continue
            return document
    said = [line for line in lines if line.strip()]
    first = next((place for place, line in enumerate(said) if line.startswith("error: ")), len(said) - 1)
    message = " ".join(clean(line).strip() for line in said[max(0, first) :]).removeprefix("error: ")
    raise JobFailed(f"the Job failed: {why or message or 'it has logged nothing'}")
