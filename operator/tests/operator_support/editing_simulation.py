"""Random lives in which somebody edits the routing table by hand, and what it is rendered from in status."""

from __future__ import annotations

import random
from dataclasses import replace

import orjson

from lookupdb_operator import names
from lookupdb_operator.plan import plan
from operator_support.plan_routers import edit_table, with_wrong_address
from operator_support.plan_world import Planner
from operator_support.simulation import CONVERGES_WITHIN, Life, Simulation


class EditingSimulation(Simulation):
    """One life of a dataset whose routing table is edited. In the end every router answers from what should be there,
    whatever it has read before."""

    def __init__(self, seed: int, planner: Planner = plan, *, promotes: bool = False, surges: bool = False) -> None:
        super().__init__(seed, planner, promotes=promotes, surges=surges)
        self._edits = random.Random(f"edits {seed}")
        self.edits = 0

    def live(self, moments: int) -> Life:
        """A life of ``moments`` with faults, then one without. In the end somebody puts back what was edited, before
        anybody looks and after a router has read it: that is noticed when routers are asked, as they are now and
        then."""
        life = super().live(moments)
        self._check_routers()
        self._edit_unnoticed()
        self.world.asked = True
        self.world.settle(CONVERGES_WITHIN)
        self._check_routers()
        return life

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
        self.world.step(60.0)

    def act(self) -> None:
        """What happens in one moment; at times the table is edited, and at times put back before anybody looks."""
        if ("ConfigMap", names.routing_table(self.world.dataset.name)) in self.world.things:
            if self._edits.random() < 0.10:
                self._edit_table()
            if self._edits.random() < 0.04:
                self._edit_status()
        super().act()

    def _edit_table(self) -> None:
        thing = self.world.things["ConfigMap", names.routing_table(self.world.dataset.name)]
        before, was_edited, pick = thing.manifest, thing.edited, self._edits.random
        # Of a version that nobody has confirmed, and that is edited away, nobody knows whether it was ever written.
        table = self.world.status.table
        hides_version = pick() < 0.1 and table is not None and bool(table.confirmed_at)
        edit_table(self.world, with_wrong_address, annotations={names.TABLE_VERSION: "1"} if hides_version else {})
        self.edits += 1
        if pick() < 0.3:
            self.world.step(60.0 * pick())
            if thing.edited is thing.manifest:
                thing.manifest, thing.edited, thing.changed = before, was_edited, self.world.now

    def _edit_status(self) -> None:
        """By somebody who takes longer than an informer lags: the operator has seen what it wrote before."""
        self._snapshots.clear()
        status = self.world.status
        edited = tuple(replace(one, records=one.records + 1) for one in status.generations)
        self.world.status = replace(status, generations=edited)
        self.world.version += 1

    def _check_routers(self) -> None:
        written = self.world.invariants.tables[self.world.invariants.last_version]
        for pod in self.world.pods.values():
            if pod.component == names.ROUTER and pod.dies_at is None:
                assert orjson.dumps(pod.table).decode() == written, f"{pod.name} answers from what somebody has edited"
