"""Credentials: who may look up, the limits of tokens, and the passwords between routers and shard servers.

``account_tokens`` verifies the tokens of service accounts. It loads a crypto library, so this module does not import
it.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label: Kubernetes allows no other name for a namespace."""

MAX_TOKEN_BYTES: Final = 16 << 10
"""A longer token, of any kind, is rejected unread."""
MAX_ACCOUNT_TOKEN_BYTES: Final = 4 << 10
"""The limit for service account tokens. The API server makes tokens of about 1 KB."""


# Allowed accounts: ``namespace/name``, or ``namespace/*`` for all of a namespace.


MAX_SUBJECTS: Final = 64
ANY: Final = "*"
_SUBJECT: Final = re.compile(NAMESPACE.pattern + r"/(\*|[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)")


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
    """The client may not look up. ``detail`` is a sentence without any part of a token."""

    denial: Denial
    detail: str
    has_token: bool = True


# Passwords that shard servers require from routers: one for each shard of a rollout, none of them stored.
#
# release key → key of a dataset → password of a shard of a rollout → SHA-256 of that
#
# The operator has the release key, the routers of a dataset its key, and a shard server the hash of its shard's
# password. The hash is public: a password has 256 random bits. A router sends a password before a server has proven
# anything, so an impostor at one shard's address learns only that shard's password. Each value is derived only from the
# one before, so it can be computed again.


KEY_BYTES: Final = 32
"""Size of a release key and of a dataset's key."""
FINGERPRINT_DIGITS: Final = 8


def derive_dataset_key(release_key: bytes, uid: str) -> bytes:
    """Return the key of the dataset with ``uid``: 32 bytes."""
    return hmac.digest(release_key, b"dataset\0" + uid.encode(), "sha256")


def fingerprint_key(dataset_key: bytes) -> str:
    """Return a public name for a dataset's key: 8 hexadecimal digits."""
    return hashlib.sha256(dataset_key).hexdigest()[:FINGERPRINT_DIGITS]


def derive_password(dataset_key: bytes, rollout: str, shard: int) -> str:
    """Return the password for the servers of ``shard`` in ``rollout`` (such as ``r34``): 64 hexadecimal digits."""
    return hmac.digest(dataset_key, b"shard\0%b\0%d" % (rollout.encode(), shard), "sha256").hex()


def hash_password(password: bytes) -> str:
    """Return the hash of a password for a shard server: 64 hexadecimal digits."""
    return hashlib.sha256(password).hexdigest()
