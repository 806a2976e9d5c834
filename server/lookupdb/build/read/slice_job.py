"""What crew members get and return: a job as JSON; results as JSON and files of records."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from lookupdb.build.budget import BuildBudget
from lookupdb.build.parse.columns import SeenColumns
from lookupdb.build.read.native_rows import ReportProgress
from lookupdb.build.read.slice_reader import SliceOutcome, SliceReader
from lookupdb.build.scratch import scratch_errors
from lookupdb.build.sort.sample import make_sample
from lookupdb.build.sort.sorter import Sorter
from lookupdb.build.source.fetched_file import LocalFile
from lookupdb.build.source.slices import Slice
from lookupdb.manifest import SourceFile
from lookupdb.spec import DatasetSpec


@dataclass(frozen=True, slots=True)
class SliceResult:
    """What a crew member made of a slice; its files are in the job's folder."""

    outcome: SliceOutcome
    runs: list[str]
    spool: str | None
    sample: str

    def save(self, folder: Path, number: int) -> None:
        """Write the result for ``load``. Raises NotEnoughRoom."""
        with scratch_errors(folder):
            (folder / f"slice-{number:05d}.json").write_bytes(orjson.dumps(asdict(self)))

    def discard(self, folder: Path) -> None:
        """Remove the files: the slice does not hold whole rows."""
        for name in (*self.runs, self.sample, *([self.spool] if self.spool else [])):
            (folder / name).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path, number: int) -> Self:
        """The result that was saved for slice ``number``."""
        members = orjson.loads((folder / f"slice-{number:05d}.json").read_bytes())
        outcome = members.pop("outcome")
        columns, samples = outcome.pop("columns"), [(row, why) for row, why in outcome.pop("samples")]
        seen_columns = None if columns is None else SeenColumns(**columns)
        return cls(outcome=SliceOutcome(columns=seen_columns, samples=samples, **outcome), **members)


@dataclass(frozen=True, slots=True)
class SliceJob:
    """What every crew member needs to know."""

    spec: DatasetSpec
    files: Sequence[LocalFile]
    pieces: Sequence[Slice]
    folder: Path
    """A folder in scratch, for the results."""
    budget: BuildBudget

    def to_json(self) -> bytes:
        """JSON, for a memory file."""
        return orjson.dumps(
            {
                "spec": self.spec.to_json().decode(),
                "files": [asdict(file) for file in self.files],
                "pieces": [asdict(piece) for piece in self.pieces],
                "folder": str(self.folder),
                "budget": asdict(self.budget),
            },
            default=str,
        )

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """The job that ``to_json`` wrote."""
        members = orjson.loads(text)
        return cls(
            DatasetSpec.from_json(members["spec"]),
            [_parse_local_file(file) for file in members["files"]],
            [Slice(**piece) for piece in members["pieces"]],
            Path(members["folder"]),
            BuildBudget(**members["budget"]),
        )

    def read(self, number: int, piece: Slice, report: ReportProgress, *, explains: bool = True) -> SliceResult:
        """Read ``piece``, slice ``number`` of the source, into files. Raises BadSource (see ``SliceReader``),
        NotEnoughRoom."""
        name = f"slice-{number:05d}-{uuid.uuid4().hex[:8]}"
        sample = make_sample(self.budget.sample, sum(file.bytes for file in self.files))
        with Sorter(self.folder, self.budget.sorting, name) as sorter:
            reader = SliceReader(self.spec, sorter, sample, self.budget, 1, report, explains=explains)
            outcome = reader.read(number, piece, self.files[piece.file])
            with scratch_errors(self.folder):
                sample.write_run(self.folder / f"{name}-sample")
            names, spool = sorter.detach()
        return SliceResult(outcome, names, spool, f"{name}-sample")


def _parse_local_file(members: dict[str, Any]) -> LocalFile:
    description, path = SourceFile(**members.pop("description")), Path(members.pop("path"))
    return LocalFile(description=description, path=path, **members)
