"""Logging: one line per event, to standard error, as text or JSON. Lookups are never logged."""

from __future__ import annotations

import datetime
import logging
from typing import Any, Final, Literal

from lookupdb.wording import escape_controls, render_json

_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(style: Literal["text", "json"] | str, level: int = logging.INFO) -> None:
    """Send all log records to standard error in ``style``; fields given as ``extra=`` follow the message."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}


def _format_time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _extra_fields(record).items())
        source = record.name.removeprefix("lookupdb.")
        line = f"{_format_time(record)} {record.levelname:<7} {source}: {record.getMessage()}{fields}"
        return escape_controls(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _format_time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return render_json({**entry, **_extra_fields(record)}, default=str).decode()
