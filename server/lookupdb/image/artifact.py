"""What the image of a shard consists of. Pure: the same generation gives the same bytes, and so the same digests.

An image has two layers, both uncompressed: manifest.json, which all images of the generation share, and the shard's
file. Shards whose content has not changed have the same layer in every generation, so that a registry, and a node,
holds it once: that is why manifest.json names files here without the attempt that a bucket's have in their names.

A tag names an index with one image for each processor that lookupdb runs on. They have the same layers; a container
runtime passes over images of other processors, whatever is in them.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from lookupdb.manifest import FILE_NAME, Manifest, ShardFile
from lookupdb.shard_name import file_name

CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
ARCHITECTURES: Final = ("amd64", "arm64")
FORMAT_VERSION: Final = "1"
"""Of the images: an annotation of each index."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_PREFIX: Final = "dev.lookupdb."
_UID_DIGITS: Final = 8
_BLOCK: Final = tarfile.BLOCKSIZE
_END: Final = bytes(2 * _BLOCK)


def shard_tag(name: str, uid: str, generation: str, shard: int) -> str:
    """The tag of a shard's image: ``people-3f2b9c1e-g12-shard-00003``, in whatever repository it is. It is that of one
    content for good, because a generation is."""
    return f"{name}-{uid[:_UID_DIGITS]}-{generation}-shard-{shard:05d}"


@dataclass(frozen=True, slots=True)
class TarFile:
    """A file at the root of a layer, which anybody may read and nobody write."""

    name: str
    size: int


def render_layer(file: TarFile, content: Iterable[bytes]) -> Iterator[bytes]:
    """The layer that holds ``file`` alone: a tar archive, made as ``content`` is read. Nothing in it depends on who
    writes it, or when. Raises ValueError at its end if ``content`` has another size."""
    header = tarfile.TarInfo(file.name)
    header.size, header.mode = file.size, 0o444
    # GNU's form has room for 8 GiB and more in one header, where PAX would need another one.
    yield header.tobuf(tarfile.GNU_FORMAT)
    size = 0
    for chunk in content:
        size += len(chunk)
        yield chunk
    if size != file.size:
        raise ValueError(f"{file.name} has {size} bytes, its header says {file.size}")
    yield bytes(-size % _BLOCK) + _END


@dataclass(frozen=True, slots=True)
class Blob:
    """A descriptor: what refers to content by its digest."""

    media_type: str
    digest: str
    """``sha256:`` and 64 hexadecimal digits."""
    size: int

    def describe(self, **members: Any) -> dict[str, Any]:
        """The descriptor as JSON has it, with further ``members``."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size, **members}


def describe_blob(media_type: str, content: bytes) -> Blob:
    """The descriptor of ``content``."""
    return Blob(media_type, f"sha256:{hashlib.sha256(content).hexdigest()}", len(content))


@dataclass(frozen=True, slots=True)
class ShardImage:
    """The image of one shard: all of it but the layer with the shard's file, which is only referred to."""

    tag: str
    index: bytes
    manifests: tuple[bytes, ...]
    """One for each of ``ARCHITECTURES``."""
    blobs: tuple[tuple[Blob, bytes], ...]
    """The small ones: the layer with manifest.json, and a configuration for each manifest."""
    shard_layer: Blob

    @property
    def digest(self) -> str:
        """That of the index, which the tag names."""
        return describe_blob(INDEX_TYPE, self.index).digest


def plain_manifest(manifest: Manifest) -> Manifest:
    """``manifest`` with names of files that have no attempt in them, as they are called within the images."""
    shards = len(manifest.shards)
    named = (replace(entry, file=file_name(number, shards)) for number, entry in enumerate(manifest.shards))
    return replace(manifest, shards=tuple(named))


def shard_file(entry: ShardFile) -> TarFile:
    """The one file of the layer of a shard; ``entry`` is of a ``plain_manifest``."""
    return TarFile(entry.file, entry.bytes)


