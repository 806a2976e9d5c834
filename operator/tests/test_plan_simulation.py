"""Faults of every kind at any moment: no two generations in one table, nothing in use goes, and in the end what is
asked for serves. The simulation itself is tested with plans that are wrong on purpose."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import orjson
import pytest
from operator_support import soak
from operator_support.plan_world import Conflict, Planner, World
from operator_support.simulation import Simulation

from lookupdb_operator import manifests, names
from lookupdb_operator.model import Absence, Config, Manifest, Observed, Plan, RouterReport, format_moment, parse_moment
from lookupdb_operator.plan import plan, windows
from lookupdb_operator.status import BuildStatus, shorten_shards

pytestmark = pytest.mark.long

STEPS = 20_000
"""Passes of ``plan()`` in random lives of every kind (``operator_support.soak``). CI runs 100,000 more, by ``make
soak``."""
PARTS = 10
"""Number of tests that share them."""
MOMENTS = 50
SEEDS_TO_FIND_A_MUTANT = 100
KNOWN_SEEDS = {
    "lets through what was overridden before it was refused": 51,
    "does not wait for routers that are down": 67,
    "forgets which refresh was answered": 57,
    "trims what is pinned": 25,
    "measures a drain by a clock that is set": 13,
    "scales down before the table says so": 7,
    "rolls out what a gate has refused": 4,
    "takes routers for confirmed": 3,
    "ignores that it is suspended": 2,
    "keeps every rollout that has drained": 2,
    "promotes what nobody has promoted": 13,
    "stops a candidate at once": 13,
}
"""Lives that find mutants which the first ones do not notice; they come first, which saves half a minute. If the
simulation changes, all lives are searched."""


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_fails_what_serves_stays_and_in_the_end_all_is_as_asked_for(part: int) -> None:
    lived = soak.run(seed=1000 * part, steps=STEPS // PARTS, seconds=float("inf"))
    assert lived.steps >= STEPS // PARTS
    assert not lived.broken, "\n".join(lived.broken)


def test_what_fails_is_got_over_by_many_generations_and_writes_that_are_refused() -> None:
    lives = [Simulation(seed).live(MOMENTS) for seed in range(10)]
    assert sum(life.cutovers for life in lives) > 0
    assert sum(life.conflicts for life in lives) > 0


def test_what_is_promoted_or_rejected_has_waited_for_it() -> None:
    simulations = [Simulation(seed, promotes=True) for seed in range(10)]
    for simulation in simulations:
        simulation.live(2 * MOMENTS)
    assert any(simulation.world.invariants.candidates for simulation in simulations), "nothing ever waited"


def test_what_is_rolled_out_shard_by_shard_serves_beside_what_it_replaces() -> None:
    simulations = [Simulation(seed, surges=True) for seed in range(10)]
    for simulation in simulations:
        simulation.live(MOMENTS)
    assert any(_mixes(simulation) for simulation in simulations), "no rollout ever went on shard by shard"


def test_there_are_never_more_servers_than_one_rollout_and_the_surge_have() -> None:
    simulations = [Simulation(seed, surges=True) for seed in range(5)]
    for simulation in simulations:
        simulation.live_shard_by_shard(4 * MOMENTS)
    assert all(_mixes(simulation) for simulation in simulations)


def _mixes(simulation: Simulation) -> bool:
    """Return whether any routing table was of several generations."""
    return any(b'"formatVersion":2' in table.encode() for table in simulation.world.invariants.tables.values())


@pytest.mark.parametrize("seed", range(4))
def test_newer_data_is_served_again_and_again_however_often_it_comes(seed: int) -> None:
    simulation = Simulation(seed)
    takes = simulation.world.takes
    lasted = simulation.live_under_refreshes(900)
    once = takes.build + takes.start + takes.slow_table + 10
    assert len(lasted) > 900 / (4 * once)
    assert max(lasted) < 4 * once + 130, lasted  # 120 s is what a router that is down may have mounted


def test_what_was_rolled_back_from_stays_away_however_often_that_happens() -> None:
    assert sum(Simulation(seed).live_under_rollbacks(6) for seed in range(10)) > 20


def _changed(change: Callable[[Plan, Observed], Plan]) -> Planner:
    def planner(observed: Observed, config: Config, now: datetime) -> Plan:
        return change(plan(observed, config, now), observed)

    return planner


def _retires_at_once(planned: Plan, observed: Observed) -> Plan:
    table = planned.status.table
    old = {one.rollout for one in planned.status.rollouts if table is not None and one.rollout != table.rollout}
    old -= {one.rollout for one in planned.status.rollouts if not one.referenced_replicas}
    gone = tuple(one.ref for one in observed.shard_sets if one.rollout in old)
    return replace(planned, delete=(*planned.delete, *gone))


def _scales_down_before_the_table_says_so(planned: Plan, observed: Observed) -> Plan:
    assert observed.dataset.parsed is not None
    replicas = observed.dataset.parsed.replicas
    fewer = tuple(
        manifests.render_scale(observed.dataset, rollout, one.shard, replicas)
        for rollout in planned.status.rollouts
        for one in observed.shard_sets
        if one.rollout == rollout.rollout and one.replicas > replicas
    )
    return replace(planned, apply=(*planned.apply, *fewer))


def _forgets_what_it_claimed(planned: Plan, observed: Observed) -> Plan:
    failed = planned.status.build is None and planned.status.failure is not None
    return replace(planned, status=replace(planned.status, last_generation=0)) if failed else planned


def _counts_no_tables(planned: Plan, observed: Observed) -> Plan:
    return replace(planned, apply=tuple(_with_version_1(one) for one in planned.apply))


def _with_version_1(manifest: Manifest) -> Manifest:
    return _with_table(manifest, lambda table: table | {"version": 1})


def _mixes_generations(planned: Plan, observed: Observed) -> Plan:
    def mixed(table: dict[str, Any]) -> dict[str, Any]:
        first = table["generations"][0]
        return table | {"generations": [first, first | {"generation": "g1"}]}

    return replace(planned, apply=tuple(_with_table(one, mixed) for one in planned.apply))


def _with_table(manifest: Manifest, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Manifest:
    if not manifest["metadata"]["name"].endswith("-routing-table"):
        return manifest
    table = change(orjson.loads(manifest["data"][names.TABLE_FILE]))
    return {**manifest, "data": {names.TABLE_FILE: orjson.dumps(table).decode()}}


def _leaves_garbage(planned: Plan, observed: Observed) -> Plan:
    return replace(planned, delete=())


def _is_never_done(planned: Plan, observed: Observed) -> Plan:
    return replace(planned, status=replace(planned.status, endpoint=observed.dataset.resource_version))


def _believes_routers_unasked(observed: Observed, config: Config, now: datetime) -> Plan:
    """Trusts routers without asking them: those that are to confirm a table, and those behind, which restart a
    drain."""
    table = observed.dataset.status.table
    version = table.version if table else None
    every = {
        pod.uid: RouterReport(version, newest=version or 0) for pod in observed.pods if pod.component == names.ROUTER
    }
    return _believes_the_clock_on_the_wall(replace(observed, routers=every), config, now)


def _forgets_rollouts_named_before(observed: Observed, config: Config, now: datetime) -> Plan:
    status = observed.dataset.status
    table = status.table
    rollouts = tuple(
        one if table is not None and one.rollout == table.rollout else replace(one, referenced_replicas=0)
        for one in status.rollouts
    )
    return plan(
        replace(observed, dataset=replace(observed.dataset, status=replace(status, rollouts=rollouts))), config, now
    )


def _forgets_which_refresh_was_answered(observed: Observed, config: Config, now: datetime) -> Plan:
    status = observed.dataset.status
    status = replace(
        status,
        refreshed_by=0,
        generations=tuple(replace(one, refresh=observed.dataset.refresh) for one in status.generations),
    )
    planned = plan(replace(observed, dataset=replace(observed.dataset, status=status)), config, now)
    return planned


def _is_in_a_hurry(observed: Observed, config: Config, now: datetime) -> Plan:
    """Takes the last write for what routers that are down have mounted."""
    others = tuple(pod for pod in observed.pods if pod.component != names.ROUTER or pod.ready)
    return plan(replace(observed, pods=others), config, now)


def _believes_the_clock_on_the_wall(observed: Observed, config: Config, now: datetime) -> Plan:
    table = observed.dataset.status.table
    if table is not None and table.confirmed_at:
        passed = (now - parse_moment(table.confirmed_at)).total_seconds()
        observed = replace(observed, seconds_confirmed=passed)
    return plan(observed, config, now)


def _takes_pods_for_lost_by_the_clock_on_the_wall(observed: Observed, config: Config, now: datetime) -> Plan:
    passed = {pod.uid: (now - pod.deletion.due).total_seconds() for pod in observed.pods if pod.deletion is not None}
    absences = {uid: Absence(seconds, seconds) for uid, seconds in passed.items()}
    return plan(replace(observed, absences={**observed.absences, **absences}), config, now)


def _ignores_the_pin(observed: Observed, config: Config, now: datetime) -> Plan:
    spec = {name: value for name, value in observed.dataset.spec.items() if name != "generation"}
    return plan(replace(observed, dataset=replace(observed.dataset, spec=spec, renderings={})), config, now)


def _forgets_what_was_rolled_back_from(observed: Observed, config: Config, now: datetime) -> Plan:
    status = replace(observed.dataset.status, rolled_back=())
    return plan(replace(observed, dataset=replace(observed.dataset, status=status)), config, now)


def _ignores_that_it_is_suspended(observed: Observed, config: Config, now: datetime) -> Plan:
    spec = {**observed.dataset.spec, "suspend": False}
    return plan(replace(observed, dataset=replace(observed.dataset, spec=spec, renderings={})), config, now)


def _trims_what_is_pinned(planned: Plan, observed: Observed) -> Plan:
    used = {planned.status.generation, *(rollout.generation for rollout in planned.status.rollouts)}
    newest = planned.status.generations[-1:]
    kept = (one for one in planned.status.generations if one.generation in used or one in newest)
    return replace(planned, status=replace(planned.status, generations=tuple(kept)))


def _keeps_every_rollout_that_has_drained(planned: Plan, observed: Observed) -> Plan:
    kept = {one.rollout: one for one in observed.dataset.status.rollouts if one.kept_since}
    gone = kept.keys() - {one.rollout for one in planned.status.rollouts}
    rollouts = (*(kept[name] for name in sorted(gone)), *planned.status.rollouts)
    return replace(planned, status=replace(planned.status, rollouts=rollouts))


def _checks_every_slot_again(observed: Observed, config: Config, now: datetime) -> Plan:
    status = observed.dataset.status
    if status.schedule is not None and status.build is None:
        status = replace(status, schedule=replace(status.schedule, due=status.schedule.slot))
    return plan(replace(observed, dataset=replace(observed.dataset, status=status)), config, now)


def _makes_up_for_what_was_missed(planned: Plan, observed: Observed) -> Plan:
    """Makes up for one slot after the other, and then for the newest one."""
    before, after = observed.dataset.status.schedule, planned.status.schedule
    if before is None or after is None or not after.due or after.due == before.due:
        return planned
    missed = parse_moment(after.slot) - timedelta(seconds=30)
    if missed <= parse_moment(before.slot):
        return planned
    schedule = replace(after, slot=format_moment(missed), due=format_moment(missed))
    return replace(planned, status=replace(planned.status, schedule=schedule, next_check=after.slot))


def _builds_unasked(planned: Plan, observed: Observed) -> Plan:
    status = planned.status
    if status.build is not None or not status.generations:
        return planned
    number = status.last_generation + 1
    build = BuildStatus(names.generation_name(number), status.generations[-1].content, "", "", status.last_checked)
    return replace(planned, status=replace(status, build=build, last_generation=number))


def _lets_refused_ones_through(observed: Observed, config: Config, now: datetime) -> Plan:
    dataset = observed.dataset
    refused = dataset.status.refused
    if refused is not None:
        status = replace(dataset.status, refused=replace(refused, premature_override=""))
        dataset = replace(dataset, override_gates=refused.generation, status=status)
    return plan(replace(observed, dataset=dataset), config, now)


def _lets_through_what_nobody_has_looked_at(observed: Observed, config: Config, now: datetime) -> Plan:
    planned = plan(observed, config, now)
    refused = planned.status.refused
    if refused is None:
        return planned
    return replace(planned, status=replace(planned.status, refused=replace(refused, premature_override="")))


def _promotes_everything(observed: Observed, config: Config, now: datetime) -> Plan:
    spec = observed.dataset.spec
    rollout = {**spec["rollout"], "promotion": "Auto"}
    dataset = replace(observed.dataset, spec={**spec, "rollout": rollout}, renderings={})
    return plan(replace(observed, dataset=dataset), config, now)


def _forgets_rejections(observed: Observed, config: Config, now: datetime) -> Plan:
    status = replace(observed.dataset.status, rejected=())
    return plan(replace(observed, dataset=replace(observed.dataset, status=status, reject="")), config, now)


def _stops_what_has_left_the_table(planned: Plan, observed: Observed) -> Plan:
    """Stops the servers of a former candidate."""
    candidate = planned.status.candidate
    offered = {one.rollout for one in observed.dataset.status.rollouts if one.offered_replicas}
    offered -= {candidate.rollout} if candidate is not None else set()
    gone = tuple(one.ref for one in observed.shard_sets if one.rollout in offered)
    return replace(planned, delete=(*planned.delete, *gone))


def _sees_nothing_that_is_left_over(observed: Observed, config: Config, now: datetime) -> Plan:
    """Sees no servers of shards that have none by the status."""
    held = {
        rollout.rollout: windows.held_shards(rollout, observed.dataset.status)
        for rollout in observed.dataset.status.rollouts
    }
    sets = tuple(one for one in observed.shard_sets if one.shard in held.get(one.rollout, ()))
    pods = tuple(
        one for one in observed.pods if one.component != names.SHARDS or one.shard in held.get(one.rollout, ())
    )
    planned = plan(replace(observed, shard_sets=sets, pods=pods), config, now)
    return replace(planned, delete=(*planned.delete, *(one.ref for one in observed.shard_sets if one not in sets)))


def _stops_what_is_replaced_at_once(planned: Plan, observed: Observed) -> Plan:
    """Stops the servers of shards that the newest table routes elsewhere."""
    status = planned.status
    parts = {part.rollout for part in status.table.parts} if status.table is not None else set()
    routed = {
        rollout.rollout: windows.routed_shards(rollout, status)
        for rollout in status.rollouts
        if rollout.rollout in parts
    }
    gone = tuple(
        one.ref for one in observed.shard_sets if one.rollout in parts and one.shard not in routed[one.rollout]
    )
    return replace(planned, delete=(*planned.delete, *gone))


def _makes_the_next_window_too_early(observed: Observed, config: Config, now: datetime) -> Plan:
    """Begins a window once a table is written, whether or not routers have it and the replaced servers are gone."""
    planned, table = plan(observed, config, now), observed.dataset.status.table
    if table is None or not table.parts or table.confirmed_at:
        return planned
    status = planned.status
    target = status.find_rollout(table.rollout)
    if target is None or target.window:
        return planned
    missing = frozenset(range(5)) - windows.held_shards(target, status)
    wider = (
        replace(
            target,
            shard_ranges=shorten_shards(windows.held_shards(target, status) | {min(missing)}, 5),
            window=str(min(missing)),
        )
        if missing
        else target
    )
    rollouts = tuple(wider if rollout == target else rollout for rollout in status.rollouts)
    return replace(planned, status=replace(status, rollouts=rollouts))


MUTANTS: list[Any] = [
    pytest.param(_changed(_retires_at_once), id="retires without waiting for routers"),
    pytest.param(_changed(_scales_down_before_the_table_says_so), id="scales down before the table says so"),
    pytest.param(_changed(_forgets_what_it_claimed), id="forgets the numbers of failed builds"),
    pytest.param(_changed(_counts_no_tables), id="gives every table the same version"),
    pytest.param(_changed(_mixes_generations), id="mixes generations in a table"),
    pytest.param(_changed(_leaves_garbage), id="deletes nothing"),
    pytest.param(_changed(_is_never_done), id="writes at every pass"),
    pytest.param(_believes_routers_unasked, id="takes routers for confirmed"),
    pytest.param(_forgets_rollouts_named_before, id="forgets what older tables name"),
    pytest.param(_forgets_which_refresh_was_answered, id="forgets which refresh was answered"),
    pytest.param(_ignores_the_pin, id="ignores the pin"),
    pytest.param(_ignores_that_it_is_suspended, id="ignores that it is suspended"),
    pytest.param(_forgets_what_was_rolled_back_from, id="forgets what was rolled back from"),
    pytest.param(_changed(_trims_what_is_pinned), id="trims what is pinned"),
    pytest.param(_changed(_keeps_every_rollout_that_has_drained), id="keeps every rollout that has drained"),
    pytest.param(_checks_every_slot_again, id="checks every slot again"),
    pytest.param(_changed(_makes_up_for_what_was_missed), id="makes up for what was missed"),
    pytest.param(_changed(_builds_unasked), id="builds what nobody asked for"),
    pytest.param(_lets_refused_ones_through, id="rolls out what a gate has refused"),
    pytest.param(_lets_through_what_nobody_has_looked_at, id="lets through what was overridden before it was refused"),
    pytest.param(_believes_the_clock_on_the_wall, id="measures a drain by a clock that is set"),
    pytest.param(_takes_pods_for_lost_by_the_clock_on_the_wall, id="takes pods for lost by a clock that is set"),
    pytest.param(_is_in_a_hurry, id="does not wait for routers that are down"),
]


PROMOTION_MUTANTS: list[Any] = [
    pytest.param(_promotes_everything, id="promotes what nobody has promoted"),
    pytest.param(_forgets_rejections, id="forgets what was rejected"),
    pytest.param(_changed(_stops_what_has_left_the_table), id="stops a candidate at once"),
]


SURGE_MUTANTS: list[Any] = [
    pytest.param(_sees_nothing_that_is_left_over, id="does not wait until what was replaced is gone"),
    pytest.param(_changed(_stops_what_is_replaced_at_once), id="stops replaced shards at once"),
    pytest.param(_makes_the_next_window_too_early, id="makes the next window too early"),
    pytest.param(_believes_routers_unasked, id="takes routers for confirmed"),
]


@pytest.mark.parametrize("mutant", SURGE_MUTANTS)
def test_the_simulation_of_rollouts_shard_by_shard_finds_a_plan_that(mutant: Planner) -> None:
    with pytest.raises(AssertionError):
        _live_shard_by_shard(mutant)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_simulation_finds_a_plan_that(mutant: Planner, request: pytest.FixtureRequest) -> None:
    known_seed = KNOWN_SEEDS.get(request.node.callspec.id, 0)
    with pytest.raises(AssertionError):
        _live(mutant, known_seed)


def test_the_known_seeds_are_of_mutants() -> None:
    assert KNOWN_SEEDS.keys() <= {mutant.id for mutant in (*MUTANTS, *PROMOTION_MUTANTS)}


@pytest.mark.parametrize("mutant", PROMOTION_MUTANTS)
def test_the_simulation_of_promotions_finds_a_plan_that(mutant: Planner, request: pytest.FixtureRequest) -> None:
    known_seed = KNOWN_SEEDS.get(request.node.callspec.id, 0)
    with pytest.raises(AssertionError):
        _live_with_promotions(mutant, known_seed)


def _writes_after_a_stale_look(*, fenced: bool) -> int:
    """More routers are wanted, and their Deployment is written; then the earlier dataset is seen again."""
    world = World(fenced=fenced)
    world.settle()
    before = world.dataset
    world.edit(router={"replicas": 3})
    world.reconcile()
    planned = plan(replace(world.observe(), dataset=before), world.config, world.now)
    assert planned.status == before.status, "nothing is claimed, so that no claim can conflict"
    with contextlib.suppress(Conflict):
        world.carry_out(planned, before)
    routers: int = world.things["Deployment", "airports-router"].manifest["spec"]["replicas"]
    return routers


def test_an_operator_that_does_not_write_its_status_first_would_bring_back_an_older_wish() -> None:
    assert _writes_after_a_stale_look(fenced=False) == 2


def test_an_operator_that_writes_its_status_first_looks_again_instead() -> None:
    assert _writes_after_a_stale_look(fenced=True) == 3


def _live(planner: Planner, known_seed: int) -> None:
    lives = [(known_seed, MOMENTS), (known_seed, 2 * MOMENTS)]
    for seed, moments in (*lives, *((seed, MOMENTS) for seed in range(SEEDS_TO_FIND_A_MUTANT))):
        Simulation(seed, planner).live_under_rollbacks(3)
        Simulation(seed, planner).live(moments)


def _live_shard_by_shard(planner: Planner) -> None:
    for seed in range(SEEDS_TO_FIND_A_MUTANT):
        Simulation(seed, planner, surges=True).live_shard_by_shard(2 * MOMENTS)


def _live_with_promotions(planner: Planner, known_seed: int) -> None:
    for seed in (known_seed, *range(SEEDS_TO_FIND_A_MUTANT)):
        Simulation(seed, planner, promotes=True).live(2 * MOMENTS)
