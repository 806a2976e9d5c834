"""Random lives in which slots are scarce, new data arrive, and waiting candidates are promoted meanwhile."""

from __future__ import annotations

import random
from dataclasses import replace

from lookupdb_operator import names
from lookupdb_operator.model import Turn
from lookupdb_operator.plan import generations, plan
from lookupdb_operator.plan.turns import Situation
from operator_support.plan_world import Planner
from operator_support.simulation import Simulation


class PromotingSimulation(Simulation):
    """One life of a dataset whose candidates are promoted while newer generations are queued."""

    def __init__(self, seed: int, planner: Planner = plan) -> None:
        super().__init__(seed, planner, promotes=True)
        self._promotions = random.Random(f"promotions {seed}")
        self.hurried = 0
        """Candidates that were promoted while something newer was built."""

    def begin(self) -> None:
        """Let generations wait for promotion, with few servers or many."""
        super().begin()
        self.world.edit(rollout={"drainSeconds": 5, "promotion": "Manual"}, replicas=self._promotions.choice([1, 2]))

    def _disturb(self) -> None:
        """Disturb less than elsewhere: with constant edits and faults, nothing ever waits for promotion."""
        world, pick = self.world, self._promotions.choice
        for chance, disturbance in (
            (0.10, self._refresh),
            (0.01, self._decide),
            (0.20, self._promote_what_waits),
            (0.02, self._kill),
            (0.01, self._lose_server),
            (0.01, self._crash_router),
            (0.01, self._lose_status),
            (0.01, lambda: world.edit(serving={**world.spec["serving"], "workers": pick([1, 2])})),
            (0.01, lambda: world.edit(replicas=pick([1, 2, 3]))),
            (0.05, lambda: world.edit(suspend=self._promotions.random() < 0.1)),
            (0.05, lambda: world.edit(generation=self._pick_pin())),
            (0.01, self._switch_promotion),
        ):
            if self._promotions.random() < chance:
                disturbance()

    def _pick_pin(self) -> str | None:
        known = [generation.generation for generation in self.world.status.generations]
        return self._promotions.choice(known) if known and self._promotions.random() < 0.1 else None

    def _switch_promotion(self) -> None:
        chosen = self._promotions.choice(["Auto", "Manual", "Manual", "Manual"])
        self.world.edit(rollout={**self.world.spec["rollout"], "promotion": chosen})

    def _promote_what_waits(self) -> None:
        """Promote the candidate, often only when something newer is built."""
        status = self.world.status
        waiting = "" if status.candidate is None else status.candidate.generation
        is_newest = not status.generations or waiting == status.generations[-1].generation
        if waiting and self.world.promote != waiting and (not is_newest or self._promotions.random() < 0.1):
            self.world.annotate_decision(promote=waiting)
            self.hurried += not is_newest

    def _rollout_turn(self) -> Turn:
        """Grant the rollout slot rarely, and the build slot often."""
        turn = super()._rollout_turn()
        return replace(turn, is_granted=turn.is_granted and self._promotions.random() < 0.15)

    def _check_rest(self) -> None:
        """Check that a promoted candidate serves at rest if its servers are ready."""
        super()._check_rest()
        world, status = self.world, self.world.status
        if status.candidate is None or world.dataset.spec["suspend"] or world.dataset.parsed is None:
            return
        situation = Situation.from_observed(world.observe(), world.config, world.now)
        promoted = generations.promoted_candidate(status, situation.desired)
        labelled = (status.candidate.rollout, names.SHARDS)
        servers = [pod for pod in world.pods.values() if (pod.labels.get(names.ROLLOUT), pod.component) == labelled]
        needed = 0 if promoted is None else promoted.shards * world.dataset.parsed.replicas
        is_ready = all(pod.ready and pod.deleted_at is None and pod.dies_at is None for pod in servers)
        assert not needed or len(servers) < needed or not is_ready, f"{promoted} is promoted, ready, and does not serve"
