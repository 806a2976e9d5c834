"""What is known by the answer when HTTP is spoken to a Redis port: the one place, for commands and clients."""

from __future__ import annotations

import re
from typing import Final

_REPLY: Final = re.compile(rb"-[A-Z]+ |[+$:*]")

REDIS_HINT: Final = (
    "this looks like a Redis port, 6379 say. Lookups by HTTP have another one: 8080, or what --port of the router says,"
    " which `lookupdb up` shows in its line with curl; of a Service 80 or 443"
)


def begins_redis_reply(answer: bytes) -> bool:
    """Whether ``answer``, its first line at least, is none of HTTP but a Redis server's: such refuse the first line of
    a request."""
    return _REPLY.match(answer) is not None
