"""The conditions of a LookupDataset: what people and `kubectl wait` read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

READY: Final = "Ready"
BUILT: Final = "Built"
ROLLED_OUT: Final = "RolledOut"
DEGRADED: Final = "Degraded"
CONDITIONS: Final = (READY, BUILT, ROLLED_OUT, DEGRADED)
"""Always present, in this order."""

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One of CONDITIONS, as KEP-1623 has them."""

    type: str
    status: Truth
    reason: str
    """CamelCase, of ``plan.reasons``."""
    message: str
    """A sentence for people, with what to do when there is something."""
    observed_generation: int = 0
    last_transition_time: str = ""
    """When ``status`` last changed."""
