"""What a build reports at its end: one line of JSON, for people, for scripts and for the operator."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

import orjson

from lookupdb.errors import LookupdbError
from lookupdb.naming import to_camel_case
from lookupdb.runtime.memory import peak_resident
from lookupdb.spec import DatasetSpec

log = logging.getLogger(__name__)

MAX_BYTES: Final = 4096
"""Kubernetes keeps no more of a termination message."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """How a build ended. Record bytes count keys and values. Peak memory covers all processes if the build read its
    source, else the main process."""

    outcome: Literal["built", "adopted", "unchanged", "waiting", "failed"]
    """Waiting: the success file is not there, and the source was not read. Adopted: the store already held the
    generation, built to this very spec by a builder that died before it could report."""
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
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    exit_code: int = 0
    reason: str = ""
    """CamelCase: the error's reason if the build failed, else Built, Adopted, Unchanged or WaitingForSource."""
    message: str = ""

    def to_json(self, limit: int | None = None) -> bytes:
        """One line, at most ``limit`` bytes long: the message is cut to fit."""
        line = orjson.dumps({to_camel_case(name): value for name, value in asdict(self).items()})
        if limit is None or len(line) <= limit:
            return line
        # JSON escapes make a character at most six times as long, so halving ends soon.
        shorter = self.message[: len(self.message) // 2].removesuffix("…")
        return replace(self, message=shorter + "…").to_json(limit if shorter else None)


def failure_report(spec: DatasetSpec | None, error: Exception, seconds: float) -> BuildReport:
    """The report of a build that ended with ``error``; ``spec`` is None if the manifest was invalid."""
    lookupdb_error = error if isinstance(error, LookupdbError) else LookupdbError(f"{type(error).__name__}: {error}")
    return BuildReport(
        outcome="failed",
        dataset=_dataset_name(spec),
        seconds=round(seconds, 3),
        peak_memory_bytes=peak_resident(),
        exit_code=lookupdb_error.exit_code,
        reason=lookupdb_error.reason,
        message=str(lookupdb_error),
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
        message="the build was interrupted and can be run again: what it may have published is adopted",
    )


def _dataset_name(spec: DatasetSpec | None) -> str:
    return f"{spec.namespace}/{spec.name}" if spec else ""
