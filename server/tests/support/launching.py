"""Shard servers and routers started by the command line, or directly as the program that it becomes by exec."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import orjson

from lookupdb.process import START
from support.waiting import until

Verb = Literal["serve", "route"]
_LOCK = threading.Lock()
"""Guards the patch: fleets start their servers in parallel."""


def start(
    verb: Verb,
    words: list[str],
    *,
    open_files: int | None = None,
    by_command_line: bool = False,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    """``lookupdb verb words…``. ``open_files`` is the hard limit of descriptors, and the soft one half of it.

    Unless ``by_command_line``, the options are read in this process, by the same code: an interpreter that reads them
    takes as long to start as the server that it becomes. test_launch.py starts whole ones.
    """
    if by_command_line:
        return subprocess.Popen(_limited([sys.executable, "-m", "lookupdb", verb, *words], open_files))
    role, settings = _read_options(verb, words)
    fd = os.memfd_create("lookupdb-supervisor", 0)
    try:
        os.pwrite(fd, orjson.dumps(settings, default=str), 0)
        command = [*START, role, str(fd), verb, *words]
        return subprocess.Popen(_limited(command, open_files), pass_fds=[fd], stderr=stderr)
    finally:
        os.close(fd)


@contextlib.contextmanager
def ready(
    verb: Verb, words: list[str], *, open_files: int | None = None, by_command_line: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """``lookupdb verb words…`` from ready until the block ends, and what its ready file says; see ``start``."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "ready.json"
        process = start(
            verb, [*words, "--ready-file", str(file)], open_files=open_files, by_command_line=by_command_line
        )
        try:
            until(lambda: file.exists() or process.poll() is not None, f"{verb} is ready", 90)
            assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
            yield process, orjson.loads(file.read_bytes())
        finally:
            stop(process)


def ended(verb: Verb, *words: str) -> tuple[int, str]:
    """The exit code and standard error of ``lookupdb verb words…``, which fails to start."""
    with start(verb, [*words], stderr=subprocess.PIPE) as process:
        _, errors = process.communicate(timeout=120)
    return process.returncode, errors.decode()


def stop(process: subprocess.Popen[bytes], seconds: float = 60.0) -> int:
    """Send SIGTERM and wait. Return the exit status. A process that has not ended in time fails the test, and is
    aborted: it says on standard error where it stood (conftest.py has Python's fault handler on)."""
    if process.poll() is None:
        process.terminate()
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        process.wait()
        raise AssertionError(f"{process.args!r} had not ended {seconds} s after SIGTERM") from None


def _read_options(verb: Verb, words: list[str]) -> tuple[str, dict[str, Any]]:
    """The module that the command line would become, and its settings."""
    module = importlib.import_module(f"lookupdb.cli.{verb}")
    with _LOCK, patch.object(module, "become_supervisor") as become:
        module.command.main(words, prog_name=verb, standalone_mode=False)
    role, settings = become.call_args.args
    return role, settings


def _limited(command: list[str], open_files: int | None) -> list[str]:
    if open_files is None:
        return command
    return ["sh", "-c", f'ulimit -n {open_files} && ulimit -S -n {open_files // 2} && exec "$@"', "sh", *command]
