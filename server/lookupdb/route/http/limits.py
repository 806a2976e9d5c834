"""The bounds of the router's HTTP that no dataset sets. ``route.limits`` has those that a dataset sets. In bytes."""

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

HIGH_WATER_BYTES: Final = 4 * 1024
"""Answers that the kernel does not take. More: no further request of the connection is begun or read, and what is not
sent is counted in the worker's budget. Less is not counted: so much is part of what a connection costs."""

MAX_HELD_ANSWERS_BYTES: Final = 256 * 1024
"""Answers that wait for that to an earlier request. More: no further request of the connection is begun or read."""

MAX_REPEATED_HEAD_BYTES: Final = 2 * 1024
"""A request with a longer head is not remembered, so its repeats are parsed in full."""

MAX_REMEMBERED_HOST_BYTES: Final = 256

MAX_HEADS: Final = 1024
"""Encoded heads a generation, one for each size of a value."""

MAX_GENERATIONS: Final = 64
"""Generations, and combinations of them, of which heads are kept encoded."""

JOINED_BYTES: Final = 256 * 1024
"""An answer to a batch up to this size is sent as one piece; a larger one value by value, and never copied."""

TLS_PIECE_BYTES: Final = 128 * 1024
"""An answer is encrypted and written in pieces of this size and a record's: what is encrypted is a copy."""

LINGER_SECONDS: Final = 2.0
"""How long after a closing answer what the client still sends is read and dropped, so that it can read the answer:
closing with unread bytes resets the connection."""

MAX_LINGERING_REFUSED: Final = 48
"""Connections beyond the limit that stay open until their clients have read the refusal. Further ones are closed right
after it, and a client that has sent something already may see a reset instead. ``capacity.RESERVED_DESCRIPTORS`` counts
them."""

SWEEP_SECONDS: Final = 0.25
"""How often connections are looked through for timeouts: every timeout is kept to within this."""
