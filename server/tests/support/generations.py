"""Generations made by the real writer from records given in the test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from lookupdb.builder.core import add_up, reduce_shards
from lookupdb.builder.dictionary import NO_PREVIOUS, choose_dictionary
from lookupdb.builder.options import SilentProgress
from lookupdb.builder.write import Record
from lookupdb.manifest import ExcludedRows, Manifest, Refusal, ShardFile, Totals
from lookupdb.shardfile import ShardMeta
from lookupdb.store import StoredDataset


def records(content: Mapping[str, bytes]) -> list[Record]:
    """Keys and values as the sorted stream gives them."""
    return [(key.encode(), row, value) for row, (key, value) in enumerate(sorted(content.items()), 1)]


def in_batches(content: list[Record], size: int = 1000) -> Iterator[list[Record]]:
    """The stream in batches of ``size``."""
    for start in range(0, len(content), size):
        yield content[start : start + size]


def meta(shards: int, compression: str = "zstd") -> ShardMeta:
    """The metadata of the shard files."""
    return ShardMeta("default/things", 0, shards, 0, ("strip",), "json", compression, "content")  # type: ignore[arg-type]


def write(
    folder: Path,
    batches: Iterable[list[Record]],
    *,
    shards: int = 3,
    compression: str = "zstd",
    dictionary: bytes = b"",
    threads: int = 1,
) -> tuple[tuple[ShardFile, ...], Totals]:
    """Write ``batches`` as the files of a generation into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    reduced = reduce_shards(
        batches,
        folder,
        meta(shards, compression),
        dictionary,
        "fail",
        SilentProgress(),
        threads=threads,
        packers=threads,
    )
    return reduced.files, add_up(reduced.files, reduced.sums)


def manifest(generation: str, files: tuple[ShardFile, ...], totals: Totals, dictionary: bytes = b"") -> Manifest:
    """A manifest for files just written."""
    return Manifest(
        namespace="default",
        name="things",
        uid="local",
        generation=generation,
        content="content",
        fingerprint="fingerprint",
        source=(),
        key_columns=("id",),
        separator=":",
        normalize=("strip",),
        unicode="15.0.0",
        value_format="json",
        compression="zstd",
        dictionary_bytes=len(dictionary),
        shards=files,
        totals=totals,
        rejected=ExcludedRows(),
        duplicates=ExcludedRows(),
        built_at="2026-11-21T00:00:00Z",
        seconds=1.0,
        lookupdb="0.1.0",
    )


def publish(
    dataset: StoredDataset,
    generation: str,
    content: Mapping[str, bytes],
    scratch: Path,
    *,
    shards: int = 3,
    train: bool = False,
    dictionary: bytes = b"",
    refused: Refusal | None = None,
) -> Manifest:
    """Build ``content`` as ``generation`` of ``dataset``, with ``dictionary``, or one that fits it."""
    stream = records(content)
    if train:
        dictionary = choose_dictionary([one[2] for one in stream], NO_PREVIOUS, records=len(stream), shards=shards)[0]
    with dataset.claim(generation, scratch) as claim:
        files, totals = write(claim.folder, in_batches(stream), shards=shards, dictionary=dictionary)
        return claim.publish(replace(manifest(generation, files, totals, dictionary), refused=refused))
