"""What the API server has: lists and watches, parsed as they arrive, in a cache by dataset."""

from __future__ import annotations
