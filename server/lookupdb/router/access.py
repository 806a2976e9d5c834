"""Access to the router: whether a client may look up, decided from its token.

``read_token_hashes`` reads the hashes of accepted tokens. ``read_bearer_token`` and ``check_token`` take the client's
token. ``Gatekeeper`` judges it by hashes, service accounts, or both. ``AccessWatch`` reloads the files when they
change.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lookupdb.credentials import MAX_TOKEN_BYTES, Admitted, Denial, Denied
from lookupdb.process.watched_files import Content, WatchedFiles, list_folder

if TYPE_CHECKING:
    from lookupdb.account_tokens import ServiceAccounts

# Hashes of accepted tokens, from the files of a Secret: one file per client, one hash per line. SHA-256 suffices
# because tokens are random: ``lookupdb token`` makes 256 bits. A slow hash would only cost each connection time.


PREFIX: Final = "sha256:"
MAX_HASHES: Final = 64
"""Limit per client. Several hashes are valid while a token is replaced."""
MAX_PROBLEMS: Final = 5
_MAX_BYTES: Final = 8 << 10
_LINE: Final = re.compile(rb"sha256:([0-9a-fA-F]{64})")
_HOW: Final = "expected sha256: and 64 hexadecimal digits a line, as `lookupdb token --hash` prints them"


@dataclass(frozen=True, slots=True)
class TokenHashes:
    """The content of a Secret's files."""

    digests: frozenset[bytes]
    problems: tuple[str, ...]
    """Sentences about ignored files. They quote no content."""


def hash_token(token: bytes) -> str:
    """Return the line of a Secret that admits ``token``."""
    return PREFIX + hashlib.sha256(token).hexdigest()


def read_token_hashes(content: Mapping[Path, bytes | None]) -> TokenHashes:
    """Return the hashes in all files of ``content``. A file with any error is ignored as a whole."""
    digests: set[bytes] = set()
    problems: list[str] = []
    for path, text in content.items():
        if path.name.startswith("."):
            # A Secret may have such a key, but a folder made by hand may hold such a file by accident.
            problems.append(f"{path.name} is not read, because its name begins with a dot")
            continue
        if text is None:
            problems.append(f"{path.name} cannot be read")
            continue
        found = _read_file(text)
        if isinstance(found, str):
            problems.append(f"{path.name}: {found}")
        else:
            digests |= found
    more = len(problems) - MAX_PROBLEMS
    shown = [*problems[:MAX_PROBLEMS], f"and {more} more"] if more > 0 else problems
    return TokenHashes(frozenset(digests), tuple(shown))


def _read_file(text: bytes) -> set[bytes] | str:
    if len(text) > _MAX_BYTES:
        return f"it has more than {_MAX_BYTES} bytes; {_HOW}"
    digests: set[bytes] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not (line := line.strip()):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            return f"line {number} is not the hash of a token; the token itself does not belong there; {_HOW}"
        digests.add(bytes.fromhex(found[1].decode()))
    if not digests:
        return f"it is empty; {_HOW}"
    return digests if len(digests) <= MAX_HASHES else f"it has more than {MAX_HASHES} hashes"


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Access rules from the command line: ``tokens``, ``keys`` or both. ``keys`` need an audience and subjects."""

    tokens: str | None = None
    """Folder with hashes of tokens: in a cluster, a Secret."""
    keys: str | None = None
    """File with the public keys of the cluster's service accounts."""
    audience: str | None = None
    subjects: Sequence[str] = ()


# A client's token, in an Authorization field (RFC 6750, 2.1) or alone. Messages never repeat what is refused.

MIN_TOKEN_BYTES: Final = 20
"""Shorter tokens, such as passwords, could be guessed from their hashes."""

_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
_CREDENTIALS: Final = re.compile(rb"[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?: +([A-Za-z0-9._~+/-]+=*))?[ \t]*")


class NoToken(Exception):
    """The client sent no acceptable token. The message quotes nothing of it."""


def read_bearer_token(field: bytes | None) -> bytes:
    """Return the token in ``field``, the value of an Authorization field (None if absent). Raises NoToken."""
    if field is None:
        raise NoToken("expected a token, as Authorization: Bearer …")
    if len(field) > MAX_TOKEN_BYTES:
        raise NoToken(f"the header field Authorization has more than {MAX_TOKEN_BYTES} bytes")
    credentials = _CREDENTIALS.fullmatch(field)
    if credentials is None or credentials[1].lower() != b"bearer":
        raise NoToken("expected Authorization: Bearer and one token, found something else")
    token: bytes = credentials[2] or b""
    return _check_length(token)


def check_token(token: bytes) -> bytes:
    """Return ``token``, which a client sent without a header, if its form is valid. Raises NoToken."""
    if len(token) > MAX_TOKEN_BYTES:
        raise NoToken(f"the token has more than {MAX_TOKEN_BYTES} bytes")
    if _TOKEN.fullmatch(token) is None:
        raise NoToken("expected a token of A-Z a-z 0-9 - . _ ~ + /, found something else")
    return _check_length(token)


