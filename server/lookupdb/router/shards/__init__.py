"""One shard: which replica is asked, what waits for it, and which batches leave."""

from __future__ import annotations
