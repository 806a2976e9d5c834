"""The rank that a percentile is. Pure, and without the library that counts: who judges a result need not have it."""

from __future__ import annotations

import math


def find_rank(percentile: float, count: int) -> int:
    """Which of ``count`` requests, from the fastest on, so many of a hundred do not exceed: 1 is the fastest."""
    return max(1, math.ceil(round(percentile * count / 100, 6)))
