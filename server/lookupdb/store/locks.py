"""Lock files. The kernel releases a lock however its holder ends, so a lock tells a live process from a dead one."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock file at ``path``, which is created if necessary; None if another process holds
    it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file between our open and our lock.
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def unlock(path: Path, descriptor: int) -> None:
    """Remove the lock file, then release the lock."""
    with suppress(FileNotFoundError):
        path.unlink()
    os.close(descriptor)
