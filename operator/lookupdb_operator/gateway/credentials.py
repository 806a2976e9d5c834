"""The store's credentials from a mounted Secret, one file for each variable, read again when they change."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from lookupdb.errors import StoreError
from lookupdb.store.bucket import ObstoreObjects

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
_RETRIES: Final = 1
_SILENCE_SECONDS: Final = 7
"""Timeout of requests, except uploads and copies: clients retry themselves, and must learn the reason within
``SILENCE_SECONDS`` of ``lookupdb.store.gateway``."""
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*", re.IGNORECASE)
_URL: Final = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?(/[!-~]*)?")
_LINE_ENDS: Final = str.maketrans("", "", "\t\r\n")
"""A Google key is a JSON document of several lines."""
_CURRENT: Final = "..data"
"""The link that the kubelet switches to replace all files at once."""
_MAX_BYTES: Final = 1 << 20
"""Size limit of a value, as for a Secret."""


def read_variables(folder: Path | None) -> dict[str, str]:
    """Return the variables in the files of ``folder``; none if it does not exist. Empty files do not count. Raises
    OSError or ValueError."""
    if folder is None or not folder.is_dir():
        return {}
    current = _find_current(folder)
    variables = {
        file.name: value
        for file in sorted(current.iterdir())
        if _VARIABLE.fullmatch(file.name) and file.is_file() and (value := _read_value(file))
    }
    if _find_current(folder) != current:  # the kubelet replaced the files meanwhile
        raise ValueError("they are being replaced just now")
    return variables


def _find_current(folder: Path) -> Path:
    current = folder / _CURRENT
    return (current if current.exists() else folder).resolve()


def _read_value(file: Path) -> str:
    value = file.read_bytes()[:_MAX_BYTES].decode().rstrip("\r\n")
    if not value.translate(_LINE_ENDS).isprintable():
        raise ValueError(f"{file.name} has control characters")
    is_url = any(mark in file.name for mark in ("ENDPOINT", "_URL"))
    if is_url and value and not _URL.fullmatch(value):  # obstore would accept it and panic at each request
        raise ValueError(f"{file.name} is not a URL")
    return value


class StoreClient:
    """The store, accessed with the current credentials."""

    def __init__(self, url: str, folder: Path | None = None) -> None:
        """Raises StoreError if no client can be made."""
        self._url = url
        self._folder = folder
        self._at_first = dict(os.environ)
        """The process's own environment, for variables that are not in the folder."""
        try:
            self._variables = read_variables(folder)
        except (OSError, ValueError) as error:
            raise StoreError(
                f"the store's credentials in {folder} cannot be read: {_describe(error)}",
                hint="each file is one environment variable, as text",
            ) from error
        self.store, self.patient_store = self._make()

    def _make(self) -> tuple[ObstoreObjects, ObstoreObjects]:
        """Return a client for requests, and one for slow operations that must not be cut off."""
        _replace(self._variables, self._at_first)
        return ObstoreObjects(self._url, _RETRIES, _SILENCE_SECONDS), ObstoreObjects(self._url)

    async def run(self, seconds: float = LOOK_SECONDS, on_change: Callable[[], None] = lambda: None) -> None:
        """Check for new credentials regularly, and use them for new requests."""
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
                log.warning("the store's credentials cannot be read again; using the last ones: %s", _describe(error))
            else:
                log.info("the store's credentials have changed")
                on_change()


def _replace(variables: Mapping[str, str], at_first: Mapping[str, str]) -> None:
    """Set the environment to what it was at startup, plus ``variables``."""
    merged = {**at_first, **variables}
    for name in os.environ.keys() - merged.keys():
        del os.environ[name]
    os.environ.update(merged)


def _describe(error: Exception) -> str:
    """Describe ``error`` without the value that cannot be decoded."""
    return "a file is not text" if isinstance(error, UnicodeDecodeError) else str(error)
