"""Watches the files by which a worker judges clients, and hands what they hold to its gatekeeper."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookupdb.route.access.gatekeeper import Gatekeeper
from lookupdb.route.access.settings import AccessSettings
from lookupdb.route.access.token_hashes import read_token_hashes
from lookupdb.runtime.watched_files import Content, Folder, WatchedFiles

if TYPE_CHECKING:
    from lookupdb.route.access.accounts import ServiceAccounts

log = logging.getLogger(__name__)


class AccessWatch:
    """The gatekeeper of one worker, kept up to date. ``on_change`` is called when ``describe`` says something else."""

    def __init__(self, settings: AccessSettings, on_change: Callable[[], None], *, logs: bool) -> None:
        """``logs``: whether to log what is wrong with files, which all workers see."""
        self._on_change = on_change
        self._logs = logs
        self._logged: list[str] = []
        self._accounts = _make_accounts(settings)
        self.gatekeeper = Gatekeeper(token_folder=settings.tokens, accounts=self._accounts)
        self._watches: list[WatchedFiles] = []
        if settings.tokens is not None:
            folder = Folder(Path(settings.tokens))
            self._watches.append(WatchedFiles(folder.list_files, self._take_tokens))
        if settings.keys is not None:
            file = Path(settings.keys)
            self._watches.append(WatchedFiles(lambda: [file], self._take_keys))

    def start(self) -> None:
        """Read the files now, and whenever they change."""
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """Look no more."""
        for watch in self._watches:
            watch.stop()

    def describe(self) -> dict[str, Any]:
        """For /status."""
        described = self.gatekeeper.describe()
        unread = [problem for watch in self._watches for problem in watch.problems]
        return {**described, "problems": [*described["problems"], *unread]}

    def _take_tokens(self, content: Content) -> None:
        self.gatekeeper.take_hashes(read_token_hashes(content))
        self._tell()

    def _take_keys(self, content: Content) -> None:
        assert self._accounts is not None
        (text,) = content.values()
        if self._accounts.take_keys(text):
            self.gatekeeper.note_new_keys()
        self._tell()

    def _tell(self) -> None:
        problems = self.describe()["problems"]
        if self._logs and problems != self._logged:
            self._logged = problems
            for problem in problems:
                log.warning("who may look up: %s", problem)
        self._on_change()


def _make_accounts(settings: AccessSettings) -> ServiceAccounts | None:
    if settings.keys is None:
        return None
    from lookupdb.route.access.accounts import ServiceAccounts  # here, because it costs each worker 16 MB

    assert settings.audience is not None
    return ServiceAccounts(settings.audience, settings.subjects)
