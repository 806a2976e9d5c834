"""Who may look up, decided from the token that a client shows. No I/O.

A token is looked for by its SHA-256 in a set, never compared: how long that takes tells of the hash, and nobody can
choose a token by the beginning of its hash. Every decision fails closed: nobody is let in because something could not
be read.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

from lookupdb.route.access.authorization import NoToken, check_token, read_bearer_token
from lookupdb.route.access.token_hashes import TokenHashes
from lookupdb.route.access.verdict import AccountJudge, Admitted, Denial, Denied

NO_TOKENS: Final = "the router has no hash of a token yet that it could judge by"
_UNKNOWN: Final = "the token is not accepted"


class Gatekeeper:
    """Judges by tokens, by service accounts, or by both: either suffices. ``version`` grows with each change of what is
    judged by: who was let in before has to be judged anew."""

    def __init__(self, *, token_folder: str | None, accounts: AccountJudge | None) -> None:
        """``token_folder``: where the hashes of tokens come from; None: no token is taken."""
        self._takes_tokens = token_folder is not None
        self._token_folder = token_folder
        self._accounts = accounts
        self._hashes = TokenHashes(frozenset(), ())
        self.version = 0

    def take_hashes(self, hashes: TokenHashes) -> None:
        """Judge tokens by ``hashes`` from now on."""
        if hashes.digests != self._hashes.digests:
            self.version += 1
        self._hashes = hashes

    def note_new_keys(self) -> None:
        """The service accounts are judged by other keys from now on."""
        self.version += 1

    @property
    def can_judge(self) -> bool:
        """Whether somebody could be let in: a router that can let nobody in is not ready."""
        return bool(self._hashes.digests) or (self._accounts is not None and self._accounts.key_count > 0)

    def judge(self, field: bytes | None) -> Admitted | Denied:
        """What is said of a request whose header field Authorization is ``field``; None is one without."""
        try:
            token = read_bearer_token(field)
        except NoToken as error:
            return Denied(Denial.UNAUTHENTICATED, str(error), has_token=field is not None)
        return self._judge(token)

    def judge_token(self, token: bytes) -> Admitted | Denied:
        """The same of a client that has shown ``token``, in a protocol without header fields."""
        try:
            return self._judge(check_token(token))
        except NoToken as error:
            return Denied(Denial.UNAUTHENTICATED, str(error))

    def _judge(self, token: bytes) -> Admitted | Denied:
        if hashlib.sha256(token).digest() in self._hashes.digests:
            return Admitted(math.inf)
        denied = Denied(Denial.UNAUTHENTICATED, _UNKNOWN)
        if self._accounts is not None:
            verdict = self._accounts.judge(token.decode())
            if isinstance(verdict, Admitted) or verdict.denial is Denial.FORBIDDEN:
                return verdict
            denied = verdict
            if self._takes_tokens and verdict.denial is Denial.UNAUTHENTICATED:
                denied = Denied(verdict.denial, f"{_UNKNOWN}; as a service account's, {verdict.detail}")
        if self._takes_tokens and not self._hashes.digests and denied.denial is Denial.UNAUTHENTICATED:
            return Denied(Denial.UNDECIDED, NO_TOKENS)
        return denied

    def describe(self) -> dict[str, Any]:
        """For /status: how much is known, and what is wrong. Nothing of a token."""
        problems = list(self._hashes.problems)
        if self._takes_tokens and not self._hashes.digests:
            # Not for clients: where files are is nothing to them.
            where = "in a cluster, the Secret of spec.router.auth.tokens"
            problems.insert(0, f"{NO_TOKENS}: there is no file with one in {self._token_folder} ({where})")
        members: dict[str, Any] = {"version": self.version}
        if self._takes_tokens:
            members["tokens"] = len(self._hashes.digests)
        if self._accounts is not None:
            members["keys"] = self._accounts.key_count
            problems += filter(None, (self._accounts.problem,))
        return {**members, "problems": problems}
