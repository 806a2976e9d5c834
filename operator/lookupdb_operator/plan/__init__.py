"""Decide what to do about one dataset: ``plan(observed, config, now)``, a pure function. Begin with ``plan.py``."""

from __future__ import annotations

from lookupdb_operator.plan.plan import plan

__all__ = ["plan"]
