"""The common part of long-running processes: supervisor, workers, counters, admin port, memory figures.

``admin`` runs a role (serve, route). ``worker`` is the worker's side; it imports little, because every worker pays
for each import. A process's command line is ``START`` and the name of a module, whose ``start()`` it calls.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Final

START: Final = (sys.executable, "-P", "-c", "from lookupdb import process; process.start()")
"""The beginning of a supervisor's or worker's command line; a module and its arguments follow."""


def start() -> None:
    """Run the module that the command line names, without ssl. asyncio and uvloop import ssl, but few processes use it,
    and it takes 1 MB in each process, and 4 MB of mapped OpenSSL."""
    leave_out_tls()
    del sys.argv[0]
    importlib.import_module(sys.argv[0]).start()


def leave_out_tls() -> None:
    """Replace ``ssl`` for later imports by a module whose names serve only for comparisons, as in ``except
    ssl.SSLError``.
    """
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
