"""Tells a process from those that it was forked from: their connections are not its own."""

from __future__ import annotations

import os
import threading

_epoch = object()
_lock = threading.Lock()


def current_epoch() -> object:
    """The same object for as long as the process is the same."""
    return _epoch


def process_lock() -> threading.Lock:
    """Held for moments, to begin anew in a process: several threads may be the first to notice that it is another one.
    No thread of a parent holds it."""
    return _lock


def _begin() -> None:
    global _epoch, _lock
    _epoch, _lock = object(), threading.Lock()


os.register_at_fork(after_in_child=_begin)
