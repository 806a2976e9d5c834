"""Runs the command line in this process, from its words to its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from unittest.mock import patch

from click.testing import CliRunner

from lookupdb import cli


def run_here(*words: str | bytes, asked: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run ``lookupdb words…`` in this process, with ``asked`` as its input."""
    texts = [os.fsdecode(word) for word in words]
    with patch.object(sys, "argv", ["lookupdb", *texts]), CliRunner().isolation(input=asked) as (out, errors, _):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
        sys.stderr.flush()
        written = out.getvalue(), errors.getvalue()
    assert isinstance(code, int)
    return subprocess.CompletedProcess(texts, code, *written)
