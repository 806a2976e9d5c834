"""How the value of a single key is written to standard output."""

from __future__ import annotations

import sys

import click


def print_value(value: bytes, *, is_json: bool) -> None:
    """Write ``value``, and flush it: JSON as a line; a raw value byte for byte, so that it can be put into a file. Only
    a terminal gets an end of line with it, if it has none."""
    ends_line = is_json or (sys.stdout.isatty() and not value.endswith(b"\n"))
    click.echo(value, nl=ends_line)
