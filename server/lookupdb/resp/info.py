"""INFO: sections of fields in Redis' form."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from lookupdb import __version__
from lookupdb.resp.commands import REDIS_VERSION

ServerT = TypeVar("ServerT")

InfoFields = dict[str, Any]


def render_sections(
    sections: Mapping[str, Callable[[ServerT], InfoFields]], server: ServerT, names: Iterable[str]
) -> str:
    """The ``sections`` called ``names``, each once; all of them for none, ``default``, ``all`` or ``everything``."""
    names = list(dict.fromkeys(name.lower() for name in names))
    if not names or {"default", "all", "everything"} & set(names):
        names = list(sections)
    rendered = []
    for name in names:
        if name in sections:
            lines = [f"{field}:{value}" for field, value in sections[name](server).items()]
            rendered.append("\r\n".join([f"# {name.capitalize()}", *lines, ""]))
    return "\r\n".join(rendered)


def describe_server(port: int, started_at: float) -> InfoFields:
    """The section ``server`` of this process, which listens on ``port`` since ``started_at`` of the monotonic clock."""
    seconds = int(time.monotonic() - started_at)
    return {
        "redis_version": REDIS_VERSION,
        "redis_mode": "standalone",
        "server_name": "lookupdb",
        "lookupdb_version": __version__,
        "process_id": os.getpid(),
        "tcp_port": port,
        "uptime_in_seconds": seconds,
        "uptime_in_days": seconds // 86400,
    }
