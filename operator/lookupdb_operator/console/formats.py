"""Formats of columns, ages and sizes. Text from a cluster becomes one line without control characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from lookupdb_operator.model import parse_moment

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_TWO_UNITS_BELOW: Final = 10
"""Below this number of units, the next smaller unit is shown too: 3 h 20 min."""
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def format_columns(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Return ``rows`` with aligned columns; the last cell of a row may have any length."""
    rows = [[clean(cell) for cell in row] for row in rows]
    columns = max(map(len, rows), default=0)
    widths = [max((len(row[i]) for row in rows if i + 1 < len(row)), default=0) for i in range(columns)]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows
    ]


def clean(text: str) -> str:
    """Return ``text`` on one line, without control characters for a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def format_age(moment: str, now: datetime) -> str:
    """Return the age of ``moment``, as "3 h 20 min"; empty if it is empty, "?" if it is not a time."""
    if not moment:
        return ""
    try:
        seconds = (now - parse_moment(moment)).total_seconds()
    except ValueError:
        return "?"
    return format_seconds(max(0.0, seconds))


def format_until(moment: str, now: datetime) -> str:
    """Return the time until ``moment``: "in 3 h 20 min", or "now" if it has passed."""
    try:
        seconds = (parse_moment(moment) - now).total_seconds()
    except ValueError:
        return "?"
    return f"in {format_seconds(seconds)}" if seconds >= 1 else "now"


def format_seconds(seconds: float) -> str:
    """Return "45 s", "3 h 20 min" or "12 d"."""
    whole = int(seconds)
    for i, (size, unit) in enumerate(_UNITS):
        if whole >= size:
            count, rest = divmod(whole, size)
            smaller, name = _UNITS[i + 1] if i + 1 < len(_UNITS) else (1, "")
            more = f" {rest // smaller} {name}" if name and count < _TWO_UNITS_BELOW and rest // smaller else ""
            return f"{count} {unit}{more}"
    return "0 s"


def format_bytes(size: float) -> str:
    """Return a size as "12.3 MiB"."""
    for unit in _BINARY[:-1]:
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_BINARY[-1]}"
