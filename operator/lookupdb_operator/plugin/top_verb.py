"""``kubectl lookupdb top``."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import click

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.api.client import ApiError
from lookupdb_operator.model import Pod
from lookupdb_operator.plugin.dataset import DatasetPods
from lookupdb_operator.plugin.options import JSON, Seconds, name_argument, output_option, print_json, run, with_target
from lookupdb_operator.plugin.session import ClusterSession, Target
from lookupdb_operator.plugin.views import top_view
from lookupdb_operator.plugin.views.metric_samples import MetricSample

_AT_ONCE: Final = 8


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
    help="Rates are of so long.",
)
@click.option("--all-rollouts", is_flag=True, help="Also servers that are not those of the active routing table.")
def command(name: str, target: Target, output: str | None, interval: float, all_rollouts: bool) -> None:
    """Show what servers and routers of the dataset NAME do.

    Of each shard server: lookups and misses a second, private bytes, the part of its file that is in the page cache,
    and page faults that had to wait for the disk. Of each router: requests and errors a second, keys a second, and
    how long a batch to a shard takes: the mean, and a bound that 99 of 100 batches do not exceed, of every 16th.

    It reads the admin ports, through the API server's proxy (the right to get pods/proxy), or where a NetworkPolicy is
    in its way, through `kubectl port-forward` (the right to create pods/portforward).

    \b
        kubectl lookupdb top airports --interval 10
    """

    async def measure(session: ClusterSession) -> top_view.Top:
        view = await session.with_pods(await session.get_dataset(name))
        if view.problem:
            raise LookupdbError(f"the pods of {view.dataset.key} cannot be listed: {view.problem}")
        pods = _choose(view, all_rollouts=all_rollouts)
        before, began = await _sample(session, view, pods), time.monotonic()
        await asyncio.sleep(interval)
        after = await _sample(session, view, pods)
        return top_view.measure(pods, before, after, time.monotonic() - began)

    top = run(target, measure)
    if output == JSON:
        print_json(top_view.summarize(top))
    else:
        click.echo(top_view.render(top))


def _choose(view: DatasetPods, *, all_rollouts: bool) -> tuple[Pod, ...]:
    servers = view.of_component(names.SHARDS)
    if not all_rollouts:
        routed = view.dataset.routed_shards()
        servers = tuple(pod for pod in servers if pod.shard in routed.get(pod.rollout, ()))
    shards = sorted(servers, key=lambda pod: (names.read_number(pod.rollout), pod.shard, pod.name))
    return (*shards, *sorted(view.of_component(names.ROUTER), key=lambda pod: pod.name))


async def _sample(session: ClusterSession, view: DatasetPods, pods: tuple[Pod, ...]) -> dict[str, MetricSample | str]:
    """By pod: its metrics, or why they cannot be read."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def read(pod: Pod) -> MetricSample | str:
        async with turns:
            try:
                return MetricSample.parse(await session.read_metrics(view.dataset.namespace, pod.name))
            except ApiError as error:
                return error.message

    return dict(zip((pod.name for pod in pods), await asyncio.gather(*map(read, pods)), strict=True))
