"""The bounds of the router's HTTP that no dataset sets. ``route.limits`` has those that a dataset sets,
``clients.limits`` those that hold in any protocol. In bytes."""

from __future__ import annotations

from typing import Final

MAX_TARGET_BYTES: Final = 8192
"""Request target: five times the longest key with each byte percent-encoded. More: 414."""

MAX_HEAD_BYTES: Final = 32 * 1024
"""Request line and header fields, counted in steps of ``SLICE_BYTES``. More: 431."""

SLICE_BYTES: Final = 8 * 1024
"""What the parser is fed at once while it reads a head, so that a long head is noticed before it is collected."""

MAX_CHUNK_OVERHEAD_BYTES: Final = 16 * 1024
"""Chunk sizes, extensions and trailers of one body, beyond 16 bytes for each byte of the body itself. More: 431."""

MAX_PIPELINE: Final = 64
"""Requests of one connection that are looked up at once; a batch alone. More wait, and nothing is read meanwhile."""

MAX_HELD_ANSWERS_BYTES: Final = 256 * 1024
"""Answers that wait for that to an earlier request. More: no further request of the connection is begun or read."""

MAX_REPEATED_HEAD_BYTES: Final = 2 * 1024
"""A request with a longer head is not remembered, so its repeats are parsed in full."""

MAX_REMEMBERED_HOST_BYTES: Final = 256

MAX_HEADS: Final = 1024
"""Encoded heads a generation, one for each size of a value."""

MAX_GENERATIONS: Final = 64
"""Generations, and combinations of them, of which heads are kept encoded."""
