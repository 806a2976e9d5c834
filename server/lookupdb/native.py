"""Choose between the native kernels (``server/native``, in Rust) and the Python fallback.

Both give the same bytes; docs/concepts/architecture.md describes the boundary. ``LOOKUPDB_NATIVE=0`` selects Python,
``LOOKUPDB_NATIVE=1`` requires the kernels; by default they are used if they are installed.
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
"""The interface between Python and the kernels. A module that was built with another interface is never used."""
VARIABLE: Final = "LOOKUPDB_NATIVE"

_HINT: Final = "build them with `make native` or `pip install .` if cargo is installed, or unset LOOKUPDB_NATIVE"


def kernels() -> ModuleType | None:
    """Return the native kernels; None to use the Python fallback.

    Raises UsageError if ``LOOKUPDB_NATIVE=1`` cannot be satisfied, or if the value is neither 0 nor 1.
    """
    value = os.environ.get(VARIABLE, "")
    if value == "0":
        return None
    if value not in ("", "1"):
        raise UsageError(
            f"{VARIABLE}: expected 0 or 1, found {value!r}", hint="0 selects Python, 1 requires the kernels"
        )
    module, reason = _load()
    if value == "1" and module is None:
        raise UsageError(f"{VARIABLE}=1 requires native kernels: {reason}", hint=_HINT)
    return module


def set_aside(reason: str) -> None:
    """Log that Python replaces a native kernel, and why. Raises UsageError if ``LOOKUPDB_NATIVE=1``."""
    if os.environ.get(VARIABLE) == "1":
        raise UsageError(f"{VARIABLE}=1 requires native kernels: {reason}", hint="unset LOOKUPDB_NATIVE")
    log.warning("Python replaces a native kernel: %s", reason)


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
    """Return the native kernels, or None and why they cannot be used."""
    try:
        module = importlib.import_module("lookupdb._native")
    except ModuleNotFoundError:
        return None, "native ones are not installed"
    except ImportError as error:
        return None, f"native ones cannot be loaded: {error}"
    # The checkout was updated but not rebuilt, or the file is left from another version.
    if getattr(module, "INTERFACE", None) != xxhash.xxh3_64_intdigest(INTERFACE.read_bytes()):
        return None, "native ones were built from other code"
    return module, ""
