"""Search for planted secrets: as they are, and in base64, URLs and hexadecimal."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from urllib.parse import quote

_ACCOUNT_TOKEN = re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}")
"""Any token of a service account: three parts, the first two JSON objects."""
_LEAST_BYTES = 12
"""Minimum length of a match within other base64: a shorter one is found by chance."""


def find_planted(text: str, planted: Mapping[str, str | bytes]) -> list[str]:
    """Return the names of the secrets in ``text``."""
    return [name for name, secret in planted.items() if any(form in text for form in list_forms(secret))]


def find_account_tokens(text: str) -> list[str]:
    """Return the beginnings of service account tokens in ``text``."""
    return [token[:40] for token in _ACCOUNT_TOKEN.findall(text)]


def list_forms(secret: str | bytes) -> set[str]:
    """Return the ways to write ``secret``, besides plain text."""
    raw = secret.encode() if isinstance(secret, str) else secret
    forms = {raw.hex(), raw.hex().upper(), base64.urlsafe_b64encode(raw).decode().rstrip("=")}
    forms |= {_encode_within(raw, offset) for offset in range(3 if len(raw) >= _LEAST_BYTES else 1)}
    if isinstance(secret, str):
        forms |= {secret, quote(secret, safe=""), secret.replace("/", "\\/")}
    return forms


def _encode_within(raw: bytes, offset: int) -> str:
    """Return the part of the base64 that depends on ``raw`` alone if ``offset`` bytes precede it."""
    encoded = base64.b64encode(bytes(offset) + raw).decode()
    first, last = (4 if offset else 0), 4 * ((offset + len(raw)) // 3)
    return encoded[first:last]
