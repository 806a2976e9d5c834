"""What a build is told besides the spec: where it may work, what it is called, what may take its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from lookupdb.errors import UsageError
from lookupdb.manifest import GENERATION, Manifest
from lookupdb.spec import DatasetSpec

_UID: Final = re.compile(r"[A-Za-z0-9]{1,8}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class EarlierDataset:
    """The dataset that is named, by its uid or the first eight characters of it, and the generation of it that is
    asked for; None for the newest."""

    uid: str
    generation: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """``UID`` or ``UID/gN``. Raises UsageError."""
        uid, slash, generation = text.partition("/")
        if not _UID.fullmatch(uid) or (slash and not GENERATION.fullmatch(generation)):
            raise UsageError(
                f"a dataset to adopt from is named by its uid, or the first eight characters of it, got {text[:60]!r}",
                hint="give the uid alone, or with one of its generations: 3f2b9c1e or 3f2b9c1e/g7",
            )
        return cls(uid, generation if slash else None)

    def has_built(self, manifest: Manifest, spec: DatasetSpec) -> bool:
        """Whether ``manifest`` says itself that it is of this dataset, and under the name that ``spec`` has."""
        is_named = (manifest.namespace, manifest.name) == (spec.namespace, spec.name)
        return is_named and (manifest.uid == self.uid or (len(self.uid) <= 8 and manifest.uid[:8] == self.uid))


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How to build. The spec says what to build."""

    scratch: Path
    memory_limit: int = 1 << 30
    """Bytes that the build and the processes that it starts may use together."""
    threads: int = 1
    volume: Path | None = None
    """The folder behind volume:// urls."""
    generation: str | None = None
    """The name of the generation; None takes the next free one."""
    build_id: str | None = None
    """What whoever asks calls this very build: of what the store holds, only what was built under this name is taken
    over. None takes over whatever was built to this spec."""
    active: str | None = None
    """The generation that the gates compare with; None takes the newest published that was not refused. If it cannot be
    read, the newest readable one takes its place."""
    active_records: int | None = None
    """How many records the active generation has, for gates to compare with when the store has lost them all."""
    unless_fingerprint: str | None = None
    """Build nothing if the source has this fingerprint and the store holds a generation of it, built to the same
    spec."""
    unless_success_file: str | None = None
    """Build nothing, and do not look at the source, if the success file has this identity and the store holds a
    generation of ``unless_fingerprint``, built to the same spec."""
    seen_success_file: str | None = None
    seen_fingerprint: str | None = None
    """Build nothing if the source has another fingerprint, though the success file is still the one that it was seen
    with: somebody may be writing the next one."""
    unless_refused: str | None = None
    """Build nothing if this generation was refused and another build would come to the same."""
    adopt: EarlierDataset | None = None
    """The earlier dataset whose generation is adopted in place of a build, if this one has nothing of its own yet."""
    local_files: bool = True
    """Whether the build may read files of this machine outside of the volume."""
