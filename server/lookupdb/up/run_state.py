"""The run folder of one dataset's `up`: its lock, its address (``up.json``), and the last success file it handled."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, TypeGuard

import orjson

from lookupdb.errors import LookupdbError, UsageError
from lookupdb.process import launch
from lookupdb.up.rebuilds import SuccessFileAnswer

# The folder of a running `up`: its lock, and the file with the addresses of its dataset.


DATA_DIRECTORY: Final = Path(".lookupdb")
"""Default of --data-dir: the folder in which `up` keeps everything and `get` looks for it."""
DEFAULT_NAMESPACE: Final = "default"
_STATE_FILE: Final = "up.json"
_LOCK_FILE: Final = "lock"
_LOCK_ATTEMPTS: Final = 5
_LOCK_PAUSE_SECONDS: Final = 0.02
"""Longer than `lookupdb get` holds the lock to test it."""
_MAX_READ_BYTES: Final = 1 << 16
"""Larger than any file that this module reads."""


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


def state_file(data: Path, namespace: str, name: str) -> Path:
    """Return the file with the addresses of a running `up`."""
    return run_directory(data, namespace, name) / _STATE_FILE


def read_state(path: Path) -> dict[str, Any] | None:
    """Return the content of ``path``; None if the `up` that wrote it no longer runs."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        state: dict[str, Any] = orjson.loads(path.read_bytes())
        with suppress(PermissionError):  # then it runs, as another user
            os.kill(state["pid"], 0)
        return state
    return None


def list_served(data: Path) -> list[str]:
    """Return the datasets that are served now from the folder ``data``, as commands name them: ``people``,
    ``team/people``."""
    served = []
    for path in sorted((data / "run").glob(f"*.*/{_STATE_FILE}")):
        with suppress(OSError, ValueError, KeyError, TypeError):  # for example a file of another program
            if read_state(path):
                namespace, _, name = path.parent.name.partition(".")
                served.append(name if namespace == DEFAULT_NAMESPACE else f"{namespace}/{name}")
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

    def has_file(self, path: Path) -> bool:
        """Return whether ``path``, in the folder, exists; False if that is unknown: writing it then reports why."""
        try:
            return path.exists()
        except OSError:
            return False

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

    def read(self, name: str) -> object:
        """Return the content of the JSON file ``name``; None if it is missing, unreadable, too large or not JSON."""
        path = self.path / name
        try:
            if not path.is_file():
                return None
            with path.open("rb") as file:
                content = file.read(_MAX_READ_BYTES + 1)
            return None if len(content) > _MAX_READ_BYTES else orjson.loads(content)
        except (OSError, orjson.JSONDecodeError):
            return None

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


# A write to a file of the run folder that is retried until it succeeds.


RETRY_SECONDS: Final = 1.0
RETRY_POLICY: Final = f"retrying every {RETRY_SECONDS:.0f} s"


class RetriedWrite:
    """Calls ``write``, which writes the current state or raises NotWritten, and retries until it succeeds.

    ``say`` prints the first error, and later that the write has succeeded.
    """

    def __init__(self, name: str, write: Callable[[], object], say: Callable[[str], None]) -> None:
        self._name = name
        self._write = write
        self._say = say
        self._is_behind = False
        self._timer: asyncio.TimerHandle | None = None
        self._written = asyncio.Event()
        self._is_closed = False

    def run(self) -> None:
        """Write now, and retry after RETRY_SECONDS if that fails. Raises nothing, so that the caller can continue."""
        if self._is_closed:
            return
        self._cancel()
        try:
            self._write()
        except NotWritten as error:
            self._written.clear()
            self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self.run)
            if not self._is_behind:
                self._say(f"{error.message}, {RETRY_POLICY}\n  {error.hint}")
            self._is_behind = True
            return
        self._written.set()
        if self._is_behind:
            self._say(f"{self._name} is written again")
        self._is_behind = False

    async def run_to_success(self) -> None:
        """Write, and return when that has succeeded, after any number of retries."""
        self.run()
        await self._written.wait()

    def close(self) -> None:
        """Write nothing any more."""
        self._is_closed = True
        self._cancel()

    def _cancel(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


FILE: Final = "success-file.json"
_VERSION: Final = 1
_IDENTITY: Final = re.compile("[0-9a-f]{32}")


class KeptAnswer:
    """The file in ``folder`` with the last success file that `up` handled for ``manifest`` and ``volume``.

    So an `up` that is started again does not read an incomplete version of the source. A file that is missing, invalid
    or of another manifest counts as no answer. ``say`` prints why the file cannot be written.
    """

    def __init__(self, folder: RunFolder, manifest: Path, volume: Path | None, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._place = {
            "version": _VERSION,
            "dataset": folder.dataset,
            "manifest": _hash_path(manifest),
            "volume": volume and _hash_path(volume),
        }
        """Identifies the source: its URL may be relative to the manifest or the volume."""
        self._members: dict[str, Any] | None = None
        """The members that were written last, or are to be written."""
        self._write = RetriedWrite(FILE, self._write_members, say)

    def read(self, content: str, gates: str) -> SuccessFileAnswer | None:
        """Return the answer that was kept for the content hash ``content`` and the hash ``gates``, None if none was."""
        return parse_answer(self._folder.read(FILE), {**self._place, "content": content}, gates)

    def keep(self, content: str, gates: str, answer: SuccessFileAnswer) -> None:
        """Write ``answer`` unless it is written already. Raises nothing: a failed write is retried."""
        kept = {"gates": gates, "successFile": answer.success_file, "fingerprint": answer.fingerprint}
        members = {**self._place, "content": content, **kept}
        if members != self._members or not self._folder.has_file(self._folder.path / FILE):
            self._members = members
            self._write.run()

    def close(self) -> None:
        """Write nothing any more."""
        self._write.close()

    def _write_members(self) -> None:
        """Write the members. Raises NotWritten."""
        if self._members is not None:
            self._folder.write(FILE, self._members)


def parse_answer(members: object, place: dict[str, Any], gates: str) -> SuccessFileAnswer | None:
    """Return the answer in the ``members`` of a file; None unless they are valid and have those of ``place``. An answer
    without a fingerprint was a bad source: it does not count for other ``gates``, so that the source is built again."""
    if not isinstance(members, dict) or any(members.get(name, members) != value for name, value in place.items()):
        return None
    success_file, fingerprint = members.get("successFile"), members.get("fingerprint", "")
    if not _is_identity(success_file) or not (fingerprint is None or _is_identity(fingerprint)):
        return None
    if fingerprint is None and members.get("gates") != gates:
        return None
    return SuccessFileAnswer(success_file, fingerprint)


def _hash_path(path: Path) -> str:
    """Return 32 hex digits for ``path``, which need not be UTF-8 as JSON must be."""
    return hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]


def _is_identity(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _IDENTITY.fullmatch(value) is not None
