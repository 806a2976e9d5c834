"""Whether the files of a generation are whole that has been served, asked when a server of it does not start again.

A server may not start for want of memory, of processes or of disk: another generation would fare no better. So the
files themselves are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lookupdb.errors import CorruptFile, StoreError
from lookupdb.manifest import FILE_NAME, Manifest
from lookupdb.store.dataset import verify_shard_file

FAILED_STARTS: Final = 3
"""So many in a row, and the shard's file is looked at; then again at twice as many: all of it is read."""


class DamageWatch:
    """What is known against the files of the generation in ``folder``, which was served."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._due: dict[int, int] = {}
        """The failed starts of a shard at which its file is looked at next."""
        self.damage: str | None = None
        """Why it cannot be served; None while nothing is known."""

    def look(self, failed_starts: Sequence[int]) -> None:
        """Find out whether what has failed so often in a row, shard by shard, has failed for its files. What starts
        again is not damaged. Call it in a thread."""
        if max(failed_starts) < FAILED_STARTS:
            self.damage = None
            self._due.clear()
        for shard, failures in enumerate(failed_starts):
            if self.damage is None and failures >= self._due.get(shard, FAILED_STARTS):
                self._due[shard] = 2 * failures
                self.damage = find_damage(self._folder, self._manifest, shard)


def find_damage(folder: Path, manifest: Manifest, shard: int) -> str | None:
    """Return what is wrong with the files in ``folder`` of one shard of ``manifest``; None if nothing is, or if that
    cannot be told."""
    path = folder / FILE_NAME
    try:
        Manifest.from_json(path.read_bytes(), str(path))
        verify_shard_file(folder / manifest.shards[shard].file, manifest.shards[shard])
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} is missing"
    except CorruptFile as error:
        return error.message
    except (OSError, StoreError):
        return None
    return None
