"""The counters of a worker, in shared memory."""

from __future__ import annotations

from typing import Final

COUNTERS: Final = {
    "lookups": "Keys looked up.",
    "misses": "Keys looked up that the shard does not hold.",
    "commands": "Commands answered.",
    "errors": "Commands answered with an error, and requests that were not RESP.",
    "damaged_lookups": "Keys looked up that were answered with an error because their stored value is damaged.",
    "connections": "Connections accepted.",
    "connections_refused": "Connections closed at once because there were too many.",
    "connections_cut": "Connections closed because the client was idle, slow, without the password or held too much.",
    "sent_bytes": "Bytes of replies.",
}
GAUGES: Final = {"open_connections": "Connections that are open now."}

NAMES: Final = (*COUNTERS, *GAUGES)
(
    LOOKUPS,
    MISSES,
    COMMANDS,
    ERRORS,
    DAMAGED_LOOKUPS,
    CONNECTIONS,
    CONNECTIONS_REFUSED,
    CONNECTIONS_CUT,
    SENT_BYTES,
    OPEN_CONNECTIONS,
) = range(len(NAMES))
"""Places in a worker's slot: constants, because the hot path counts."""
