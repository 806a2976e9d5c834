"""Random lives of a dataset: everything that can go wrong does, until faults stop. One seed, one life.

Specs are edited, builds fail, Jobs vanish, pods die, writes are refused. The operator dies between any two of its
writes, sees an older state of all or some objects, has its clock set back, and loses its status. It gets slots and
loses them. The model cluster checks the invariants at each step.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from lookupdb.dataset.schedule import Schedule
from lookupdb_operator import names
from lookupdb_operator.model import BuildResult, Manifest, ObjectRef, Observed, Trouble, Turn, Turns, format_moment
from lookupdb_operator.plan import generations, plan, reasons
from lookupdb_operator.status import DatasetStatus
from operator_support.plan_objects import Process, Takes
from operator_support.plan_settled import check_settled
from operator_support.plan_world import Conflict, Planner, World

CONVERGES_WITHIN: Final = 4000.0
"""Seconds. The longest backoff is half an hour."""
_COMES_TO_REST_WITHIN: Final = 6
"""Number of passes while nothing happens."""
_REMEMBERED: Final = 3
"""Snapshots of the last passes, which may be seen again."""
SCHEDULES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"schedule": "* * * * *"},
    {"schedule": "*/10 * * * *"},
    {"schedule": "0 * * * *", "startingDeadlineSeconds": 600},
    {"schedule": "*/10 * * * *", "suspend": True},
)
POD_FIELDS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"annotations": {"team": "travel"}},
    {"nodeSelector": {"disk": "ssd"}, "priorityClassName": "serving"},
)
DELIVERIES: Final[tuple[dict[str, Any], ...]] = (
    {"type": "Fetch"},
    {"type": "Volume", "volume": {"claimName": "lookups"}},
    {"type": "Image", "image": {"repository": "r.example/lookups"}},
    {"type": "Image", "image": {"repository": "r.example/others", "pushSecretName": "push"}},
)


@dataclass(frozen=True)
class Life:
    """Record of a life, for tests to check that something happened in it."""

    cutovers: int
    conflicts: int
    writes: int


class Simulation:
    """One life of a dataset."""

    def __init__(self, seed: int, planner: Planner = plan, *, promotes: bool = False, surges: bool = False) -> None:
        """With ``promotes``, some generations wait for promotion, and are promoted or rejected. With ``surges``, some
        rollouts go shard by shard."""
        self._random = random.Random(seed)
        self._lots = random.Random(-1 - seed)
        self._wishes = random.Random(f"wishes {seed}")
        self._rests = random.Random(f"rests {seed}")
        self._nodes = random.Random(f"nodes {seed}")
        self._pods = random.Random(f"pods {seed}")
        self._clocks = random.Random(f"clocks {seed}")
        self._deliveries = random.Random(f"deliveries {seed}")
        self._overrides = random.Random(f"overrides {seed}")
        self._verdicts = random.Random(f"verdicts {seed}")
        self._has_promotions = promotes
        self._surges = random.Random(f"surges {seed}")
        self._has_surges = surges
        self._has_rivals = False
        self._sees_old_objects = True
        self._is_scheduled = seed % 3 == 0
        self._is_pushed = seed % 5 == 4
        self._planner = planner
        self._conflicts = 0
        self.dresses_pods = False
        """True: pod templates and the routers' Service change at times."""
        self.has_neighbour = False
        """True: its slots are those of an operator with another dataset, whose clock nobody sets."""
        self.steps = 0
        """Number of passes of ``plan()`` so far."""
        self._snapshots: deque[Observed] = deque(maxlen=_REMEMBERED)
        self._flaky = self._random.choice([0.0, 0.02, 0.1])
        chance = self._random.random
        slow = self._random.choice([1.0, 1.0, 10.0])
        takes = Takes(
            build=1 + 4 * chance(), start=1 + 5 * slow * chance(), table=0.5 + 2 * chance(), stop=4 * chance()
        )
        self._data = 0
        self.world = World(planner=self._planned, takes=takes, fails=self._fails, refuses=self._refuses)
        self.world.loses_nudge = lambda: self._random.random() < 0.1
        self.world.content_of_source = lambda source: f"{source} data {self._data}"
        self._may_close_gates = False
        self.world.closes_gate = self._closes_gate
        self.world.edit(rollout={"drainSeconds": 5}, gates={"minRecords": 1}, serving={"workers": 1})

    def live(self, moments: int) -> Life:
        """Live ``moments`` with faults, then one without."""
        self.begin()
        for _ in range(moments):
            self.act()
            self.world.step(self._random.choice([0.2, 0.5, 1.0, 2.0, 4.0]))
        self.calm()
        self.world.settle(CONVERGES_WITHIN)
        check_settled(self.world)
        return Life(self.world.invariants.cutovers, self._conflicts, self.world.writes)

    def begin(self) -> None:
        """Choose a spec before the first moment."""
        self._has_rivals = not self.has_neighbour
        self._may_close_gates = self._overrides.random() < 0.5
        self._set_rollout()
        if self._has_surges:
            self.world.proves_servers = True
            self.world.edit(shards=4)
        if self._is_scheduled:
            self.world.edit(refresh={"schedule": "* * * * *"})
        if self._is_pushed:
            self.world.edit(source={"pushed": True})

    def act(self) -> None:
        """Let one moment pass, and the operator react."""
        self._disturb()
        self._reconcile()
        if self._rests.random() < 0.05:
            self._check_rest()

    def live_under_refreshes(self, seconds: int) -> list[float]:
        """Live with a stream of new data, while pods and routers die and nothing else fails. Return the seconds until
        newer data served, each time."""
        world = self.world
        world.settle(CONVERGES_WITHIN)
        begin = last_change = world.now
        changes: list[float] = []
        active = world.status.generation
        while (world.now - begin).total_seconds() < seconds:
            for chance, disturbance in ((0.4, self._refresh), (0.02, self._kill), (0.02, self._crash_router)):
                if self._random.random() < chance:
                    disturbance()
            self._reconcile()
            world.step(self._random.choice([0.5, 1.0, 2.0]))
            if world.status.generation != active:
                changes.append((world.now - last_change).total_seconds())
                active, last_change = world.status.generation, world.now
        return [*changes, (world.now - last_change).total_seconds()]

    def live_under_rollbacks(self, rounds: int) -> int:
        """Live with new or unchanged data and rollbacks now and then. Return the number of rollbacks."""
        world, rollbacks = self.world, 0
        world.edit(rollout={"drainSeconds": 5, "keepPrevious": self._wishes.choice(["0s", "1h"])})
        for _ in range(rounds):
            self._refresh()
            world.settle(CONVERGES_WITHIN)
            previous = generations.previous_generation(world.status)
            if previous is None or self._wishes.random() < 0.3:
                continue
            rollbacks += 1
            for pin in (previous.generation, previous.generation, None):
                world.edit(generation=pin)
                if self._wishes.random() < 0.5:
                    self._refresh()
                world.settle(CONVERGES_WITHIN)
                check_settled(self.world)
        return rollbacks

    def live_shard_by_shard(self, moments: int) -> Life:
        """Live with new data, rollbacks and changes of the pod template, often before a rollout ends, while servers and
        the operator die. There are never more servers than requested."""
        world, wishes = self.world, self._surges
        surge = wishes.choice([1, 1, 2, 3])
        world.edit(shards=5, rollout={"drainSeconds": 5, "strategy": "PerShard", "maxSurgeShards": surge})
        world.settle(CONVERGES_WITHIN)
        world.most_servers = (5 + surge) * 2
        self._sees_old_objects = False  # a window may begin beside existing servers that were not seen yet
        for _ in range(moments):
            for chance, wish in (
                (0.03, self._refresh),
                (0.01, lambda: world.edit(serving={"workers": wishes.choice([1, 2])})),
                (0.02, lambda: world.edit(source={"url": f"s3://data/v{wishes.choice([1, 2])}.csv"})),
                (0.03, self._pin_what_is_there),
                (0.02, lambda: world.edit(suspend=wishes.random() < 0.2)),
                (0.02, self._kill),
                (0.02, self._lose_result),
            ):
                if wishes.random() < chance:
                    wish()
            self._reconcile()
            world.step(wishes.choice([0.5, 1.0, 2.0]))
        self.calm()
        world.settle(CONVERGES_WITHIN)
        check_settled(self.world)
        return Life(world.invariants.cutovers, self._conflicts, world.writes)

    def _pin_what_is_there(self) -> None:
        known = [generation.generation for generation in self.world.status.generations]
        self.world.edit(generation=self._surges.choice([*known, None, None, None]))

    def _planned(self, observed: Observed, config: Any, now: Any) -> Any:
        self.steps += 1
        self.world.invariants.operator_now = now
        return self._planner(observed, config, now)

    def _reconcile(self) -> None:
        observed = self._seen()
        planned = self.world.planner(observed, self.world.config, self.world.now + self.world.clock_error)
        dies_after = self._random.randrange(12) if self._random.random() < 0.15 else 10_000
        try:
            self.world.carry_out(planned, observed.dataset, dies_after)
        except Conflict:
            self._conflicts += 1
        if dies_after < 12:
            self.world.start_operator()

    def _check_rest(self) -> None:
        """Check that the operator is soon done while nothing happens. Two decisions that undo each other would be
        written as fast as the API server responds."""
        flaky, self._flaky, self.world.turns = self._flaky, 0.0, Turns()
        for _ in range(_COMES_TO_REST_WITHIN):
            planned = self.world.look()
            if (planned.apply, planned.delete, planned.status) == ((), (), self.world.status):
                break
            self.world.carry_out(planned, self.world.dataset)
        else:
            raise AssertionError(f"passes go on writing though nothing happens:\n{self.world.describe()}")
        self._flaky = flaky

    def _seen(self) -> Observed:
        """Return what the operator sees, and let it remember that."""
        return self.world.with_memory(self._watched())

    def _watched(self) -> Observed:
        """Return what the informers hold: all of now, all of a while ago, or a mix of both."""
        self.world.turns = Turns(self._turn(), self._rollout_turn()) if self._has_rivals else Turns()
        fresh = self.world.snapshot()
        self._snapshots.append(fresh)
        kind = self._random.random()
        if kind > 0.35:
            return fresh
        old = self._random.choice(self._snapshots)
        # Routers are asked, not watched.
        old = replace(old, routers={uid: report for uid, report in fresh.routers.items() if uid in old.routers})
        if kind > 0.2:
            return replace(fresh, dataset=old.dataset)
        return old if kind < 0.1 or not self._sees_old_objects else replace(old, dataset=fresh.dataset)

    def _turn(self) -> Turn:
        chance = self._lots.random
        return Turn(is_granted=chance() < 0.7, ahead=self._lots.randrange(20), must_yield=chance() < 0.3)

    def _rollout_turn(self) -> Turn:
        return self._turn()

    def _disturb(self) -> None:
        for chance, disturbance in (
            (0.10, self._edit),
            (0.04, self._kill),
            (0.02, self._delete_something),
            (0.02, self._set_clock_back),
            (0.02, self._lose_result),
            (0.02, self._change_store),
            (0.02, self._lose_status),
            (0.05, self._refresh),
            (0.03, self._crash_router),
            (0.03, self._lose_server),
        ):
            if self._random.random() < chance:
                disturbance()
        for chance, wish in ((0.1, self._pin), (0.02, self._set_rollout), (0.04, self._suspend)):
            if self._wishes.random() < chance:
                wish()
        if self._clocks.random() < 0.02 and not self.has_neighbour:
            self._set_clock_forward()
        if self._nodes.random() < 0.02:
            self._lose_node()
        if self.dresses_pods and self._pods.random() < 0.05:
            self._dress_pods()
        if self._deliveries.random() < 0.02:
            self._deliver()
        if self._overrides.random() < 0.15:
            self._override()
        if self._has_promotions and self._verdicts.random() < 0.2:
            self._decide()

    def _set_rollout(self) -> None:
        rollout = {
            "drainSeconds": 5,
            "progressDeadlineSeconds": self._lots.choice([60, 600]),
            "promotion": self._verdicts.choice(["Auto", "Manual", "Manual"] if self._has_promotions else ["Auto"]),
            "keepPrevious": self._wishes.choice(["0s", "20s", "10m"]),
        }
        if self._has_surges and self._surges.random() < 0.7:
            rollout |= {"strategy": "PerShard", "promotion": "Auto", "keepPrevious": "0s"}
            rollout["maxSurgeShards"] = self._surges.choice([1, 1, 2, 3])
        self.world.edit(rollout=rollout)

    def _suspend(self) -> None:
        self.world.edit(suspend=self._wishes.random() < 0.15)

    def _pin(self) -> None:
        """Pin a generation of the store or one that never existed, or unpin."""
        known = [generation.generation for generation in self.world.status.generations]
        self.world.edit(generation=self._wishes.choice([*known, "g999", None, None]))
        if self._is_scheduled:
            self._disturb_schedule()

    def _disturb_schedule(self) -> None:
        for chance, disturbance in ((0.05, self._edit_schedule), (0.10, self._sleep)):
            if self._lots.random() < chance:
                disturbance()

    def _edit(self) -> None:
        pick = self._random.choice
        what = pick(["source", "source", "broken", "shards", "replicas", "replicas", "serving", "refresh", "gates"])
        if what in ("source", "broken"):
            name = f"v{pick([1, 2])}" if what == "source" else "broken"
            self.world.edit(source={"url": f"s3://data/{name}.csv"})
        elif what == "shards":
            self.world.edit(shards=pick([1, 2]) + 2 * self._has_surges)
        elif what == "replicas":
            self.world.edit(replicas=pick([1, 2, 3]))
        elif what == "serving":
            self.world.edit(serving={**self.world.spec["serving"], "workers": pick([1, 2])})
        elif what == "gates":
            self.world.edit(gates={"minRecords": pick([1, 2])})
        else:
            self._refresh()

    def _dress_pods(self) -> None:
        """Change the pod template of servers or routers, or the Service, or change it back."""
        component, pick = self._pods.choice(["serving", "build", "router", "service"]), self._pods.choice
        if component == "service":
            router = {**self.world.spec.get("router", {}), "service": {"type": pick(["ClusterIP", "LoadBalancer"])}}
            self.world.edit(router=router)
        else:
            self.world.edit(**{component: {**self.world.spec.get(component, {}), "pod": pick(POD_FIELDS)}})

    def _deliver(self) -> None:
        """Change the delivery of shards."""
        serving = {**self.world.spec["serving"], "delivery": self._deliveries.choice(DELIVERIES)}
        self.world.edit(serving=serving)

    def _decide(self) -> None:
        """Promote or reject the candidate, or something else by mistake."""
        status, pick = self.world.status, self._verdicts.choice
        generation = f"g{self._verdicts.randrange(1, 12)}"
        if status.candidate is not None and self._verdicts.random() < 0.8:
            generation = status.candidate.generation
        if self._verdicts.random() < 0.6:
            self.world.annotate_decision(promote=pick([generation, generation, ""]))
        else:
            self.world.annotate_decision(reject=pick([generation, ""]))

    def _refresh(self) -> None:
        """Set the refresh annotation, with or without new data; at times with an earlier value."""
        self._data += self._random.choice([0, 1, 1])
        self.world.annotate(self._random.choice(["a", "b", f"data {self._data}"]))

    def _crash_router(self) -> None:
        routers = [pod for pod in self.world.pods.values() if pod.component == names.ROUTER]
        if routers:
            self.world.crash(self._random.choice(routers), self._random.choice([1.0, 10.0, 100.0]))

    def _lose_server(self) -> None:
        """Lose a server's node; no other node has room."""
        servers = [pod for pod in self.world.pods.values() if pod.component == names.SHARDS]
        if servers:
            server = self._random.choice(servers)
            server.ready, server.trouble = False, Trouble(reasons.UNSCHEDULABLE, "no node takes it")

    def _lose_node(self) -> None:
        """Lose a node with all its pods: nobody answers from there, and deletions have no effect there."""
        for pod in list(self.world.pods.values()):
            if self._nodes.random() < 0.3:
                self.world.lose(pod)

    def _kill(self) -> None:
        pods = list(self.world.pods.values())
        if pods:
            pod = self._random.choice(pods)
            self.world.stop(pod) if self._random.random() < 0.5 else self._evict(pod)

    def _evict(self, pod: Process) -> None:
        del self.world.pods[pod.name]

    def _delete_something(self) -> None:
        """Delete any object by hand, except a server that a table names, which nothing could survive."""
        things = [key for key in self.world.things if key[0] not in ("StatefulSet",)]
        if things:
            key = self._random.choice(things)
            thing = self.world.things[key]
            if key[1] != names.routing_table(self.world.dataset.name):
                self.world.delete(ObjectRef(*key, thing.uid))

    def _set_clock_back(self) -> None:
        seconds = self._random.choice([1, 60, 4000])
        self.world.clock_error -= timedelta(seconds=0 if self.has_neighbour else seconds)
        self._forget_slots()

    def _set_clock_forward(self) -> None:
        self.world.clock_error += timedelta(seconds=self._clocks.choice([1, 60, 4000, 86400]))

    def _edit_schedule(self) -> None:
        """Change, suspend or remove the schedule."""
        self.world.edit(refresh=self._lots.choice(SCHEDULES))
        self._forget_slots()

    def _forget_slots(self) -> None:
        now, refresh = self.world.now + self.world.clock_error, self.world.spec.get("refresh", {})
        rests = "schedule" not in refresh or refresh.get("suspend", False)
        upcoming = None if rests else Schedule.parse(refresh["schedule"], "UTC").next_slot(now)
        known = self.world.status.schedule
        is_known = known is not None and upcoming is not None and known.slot == format_moment(upcoming)
        self.world.invariants.pass_again(now, is_known=is_known)

    def _sleep(self) -> None:
        """Stop the operator for a while."""
        self.world.step(self._lots.choice([30.0, 700.0, 4000.0]))

    def _lose_result(self) -> None:
        for pod in list(self.world.pods.values()):
            if pod.result is not None:
                self._evict(pod)

    def _change_store(self) -> None:
        digest = self._random.choice(["d1", "d2"])
        self.world.store = replace(self.world.store, digest=digest)

    def _lose_status(self) -> None:
        """Wipe the status, or set it back by some passes. That takes longer than an informer lags: no later pass sees
        objects of before. (With both at once, nobody would know a table that was written.)"""
        past = [observed.dataset.status for observed in self._snapshots]
        self._snapshots.clear()
        self.world.status = self._random.choice([DatasetStatus(), *past])
        self.world.version += 1
        # A name may be reused if nothing of it is left; the builder reports
        # what the store holds.
        labels = [thing.manifest["metadata"]["labels"] for thing in self.world.things.values()]
        self.world.invariants.forget(
            {label.get(names.GENERATION, "") for label in labels}, {label.get(names.ROLLOUT, "") for label in labels}
        )

    def _fails(self, built: dict[str, Any]) -> BuildResult | Trouble | None:
        if built["source"].get("url") == "s3://data/broken.csv":
            return BuildResult("failed", reason=reasons.BAD_SOURCE, message="no such file", exit_code=3)
        if self._is_scheduled and self._lots.random() < self._flaky:
            return BuildResult("waiting", reason=reasons.WAITING_FOR_SOURCE, message="no success file")
        if self._random.random() < self._flaky:
            faults: list[BuildResult | Trouble] = [
                Trouble(reasons.OUT_OF_MEMORY, "killed"),
                Trouble(reasons.EVICTED, "the node had no room"),
                BuildResult("failed", reason=reasons.STORE_UNAVAILABLE, message="no answer", exit_code=5),
            ]
            return self._random.choice(faults)
        return None

    def _closes_gate(self, content: str) -> bool:
        """Return whether the gate rejects this state of the data: every third one."""
        return self._may_close_gates and self._data % 3 == 2

    def _override(self) -> None:
        """Override gates: after a look, too early, too late, or by a file that is applied again."""
        status = self.world.status
        names_of_generations = [names.generation_name(status.last_generation + ahead) for ahead in (-1, 0, 1)]
        refused = [status.refused.generation] * 3 if status.refused is not None else []
        self.world.override(self._overrides.choice(["", *names_of_generations, *refused]))

    def _refuses(self, manifest: Manifest) -> str:
        return "not now" if self._random.random() < self._flaky / 2 else ""

    def calm(self) -> None:
        """Stop all faults, and drop wishes that cannot be fulfilled."""
        self._flaky, self._has_rivals, self._may_close_gates = 0.0, False, False
        self._data += 1  # a refused generation stays refused
        if self._has_promotions:
            self._end_decisions()
        self.world.turns = Turns()
        for pod in list(self.world.pods.values()):
            if pod.component == names.SHARDS:
                pod.trouble = None
        if self.world.spec["source"].get("url") == "s3://data/broken.csv":
            self.world.edit(source={"url": "s3://data/v1.csv"})
        self.world.edit(suspend=False)
        if self.world.status.find_generation(self.world.spec.get("generation", "")) is None:
            self.world.edit(generation=None)
        if self.world.invariants.has_forgotten and self.world.status.rolled_back:
            self._end_standoff()

    def _end_standoff(self) -> None:
        """End a standoff with new data: when nothing is known to serve, and the newest data was rolled back from."""
        self.world.settle(CONVERGES_WITHIN, until=self._comes_to_rest)
        rolled_out = self.world.status.condition("RolledOut")
        assert rolled_out is not None
        is_held_back = (rolled_out.status, rolled_out.reason) == ("False", reasons.ROLLED_BACK)
        if is_held_back and self.world.status.table is None:
            self._data += 1
            self.world.annotate(f"other data {self._data}")

    def _comes_to_rest(self) -> bool:
        rolled_out = self.world.status.condition("RolledOut")
        return self.world.is_settled() or (rolled_out is not None and rolled_out.reason == reasons.ROLLED_BACK)

    def _end_decisions(self) -> None:
        self.world.annotate_decision(promote="", reject="")
        self.world.edit(rollout={**self.world.spec["rollout"], "promotion": "Auto"})
        if self.world.status.rejected:  # rejected data returns only as other data
            self._data += 1
            self.world.annotate(f"new data {self._data}")
