"""What a build reports at its end: one line of JSON, for people, for scripts and for the operator."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

import orjson

from lookupdb.errors import GateClosed, GenerationExists, LookupdbError
from lookupdb.manifest import Manifest
from lookupdb.naming import to_camel_case
from lookupdb.runtime.memory import peak_resident
from lookupdb.spec import DatasetSpec
from lookupdb.wording import to_utf8

log = logging.getLogger(__name__)

MAX_BYTES: Final = 4096
"""Kubernetes keeps no more of a termination message."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """How a build ended. Record bytes count keys and values. Peak memory covers all processes if the build read its
    source, else the main process."""

    outcome: Literal["built", "adopted", "unchanged", "waiting", "failed"]
    """Waiting: the success file is not there, and the source was not read. Adopted: the store already held the
    generation, built to this very spec by a builder that died before it could report; or, with ``adopted_from``, what
    an earlier dataset has left, or the dataset itself, was copied."""
    dataset: str
    """``namespace/name``."""
    generation: str | None = None
    fingerprint: str | None = None
    success_file: str | None = None
    """The identity of the success file, if the spec names one."""
    records: int = 0
    rejected: int = 0
    duplicates: int = 0
    record_bytes: int = 0
    file_bytes: int = 0
    largest_shard_bytes: int = 0
    built_at: str | None = None
    """ISO 8601, UTC."""
    adopted_from: str | None = None
    """The earlier dataset's uid, and the generation of it that this one is a copy of: ``3f2b9c1e-…/g7``."""
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    next_free: str | None = None
    """With the reason GenerationExists: the generation to build instead."""
    exit_code: int = 0
    reason: str = ""
    """CamelCase: the error's reason if the build failed, else Built, Adopted, Unchanged or WaitingForSource."""
    may_pass: bool = False
    """Whether a build that failed may succeed though neither manifest nor source changes."""
    message: str = ""

    def to_json(self, limit: int | None = None) -> bytes:
        """One line, at most ``limit`` bytes long: the message is cut to fit."""
        line = orjson.dumps({to_camel_case(name): value for name, value in asdict(self).items()})
        if limit is None or len(line) <= limit:
            return line
        # JSON escapes make a character at most six times as long, so halving ends soon.
        shorter = self.message[: len(self.message) // 2].removesuffix("…")
        return replace(self, message=shorter + "…").to_json(limit if shorter else None)


class GenerationRefused(GateClosed):
    """A gate refused a generation. Those who may override its gates find it in the store, if it is not empty."""

    def __init__(self, message: str, manifest: Manifest | None, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.manifest = manifest
        """Of the refused generation in the store; None if there is nothing to look at."""


def report_manifest(manifest: Manifest) -> BuildReport:
    """What a report says of a generation in the store."""
    totals = manifest.totals
    return BuildReport(
        outcome="built",
        dataset=f"{manifest.namespace}/{manifest.name}",
        generation=manifest.generation,
        fingerprint=manifest.fingerprint,
        success_file=manifest.success_file,
        records=totals.records,
        rejected=manifest.rejected.count,
        duplicates=manifest.duplicates.count,
        record_bytes=totals.key_bytes + totals.value_bytes,
        file_bytes=totals.file_bytes,
        largest_shard_bytes=max(shard.bytes for shard in manifest.shards),
        built_at=manifest.built_at,
        adopted_from=None if manifest.adopted is None else f"{manifest.adopted.uid}/{manifest.adopted.generation}",
        seconds=manifest.seconds,
        reason="Built",
    )


def failure_report(spec: DatasetSpec | None, error: Exception, seconds: float) -> BuildReport:
    """The report of a build that ended with ``error``; ``spec`` is None if the manifest was invalid. Of a refused
    generation that is in the store, it says what a report of success would."""
    lookupdb_error = error if isinstance(error, LookupdbError) else LookupdbError(f"{type(error).__name__}: {error}")
    manifest = error.manifest if isinstance(error, GenerationRefused) else None
    return replace(
        BuildReport(outcome="failed", dataset=_dataset_name(spec)) if manifest is None else report_manifest(manifest),
        outcome="failed",
        seconds=round(seconds, 3),
        peak_memory_bytes=peak_resident(),
        next_free=error.next_free if isinstance(error, GenerationExists) else None,
        exit_code=lookupdb_error.exit_code,
        reason=lookupdb_error.reason,
        may_pass=lookupdb_error.may_pass,
        message=to_utf8(str(lookupdb_error)),
    )


def interruption_report(spec: DatasetSpec | None, exit_code: int, seconds: float) -> BuildReport:
    """The report of a build that a signal ended."""
    return BuildReport(
        outcome="failed",
        dataset=_dataset_name(spec),
        seconds=round(seconds, 3),
        peak_memory_bytes=peak_resident(),
        exit_code=exit_code,
        reason="Interrupted",
        may_pass=True,
        message="the build was interrupted and can be run again: what it may have published is adopted",
    )


def _dataset_name(spec: DatasetSpec | None) -> str:
    return f"{spec.namespace}/{spec.name}" if spec else ""
