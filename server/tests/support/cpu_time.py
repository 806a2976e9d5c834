"""The processor time of a process, which does not depend on the load of the machine."""

from __future__ import annotations

from pathlib import Path


def worked_seconds(pid: int) -> float:
    """The processor time that the main thread of the process has used."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
