"""An OCI image layout in a folder: the images of a generation, for tools that copy them elsewhere."""

from __future__ import annotations

import fcntl
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from lookupdb.disk import opening_error, reading_error
from lookupdb.errors import CorruptFile, UsageError
from lookupdb.image.artifact import (
    LAYER_TYPE,
    Blob,
    list_documents,
    plain_manifest,
    render_image,
    render_layer,
    render_layout_index,
    shard_file,
)
from lookupdb.manifest import ShardFile
from lookupdb.store.directory import folder_errors
from lookupdb.store.fetch import read_resumed, write_all
from lookupdb.store.stored_generation import StoredGeneration

# The bytes of a shard's file while they pass, from a folder or a store, verified at the end.


_CHUNK: Final = 1 << 20


def read_shard(generation: StoredGeneration, entry: ShardFile, patience: float) -> Iterator[bytes]:
    """Yield the file's bytes; after an error of the store, resume until nothing arrives for ``patience`` seconds.
    Raises StoreError, and CorruptFile before the last byte unless size and checksum match the manifest: a damaged file
    is never sent completely."""
    digest, size = hashlib.sha256(), 0
    held = b""
    if isinstance(generation.place, Path):
        chunks = _read_file(generation.place / entry.file)
    else:
        chunks = read_resumed(generation.place, generation.manifest.generation, entry, patience)
    for chunk in chunks:
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


log = logging.getLogger(__name__)

_MARK: Final = "oci-layout"
_INDEX: Final = "index.json"
_VERSION: Final = orjson.dumps({"imageLayoutVersion": "1.0.0"})


@dataclass(frozen=True, slots=True)
class WrittenImage:
    """An image of the layout."""

    tag: str
    digest: str


class ImageLayout:
    """An image layout at ``folder``. index.json is written last: its content is whole."""

    def __init__(self, folder: Path) -> None:
        """Raises UsageError if ``folder`` holds something else, FolderDenied if it may not be created, else
        StoreError."""
        self._folder = folder
        self._blobs = folder / "blobs" / "sha256"
        self._written: set[str] = set()
        """Blobs that index.json refers to since the last ``write``."""
        with folder_errors(f"cannot write to {folder}"):
            if folder.exists() and not (folder / _MARK).is_file() and (not folder.is_dir() or any(folder.iterdir())):
                raise UsageError(f"{folder} holds no image layout", hint="use an empty or new folder")
            self._blobs.mkdir(parents=True, exist_ok=True)
            (folder / _MARK).write_bytes(_VERSION)

    def write(
        self,
        generation: StoredGeneration,
        shards: Sequence[int],
        patience: float,
        advance: Callable[[int], None] = lambda _: None,
    ) -> list[WrittenImage]:
        """Write the images of ``shards`` of ``generation``, and list only them in index.json. ``advance`` gets the
        number of further bytes read. Raises StoreError, CorruptFile, FolderDenied, NotEnoughRoom; UsageError if another
        process writes."""
        with self._lock():
            manifest = plain_manifest(generation.manifest)
            images = []
            written: set[str] = set()
            for shard in shards:
                file = shard_file(manifest.shards[shard])
                content = _counted(read_shard(generation, generation.manifest.shards[shard], patience), advance)
                image = render_image(manifest, shard, self._put_stream(render_layer(file, content)))
                documents = (*image.blobs, *list_documents(image))
                for blob, text in documents:
                    path = self._blobs / _blob_name(blob)
                    if not path.exists():
                        self._replace(path, text)
                written.update(_blob_name(blob) for blob in (image.shard_layer, *(blob for blob, _ in documents)))
                images.append(image)
            self._replace(self._folder / _INDEX, render_layout_index(images))
            self._written = written
            return [WrittenImage(image.tag, image.digest) for image in images]

    def measure_unreferenced(self) -> int:
        """Return the size of the blobs that the last index.json does not refer to, for example of an earlier
        generation. They stay: a layout may hold such, and another tool may use them. Raises StoreError."""
        with folder_errors(f"cannot list {self._blobs}"):
            others = (path for path in self._blobs.iterdir() if path.name not in self._written)
            return sum(path.stat().st_size for path in others if path.is_file())

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep others out: two writers of the same file would mix their bytes."""
        with folder_errors(f"cannot write to {self._folder}"):
            mark = (self._folder / _MARK).open("rb")
        with mark:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy = f"another process writes images to {self._folder}"
                raise UsageError(busy, hint="wait until it is done, or use another folder") from None
            except OSError:
                log.warning(
                    "the file system has no locks: make sure that nobody else writes there",
                    extra={"path": str(self._folder)},
                )
            yield

    def _put_stream(self, chunks: Iterable[bytes]) -> Blob:
        """Write a layer whose digest is known at its end."""
        digest, size = hashlib.sha256(), 0
        partial = self._blobs / ".layer.partial"
        try:
            with folder_errors(f"cannot write {partial}"), partial.open("wb", buffering=0) as file:
                for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
                    write_all(file.fileno(), chunk)
            with folder_errors(f"cannot write to {self._blobs}"):
                partial.rename(self._blobs / digest.hexdigest())
        finally:
            partial.unlink(missing_ok=True)
        return Blob(LAYER_TYPE, f"sha256:{digest.hexdigest()}", size)

    def _replace(self, path: Path, content: bytes) -> None:
        partial = path.with_name(f".{path.name}.partial")
        with folder_errors(f"cannot write {path}"):
            partial.write_bytes(content)
            partial.rename(path)


def _blob_name(blob: Blob) -> str:
    return blob.digest.removeprefix("sha256:")


def _counted(chunks: Iterable[bytes], advance: Callable[[int], None]) -> Iterable[bytes]:
    for chunk in chunks:
        advance(len(chunk))
        yield chunk
