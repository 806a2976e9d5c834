"""The folder a build works in. It goes when the build ends, and when the build was killed, with the next one."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from lookupdb.errors import NotEnoughRoom
from lookupdb.store.locks import try_lock, unlock

_PREFIX: Final = "lookupdb-build-"


@contextmanager
def scratch_folder(base: Path) -> Iterator[Path]:
    """A new folder under ``base``, readable by this user only. Raises NotEnoughRoom when it cannot be made."""
    path = base / f"{_PREFIX}{uuid.uuid4().hex[:12]}"
    lock_file = path.with_suffix(".lock")
    try:
        base.mkdir(parents=True, exist_ok=True)
        _clear_dead(base)
        lock = try_lock(lock_file)
        path.mkdir(mode=0o700)
    except OSError as error:
        raise NotEnoughRoom(
            f"cannot make a scratch folder in {base}: {error.strerror}", hint="give another one with --scratch"
        ) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            unlock(lock_file, lock)


def _clear_dead(base: Path) -> None:
    """Remove the folders whose builders are gone; those of other users are left to them."""
    for lock_file in base.glob(f"{_PREFIX}*.lock"):
        with suppress(OSError):
            if lock_file.lstat().st_uid != os.geteuid():
                continue
            lock = try_lock(lock_file)
            if lock is not None:
                shutil.rmtree(lock_file.with_suffix(""), ignore_errors=True)
                unlock(lock_file, lock)
