"""Commands as functions, each with a deadline. A failure raises the command's output."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


class CommandFailed(AssertionError):
    """A command failed, or did not end in time."""


def run(command: Sequence[str], *, stdin: str | None = None, timeout: float) -> str:
    """Return the standard output of ``command``. Raises CommandFailed."""
    said = " ".join(command)
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as late:
        raise CommandFailed(f"{said}: nothing within {timeout} s") from late
    if done.returncode:
        raise CommandFailed(f"{said}: exit code {done.returncode}: {done.stderr.strip() or done.stdout}")
    return done.stdout
