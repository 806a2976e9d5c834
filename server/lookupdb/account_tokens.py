"""Verify tokens of a cluster's service accounts, by the public keys that its API server publishes as a JWKS (RFC 7517).

Importing this module loads PyJWT and cryptography, some 20 MB: router workers do so only if their dataset asks for it.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import jwt
import orjson
from jwt import PyJWK

from lookupdb.credentials import MAX_ACCOUNT_TOKEN_BYTES, NAMESPACE, Admitted, Denial, Denied, Subjects

if TYPE_CHECKING:
    from jwt.types import Options

# Verification fails closed: a token passes only if everything is as the API server makes it. Invalid tokens are
# rejected cheaply: the key is looked up by a short header, and the signature verified, before anything else is parsed.


LEEWAY_SECONDS: Final = 10
"""The tolerated difference between clocks."""
CACHE_SECONDS: Final = 600.0
CACHE_ENTRIES: Final = 4096
_COMPACT: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_SUBJECT: Final = re.compile(r"system:serviceaccount:([^:\s]+):([^:\s]+)")
_HEADER_MEMBERS: Final = frozenset({"alg", "kid", "typ"})
_MAX_HEADER: Final = 512
"""In base64 digits; the API server's headers have about 100."""
_MAX_KID: Final = 256
_ALGORITHMS: Final = jwt.PyJWS(["RS256", "ES256"])
_OPTIONS: Final[Options] = {
    "require": ["exp", "nbf", "aud", "sub"],
    "verify_signature": True,
    "verify_aud": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}
"""Times are compared here, with a given clock."""


class InvalidToken(Exception):
    """A token is rejected. ``reason`` is a word for metrics, ``detail`` a sentence without any part of the token."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Caller:
    """The service account of a token."""

    namespace: str
    account: str


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key, and the one algorithm of its signatures."""

    algorithm: str
    key: Any


def find_key_id(token: str) -> str:
    """Return the id of the key that ``token`` names; nothing about it is verified. Raises InvalidToken."""
    if len(token) > MAX_ACCOUNT_TOKEN_BYTES:
        raise InvalidToken("size", f"the token has more than {MAX_ACCOUNT_TOKEN_BYTES} bytes")
    if not _COMPACT.fullmatch(token):
        raise InvalidToken("form", "the token is not a signed JWT")
    encoded = token[: token.index(".")]
    try:
        header = orjson.loads(decode_part(encoded)) if len(encoded) <= _MAX_HEADER else None
    except ValueError as error:
        raise InvalidToken("form", "the token's header cannot be read") from error
    if (
        not isinstance(header, dict)
        or not header.keys() <= _HEADER_MEMBERS
        or not all(isinstance(value, str) for value in header.values())
    ):
        raise InvalidToken("form", "the token's header is not as the API server writes it")
    key_id: str = header.get("kid", "")
    if not 0 < len(key_id) <= _MAX_KID:
        raise InvalidToken("form", "the token's header names no key")
    return key_id


def decode_part(encoded: str) -> bytes:
    """Decode a part of a token. Raises ValueError."""
    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))


def _verify_token(token: str, key: VerificationKey, audiences: Sequence[str], now: float) -> tuple[Caller, float]:
    """Return the caller of ``token``, and when it expires. Raises InvalidToken."""
    if not _is_signed(token, key):
        raise InvalidToken("signature", "the token is not signed by this cluster")
    try:
        claims = jwt.decode(token, key.key, algorithms=[key.algorithm], options=_OPTIONS, audience=list(audiences))
        expires, begins = float(claims["exp"]), float(claims["nbf"])
    except jwt.InvalidAudienceError as error:
        raise InvalidToken("audience", f"the token is not for {' or '.join(audiences)}") from error
    except Exception as error:  # any error rejects it
        raise InvalidToken("signature", "the token names another algorithm, or lacks a claim") from error
    if not now < expires + LEEWAY_SECONDS:
        raise InvalidToken("expired", "the token has expired")
    if not begins - LEEWAY_SECONDS <= now:
        raise InvalidToken("early", "the token is not valid yet")
    if isinstance(claims["aud"], list) and len(claims["aud"]) != 1:  # any other audience could send it here
        raise InvalidToken("audience", "the token has several audiences; expected one")
    details = claims.get("kubernetes.io")
    namespace = details.get("namespace") if isinstance(details, dict) else None
    subject = _SUBJECT.fullmatch(claims["sub"]) if isinstance(claims["sub"], str) else None
    if not isinstance(namespace, str) or not NAMESPACE.fullmatch(namespace):
        raise InvalidToken("claims", "the token names no namespace")
    if subject is None or subject[1] != namespace:
        raise InvalidToken("claims", "the token's subject is not a service account of its namespace")
    return Caller(namespace, subject[2]), expires


def _is_signed(token: str, key: VerificationKey) -> bool:
    """Return whether ``key`` has signed the token's first two parts. This comes first, because ``jwt.decode`` looks at
    each byte in Python before it verifies.
    """
    signed, _, signature = token.rpartition(".")
    try:
        return _ALGORITHMS.get_algorithm_by_name(key.algorithm).verify(signed.encode(), key.key, decode_part(signature))
    except Exception:  # any error rejects it
        return False