def _check_length(token: bytes) -> bytes:
    if len(token) < MIN_TOKEN_BYTES:
        raise NoToken(f"the token has fewer than {MIN_TOKEN_BYTES} bytes")
    return token


# A token's SHA-256 is looked up in a set. The lookup's time depends only on the hash, and nobody can make a token whose
# hash has a chosen beginning. Every decision fails closed: unreadable files admit nobody.


NO_TOKENS: Final = "the router has no token hash yet"
_UNKNOWN: Final = "the token is not accepted"


class Gatekeeper:
    """Judges clients by tokens, service accounts or both; either suffices.

    ``version`` grows with each change of the rules; clients admitted before must be judged again.
    """

    def __init__(self, *, token_folder: str | None, accounts: ServiceAccounts | None) -> None:
        """``token_folder`` is the source of token hashes, or None if tokens are not accepted."""
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

    @property
    def can_judge(self) -> bool:
        """Return whether any client could be admitted; otherwise the router is not ready."""
        return bool(self._hashes.digests) or (self._accounts is not None and self._accounts.key_count > 0)

    def judge(self, field: bytes | None) -> Admitted | Denied:
        """Judge a request by its Authorization field, None if absent."""
        try:
            token = read_bearer_token(field)
        except NoToken as error:
            return Denied(Denial.UNAUTHENTICATED, str(error), has_token=field is not None)
        return self._judge(token)

    def judge_token(self, token: bytes) -> Admitted | Denied:
        """Judge a client by ``token``, in a protocol without header fields."""
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
                denied = Denied(verdict.denial, f"{_UNKNOWN}; as a service account's token it fails: {verdict.detail}")
        if self._takes_tokens and not self._hashes.digests and denied.denial is Denial.UNAUTHENTICATED:
            return Denied(Denial.UNDECIDED, NO_TOKENS)
        return denied

    def describe(self) -> dict[str, Any]:
        """Return the state for /status, which quotes no token."""
        problems = list(self._hashes.problems)
        if self._takes_tokens and not self._hashes.digests:
            # Only here, because clients have no use for the path.
            where = "in a cluster, the Secret of spec.router.auth.tokens"
            problems.insert(0, f"{NO_TOKENS}: there is no file with one in {self._token_folder} ({where})")
        members: dict[str, Any] = {"version": self.version}
        if self._takes_tokens:
            members["tokens"] = len(self._hashes.digests)
        if self._accounts is not None:
            members["keys"] = self._accounts.key_count
            problems += filter(None, (self._accounts.problem,))
        return {**members, "problems": problems}


log = logging.getLogger(__name__)


class AccessWatch:
    """The gatekeeper of one worker, kept up to date. Calls ``on_change`` when ``describe`` has changed."""

    def __init__(self, settings: AccessSettings, on_change: Callable[[], None], *, logs: bool) -> None:
        """``logs``: whether to log problems with files. All workers see the same ones, so only one worker logs."""
        self._on_change = on_change
        self._logs = logs
        self._logged: list[str] = []
        self._accounts = _make_accounts(settings)
        self.gatekeeper = Gatekeeper(token_folder=settings.tokens, accounts=self._accounts)
        self._watches: list[WatchedFiles] = []
        if settings.tokens is not None:
            folder = Path(settings.tokens)
            self._watches.append(WatchedFiles(lambda: list_folder(folder), self._take_tokens))
        if settings.keys is not None:
            file = Path(settings.keys)
            self._watches.append(WatchedFiles(lambda: [file], self._take_keys))

    def start(self) -> None:
        """Read the files, now and after each change."""
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """Stop watching."""
        for watch in self._watches:
            watch.stop()

    def describe(self) -> dict[str, Any]:
        """Return the state for /status."""
        described = self.gatekeeper.describe()
        unread = [problem for watch in self._watches for problem in watch.problems]
        return {**described, "problems": [*described["problems"], *unread]}

    def _take_tokens(self, content: Content) -> None:
        self.gatekeeper.take_hashes(read_token_hashes(content))
        self._report()

    def _take_keys(self, content: Content) -> None:
        assert self._accounts is not None
        (text,) = content.values()
        if self._accounts.take_keys(text):
            self.gatekeeper.version += 1
        self._report()

    def _report(self) -> None:
        problems = self.describe()["problems"]
        if self._logs and problems != self._logged:
            self._logged = problems
            for problem in problems:
                log.warning("access rules: %s", problem)
        self._on_change()


def _make_accounts(settings: AccessSettings) -> ServiceAccounts | None:
    if settings.keys is None:
        return None
    from lookupdb.account_tokens import ServiceAccounts

    assert settings.audience is not None
    return ServiceAccounts(settings.audience, settings.subjects)
