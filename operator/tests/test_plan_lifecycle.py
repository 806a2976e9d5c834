"""The life of a generation and of a rollout, phase by phase, and the table of transitions that a pass executes."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from docs_tools import reference
from operator_support.plan_invariants import reachable
from operator_support.plan_samples import deleted, rebuilt, serving, unconfirmed
from operator_support.plan_world import World

from lookupdb_operator.plan import lifecycle
from lookupdb_operator.plan.lifecycle import GenerationPhase, Phase, RolloutPhase


def _phases(world: World) -> tuple[str, ...]:
    """Return the phases of r1, r2, g1 and g2."""
    status = world.status
    return (
        lifecycle.rollout_phase("r1", status).value,
        lifecycle.rollout_phase("r2", status).value,
        lifecycle.generation_phase("g1", status).value,
        lifecycle.generation_phase("g2", status).value,
    )


def test_a_rollout_and_its_generation_from_the_claim_to_the_end() -> None:
    world = World()
    assert _phases(world) == ("unclaimed", "unclaimed", "unclaimed", "unclaimed")
    world.reconcile()
    assert _phases(world) == ("unclaimed", "unclaimed", "building", "unclaimed")
    world.settle(until=lambda: world.status.last_rollout == 1)
    assert _phases(world) == ("claimed", "unclaimed", "rolled out", "unclaimed")
    world.settle(until=lambda: world.status.table is not None)
    assert _phases(world) == ("referenced", "unclaimed", "rolled out", "unclaimed")
    world.settle()
    assert _phases(world) == ("active", "unclaimed", "active", "unclaimed")
    rebuilt(world)
    assert _phases(world) == ("active", "claimed", "active", "rolled out")
    world.takes.start = 1
    world.settle(until=lambda: world.status.table is not None and world.status.table.version == 2)
    assert _phases(world) == ("superseded", "referenced", "active", "rolled out")
    world.settle(until=lambda: world.status.generation == "g2")
    assert _phases(world) == ("draining", "active", "rolled out", "active")
    world.settle()
    assert _phases(world) == ("gone", "active", "built", "active")


def test_a_candidate_that_nobody_asks_for_any_more_is_gone_at_once() -> None:
    world = rebuilt(serving())
    world.edit(source={"url": "s3://data/v1.csv"})
    planned = world.reconcile()
    assert _phases(world) == ("active", "gone", "active", "built")
    assert "StatefulSet/airports-r2-s0" in deleted(planned)


def test_a_candidate_beside_a_rollout_shard_by_shard_drains_when_something_newer_replaces_it() -> None:
    """A table of several generations names no candidate, so it drains at once."""
    world = serving(shards=4, rollout={"strategy": "PerShard", "drainSeconds": 5})
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: world.status.rollouts[-1].window == "2")
    world.edit(rollout={"promotion": "Manual", "drainSeconds": 5}, source={"url": "s3://data/v3.csv"})
    world.settle(until=lambda: _phase("r3", world) == "candidate")
    world.content_of_source = lambda url: f"{url} newer".ljust(64)
    world.annotate("now")
    world.settle(until=lambda: _phase("r3", world) != "candidate")
    assert (_phase("r3", world), _phase("r4", world)) == ("draining", "claimed")
    world.settle(until=lambda: _phase("r4", world) == "candidate")
    assert _phase("r3", world) == "gone"


def _phase(rollout: str, world: World) -> str:
    return lifecycle.rollout_phase(rollout, world.status).value


def test_what_a_newer_table_superseded_is_not_deleted_before_it_has_drained() -> None:
    world = unconfirmed(serving())
    world.now += timedelta(days=1)
    assert deleted(world.reconcile()) == set()
    assert _phases(world)[:2] == ("superseded", "referenced")


@pytest.mark.parametrize("phase", [RolloutPhase.REFERENCED, RolloutPhase.ACTIVE])
def test_no_pass_leads_to_the_end_of_a_rollout_that_the_newest_table_references(phase: RolloutPhase) -> None:
    assert RolloutPhase.GONE not in reachable(phase, recovers=False)


def test_what_is_gone_never_comes_back_but_servers_that_a_lost_status_finds_are_kept() -> None:
    assert reachable(GenerationPhase.GONE, recovers=True) == {GenerationPhase.GONE}
    assert reachable(RolloutPhase.GONE, recovers=False) == {RolloutPhase.GONE}
    assert RolloutPhase.SUPERSEDED in reachable(RolloutPhase.GONE, recovers=True)


def test_every_phase_is_reached_by_a_transition_and_all_but_the_end_are_left_by_one() -> None:
    edges = [edge for transition in lifecycle.TRANSITIONS for edge in transition.edges]
    phases: set[Phase] = {*RolloutPhase, *GenerationPhase}
    assert {after for _, after in edges} == phases - {RolloutPhase.UNCLAIMED, GenerationPhase.UNCLAIMED}
    left = {before for transition in lifecycle.TRANSITIONS[1:] for before, _ in transition.edges}
    assert left == phases - {RolloutPhase.GONE, GenerationPhase.GONE}


def test_the_documentation_shows_the_table_that_is_executed() -> None:
    text = reference.page("reference/lifecycle.md")
    told = re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE)
    assert told == [transition.name for transition in lifecycle.TRANSITIONS]
    for transition in lifecycle.TRANSITIONS:
        for cell in (transition.when, transition.written_first, transition.may_be_deleted):
            assert f"| {cell} |" in text
    assert "| referenced → active; superseded → draining | rolled out → active;" in text