class TokenCache:
    """Verified tokens, by their digest, until they expire or the keys change."""

    def __init__(
        self, keys: Callable[[], Mapping[str, VerificationKey]], audiences: Sequence[str], now: Callable[[], float]
    ) -> None:
        """``keys`` returns the keys by id, in a new object after a change."""
        self._keys = keys
        self._audiences = tuple(audiences)
        self._now = now
        self._entries: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()
        self._verified_with: Mapping[str, VerificationKey] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def verify(self, token: str) -> tuple[Caller, float] | None:
        """Return the caller of ``token``, and the time until which this holds unless the keys change; None if its key
        is unknown. Raises InvalidToken."""
        keys, now = self._keys(), self._now()
        if keys is not self._verified_with:
            self._entries.clear()
            self._verified_with = keys
        key = keys.get(find_key_id(token))
        if key is None:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        entry = self._entries.get(digest)
        if entry and now < entry[1]:
            return entry
        caller, expires = _verify_token(token, key, self._audiences, now)
        verified = self._entries[digest] = caller, min(expires, now + CACHE_SECONDS)
        while len(self._entries) > CACHE_ENTRIES:
            self._entries.popitem(last=False)
        return verified


log = logging.getLogger(__name__)

_MIN_RSA_BITS: Final = 2048
_MAX_KEYS: Final = 100


def parse_keys(text: bytes) -> dict[str, VerificationKey]:
    """Return the signature keys of a JWKS, by id. Raises ValueError if there are none."""
    members = orjson.loads(text)
    entries = members.get("keys") if isinstance(members, dict) else None
    if not isinstance(entries, list):
        raise ValueError("expected a JSON object with a list of keys")  # noqa: TRY004 - the same error as for invalid JSON
    keys: dict[str, VerificationKey] = {}
    for entry in entries[:_MAX_KEYS]:
        if isinstance(entry, dict) and (key := _parse_key(entry)):
            keys[entry["kid"]] = key
    if not keys:
        raise ValueError("it has no RSA or P-256 key with an id")
    return keys


def _parse_key(entry: Mapping[str, Any]) -> VerificationKey | None:
    algorithm = _find_algorithm(entry)
    has_id = isinstance(entry.get("kid"), str) and entry["kid"]
    if algorithm is None or not has_id or entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm:
        return None
    public = {name: entry[name] for name in ("kty", "crv", "n", "e", "x", "y") if name in entry}
    try:
        key = PyJWK(public, algorithm=algorithm).key
    except Exception:
        log.warning("a public key for tokens of service accounts cannot be read", exc_info=True)
        return None
    if algorithm == "RS256" and key.key_size < _MIN_RSA_BITS:
        return None
    return VerificationKey(algorithm, key)


def _find_algorithm(entry: Mapping[str, Any]) -> str | None:
    """Return the algorithm that a key of this kind verifies."""
    match entry.get("kty"), entry.get("crv"):
        case "RSA", None:
            return "RS256"
        case "EC", "P-256":
            return "ES256"
        case _:
            return None


def are_same(keys: Mapping[str, VerificationKey], other_keys: Mapping[str, VerificationKey]) -> bool:
    """Return whether both verify the same tokens."""
    return _identify(keys) == _identify(other_keys)


def _identify(keys: Mapping[str, VerificationKey]) -> dict[str, tuple[str, Any]]:
    return {key_id: (key.algorithm, key.key.public_numbers()) for key_id, key in keys.items()}


# Service accounts: their tokens are judged by the cluster's public keys and the list of allowed accounts.


NO_KEYS: Final = "the keys of the cluster's service accounts are not known yet"


class ServiceAccounts:
    """Judges tokens for ``audience``. The last readable keys stay until there are others."""

    def __init__(self, audience: str, subjects: Iterable[str]) -> None:
        self._subjects = Subjects(subjects)
        self.current: Mapping[str, VerificationKey] = {}
        """Keys by id."""
        self._tokens = TokenCache(lambda: self.current, (audience,), time.time)
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
        """Use the keys in the JWKS ``text``; None means that there is no file. Return whether the keys changed."""
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
                find_key_id(token)  # a malformed token is invalid, whatever the keys
                return Denied(Denial.UNDECIDED, NO_KEYS)
            verified = self._tokens.verify(token)
        except InvalidToken as error:
            return Denied(Denial.UNAUTHENTICATED, error.detail)
        if verified is None:
            return Denied(Denial.UNAUTHENTICATED, "the token is not signed with a key of this cluster")
        caller, until = verified
        if not self._subjects.allow(caller.namespace, caller.account):
            detail = f"the service account {caller.namespace}/{caller.account} may not look up in this dataset"
            return Denied(Denial.FORBIDDEN, f"{detail}; spec.router.auth.serviceAccounts.subjects lists those that may")
        return Admitted(until)
