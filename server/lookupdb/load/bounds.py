"""How much load is made without being asked for explicitly: a typing error must not take a router down. Pure."""

from __future__ import annotations

from typing import Final

from lookupdb.errors import UsageError
from lookupdb.load.sender_plan import LoadPlan

MAX_RATE: Final = 1000.0
"""Requests a second, at the highest."""
MAX_KEYS_PER_SECOND: Final = 100_000.0
MAX_SECONDS: Final = 60.0
"""With the warm-up."""
FLAG: Final = "--beyond-default-bounds"


def check_bounds(plan: LoadPlan) -> None:
    """Raises UsageError if ``plan`` is more than anybody may send without the flag."""
    rate, seconds = plan.profile.highest, plan.profile.seconds
    excess = []
    if rate > MAX_RATE:
        excess.append(f"{rate:,g} requests/s ({MAX_RATE:,.0f} are the most)")
    if rate * plan.batch > MAX_KEYS_PER_SECOND:
        excess.append(f"{rate * plan.batch:,g} keys/s ({MAX_KEYS_PER_SECOND:,.0f} are the most)")
    if seconds > MAX_SECONDS:
        excess.append(f"{seconds:,g} s, the warm-up included ({MAX_SECONDS:g} are the most)")
    if excess:
        raise UsageError(
            f"a load of {', '.join(excess)} has to be asked for explicitly",
            hint=f"give {FLAG} if whoever runs the router knows of it",
        )
