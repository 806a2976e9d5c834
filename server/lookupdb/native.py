"""The one place that chooses between the native kernels (``server/native``, in Rust) and their twins in Python.

Both give the same bytes; docs/architecture.md says where the boundary lies. ``LOOKUPDB_NATIVE=0`` takes the twins,
``LOOKUPDB_NATIVE=1`` refuses to go on without the kernels, else they are used where they are installed.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Final

from lookupdb.errors import UsageError

INTERFACE: Final = 1
"""What Python and the kernels expect of each other. Another number means that the kernels are of other code."""
VARIABLE: Final = "LOOKUPDB_NATIVE"

_HINT: Final = "build them with `make test` or `pip install .` where cargo is, or leave LOOKUPDB_NATIVE away"

_found: ModuleType | None = None
_reason = ""
try:
    from lookupdb import _native
except ImportError as _error:
    _reason = f"they are not installed: {_error}"
else:
    if _native.INTERFACE == INTERFACE:
        _found = _native
    else:
        _reason = f"they were built from other code (interface {_native.INTERFACE}, this lookupdb has {INTERFACE})"


def kernels() -> ModuleType | None:
    """The native kernels, or None where their twins are to be used. Raises UsageError when ``LOOKUPDB_NATIVE=1`` cannot
    be had, or has another value."""
    wish = os.environ.get(VARIABLE, "")
    if wish == "0":
        return None
    if wish not in ("", "1"):
        raise UsageError(f"{VARIABLE}: expected 0 or 1, found {wish!r}", hint="0 takes Python, 1 demands the kernels")
    if wish == "1" and _found is None:
        raise UsageError(f"{VARIABLE}=1 demands the native kernels, but {_reason}", hint=_HINT)
    return _found


def describe() -> str:
    """What is used, in a few words, for people."""
    return "native kernels" if kernels() is not None else "Python kernels" + (f": {_reason}" if _reason else "")
