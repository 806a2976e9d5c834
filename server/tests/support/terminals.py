"""The command line at a terminal."""

from __future__ import annotations

import os
import subprocess
import sys


def run_at_terminal(*words: str) -> tuple[int, bytes, bytes]:
    """Run `lookupdb WORDS`. Returns its exit code, and what it writes to a terminal that is its standard output, and to
    standard error."""
    mine, terminal = os.openpty()
    try:
        command = [sys.executable, "-m", "lookupdb", *words]
        ended = subprocess.run(command, stdout=terminal, stderr=subprocess.PIPE, check=False)
        os.write(terminal, b"END")
        written = b""
        while not written.endswith(b"END"):
            written += os.read(mine, 65536)
        return ended.returncode, written.removesuffix(b"END"), ended.stderr
    finally:
        os.close(mine)
        os.close(terminal)
