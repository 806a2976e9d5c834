"""The store's credentials from a mounted Secret: a file for each environment variable, read again when they change."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import orjson

from lookupdb.account_tokens import VerificationKey, are_same, parse_keys
from lookupdb.errors import StoreError
from lookupdb.store.obstore_objects import ObstoreObjects
from lookupdb_operator.cluster.client import SUBJECT, Answer, Api, ApiError, fetch_account_keys

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
_RETRIES: Final = 1
_SILENCE_SECONDS: Final = 7
"""Of a request, but for uploads and copies: clients try again themselves, and are to hear why they must before they
have waited for gateway_client.SILENCE_SECONDS."""
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*", re.IGNORECASE)
_URL: Final = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(/[!-~]*)?")
_LINE_ENDS: Final = str.maketrans("", "", "\t\r\n")
_CURRENT: Final = "..data"
"""The link by which the kubelet replaces all files at once."""
_MAX_BYTES: Final = 1 << 20
"""Of a value: a Secret has no more."""


def read_variables(folder: Path | None) -> dict[str, str]:
    """The variables that the files of ``folder`` hold; none if it is not there. An empty file says nothing. Raises
    OSError or ValueError."""
    if folder is None or not folder.is_dir():
        return {}
    current = _find_current(folder)
    variables = {
        file.name: value
        for file in sorted(current.iterdir())
        if _VARIABLE.fullmatch(file.name) and file.is_file() and (value := _read_value(file))
    }
    if _find_current(folder) != current:  # its files went one after the other meanwhile
        raise ValueError("they are being replaced just now")
    return variables


def _find_current(folder: Path) -> Path:
    current = folder / _CURRENT
    return (current if current.exists() else folder).resolve()


def _read_value(file: Path) -> str:
    value = file.read_bytes()[:_MAX_BYTES].decode().rstrip("\r\n")
    if not value.isprintable() and not _is_document(value):
        raise ValueError(f"{file.name} has control characters")
    is_url = any(mark in file.name for mark in ("ENDPOINT", "_URL"))
    if is_url and value and not _is_url(value):  # obstore takes it, and panics at each request
        raise ValueError(f"{file.name} is no URL")
    return value


def _is_document(value: str) -> bool:
    """Whether ``value`` is a JSON document of several lines, as a key of Google's is."""
    try:
        return value.translate(_LINE_ENDS).isprintable() and isinstance(orjson.loads(value), dict)
    except ValueError:
        return False


def _is_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # no port, no IPv6 address
        return False
    is_marked = parts.netloc.startswith("[") == (":" in (parts.hostname or ""))
    return has_host and is_marked and _URL.fullmatch(value) is not None


class StoreClient:
    """The store, reached with the credentials as they are now."""

    def __init__(self, url: str, folder: Path | None = None) -> None:
        """Raises StoreError if no client can be made."""
        self._url = url
        self._folder = folder
        self._at_first = dict(os.environ)
        """What the process was given counts where the folder says nothing."""
        self._variables = self._read_first()
        self.store, self.patient_store = self._make()

    def _read_first(self) -> dict[str, str]:
        try:
            return read_variables(self._folder)
        except (OSError, ValueError) as error:
            raise StoreError(
                f"the store's credentials in {self._folder} cannot be read: {_describe(error)}",
                hint="each file is one environment variable, as text",
            ) from error

    def _make(self) -> tuple[ObstoreObjects, ObstoreObjects]:
        """One for requests, and one for what the store may take long for, and of which no part is to be lost."""
        _replace(self._variables, self._at_first)
        return ObstoreObjects(self._url, _RETRIES, _SILENCE_SECONDS), ObstoreObjects(self._url)

    async def run(self, seconds: float = LOOK_SECONDS, on_change: Callable[[], None] = lambda: None) -> None:
        """Look for other credentials again and again, and use them for what begins from then on."""
        while True:
            await asyncio.sleep(seconds)
            try:
                variables = await asyncio.to_thread(read_variables, self._folder)
                if variables == self._variables:
                    continue
                before, self._variables = self._variables, variables
                try:
                    self.store, self.patient_store = self._make()
                except Exception:
                    self._variables = before
                    _replace(before, self._at_first)
                    raise
            except (OSError, ValueError, StoreError) as error:
                log.warning("the store's credentials cannot be read again, the last ones stay: %s", _describe(error))
            else:
                log.info("the store's credentials have changed")
                on_change()


def _replace(variables: Mapping[str, str], at_first: Mapping[str, str]) -> None:
    """Make the environment that of the start, with ``variables`` over it."""
    merged = {**at_first, **variables}
    for name in os.environ.keys() - merged.keys():
        del os.environ[name]
    os.environ.update(merged)


def _describe(error: Exception) -> str:
    """Not the text of a value that cannot be decoded."""
    return "a file is no text" if isinstance(error, UnicodeDecodeError) else str(error)


# The public keys of the cluster's service accounts, from the API server; the last known stay while it is away.


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
