"""The tokens of a cluster's service accounts: whether one is good, and whose it is. The gateway and routers ask.

``verification`` judges a token by a key, ``keys`` reads the keys. No I/O. Who imports them imports PyJWT and
cryptography, some 20 MB, so router workers do so only when their dataset asks for it.
"""

from __future__ import annotations

from typing import Final

MAX_TOKEN_BYTES: Final = 16 << 10
"""A longer token, of whatever kind, is refused unread."""
MAX_ACCOUNT_TOKEN_BYTES: Final = 4 << 10
"""Of a service account's, which the API server makes of some 1 KB."""
