"""The store's credentials from a mounted Secret: a file for each environment variable, read again when they change."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import orjson

from lookupdb.errors import StoreError
from lookupdb.store.obstore_objects import ObstoreObjects

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
