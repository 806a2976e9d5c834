"""Phrases that many messages share."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path


def format_count(number: int, noun: str) -> str:
    """ "1 record", "1,234 records"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_command(*words: str) -> str:
    """ "…/lookupdb WORDS": this program as a person can type it here, the words quoted for a shell."""
    return shlex.join([*_program(), *words])


def to_utf8(text: str) -> str:
    """``text`` as JSON can hold it: bytes of a path that are no UTF-8 become escapes, as messages show them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _program() -> list[str]:
    """As it was called; for a module that Python was told to run, the script that was installed beside Python."""
    if sys.argv[0] != "-c" and not sys.argv[0].endswith(".py"):
        return [sys.argv[0]]
    script = Path(sys.executable).with_name("lookupdb")
    if not script.is_file():
        return [sys.executable, "-m", "lookupdb"]
    return [os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)]
