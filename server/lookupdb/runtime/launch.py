"""How a server starts: the command line reads its options, and then becomes the supervisor by exec.

What reads options (click, YAML, the CRD's schema) would stay in the memory of every pod for as long as it lives. By
exec it goes, and the process keeps its id, its files, its environment and its words in a process listing.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import orjson

from lookupdb import logs
from lookupdb.errors import LookupdbError


def become_supervisor(role: str, settings: Mapping[str, Any]) -> NoReturn:
    """Replace this program by one that calls ``run(settings)`` of the module ``role``.

    ``settings`` is any JSON with a member ``log_format``. It travels in a memory file, because a process listing would
    show a password.
    """
    fd = os.memfd_create("lookupdb-supervisor", 0)  # inherited
    os.pwrite(fd, orjson.dumps(settings), 0)
    sys.stdout.flush()
    sys.stderr.flush()
    words = [sys.executable, "-P", "-m", __name__, str(fd), role, *sys.argv[1:]]
    os.execv(sys.executable, words)  # noqa: S606 - no shell is needed


def end_with_error(error: LookupdbError) -> NoReturn:
    """End the program as every verb ends: with a sentence and its exit code."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)


def end_interrupted() -> NoReturn:
    """End the program as Ctrl-C ends it."""
    print("interrupted", file=sys.stderr)
    sys.exit(130)


def leave_out_tls() -> None:
    """Let asyncio, once it is imported, do without ssl: nothing here speaks TLS, and it would take 2 MB."""
    sys.modules["ssl"] = None  # type: ignore[assignment]


def main() -> None:
    """Be the supervisor: the program after exec."""
    leave_out_tls()
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        settings = orjson.loads(file.read())
    logs.configure_logging(settings["log_format"])
    try:
        importlib.import_module(sys.argv[2]).run(settings)
    except KeyboardInterrupt:
        end_interrupted()
    except LookupdbError as error:
        end_with_error(error)


if __name__ == "__main__":
    main()
