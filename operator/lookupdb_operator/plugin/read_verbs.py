"""``logs``, ``status``, ``ls``, ``history`` and ``top``: commands that only read."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

import click

from lookupdb.cli.options import Seconds
from lookupdb.errors import LookupdbError, UsageError
from lookupdb_operator import names
from lookupdb_operator.cluster.api import ApiError, Unreachable
from lookupdb_operator.console.dataset import Dataset, DatasetPods
from lookupdb_operator.console.facts import clean
from lookupdb_operator.console.figures import MetricSample
from lookupdb_operator.model import Pod
from lookupdb_operator.plugin import views
from lookupdb_operator.plugin.options import Verb, json_option, name_argument, print_json, render_json, run, with_target
from lookupdb_operator.plugin.session import BuildLog, DatasetSession, Target


@click.command("logs", cls=Verb)
@name_argument
@with_target
@json_option
@click.option("--tail", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Number of lines.")
def logs(name: str, target: Target, as_json: bool, tail: int) -> None:
    """Print the log of a build of DATASET.

    The build is the running one, or else the last. In a cluster it is the last that failed, because the pods of others
    are removed: `status` shows their results. With --json, the output is one document: the pod, its generation, and the
    lines.

    \b
        kubectl lookupdb logs airports --tail 50
    """

    async def read(session: DatasetSession) -> tuple[Dataset, BuildLog]:
        dataset = await session.get_dataset(name)
        return dataset, await session.read_build_log(dataset, tail)

    dataset, log = run(target, read)
    if not as_json:
        click.echo(log.text, nl=False)
        return
    lines = log.text.removesuffix("\n").split("\n") if log.text else []
    where = {"namespace": dataset.namespace, "name": dataset.name, "pod": log.pod, "generation": log.generation}
    print_json({**where, "lines": lines})


_CLEAR: Final = "\x1b[H\x1b[2J"
"""Clears a terminal; click omits it elsewhere."""
_pause = asyncio.sleep


@click.command("status", cls=Verb)
@name_argument
@with_target
@json_option
@click.option("--watch", "-w", is_flag=True, help="Show it every --interval seconds, until Ctrl-C.")
@click.option("--interval", type=Seconds(0.2), default="2s", show_default=True, help="Time between two screens.")
def status(name: str, target: Target, as_json: bool, watch: bool, interval: float) -> None:
    """Show DATASET on one screen.

    It shows what serves, the four conditions, what the dataset waits for and how long, the generations in the store,
    the rollouts with their servers, shards that lack servers, the routers, and the last builds.

    \b
        kubectl lookupdb status airports --watch
    """

    async def read(session: DatasetSession) -> str:
        view = await session.with_pods(await session.get_dataset(name))
        return render_json(views.summarize(view)) if as_json else views.render(view, _now())

    async def show(session: DatasetSession) -> None:
        while watch:
            try:
                text = await read(session)
            except Unreachable as error:  # keep watching until Ctrl-C
                text = clean(str(error))
            click.echo(f"{_CLEAR}{text}")
            await _pause(interval)
        click.echo(await read(session))

    if as_json and watch:
        raise UsageError("--json and --watch exclude each other; use kubectl get lds -o json --watch")
    run(target, show)


def _now() -> datetime:
    return datetime.now(UTC)


@click.command("ls", cls=Verb)
@with_target
@click.option("-A", "--all-namespaces", is_flag=True, help="List the datasets of all namespaces.")
@json_option
def ls(target: Target, all_namespaces: bool, as_json: bool) -> None:
    """List the datasets.

    \b
        kubectl lookupdb ls -A
    """

    async def read(session: DatasetSession) -> str:
        datasets = await session.list_datasets(everywhere=all_namespaces)
        if as_json:
            return render_json([views.summarize_dataset(dataset) for dataset in datasets])
        place = "any namespace" if all_namespaces else session.place
        return views.render_list(datasets, _now(), everywhere=all_namespaces, place=place)

    click.echo(run(target, read))


@click.command("history", cls=Verb)
@name_argument
@with_target
@json_option
def history(name: str, target: Target, as_json: bool) -> None:
    """List the builds and generations of DATASET, newest first.

    It shows how each build ended and why, how long it took, and what became of its generation: which one is active,
    has served, was rolled back or rejected, or is pinned. STATE is empty if the build made nothing that can serve.

    \b
        kubectl lookupdb history airports
    """

    dataset = run(target, lambda session: session.get_dataset(name))
    if as_json:
        print_json(views.summarize_history(dataset))
    else:
        click.echo(views.render_history(dataset, _now()))


_PODS_AT_ONCE: Final = 8


@click.command("top", cls=Verb)
@name_argument
@with_target
@json_option
@click.option(
    "--interval", type=Seconds(0.1, 300), default="2s", show_default=True, help="Seconds over which rates are measured."
)
@click.option("--all-rollouts", is_flag=True, help="Also show servers that are not in the active routing table.")
def top(name: str, target: Target, as_json: bool, interval: float, all_rollouts: bool) -> None:
    """Show the load of the servers and routers of DATASET.

    For each shard server: lookups and misses a second, private bytes, the part of its file in the page cache, and page
    faults that waited for the disk. For each router: requests and errors a second, keys a second, and the time of a
    batch to a shard (mean and 99th percentile, measured on every 16th batch).

    It reads the admin ports through the API server's proxy (needs the right to get pods/proxy). If a NetworkPolicy
    blocks that, it uses `kubectl port-forward` (needs the right to create pods/portforward).

    \b
        kubectl lookupdb top airports --interval 10
    """

    async def measure(session: DatasetSession) -> views.Top:
        dataset = await session.get_dataset(name)
        dataset.check_runs()
        view = await session.with_pods(dataset)
        if view.problem:
            raise LookupdbError(f"the pods of {view.dataset.key} cannot be listed: {view.problem}")
        servers = view.of_component(names.SHARDS)
        if not all_rollouts:
            routed = view.dataset.routed_shards()
            servers = tuple(pod for pod in servers if pod.shard in routed.get(pod.rollout, ()))
        shards = sorted(servers, key=lambda pod: (names.read_number(pod.rollout), pod.shard, pod.name))
        pods = (*shards, *sorted(view.of_component(names.ROUTER), key=lambda pod: pod.name))
        before, began = await _sample(session, view, pods), time.monotonic()
        await asyncio.sleep(interval)
        after = await _sample(session, view, pods)
        return views.measure(pods, before, after, time.monotonic() - began)

    top = run(target, measure)
    if as_json:
        print_json(asdict(top))
    else:
        click.echo(views.render_top(top))


async def _sample(session: DatasetSession, view: DatasetPods, pods: tuple[Pod, ...]) -> dict[str, MetricSample | str]:
    """Return pod → its metrics, or why they cannot be read."""
    turns = asyncio.Semaphore(_PODS_AT_ONCE)

    async def read(pod: Pod) -> MetricSample | str:
        async with turns:
            try:
                return MetricSample.parse(await session.read_metrics(view.dataset, pod.name), view.dataset.name)
            except ApiError as error:
                return error.message

    return dict(zip((pod.name for pod in pods), await asyncio.gather(*map(read, pods)), strict=True))
