"""Standard outputs that take nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

Output = Callable[[], AbstractContextManager[int]]
"""A descriptor, which is closed at the end."""


@contextmanager
def full() -> Iterator[int]:
    """A full disk."""
    with Path("/dev/full").open("wb") as file:
        yield file.fileno()


@contextmanager
def gone() -> Iterator[int]:
    """A pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)
