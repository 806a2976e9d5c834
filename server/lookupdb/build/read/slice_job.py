"""What is told to those who read slices apart from each other, and what they leave: JSON, and files of records."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from lookupdb.build.budget import Budget
from lookupdb.build.parse.dict_rows import Told
from lookupdb.build.read.slice_reader import Outcome, SliceReader, Tell
from lookupdb.build.sort import runs
from lookupdb.build.sort.sample import Sample
from lookupdb.build.sort.sorter import Sorter
from lookupdb.build.source.fetch import LocalFile, room_in
from lookupdb.build.source.slices import Slice
from lookupdb.manifest import SourceFile
from lookupdb.spec import DatasetSpec


@dataclass(frozen=True, slots=True)
class Left:
    """What came of a slice that was read apart; its files are in the job's folder."""

    outcome: Outcome
    runs: list[str]
    spool: str | None
    sample: str

    def save(self, folder: Path, number: int) -> None:
        """Where ``load`` finds it. Raises NotEnoughRoom."""
        with room_in(folder):
            (folder / f"slice-{number:05d}.json").write_bytes(orjson.dumps(asdict(self)))

    def discard(self, folder: Path) -> None:
        """Remove the files: they hold what is no row."""
        for name in (*self.runs, self.sample, *([self.spool] if self.spool else [])):
            (folder / name).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path, number: int) -> Self:
        """What was saved for slice ``number``."""
        members = orjson.loads((folder / f"slice-{number:05d}.json").read_bytes())
        outcome = members.pop("outcome")
        columns, samples = outcome.pop("columns"), [(row, why) for row, why in outcome.pop("samples")]
        told = None if columns is None else Told(**columns)
        return cls(outcome=Outcome(columns=told, samples=samples, **outcome), **members)


@dataclass(frozen=True, slots=True)
class Job:
    """What everyone who reads slices apart is told."""

    spec: DatasetSpec
    files: Sequence[LocalFile]
    pieces: Sequence[Slice]
    folder: Path
    """In scratch: what comes of the slices is left here."""
    budget: Budget

    def to_json(self) -> bytes:
        """For a memory file."""
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
        """As ``to_json`` wrote it."""
        members = orjson.loads(text)
        return cls(
            DatasetSpec.from_json(members["spec"]),
            [_file(file) for file in members["files"]],
            [Slice(**piece) for piece in members["pieces"]],
            Path(members["folder"]),
            Budget(**members["budget"]),
        )

    def read(self, number: int, piece: Slice, tell: Tell) -> Left:
        """Read ``piece``, the source's slice ``number``, into files. Raises BadSource, NotEnoughRoom."""
        name = f"slice-{number:05d}-{uuid.uuid4().hex[:8]}"
        sample = Sample(self.budget.sample, sum(file.bytes for file in self.files))
        with Sorter(self.folder, self.budget.sorting, name) as sorter:
            reader = SliceReader(self.spec, sorter, sample, self.budget, 1, tell)
            outcome = reader.read(number, piece, self.files[piece.file])
            with room_in(self.folder), (self.folder / f"{name}-sample").open("xb", buffering=0) as file:
                runs.write(file, [sample.records()])
            names, spool = sorter.detach()
        return Left(outcome, names, spool, f"{name}-sample")


def _file(members: dict[str, Any]) -> LocalFile:
    described, path = SourceFile(**members.pop("described")), Path(members.pop("path"))
    return LocalFile(described=described, path=path, **members)
