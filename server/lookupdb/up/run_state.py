"""The folder of a dataset's `up`: its lock, the file with the addresses of what runs (``up.json``), logs of builds."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import orjson

from lookupdb.errors import LookupdbError, UsageError
from lookupdb.manifest import GENERATION, generation_number
from lookupdb.process import launch

DATA_DIRECTORY: Final = Path(".lookupdb")
"""Default of --data-dir: the folder in which `up` keeps everything and `get` looks for it."""
DEFAULT_NAMESPACE: Final = "default"
_STATE_FILE: Final = "up.json"
_LOCK_FILE: Final = "lock"
_LOCK_ATTEMPTS: Final = 5
_LOCK_PAUSE_SECONDS: Final = 0.02
"""Longer than `lookupdb get` holds the lock to test it."""


class NotWritten(LookupdbError):
    """A file of a run folder could not be written, for example because the disk is full. The old file is unchanged."""

    reason = "NotWritten"


class FolderTaken(LookupdbError):
    """The run folder was removed while `up` ran, and another `up` has created it again."""

    reason = "FolderTaken"


def run_directory(data: Path, namespace: str, name: str) -> Path:
    """Return the folder with the logs, the routing table and ``up.json`` of one dataset.

    Neither name has a dot (``StoreAddress``), but both may have a hyphen: a-b/c and a/b-c are two datasets.
    """
    return data / "run" / f"{namespace}.{name}"


def shorten_name(namespace: str, name: str) -> str:
    """Return the name of a dataset in commands: ``people``, ``team/people``."""
    return name if namespace == DEFAULT_NAMESPACE else f"{namespace}/{name}"


def state_file(data: Path, namespace: str, name: str) -> Path:
    """Return the file with the addresses of a running `up`."""
    return run_directory(data, namespace, name) / _STATE_FILE


def object_file(data: Path, namespace: str, name: str) -> Path:
    """Return the file in which `up` keeps a dataset's LookupDataset."""
    return run_directory(data, namespace, name) / "objects" / f"LookupDataset.{name}.json"


def read_resource(data: Path, namespace: str, name: str) -> dict[str, Any]:
    """Return a dataset's LookupDataset with its status, as an `up` has left it or keeps it; empty if there is none."""
    with suppress(OSError, ValueError):
        resource = orjson.loads(object_file(data, namespace, name).read_bytes())
        return resource if isinstance(resource, dict) else {}
    return {}


def read_state(path: Path) -> dict[str, Any] | None:
    """Return the content of ``path``; None if the `up` that wrote it no longer runs."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        state: dict[str, Any] = orjson.loads(path.read_bytes())
        with suppress(PermissionError):  # then it runs, as another user
            os.kill(state["pid"], 0)
        return state
    return None


def list_datasets(data: Path) -> dict[str, Path]:
    """Return the datasets that an `up` has served from the folder ``data``, by their names in commands, and their run
    folders."""
    found = {}
    for path in sorted((data / "run").glob("*.*")):
        namespace, _, name = path.name.partition(".")
        found[shorten_name(namespace, name)] = path
    return found


def list_served(data: Path) -> list[str]:
    """Return the datasets that are served now from the folder ``data``."""
    served = []
    for name, folder in list_datasets(data).items():
        with suppress(OSError, ValueError, KeyError, TypeError):  # for example a file of another program
            if read_state(folder / _STATE_FILE):
                served.append(name)
    return served


def _describe_holder(directory: Path) -> str:
    state = read_state(directory / _STATE_FILE)
    return f"process {state['pid']}, at {state['url']}" if state else "it is starting or stopping"


def is_locked(directory: Path) -> bool:
    """Return whether an `up` runs in ``directory``. It may not serve yet."""
    try:
        lock = (directory / _LOCK_FILE).open()
    except OSError:
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def renew_build_log(folder: Path, generation: str) -> Path:
    """Return an empty file in a dataset's run ``folder`` for the log of the build of ``generation``. The log of the
    build before stays. Raises OSError."""
    for _, old in list_build_logs(folder)[:-1]:
        old.unlink(missing_ok=True)
    path = folder / f"build-{generation}.log"
    path.write_bytes(b"")
    return path


def note_build_end(log_file: Path, report: str) -> None:
    """Write the message of a builder's ``report`` to the end of its log. Raises OSError."""
    with suppress(ValueError, KeyError, TypeError):
        message = orjson.loads(report)["message"]
        with log_file.open("a", encoding="utf-8") as file:
            file.write(f"{message}\n")


