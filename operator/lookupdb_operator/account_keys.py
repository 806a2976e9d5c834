"""The public keys of the cluster's service accounts, which the operator hands to routers: these ask no API server."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Self

import orjson

from lookupdb.tokens.keys import parse_keys
from lookupdb_operator.api.account_keys import SUBJECT, fetch_account_keys
from lookupdb_operator.api.client import Answer, Api, ApiError

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 60.0
MAX_BYTES: Final = 256 << 10
"""Of the keys: a ConfigMap takes four times as much."""


class AccountKeys:
    """The keys as they were when last read. What cannot be read leaves the last ones."""

    def __init__(self, fetch: Callable[[], Awaitable[Answer]]) -> None:
        self._fetch = fetch
        self._problem = ""
        self.text = ""
        """A JWKS, always written the same way; empty until it has been read."""

    @classmethod
    def of_cluster(cls, api: Api) -> Self:
        """Read through ``api``."""
        return cls(lambda: fetch_account_keys(api))

    async def refresh(self) -> bool:
        """Read them. Returns whether they have changed."""
        try:
            text = await self._read()
        except (ApiError, ValueError) as error:
            self._note(f"{SUBJECT} cannot be read, and routers keep those that they have: {error}")
            return False
        self._note("")
        is_changed, self.text = text != self.text, text
        return is_changed

    async def _read(self) -> str:
        answer = await self._fetch()
        if answer.status != 200:
            raise answer.make_error(SUBJECT)
        if len(answer.body) > MAX_BYTES:
            raise ValueError(f"they have {len(answer.body)} bytes, {MAX_BYTES} are the most")
        parse_keys(answer.body)
        return orjson.dumps(orjson.loads(answer.body), option=orjson.OPT_SORT_KEYS).decode() + "\n"

    def _note(self, problem: str) -> None:
        """Log ``problem`` once: most datasets need no keys."""
        if problem and problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem
