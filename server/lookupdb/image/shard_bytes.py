"""The bytes of a shard's file as they pass, from a folder or a store, verified at their end. Nothing is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lookupdb.disk import opening_error, reading_error
from lookupdb.errors import CorruptFile, StoreError
from lookupdb.manifest import ShardFile
from lookupdb.store.retry import call_with_retries
from lookupdb.store.stored_generation import StoredGeneration

_CHUNK: Final = 1 << 20


def read_shard(generation: StoredGeneration, entry: ShardFile, patience: float) -> Iterator[bytes]:
    """The file's bytes; after an error of the store it goes on where it broke off, for ``patience`` seconds without
    any. Raises StoreError, and CorruptFile before the last byte is handed on unless size and checksum are what the
    manifest says: whoever sends them never sends a whole file that is damaged."""
    digest, size = hashlib.sha256(), 0
    held = b""
    for chunk in _read(generation, entry, patience):
        if held:
            yield held
        held = bytes(chunk)
        digest.update(held)
        size += len(held)
    for what, expected, found in (("bytes", entry.bytes, size), ("sha256", entry.sha256, digest.hexdigest())):
        if expected != found:
            raise CorruptFile(
                f"{entry.file} in {generation.where} has {what} {found}, its manifest says {expected}",
                hint="the generation is damaged: build another",
            )
    if held:
        yield held


def _read(generation: StoredGeneration, entry: ShardFile, patience: float) -> Iterator[bytes]:
    if isinstance(generation.place, Path):
        yield from _read_file(generation.place / entry.file)
        return
    place, name, received = generation.place, generation.manifest.generation, 0
    source = place.read(name, entry)

    def chunk() -> bytes | None:
        nonlocal source
        try:
            return next(source, None)
        except StoreError:
            source = place.read(name, entry, received)
            raise

    while received < entry.bytes and (data := call_with_retries(chunk, patience)) is not None:
        received += len(data)
        yield data


def _read_file(path: Path) -> Iterator[bytes]:
    position = 0
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise opening_error(path, error.errno or 0) from error
    with file:
        while True:
            try:
                chunk = file.read(_CHUNK)
            except OSError as error:
                raise reading_error(path, position, error.errno or 0) from error
            if not chunk:
                return
            position += len(chunk)
            yield chunk
