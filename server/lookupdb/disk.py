"""What every writer of files needs: how a full disk shows, and names that outlive a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

DISK_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The error numbers of a disk, a quota or a file that takes no more."""


def sync_folder(path: Path) -> None:
    """Put the names in the folder at ``path`` on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
