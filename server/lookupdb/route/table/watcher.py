"""Watches the routing table file. Polling, because it sees every way a file can change: renamed over, rewritten in
place, or reached through a symbolic link that a kubelet swaps (the ``..data`` of a ConfigMap).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lookupdb.route.table.routing_table import MAX_BYTES, InvalidTable, RoutingTable, parse_table

POLL_SECONDS: Final = 0.2
_SETTLED_SECONDS: Final = 1.0
"""A file changed so short before it was read may change again within its timestamp's resolution: read it again."""


class TableWatcher:
    """Calls ``on_table`` with each new routing table in the file at ``path``, ``on_invalid`` with the reason when the
    file cannot be read or holds no valid one: once for each content, and for each reason why there is none to be read.

    It calls neither while the file has never been there.
    """

    def __init__(self, path: Path, on_table: Callable[[RoutingTable], None], on_invalid: Callable[[str], None]) -> None:
        self._path = path
        self._on_table = on_table
        self._on_invalid = on_invalid
        self._signature: tuple[int, int, int, int] | None = None
        self._content: bytes | None = None
        self._unreadable: str | None = None
        """Why the file could not be read at the last look."""
        self.has_found = False
        """Whether there was a file, at any time."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look now, and again until ``stop``."""
        self._timer = self._loop.call_later(POLL_SECONDS, self.start)  # first: also if the table makes somebody fail
        self.look()

    def stop(self) -> None:
        """Look no more."""
        if self._timer:
            self._timer.cancel()

    def look(self) -> None:
        """Read the file if it has changed since it was read."""
        try:
            about = self._path.stat()
            signature = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
            if signature == self._signature:
                return
            content = self._read()
        except OSError as error:
            self._signature = self._content = None
            if isinstance(error, FileNotFoundError) and not self.has_found:
                return
            why = error.strerror or str(error)
            if why != self._unreadable:
                self._unreadable = why
                self._on_invalid(f"{self._path} cannot be read: {why}")
            return
        self.has_found, self._unreadable = True, None
        settled = abs(time.time() - about.st_mtime) > _SETTLED_SECONDS
        self._signature = signature if settled else None
        if content != self._content:
            self._content = content
            self._parse(content)

    def _parse(self, content: bytes) -> None:
        try:
            table = parse_table(content)
        except InvalidTable as error:
            self._on_invalid(f"{self._path}: {error.message}")
        else:
            self._on_table(table)

    def _read(self) -> bytes:
        """The content, bounded: one byte more than may be is enough to refuse it."""
        with self._path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
