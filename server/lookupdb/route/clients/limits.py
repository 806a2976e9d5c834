"""The bounds of clients' connections that no dataset sets, in whichever protocol. In bytes."""

from __future__ import annotations

from typing import Final

HIGH_WATER_BYTES: Final = 4 * 1024
"""Answers that the kernel does not take. More: no further request of the connection is begun or read, and what is not
sent is counted in the worker's budget. Less is not counted: so much is part of what a connection costs."""

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
