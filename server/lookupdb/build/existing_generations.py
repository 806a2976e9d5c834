"""What the generations that the store holds already tell a build."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from lookupdb.build import gates
from lookupdb.errors import CorruptFile, GenerationMissing
from lookupdb.keys import normalizes_alike
from lookupdb.manifest import Manifest
from lookupdb.spec import DatasetSpec, Gates
from lookupdb.store import Dataset

log = logging.getLogger(__name__)


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

    That somebody has built it once is not enough: the store may have been lost since, or be another one. Nor is one
    whose keys were normalised by other character tables than this process has: it must be built anew.
    """
    looked_for = (spec.content_hash(), fingerprint)
    return any(
        (manifest.content, manifest.fingerprint) == looked_for
        and normalizes_alike(manifest.normalize, manifest.unicode)
        for manifest in readable(dataset)
    )


def active_manifest(dataset: Dataset, generation: str | None, wanted: Gates) -> Manifest | None:
    """The manifest that gates compare with: of ``generation``, or of the newest published; None when there is none yet.

    For one that is lost or cannot be read the newest stands in that can, and a warning says so. When none can, and
    ``wanted`` has a gate that compares, raises GenerationMissing or CorruptFile: a source that has shrunk must not
    pass because the store was lost with it. Raises StoreError when the store itself cannot be read.
    """
    name = generation or next(reversed(dataset.published()), None)
    if name is None:
        return None
    try:
        return dataset.manifest(name)
    except (GenerationMissing, CorruptFile) as error:
        instead = next(readable(dataset), None)
        comparing = gates.comparing(wanted)
        if instead is None and comparing:
            raise type(error)(error.message, hint=_hint(name, comparing)) from error
        log.warning(
            "the active generation cannot be read from the store",
            extra={
                "generation": name,
                "comparedWith": instead.generation if instead else "none",
                "reason": error.message,
            },
        )
        return instead


def _hint(active: str, comparing: list[str]) -> str:
    fields = " and ".join(f"spec.gates.{name}" for name in comparing)
    return (
        f"no generation is left to compare with: bring {active} back, or take {fields} away until the next generation "
        "is built"
    )
