"""The extras of lookupdb: `pip install lookupdb` brings the client and `lookupdb.open`, and a command needs more."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final

from lookupdb.errors import UsageError

_UP: Final = (
    "history",
    "logs",
    "ls",
    "override-gates",
    "pin",
    "promote",
    "refresh",
    "reject",
    "rollback",
    "status",
    "top",
    "unpin",
    "up",
)
"""Commands for a ``lookupdb up``, which needs both extras too."""

EXTRAS: Final = {
    "build": (
        "duckdb",
        ("build", "copy", "diff", "image", "init", "inspect", "prune", "push", "sweep", "validate", *_UP),
    ),
    "serve": ("hiredis", ("fetch", "get", "load", "route", "serve", "sync", "token", *_UP)),
    "operator": ("kopf", ("console", "gateway", "operator", "kubectl-lookupdb")),
}
"""Extra → a package that comes with it alone, and the commands that need it."""


def check_extras(command: str) -> None:
    """Raise UsageError, with what to install, if an extra that ``command`` needs is missing."""
    check_installed("this command", [name for name, (_, commands) in EXTRAS.items() if command in commands])


def check_installed(what: str, extras: Iterable[str]) -> None:
    """Raise UsageError, with what to install, if one of the ``extras`` that ``what`` needs is missing."""
    missing = [name for name in extras if not find_spec(EXTRAS[name][0])]
    if missing:
        raise UsageError(
            f"{what} needs extras of lookupdb that are not installed: {', '.join(missing)}",
            hint=f"pip install 'lookupdb[{','.join(missing)}]'",
        )
