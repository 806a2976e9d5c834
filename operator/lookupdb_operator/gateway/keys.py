"""The public keys of the cluster's service accounts, from the API server; the last known stay while it is away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from lookupdb.tokens.keys import are_same, parse_keys
from lookupdb.tokens.verification import VerificationKey
from lookupdb_operator.api.account_keys import SUBJECT, fetch_account_keys
from lookupdb_operator.api.client import Answer, Api, ApiError

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 600.0
UNKNOWN_KEY_SECONDS: Final = 10.0
"""Between two readings that an unknown key asks for."""
MOST_WAITING: Final = 16
"""Requests that wait for a reading: whoever sends what looks like a token can be one."""
_RETRY_SECONDS: Final = 5.0
_READ_SECONDS: Final = 10.0


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
        self._waiting = 0
        self.current: Mapping[str, VerificationKey] = {}

    @classmethod
    def of_cluster(cls, api: Api) -> Keys:
        """Read through ``api``."""
        return cls(lambda: fetch_account_keys(api))

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
        API server had a moment ago: not while as many wait for it as may."""
        if self._reading is None and self._tried_at is not None:
            age = self._clock() - self._tried_at
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
                raise answer.make_error(SUBJECT)
            keys = parse_keys(answer.body)
        except (ApiError, TimeoutError, ValueError) as error:
            log.warning("cannot read the keys of service accounts: %s", str(error) or "no answer in time")
            return False
        self._read_at = self._clock()
        if not are_same(keys, self.current):
            log.info("read the keys of service accounts", extra={"keys": len(keys)})
            self.current = keys
        return True
