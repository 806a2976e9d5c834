"""How a program of the command line ends: with an exit code, and a sentence where it has failed."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import NoReturn

import click

from lookupdb.errors import LookupdbError, NotEnoughRoom
from lookupdb.runtime.launch import end_interrupted, end_with_message
from lookupdb.runtime.standard_streams import drop_refused_messages, drop_unwritten, open_closed_streams


def run_program(run: Callable[[], int | None], describe: Callable[[LookupdbError], str] = str) -> NoReturn:
    """Run a program to its end: ``run``, which returns its exit code, or nothing. ``describe`` makes the sentence of an
    error. Messages that standard error does not take change no exit code."""
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
        unwritten = _find_unwritten(error)
        end_with_message(describe(unwritten), unwritten.exit_code)


def _find_unwritten(error: OSError) -> NotEnoughRoom:
    """The error of a program whose standard output takes no more, for its disk is full. Raises any other ``error``."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
        raise error
    drop_unwritten()
    return NotEnoughRoom(
        f"standard output cannot be written: {error.strerror}",
        hint="what has been written is not whole: make room where it goes",
    )
