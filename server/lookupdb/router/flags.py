"""The flags of `lookupdb route` for a dataset's ``spec.router``."""

from __future__ import annotations

from typing import Final

from lookupdb.dataset.spec import Router

FLAGS: Final = {
    "workers": "--workers",
    "deadline_milliseconds": "--deadline-ms",
    "hedge_milliseconds": "--hedge-ms",
    "max_keys": "--max-keys",
    "max_body_bytes": "--max-body-bytes",
    "max_connections": "--max-connections",
    "max_queued_keys": "--max-queued-keys",
    "header_timeout_seconds": "--header-timeout",
    "idle_timeout_seconds": "--idle-timeout",
    "write_timeout_seconds": "--write-timeout",
    "drain_seconds": "--drain-seconds",
    "cache_control": "--cache-control",
}


def render_flags(router: Router) -> dict[str, int | str]:
    """Return flag and value of each field that is set."""
    return {flag: value for field, flag in FLAGS.items() if (value := getattr(router, field)) is not None}
