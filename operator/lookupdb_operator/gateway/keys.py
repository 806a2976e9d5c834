"""The public keys of the cluster's service accounts, from the API server; the last known stay while it is away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson
from jwt import PyJWK

from lookupdb_operator.api.client import Answer, Api, ApiError
from lookupdb_operator.gateway.tokens import VerificationKey

log = logging.getLogger(__name__)

JWKS_PATH: Final = "/openid/v1/jwks"
REFRESH_SECONDS: Final = 600.0
UNKNOWN_KEY_SECONDS: Final = 10.0
"""Between two readings that an unknown key asks for."""
_RETRY_SECONDS: Final = 5.0
_READ_SECONDS: Final = 10.0
_SUBJECT: Final = "the keys of service accounts"
_ALGORITHMS: Final = {("RSA", None): "RS256", ("EC", "P-256"): "ES256"}
_MIN_RSA_BITS: Final = 2048
_MAX_KEYS: Final = 100


class Keys:
    """The keys as they were when last read."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[Answer]],
        *,
        clock: Callable[[], float] = time.monotonic,
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._refresh_seconds = refresh_seconds
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._reading: asyncio.Task[bool] | None = None
        self.current: Mapping[str, VerificationKey] = {}

    @classmethod
    def of_cluster(cls, api: Api) -> Keys:
        """Read through ``api``."""
        return cls(lambda: api.fetch(JWKS_PATH, subject=_SUBJECT))

    @property
    def age(self) -> float | None:
        """Seconds since they were read; None before."""
        return None if self._read_at is None else self._clock() - self._read_at

    async def run(self) -> None:
        """Read them again and again."""
        while True:
            is_read = await self._read_shared()
            await asyncio.sleep(self._refresh_seconds if is_read else _RETRY_SECONDS)

    async def look_again(self) -> bool:
        """Read them because a key is unknown, unless that was tried just now. Returns whether what is known is what the
        API server had a moment ago."""
        if self._reading is None and self._tried_at is not None:
            age = self._clock() - self._tried_at
            if age < UNKNOWN_KEY_SECONDS:
                return self._read_at is not None and self._read_at >= self._tried_at
        return await self._read_shared()

    async def _read_shared(self) -> bool:
        """Read them, or wait for the reading that goes on. Returns whether it succeeded."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="reading keys")
            self._reading.add_done_callback(self._forget_reading)
        return await asyncio.shield(self._reading)

    def _forget_reading(self, _task: asyncio.Task[bool]) -> None:
        self._reading = None

    async def _read(self) -> bool:
        self._tried_at = self._clock()
        try:
            async with asyncio.timeout(_READ_SECONDS):
                answer = await self._fetch()
            if answer.status != 200:
                raise answer.make_error(_SUBJECT)
            keys = parse_keys(answer.body)
        except (ApiError, TimeoutError, ValueError) as error:
            log.warning("cannot read the keys of service accounts: %s", str(error) or "no answer in time")
            return False
        self._read_at = self._clock()
        if {key_id: _identity(key) for key_id, key in keys.items()} != {
            key_id: _identity(key) for key_id, key in self.current.items()
        }:
            log.info("read the keys of service accounts", extra={"keys": len(keys)})
            self.current = keys
        return True


def _identity(key: VerificationKey) -> tuple[str, Any]:
    return key.algorithm, key.key.public_numbers()


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
    algorithm = _ALGORITHMS.get((str(entry.get("kty")), entry.get("crv")))
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
