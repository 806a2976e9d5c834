"""A strict HTTP/1.1 client for tests, on asyncio's streams: one connection and no retries.

Runs in a pod of the cluster, from a ConfigMap: it imports nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT_SECONDS = 10
AUTHORITY = "/ca/ca.crt"
"""The authority whose certificates are trusted, for https:// URLs."""
ROUTER_MEDIA_TYPES = ("application/json", "application/problem+json")
"""The media types of a router's description of its dataset, and of its report that it cannot describe it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP response."""

    status: int
    generation: str
    """The Lookupdb-Generation header; empty without one."""
    body: bytes
    media_type: str = ""
    """The Content-Type header; empty without one."""


class Connection:
    """One connection. Opens with the first request, and again after the router closed it. All other faults raise."""

    def __init__(self, url: str, generation: str = "", token: str | None = None) -> None:
        """Insist on ``generation`` unless it is empty. Send the router ``token``, by default LOOKUPDB_TOKEN; none if it
        is empty."""
        token = os.environ.get("LOOKUPDB_TOKEN", "") if token is None else token
        self._credentials = f"Authorization: Bearer {token}\r\n" if token else ""
        parts = urlsplit(url)
        is_encrypted = parts.scheme == "https"
        self._generation = generation
        self._tls = ssl.create_default_context(cafile=AUTHORITY) if is_encrypted else None
        self._host, self._port = parts.hostname or "", parts.port or (443 if is_encrypted else 80)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.opened = 0
        """The number of times it was opened."""

    @property
    def serial(self) -> str:
        """The serial number of the router's certificate; empty without TLS, or while closed."""
        tls = self._streams[1].get_extra_info("ssl_object") if self._streams else None
        return str(tls.getpeercert()["serialNumber"]) if tls else ""

    async def open(self, seconds: float) -> None:
        """Connect, and check that the router answers. For a moment after a Service starts, a node rejects connections
        to it, or sends them outside the cluster."""
        async with asyncio.timeout(seconds):
            while not await self._reaches_router():
                self.close()
                await asyncio.sleep(0.1)

    async def _reaches_router(self) -> bool:
        try:
            head = f"GET /v1/dataset HTTP/1.1\r\nHost: {self._host}\r\n{self._credentials}\r\n"
            answer = await self._ask(head.encode())
        except (OSError, EOFError):
            return False
        return answer.media_type in ROUTER_MEDIA_TYPES

    async def get(self, key: str) -> Answer:
        """``GET /v1/lookup?key=…``."""
        head = self._head(f"GET /v1/lookup?key={quote(key, safe='')}")
        return await self._ask(f"{head}\r\n".encode())

    async def batch(self, keys: list[str]) -> Answer:
        """``POST /v1/lookup``."""
        body = json.dumps({"keys": keys}).encode()
        head = f"{self._head('POST /v1/lookup')}Content-Type: application/json\r\n"
        return await self._ask(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def _head(self, request: str) -> str:
        insists = f"Lookupdb-Generation: {self._generation}\r\n" if self._generation else ""
        return f"{request} HTTP/1.1\r\nHost: {self._host}\r\n{self._credentials}{insists}"

    def close(self) -> None:
        """Make the next request open a new connection."""
        if self._streams:
            self._streams[1].close()
        self._streams = None

    async def _ask(self, request: bytes) -> Answer:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await self._exchange(request)
        except BaseException:
            self.close()
            raise

    async def _exchange(self, request: bytes) -> Answer:
        if not self._streams:
            self._streams = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
            self.opened += 1
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, *lines = head.split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        if fields.get("connection", "").lower() == "close":
            self.close()
        return Answer(
            int(status.split()[1]), fields.get("lookupdb-generation", ""), body, fields.get("content-type", "")
        )


def parse_body(answer: Answer) -> Any:
    """Parse the body as JSON."""
    return json.loads(answer.body)
