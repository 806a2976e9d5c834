"""The status of a LookupDataset: the operator's memory. Frozen dataclasses and their JSON, no decisions.

Numbers of generations, rollouts and routing tables are claimed here before anything carries them, in a write that
fails if somebody else wrote meanwhile: no two things are ever called the same.
"""

from __future__ import annotations

from lookupdb_operator.status.builds import BuildFailure, BuildOutcome, BuildRecord, BuildStatus, ScheduleStatus
from lookupdb_operator.status.conditions import BUILT, CONDITIONS, DEGRADED, READY, ROLLED_OUT, Condition, Truth
from lookupdb_operator.status.dataset import DatasetStatus
from lookupdb_operator.status.generations import (
    BuiltGeneration,
    GenerationStatus,
    LostGeneration,
    RefusedGeneration,
    RolledBack,
)
from lookupdb_operator.status.rollouts import CandidateStatus, PushStatus, RolloutStatus
from lookupdb_operator.status.tables import AnnouncedStatus, TableCandidate, TablePart, TableStatus
from lookupdb_operator.status.turns import Stall, Ticket

__all__ = [
    "BUILT",
    "CONDITIONS",
    "DEGRADED",
    "READY",
    "ROLLED_OUT",
    "AnnouncedStatus",
    "BuildFailure",
    "BuildOutcome",
    "BuildRecord",
    "BuildStatus",
    "BuiltGeneration",
    "CandidateStatus",
    "Condition",
    "DatasetStatus",
    "GenerationStatus",
    "LostGeneration",
    "PushStatus",
    "RefusedGeneration",
    "RolledBack",
    "RolloutStatus",
    "ScheduleStatus",
    "Stall",
    "TableCandidate",
    "TablePart",
    "TableStatus",
    "Ticket",
    "Truth",
]
