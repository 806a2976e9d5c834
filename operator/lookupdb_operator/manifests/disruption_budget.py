"""PodDisruptionBudgets: how many pods a drain of nodes may take at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lookupdb_operator.model import Manifest


def render_disruption_budget(metadata: Mapping[str, Any], selector: Mapping[str, str]) -> Manifest:
    """One pod at a time. A budget that allows none would block the draining of nodes for ever; pods that do not serve
    may always go, because they would be the last to come back by waiting."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": dict(metadata),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": dict(selector)},
        },
    }
