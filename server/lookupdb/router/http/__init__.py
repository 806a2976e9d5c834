"""HTTP in, lookups out: the router's public port."""

from __future__ import annotations
