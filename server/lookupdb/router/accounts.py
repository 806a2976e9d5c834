"""The tokens of service accounts, by their cluster's keys, which a file has. No I/O.

Imports PyJWT and cryptography, 16 MB a worker: whoever has no service accounts to judge does not import this.
"""

from __future__ import annotations

import enum
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from lookupdb.tokens import InvalidToken, TokenCache, VerificationKey, are_same, find_key_id, parse_keys

# Which service accounts may look up: ``namespace/name``, or ``namespace/*`` for all of a namespace. No I/O.


MAX_SUBJECTS: Final = 64
ANY: Final = "*"
_SUBJECT: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/(\*|[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)")


def is_subject(text: str) -> bool:
    """Whether ``text`` names a service account, or all of a namespace."""
    return _SUBJECT.fullmatch(text) is not None


class Subjects:
    """Those that are named."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Raises ValueError for a text that is no subject."""
        names = tuple(texts)
        if not all(map(is_subject, names)):
            raise ValueError("expected namespace/name or namespace/*")
        self._names = frozenset(names)

    def allow(self, namespace: str, account: str) -> bool:
        """Whether the service account ``account`` of ``namespace`` is among them."""
        return f"{namespace}/{account}" in self._names or f"{namespace}/{ANY}" in self._names


# What is said of a request's credentials. No I/O.


class Denial(enum.Enum):
    """Why a request is not answered."""

    UNAUTHENTICATED = "unauthenticated"
    """No token, or none that is accepted."""
    FORBIDDEN = "forbidden"
    """A good token, of a service account that is not allowed."""
    UNDECIDED = "undecided"
    """The token may be good: what it is judged by is not there."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request may be answered, and each one with the same credentials until ``until``, in seconds since 1970."""

    until: float


@dataclass(frozen=True, slots=True)
class Denied:
    """It may not. ``detail`` is a sentence that shows nothing of a token."""

    denial: Denial
    detail: str
    has_token: bool = True


class AccountJudge(Protocol):
    """Judges the tokens of service accounts."""

    @property
    def key_count(self) -> int:
        """How many keys are known; without any, nothing can be judged."""

    @property
    def problem(self) -> str | None:
        """What is wrong with the keys; None for nothing."""

    def judge(self, token: str) -> Admitted | Denied:
        """What is said of ``token``."""


NO_KEYS: Final = "the keys of the cluster's service accounts are not known yet"


class ServiceAccounts:
    """Judges tokens made for ``audience``. The last keys that could be read stay until there are others."""

    def __init__(self, audience: str, subjects: Iterable[str], now: Callable[[], float] = time.time) -> None:
        self._subjects = Subjects(subjects)
        self.current: Mapping[str, VerificationKey] = {}
        """The keys, by id: what the cache of tokens looks at."""
        self._tokens = TokenCache(self, (audience,), now)
        self._unread: str | None = None

    @property
    def problem(self) -> str | None:
        """Why no token can be judged, or that newer keys cannot be read."""
        if self._unread:
            return self._unread
        return None if self.current else NO_KEYS

    @property
    def key_count(self) -> int:
        """How many keys are known."""
        return len(self.current)

    def take_keys(self, text: bytes | None) -> bool:
        """Judge by the keys of the JWKS ``text`` from now on; None: there is no file. Returns whether they changed."""
        if text is None:
            self._unread = "the file of the cluster's keys is gone; the last known ones hold" if self.current else None
            return False
        try:
            keys = parse_keys(text)
        except ValueError as error:
            self._unread = f"the file of the cluster's keys cannot be read: {error}"
            return False
        self._unread = None
        if are_same(keys, self.current):
            return False
        self.current = keys
        return True

    def judge(self, token: str) -> Admitted | Denied:
        """What is said of ``token``."""
        try:
            if not self.current:
                find_key_id(token)  # what is no such token at all is not good whatever the keys are
                return Denied(Denial.UNDECIDED, NO_KEYS)
            verified = self._tokens.verify_for_a_while(token)
        except InvalidToken as error:
            return Denied(Denial.UNAUTHENTICATED, error.detail)
        if verified is None:
            return Denied(Denial.UNAUTHENTICATED, "the token is signed with a key that is none of this cluster's")
        caller, until = verified
        if not self._subjects.allow(caller.namespace, caller.account):
            detail = f"the service account {caller.namespace}/{caller.account} may not look up in this dataset"
            return Denied(Denial.FORBIDDEN, f"{detail}; spec.router.auth.serviceAccounts.subjects lists those that may")
        return Admitted(until)
