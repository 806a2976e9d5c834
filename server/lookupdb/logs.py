"""Logging: one line per event, to standard error, as text or JSON. Lookups are never logged."""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, Literal

from lookupdb.wording import escape_controls, render_json

LOG_FILE: Final = "LOOKUPDB_LOG_FILE"
"""The variable with the file to which `lookupdb up` lets a build write its log, besides the terminal."""
_context: ContextVar[Mapping[str, str]] = ContextVar("log_fields", default=MappingProxyType({}))
_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(style: Literal["text", "json"] | str, level: int = logging.INFO) -> None:
    """Send all log records to standard error in ``style``; fields given as ``extra=`` follow the message. If LOG_FILE
    names a file, it gets them as text, too."""
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    handlers[0].setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    if path := os.environ.get(LOG_FILE):
        handlers.append(logging.FileHandler(path))
        handlers[1].setFormatter(_TextFormatter())
    logging.basicConfig(level=level, handlers=handlers, force=True)


@contextmanager
def log_fields(**fields: str | None) -> Iterator[None]:
    """Add ``fields`` to the JSON lines that this thread or task logs in the block; None adds nothing."""
    given = {name: value for name, value in fields.items() if value is not None}
    token = _context.set({**_context.get(), **given})
    try:
        yield
    finally:
        _context.reset(token)


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
        return render_json({**entry, **_context.get(), **_extra_fields(record)}, default=str).decode()
