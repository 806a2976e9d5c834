"""``python -m lookupdb.process.start MODULE …`` calls ``start()`` of the module: supervisors and workers begin here.

Hardly any of them speaks TLS, yet asyncio and uvloop import it: 1 MB of each process, and 4 MB of OpenSSL to map.
"""

from __future__ import annotations

import importlib
import sys
import types


class _NoTls(types.ModuleType):
    """Stands for ``ssl``: its classes and numbers are there to be compared with, and nothing can be made of them."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        stand_in: object = 0 if name.isupper() else type(name, (Exception,), {})
        setattr(self, name, stand_in)
        return stand_in


def leave_out_tls() -> None:
    """Let what is imported from here on do without ``ssl``."""
    sys.modules["ssl"] = _NoTls("ssl")


def take_in_tls() -> None:
    """Let what is imported from here on have ``ssl``, in a process that speaks TLS itself: not by asyncio."""
    if not hasattr(sys.modules.get("ssl"), "__file__"):
        sys.modules.pop("ssl", None)


if __name__ == "__main__":
    leave_out_tls()
    del sys.argv[0]
    importlib.import_module(sys.argv[0]).start()
