"""What the store already holds: is a build needed, and which generation do its gates compare with?"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from lookupdb.build import gates
from lookupdb.errors import CorruptFile, GenerationMissing
from lookupdb.keys import has_same_normalization
from lookupdb.manifest import Manifest
from lookupdb.spec import DatasetSpec, Gates
from lookupdb.store import StoredDataset

log = logging.getLogger(__name__)


def readable_manifests(dataset: StoredDataset) -> Iterator[Manifest]:
    """The manifests of the whole generations, newest first, without those that cannot be read.

    Raises StoreError if the store itself cannot be read.
    """
    for generation in reversed(dataset.generations()):
        try:
            manifest = dataset.manifest(generation)
        except (CorruptFile, GenerationMissing):  # missing: removed after the listing
            continue
        yield manifest


def has_generation(dataset: StoredDataset, spec: DatasetSpec, fingerprint: str) -> bool:
    """Whether the store holds a generation of this very spec and of the source with this ``fingerprint``. Raises
    StoreError.

    An earlier build does not count by itself: the store may have been lost since, or be another one. A generation whose
    keys were normalised by other character tables than this process has does not count either: it must be rebuilt.
    """
    expected = (spec.content_hash(), fingerprint)
    return any(
        (manifest.content, manifest.fingerprint) == expected
        and has_same_normalization(manifest.normalize, manifest.unicode)
        for manifest in readable_manifests(dataset)
    )


def find_active_manifest(dataset: StoredDataset, generation: str | None, gate_spec: Gates) -> Manifest | None:
    """The manifest that gates compare with: of ``generation``, or of the newest published one; None if there is none
    yet.

    If it is lost or unreadable, the newest readable manifest takes its place, with a warning. If none is readable and
    ``gate_spec`` has a gate that compares, raises GenerationMissing or CorruptFile: a source that has shrunk must not
    pass because the store was lost with it. Raises StoreError if the store itself cannot be read.
    """
    name = generation or next(reversed(dataset.published_generations()), None)
    if name is None:
        return None
    try:
        return dataset.manifest(name)
    except (GenerationMissing, CorruptFile) as error:
        substitute = next(readable_manifests(dataset), None)
        comparing = gates.comparing_gates(gate_spec)
        if substitute is None and comparing:
            raise type(error)(error.message, hint=_hint(name, comparing)) from error
        log.warning(
            "the active generation cannot be read from the store",
            extra={
                "generation": name,
                "comparedWith": substitute.generation if substitute else "none",
                "reason": error.message,
            },
        )
        return substitute


def _hint(active: str, comparing: list[str]) -> str:
    fields = " and ".join(f"spec.gates.{name}" for name in comparing)
    return (
        f"no generation is left to compare with: bring {active} back, or take {fields} away until the next generation "
        "is built"
    )
