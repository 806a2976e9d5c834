"""One shard: the choice of a replica, queues, and batches."""

from __future__ import annotations
