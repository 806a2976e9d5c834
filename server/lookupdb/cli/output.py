"""Write the output of commands: the JSON result of a run, and keys and values as text."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from lookupdb.cli.options import option
from lookupdb.cli.program import ended_in_time
from lookupdb.errors import LookupdbError
from lookupdb.process.launch import describe_error, drop_unwritten, write_termination_log
from lookupdb.store.stored_generation import MAX_VALUE_BYTES, MAX_VALUE_CHARACTERS
from lookupdb.wording import escape_controls, needs_escape, render_json, shorten, to_utf8

# The result of a verb that runs once: a sentence, or one line of JSON, which the termination log of Kubernetes gets.


termination_log_option = option(
    "--termination-log",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the result, or the failure, to this file, in at most 4096 bytes.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result, or the failure, as JSON.")


def say_of_failure(line: str | bytes) -> None:
    """Print ``line`` for a failed program, or drop it if standard output is closed: the failure keeps its exit code."""
    try:
        click.echo(line)
    except OSError:
        drop_unwritten()


class VerbResult(dict[str, Any]):
    """The members of the result so far."""


def render_message(message: str) -> str:
    """Return the sentence about a result, for a terminal or a pipe."""
    return escape_controls(to_utf8(message))


@contextmanager
def report_outcome(path: Path | None, as_json: bool, **members: Any) -> Iterator[VerbResult]:
    """Write the outcome of the block, with the members that it added: as JSON, or its message.

    SIGINT and SIGTERM end it soon, also while a bucket does not answer.
    """
    began = time.monotonic()
    result = VerbResult(members)

    def write_failure(error: BaseException) -> None:
        seconds = round(time.monotonic() - began, 3)
        line = render_json({**result, "outcome": "failed", "seconds": seconds, **_describe_failure(error)})
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


def _describe_failure(error: BaseException) -> dict[str, Any]:
    if isinstance(error, KeyboardInterrupt | SystemExit):
        code = 130 if isinstance(error, KeyboardInterrupt) else int(error.code or 0)
        return {"exitCode": code, "reason": "Interrupted", "message": "it was interrupted; run it again"}
    return describe_error(
        error if isinstance(error, LookupdbError) else LookupdbError(f"{type(error).__name__}: {error}")
    )


# Keys and values as ``inspect`` and ``diff`` write them: text unchanged, other bytes in Python's notation.


_ELLIPSIS: Final = "…"


def render_line(data: bytes, characters: int = MAX_VALUE_CHARACTERS) -> str:
    """Return ``data`` in one line of at most ``characters``, with an ellipsis if there is more.

    Control characters in text are escaped, as \\n or \\x1b; then a backslash is \\\\. Bytes that are not UTF-8 are
    written in quotes, as Python writes them: '\\x89PNG'.
    """
    text = _decode(data)
    if text is None:
        return _render_bytes(data, characters)
    if not any(map(needs_escape, text)):
        return shorten(text, characters)
    return _escape(text, characters)


def render_member(data: bytes) -> str:
    """Return ``data`` as a string for JSON, cut if it is long. Bytes that are not UTF-8 are as in ``render_line``."""
    text = _decode(data)
    return _render_bytes(data, MAX_VALUE_CHARACTERS) if text is None else shorten(text, MAX_VALUE_CHARACTERS)


def _decode(data: bytes) -> str | None:
    """Return the text, or None if ``data`` is not UTF-8. A cut value may end within a character."""
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
    """Return ``data`` as Python writes bytes, without the b and with whole bytes only."""
    kept, shown = data, repr(data)[1:]
    while (excess := len(shown) - characters) > 0:
        kept = kept[: -((excess + 3) // 4)]  # a byte has at most four characters
        shown = repr(kept)[1:]
    return shown if len(kept) == len(data) else shown + _ELLIPSIS


def print_value(value: bytes, *, is_json: bool) -> None:
    """Write ``value`` and flush it: JSON as a line, a raw value byte for byte.

    Only a terminal gets a final newline, if the value has none.
    """
    ends_line = is_json or (sys.stdout.isatty() and not value.endswith(b"\n"))
    click.echo(value, nl=ends_line)
