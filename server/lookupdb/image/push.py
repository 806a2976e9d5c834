"""A generation's images into a registry. Each shard's file is read twice, as a stream: for the digest by which the
registry asks for its layer, and for the layer. No shard is written on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from lookupdb.errors import UsageError
from lookupdb.image.artifact import (
    ARCHITECTURES,
    INDEX_TYPE,
    LAYER_TYPE,
    Blob,
    describe_blob,
    list_documents,
    list_parts,
    plain_manifest,
    read_annotations,
    render_annotations,
    render_image,
    render_layer,
    shard_file,
    shard_tag,
)
from lookupdb.image.registry import Registry
from lookupdb.image.shard_bytes import read_shard
from lookupdb.store.stored_generation import StoredGeneration

_PARTS: Final = 3
"""Of a manifest: a configuration and two layers."""


@dataclass(frozen=True, slots=True)
class PushedImage:
    """The image of a shard in a registry. Present: its tag named one of this content, of which nothing was lacking."""

    outcome: Literal["pushed", "present"]
    tag: str
    digest: str
    sent_bytes: int
    """Of layers that the registry did not have."""


def push_shard(
    generation: StoredGeneration,
    shard: int,
    registry: Registry,
    patience: float,
    advance: Callable[[int], None] = lambda _: None,
) -> PushedImage:
    """Push the image of ``shard``; its tag comes last. ``advance`` gets the number of further bytes read, of twice the
    file's size at most. Raises RegistryError, StoreError, CorruptFile."""
    manifest = plain_manifest(generation.manifest)
    tag = shard_tag(manifest.name, manifest.uid, manifest.generation, shard)
    there = registry.get_index(tag)
    if there is not None:
        _check_ours(tag, there, render_annotations(manifest, shard), registry)
        if _is_whole(there, registry):
            return PushedImage("present", tag, describe_blob(INDEX_TYPE, there).digest, 0)
    file = shard_file(manifest.shards[shard])

    def layer() -> Iterator[bytes]:
        for chunk in render_layer(file, read_shard(generation, generation.manifest.shards[shard], patience)):
            advance(len(chunk))
            yield chunk

    blob = _measure(layer())
    image = render_image(manifest, shard, blob)
    sent = blob.size if registry.put_blob(blob, layer) else 0
    for small, content in image.blobs:
        if registry.put_blob(small, lambda content=content: [content]):  # type: ignore[misc]
            sent += small.size
    for document, text in list_documents(image):
        is_index = document.media_type == INDEX_TYPE
        registry.put_manifest(image.tag if is_index else document.digest, document, text)
    return PushedImage("pushed", image.tag, image.digest, sent)


def _check_ours(tag: str, index: bytes, expected: object, registry: Registry) -> None:
    """A tag is that of one content for good. Raises UsageError if it names another one."""
    found = read_annotations(index)
    if dict(found) != expected:
        raise UsageError(
            f"{registry.repository}:{tag} is there already, and of other content",
            hint="is it of another installation? take another repository, or remove the tag there",
        )


def _is_whole(index: bytes, registry: Registry) -> bool:
    """Whether the registry has all that ``index`` refers to: a retention may remove what has no tag of its own, and
    leave the index. Raises RegistryError."""
    blobs: dict[str, Blob] = {}
    manifests = list_parts(index)[: len(ARCHITECTURES)]
    for described in manifests:
        manifest = registry.get_index(described.digest)
        if manifest is None or describe_blob(described.media_type, manifest) != described:
            return False
        parts = list_parts(manifest)
        if len(parts) != _PARTS:
            return False
        blobs |= {part.digest: part for part in parts}
    return len(manifests) == len(ARCHITECTURES) and all(map(registry.has_blob, blobs.values()))


def _measure(chunks: Iterator[bytes]) -> Blob:
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return Blob(LAYER_TYPE, f"sha256:{digest.hexdigest()}", size)
