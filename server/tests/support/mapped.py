"""Folders of generations as ``lookupdb sync`` keeps them, and what a test does in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.shards import write_generation


class SyncedDataset:
    """``<root>/<namespace>/<name>``: generations, and the link ``current``."""

    def __init__(self, root: Path, name: str = "people", namespace: str = "default") -> None:
        self.path = root / namespace / name
        self.path.mkdir(parents=True)

    def add(self, generation: str, records: Mapping[str, bytes], **options: Any) -> Path:
        """Add a generation that nothing names yet."""
        return write_generation(self.path, records, generation=generation, name=self.path.name, **options)

    def point(self, generation: str) -> None:
        """Let ``current`` name it, by a rename."""
        link = self.path / ".current.new"
        link.symlink_to(generation)
        link.rename(self.path / "current")

    def publish(self, generation: str, records: Mapping[str, bytes], **options: Any) -> Path:
        """Add it and point to it."""
        folder = self.add(generation, records, **options)
        self.point(generation)
        return folder


def run_python(code: str, *arguments: object, timeout: float = 60.0) -> str:
    """Run ``code`` with ``arguments`` in a new interpreter, and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
