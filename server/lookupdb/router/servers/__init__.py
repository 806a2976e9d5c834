"""One connection to a shard server: made, proven, watched, broken, made again."""

from __future__ import annotations
