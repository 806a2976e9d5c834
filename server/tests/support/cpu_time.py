"""How much a process works: what a busy machine does not change."""

from __future__ import annotations

from pathlib import Path


def worked_seconds(pid: int) -> float:
    """The processor's time that the main thread of the process has had."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
