"""Shared helpers for opening and writing files: the limit of open files, and syncing."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lookupdb.errors import OPEN_FILES_ERRNOS, RAISE_OPEN_FILES, NotEnoughRoom


def sync_folder(path: Path) -> None:
    """Sync the names in the folder at ``path`` to the disk, so that they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Write a read-only file that does not exist yet, and sync it to the disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o444)


_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def exchange(path: Path, other: Path) -> None:
    """Exchange the names of two files or folders of one file system, atomically. Raises OSError, also if the file
    system does not support it."""
    import ctypes  # imported here, because servers do not need it

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(path))
    if rename(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))


# Open files and sockets: the limit of this process.
#
# Distributions keep the soft limit at 1,024 for programs that use ``select``; other programs must raise it.


MAX_DESCRIPTORS: Final = 1 << 20
"""The highest limit to request: some hosts allow a billion, which nothing here could use."""
_OPEN_DESCRIPTORS: Final = Path("/proc/self/fd")


def raise_limit() -> int:
    """Raise this process's soft limit of open files to its hard limit. Return the resulting limit.

    Processes started afterwards inherit it. A limit that cannot be raised stays.
    """
    soft, hard = (
        (MAX_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit)
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    goal = min(hard, MAX_DESCRIPTORS)
    if soft < goal:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (goal, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        except (OSError, ValueError):  # a sandbox may forbid what the kernel would allow
            return soft
        return goal
    return min(soft, MAX_DESCRIPTORS)


def free_descriptors() -> int:
    """Return the number of files that this process can still open, after raising its limit."""
    try:
        open_files = sum(1 for _ in _OPEN_DESCRIPTORS.iterdir()) - 1  # listing them opens one more
    except OSError:
        open_files = 0
    return max(0, raise_limit() - open_files)


@contextmanager
def enough_descriptors(purpose: str) -> Iterator[None]:
    """Turn "too many open files" into NotEnoughRoom."""
    try:
        yield
    except OSError as error:
        if error.errno not in OPEN_FILES_ERRNOS:
            raise
        raise NotEnoughRoom(
            f"a build could not {purpose}: {error.strerror}, the limit is {raise_limit():,}", hint=RAISE_OPEN_FILES
        ) from error
