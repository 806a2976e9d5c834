"""The termination log of Kubernetes: how a container ended, as one line of JSON that the operator reads."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
import logging
from collections.abc import Callable, Mapping
from typing import NoReturn

from lookupdb import logs
from lookupdb.errors import LookupdbError
from lookupdb.wording import check_path, escape_controls, to_utf8

# The ready file: a JSON file that appears, whole, when a process has become ready.


def write(path: Path, members: dict[str, Any]) -> None:
    """Write ``members`` as JSON, atomically: a reader sees no file or all of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE))
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def remove(path: Path) -> None:
    """Remove the file: the process is no longer ready."""
    path.unlink(missing_ok=True)


# Standard input, output and error where they are closed, or take no more.


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


# How a server starts: the command line reads its options, and then becomes the supervisor by exec.
#
# What reads options (click, YAML, the CRD's schema) would stay in the memory of every pod for as long as it lives. By
# exec it goes, and the process keeps its id, its files, its environment and its words in a process listing.


def become_supervisor(role: str, settings: Mapping[str, Any]) -> NoReturn:
    """Replace this program by the module ``role``, whose ``start()`` calls ``run_supervisor``.

    ``settings`` is any JSON with a member ``log_format``. It travels in a memory file, because a process listing would
    show a password. Raises UsageError for a text, such as a path, that is no UTF-8.
    """
    _check_texts(settings)
    fd = os.memfd_create("lookupdb-supervisor", 0)  # inherited
    os.pwrite(fd, orjson.dumps(settings), 0)
    sys.stdout.flush()
    sys.stderr.flush()
    words = [sys.executable, "-P", "-m", "lookupdb.process.start", role, str(fd), *sys.argv[1:]]
    os.execv(sys.executable, words)  # noqa: S606 - no shell is needed


def _check_texts(settings: Mapping[str, Any]) -> None:
    for value in settings.values():
        if isinstance(value, str):
            check_path(value)
        elif isinstance(value, Mapping):
            _check_texts(value)


def end_with_error(error: LookupdbError) -> NoReturn:
    """End the program as every verb ends: with a sentence and its exit code."""
    end_with_message(str(error), error.exit_code)


def end_with_message(message: str, exit_code: int) -> NoReturn:
    """End the program with ``message``, which says what is wrong."""
    _say_last(f"error: {message}")
    sys.exit(exit_code)


def end_interrupted() -> NoReturn:
    """End the program as Ctrl-C ends it."""
    _say_last("interrupted")
    sys.exit(130)


def _say_last(message: str) -> None:
    """Say ``message`` on standard error if that takes it: the exit code stands either way."""
    drop_refused_messages()
    print(escape_controls(message), file=sys.stderr)


def run_supervisor(main: Callable[[dict[str, Any]], None]) -> None:
    """Read the settings, run ``main(settings)``, and end as the command line does: a role's whole ``start()``."""
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        settings = orjson.loads(file.read())
    logs.configure_logging(settings["log_format"])
    try:
        main(settings)
    except KeyboardInterrupt:
        end_interrupted()
    except LookupdbError as error:
        end_with_error(error)


log = logging.getLogger(__name__)

_MAX_MESSAGE: Final = 500
"""Characters: with all else, and escaped, it is less than the 4096 bytes that Kubernetes keeps."""


def describe_error(error: LookupdbError) -> dict[str, Any]:
    """The members that say why a program failed."""
    return {"exitCode": error.exit_code, "reason": error.reason, "message": to_utf8(str(error))[:_MAX_MESSAGE]}


def render_failure(error: LookupdbError) -> bytes:
    """The line of a program that ended with ``error`` and has no other result."""
    return orjson.dumps({"outcome": "failed", **describe_error(error)})


def write_termination_log(path: Path | None, line: bytes) -> None:
    """Write ``line`` where Kubernetes reads it. A failure to do so is logged, and does not change the exit code."""
    if path is None:
        return
    try:
        path.write_bytes(line)
    except OSError as error:
        log.warning("cannot write the termination log", extra={"path": str(path), "reason": error.strerror})
