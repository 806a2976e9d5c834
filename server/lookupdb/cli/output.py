"""How the value of a single key is written to standard output."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from lookupdb.cli.options import F, option
from lookupdb.cli.program import ended_in_time
from lookupdb.errors import LookupdbError
from lookupdb.process.launch import describe_error, drop_unwritten, write_termination_log
from lookupdb.store.difference import MAX_VALUE_BYTES, MAX_VALUE_CHARACTERS
from lookupdb.wording import needs_escape, render_json, shorten

# The result of a verb that runs once: one line of JSON, and the termination log of Kubernetes.


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


# How ``inspect`` and ``diff`` write keys and values: text as it is, other bytes as Python has them.


_ELLIPSIS: Final = "…"


def render_line(data: bytes, characters: int = MAX_VALUE_CHARACTERS) -> str:
    """Return ``data`` in one line of so many characters, and an ellipsis if there is more.

    Text is as it is. If it has control characters, these are escaped, as \\n or \\x1b, and a backslash is \\\\. What is
    not UTF-8 is in quotes, as Python writes bytes: '\\x89PNG'.
    """
    text = _decode(data)
    if text is None:
        return _render_bytes(data, characters)
    if not any(map(needs_escape, text)):
        return shorten(text, characters)
    return _escape(text, characters)


def render_member(data: bytes) -> str:
    """Return ``data`` as a string of a JSON document: text as it is, what is not UTF-8 as ``render_line`` has it. A
    long one is cut."""
    text = _decode(data)
    return _render_bytes(data, MAX_VALUE_CHARACTERS) if text is None else shorten(text, MAX_VALUE_CHARACTERS)


def _decode(data: bytes) -> str | None:
    """The text; None if ``data`` is not UTF-8. A sample of a longer value may end within a character."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=len(data) < MAX_VALUE_BYTES)
    except UnicodeDecodeError:
        return None


def _escape(text: str, characters: int) -> str:
    line = ""
    for character in text:
        is_escaped = character == "\\" or needs_escape(character)
        shown = character.encode("unicode_escape").decode() if is_escaped else character
        if len(line) + len(shown) > characters:
            return line + _ELLIPSIS
        line += shown
    return line


def _render_bytes(data: bytes, characters: int) -> str:
    """As Python writes bytes, without the b; only whole bytes are shown."""
    kept, shown = data, repr(data)[1:]
    while (excess := len(shown) - characters) > 0:
        kept = kept[: -((excess + 3) // 4)]  # a byte has at most four characters
        shown = repr(kept)[1:]
    return shown if len(kept) == len(data) else shown + _ELLIPSIS


def print_value(value: bytes, *, is_json: bool) -> None:
    """Write ``value``, and flush it: JSON as a line; a raw value byte for byte, so that it can be put into a file. Only
    a terminal gets an end of line with it, if it has none."""
    ends_line = is_json or (sys.stdout.isatty() and not value.endswith(b"\n"))
    click.echo(value, nl=ends_line)
