"""The objects of the API server: lists and watches, parsed as they arrive, in a cache by dataset."""

from __future__ import annotations
