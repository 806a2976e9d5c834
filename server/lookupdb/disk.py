"""What all share who open and write files: the errors of a full disk and of files that cannot be opened, and syncing a
folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from lookupdb.errors import NotEnoughRoom, StoreError

DISK_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The error numbers of a full disk, an exhausted quota, and a file at its maximum size."""
OPEN_FILES_ERRNOS: Final = (errno.EMFILE, errno.ENFILE)
"""The error numbers of a process, and of a machine, that has as many files open as it may."""
RAISE_OPEN_FILES: Final = "raise the hard limit (ulimit -Hn, or LimitNOFILE= of the container runtime)"
"""What to do then."""


def opening_error(path: Path, number: int) -> StoreError | NotEnoughRoom:
    """The error of a file that cannot be opened because of errno ``number``, which says nothing of what is in it."""
    message = f"cannot open {path}: {os.strerror(number)}"
    if number in OPEN_FILES_ERRNOS:
        return NotEnoughRoom(message, hint=RAISE_OPEN_FILES)
    if number == errno.ENOMEM:
        return NotEnoughRoom(message, hint="give this process more memory, address space (ulimit -v) or maps of files")
    if number in (errno.EACCES, errno.EPERM):
        return StoreError(message, hint="give this user the right to read it")
    return StoreError(message)


def reading_error(path: Path, offset: int, number: int) -> StoreError:
    """The error of a file that cannot be read from byte ``offset`` on because of errno ``number``."""
    return StoreError(
        f"cannot read {path} from byte {offset} on: {os.strerror(number)}",
        hint="look at the disk, or at what serves the volume",
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
    """Let two files or folders of one file system trade names, at once: nobody finds either name gone. Raises OSError,
    also where the file system cannot."""
    import ctypes  # here: servers, which open files, have no use for it

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(path))
    if rename(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
