"""The public keys of a cluster's service accounts, as its API server tells them: a JWKS (RFC 7517)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import orjson
from jwt import PyJWK

from lookupdb.tokens.verification import VerificationKey

log = logging.getLogger(__name__)

_MIN_RSA_BITS: Final = 2048
_MAX_KEYS: Final = 100


def parse_keys(text: bytes) -> dict[str, VerificationKey]:
    """The keys of a JWKS that verify signatures, by id. Raises ValueError if there are none."""
    members = orjson.loads(text)
    entries = members.get("keys") if isinstance(members, dict) else None
    if not isinstance(entries, list):
        raise ValueError("expected a JSON object with a list of keys")  # noqa: TRY004 - as what is no JSON
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
        log.warning("a key of service accounts cannot be read", exc_info=True)
        return None
    if algorithm == "RS256" and key.key_size < _MIN_RSA_BITS:
        return None
    return VerificationKey(algorithm, key)


def _find_algorithm(entry: Mapping[str, Any]) -> str | None:
    """The one that a key of this kind verifies."""
    match entry.get("kty"), entry.get("crv"):
        case "RSA", None:
            return "RS256"
        case "EC", "P-256":
            return "ES256"
        case _:
            return None


def are_same(keys: Mapping[str, VerificationKey], other_keys: Mapping[str, VerificationKey]) -> bool:
    """Whether both verify the same tokens."""
    return _identify(keys) == _identify(other_keys)


def _identify(keys: Mapping[str, VerificationKey]) -> dict[str, tuple[str, Any]]:
    return {key_id: (key.algorithm, key.key.public_numbers()) for key_id, key in keys.items()}
