"""A whole generation, open for reading: from a store, or from a folder that holds its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from lookupdb.errors import CorruptFile, StoreError
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile
from lookupdb.shardfile import ShardReader
from lookupdb.store.dataset import StoredDataset, check_shard_size
from lookupdb.store.layout import parse_manifest
from lookupdb.wording import check_path


@dataclass(frozen=True, slots=True)
class StoredGeneration:
    """A manifest, and the place of its files."""

    where: str
    manifest: Manifest
    place: StoredDataset | Path

    @contextmanager
    def file(self, shard: ShardFile, scratch: Path) -> Iterator[Path]:
        """Return the file of one shard on this machine, with the size in the manifest; a copy, if one is needed, is in
        ``scratch`` and removed afterwards. Raises StoreError, CorruptFile."""
        with self._locate_file(shard, scratch) as path:
            check_shard_size(path, shard)
            yield path

    def check_files(self) -> None:
        """Raise CorruptFile if a shard's file is missing or has another size than in the manifest; StoreError
        (GenerationMissing if the generation was removed meanwhile). Reads no file."""
        try:
            self._check_files()
        except CorruptFile:
            if isinstance(self.place, StoredDataset):
                self.place.manifest(self.manifest.generation)
            raise

    def _check_files(self) -> None:
        folder = self.place if isinstance(self.place, Path) else self.place.local_path(self.manifest.generation)
        if folder is None:
            assert isinstance(self.place, StoredDataset)
            self.place.check_files(self.manifest)
            return
        for shard in self.manifest.shards:
            check_shard_size(folder / shard.file, shard)

    def _locate_file(self, shard: ShardFile, scratch: Path) -> AbstractContextManager[Path]:
        if isinstance(self.place, Path):
            return nullcontext(self.place / shard.file)
        return self.place.shard(self.manifest.generation, shard, scratch)

    @contextmanager
    def shards(self, scratch: Path, entries: Sequence[ShardFile] | None = None) -> Iterator[list[ShardReader]]:
        """Open every shard in order, or those of ``entries``. Raises StoreError, CorruptFile."""
        with ExitStack() as stack:
            shards = [
                stack.enter_context(open_shard(stack.enter_context(self.file(shard, scratch))))
                for shard in (self.manifest.shards if entries is None else entries)
            ]
            _share_inflaters(shards)
            yield shards


def _share_inflaters(shards: Sequence[ShardReader]) -> None:
    """Let shards with the same dictionary, as all of a generation have, share one copy of it: a processor's cache has
    no room for hundreds."""
    by_dictionary: dict[bytes, ShardReader] = {}
    for shard in shards:
        first = by_dictionary.setdefault(shard.dictionary, shard)
        shard.dictionary, shard.inflate = first.dictionary, first.inflate


def find_in_folder(folder: Path) -> StoredGeneration:
    """Return the generation whose manifest.json is in ``folder``. Raises StoreError, CorruptFile, and UsageError for a
    path that is not UTF-8."""
    check_path(folder)
    path = folder / FILE_NAME
    try:
        text = path.read_bytes()
    except OSError as error:
        raise StoreError(
            f"{folder} holds no whole generation: {path}: {error.strerror}",
            hint="give the folder that holds manifest.json and the shard files, or gN with --store and --dataset",
        ) from error
    return StoredGeneration(str(folder), parse_manifest(text, str(path)), folder)


def find_shard_entry(path: Path) -> ShardFile:
    """Return the entry of a shard file in the manifest.json beside it. Raises StoreError, CorruptFile."""
    for shard in find_in_folder(path.parent).manifest.shards:
        if shard.file == path.name:
            return shard
    raise StoreError(f"{path.parent / FILE_NAME} names no {path.name}")


def find_in_store(dataset: StoredDataset, generation: str) -> StoredGeneration:
    """Return ``generation`` of ``dataset``. Raises StoreError, CorruptFile."""
    return StoredGeneration(f"{dataset.url}/{generation}", dataset.manifest(generation), dataset)


def open_shard(path: Path) -> ShardReader:
    """Open the shard file at ``path``. Raises CorruptFile, StoreError."""
    if path.is_file() and path.stat().st_size == 0:
        raise CorruptFile(f"{path} is empty, expected a shard file")
    try:
        return ShardReader(path)
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror or error}") from error
