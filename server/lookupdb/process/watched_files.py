"""Small files that others replace while a process runs: certificates, tokens, keys. Polling, because it sees every way
a file can change: renamed over, rewritten in place, or reached through a symbolic link that a kubelet swaps.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

POLL_SECONDS: Final = 1.0
MAX_FILE_BYTES: Final = 1 << 20
"""As large as a Secret or a ConfigMap may be. Of a larger file nothing is taken."""
MAX_FILES: Final = 1 << 14
"""More than the hashes of tokens, of 71 bytes, that a Secret of 1 MiB can hold."""
_SETTLED_SECONDS: Final = 2.0
"""Files changed so short before they were read may change again within their timestamps' resolution."""
_STEP_SECONDS: Final = 0.002
_PAUSE_SECONDS: Final = 0.01
"""A look at many files takes turns with the requests that the process answers, and costs a fifth of it at most."""

Content = Mapping[Path, bytes | None]
"""None: the file is not there, cannot be read, or is larger than ``MAX_FILE_BYTES``."""


class _File(NamedTuple):
    """What one look found."""

    signature: object
    """None: it is to be read again, whatever the next look finds."""
    content: bytes | None


class WatchedFiles:
    """Calls ``on_content`` with what all of the files hold, at once and whenever something in them has changed.

    ``list_paths`` says which files, anew at each look; of more than ``MAX_FILES`` the first ones. Where it raises
    OSError, what the files held before still counts. What is read together need not have been written together: who
    gets halves of two versions is called again with the whole later one.
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
        self._told: tuple[Content, tuple[str, ...]] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.problems: tuple[str, ...] = ()
        """Why some of what is there is not looked at: sentences. A change of them is told as one of content is."""

    def start(self) -> None:
        """Look now, and again until ``stop``."""
        self._timer = self._loop.call_later(self._poll_seconds, self._step, self._look_in_steps())
        self.look()

    def stop(self) -> None:
        """Look no more."""
        if self._timer:
            self._timer.cancel()

    def look(self) -> None:
        """Read the files that have changed since they were read."""
        for _ in self._look_in_steps():
            pass

    def tell_again(self) -> None:
        """At the next look tell what the files hold, although it is the same: it could not be used for a reason that
        may pass."""
        self._told = None

    def _step(self, steps: Iterator[None]) -> None:
        # The next look is certain before anybody's code runs: who fails is asked again.
        self._timer = self._loop.call_later(self._poll_seconds, self._step, self._look_in_steps())
        for _ in steps:
            self._timer.cancel()
            self._timer = self._loop.call_later(_PAUSE_SECONDS, self._step, steps)
            return

    def _look_in_steps(self) -> Iterator[None]:
        try:
            paths = list(dict.fromkeys(self._list_paths()))
        except OSError as error:
            self.problems = (f"the folder of the files cannot be read ({error.strerror}): what they held last counts",)
            self._tell()
            return
        files: dict[Path, _File] = {}
        now, began = time.time(), time.monotonic()
        for path in paths[:MAX_FILES]:
            files[path] = _look_at(path, self._files.get(path), now)
            if time.monotonic() - began > _STEP_SECONDS:
                yield
                began = time.monotonic()
        self._files = files
        more = len(paths) - MAX_FILES
        self.problems = (f"there are {len(paths)} files: the last {more} by name are not read",) if more > 0 else ()
        self._tell()

    def _tell(self) -> None:
        content = {path: file.content for path, file in self._files.items()}
        told = content, self.problems
        if told != self._told:
            self._told = told
            self._on_content(content)


class Folder:
    """Whose files are watched, by their names. Those of a kubelet's own, which begin with two dots, are none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: list[str] = []
        self._paths: list[Path] = []

    def list_files(self) -> list[Path]:
        """Sorted; none if there is no such folder. Raises OSError if it cannot be read."""
        try:
            names = sorted(name for name in os.listdir(self._path) if not name.startswith(".."))  # noqa: PTH208 - no paths
        except FileNotFoundError:
            names = []
        if names != self._names:  # mostly they are the same, and may be thousands
            self._names = names
            self._paths = [self._path / name for name in names]
        return self._paths


def _look_at(path: Path, before: _File | None, now: float) -> _File:
    """What ``path`` holds at ``now``: read, unless it has not changed since ``before``."""
    try:
        about = path.stat()
    except OSError:
        return _File(None, None)
    signature = about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
    if before and before.signature == signature:
        return before
    if not stat.S_ISREG(about.st_mode):
        return _File(signature, None)  # to open a pipe may take forever
    content = read_file(path)
    may_change_unseen = abs(now - about.st_mtime) <= _SETTLED_SECONDS
    # What is there and cannot be read today, because no descriptor is free say, is read tomorrow.
    is_unread = content is None and about.st_size <= MAX_FILE_BYTES
    return _File(None if may_change_unseen or is_unread else signature, content)


def read_file(path: Path) -> bytes | None:
    """What ``path`` holds; None as in ``Content``."""
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= MAX_FILE_BYTES else None
