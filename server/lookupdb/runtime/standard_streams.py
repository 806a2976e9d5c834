"""Standard input, output and error where they are closed, or take no more."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_LAST: Final = 2
"""The descriptor of standard error, behind standard input and output."""


def open_closed_streams() -> None:
    """Put the null device in the place of those that are closed, as by ``>&-``. Else there is no stream to ask, and the
    next file that is opened gets what is written to it, also by the processes that are started.

    What the encoding has not, as bytes of a path that are no UTF-8, becomes escapes in standard output as in standard
    error."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    # None: closed. The checker knows of no such streams.
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_LAST, "w", errors="backslashreplace", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


class _Yielding(io.FileIO):
    """A file that seems to take whatever is written to it."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write ``data``, or drop it where the file does not take it. Returns the bytes that count as written."""
        try:
            written = super().write(data)
        except OSError:  # its disk is full, or its reader is gone
            written = None
        return memoryview(data).nbytes if written is None else written


def drop_refused_messages() -> None:
    """Let standard error drop what it does not take: what is done goes on without its messages, and ends with the exit
    code that it has. Standard error that is another object than Python's own is left as it is."""
    own = sys.stderr
    if not isinstance(own, io.TextIOWrapper) or own is not sys.__stderr__:
        return
    file = io.BufferedWriter(_Yielding(own.fileno(), "w", closefd=False))
    sys.stderr = io.TextIOWrapper(file, own.encoding, own.errors, line_buffering=True)


def drop_unwritten() -> None:
    """Drop what standard output does not take any more, for its disk is full or its reader is gone: it would fail again
    as the program ends, and give it another exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
