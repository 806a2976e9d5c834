"""Limits of the tokens that the gateway and routers accept. `account_tokens` verifies those of service accounts."""

from __future__ import annotations

from typing import Final

MAX_TOKEN_BYTES: Final = 16 << 10
"""A longer token, of any kind, is rejected unread."""
MAX_ACCOUNT_TOKEN_BYTES: Final = 4 << 10
"""The limit for service account tokens. The API server makes tokens of about 1 KB."""
