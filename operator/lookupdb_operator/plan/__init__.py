"""Decide what to do about one dataset: ``plan(observed, config, now)``, a pure function. Begin with ``planner.py``."""

from __future__ import annotations

from lookupdb_operator.plan.planner import plan

__all__ = ["plan"]
