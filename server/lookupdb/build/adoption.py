"""Generations that the store has when a build begins or ends: adopted, refused, refused again, let through."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Final

from lookupdb.build import existing_generations, gates
from lookupdb.build.build_report import BuildReport, GenerationRefused, report_manifest
from lookupdb.errors import GenerationExists
from lookupdb.keys import UNICODE_VERSION, has_same_normalization
from lookupdb.manifest import Manifest, Refusal, generation_number
from lookupdb.runtime.memory import peak_resident
from lookupdb.spec import DatasetSpec
from lookupdb.store import Store, StoredDataset
from lookupdb.wording import format_count

_MOST_COUNTED: Final = 10**8
"""As the operator, who believes no larger number that it did not give out."""


def adopt_generation(
    spec: DatasetSpec, dataset: StoredDataset, generation: str, started_at: float, build_id: str | None = None
) -> BuildReport:
    """Report ``generation``, which the store holds already. Raises GenerationExists if it was built to another spec, or
    by another build than ``build_id``; GenerationRefused if a gate refused it."""
    manifest = dataset.manifest(generation)
    if build_id is not None:
        _check_build(manifest, build_id, dataset)
    _check_content(manifest, spec, dataset)
    if manifest.refused is not None:
        raise refusal_error(manifest.refused, manifest)
    return adopted_report(manifest, started_at)


def override_gates(spec: DatasetSpec, store: Store, generation: str) -> BuildReport:
    """Let ``generation`` of the dataset, which a gate has refused, pass as if none had. Raises UsageError if none has,
    StoreError, GenerationExists if it was built to another spec than ``spec``."""
    started_at = time.monotonic()
    dataset = store.dataset(spec)
    _check_content(dataset.manifest(generation), spec, dataset)
    reasons = gates.join_reasons(dataset.admit(generation).overridden)
    report = adopt_generation(spec, dataset, generation, started_at)
    return replace(report, message=f"{generation} passes, although:\n{reasons}")


def is_whole(dataset: StoredDataset, generation: str) -> bool:
    """Whether the store has all of ``generation``, refused or not."""
    return generation in dataset.whole_manifests()


def check_refusal(
    spec: DatasetSpec,
    dataset: StoredDataset,
    generation: str | None,
    fingerprint: str,
    active: gates.ActiveGeneration | None,
) -> None:
    """Raises GenerationRefused if ``generation``, which may be None, is the very one that would be built of the source
    with ``fingerprint``, and a gate has refused it."""
    if generation is None:
        return
    manifest = existing_generations.find_refusal(dataset, generation, spec, fingerprint, active)
    if manifest is not None and manifest.refused is not None:
        raise refusal_error(manifest.refused, manifest)


def refusal_error(refused: Refusal, manifest: Manifest | None) -> GenerationRefused:
    """The error of a generation that is refused; ``manifest`` is its own, if it is in the store."""
    message = gates.join_reasons(refused.reasons)
    if manifest is None:
        hint = "nothing was published, for it is empty; correct the source, or the spec"
        return GenerationRefused(message, None, hint=hint)
    generation = manifest.generation
    hint = (
        f"{generation} is in the store to be looked at, and does not serve: correct the source, change spec.gates, or "
        "let it pass as it is"
    )
    return GenerationRefused(message, manifest, hint=hint)


def built_report(manifest: Manifest, reading_peak: int) -> BuildReport:
    """The report of a generation that was built; reading its source took ``reading_peak`` bytes of memory."""
    return replace(
        report_manifest(manifest),
        peak_memory_bytes=max(reading_peak, peak_resident()),
        message=f"built {manifest.generation}: {format_count(manifest.totals.records, 'record')} in "
        f"{format_count(len(manifest.shards), 'shard')}, "
        f"{manifest.seconds:.1f} s",
    )


def adopted_report(manifest: Manifest, started_at: float) -> BuildReport:
    """The report of a generation for which nothing was built: the store held it, or an earlier dataset's."""
    message = f"{manifest.generation} is whole already, built to this very spec at {manifest.built_at}"
    if manifest.adopted is not None:
        uid, generation = manifest.adopted.uid, manifest.adopted.generation
        records = format_count(manifest.totals.records, "record")
        message = f"{manifest.generation} is {generation} of the dataset {uid}, built at {manifest.built_at}: {records}"
    return replace(
        built_report(manifest, 0),
        outcome="adopted",
        seconds=round(time.monotonic() - started_at, 3),
        reason="Adopted",
        message=f"{message}; nothing was built{_describe_other_tables(manifest)}",
    )


def _describe_other_tables(manifest: Manifest) -> str:
    """That routers of this version may miss keys of ``manifest``; empty if its keys were normalised as they do it.
    Short: a status keeps 256 characters of the message."""
    if has_same_normalization(manifest.normalize, manifest.unicode):
        return ""
    tables = f"Unicode {manifest.unicode} normalised its keys, not {UNICODE_VERSION}"
    return f". {tables}: some may not be found until a refresh"


def _check_build(manifest: Manifest, build_id: str, dataset: StoredDataset) -> None:
    if manifest.build == build_id:
        return
    next_free = _next_free(dataset, manifest.generation)
    raise GenerationExists(
        f"generation {manifest.generation} of {dataset.address} exists already in {dataset.url}, built at"
        f" {manifest.built_at} by another build than this one",
        hint=f"a generation never changes: the next free one is {next_free}",
        next_free=next_free,
    )


def _next_free(dataset: StoredDataset, after: str) -> str:
    """The number after all that are in use; the first free one ``after`` that where that is beyond what counts."""
    highest = dataset.next_generation()
    if int(highest[1:]) <= _MOST_COUNTED:
        return highest
    used = set(map(generation_number, (*dataset.published_generations(), *dataset.unfinished_generations())))
    return f"g{next(number for number in itertools.count(generation_number(after) + 1) if number not in used)}"


def _check_content(manifest: Manifest, spec: DatasetSpec, dataset: StoredDataset) -> None:
    if manifest.content != spec.content_hash():
        raise GenerationExists(
            f"generation {manifest.generation} of {dataset.address} exists already in {dataset.url}, built to another"
            " spec",
            hint="a generation never changes: leave --generation away to build the next one",
        )
