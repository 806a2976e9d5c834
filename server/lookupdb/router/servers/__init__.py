"""One connection to a shard server: connect, verify, use, watch, reconnect."""

from __future__ import annotations
