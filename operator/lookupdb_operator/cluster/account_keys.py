"""The public keys of the cluster's service accounts; if the API server is unavailable, the last ones stay."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

from lookupdb.account_tokens import VerificationKey, are_same, parse_keys
from lookupdb_operator.cluster.api import ApiError
from lookupdb_operator.cluster.client import SUBJECT, Api, fetch_account_keys

log = logging.getLogger(__name__)

_REFRESH_SECONDS: Final = 600.0
UNKNOWN_KEY_SECONDS: Final = 10.0
"""Minimum seconds between two reads for unknown keys."""
MOST_WAITING: Final = 16
"""Most requests that wait for a read: anyone can send something like a token."""
_RETRY_SECONDS: Final = 5.0
_READ_SECONDS: Final = 10.0


class Keys:
    """The keys as last read through ``api``."""

    def __init__(self, api: Api) -> None:
        self._fetch = partial(fetch_account_keys, api)
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._reading: asyncio.Task[bool] | None = None
        self._waiting = 0
        self.read_timestamp: float | None = None
        """Seconds since 1970 of the last read; None before the first."""
        self.current: Mapping[str, VerificationKey] = {}

    @property
    def age(self) -> float | None:
        """Return seconds since the last read; None before the first."""
        return None if self._read_at is None else time.monotonic() - self._read_at

    async def run(self) -> None:
        """Read the keys regularly."""
        while True:
            is_read = await self._read_shared()
            await asyncio.sleep(_REFRESH_SECONDS if is_read else _RETRY_SECONDS)

    async def look_again(self) -> bool:
        """Read the keys because one is unknown, unless that was just tried. Return whether the known keys are current;
        False if too many requests wait already."""
        is_reading = self._reading is not None and not self._reading.done()
        if not is_reading and self._tried_at is not None:
            age = time.monotonic() - self._tried_at
            if age < UNKNOWN_KEY_SECONDS:
                return self._read_at is not None and self._read_at >= self._tried_at
        if self._waiting >= MOST_WAITING:
            return False
        self._waiting += 1
        try:
            return await self._read_shared()
        finally:
            self._waiting -= 1

    async def _read_shared(self) -> bool:
        """Read the keys, or wait for the read under way. Return whether it succeeded."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="reading keys")
        return await asyncio.shield(self._reading)

    async def _read(self) -> bool:
        self._tried_at = time.monotonic()
        try:
            async with asyncio.timeout(_READ_SECONDS):
                answer = await self._fetch()
            if answer.status != 200:
                raise answer.make_error(SUBJECT)
            keys = parse_keys(answer.body)
        except (ApiError, TimeoutError, ValueError) as error:
            log.warning("cannot read the keys of service accounts: %s", str(error) or "no answer in time")
            return False
        self._read_at, self.read_timestamp = time.monotonic(), time.time()
        if not are_same(keys, self.current):
            log.info("read the keys of service accounts", extra={"keys": len(keys)})
            self.current = keys
        return True
