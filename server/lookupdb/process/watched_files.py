"""Watches small files that others replace: certificates, tokens, keys.

It polls, which notices every kind of change: a rename, a rewrite in place, and a swapped symbolic link, as in a
kubelet's volumes.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

POLL_SECONDS: Final = 1.0
MAX_FILE_BYTES: Final = 1 << 20
"""The limit of a Secret or ConfigMap. Larger files are not read."""
MAX_FILES: Final = 1 << 14
"""More than the token hashes, of 71 bytes, that a Secret of 1 MiB can hold."""
_SETTLED_SECONDS: Final = 2.0
"""Files changed this recently may change again within the resolution of their timestamps."""
Content = Mapping[Path, bytes | None]
"""Content by path, None for a file that is missing, unreadable or larger than ``MAX_FILE_BYTES``."""


class _File(NamedTuple):
    """The result of one poll of a file."""

    signature: object
    """None if the next poll must read the file in any case."""
    content: bytes | None


class WatchedFiles:
    """Calls ``on_content`` with the content of all files, at once and after each change.

    ``list_paths`` is called for each poll; if that raises OSError, the previous content stays. Of more than
    ``MAX_FILES`` paths, only the first are read. Files read together need not have been written together; after a
    mixture, another call follows with the complete later version.
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
        self._files: dict[Path, _File] = {}
        self._reported: tuple[Content, tuple[str, ...]] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.problems: tuple[str, ...] = ()
        """Sentences about what is not read. A change of them is reported like a change of content."""

    def start(self) -> None:
        """Poll now, and repeatedly until ``stop``."""
        # Schedule the next poll first: a failing callback is then called again.
        self._timer = self._loop.call_later(self._poll_seconds, self.start)
        self.look()

    def stop(self) -> None:
        """Stop polling."""
        if self._timer:
            self._timer.cancel()

    def tell_again(self) -> None:
        """Report the content at the next poll even if unchanged, because it could not be used for a temporary
        reason."""
        self._reported = None

    def look(self) -> None:
        """Read the files that have changed."""
        try:
            paths = list(dict.fromkeys(self._list_paths()))
        except OSError as error:
            self.problems = (
                f"the folder of the files cannot be read ({error.strerror}): their last content stays in use",
            )
        else:
            now, more = time.time(), len(paths) - MAX_FILES
            self._files = {path: _look_at(path, self._files.get(path), now) for path in paths[:MAX_FILES]}
            excess = f"there are {len(paths)} files: the last {more} by name are not read"
            self.problems = (excess,) if more > 0 else ()
        content = {path: file.content for path, file in self._files.items()}
        if self._reported != (content, self.problems):
            self._reported = content, self.problems
            self._on_content(content)


def list_folder(path: Path) -> list[Path]:
    """Return the files in the folder ``path`` sorted by name, none if it is missing. Raises OSError if it is
    unreadable.

    A kubelet's own entries, which begin with two dots, are left out.
    """
    try:
        names = sorted(name for name in os.listdir(path) if not name.startswith(".."))  # noqa: PTH208 - no paths
    except FileNotFoundError:
        return []
    return [path / name for name in names]


def _look_at(path: Path, before: _File | None, now: float) -> _File:
    """Return the content of ``path`` at ``now``, which is read if it has changed since ``before``."""
    try:
        about = path.stat()
    except OSError:
        return _File(None, None)
    signature = about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
    if before and before.signature == signature:
        return before
    if not stat.S_ISREG(about.st_mode):
        return _File(signature, None)  # opening a pipe could block forever
    content = read_file(path)
    may_change_unseen = abs(now - about.st_mtime) <= _SETTLED_SECONDS
    # Files that are temporarily unreadable, for example without a free descriptor, are read at the next poll.
    is_unread = content is None and about.st_size <= MAX_FILE_BYTES
    return _File(None if may_change_unseen or is_unread else signature, content)


def read_file(path: Path) -> bytes | None:
    """Return the content of ``path``, or None as in ``Content``."""
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= MAX_FILE_BYTES else None
