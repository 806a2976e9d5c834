"""Which service accounts may look up: ``namespace/name``, or ``namespace/*`` for all of a namespace. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

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
