"""How a server starts: the command line reads its options, and then becomes the supervisor by exec.

What reads options (click, YAML, the CRD's schema) would stay in the memory of every pod for as long as it lives. By
exec it goes, and the process keeps its id, its files, its environment and its words in a process listing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import orjson

from lookupdb import logs
from lookupdb.errors import LookupdbError
from lookupdb.runtime.standard_streams import drop_refused_messages
from lookupdb.wording import check_path, escape_controls


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
    words = [sys.executable, "-P", "-m", "lookupdb.runtime.start", role, str(fd), *sys.argv[1:]]
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
