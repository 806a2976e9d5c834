"""What the store already holds: is a build needed, which generation do its gates compare with, and has a gate refused
the very same already?"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from lookupdb.build import gates
from lookupdb.build.gates import ActiveGeneration
from lookupdb.errors import CorruptFile, GenerationMissing
from lookupdb.keys import has_same_normalization
from lookupdb.manifest import Manifest
from lookupdb.spec import DatasetSpec, Gates
from lookupdb.store import StoredDataset

log = logging.getLogger(__name__)


def readable_manifests(dataset: StoredDataset) -> Iterator[Manifest]:
    """The manifests of the whole generations, newest first, without those that cannot be read or were refused.

    Raises StoreError if the store itself cannot be read.
    """
    for generation in reversed(dataset.generations()):
        manifest = _read_manifest(dataset, generation)
        if manifest is not None:  # None: removed after the listing
            yield manifest


def _read_manifest(dataset: StoredDataset, generation: str) -> Manifest | None:
    try:
        return dataset.manifest(generation)
    except (CorruptFile, GenerationMissing):
        return None


def has_generation(dataset: StoredDataset, spec: DatasetSpec, fingerprint: str, active: str | None = None) -> bool:
    """Whether the store holds a generation of this very spec and of the source with this ``fingerprint``. Raises
    StoreError.

    An earlier build does not count by itself: the store may have been lost since, or be another one. A generation whose
    keys were normalised by other character tables than this process has does not count either: it must be rebuilt. One
    that was refused counts if it is ``active``: an operator has overridden its gates.
    """
    if any(_is_same_build(manifest, spec, fingerprint) for manifest in readable_manifests(dataset)):
        return True
    if active is None or active not in dataset.refused_generations():
        return False
    manifest = _read_manifest(dataset, active)
    return manifest is not None and _is_same_build(manifest, spec, fingerprint)


def _is_same_build(manifest: Manifest, spec: DatasetSpec, fingerprint: str) -> bool:
    is_same = (manifest.content, manifest.fingerprint) == (spec.content_hash(), fingerprint)
    return is_same and has_same_normalization(manifest.normalize, manifest.unicode)


def find_refusal(
    dataset: StoredDataset, generation: str, spec: DatasetSpec, fingerprint: str, active: ActiveGeneration | None
) -> Manifest | None:
    """The manifest of ``generation``, if a gate has refused it and it is what would be built now, and judged by the
    same gates and the same active generation: another build would be refused, too. Raises StoreError."""
    if generation not in dataset.refused_generations():
        return None
    manifest = _read_manifest(dataset, generation)
    if manifest is None or manifest.refused is None or not _is_same_build(manifest, spec, fingerprint):
        return None
    if manifest.refused.unjudged and manifest.refused.active in dataset.whole_manifests():
        return None  # its files may have come back
    judged_by = (manifest.refused.gates, manifest.refused.active)
    return manifest if judged_by == (spec.gates.content_hash(), active.generation if active else "") else None


def find_active(
    dataset: StoredDataset, generation: str | None, records: int | None, gate_spec: Gates
) -> ActiveGeneration | None:
    """What gates compare with: ``generation``, or the newest published one that was not refused; None if there is none
    yet.

    If it is lost or unreadable, the newest readable one takes its place, with a warning; if there is none, the number
    of its ``records``, where it is known. If it is not, and ``gate_spec`` has a gate that needs it, raises
    GenerationMissing or CorruptFile: a source that has shrunk must not pass because the store was lost with it. Raises
    StoreError if the store itself cannot be read.
    """
    name = generation or _newest_unrefused(dataset)
    if name is None:
        return None
    try:
        return _with_manifest(dataset.manifest(name))
    except (GenerationMissing, CorruptFile) as error:
        substitute = next(readable_manifests(dataset), None)
        ways_out = gates.comparing_gates(gate_spec)
        if substitute is None and records is None and ways_out:
            raise type(error)(error.message, hint=_hint(name, ways_out)) from error
        log.warning(
            "the active generation cannot be read from the store",
            extra={
                "generation": name,
                "comparedWith": substitute.generation if substitute else "none",
                "reason": error.message,
            },
        )
        if substitute is not None:
            return _with_manifest(substitute)
        return None if records is None else ActiveGeneration(name, records, None)


def _newest_unrefused(dataset: StoredDataset) -> str | None:
    published, refused = dataset.published_generations(), dataset.refused_generations()
    return next((generation for generation in reversed(published) if generation not in refused), None)


def _with_manifest(manifest: Manifest) -> ActiveGeneration:
    return ActiveGeneration(manifest.generation, manifest.totals.records, manifest)


def _hint(active: str, ways_out: list[str]) -> str:
    return (
        f"no generation is left to compare with: bring {active} back, or {' and '.join(ways_out)} until the next "
        "generation is built"
    )
