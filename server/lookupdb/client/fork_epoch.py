"""Tells a process from those that it was forked from: their connections are not its own."""

from __future__ import annotations

import os

_epoch = object()


def current_epoch() -> object:
    """The same object for as long as the process is the same."""
    return _epoch


def _begin() -> None:
    global _epoch  # noqa: PLW0603 - it stands for the process, of which there is one
    _epoch = object()


os.register_at_fork(after_in_child=_begin)
