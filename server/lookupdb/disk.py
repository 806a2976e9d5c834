"""Shared helpers for opening and writing files: errors of a full disk and of files that cannot be opened, and
syncing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from lookupdb.errors import NotEnoughRoom, StoreError

DISK_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The error numbers of a full disk, an exhausted quota, and a file at its maximum size."""
OPEN_FILES_ERRNOS: Final = (errno.EMFILE, errno.ENFILE)
"""The error numbers for too many open files, of a process and of a machine."""
RAISE_OPEN_FILES: Final = "raise the hard limit (ulimit -Hn, or LimitNOFILE= of the container runtime)"
"""The hint for too many open files."""


def opening_error(path: Path, number: int) -> StoreError | NotEnoughRoom:
    """Return the error for a file that cannot be opened because of errno ``number``, whatever its content."""
    message = f"cannot open {path}: {os.strerror(number)}"
    if number in OPEN_FILES_ERRNOS:
        return NotEnoughRoom(message, hint=RAISE_OPEN_FILES)
    if number == errno.ENOMEM:
        return NotEnoughRoom(message, hint="give this process more memory, address space (ulimit -v) or maps of files")
    if number in (errno.EACCES, errno.EPERM):
        return StoreError(message, hint="grant this user read access to it")
    return StoreError(message)


def reading_error(path: Path, offset: int, number: int) -> StoreError:
    """Return the error for a file that cannot be read from byte ``offset`` on because of errno ``number``."""
    return StoreError(
        f"cannot read {path} from byte {offset} on: {os.strerror(number)}",
        hint="check the disk, or the server of the volume",
    )


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