def list_build_logs(folder: Path) -> list[tuple[str, Path]]:
    """Return generations and the logs of their builds, oldest first."""
    named = ((path.stem.removeprefix("build-"), path) for path in folder.glob("build-g*.log"))
    logs = [(generation, path) for generation, path in named if GENERATION.fullmatch(generation)]
    return sorted(logs, key=lambda found: generation_number(found[0]))


class RunFolder:
    """The folder of one dataset's `up`. Its lock prevents a second `up` from using it."""

    def __init__(self, data: Path, namespace: str, name: str) -> None:
        self.path = run_directory(data, namespace, name)
        self.state_file = state_file(data, namespace, name)
        self.dataset = f"{namespace}/{name}"
        self._lock: IO[str] | None = None
        self._is_taken = False
        """True if another process held the lock at the last check."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create the folder and hold its lock. Raises UsageError."""
        try:
            self._take_lock_in_time()
        except BlockingIOError as error:
            raise UsageError(
                f"another `lookupdb up` serves {self.dataset} from {self.path}: {_describe_holder(self.path)}",
                hint="stop it, or give this one a --data-dir of its own",
            ) from error
        except OSError as error:
            raise UsageError(
                f"cannot write to {self.path}: {error.strerror}", hint="give another --data-dir"
            ) from error
        try:
            yield
        finally:
            assert self._lock is not None
            self._lock.close()

    def restore(self) -> None:
        """Create the folder and its lock again if they were removed. A failure is ignored: the next call retries.

        Raises FolderTaken if another `up` holds the lock of the new folder.
        """
        try:
            self._keep_lock()
        except BlockingIOError as error:
            if self._is_taken:  # not the first time: `lookupdb get` takes the lock for a moment to test it
                raise FolderTaken(
                    f"{self.path} was removed, and another `lookupdb up` has created it again: "
                    f"{_describe_holder(self.path)}; this one stops",
                    hint="give each a --data-dir of its own",
                ) from error
            self._is_taken = True
        except OSError:
            self._is_taken = False
        else:
            self._is_taken = False

    def write(self, name: str, members: dict[str, Any]) -> None:
        """Write ``members`` to the file ``name``, completely or not at all. Raises NotWritten, also while another
        process holds the lock and so owns the file."""
        path = self.path / name
        try:
            self._keep_lock()
            launch.write(path, members)
        except OSError as error:
            raise NotWritten(
                f"{path} cannot be written: {error.strerror or error}",
                hint="make room on its disk, or let this user write there",
            ) from error

    def write_state(self, members: dict[str, Any]) -> None:
        """Write ``members`` and this process's id. Raises NotWritten."""
        self.write(_STATE_FILE, {"pid": os.getpid(), **members})

    def remove_state(self) -> None:
        """Remove the file of ``write_state``. Raises OSError, also if another process owns the folder now."""
        self._keep_lock()
        self.state_file.unlink(missing_ok=True)

    def _keep_lock(self) -> None:
        """Take the lock unless this process holds it. Raises OSError; BlockingIOError if another process holds it."""
        with suppress(OSError):
            held = self._lock and os.fstat(self._lock.fileno())
            # the held lock may be that of a removed folder
            if held and os.path.samestat(held, (self.path / _LOCK_FILE).stat()):
                return
        self._take_lock()

    def _take_lock_in_time(self) -> None:
        """Take the lock, with retries: `lookupdb get` takes it for a moment to test it."""
        for _ in range(_LOCK_ATTEMPTS):
            try:
                return self._take_lock()
            except BlockingIOError:
                time.sleep(_LOCK_PAUSE_SECONDS)
        self._take_lock()

    def _take_lock(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        lock = (self.path / _LOCK_FILE).open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise
        if self._lock is not None:
            self._lock.close()
        self._lock = lock
