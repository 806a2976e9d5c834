"""Service accounts: judges their tokens by the cluster's public keys, and by the list of allowed accounts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from lookupdb.account_tokens import InvalidToken, TokenCache, VerificationKey, are_same, find_key_id, parse_keys
from lookupdb.router.subjects import Admitted, Denial, Denied, Subjects

NO_KEYS: Final = "the keys of the cluster's service accounts are not known yet"


class ServiceAccounts:
    """Judges tokens for ``audience``. The last readable keys stay until there are others."""

    def __init__(self, audience: str, subjects: Iterable[str], now: Callable[[], float] = time.time) -> None:
        self._subjects = Subjects(subjects)
        self.current: Mapping[str, VerificationKey] = {}
        """Keys by id, for the cache of tokens."""
        self._tokens = TokenCache(self, (audience,), now)
        self._unread: str | None = None

    @property
    def problem(self) -> str | None:
        """The reason why no token can be judged, or why newer keys cannot be read."""
        if self._unread:
            return self._unread
        return None if self.current else NO_KEYS

    @property
    def key_count(self) -> int:
        """The number of known keys."""
        return len(self.current)

    def take_keys(self, text: bytes | None) -> bool:
        """Use the keys in the JWKS ``text``, None if there is no file. Return whether the keys changed."""
        if text is None:
            self._unread = (
                "the file of the cluster's keys is gone; the last known keys are used" if self.current else None
            )
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
        """Judge ``token``."""
        try:
            if not self.current:
                find_key_id(token)  # what is not a JWT is invalid with any keys
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
