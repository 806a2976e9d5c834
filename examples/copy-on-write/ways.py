"""The ways to hold the records: each gives a mapping from a customer to ten product ids.

``application`` uses one of these ways; ``materials`` makes their files.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import shelve
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SOURCE: Final = "records.jsonl"
PICKLE: Final = "records.pickle"
SHELF: Final = "records.shelf"
STORE: Final = "store"
"""The files in the folder of the demonstration."""

Records = Mapping[str, Any]


def load_dict(folder: Path) -> Records:
    """Parse the file into a dict, as most services do."""
    with (folder / SOURCE).open() as file:
        return {record["customer"]: record["products"] for record in map(json.loads, file)}


def load_frozen_dict(folder: Path) -> Records:
    """Do the same as Python's documentation of ``gc.freeze`` advises before a fork: collect no garbage until the fork,
    and never among the loaded objects."""
    gc.disable()
    records = load_dict(folder)
    gc.freeze()
    os.register_at_fork(after_in_child=gc.enable)
    return records


def load_pickle(folder: Path) -> Records:
    """Load a pickled dict."""
    with (folder / PICKLE).open("rb") as file:
        records: Records = pickle.load(file)
    return records


def open_shelf(folder: Path) -> Records:
    """Open a shelf, in the best format that this Python has: ``dbm.gnu``, ``dbm.ndbm`` or ``dbm.dumb``."""
    return shelve.open(str(folder / SHELF), flag="r")


def open_lookupdb(folder: Path) -> Records:
    """Map the files of the newest generation."""
    import lookupdb

    mapping: Records = lookupdb.open(dataset_folder(folder))
    return mapping


def dataset_folder(folder: Path) -> Path:
    """Return the folder of the dataset's generations in the store."""
    return next((folder / STORE).glob("local/default/*"))


@dataclass(frozen=True, slots=True)
class Way:
    """A way in which a service holds its records."""

    title: str
    hold: Callable[[Path], Records]
    is_preloaded: bool
    """True if gunicorn's master holds them before it forks its workers."""


WAYS: Final = {
    "each": Way("dict, loaded by each worker", load_dict, is_preloaded=False),
    "dict": Way("dict, loaded before the fork", load_dict, is_preloaded=True),
    "frozen": Way("the same, and gc.freeze()", load_frozen_dict, is_preloaded=True),
    "pickle": Way("pickle, loaded before the fork", load_pickle, is_preloaded=True),
    "shelve": Way("shelve, opened by each worker", open_shelf, is_preloaded=False),
    "lookupdb": Way("lookupdb.open(), before the fork", open_lookupdb, is_preloaded=True),
}
