"""What is said of a request's credentials. No I/O."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


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
