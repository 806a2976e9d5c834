"""Random lives in which somebody edits the routing table by hand, and the status that it is rendered from."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson

from lookupdb_operator import names
from lookupdb_operator.loop.reconcile import Repairs
from lookupdb_operator.model import Manifest, Observed
from lookupdb_operator.plan import plan
from operator_support.plan_routers import edit_label, edit_table, with_version, with_wrong_address
from operator_support.plan_world import Planner
from operator_support.simulation import CONVERGES_WITHIN, Life, Simulation


class EditingSimulation(Simulation):
    """One life of a dataset whose routing table is edited. At times two tools fight about it until the operator holds
    back. In the end every router answers from the right table, whatever it read before."""

    def __init__(
        self, seed: int, planner: Planner = plan, *, promotes: bool = False, surges: bool = False, hides: bool = False
    ) -> None:
        """With ``hides``, versions are also raised and put back before the operator looks, though routers have read
        them."""
        super().__init__(seed, planner, promotes=promotes, surges=surges)
        self._edits = random.Random(f"edits {seed}")
        self._raises = random.Random(f"raises {seed}")
        self._hides = random.Random(f"hides {seed}") if hides else None
        self._fights_until = self.world.now
        self._repairs: tuple[Any, Repairs] | None = None
        self._looked_at: Observed | None = None
        self.edits = self.raises = self.held = self.taken = 0

    def live(self, moments: int) -> Life:
        """Live ``moments`` with faults, then one without. In the end somebody puts back an edit that a router has read
        and the operator has not seen. The operator notices it the next time it asks routers."""
        life = super().live(moments)
        self._ask_routers()
        self._edit_unnoticed()
        self._ask_routers()
        return life

    def live_contested(self, moments: int) -> None:
        """Live without failures, except that another tool fights about a label for long, so that the operator holds
        back. Meanwhile the table is edited, with or without its version, and put back, and new data arrive. The
        operator sees all of it, so in the end it need not ask any router."""
        world, chance = self.world, self._raises.random
        world.settle(CONVERGES_WITHIN)
        world.loses_nudge = lambda: chance() < 0.5
        thing = world.things["ConfigMap", names.routing_table(world.dataset.name)]
        for _ in range(moments):
            if chance() < 0.9 and thing.edited is not thing.manifest:
                edit_label(world)
            for likely, wish in (
                (0.05, self._raise_version),
                (0.05, lambda: edit_table(world, with_wrong_address)),
                (0.10, self._put_back),
                (0.05, self._refresh),
                (0.05, self._crash_router),
            ):
                if chance() < likely:
                    wish()
            world.reconcile()
            world.step(self._raises.choice([1.0, 2.0, 5.0, 20.0]))
        world.settle(CONVERGES_WITHIN)
        for _ in range(2):
            world.step(60.0)
        world.settle(CONVERGES_WITHIN)
        self._check_routers()

    def live_unnoticed(self, rounds: int) -> None:
        """Live without failures. Each time that a version is raised and put back unseen, the operator is at rest. Then
        the spec changes, and routers may already have the version of the next table."""
        world, lots = self.world, random.Random(f"unnoticed {self._raises.random()}")
        world.loses_nudge = lambda: lots.random() < 0.8
        world.settle(CONVERGES_WITHIN)
        for _ in range(rounds):
            self._raise_unnoticed(lots)
            if lots.random() < 0.2:
                self._crash_router()
            for _ in range(lots.randrange(100)):
                world.reconcile()
                world.step(lots.choice([0.5, 1.0, 2.0]))
            if lots.random() < 0.5:
                world.settle(CONVERGES_WITHIN)
        world.settle(CONVERGES_WITHIN)
        self._ask_routers()

    def _put_back(self) -> None:
        """Put an edit back by hand, as the operator wrote it."""
        written = self.world.invariants.tables[self.world.invariants.last_version]
        edit_table(self.world, lambda text: f"{written}\n")

    def _ask_routers(self) -> None:
        """Ask routers once kubelets have synced what was put back: routers that read something else refuse it by
        then."""
        for _ in range(2):
            self.world.step(60.0)
        self.world.asked = True
        self.world.settle(CONVERGES_WITHIN)
        self._check_routers()

    def _edit_unnoticed(self) -> None:
        thing = self.world.things["ConfigMap", names.routing_table(self.world.dataset.name)]
        before = thing.manifest
        edit_table(self.world, with_wrong_address)
        for pod in self.world.pods.values():
            if pod.component == names.ROUTER and self._edits.random() < 0.7:
                self.world.crash(pod, 60.0)
        self.world.step(60.0)
        self.world.step(60.0)
        thing.manifest, thing.edited, thing.changed = before, None, self.world.now

    def act(self) -> None:
        """Let one moment pass. At times the table is edited, and at times put back unseen."""
        if ("ConfigMap", names.routing_table(self.world.dataset.name)) in self.world.things:
            if self._edits.random() < 0.10:
                self._edit_table()
            if self._edits.random() < 0.04:
                self._edit_status()
            self._fight()
            if self._raises.random() < 0.03:
                self._raise_version()
            if self._hides is not None and self._hides.random() < 0.05:
                self._raise_unnoticed(self._hides)
        super().act()

    def _planned(self, observed: Observed, config: Any, now: Any) -> Any:
        contests = self._remembered_repairs().list_contests()
        self.held += any(contest.is_held for contest in contests)
        self._looked_at = replace(observed, contests=contests)
        return super()._planned(self._looked_at, config, now)

    def _refuses(self, manifest: Manifest) -> str:
        why = super()._refuses(manifest)
        if not why and self._looked_at is not None:
            self._remembered_repairs().note_write(self._looked_at, manifest)
        return why

    def _remembered_repairs(self) -> Repairs:
        """Return the repairs that the operator's process remembers; a restart forgets them."""
        process = self.world.absences
        if self._repairs is None or self._repairs[0] is not process:
            self._repairs = process, Repairs(self.world._seconds)
        return self._repairs[1]

    def _fight(self) -> None:
        """Another tool restores its label after each write of the table."""
        if self._raises.random() < 0.02:
            self._fights_until = self.world.now + timedelta(seconds=600 * self._raises.random())
        thing = self.world.things["ConfigMap", names.routing_table(self.world.dataset.name)]
        if self.world.now < self._fights_until and thing.edited is not thing.manifest:
            edit_label(self.world)

    def _raise_version(self) -> None:
        """Raise the version, as somebody does whose edit a router refused: its message asks for a greater version."""
        table, pick = self.world.status.table, self._raises.choice
        if table is None:
            return
        version = table.version + pick([1, 1, 2, 50])
        self.world.invariants.edited.add(version)
        annotations = pick([{}, {names.TABLE_VERSION: str(version)}])
        edit_table(self.world, lambda text: with_version(with_wrong_address(text), version), annotations=annotations)
        self.raises += 1

    def _raise_unnoticed(self, lots: random.Random) -> None:
        """Raise a version, and put it back before the operator looks. Then the spec changes, but no generation."""
        thing = self.world.things["ConfigMap", names.routing_table(self.world.dataset.name)]
        before, was_edited = thing.manifest, thing.edited
        self._raise_version()
        self.world.step(90.0 * lots.random())
        thing.manifest, thing.edited, thing.changed = before, was_edited, self.world.now
        routers = [pod for pod in self.world.pods.values() if pod.component == names.ROUTER and pod.table is not None]
        versions = {pod.table["version"] for pod in routers if pod.table is not None}
        self.taken += bool(versions & self.world.invariants.edited)
        number, changed = lots.choice([1, 2]), lots.choice(["replicas", "workers"])
        self.world.edit(**({"replicas": number} if changed == "replicas" else {"serving": {"workers": number}}))

    def _edit_table(self) -> None:
        thing = self.world.things["ConfigMap", names.routing_table(self.world.dataset.name)]
        before, was_edited, pick = thing.manifest, thing.edited, self._edits.random
        # Nobody knows whether a version that nobody confirmed and that was edited away was ever written.
        table = self.world.status.table
        hides_version = pick() < 0.1 and table is not None and bool(table.confirmed_at)
        edit_table(self.world, with_wrong_address, annotations={names.TABLE_VERSION: "1"} if hides_version else {})
        self.edits += 1
        if pick() < 0.3:
            self.world.step(60.0 * pick())
            if thing.edited is thing.manifest:
                thing.manifest, thing.edited, thing.changed = before, was_edited, self.world.now

    def _edit_status(self) -> None:
        """Edit the status, so slowly that the operator has seen its own last write."""
        self._snapshots.clear()
        status = self.world.status
        edited = tuple(replace(one, records=one.records + 1) for one in status.generations)
        self.world.status = replace(status, generations=edited)
        self.world.version += 1

    def _lose_status(self) -> None:
        """Lose the status, unless somebody edits the table: with both at once, nobody knows what was written."""
        thing = self.world.things.get(("ConfigMap", names.routing_table(self.world.dataset.name)))
        if thing is None or thing.edited is not thing.manifest:
            super()._lose_status()

    def _check_routers(self) -> None:
        written = self.world.invariants.tables[self.world.invariants.last_version]
        for pod in self.world.pods.values():
            if pod.component == names.ROUTER and pod.dies_at is None:
                assert orjson.dumps(pod.table).decode() == written, f"{pod.name} answers from what somebody has edited"
