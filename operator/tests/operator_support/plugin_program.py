"""Run kubectl-lookupdb, or lookupdb, as a program: words in, exit code and output out."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from lookupdb import cli
from lookupdb_operator.plugin.cli import main


@dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    code: int
    out: str
    err: str


async def run_plugin(kubeconfig: Path, *words: str, stdin: str = "") -> Ended:
    """Run ``kubectl lookupdb`` with ``words``, in a thread, because the API server is in this one."""
    return await asyncio.to_thread(_run, main, ["kubectl-lookupdb", *words, "--kubeconfig", str(kubeconfig)], stdin)


async def run_lookupdb(*words: str) -> Ended:
    """Run ``lookupdb`` with ``words`` in a thread."""
    return await asyncio.to_thread(_run, cli.main, ["lookupdb", *words])


def _run(program: Callable[[], None], words: list[str], stdin: str = "") -> Ended:
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    code = 0
    with (
        patch.object(sys, "argv", words),
        patch.object(sys, "stdout", out),
        patch.object(sys, "stderr", err),
        patch.object(sys, "stdin", io.StringIO(stdin)),
    ):
        try:
            program()
        except SystemExit as end:
            code = int(end.code or 0)
        out.flush()
    return Ended(code, out.buffer.getvalue().decode(), err.getvalue())
