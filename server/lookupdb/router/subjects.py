"""What is said of a request's credentials. No I/O."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

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
