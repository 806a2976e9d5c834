"""Small files that others replace while a process runs: certificates, tokens, keys. Polling, because it sees every way
a file can change: renamed over, rewritten in place, or reached through a symbolic link that a kubelet swaps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

POLL_SECONDS: Final = 1.0
MAX_FILE_BYTES: Final = 1 << 20
"""As large as a Secret or a ConfigMap may be. Of a larger file nothing is taken."""
MAX_FILES: Final = 1024
_SETTLED_SECONDS: Final = 2.0
"""Files changed so short before they were read may change again within their timestamps' resolution."""

Content = Mapping[Path, bytes | None]
"""None: the file is not there, cannot be read, or is larger than ``MAX_FILE_BYTES``."""


class WatchedFiles:
    """Calls ``on_content`` with what all of the files hold, at once and whenever something in them has changed.

    ``list_paths`` says which files, anew at each look; of more than ``MAX_FILES`` the first ones. What is read together
    need not have been written together: who gets halves of two versions is called again with the whole later one.
    """

    def __init__(
        self,
        list_paths: Callable[[], Iterable[Path]],
        on_content: Callable[[Content], None],
        *,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._list_paths = list_paths
        self._on_content = on_content
        self._poll_seconds = poll_seconds
        self._signature: object = None
        self._content: Content | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look now, and again until ``stop``."""
        self._timer = self._loop.call_later(self._poll_seconds, self.start)
        self.look()

    def stop(self) -> None:
        """Look no more."""
        if self._timer:
            self._timer.cancel()

    def look(self) -> None:
        """Read the files if any has changed since they were read."""
        paths = sorted(set(self._list_paths()))[:MAX_FILES]
        signature = [(path, _sign(path)) for path in paths]
        if signature == self._signature:
            return
        content = {path: read_file(path) for path in paths}
        self._signature = signature if _is_settled(paths) else None
        if content != self._content:
            self._content = content
            self._on_content(content)


def list_folder(folder: Path) -> list[Path]:
    """The files of ``folder`` whose names do not begin with a dot; none if it is not there."""
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []


def _sign(path: Path) -> tuple[int, int, int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def read_file(path: Path) -> bytes | None:
    """What ``path`` holds; None as in ``Content``."""
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= MAX_FILE_BYTES else None


def _is_settled(paths: Iterable[Path]) -> bool:
    now = time.time()
    for path in paths:
        try:
            if abs(now - path.stat().st_mtime) <= _SETTLED_SECONDS:
                return False
        except OSError:
            continue
    return True
