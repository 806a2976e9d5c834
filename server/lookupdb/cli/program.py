"""Print the result of a command, and end its program: exit code, error message, and reaction to SIGINT and SIGTERM."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import click

from lookupdb.errors import LookupdbError, NotEnoughRoom
from lookupdb.process import launch
from lookupdb.process.launch import (
    describe_error,
    drop_refused_messages,
    drop_unwritten,
    end_interrupted,
    end_with_message,
    open_closed_streams,
    write_termination_log,
)
from lookupdb.wording import escape_controls, render_json, to_utf8


def run_program(run: Callable[[], int | None], describe: Callable[[LookupdbError], str] = str) -> NoReturn:
    """Run ``run``, which returns its exit code or nothing, and exit. ``describe`` formats an error.

    The exit code stays the same if standard error cannot be written, or while a call that was given up still runs.
    """
    open_closed_streams()
    drop_refused_messages()
    try:
        _run_to_exit(run, describe)
    except SystemExit as end:
        if launch.are_unfinished():
            launch.end_at_once(int(end.code or 0))
        raise


def _run_to_exit(run: Callable[[], int | None], describe: Callable[[LookupdbError], str]) -> NoReturn:
    try:
        sys.exit(run() or 0)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.exceptions.Abort):
        end_interrupted()
    except LookupdbError as error:
        end_with_message(describe(error), error.exit_code)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
            raise
        drop_unwritten()
        full = NotEnoughRoom(
            f"standard output cannot be written: {error.strerror}",
            hint="the output is incomplete: free some disk space",
        )
        end_with_message(describe(full), full.exit_code)


# SIGINT and SIGTERM end a verb in time, also in native code, where no Python handler runs. The signal is raised in the
# main thread, which cleans up. A second thread ends the program if that takes too long.


UNDO_SECONDS: Final = 5.0  # time limit for the clean-up; a bucket that does not answer delays it
EXIT_CODES: Final = {signal.SIGINT: 130, signal.SIGTERM: 128 + signal.SIGTERM}


@contextmanager
def ended_in_time(clean_up: Callable[[int], None] = lambda _: None) -> Iterator[None]:
    """Make SIGINT raise KeyboardInterrupt in the block, and SIGTERM SystemExit, once.

    If the block does not end in time after that, another thread calls ``clean_up`` with the exit code and ends the
    program, whatever ``clean_up`` raises.
    """
    is_taken, has_ended = False, threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def take(number: int, _frame: FrameType | None) -> None:
        nonlocal is_taken
        if is_taken:  # both may come at once: the second must not stop the clean-up
            return
        is_taken = True
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(EXIT_CODES[signal.SIGTERM])

    def watch() -> None:
        while numbers := os.read(reading, 1):  # Python writes the number of each signal here at once
            if numbers[0] in EXIT_CODES and not has_ended.wait(UNDO_SECONDS):
                code = EXIT_CODES[signal.Signals(numbers[0])]
                try:
                    clean_up(code)
                finally:
                    end_at_once(code)

    thread = threading.Thread(target=watch, name="interruption", daemon=True)
    previous = {number: signal.signal(number, take) for number in EXIT_CODES}
    previous_fd = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_fd)
        for number, handler in previous.items():
            signal.signal(number, handler)
        has_ended.set()
        os.close(writing)
        thread.join()
        os.close(reading)


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a new folder, and remove it in time however the block ends, even by SIGINT or SIGTERM."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))

    def remove(_code: int = 0) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    with ended_in_time(remove):
        try:
            yield folder
        finally:
            remove()


def end_at_once(code: int) -> NoReturn:
    """End the program with ``code``, and print why if standard error can be written."""
    with suppress(OSError):
        click.echo("interrupted", err=True)
    launch.end_at_once(code)


# The result of a verb: a value, a sentence, or one line of JSON, also for the termination log of Kubernetes.


def print_value(value: bytes, *, is_json: bool) -> None:
    """Write ``value`` and flush it: JSON as a line, a raw value byte for byte.

    Only a terminal gets a final newline, if the value has none.
    """
    ends_line = is_json or (sys.stdout.isatty() and not value.endswith(b"\n"))
    click.echo(value, nl=ends_line)


def render_message(message: str) -> str:
    """Return the sentence about a result, for a terminal or a pipe."""
    return escape_controls(to_utf8(message))


@contextmanager
def report_outcome(path: Path | None, as_json: bool, **members: Any) -> Iterator[dict[str, Any]]:
    """Write the block's outcome, with the members that it added, to ``path``; print it as JSON or only its message.

    SIGINT and SIGTERM end it soon, also while a bucket does not answer.
    """
    began = time.monotonic()
    result = dict(members)

    def write_failure(error: BaseException) -> None:
        seconds = round(time.monotonic() - began, 3)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            code = 130 if isinstance(error, KeyboardInterrupt) else int(error.code or 0)
            failure = {"exitCode": code, "reason": "Interrupted", "message": "it was interrupted; run it again"}
        elif isinstance(error, LookupdbError):
            failure = describe_error(error)
        else:
            failure = describe_error(LookupdbError(f"{type(error).__name__}: {error}"))
        line = render_json({**result, "outcome": "failed", "seconds": seconds, **failure})
        write_termination_log(path, line)
        if as_json:
            click.echo(line)

    try:
        with ended_in_time(lambda code: write_failure(SystemExit(code))):
            yield result
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        write_failure(error)
        raise
    line = render_json({"exitCode": 0, **result})
    write_termination_log(path, line)
    click.echo(line if as_json else render_message(result["message"]))
