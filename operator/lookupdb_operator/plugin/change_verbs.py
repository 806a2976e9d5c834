"""``refresh``, ``promote``, ``reject``, ``rollback`` and ``unpin``: each writes the LookupDataset once, and can wait
for the operator's result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import click

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.plugin import changes
from lookupdb_operator.plugin.changes import ChangeProgress, Dataset
from lookupdb_operator.plugin.options import (
    JSON,
    check_generation,
    name_argument,
    output_option,
    print_json,
    run,
    wait_options,
    with_target,
)
from lookupdb_operator.plugin.session import ClusterSession, Polls, Target
from lookupdb_operator.plugin.views import clean

Judge = Callable[[Dataset], ChangeProgress]

_WITHDRAWAL_SECONDS: Final = 30.0
_EVERY: Final = 0.5
"""Seconds between polls while a command waits."""
_SILENCE_SECONDS: Final = 10.0
"""Seconds without a reaction of the operator before a message; usually it takes about one."""


class NotDone(LookupdbError):
    """The change failed, or timed out."""


@click.command("refresh")
@name_argument()
@with_target
@wait_options
@output_option
def refresh(name: str, target: Target, wait: bool, timeout: float, output: str | None) -> None:
    """Build the dataset NAME from the present state of its source.

    This sets the annotation lookupdb.dev/refresh to a new value. With --wait, the command returns once the new
    generation serves, or is a candidate that waits for promotion, or the source was found unchanged. Exit code 1 means
    that the build failed, that the new generation waits because another one is pinned, or that another refresh has
    replaced this one. The operator keeps trying after a failure.

    \b
        kubectl lookupdb refresh airports --wait
    """
    value = datetime.now(UTC).isoformat(timespec="milliseconds")

    async def work(session: ClusterSession) -> None:
        dataset = await session.get_dataset(name)
        earlier = [generation["generation"] for generation in dataset.status.get("generations") or ()]
        changed, outcome = await session.patch_dataset(dataset, changes.annotate(names.REFRESH, value)), ""
        if wait:
            changed, outcome = await _wait(
                session, changed, lambda now: changes.judge_refresh(now, value, earlier), timeout
            )
        _report(changed, f"the refresh is answered: {outcome}" if wait else f"refresh {value} is asked for", output)

    run(target, work)


@click.command("promote")
@name_argument()
@click.argument("generation", required=False, callback=check_generation)
@with_target
@wait_options
@output_option
def promote(name: str, generation: str | None, target: Target, wait: bool, timeout: float, output: str | None) -> None:
    """Promote the candidate of the dataset NAME: let it serve.

    A candidate is a generation that waits because of spec.rollout.promotion: Manual. With GENERATION, the command fails
    if another generation is the candidate by now. This sets the annotation lookupdb.dev/promote.

    \b
        kubectl lookupdb get airports KJFK --generation g13    # look at it first
        kubectl lookupdb diff airports
        kubectl lookupdb promote airports g13 --wait
    """

    async def work(session: ClusterSession) -> None:
        dataset = await session.get_dataset(name)
        promoted, active = changes.find_candidate(dataset, generation), str(dataset.table.get("generation") or "")
        if changes.is_premature(dataset, promoted):
            dataset = await session.patch_dataset(dataset, changes.annotate(names.PROMOTE, None))
            await _wait(session, dataset, lambda now: changes.judge_withdrawal(now, promoted), _WITHDRAWAL_SECONDS)
        changed = await session.patch_dataset(dataset, changes.annotate(names.PROMOTE, promoted))
        if wait:
            judge = partial(changes.judge_promotion, generation=promoted, replaced=active)
            changed, _ = await _wait(session, changed, judge, timeout)
        _report(changed, f"{promoted} {'serves' if wait else 'is promoted'}", output)

    run(target, work)


@click.command("reject")
@name_argument()
@click.argument("generation", required=False, callback=check_generation)
@with_target
@output_option
def reject(name: str, generation: str | None, target: Target, output: str | None) -> None:
    """Reject the candidate of the dataset NAME.

    With GENERATION, the command fails if another generation is the candidate by now. The candidate's servers end, and
    no generation of the same source and spec becomes a candidate again. This sets the annotation lookupdb.dev/reject.
    For a generation that serves already, use `rollback`.

    \b
        kubectl lookupdb reject airports g13
    """

    async def work(session: ClusterSession) -> None:
        dataset = await session.get_dataset(name)
        rejected = changes.find_candidate(dataset, generation)
        changed = await session.patch_dataset(dataset, changes.annotate(names.REJECT, rejected))
        _report(changed, f"{rejected} is rejected", output)

    run(target, work)


@click.command("rollback")
@name_argument()
@click.option(
    "--to",
    "generation",
    default=None,
    callback=check_generation,
    help="The generation, for example g11; without it, the one that served before the active one.",
)
@with_target
@wait_options
@output_option
def rollback(name: str, generation: str | None, target: Target, wait: bool, timeout: float, output: str | None) -> None:
    """Serve an older generation of the dataset NAME, and pin it.

    Without --to, that is the generation that served last before the active one. While a generation is pinned, as after
    a rollback, --to is required.

    This sets spec.generation: refreshes still build, but no new generation serves until `unpin`. Even then, the
    generation that you rolled back from does not serve again until the source changes. If a tool applies the manifest,
    set generation there too, or the tool removes it.

    \b
        kubectl lookupdb rollback airports --wait
        kubectl lookupdb rollback airports --to g10 --wait
    """

    async def work(session: ClusterSession) -> None:
        dataset = await session.get_dataset(name)
        change = changes.roll_back(dataset, generation)
        pinned = str(change["spec"]["generation"])
        changed = await session.patch_dataset(dataset, change)
        if wait:
            changed, _ = await _wait(session, changed, lambda now: changes.judge_rollback(now, pinned), timeout)
        _report(changed, f"{pinned} {'serves' if wait else 'is asked for'}, and is pinned", output)

    run(target, work)


@click.command("unpin")
@name_argument()
@with_target
@output_option
def unpin(name: str, target: Target, output: str | None) -> None:
    """Remove the pin of the dataset NAME.

    This removes spec.generation, so that the newest generation is rolled out. The generation that you rolled back from,
    and others of the same source and spec, are not: until the source changes, the present one keeps serving. If a tool
    applies the manifest, remove generation there too.

    \b
        kubectl lookupdb unpin airports
    """

    async def work(session: ClusterSession) -> None:
        dataset = await session.get_dataset(name)
        pinned = dataset.spec.get("generation")
        if pinned is None:
            _report(dataset, "nothing is pinned", output)
            return
        changed = await session.patch_dataset(dataset, {"spec": {"generation": None}})
        _report(changed, f"{pinned} is not pinned any more", output)

    run(target, work)


async def _wait(session: ClusterSession, dataset: Dataset, judge: Judge, timeout: float) -> tuple[Dataset, str]:
    """Wait until ``judge`` finds the change done. Return the dataset and the outcome. Raises NotDone."""
    name = dataset.name
    polls, last_news = Polls(f"LookupDataset {name}", timeout), ""
    while True:
        found, answered = judge(dataset), polls.answered_seconds
        if found.is_done:
            return dataset, found.outcome
        if found.failure:
            raise NotDone(f"{dataset.key}: {found.failure}")
        if polls.are_over:
            waits_for = f"it waits for {_describe_wait(found, answered)}{polls.describe_trouble()}"
            raise NotDone(f"{dataset.key} is not done after {timeout:g} s: {waits_for}")
        if not polls.trouble and (news := _find_news(found, answered, last_news)):
            last_news = news
            click.echo(clean(news), err=True)
        await asyncio.sleep(_EVERY)
        dataset = await polls.look(lambda: session.get_dataset(name)) or dataset


def _describe_wait(found: ChangeProgress, answered: float) -> str:
    """Return what it waits for. ``answered`` is the number of seconds for which the API server has been answering:
    while it does not, nothing is known about the operator."""
    if found.is_taken_up:
        return found.waits_for
    return "the operator to take it up" if answered < _SILENCE_SECONDS else changes.describe_silence(answered)


def _find_news(found: ChangeProgress, answered: float, last_news: str) -> str:
    """Return news in ``found`` since ``last_news``; empty if none."""
    if found.is_taken_up:
        return "" if found.waits_for == last_news else found.waits_for
    silence = f"It waits for {changes.describe_silence(_SILENCE_SECONDS)}"
    return "" if answered < _SILENCE_SECONDS or silence == last_news else silence


def _report(dataset: Dataset, sentence: str, output: str | None) -> None:
    if output == JSON:
        answer: dict[str, Any] = {"namespace": dataset.namespace, "name": dataset.name, "status": dict(dataset.status)}
        print_json(answer)
    else:
        click.echo(f"{dataset.key}: {sentence}")
