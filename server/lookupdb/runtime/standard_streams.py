"""Standard input, output and error where they are closed, or take no more."""

from __future__ import annotations

import os
import sys
from typing import Final

_LAST: Final = 2
"""The descriptor of standard error, behind standard input and output."""


def open_closed_streams() -> None:
    """Put the null device in the place of those that are closed, as by ``>&-``. Else there is no stream to ask, and the
    next file that is opened gets what is written to it, also by the processes that are started."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    # None: closed. The checker knows of no such streams.
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_LAST, "w", closefd=False)


def drop_unwritten() -> None:
    """Drop what standard output does not take any more, for its disk is full or its reader is gone: it would fail again
    as the program ends, and give it another exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
