"""The bounds of the router's RESP that no dataset sets. ``clients.limits`` has those that hold in any protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lookupdb.tokens import MAX_TOKEN_BYTES

GROUP_KEYS: Final = 256
"""GETs of one client that are looked up together. Further ones wait until these are answered."""

TURN_COMMANDS: Final = 64
"""Commands of one client that are answered at once. Further ones wait until others had their turn."""

TURN_BYTES: Final = 64 * 1024
"""When so much has come of one client, others have their turn before more is read: the loop itself would read 32 times
256 KiB of one socket before it looks at any other."""

SLICE_BYTES: Final = 16 * 1024
"""The parser, which needs two microseconds a word, is given so much in one turn: 2,300 words."""

REPLY_BYTES: Final = 16 * 1024
"""Replies of one turn are collected up to so many bytes, and sent before more are made."""

MAX_ARGUMENTS: Final = 100_001
"""Words of one command, as a shard server takes them: so that too many keys can be answered with an error. More, or
more bytes than ``maxBodyBytes``: the connection is closed."""

MAX_INLINE_BYTES: Final = 64 * 1024
"""Of an inline command, or of a length line: the same as Redis. More: the connection is closed."""

PART_RATIO: Final = 32
"""So many times may each byte of a lookup that comes in pieces be read again natively, until it is whole."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What one command may have. ``resp.requests.CommandLimits``."""

    max_arguments: int
    max_request_bytes: int
    max_inline_bytes: int


BEFORE_AUTH: Final = ReadLimits(
    max_arguments=16, max_request_bytes=MAX_TOKEN_BYTES + 1024, max_inline_bytes=MAX_TOKEN_BYTES + 1024
)
"""Of a client that has shown no token: HELLO with AUTH and SETNAME has seven words."""


def make_read_limits(max_body_bytes: int) -> ReadLimits:
    """Those of a client that may ask."""
    return ReadLimits(MAX_ARGUMENTS, max_body_bytes, MAX_INLINE_BYTES)
