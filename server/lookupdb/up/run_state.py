"""The folder of a dataset's `up`: its lock, the file with the addresses of what runs (``up.json``), logs of builds."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.errors import UsageError
from lookupdb.manifest import GENERATION, generation_number
from lookupdb.process import launch
from lookupdb.telemetry import open_log

DATA_DIRECTORY: Final = Path(".lookupdb")
"""Default of --data-dir: the folder in which `up` keeps everything and `get` looks for it."""
DEFAULT_NAMESPACE: Final = "default"
_STATE_FILE: Final = "up.json"
_LOCK_FILE: Final = "lock"
_LOCK_ATTEMPTS: Final = 6
_LOCK_PAUSE_SECONDS: Final = 0.02
"""Longer than `lookupdb get` holds the lock to test it."""


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
    previous build stays. Raises OSError."""
    for _, old in list_build_logs(folder)[:-1]:
        old.unlink(missing_ok=True)
    path = folder / f"build-{generation}.log"
    path.write_bytes(b"")
    return path


def note_build_end(log_file: Path, report: str) -> None:
    """Write the message of a builder's ``report`` to the end of its log. Raises OSError."""
    with suppress(ValueError, KeyError, TypeError):
        message = orjson.loads(report)["message"]
        with open_log(log_file) as file:
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

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create the folder and hold its lock. Raises UsageError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / _LOCK_FILE).open("a")
        except OSError as error:
            raise UsageError(
                f"cannot write to {self.path}: {error.strerror}", hint="give another --data-dir"
            ) from error
        with lock:
            for _ in range(_LOCK_ATTEMPTS):
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(_LOCK_PAUSE_SECONDS)
            else:
                state = read_state(self.state_file)
                holder = f"process {state['pid']}, at {state['url']}" if state else "it is starting or stopping"
                raise UsageError(
                    f"another `lookupdb up` serves {self.dataset} from {self.path}: {holder}",
                    hint="stop it, or give this one a --data-dir of its own",
                )
            yield

    def write_state(self, members: dict[str, Any]) -> None:
        """Write ``members`` and this process's id, completely or not at all. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
        launch.write(self.state_file, {"pid": os.getpid(), **members})
