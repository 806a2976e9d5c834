"""Looks at the API server, again and again, while something is waited for. One that fails need not be the last: the API
server is started anew, or too many ask it. So the next one comes as ever, and what goes on for seconds is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import click

from lookupdb_operator.api.client import Unauthorized, Unreachable
from lookupdb_operator.plugin.views.wording import clean

T = TypeVar("T")

_TOLD_AFTER: Final = 5.0
"""Seconds for which looks fail before it is told."""
_LAST_SECONDS: Final = 1.0
"""For which a look may go on when time is up: the last one begins about then."""


class Polls:
    """Looks at ``subject`` for ``seconds`` at most."""

    def __init__(self, subject: str, seconds: float) -> None:
        self._subject = subject
        self._ends_at = time.monotonic() + seconds
        self._fails_since: float | None = None
        self._answers_since = time.monotonic()
        self._is_told = False
        self.trouble = ""
        """Why the last look failed; empty when it did not."""

    @property
    def are_over(self) -> bool:
        """Whether time is up."""
        return time.monotonic() >= self._ends_at

    @property
    def answered_seconds(self) -> float:
        """For how long the API server has answered; 0 while it does not."""
        return 0.0 if self.trouble else time.monotonic() - self._answers_since

    def describe_trouble(self) -> str:
        """A sentence behind others about the last look, if it failed; else nothing."""
        return f". The last look at it failed: {self.trouble}" if self.trouble else ""

    async def look(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """What ``ask`` comes to; None when the API server cannot say it now, or not in time. Raises what will not be
        otherwise by asking again."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(self._ends_at - began, _LAST_SECONDS)):
                found = await ask()
        except Unauthorized:
            raise
        except Unreachable as error:
            self._note_trouble(began, str(error))
        except TimeoutError:
            self._note_trouble(began, f"{self._subject}: the API server does not answer")
        else:
            self._note_answer()
            return found
        return None

    def _note_trouble(self, began: float, trouble: str) -> None:
        self.trouble = clean(trouble)
        self._fails_since = began if self._fails_since is None else self._fails_since
        if not self._is_told and time.monotonic() - self._fails_since >= _TOLD_AFTER:
            self._is_told = True
            click.echo(self.trouble, err=True)

    def _note_answer(self) -> None:
        if self.trouble:
            self._answers_since = time.monotonic()
        self.trouble, self._fails_since, self._is_told = "", None, False
