"""``python -m lookupdb.process.start MODULE …`` calls the module's ``start()``: the entry of supervisors and workers.

Few of them use TLS, yet asyncio and uvloop import it: 1 MB in each process, and 4 MB of mapped OpenSSL.
"""

from __future__ import annotations

import importlib
import sys
import types


class _NoTls(types.ModuleType):
    """Replaces ``ssl``: its classes and numbers can be compared with, but not used."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        stand_in: object = 0 if name.isupper() else type(name, (Exception,), {})
        setattr(self, name, stand_in)
        return stand_in


def leave_out_tls() -> None:
    """Replace ``ssl`` for later imports."""
    sys.modules["ssl"] = _NoTls("ssl")


def take_in_tls() -> None:
    """Restore ``ssl`` for later imports, in a process that uses TLS itself and not through asyncio."""
    if not hasattr(sys.modules.get("ssl"), "__file__"):
        sys.modules.pop("ssl", None)


if __name__ == "__main__":
    leave_out_tls()
    del sys.argv[0]
    importlib.import_module(sys.argv[0]).start()
