"""``python -m lookupdb.process.start MODULE …`` calls the module's ``start()``: the entry of supervisors and workers.

Few of them use TLS, yet asyncio and uvloop import it: 1 MB in each process, and 4 MB of mapped OpenSSL.
"""

from __future__ import annotations

import importlib
import sys
import types


def leave_out_tls() -> None:
    """Replace ``ssl`` for later imports. Its classes and numbers can be compared with, but not used."""
    sys.modules["ssl"] = types.ModuleType("ssl")
    vars(sys.modules["ssl"])["__getattr__"] = _stand_in


def _stand_in(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    return 0 if name.isupper() else type(name, (Exception,), {})


def take_in_tls() -> None:
    """Restore ``ssl`` for later imports, in a process that uses TLS itself and not through asyncio."""
    if not hasattr(sys.modules.get("ssl"), "__file__"):
        sys.modules.pop("ssl", None)


if __name__ == "__main__":
    leave_out_tls()
    del sys.argv[0]
    importlib.import_module(sys.argv[0]).start()
