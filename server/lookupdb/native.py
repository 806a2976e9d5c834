"""The one place that chooses between the native kernels (``server/native``, in Rust) and their twins in Python.

Both give the same bytes; docs/concepts/architecture.md has the boundary. ``LOOKUPDB_NATIVE=0`` takes the twins,
``LOOKUPDB_NATIVE=1`` refuses to go on without the kernels, else they are used where they are installed.
"""

from __future__ import annotations

import importlib
import logging
import os
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final, Literal

import xxhash

from lookupdb.errors import UsageError

log = logging.getLogger(__name__)

INTERFACE: Final = Path(__file__).with_name("_native.pyi")
"""What Python and the kernels expect of each other. A module that was built with another one is never used."""
VARIABLE: Final = "LOOKUPDB_NATIVE"

_HINT: Final = "build them with `make native` or `pip install .` where cargo is, or leave LOOKUPDB_NATIVE away"


def kernels() -> ModuleType | None:
    """Return the native kernels, or None where their twins are to be used.

    Raises UsageError when ``LOOKUPDB_NATIVE=1`` cannot be had, or the variable has another value.
    """
    value = os.environ.get(VARIABLE, "")
    if value == "0":
        return None
    if value not in ("", "1"):
        raise UsageError(f"{VARIABLE}: expected 0 or 1, found {value!r}", hint="0 takes Python, 1 demands the kernels")
    module, reason = _load()
    if value == "1" and module is None:
        raise UsageError(f"{VARIABLE}=1 demands native kernels: {reason}", hint=_HINT)
    return module


def set_aside(reason: str) -> None:
    """Say that a native kernel's twin takes its place, and why. Raises UsageError when ``LOOKUPDB_NATIVE=1`` demands
    it.
    """
    if os.environ.get(VARIABLE) == "1":
        raise UsageError(f"{VARIABLE}=1 demands native kernels: {reason}", hint="leave LOOKUPDB_NATIVE away")
    log.warning("Python takes the place of a native kernel: %s", reason)


def kind() -> Literal["native", "python"]:
    """Return which kernels are used, in a word, for logs and statuses."""
    return "python" if kernels() is None else "native"


def describe() -> str:
    """Return which kernels are used, and why, in a few words for people."""
    if kernels() is not None:
        return "native kernels"
    reason = f"{VARIABLE}=0" if os.environ.get(VARIABLE) == "0" else _load()[1]
    return f"Python kernels: {reason}"


@cache
def _load() -> tuple[ModuleType | None, str]:
    """Return the native kernels, or None and why they cannot be used. Whoever does not want them does not load them."""
    try:
        module = importlib.import_module("lookupdb._native")
    except ModuleNotFoundError:
        return None, "native ones are not installed"
    except ImportError as error:
        return None, f"native ones cannot be loaded: {error}"
    # A checkout whose code was pulled and not built; or a file of another version that an installation left behind.
    if getattr(module, "INTERFACE", None) != xxhash.xxh3_64_intdigest(INTERFACE.read_bytes()):
        return None, "native ones were built from other code"
    return module, ""
