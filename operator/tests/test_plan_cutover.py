"""From one routing table to the next: when it is written, when it is in effect, when the old servers go."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import cache

import orjson
import pytest
from operator_support.plan_samples import (
    applied,
    condition,
    copy_of,
    deleted,
    rebuilt,
    says,
    serving,
    trouble,
    unconfirmed,
)
from operator_support.plan_world import NEVER, World
from operator_support.world_tables import written_table

from lookupdb_operator import names
from lookupdb_operator.model import RouterReport


def _routers(world: World) -> list[str]:
    return sorted(name for name, pod in world.pods.items() if pod.component == names.ROUTER)


class TestWriting:
    def test_waits_for_the_last_server_of_the_last_shard(self) -> None:
        world = rebuilt(serving())
        servers = [pod for pod in world.pods.values() if "-r2-" in pod.name]
        for pod in servers[1:]:
            pod.ready = True
        assert world.look().status.table == world.status.table
        servers[0].ready = True
        table = world.look().status.table
        assert table is not None
        assert (table.version, table.rollout, table.generation, table.confirmed_at) == (2, "r2", "g2", "")

    def test_tells_every_router_pod(self) -> None:
        world = rebuilt(serving())
        for pod in world.pods.values():
            pod.ready = True
        planned = world.reconcile()
        assert {"ConfigMap/airports-routing-table", *(f"Pod/{name}" for name in _routers(world))} <= applied(planned)
        assert planned.ask_routers
        assert not any("Pod/" in one for one in applied(world.look()))

    def test_is_not_undone_by_a_server_that_fails_later(self) -> None:
        world = serving()
        next(pod for pod in world.pods.values() if pod.component == "shard").ready = False
        planned = world.reconcile()
        assert applied(planned) == set()
        assert says(planned)["Ready"] == "True Serving"
        assert says(planned)["Degraded"] == "True ShardsUnavailable"
        assert "1 of 2 servers" in condition(planned, "Degraded").message

    def test_does_not_believe_that_two_of_three_are_the_first_two(self) -> None:
        world = rebuilt(serving(replicas=3))
        world.edit(replicas=2)
        for pod in world.pods.values():
            pod.ready = not pod.name.endswith("s0-0")
        table = world.look().status.table
        assert table is not None
        assert table.rollout == "r1"


class TestConfirming:
    def test_waits_for_every_router_and_keeps_the_old_servers(self) -> None:
        world = unconfirmed(serving())
        planned = world.look()
        assert says(planned) == {
            "Ready": "True Serving",
            "Built": "True GenerationBuilt",
            "RolledOut": "False Confirming",
            "Degraded": "False Healthy",
        }
        assert (planned.status.generation, deleted(planned)) == ("g1", set())
        assert planned.next_look_in == pytest.approx(0.5)

    def test_that_takes_too_long_names_the_router(self) -> None:
        world = unconfirmed(serving())
        late, other = _routers(world)
        assert world.status.table is not None
        world.pods[other].table = written_table(world)
        world.now += timedelta(seconds=70)
        planned = world.look()
        assert says(planned)["RolledOut"] == "False NotConfirmed"
        assert says(planned)["Degraded"] == "True NotConfirmed"
        assert says(planned)["Ready"] == "True Serving"
        message = condition(planned, "RolledOut").message
        assert late in message
        assert other not in message
        assert deleted(planned) == set()

    @pytest.mark.parametrize(
        ("routers", "is_confirmed"),
        [
            pytest.param([(2, {})], True, id="one, which answers from it"),
            pytest.param([(3, {})], False, id="one, which answers from a newer one"),
            pytest.param([(2, {}), (1, {})], False, id="two, one of them behind"),
            pytest.param([(2, {}), (None, {})], False, id="two, one without any table"),
            pytest.param([(2, {}), (1, {"ready": False})], False, id="two, one behind and not ready"),
            pytest.param([(2, {}), (1, {"deleting": True})], True, id="two, one being deleted"),
            pytest.param([(2, {}), (None, {"ready": False, "phase": "Pending"})], True, id="two, one not started"),
            pytest.param([(2, {}), (None, {"ready": False, "phase": "Failed"})], True, id="two, one evicted"),
            pytest.param(
                [(2, {}), (None, {"ready": False, "trouble": trouble("CrashLooping")})],
                True,
                id="two, one that crashes",
            ),
            pytest.param(
                [(2, {}), (None, {"ready": False, "trouble": trouble("OutOfMemory")})],
                True,
                id="two, one that runs out of memory again and again",
            ),
            pytest.param(
                [(2, {}), (1, {"ready": False, "trouble": trouble("OutOfMemory")})],
                False,
                id="two, one that ran out of memory and answers from an older one again",
            ),
            pytest.param(
                [(2, {}), (None, {"trouble": trouble("OutOfMemory")})],
                False,
                id="two, one that takes requests, and does not answer when it is asked",
            ),
            pytest.param(
                [(2, {}), (None, {"ready": False})], False, id="two, one that is not ready and does not answer"
            ),
            pytest.param([(None, {"ready": False, "trouble": trouble("OutOfMemory")})], False, id="one, which is down"),
            pytest.param([], False, id="none"),
        ],
    )
    def test_of(self, routers: list[tuple[int | None, dict[str, object]]], is_confirmed: bool) -> None:
        world = unconfirmed(serving())
        observed = world.observe()
        some = next(pod for pod in observed.pods if pod.component == names.ROUTER)
        pods = [replace(some, uid=str(at), name=f"r-{at}", **how) for at, (_, how) in enumerate(routers)]  # type: ignore[arg-type]
        reports = {str(at): RouterReport(version, newest=version or 0) for at, (version, _) in enumerate(routers)}
        others = tuple(pod for pod in observed.pods if pod.component != names.ROUTER)
        planned = world.planner(replace(observed, pods=(*others, *pods), routers=reports), world.config, world.now)
        assert planned.status.table is not None
        assert bool(planned.status.table.confirmed_at) == is_confirmed
        assert planned.status.generation == ("g2" if is_confirmed else "g1")

    def test_a_router_that_says_that_it_has_no_table_and_is_not_ready_keeps_nobody_waiting(self) -> None:
        world = unconfirmed(serving())
        late, other = (world.pods[name] for name in _routers(world))
        other.table = written_table(world)
        late.ready, late.table = False, None
        table = world.look().status.table
        assert table is not None
        assert table.confirmed_at

    def test_routers_that_were_not_asked_confirm_nothing(self) -> None:
        world = unconfirmed(serving())
        planned = world.planner(replace(world.observe(), routers={}), world.config, world.now)
        assert planned.status.table is not None
        assert planned.status.table.confirmed_at == ""


def _draining() -> World:
    return copy_of(_first_draining())


@cache
def _first_draining() -> World:
    world = unconfirmed(serving())
    world.takes.table = 1
    world.settle(until=lambda: world.status.generation == "g2")
    world.look()  # from now on the operator has seen it
    return world


class TestDraining:
    def test_keeps_the_old_servers_for_the_drain_time_and_a_lookups_longest(self) -> None:
        world = _draining()
        planned = world.reconcile()
        assert says(planned)["RolledOut"] == "True Draining"
        assert planned.next_look_in == pytest.approx(11, abs=1.5)
        assert planned.ask_routers
        confirmed = world.now
        world.now = confirmed + timedelta(seconds=10.9)
        assert deleted(world.look()) == set()
        world.now = confirmed + timedelta(seconds=13)
        planned = world.reconcile()
        assert {"StatefulSet/airports-r1-s0", "PodDisruptionBudget/airports-r1-s1", "Service/airports-r1"} <= deleted(
            planned
        )
        assert says(planned)["RolledOut"] == "True UpToDate"
        assert not planned.ask_routers

    def test_waits_for_a_router_that_came_up_with_an_older_table(self) -> None:
        world = _draining()
        world.now += timedelta(seconds=60)
        name = _routers(world)[0]
        table = world.pods[name].table
        world.pods[name].table = {**(table or {}), "version": 1}
        planned = world.reconcile()
        assert deleted(planned) == set()
        assert says(planned)["RolledOut"] == "False Confirming"
        world.pods[name].table = table
        assert says(world.reconcile())["RolledOut"] == "True Draining"
        assert deleted(world.look()) == set(), "lookups that it began are still in flight"
        world.now += timedelta(seconds=13)
        assert "StatefulSet/airports-r1-s0" in deleted(world.look())

    def test_waits_longer_while_a_router_is_being_stopped_that_still_takes_requests(self) -> None:
        world = _draining()
        world.edit(router={"drainSeconds": 100})
        world.takes.stop = NEVER
        world.stop(world.pods[_routers(world)[0]])
        world.now += timedelta(seconds=50)
        assert deleted(world.look()) == set()
        world.now += timedelta(seconds=55)
        assert "StatefulSet/airports-r1-s0" in deleted(world.look())

    def test_waits_for_what_a_router_that_is_down_may_have_mounted(self) -> None:
        """It restarts with the previous table, because its kubelet has not synced the new one."""
        world = _draining()
        world.crash(world.pods[_routers(world)[0]], NEVER)
        world.now += timedelta(seconds=100)
        planned = world.reconcile()
        assert deleted(planned) == set()
        assert planned.next_look_in == pytest.approx(21, abs=1.5)
        world.now += timedelta(seconds=planned.next_look_in or 0)
        assert "StatefulSet/airports-r1-s0" in deleted(world.look()), "it does not keep it for ever"

    def test_waits_for_a_router_that_was_started_again_with_an_older_table(self) -> None:
        world = unconfirmed(serving())
        written = world.things["ConfigMap", "airports-routing-table"].manifest["data"][names.TABLE_FILE]
        late, other = (world.pods[name] for name in _routers(world))
        other.table = other.mounted = orjson.loads(written)
        world.crash(late, 30)
        assert world.reconcile().status.generation == "g2", "who is down keeps nobody waiting"
        world.live(300)
        assert late.table is not None
        assert late.table["version"] == 1
        assert [rollout.rollout for rollout in world.status.rollouts] == ["r1", "r2"]
        late.table = late.mounted = other.table
        world.settle()

    @pytest.mark.parametrize("hours", [-1, 1], ids=["back", "forward"])
    def test_is_not_cut_short_when_the_clock_is_set(self, hours: int) -> None:
        world = _draining()
        world.clock_error = timedelta(hours=hours)
        planned = world.reconcile()
        assert deleted(planned) == set()
        assert planned.next_look_in is not None
        assert 9 < planned.next_look_in < 15
        world.reconcile()
        world.now += timedelta(seconds=9)
        assert deleted(world.reconcile()) == set()
        world.now += timedelta(seconds=6)
        assert "StatefulSet/airports-r1-s0" in deleted(world.look())

    def test_begins_again_with_an_operator_that_was_started_meanwhile(self) -> None:
        world = _draining()
        world.now += timedelta(seconds=9)
        world.start_operator()
        assert deleted(world.reconcile()) == set()
        world.now += timedelta(seconds=9)
        assert deleted(world.look()) == set(), "it has seen nine seconds pass, whatever is written"
        world.now += timedelta(seconds=6)
        assert "StatefulSet/airports-r1-s0" in deleted(world.look())

    def test_spares_servers_that_are_asked_for_again(self) -> None:
        world = _draining()
        world.edit(source={"url": "s3://data/v1.csv"})
        world.settle()
        assert [one.rollout for one in world.status.rollouts] == ["r1"]
        assert world.status.last_rollout == 2


def test_the_tables_content_is_what_status_says() -> None:
    world = serving()
    table = world.things["ConfigMap", "airports-routing-table"].manifest["data"][names.TABLE_FILE]
    assert '"version":1' in table
    assert "airports-r1-s1-1.airports-r1.default.svc:7000" in table


class TestPinned:
    def test_goes_back_to_what_drains_at_once(self) -> None:
        world = serving()
        world.edit(source={"url": "s3://data/v2.csv"})
        world.settle(until=lambda: world.status.generation == "g2")
        world.edit(generation="g1")
        table = world.reconcile().status.table
        assert table is not None
        assert (table.rollout, table.generation) == ("r1", "g1")

    def test_goes_back_to_what_routers_are_about_to_leave(self) -> None:
        world = unconfirmed(serving())
        world.edit(generation="g1")
        planned = world.reconcile()
        assert planned.status.table is not None
        assert planned.status.table.rollout == "r1"
        assert [mark.generation for mark in planned.status.rolled_back] == ["g2"], "some routers may have answered"

    def test_of_which_nothing_stands_is_rolled_out_with_its_own_shards_and_keys(self) -> None:
        world = serving(key={"columns": ["country", "id"], "separator": "|", "normalize": ["lowercase"]})
        world.edit(source={"url": "s3://data/v2.csv"}, key={"columns": ["id"]}, shards=3)
        world.settle()
        config_map = world.things["ConfigMap", "airports-routing-table"].manifest
        assert "keyColumns" not in config_map["data"]["routing-table.json"], "g2 has one key column"
        world.edit(generation="g1")
        world.settle()
        assert says(world.look())["RolledOut"] == "True Pinned"
        config_map = world.things["ConfigMap", "airports-routing-table"].manifest
        (entry,) = orjson.loads(config_map["data"]["routing-table.json"])["generations"]
        assert (entry["generation"], entry["rollout"], entry["normalize"]) == ("g1", "r3", ["lowercase"])
        assert (entry["keyColumns"], entry["separator"]) == (["country", "id"], "|")
        assert len(entry["shards"]) == 2

    def test_says_while_the_last_one_drains_what_is_built_and_waits(self) -> None:
        world = serving()
        world.edit(source={"url": "s3://data/v2.csv"})
        world.settle()
        world.edit(generation="g1")
        world.settle(until=lambda: world.status.generation == "g1")
        world.content_of_source = lambda source: f"{source} two"
        world.annotate("two")
        world.settle(until=lambda: world.status.find_generation("g3") is not None)
        rolled_out = condition(world.look(), "RolledOut")
        assert (rolled_out.status, rolled_out.reason) == ("True", "Draining")
        assert rolled_out.message.endswith(". spec.generation pins g1; g3 is built, and waits.")

    def test_keeps_what_is_built_meanwhile_waiting_until_it_is_taken_away(self) -> None:
        world = serving()
        world.edit(generation="g1")
        world.content_of_source = lambda source: f"{source} two"
        world.annotate("two")
        world.settle()
        assert (world.status.generation, world.status.generations[-1].generation) == ("g1", "g2")
        planned = world.look()
        assert condition(planned, "RolledOut").reason == "Pinned"
        assert "g2 is built, and waits" in condition(planned, "RolledOut").message
        world.edit(generation=None)
        world.settle()
        assert world.status.generation == "g2"

    def test_that_was_rolled_back_from_stays_away_until_the_source_changes(self) -> None:
        world = serving()
        world.edit(source={"url": "s3://data/v2.csv"})
        world.settle()
        world.edit(generation="g1")
        world.settle()
        world.edit(generation=None)
        world.settle()
        planned = world.look()
        assert (planned.status.generation, says(planned)["RolledOut"]) == ("g1", "False RolledBack")
        assert "That is of an earlier spec: g2 is newer" in condition(planned, "RolledOut").message
        world.content_of_source = lambda source: f"{source} corrected"
        world.annotate("corrected")
        world.settle()
        assert world.status.generation == "g3"

    def test_that_is_held_back_serves_when_it_is_pinned_itself_and_stays_afterwards(self) -> None:
        world = serving()
        world.edit(source={"url": "s3://data/v2.csv"})
        world.settle()
        for pin in ("g1", "g2", None):
            world.edit(generation=pin)
            world.settle()
        assert world.status.generation == "g2"
        assert world.status.rolled_back == ()

    def test_that_is_not_there_changes_nothing_and_says_which_ones_are(self) -> None:
        world = serving()
        before = set(world.things)
        world.edit(generation="g9")
        planned = world.reconcile()
        assert says(planned)["RolledOut"] == "False PinnedGenerationMissing"
        assert says(planned)["Degraded"] == "True PinnedGenerationMissing"
        assert "the store keeps g1" in condition(planned, "RolledOut").message
        assert (set(world.things), planned.status.table) == (before, world.status.table)

    def test_that_is_not_there_keeps_no_pod_template_from_what_serves(self) -> None:
        world = serving()
        world.edit(generation="g9", serving={"workers": 2})
        world.settle(until=lambda: world.status.table is not None and world.status.table.rollout == "r2")
        assert world.status.generation == "g1"

    def test_that_is_being_built_is_waited_for(self) -> None:
        world = serving()
        world.edit(source={"url": "s3://data/v2.csv"}, generation="g2")
        planned = world.reconcile()
        planned = world.reconcile()
        assert says(planned)["Degraded"] == "False Healthy"
        assert says(planned)["RolledOut"] == "False WaitingForBuild"
        world.settle()
        assert world.status.generation == "g2"
