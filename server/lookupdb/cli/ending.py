"""How a verb that runs once tells its end: one line of JSON, and where Kubernetes looks for it."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
import orjson

from lookupdb.cli.options import F, option
from lookupdb.errors import LookupdbError

log = logging.getLogger(__name__)

_MAX_MESSAGE: Final = 500
"""Characters: with all else, and escaped, it is less than the 4096 bytes that Kubernetes keeps."""


def termination_log(command: F) -> F:
    """--termination-log."""
    return option(
        "--termination-log",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Also write the result here, failures too, in at most 4096 bytes.",
    )(command)


class Told(dict[str, Any]):
    """Members of the result, as far as they are known."""


@contextmanager
def told(path: Path | None, **members: Any) -> Iterator[Told]:
    """Tell how the block ends, with what it has added to the members, whatever the end. SIGTERM ends it cleanly."""
    began = time.monotonic()
    result = Told(members)
    try:
        with exits_on_sigterm():
            yield result
        _tell(path, {"exitCode": 0, **result})
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        seconds = round(time.monotonic() - began, 3)
        _tell(path, {**result, "outcome": "failed", "seconds": seconds, **_why(error)})
        raise


@contextmanager
def exits_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as cleanly as Ctrl-C does."""
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _why(error: BaseException) -> dict[str, Any]:
    if isinstance(error, KeyboardInterrupt | SystemExit):
        code = 130 if isinstance(error, KeyboardInterrupt) else int(error.code or 0)
        return {"exitCode": code, "reason": "Interrupted", "message": "it was interrupted, and can be run again"}
    known = error if isinstance(error, LookupdbError) else LookupdbError(f"{type(error).__name__}: {error}")
    return {"exitCode": known.exit_code, "reason": known.reason, "message": str(known)[:_MAX_MESSAGE]}


def _tell(path: Path | None, result: dict[str, Any]) -> None:
    line = orjson.dumps(result)
    click.echo(line)
    write_termination_log(path, line)


def write_termination_log(path: Path | None, line: bytes) -> None:
    """Leave ``line`` where Kubernetes looks for it. That it cannot be left there changes nothing about the end."""
    if path is None:
        return
    try:
        path.write_bytes(line)
    except OSError as error:
        log.warning("cannot write the termination log", extra={"path": str(path), "reason": error.strerror})


def _terminate(_number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signal.SIGTERM)
