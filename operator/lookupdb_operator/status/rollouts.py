"""Sets of shard servers, and the one that waits for promotion."""

from __future__ import annotations

from dataclasses import dataclass, field

from lookupdb_operator.shard_ranges import ALL
from lookupdb_operator.status.turns import Stall


@dataclass(frozen=True, slots=True)
class PushStatus:
    """The last end of a push of a rollout's images that was seen: from it on runs the pause before another one
    (``plan.rollout.pushes``)."""

    job: str
    """The uid of the Job."""
    finished_at: str
    """When its end was seen: by the clock of the operator, as all moments that it compares."""
    count: int
    """How many in a row, up to this one, have failed for good or brought back nothing that servers miss."""


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """One set of shard servers that exists or is about to."""

    rollout: str
    generation: str
    template: str
    """Digest of the pod template and what else cannot change within a rollout."""
    started_at: str
    referenced_replicas: int = field(default=0, metadata={"json": "named"})
    """The most servers a shard that a routing table which may still be in effect somewhere references: so many stay.
    0: no table references this rollout."""
    stall: Stall | None = None
    workers: int = 0
    """Of each server; 0: nobody knows."""
    kept_since: str = ""
    """When it had drained: its servers stay for a while, to go back to. Empty: it is not kept for that."""
    offered_replicas: int = field(default=0, metadata={"json": "offered"})
    """The same of the tables that reference it beside an active one, for those who ask for its generation by name; at
    least 1 while it waits for promotion."""
    shard_ranges: str = ALL
    """The shards that it has servers of; empty: all."""
    window: str = ""
    """Those of them, as ranges, that no routing table has referenced since they were claimed; empty: none, or all of a
    candidate."""
    overtaken_by: str = ""
    """The generation that came before the rest of it, because a window of it was stuck: it keeps the shards that it
    has, and does not go on. Empty: none did."""
    password_key: str = ""
    """Fingerprint of the key from which the password of its servers is derived; empty: they ask for none."""
    lost_template: str = ""
    """The digest of the pod template from which its generation could not be rolled out anew, because the store has lost
    it: what waits for promotion does not wait for that as well. Empty: none."""
    push: PushStatus | None = None
    """None: no end of a push was seen."""

    @property
    def is_candidate(self) -> bool:
        """Whether no routing table has referenced it since it was claimed."""
        return not self.referenced_replicas and not self.offered_replicas and not self.kept_since

    @property
    def is_starting(self) -> bool:
        """Whether servers of it start that no routing table references."""
        return self.is_candidate or bool(self.window)

    @property
    def minimum_replicas(self) -> int:
        """How many servers a shard some router may send lookups to: so many stay."""
        return max(self.referenced_replicas, self.offered_replicas)


@dataclass(frozen=True, slots=True)
class CandidateStatus:
    """The rollout that waits for promotion: its servers were ready."""

    generation: str
    rollout: str
    since: str
