"""Shard servers and routers started as the command line starts them, or at once as what it becomes by exec."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from typing import Any, Literal
from unittest.mock import patch

import orjson

from lookupdb.process import START

Verb = Literal["serve", "route"]
_LOCK = threading.Lock()
"""Guards the patch: fleets start their servers in parallel."""


def start(
    verb: Verb, words: list[str], *, open_files: int | None = None, by_command_line: bool = False
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
        os.pwrite(fd, orjson.dumps(settings), 0)
        command = [*START, role, str(fd), verb, *words]
        return subprocess.Popen(_limited(command, open_files), pass_fds=[fd])
    finally:
        os.close(fd)


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
