"""lookupdb: build, serve and route large, read-mostly lookup datasets.

This package is the data plane and the command line. It never imports kopf, kubernetes or
``lookupdb_operator``: a shard or router process needs nothing but its files.
"""

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Return ``lookupdb.open``, which opens a dataset as a mapping in this process. It is imported when first used."""
    if name == "open":
        return importlib.import_module("lookupdb.mapped").open_dataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "open"])
