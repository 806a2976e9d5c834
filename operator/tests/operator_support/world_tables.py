"""The routing table of a world: in the status, as written, and as routers have read it."""

from __future__ import annotations

from typing import Any

import orjson

from lookupdb_operator import names
from lookupdb_operator.status import TableStatus
from operator_support.plan_world import World

TABLE = "ConfigMap", "airports-routing-table"


def table_of(world: World) -> TableStatus:
    """Return the table in the status."""
    assert world.status.table is not None
    return world.status.table


def written_table(world: World) -> dict[str, Any]:
    """Return the table in the ConfigMap."""
    content: dict[str, Any] = orjson.loads(world.things[TABLE].manifest["data"][names.TABLE_FILE])
    return content


def read_tables(world: World) -> list[dict[str, Any] | None]:
    """Return the table of each router."""
    return [pod.table for pod in world.pods.values() if pod.component == names.ROUTER]
