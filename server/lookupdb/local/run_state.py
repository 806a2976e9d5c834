"""The folder of a running `up`: its lock, and the file that says how its dataset is reached."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.errors import LookupdbError, UsageError
from lookupdb.runtime import ready_file

DATA_DIRECTORY: Final = Path(".lookupdb")
"""Where `up` keeps everything and `get` looks for it, unless --data-dir says otherwise."""
DEFAULT_NAMESPACE: Final = "default"
_STATE_FILE: Final = "up.json"


class NotWritten(LookupdbError):
    """A file of a run folder could not be written, for want of room or of permission; the one before still stands."""

    reason = "NotWritten"


def run_directory(data: Path, namespace: str, name: str) -> Path:
    """Return the folder of the logs, the routing table and ``up.json`` of one dataset.

    Neither name has a dot (``StoreAddress``), but both may have a hyphen: a-b/c and a/b-c are two datasets.
    """
    return data / "run" / f"{namespace}.{name}"


def state_file(data: Path, namespace: str, name: str) -> Path:
    """Return the file in which a running `up` says how its dataset is reached."""
    return run_directory(data, namespace, name) / _STATE_FILE


def write_file(path: Path, members: dict[str, Any]) -> None:
    """Write ``members`` to ``path``, a file of a run folder, whole or not at all. Raises NotWritten."""
    try:
        ready_file.write(path, members)
    except OSError as error:
        raise NotWritten(
            f"{path} cannot be written: {error.strerror or error}",
            hint="make room on its disk, or let this user write there",
        ) from error


def write_state(path: Path, members: dict[str, Any]) -> None:
    """Write ``members`` and this process's id. Raises NotWritten."""
    write_file(path, {"pid": os.getpid(), **members})


def read_state(path: Path) -> dict[str, Any] | None:
    """Return what the `up` that wrote ``path`` says, None when it no longer runs."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        state: dict[str, Any] = orjson.loads(path.read_bytes())
        os.kill(state["pid"], 0)
        return state
    return None


def _describe_holder(directory: Path) -> str:
    state = read_state(directory / _STATE_FILE)
    return f"process {state['pid']}, at {state['url']}" if state else "it is starting, or ending"


def is_locked(directory: Path) -> bool:
    """Return whether an `up` runs in ``directory``, though it may not serve yet."""
    try:
        lock = (directory / "lock").open()
    except OSError:
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def lock_run_directory(directory: Path, dataset: str) -> Iterator[None]:
    """Make ``directory`` and hold its lock, so that two `up` do not share it. Raises UsageError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("a")
    except OSError as error:
        raise UsageError(f"cannot write to {directory}: {error.strerror}", hint="give another --data-dir") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another `lookupdb up` serves {dataset} from {directory}: {_describe_holder(directory)}",
                hint="stop it, or give this one a --data-dir of its own",
            ) from error
        yield
