"""``refresh``, ``promote``, ``reject``, ``override-gates``, ``rollback``, ``pin`` and ``unpin``: each writes the
LookupDataset once.

With --wait, they then follow what the operator does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import click

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.console.dataset import Dataset
from lookupdb_operator.console.facts import clean
from lookupdb_operator.plugin import changes
from lookupdb_operator.plugin.changes import ChangeProgress
from lookupdb_operator.plugin.options import (
    Verb,
    generation_argument,
    json_option,
    name_argument,
    print_json,
    run,
    wait_options,
    with_target,
)
from lookupdb_operator.plugin.session import DatasetSession, Polls, Target
from lookupdb_operator.plugin.views import summarize_dataset

_EVERY: Final = 0.5
"""Seconds between polls while a command waits."""
_SILENCE_SECONDS: Final = 10.0
"""Seconds without a reaction of the operator before a message; usually the operator takes about one."""


@click.command("refresh", cls=Verb)
@name_argument
@with_target
@wait_options
@json_option
def refresh(name: str, target: Target, wait: bool, timeout: float, as_json: bool) -> None:
    """Build DATASET from the current state of its source.

    This sets the annotation lookupdb.dev/refresh to a new value. With --wait, the command returns once the new
    generation serves, or is a candidate that waits for promotion, or the source was found unchanged. Exit code 1 means
    that the build failed, that the new generation waits because another one is pinned, or that the refresh was
    withdrawn. The operator keeps trying after a failure.

    \b
        kubectl lookupdb refresh airports --wait
    """
    value = datetime.now(UTC).isoformat(timespec="milliseconds")

    async def work(session: DatasetSession) -> None:
        dataset = await _get(session, name, waits=wait)
        earlier = [generation["generation"] for generation in dataset.status.get("generations") or ()]
        changed, outcome = await session.patch_dataset(dataset, changes.annotate(names.REFRESH, value)), ""
        if wait:
            last = changed.status.get("lastGeneration", 0)
            changed, outcome = await _wait(
                session, changed, lambda now: changes.judge_refresh(now, value, earlier, last), timeout
            )
        requested, pinned = f"refresh {value} is requested", dataset.spec.get("generation")
        if pinned is not None:
            requested += f"; {pinned} is pinned, and serves until {dataset.command('unpin')}"
        _report(changed, f"the refresh is done: {outcome}" if wait else requested, as_json)

    run(target, work)


@click.command("promote", cls=Verb)
@name_argument
@generation_argument()
@with_target
@wait_options
@json_option
def promote(name: str, generation: str | None, target: Target, wait: bool, timeout: float, as_json: bool) -> None:
    """Promote the candidate of DATASET: let it serve.

    A candidate is a generation that waits because of spec.rollout.promotion: Manual. With GENERATION, the command fails
    unless that is the candidate. This sets the annotation lookupdb.dev/promote.

    \b
        kubectl lookupdb get airports KJFK --generation g13    # look at it first
        kubectl lookupdb diff airports
        kubectl lookupdb promote airports g13 --wait
    """

    async def work(session: DatasetSession) -> None:
        dataset = await _get(session, name, waits=wait)
        promoted = changes.find_promotable(dataset, generation)
        changed = await session.patch_dataset(dataset, changes.annotate(names.PROMOTE, promoted))
        if wait:
            changed, _ = await _wait(session, changed, lambda now: changes.judge_promotion(now, promoted), timeout)
        _report(changed, f"{promoted} {'serves' if wait else 'is promoted'}", as_json)

    run(target, work)


@click.command("reject", cls=Verb)
@name_argument
@generation_argument()
@with_target
@json_option
def reject(name: str, generation: str | None, target: Target, as_json: bool) -> None:
    """Reject the candidate of DATASET.

    With GENERATION, the command fails unless that is the candidate. The candidate's servers end, and no generation of
    the same source and spec becomes a candidate again. This sets the annotation lookupdb.dev/reject. For a generation
    that serves already, use `rollback`.

    \b
        kubectl lookupdb reject airports g13
    """

    async def work(session: DatasetSession) -> None:
        dataset = await session.get_dataset(name)
        rejected = changes.find_candidate(dataset, generation)
        changed = await session.patch_dataset(dataset, changes.annotate(names.REJECT, rejected))
        _report(changed, f"{rejected} is rejected", as_json)

    run(target, work)


@click.command("override-gates", cls=Verb)
@name_argument
@generation_argument()
@with_target
@json_option
def override_gates(name: str, generation: str | None, target: Target, as_json: bool) -> None:
    """Override the gates that rejected the newest generation of DATASET: let it be rolled out.

    With GENERATION, the command fails unless that is the rejected one. Gates compare the next generation with the
    overridden one. This sets the annotation lookupdb.dev/override-gates.

    \b
        kubectl lookupdb status airports    # why it was rejected
        kubectl lookupdb override-gates airports g13
    """

    async def work(session: DatasetSession) -> None:
        dataset = await session.get_dataset(name)
        rejected = changes.find_rejected(dataset, generation)
        changed = await session.patch_dataset(dataset, changes.annotate(names.OVERRIDE_GATES, rejected))
        _report(changed, f"the gates of {rejected} are overridden", as_json)

    run(target, work)


@click.command("rollback", cls=Verb)
@name_argument
@generation_argument()
@with_target
@wait_options
@json_option
def rollback(name: str, generation: str | None, target: Target, wait: bool, timeout: float, as_json: bool) -> None:
    """Serve an older generation of DATASET, and pin it.

    Without GENERATION, that is the generation that served last before the active one. While a generation is pinned, as
    after a rollback, GENERATION is required.

    This sets spec.generation: refreshes still build, but no new generation serves until `unpin`. Even then, the
    generation that you rolled back from does not serve again until source or spec changes. If a tool applies the
    manifest, set generation there too, or the tool removes it.

    \b
        kubectl lookupdb rollback airports --wait
        kubectl lookupdb rollback airports g10 --wait
    """
    _pin(name, generation, target, timeout if wait else None, as_json=as_json)


@click.command("pin", cls=Verb)
@name_argument
@generation_argument(required=True)
@with_target
@wait_options
@json_option
def pin(name: str, generation: str, target: Target, wait: bool, timeout: float, as_json: bool) -> None:
    """Pin GENERATION of DATASET: no other one serves until `unpin`.

    This sets spec.generation, as `rollback` does. If a tool applies the manifest, set generation there too, or the tool
    removes it.

    \b
        kubectl lookupdb pin airports g12
    """
    _pin(name, generation, target, timeout if wait else None, as_json=as_json)


def _pin(name: str, generation: str | None, target: Target, timeout: float | None, *, as_json: bool) -> None:
    async def work(session: DatasetSession) -> None:
        dataset = await _get(session, name, waits=timeout is not None)
        change = changes.roll_back(dataset, generation)
        pinned = str(change["spec"]["generation"])
        changed = await session.patch_dataset(dataset, change)
        if timeout is not None:
            changed, _ = await _wait(session, changed, lambda now: changes.judge_rollback(now, pinned), timeout)
        _report(changed, f"{pinned} {'is requested' if timeout is None else 'serves'}, and is pinned", as_json)

    run(target, work)


@click.command("unpin", cls=Verb)
@name_argument
@with_target
@wait_options
@json_option
def unpin(name: str, target: Target, wait: bool, timeout: float, as_json: bool) -> None:
    """Remove the pin of DATASET.

    This removes spec.generation, so that the newest generation is rolled out. The exception is a generation that you
    rolled back from, or another of the same source and spec: until these change, the present one keeps serving.
    If a tool applies the manifest, remove generation there too.

    \b
        kubectl lookupdb unpin airports
    """

    async def work(session: DatasetSession) -> None:
        dataset = await _get(session, name, waits=wait)
        pinned = dataset.spec.get("generation")
        if pinned is None:
            _report(dataset, "nothing is pinned", as_json, is_change=False)
            return
        changed, outcome = await session.patch_dataset(dataset, {"spec": {"generation": None}}), ""
        if wait:
            changed, outcome = await _wait(session, changed, changes.judge_unpin, timeout)
        _report(changed, f"{pinned} is no longer pinned{outcome and f'; {outcome}'}", as_json)

    run(target, work)


async def _get(session: DatasetSession, name: str, *, waits: bool) -> Dataset:
    """Return the dataset. Raises NotPossible if the command ``waits``, but nothing runs that would make the change."""
    dataset = await session.get_dataset(name)
    if waits:
        dataset.check_runs()
    return dataset


async def _wait(
    session: DatasetSession, dataset: Dataset, judge: Callable[[Dataset], ChangeProgress], timeout: float
) -> tuple[Dataset, str]:
    """Wait until ``judge`` finds the change done. Return the dataset and the outcome. Raises LookupdbError if it fails,
    or takes too long."""
    name = dataset.name
    polls, last_news = Polls(f"LookupDataset {name}", timeout), ""
    while True:
        found, answered = judge(dataset), polls.answered_seconds
        if found.is_done:
            return dataset, found.outcome
        if found.failure:
            raise LookupdbError(f"{dataset.key}: {found.failure}")
        # While the API server does not answer, nothing is known about the operator.
        is_silent = not found.is_taken_up and answered >= _SILENCE_SECONDS
        if polls.are_over:
            waits_for = found.waits_for if found.is_taken_up else "the operator to take it up"
            waits_for = changes.describe_silence(dataset, answered) if is_silent else waits_for
            trouble = polls.describe_trouble()
            raise LookupdbError(f"{dataset.key} is not done after {timeout:g} s: it waits for {waits_for}{trouble}")
        news = found.waits_for if found.is_taken_up else ""
        news = f"It waits for {changes.describe_silence(dataset, _SILENCE_SECONDS)}" if is_silent else news
        if not polls.trouble and news not in ("", last_news):
            last_news = news
            click.echo(clean(news), err=True)
        await asyncio.sleep(_EVERY)
        dataset = await polls.look(lambda: session.get_dataset(name)) or dataset


def _report(dataset: Dataset, sentence: str, as_json: bool, *, is_change: bool = True) -> None:
    if as_json:
        print_json(summarize_dataset(dataset))
    else:
        when = "; it takes effect at the next `lookupdb up`" if is_change and dataset.is_stopped else ""
        click.echo(f"{dataset.key}: {sentence}{when}")
