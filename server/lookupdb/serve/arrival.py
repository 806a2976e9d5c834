"""Waits for what is to be served, in a folder that somebody else fills: a volume on which a generation appears later
than the server, or that a network file system does not show yet.

What is not there is looked for again every second. A server that waits listens nowhere.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from lookupdb.errors import CorruptFile, NotOnVolume, StoreError
from lookupdb.manifest import FILE_NAME
from lookupdb.serve.verify import ServedShard, locate_shard

log = logging.getLogger(__name__)

T = TypeVar("T")
_LOOK_SECONDS: Final = 1.0
_SHOULD_SHOW: Final = "a volume has to show the store's folders: <cluster id>/<namespace>/<dataset>-<uid>/<generation>"


def await_shard(folder: Path, shard: int | None, seconds: float) -> ServedShard:
    """Return the shard file once it is in ``folder``, a generation's, with its size and beside its manifest.

    Raises, after ``seconds``, NotOnVolume when it is not, or cannot be read, and CorruptFile when manifest.json cannot
    be used: somebody may have been writing it. Raises UsageError at once when the generation has no such shard.
    """
    deadline = time.monotonic() + seconds
    said = ""
    with _ended_by_sigterm():
        while True:
            try:
                return find_shard(folder, shard)
            except (NotOnVolume, CorruptFile) as obstacle:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise
                if obstacle.message != said:
                    said = obstacle.message
                    log.info("waiting for what is to be served", extra={"reason": said, "seconds": round(remaining)})
            time.sleep(min(_LOOK_SECONDS, remaining))


def find_shard(folder: Path, shard: int | None) -> ServedShard:
    """Return the shard file in ``folder``. Raises NotOnVolume when it is not there, or cannot be read."""
    _read(folder / FILE_NAME, lambda path: path.open("rb").close())
    try:
        served = locate_shard(folder, shard)
    except CorruptFile:
        raise
    except StoreError as error:  # it was there a moment ago
        raise NotOnVolume(error.message, hint=error.hint) from error
    size = _read(served.path, lambda path: path.stat().st_size)
    if size < served.entry.bytes:
        raise NotOnVolume(
            f"{served.path} has {size} bytes, {FILE_NAME} beside it says {served.entry.bytes}",
            hint="whoever copies it there is not done: manifest.json should come last",
        )
    return served


def _read(path: Path, read: Callable[[Path], T]) -> T:
    """What ``read`` returns of ``path``. Raises NotOnVolume when it cannot."""
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        raise NotOnVolume(_describe_gap(path), hint=_SHOULD_SHOW) from None
    except OSError as error:
        raise NotOnVolume(f"{path} cannot be read: {error.strerror}", hint="look at the volume") from error


def _describe_gap(path: Path) -> str:
    """Which part of ``path`` is the first that is not there: a wrong path differs from what is yet to come."""
    for folder in path.parents:
        try:
            is_there = folder.is_dir()
        except OSError:
            is_there = False
        if is_there:
            missing = path.relative_to(folder)
            return f"{folder} holds no {missing.parts[0]}, expected {missing}"
    return f"{path} is not there"


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the program while it waits: the first process of a container ignores what it does not handle."""

    def end(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
