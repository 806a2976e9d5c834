"""The result of a verb that runs once: one line of JSON, and the termination log of Kubernetes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from lookupdb.cli.interruption import ended_in_time
from lookupdb.cli.options import F, option
from lookupdb.errors import LookupdbError
from lookupdb.runtime.standard_streams import drop_unwritten
from lookupdb.runtime.termination_log import describe_error, write_termination_log
from lookupdb.wording import render_json


def termination_log_option(command: F) -> F:
    """--termination-log."""
    return option(
        "--termination-log",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Also write the result here, failures too, in at most 4096 bytes.",
    )(command)


def json_option(command: F) -> F:
    """--json, of verbs whose result is JSON for a program and a message for a person, when they fail."""
    return click.option(
        "--json", "as_json", is_flag=True, help="On a terminal, too, write the result of a failure as JSON."
    )(command)


def prints_failures(as_json: bool) -> bool:
    """Whether the result of a failure is printed: a terminal gets its message alone, unless asked by --json."""
    return as_json or not sys.stdout.isatty()


def say_of_failure(line: str | bytes) -> None:
    """Print ``line`` of a program that has failed. What standard output does not take is dropped: the message and the
    exit code are those of the failure."""
    try:
        click.echo(line)
    except OSError:
        drop_unwritten()


class VerbResult(dict[str, Any]):
    """The members of the result that are known so far."""


@contextmanager
def report_outcome(path: Path | None, as_json: bool, **members: Any) -> Iterator[VerbResult]:
    """Write how the block ends, with the members that it has added, whatever the end. SIGINT and SIGTERM end it
    soon, also while a bucket does not answer."""
    began = time.monotonic()
    result = VerbResult(members)

    def write_failure(error: BaseException) -> None:
        seconds = round(time.monotonic() - began, 3)
        line = render_json({**result, "outcome": "failed", "seconds": seconds, **_describe_failure(error)})
        write_termination_log(path, line)
        if prints_failures(as_json):
            say_of_failure(line)

    try:
        with ended_in_time(lambda code: write_failure(SystemExit(code))):
            yield result
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        write_failure(error)
        raise
    line = render_json({"exitCode": 0, **result})
    write_termination_log(path, line)
    click.echo(line)


def _describe_failure(error: BaseException) -> dict[str, Any]:
    if isinstance(error, KeyboardInterrupt | SystemExit):
        code = 130 if isinstance(error, KeyboardInterrupt) else int(error.code or 0)
        return {"exitCode": code, "reason": "Interrupted", "message": "it was interrupted, and can be run again"}
    return describe_error(
        error if isinstance(error, LookupdbError) else LookupdbError(f"{type(error).__name__}: {error}")
    )