def render_annotations(manifest: Manifest, shard: int) -> Mapping[str, str]:
    """What tells whose image it is, and of which content, before any of it is read: those of an index. ``manifest`` is
    a ``plain_manifest``."""
    return {
        f"{_PREFIX}format": FORMAT_VERSION,
        f"{_PREFIX}dataset": f"{manifest.namespace}/{manifest.name}",
        f"{_PREFIX}dataset-uid": manifest.uid,
        f"{_PREFIX}generation": manifest.generation,
        f"{_PREFIX}shard": str(shard),
        f"{_PREFIX}shard.sha256": manifest.shards[shard].sha256,
        f"{_PREFIX}manifest.sha256": hashlib.sha256(manifest.to_json()).hexdigest(),
    }


def render_image(manifest: Manifest, shard: int, shard_layer: Blob) -> ShardImage:
    """The image of ``shard`` whose file is in ``shard_layer``; ``manifest`` is a ``plain_manifest``."""
    text = manifest.to_json()
    content = b"".join(render_layer(TarFile(FILE_NAME, len(text)), [text]))
    first = describe_blob(LAYER_TYPE, content)
    configs = [_render_config(architecture, (first, shard_layer)) for architecture in ARCHITECTURES]
    described = [describe_blob(CONFIG_TYPE, config) for config in configs]
    manifests = tuple(_render_manifest(config, (first, shard_layer)) for config in described)
    return ShardImage(
        tag=shard_tag(manifest.name, manifest.uid, manifest.generation, shard),
        index=_render_index(manifests, render_annotations(manifest, shard)),
        manifests=manifests,
        blobs=((first, content), *zip(described, configs, strict=True)),
        shard_layer=shard_layer,
    )


def read_annotations(index: bytes) -> Mapping[str, str]:
    """The annotations of an index that somebody holds; empty for what is none."""
    try:
        found = orjson.loads(index).get("annotations")
    except (ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def list_parts(document: bytes) -> tuple[Blob, ...]:
    """What an index or a manifest that somebody holds refers to; nothing for what is neither."""
    try:
        found = orjson.loads(document)
        parts = found["manifests"] if "manifests" in found else [found["config"], *found["layers"]]
        blobs = tuple(Blob(str(part["mediaType"]), part["digest"], int(part["size"])) for part in parts)
    except (ValueError, KeyError, TypeError):
        return ()
    return blobs if all(_DIGEST.fullmatch(str(blob.digest)) for blob in blobs) else ()


def render_layout_index(images: Sequence[ShardImage]) -> bytes:
    """index.json of an image layout that holds ``images``."""
    entries = [
        describe_blob(INDEX_TYPE, image.index).describe(annotations={"org.opencontainers.image.ref.name": image.tag})
        for image in images
    ]
    return _to_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries})


def list_documents(image: ShardImage) -> Iterator[tuple[Blob, bytes]]:
    """Its manifests and its index, in the order in which they can be put: what one refers to is there before it."""
    for manifest in image.manifests:
        yield describe_blob(MANIFEST_TYPE, manifest), manifest
    yield describe_blob(INDEX_TYPE, image.index), image.index


def _render_config(architecture: str, layers: Sequence[Blob]) -> bytes:
    """Layers are not compressed: the digests of what is in them are their own."""
    return _to_json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        }
    )


def _render_manifest(config: Blob, layers: Sequence[Blob]) -> bytes:
    return _to_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config.describe(),
            "layers": [layer.describe() for layer in layers],
        }
    )


def _render_index(manifests: Sequence[bytes], annotations: Mapping[str, str]) -> bytes:
    entries = [
        describe_blob(MANIFEST_TYPE, manifest).describe(platform={"architecture": architecture, "os": "linux"})
        for manifest, architecture in zip(manifests, ARCHITECTURES, strict=True)
    ]
    return _to_json(
        {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries, "annotations": dict(annotations)}
    )


def _to_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
