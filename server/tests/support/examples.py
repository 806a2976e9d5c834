"""Settings of hypothesis: the same examples in every run, and no limit of time."""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, settings

SAME: Final = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
"""To be given to ``@settings``, with ``max_examples``."""
