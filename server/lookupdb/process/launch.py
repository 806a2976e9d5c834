"""Start and end a server: standard streams, the change to the supervisor, the ready file, the termination log.

The command line reads the options, and then becomes the supervisor by exec (``become_supervisor``). That frees the
memory of the option parser (click, YAML, the CRD's schema), and keeps process id, files, environment and the words in a
process listing. ``run_supervisor`` runs the role.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, cast

import orjson

from lookupdb import process, telemetry
from lookupdb.errors import LookupdbError
from lookupdb.wording import check_path, escape_controls, to_utf8


def write(path: Path, members: dict[str, Any]) -> None:
    """Write ``members`` as JSON to the ready file, atomically: a reader sees no file or all of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE))
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


_LAST: Final = 2
"""The descriptor of standard error, after standard input and output."""


def open_closed_streams() -> None:
    """Replace closed standard streams, as after ``>&-``, with the null device. Otherwise the next opened file would get
    what is written to the stream, also by child processes.

    Text that the encoding of standard output lacks, such as a path that is not UTF-8, is escaped as in standard error.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    # A closed stream is None, which the type checker does not know.
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_LAST, "w", errors="backslashreplace", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_refused_messages() -> None:
    """Make standard error drop what it cannot write, so that the work continues and its exit code stays. A standard
    error that Python did not make is left alone."""
    own = sys.stderr
    if not isinstance(own, io.TextIOWrapper) or own is not sys.__stderr__:
        return
    file = io.BufferedWriter(telemetry.YieldingFile(own.fileno(), "w", closefd=False))
    sys.stderr = io.TextIOWrapper(file, own.encoding, own.errors, line_buffering=True)


def drop_unwritten() -> None:
    """Drop what standard output cannot write because its disk is full or its reader is gone. A flush at exit would
    fail again, and change the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def become_supervisor(role: str, settings: Mapping[str, Any]) -> NoReturn:
    """Replace this program with the module ``role``, whose ``start()`` calls ``run_supervisor``.

    ``settings`` is JSON with a member ``log_format``. It travels in a memory file, because a process listing would show
    passwords. Raises UsageError for text, such as a path, that is not UTF-8.
    """
    _check_texts(settings)
    fd = os.memfd_create("lookupdb-supervisor", 0)  # inherited
    os.pwrite(fd, orjson.dumps(settings, default=str), 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [*process.START, role, str(fd), *sys.argv[1:]])  # noqa: S606 - no shell is needed


def _check_texts(settings: Mapping[str, Any]) -> None:
    for value in settings.values():
        if isinstance(value, str | Path):
            check_path(value)
        elif isinstance(value, Mapping):
            _check_texts(value)


def end_with_message(message: str, exit_code: int) -> NoReturn:
    """End the program with ``message``, which says what is wrong."""
    _say_last(f"error: {message}")
    sys.exit(exit_code)


def end_interrupted() -> NoReturn:
    """End the program as Ctrl-C does."""
    _say_last("interrupted")
    sys.exit(130)


def _say_last(message: str) -> None:
    """Print ``message`` on standard error if possible. The exit code stays in either case."""
    drop_refused_messages()
    print(escape_controls(message), file=sys.stderr)


def run_supervisor(main: Callable[[dict[str, Any]], None]) -> None:
    """Read the settings, run ``main(settings)``, and end as the command line does: the ``start()`` of a role."""
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        settings = orjson.loads(file.read())
    telemetry.configure_logging(settings["log_format"])
    try:
        main(settings)
    except KeyboardInterrupt:
        end_interrupted()
    except LookupdbError as error:
        end_with_message(str(error), error.exit_code)


log = logging.getLogger(__name__)

_MAX_MESSAGE: Final = 500
"""Limit in characters: even escaped, a report then fits into the 4096 bytes that Kubernetes keeps."""


def describe_error(error: LookupdbError) -> dict[str, Any]:
    """Return the members that say why a program failed."""
    return {"exitCode": error.exit_code, "reason": error.reason, "message": to_utf8(str(error))[:_MAX_MESSAGE]}


def render_failure(error: LookupdbError) -> bytes:
    """Return the last line of a program that ended with ``error`` and has no other result."""
    return orjson.dumps({"outcome": "failed", **describe_error(error)})


def write_termination_log(path: Path | None, line: bytes) -> None:
    """Write ``line`` where Kubernetes reads it. A failure is logged, and does not change the exit code."""
    if path is None:
        return
    try:
        path.write_bytes(line)
    except OSError as error:
        log.warning("cannot write the termination log", extra={"path": str(path), "reason": error.strerror})


# Calls that may never return. They run in threads that nothing joins, so a signal ends the wait at once.
#
# A library that blocks in native code delays Python's signal handlers, and a pool's thread delays the end of the
# program.


T = TypeVar("T")

_unfinished: set[threading.Thread] = set()


def call_interruptibly(function: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T:
    """Return or raise what ``function`` does, or TimeoutError after ``seconds``.

    A signal handler may raise in the main thread meanwhile. After that, or a timeout, the call continues, and its
    outcome is dropped.
    """
    return _start(function, *arguments).result(seconds)


def iterate_interruptibly(items: Iterable[T]) -> Iterator[T]:
    """Yield ``items``, waiting for each as ``call_interruptibly`` does."""
    iterator, end = iter(items), object()
    while (item := call_interruptibly(next, iterator, end)) is not end:
        yield cast(T, item)


async def call_in_thread(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call ``function`` in a thread for a task. If the task is cancelled, the call continues."""
    import asyncio  # here, because most callers have no event loop

    return await asyncio.wrap_future(_start(partial(function, *arguments, **options)))


def are_unfinished() -> bool:
    """Return whether a call is still running. It must not return during interpreter shutdown: use ``end_at_once``."""
    return any(thread.is_alive() for thread in tuple(_unfinished))


def end_at_once(code: int) -> NoReturn:
    """End the program with ``code``, without Python's shutdown. Output that a standard stream refuses is dropped."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def _start(function: Callable[..., T], *arguments: Any) -> Future[T]:
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            end = partial(outcome.set_result, function(*arguments))
        except BaseException as error:  # raised in the task that waits for it
            end = partial(outcome.set_exception, error)
        _unfinished.discard(thread)
        end()

    thread = threading.Thread(target=run, name="call", daemon=True)
    _unfinished.add(thread)
    thread.start()
    return outcome
