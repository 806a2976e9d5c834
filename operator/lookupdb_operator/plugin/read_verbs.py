"""``kubectl lookupdb`` ``logs``, ``get``, ``status`` and ``top``: commands that only read."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import click

from lookupdb.cli.options import token_file
from lookupdb.cli.output import print_value
from lookupdb.errors import KeyMissing, LookupdbError, LookupFailed, Unavailable, UsageError
from lookupdb_operator import names
from lookupdb_operator.cluster.client import Answer, ApiError, Unreachable
from lookupdb_operator.model import Pod
from lookupdb_operator.plugin import status_view, views
from lookupdb_operator.plugin.changes import Dataset, DatasetPods
from lookupdb_operator.plugin.options import (
    JSON,
    Seconds,
    check_generation,
    name_argument,
    output_option,
    print_json,
    run,
    with_target,
)
from lookupdb_operator.plugin.session import ClusterSession, Target
from lookupdb_operator.plugin.views import AbsentKey, FoundKey, Lookup, MetricSample, clean

# ``kubectl lookupdb logs``.


class NoBuilder(LookupdbError):
    """No build has a pod."""


@click.command("logs")
@name_argument()
@with_target
@output_option
@click.option("--tail", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Number of lines.")
def logs(name: str, target: Target, output: str | None, tail: int) -> None:
    """Print the log of a build of the dataset NAME.

    It is the running build, or the last one that failed. The pod of a successful build is removed: `kubectl lookupdb
    status NAME` shows its result. With -o json, the output is one document: the pod, its generation, and the lines.

    \b
        kubectl lookupdb logs airports --tail 50
    """

    async def read(session: ClusterSession) -> tuple[dict[str, Any], str]:
        dataset = await session.get_dataset(name)
        builders = await session.list_pods(dataset, **{names.COMPONENT: names.BUILDER})
        if not builders:
            raise NoBuilder(
                f"{dataset.key} has no pod of a build",
                hint="the last one succeeded, or none has begun:"
                f" kubectl lookupdb status -n {dataset.namespace} {name} says which",
            )
        newest = max(builders, key=_order_builder)
        pod, labels = newest["metadata"]["name"], newest["metadata"].get("labels") or {}
        text = await session.read_log(dataset.namespace, pod, "build", tail)
        where = {"namespace": dataset.namespace, "name": dataset.name, "pod": pod}
        return {**where, "generation": labels.get(names.GENERATION, "")}, text

    where, text = run(target, read)
    if output is None:
        click.echo(text, nl=False)
    else:
        print_json({**where, "lines": text.removesuffix("\n").split("\n") if text else []})


def _order_builder(pod: Mapping[str, Any]) -> tuple[int, str]:
    labels = pod["metadata"].get("labels") or {}
    return names.read_number(labels.get(names.GENERATION, "")), pod["metadata"].get("creationTimestamp") or ""


# ``kubectl lookupdb get``.


_AT_ONCE: Final = 16


@click.command("get")
@name_argument()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@with_target
@output_option
@click.option(
    "--generation",
    default=None,
    callback=check_generation,
    help="Look up in this generation, for example a candidate, instead of the active one.",
)
@token_file("Send the token in this file (or in LOOKUPDB_TOKEN), through `kubectl port-forward`.")
@click.pass_context
def get(
    context: click.Context,
    name: str,
    keys: tuple[str, ...],
    target: Target,
    output: str | None,
    generation: str | None,
    token: str | None,
) -> None:
    """Look keys up in the dataset NAME, through its routers.

    For one key it prints the value: JSON as a line, a raw value byte for byte (on a terminal, followed by a line end).
    For several keys, `-` (one key a line on standard input) or `-o json`, it prints a JSON object for each key: {"key":
    …, "generation": …, "value": …}, with "missing": true or "unavailable": reason instead of a value, and raw values as
    base64. Programs should use a router directly (status.endpoint).

    It uses the API server's proxy of the routers' Service, and needs the right to get services/proxy. The proxy drops
    tokens, so with a token it uses `kubectl port-forward`, and needs the right to create pods/portforward. Exit code 3:
    a key is missing. 4: a key is unavailable, and may or may not exist.

    \b
        kubectl lookupdb get airports KJFK
        kubectl lookupdb get airports KJFK EGLL --generation g13
    """
    asked = list(_expand(keys))

    async def look(session: ClusterSession) -> list[Lookup]:
        dataset, turns = await session.get_dataset(name), asyncio.Semaphore(_AT_ONCE)

        async with session.open_router(dataset, token) as ask_router:

            async def ask(key: str) -> Lookup:
                async with turns:
                    return _read(dataset, key, await ask_router(key, generation))

            return await asyncio.gather(*map(ask, asked))

    lookups = run(target, look)
    if output is None and keys != ("-",) and len(asked) == 1:
        _print_one(name, lookups[0])
        return
    for lookup in lookups:
        click.echo(views.render_line(lookup))
    context.exit(_exit_code(lookups))


def _read(dataset: Dataset, key: str, answer: Answer) -> Lookup:
    subject = f"a router of {dataset.key}"
    lookup = views.read_answer(key, answer.status, answer.headers, answer.body)
    if lookup is None:
        if (refusal := views.read_refusal(answer.status, answer.body)) is not None:
            raise LookupFailed(f"{subject} refused: {refusal[0]}", hint=refusal[1])
        raise answer.make_error(subject)
    return lookup


def _print_one(name: str, lookup: Lookup) -> None:
    if isinstance(lookup, FoundKey):
        print_value(lookup.value, is_json=lookup.is_json)
    elif isinstance(lookup, AbsentKey):
        raise KeyMissing(f"{lookup.key!r} is not in {name}: {lookup.why}")
    else:
        raise Unavailable(f"{lookup.key!r} of {name} is unavailable: {lookup.why}")


def _exit_code(lookups: list[Lookup]) -> int:
    if not all(isinstance(lookup, FoundKey | AbsentKey) for lookup in lookups):
        return Unavailable.exit_code
    return KeyMissing.exit_code if any(isinstance(lookup, AbsentKey) for lookup in lookups) else 0


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


# ``kubectl lookupdb status``.


_CLEAR: Final = "\x1b[H\x1b[2J"
"""Clears a terminal; click omits it elsewhere."""
_pause = asyncio.sleep


@click.command("status")
@name_argument(required=False)
@with_target
@click.option("-A", "--all-namespaces", is_flag=True, help="List the datasets of all namespaces.")
@output_option
@click.option("--watch", "-w", is_flag=True, help="Show it every --interval seconds, until Ctrl-C.")
@click.option("--interval", type=Seconds(0.2), default="2s", show_default=True, metavar="TIME")
def status(
    name: str | None, target: Target, all_namespaces: bool, output: str | None, watch: bool, interval: float
) -> None:
    """Show the dataset NAME on one screen, or all datasets in a table.

    The screen shows what serves, the four conditions, what it waits for and how long, the generations in the store, the
    rollouts with their servers, shards that lack servers, the routers, and the last builds.

    \b
        kubectl lookupdb status
        kubectl lookupdb status airports --watch
    """
    if name and all_namespaces:
        raise UsageError("give either a name or -A: a name belongs to one namespace")

    async def show(session: ClusterSession) -> None:
        while True:
            if not watch:
                click.echo(await _read_status(session, name, everywhere=all_namespaces, output=output))
                return
            try:
                text = await _read_status(session, name, everywhere=all_namespaces, output=output)
            except Unreachable as error:  # keep watching until Ctrl-C
                text = clean(str(error))
            click.echo(f"{_CLEAR}{text}")
            await _pause(interval)

    if output == JSON and watch:
        raise UsageError("-o json shows it once; kubectl get lds -o json --watch follows it")
    run(target, show)


async def _read_status(session: ClusterSession, name: str | None, *, everywhere: bool, output: str | None) -> str:
    now = datetime.now(UTC)
    if name is None:
        datasets = await session.list_datasets(everywhere=everywhere)
        if output == JSON:
            return status_view.to_json([status_view.summarize_dataset(dataset) for dataset in datasets])
        return status_view.render_list(datasets, now, everywhere=everywhere, namespace=session.namespace)
    view = await session.with_pods(await session.get_dataset(name))
    return status_view.to_json(status_view.summarize(view)) if output == JSON else status_view.render(view, now)


_PODS_AT_ONCE: Final = 8


@click.command("top")
@name_argument()
@with_target
@output_option
@click.option(
    "--interval",
    type=Seconds(0.1, 300),
    default="2s",
    show_default=True,
    metavar="TIME",
    help="Seconds over which rates are measured.",
)
@click.option("--all-rollouts", is_flag=True, help="Also show servers that are not in the active routing table.")
def top(name: str, target: Target, output: str | None, interval: float, all_rollouts: bool) -> None:
    """Show the load of the servers and routers of the dataset NAME.

    For each shard server: lookups and misses a second, private bytes, the part of its file in the page cache, and page
    faults that waited for the disk. For each router: requests and errors a second, keys a second, and the time of a
    batch to a shard (mean and 99th percentile, measured on every 16th batch).

    It reads the admin ports through the API server's proxy (needs the right to get pods/proxy). If a NetworkPolicy
    blocks that, it uses `kubectl port-forward` (needs the right to create pods/portforward).

    \b
        kubectl lookupdb top airports --interval 10
    """

    async def measure(session: ClusterSession) -> views.Top:
        view = await session.with_pods(await session.get_dataset(name))
        if view.problem:
            raise LookupdbError(f"the pods of {view.dataset.key} cannot be listed: {view.problem}")
        pods = _choose(view, all_rollouts=all_rollouts)
        before, began = await _sample(session, view, pods), time.monotonic()
        await asyncio.sleep(interval)
        after = await _sample(session, view, pods)
        return views.measure(pods, before, after, time.monotonic() - began)

    top = run(target, measure)
    if output == JSON:
        print_json(asdict(top))
    else:
        click.echo(views.render_top(top))


def _choose(view: DatasetPods, *, all_rollouts: bool) -> tuple[Pod, ...]:
    servers = view.of_component(names.SHARDS)
    if not all_rollouts:
        routed = view.dataset.routed_shards()
        servers = tuple(pod for pod in servers if pod.shard in routed.get(pod.rollout, ()))
    shards = sorted(servers, key=lambda pod: (names.read_number(pod.rollout), pod.shard, pod.name))
    return (*shards, *sorted(view.of_component(names.ROUTER), key=lambda pod: pod.name))


async def _sample(session: ClusterSession, view: DatasetPods, pods: tuple[Pod, ...]) -> dict[str, MetricSample | str]:
    """Return pod → its metrics, or why they cannot be read."""
    turns = asyncio.Semaphore(_PODS_AT_ONCE)

    async def read(pod: Pod) -> MetricSample | str:
        async with turns:
            try:
                return MetricSample.parse(await session.read_metrics(view.dataset.namespace, pod.name))
            except ApiError as error:
                return error.message

    return dict(zip((pod.name for pod in pods), await asyncio.gather(*map(read, pods)), strict=True))
