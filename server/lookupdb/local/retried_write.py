"""A file of the run folder that is written whenever something changes, and again until it has succeeded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from lookupdb.local.run_state import NotWritten

RETRY_SECONDS: Final = 1.0
RETRY_POLICY: Final = f"it is tried again every {RETRY_SECONDS:.0f} s"


class RetriedWrite:
    """``write`` writes what is so at that moment, or raises NotWritten.

    ``say`` gets why it failed, once, and that it has succeeded again.
    """

    def __init__(self, name: str, write: Callable[[], object], say: Callable[[str], None]) -> None:
        self._name = name
        self._write = write
        self._say = say
        self._is_behind = False
        self._timer: asyncio.TimerHandle | None = None
        self._written = asyncio.Event()
        self._is_closed = False

    def run(self) -> None:
        """Write now, and again after a while if that fails. Raises nothing: who has news to be written goes on."""
        if self._is_closed:
            return
        self._cancel()
        try:
            self._write()
        except NotWritten as error:
            self._written.clear()
            self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self.run)
            if not self._is_behind:
                self._say(f"{error.message}, {RETRY_POLICY}\n  {error.hint}")
            self._is_behind = True
            return
        self._written.set()
        if self._is_behind:
            self._say(f"{self._name} is written again")
        self._is_behind = False

    async def run_to_success(self) -> None:
        """Write, and return when that has succeeded, however often it is tried."""
        self.run()
        await self._written.wait()

    def close(self) -> None:
        """Write nothing any more."""
        self._is_closed = True
        self._cancel()

    def _cancel(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
