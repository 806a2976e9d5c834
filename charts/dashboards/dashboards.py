"""All dashboards, as the JSON that Grafana imports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from charts.dashboards.dataset import make_dataset_dashboard
from charts.dashboards.fleet import make_fleet_dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

FOLDER: Final = Path(__file__).resolve().parents[1] / "lookupdb" / "dashboards"


def make_dashboards() -> Mapping[str, str]:
    """Return each dashboard: its file name, and its text."""
    made = {"dataset.json": make_dataset_dashboard().build(), "fleet.json": make_fleet_dashboard().build()}
    for dashboard in made.values():
        for number, panel in enumerate(dashboard.panels or (), 1):  # links name a panel by its number
            panel.id_val = number
    return {
        name: json.dumps(dashboard, cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        for name, dashboard in made.items()
    }
