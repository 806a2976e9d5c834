"""The content of a shard's image. Pure: the same generation gives the same bytes, and so the same digests.

An image has two layers, both uncompressed: manifest.json, which all images of the generation share, and the shard's
file. An unchanged shard has the same layer in every generation, so that a registry or a node stores it once. That is
why manifest.json here names files without the attempt, which their names in a bucket have.

A tag names an index with one image for each processor that lookupdb runs on. They have the same layers; a container
runtime ignores images of other processors.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from lookupdb.keys import file_name
from lookupdb.manifest import FILE_NAME, Manifest

CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
ARCHITECTURES: Final = ("amd64", "arm64")
FORMAT_VERSION: Final = "1"
"""The version of the images: an annotation of each index."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_PREFIX: Final = "dev.lookupdb."
_BLOCK: Final = tarfile.BLOCKSIZE


def shard_tag(name: str, uid: str, generation: str, shard: int) -> str:
    """Return the tag of a shard's image: ``people-3f2b9c1e-g12-shard-00003``, in any repository. A tag always names the
    same content, because a generation never changes."""
    return f"{name}-{uid[:8]}-{generation}-shard-{shard:05d}"


def render_layer(name: str, size: int, content: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the layer that holds only the file ``name``, which everybody may read and nobody may write: a tar archive,
    made while ``content`` is read. It is independent of who writes it, and when. Raises ValueError at its end if
    ``content`` has another size."""
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o444
    # GNU's format has room for 8 GiB and more in one header; PAX would need a second header.
    yield header.tobuf(tarfile.GNU_FORMAT)
    read_bytes = 0
    for chunk in content:
        read_bytes += len(chunk)
        yield chunk
    if read_bytes != size:
        raise ValueError(f"{name} has {read_bytes} bytes, its header says {size}")
    yield bytes(-size % _BLOCK + 2 * _BLOCK)


@dataclass(frozen=True, slots=True)
class Blob:
    """A descriptor, which refers to content by its digest."""

    media_type: str
    digest: str
    """``sha256:`` and 64 hexadecimal digits."""
    size: int

    def describe(self, **members: Any) -> dict[str, Any]:
        """Return the descriptor as JSON has it, with further ``members``."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size, **members}


def describe_blob(media_type: str, content: bytes) -> Blob:
    """Return the descriptor of ``content``."""
    return Blob(media_type, f"sha256:{hashlib.sha256(content).hexdigest()}", len(content))


@dataclass(frozen=True, slots=True)
class ShardImage:
    """The image of one shard, without the layer that has the shard's file."""

    tag: str
    index: bytes
    manifests: tuple[bytes, ...]
    """One manifest for each of ``ARCHITECTURES``."""
    blobs: tuple[tuple[Blob, bytes], ...]
    """The small blobs: the layer with manifest.json, and a configuration for each manifest."""

    @property
    def digest(self) -> str:
        """The digest of the index, which the tag names."""
        return describe_blob(INDEX_TYPE, self.index).digest


def plain_manifest(manifest: Manifest) -> Manifest:
    """Return ``manifest`` with the file names that images use, without the attempt."""
    shards = len(manifest.shards)
    named = (replace(entry, file=file_name(number, shards)) for number, entry in enumerate(manifest.shards))
    return replace(manifest, shards=tuple(named))


def render_annotations(manifest: Manifest, shard: int) -> Mapping[str, str]:
    """Return the annotations of an index, which show its dataset and content before anything is read. ``manifest`` is a
    ``plain_manifest``."""
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
    """Return the image of ``shard`` whose file is in ``shard_layer``; ``manifest`` is a ``plain_manifest``."""
    text = manifest.to_json()
    content = b"".join(render_layer(FILE_NAME, len(text), [text]))
    first = describe_blob(LAYER_TYPE, content)
    layers, blobs, manifests, entries = (first, shard_layer), [(first, content)], [], []
    for architecture in ARCHITECTURES:
        platform = {"architecture": architecture, "os": "linux"}
        # Layers are not compressed, so a layer and its content have the same digest.
        rootfs = {"type": "layers", "diff_ids": [layer.digest for layer in layers]}
        config = _to_json({**platform, "config": {}, "rootfs": rootfs})
        described = describe_blob(CONFIG_TYPE, config)
        image = _to_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": described.describe(),
                "layers": [layer.describe() for layer in layers],
            }
        )
        blobs.append((described, config))
        manifests.append(image)
        entries.append(describe_blob(MANIFEST_TYPE, image).describe(platform=platform))
    annotations = dict(render_annotations(manifest, shard))
    return ShardImage(
        tag=shard_tag(manifest.name, manifest.uid, manifest.generation, shard),
        index=_to_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries, "annotations": annotations}),
        manifests=tuple(manifests),
        blobs=tuple(blobs),
    )


def read_annotations(index: bytes) -> Mapping[str, str]:
    """Return the annotations of an index from elsewhere; empty if it is not an index."""
    try:
        found = orjson.loads(index).get("annotations")
    except (ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def list_parts(document: bytes) -> tuple[Blob, ...]:
    """Return the blobs to which an index or a manifest from elsewhere refers; nothing if it is neither."""
    try:
        found = orjson.loads(document)
        parts = found["manifests"] if "manifests" in found else [found["config"], *found["layers"]]
        blobs = tuple(Blob(str(part["mediaType"]), part["digest"], int(part["size"])) for part in parts)
    except (ValueError, KeyError, TypeError):
        return ()
    return blobs if all(_DIGEST.fullmatch(str(blob.digest)) for blob in blobs) else ()


def render_layout_index(images: Sequence[ShardImage]) -> bytes:
    """Return index.json of an image layout that holds ``images``."""
    entries = [
        describe_blob(INDEX_TYPE, image.index).describe(annotations={"org.opencontainers.image.ref.name": image.tag})
        for image in images
    ]
    return _to_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries})


def list_documents(image: ShardImage) -> Iterator[tuple[Blob, bytes]]:
    """Yield the manifests and the index of ``image``, in the order in which they can be put: referenced ones first."""
    for manifest in image.manifests:
        yield describe_blob(MANIFEST_TYPE, manifest), manifest
    yield describe_blob(INDEX_TYPE, image.index), image.index


def _to_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
