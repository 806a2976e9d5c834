"""The command line at a terminal."""

from __future__ import annotations

import io
import os
import sys
from unittest.mock import patch

from lookupdb import cli


def run_at_terminal(*words: str) -> tuple[int, bytes, bytes]:
    """Run `lookupdb WORDS` in this process. Return the exit code, the output on a terminal, and standard error. The
    output must fit into the terminal's buffer of 4 KiB."""
    mine, terminal = os.openpty()
    errors = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    try:
        with (
            os.fdopen(os.dup(terminal), "w") as out,
            patch.multiple(sys, argv=["lookupdb", *words], stdout=out, stderr=errors),
        ):
            try:
                cli.main()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
        os.write(terminal, b"END")
        written = b""
        while not written.endswith(b"END"):
            written += os.read(mine, 65536)
        return code, written.removesuffix(b"END"), errors.buffer.getvalue()
    finally:
        os.close(mine)
        os.close(terminal)
