"""Makes the files for the ways of holding the records, from a seed: ``python materials.py FOLDER RECORDS WAY...``.

It runs in its own process, because a pickle needs all records in memory. Existing files are kept.
"""

from __future__ import annotations

import json
import os
import pickle
import shelve
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks import datasets, generators
from benchmarks.peers import lookupdb

import ways


def make(folder: Path, records: int, names: Iterable[str]) -> None:
    """Make the files of the ways ``names`` in another process. Raises CalledProcessError after an error was printed."""
    subprocess.run([sys.executable, __file__, str(folder), str(records), *names], check=True)


def make_source(folder: Path, records: int, seed: int = generators.SEED) -> Path:
    """Write the records as JSON lines."""
    path = folder / ways.SOURCE
    generators.write("recommendations", records, path, seed)
    return path


def make_pickle(folder: Path) -> None:
    """Write the pickled dict."""
    unfinished = folder / f"{ways.PICKLE}.tmp"
    with unfinished.open("wb") as file:
        pickle.dump(ways.load_dict(folder), file, protocol=pickle.HIGHEST_PROTOCOL)
    unfinished.rename(folder / ways.PICKLE)


def make_shelf(folder: Path) -> None:
    """Write the records into a shelf."""
    with (folder / ways.SOURCE).open() as file, shelve.open(str(folder / ways.SHELF), flag="n") as shelf:
        for record in map(json.loads, file):
            shelf[record["customer"]] = record["products"]


def make_generation(folder: Path, source_folder: Path | None = None) -> None:
    """Build the dataset's next generation by `lookupdb build`, from the source in ``source_folder`` or ``folder``."""
    source = (source_folder or folder) / ways.SOURCE
    manifest = datasets.manifest(folder, "recommendations", source, shards=4, compression="zstd")
    lookupdb.build(manifest, folder / ways.STORE)
    os.sync()  # pages that are not on disk yet would count as memory of the processes that map them


def _main(folder: Path, records: int, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ways.SOURCE).exists():
        make_source(folder, records)
    if "pickle" in names and not (folder / ways.PICKLE).exists():
        make_pickle(folder)
    if "shelve" in names and not list(folder.glob(f"{ways.SHELF}*")):
        make_shelf(folder)
    if "lookupdb" in names and not (folder / ways.STORE).exists():
        make_generation(folder)


if __name__ == "__main__":
    try:
        _main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    except KeyboardInterrupt:
        sys.exit(130)
