"""Writes what is announced of datasets through the gateway, as the operator's own service account.

It reads what stands there first, and replaces that very version: a write that comes late, of an operator that was
stopped or has stood still, changes nothing.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from lookupdb.errors import CorruptFile, UsageError
from lookupdb.store.announcement import (
    ANNOUNCEMENT_NOTE,
    MAX_ANNOUNCEMENT_BYTES,
    Announcement,
    parse_announcement,
)
from lookupdb.store.gateway_problem import parse_problem
from lookupdb.store.gateway_wire import CA_FILE_VARIABLE, CREATE, MODE_HEADER, OBJECT_PATH, VERSION_HEADER
from lookupdb.store.layout import StoreAddress
from lookupdb.tokens import MAX_ACCOUNT_TOKEN_BYTES

_SECONDS: Final = aiohttp.ClientTimeout(total=20, connect=3)
_MAX_ANSWER_BYTES: Final = 64 << 10


class NotAnnounced(Exception):
    """The store does not have it, or nobody knows; it may succeed later."""


class GatewayAnnouncer:
    """Announces to the gateway at ``url``, with the token in ``token_file``, which is read anew each time."""

    def __init__(self, url: str, cluster: str, token_file: Path) -> None:
        self._url = url.rstrip("/")
        self._cluster = cluster
        self._token_file = token_file
        self._session: aiohttp.ClientSession | None = None

    async def announce(self, announcement: Announcement) -> None:
        """Return when the store has ``announcement``, or a later one of the same generation. Raises NotAnnounced."""
        try:
            address = StoreAddress(self._cluster, announcement.namespace, announcement.name, announcement.uid)
        except UsageError as error:
            raise NotAnnounced(error.message) from error
        target = f"{OBJECT_PATH}{quote(address.path)}/{ANNOUNCEMENT_NOTE}"
        try:
            standing, mode = await self._read(target)
            if standing is not None and standing.version >= announcement.version:
                if standing.generation == announcement.generation:
                    return
                raise NotAnnounced(
                    f"{standing.generation} is announced there, by version {standing.version} of a routing table,"
                    f" which is not older than version {announcement.version}"
                )
            await self._ask("PUT", target, body=announcement.to_json(), headers={MODE_HEADER: mode})
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NotAnnounced(
                f"the gateway {self._url} does not answer: {str(error) or type(error).__name__}"
            ) from error

    async def _read(self, target: str) -> tuple[Announcement | None, str]:
        """What stands there, and the mode of a put that replaces it and nothing else. What is no announcement, or of
        another dataset, is replaced."""
        status, headers, body = await self._ask("GET", target, expected=(200, 404))
        if status == 404:
            return None, CREATE
        try:
            return parse_announcement(body, target), headers.get(VERSION_HEADER, CREATE)
        except CorruptFile:
            return None, headers.get(VERSION_HEADER, CREATE)

    async def _ask(
        self,
        method: str,
        target: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        expected: tuple[int, ...] = (200,),
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of an answer. Raises NotAnnounced for one that is not expected."""
        shown = {"Authorization": f"Bearer {self._read_token()}", **(headers or {})}
        request = self._open().request(
            method, f"{self._url}{target}", data=body, headers=shown, timeout=_SECONDS, allow_redirects=False
        )
        async with request as response:
            content = await response.content.read(_MAX_ANSWER_BYTES)
            if response.status not in expected:
                problem = parse_problem(response.status, response.content_type, content, "")
                raise NotAnnounced(f"the gateway {self._url} answers {response.status}: {problem.detail}")
            return response.status, response.headers, content[: MAX_ANNOUNCEMENT_BYTES + 1]

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            settings: dict[str, Any] = {}
            if self._url.startswith("https://"):
                settings["ssl"] = ssl.create_default_context(cafile=os.environ.get(CA_FILE_VARIABLE) or None)
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=16, **settings))
        return self._session

    def _read_token(self) -> str:
        """The token of this moment. Raises NotAnnounced."""
        try:
            with self._token_file.open("rb") as file:
                token = file.read(MAX_ACCOUNT_TOKEN_BYTES + 1).strip()
        except OSError as error:
            raise NotAnnounced(f"the token in {self._token_file} cannot be read: {error.strerror}") from error
        if not token or len(token) > MAX_ACCOUNT_TOKEN_BYTES or not token.isascii():
            raise NotAnnounced(f"{self._token_file} holds no token")
        return token.decode("ascii")

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
