"""Print the result of a command, and end its program: exit code, error message, and reaction to SIGINT and SIGTERM."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
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

    The exit code stays the same if standard error cannot be written.
    """
    open_closed_streams()
    drop_refused_messages()
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


TAKEN_SECONDS: Final = 1.0  # time limit for the main thread to notice a signal
UNDO_SECONDS: Final = 5.0  # time limit for the clean-up after that; a bucket that does not answer delays it
EXIT_CODES: Final = {signal.SIGINT: 130, signal.SIGTERM: 128 + signal.SIGTERM}


@contextmanager
def ended_in_time(clean_up: Callable[[int], None] = lambda _: None) -> Iterator[None]:
    """Make SIGINT raise KeyboardInterrupt in the block, and SIGTERM SystemExit, once.

    If the block does not end in time after that, another thread calls ``clean_up`` with the exit code and ends the
    program, whatever ``clean_up`` raises.
    """
    watch = _Watch(clean_up)
    previous = {number: signal.signal(number, watch.take) for number in EXIT_CODES}
    previous_fd = signal.set_wakeup_fd(watch.writing, warn_on_full_buffer=False)
    watch.thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_fd)
        for number, handler in previous.items():
            signal.signal(number, handler)
        watch.close()


def end_at_once(code: int) -> NoReturn:
    """End the program with ``code``, and print why if standard error can be written."""
    with suppress(OSError):
        click.echo("interrupted", err=True)
    launch.end_at_once(code)


class _Watch:
    def __init__(self, clean_up: Callable[[int], None]) -> None:
        self._clean_up = clean_up
        self._reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        self._is_taken = False
        self.thread = threading.Thread(target=self._run, name="interruption", daemon=True)

    def take(self, number: int, _frame: FrameType | None) -> None:
        """Handle both signals. Both may come at once: the second must not stop the clean-up."""
        if self._is_taken:
            return
        self._is_taken = True
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(EXIT_CODES[signal.SIGTERM])

    def close(self) -> None:
        os.close(self.writing)
        self.thread.join()
        os.close(self._reading)

    def _run(self) -> None:
        while numbers := os.read(self._reading, 1):  # Python writes the number of each signal here at once
            if numbers[0] in EXIT_CODES and not self._ends_in_time():
                code = EXIT_CODES[signal.Signals(numbers[0])]
                try:
                    self._clean_up(code)
                finally:
                    end_at_once(code)

    def _ends_in_time(self) -> bool:
        signalled = time.monotonic()
        while True:
            bound = UNDO_SECONDS if self._is_taken else TAKEN_SECONDS
            left = signalled + bound - time.monotonic()
            if left <= 0:
                return False
            if select.select([self._reading], [], [], min(left, TAKEN_SECONDS))[0] and not os.read(self._reading, 16):
                return True


# The result of a verb: a value, a sentence, or one line of JSON, also for the termination log of Kubernetes.


def print_value(value: bytes, *, is_json: bool) -> None:
    """Write ``value`` and flush it: JSON as a line, a raw value byte for byte.

    Only a terminal gets a final newline, if the value has none.
    """
    ends_line = is_json or (sys.stdout.isatty() and not value.endswith(b"\n"))
    click.echo(value, nl=ends_line)


def say_of_failure(line: str | bytes) -> None:
    """Print ``line`` for a failed program, or drop it if standard output is closed: the failure keeps its exit code."""
    try:
        click.echo(line)
    except OSError:
        drop_unwritten()


def render_message(message: str) -> str:
    """Return the sentence about a result, for a terminal or a pipe."""
    return escape_controls(to_utf8(message))


@contextmanager
def report_outcome(path: Path | None, as_json: bool, **members: Any) -> Iterator[dict[str, Any]]:
    """Write the outcome of the block, with the members that it added: as JSON, or its message.

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
            say_of_failure(line)

    try:
        with ended_in_time(lambda code: write_failure(SystemExit(code))):
            yield result
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        write_failure(error)
        raise
    line = render_json({"exitCode": 0, **result})
    write_termination_log(path, line)
    click.echo(line if as_json else render_message(result["message"]))
