"""The ready file: a JSON file that appears, whole, when a process has become ready."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson


def write(path: Path, members: dict[str, Any]) -> None:
    """Write ``members`` as JSON, atomically: a reader sees no file or all of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE))
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def remove(path: Path) -> None:
    """Remove the file: the process is no longer ready."""
    path.unlink(missing_ok=True)
