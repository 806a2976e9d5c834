"""What all writers of files share: the errors of a full disk, and syncing a folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

DISK_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The error numbers of a full disk, an exhausted quota, and a file at its maximum size."""


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
