"""What the generations that the store holds already tell a build."""

from __future__ import annotations

from collections.abc import Iterator

from lookupdb.errors import CorruptFile, GenerationMissing
from lookupdb.manifest import Manifest
from lookupdb.spec import DatasetSpec
from lookupdb.store import Dataset


def readable(dataset: Dataset) -> Iterator[Manifest]:
    """The manifests of the whole generations, the newest first; one that cannot be read is passed over.

    Raises StoreError when the store itself cannot be read.
    """
    for generation in reversed(dataset.generations()):
        try:
            manifest = dataset.manifest(generation)
        except (CorruptFile, GenerationMissing):  # missing: removed since it was listed
            continue
        yield manifest


def holds(dataset: Dataset, spec: DatasetSpec, fingerprint: str) -> bool:
    """Whether a generation of this very spec and of the source with this ``fingerprint`` is there. Raises StoreError.

    That somebody has built it once is not enough: the store may have been lost since, or be another one.
    """
    wanted = (spec.content_hash(), fingerprint)
    return any((manifest.content, manifest.fingerprint) == wanted for manifest in readable(dataset))
