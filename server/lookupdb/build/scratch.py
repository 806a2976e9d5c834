"""The folder that a build works in. The build removes it at its end, and what it had to make above it, if that is
empty; the next build removes that of a killed one."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from lookupdb import disk
from lookupdb.errors import NotEnoughRoom
from lookupdb.wording import check_path

_PREFIX: Final = "lookupdb-build-"
_open_folders: dict[Path, list[Path]] = {}
"""Those of this process, and the folders above each that were made for it, the lowest first."""


@contextmanager
def scratch_folder(base: Path) -> Iterator[Path]:
    """A new folder under ``base``, readable by this user only. Raises NotEnoughRoom if it cannot be made, and
    UsageError for a path that is no UTF-8."""
    check_path(base)
    from lookupdb.store.locks import unlock  # here: a crew member needs no store

    path = base / f"{_PREFIX}{uuid.uuid4().hex[:12]}"
    lock_file = path.with_suffix(".lock")
    new_folders: list[Path] = []
    try:
        new_folders += [folder for folder in (base, *base.parents) if not folder.exists()]
        try:
            lock = _make(path, lock_file)
        except FileNotFoundError:  # another build has removed what was its own to remove
            lock = _make(path, lock_file)
    except OSError as error:
        _remove_empty(new_folders)
        raise NotEnoughRoom(
            f"cannot make a scratch folder in {base}: {error.strerror}", hint="give another one with --scratch"
        ) from error
    _open_folders[path] = new_folders
    try:
        yield path
    finally:
        _open_folders.pop(path, None)
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            unlock(lock_file, lock)
        _remove_empty(new_folders)


def _make(path: Path, lock_file: Path) -> int | None:
    """Make the folder ``path``; returns its lock. Raises OSError."""
    from lookupdb.store.locks import try_lock

    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    lock = try_lock(lock_file)
    path.mkdir(mode=0o700)
    return lock


def remove_open_folders() -> None:
    """Remove the scratch folders of this process, which is about to end without their owners doing it."""
    for path, new_folders in tuple(_open_folders.items()):
        shutil.rmtree(path, ignore_errors=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
        _remove_empty(new_folders)


def _remove_empty(folders: list[Path]) -> None:
    """Remove those of ``folders``, the lowest first, that hold nothing."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _remove_abandoned(base: Path) -> None:
    """Remove the folders of dead builders, but not those of other users."""
    from lookupdb.store.locks import try_lock, unlock

    for lock_file in base.glob(f"{_PREFIX}*.lock"):
        with suppress(OSError):
            if lock_file.lstat().st_uid != os.geteuid():
                continue
            lock = try_lock(lock_file)
            if lock is not None:
                shutil.rmtree(lock_file.with_suffix(""), ignore_errors=True)
                unlock(lock_file, lock)


@contextmanager
def scratch_errors(folder: Path) -> Iterator[None]:
    """Turn "no space left" into a NotEnoughRoom that names ``folder``."""
    try:
        yield
    except OSError as error:
        if error.errno not in disk.DISK_FULL_ERRNOS:
            raise
        raise NotEnoughRoom(
            f"no room left in the scratch folder {folder}: {error.strerror}",
            hint="a build needs about twice its uncompressed source there; give a larger folder with --scratch",
        ) from error
