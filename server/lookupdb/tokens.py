"""Limits of the tokens that the gateway and routers accept. `account_tokens` verifies those of service accounts."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MAX_TOKEN_BYTES: Final = 16 << 10
"""A longer token, of any kind, is rejected unread."""
MAX_ACCOUNT_TOKEN_BYTES: Final = 4 << 10
"""The limit for service account tokens. The API server makes tokens of about 1 KB."""


# Service accounts that may look up, and the verdict on a token. Importing this loads no crypto library.


# Allowed accounts: ``namespace/name``, or ``namespace/*`` for all of a namespace.

MAX_SUBJECTS: Final = 64
ANY: Final = "*"
_SUBJECT: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/(\*|[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)")


def is_subject(text: str) -> bool:
    """Return whether ``text`` names a service account or a whole namespace."""
    return _SUBJECT.fullmatch(text) is not None


class Subjects:
    """The allowed service accounts."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Raises ValueError for a text that is no subject."""
        names = tuple(texts)
        if not all(map(is_subject, names)):
            raise ValueError("expected namespace/name or namespace/*")
        self._names = frozenset(names)

    def allow(self, namespace: str, account: str) -> bool:
        """Return whether the service account ``account`` of ``namespace`` is allowed."""
        return f"{namespace}/{account}" in self._names or f"{namespace}/{ANY}" in self._names


NO_ACCESS_DATA: Final = "AccessUnknown"
"""The reason why a lookup is unavailable, if the router cannot decide yet who may look up."""


class Denial(enum.Enum):
    """The kind of a refusal."""

    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    """A valid token of a service account that is not allowed."""
    UNDECIDED = "undecided"
    """The token may be valid, but the data to judge it is missing."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The client may look up with these credentials until ``until``, in seconds since 1970."""

    until: float


@dataclass(frozen=True, slots=True)
class Denied:
    """The client may not look up. ``detail`` is a sentence that shows nothing of a token."""

    denial: Denial
    detail: str
    has_token: bool = True
