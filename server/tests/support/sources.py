"""Reads a source given as file contents, as a build does, and gives its sorted records."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lookupdb.builder.build import SortedRecords
from lookupdb.builder.core import PARALLEL_FROM
from lookupdb.builder.listing import fetch_files, open_source
from lookupdb.builder.options import BuildBudget, Progress, SilentProgress
from lookupdb.dataset.spec import DatasetSpec, parse_resource
from lookupdb.manifest import ExcludedRows

MEMORY = 512 << 20


@dataclass(frozen=True)
class Read:
    """The result of reading a source."""

    records: list[tuple[bytes, bytes, int, int]]
    """Key, value, number of the file, row."""
    rows: int
    rejected: ExcludedRows
    sample: list[bytes]

    @property
    def values(self) -> dict[str, str]:
        return {key.decode(): value.decode() for key, value, _, _ in self.records}

    @property
    def reasons(self) -> list[tuple[int, str]]:
        return [(sample.row, sample.reason) for sample in self.rejected.samples]


def dataset(
    base: Path | None,
    url: str | list[str],
    key: str | list[str] = "k",
    *,
    normalize: tuple[str, ...] = (),
    separator: str = ":",
    **spec: Any,
) -> DatasetSpec:
    """A spec in the schema's own words; ``source`` adds to the url."""
    urls = {("url" if isinstance(url, str) else "urls"): url} if url else {}
    spec["source"] = {**urls, **spec.get("source", {})}
    columns = [key] if isinstance(key, str) else key
    spec["key"] = {"columns": columns, "normalize": list(normalize), "separator": separator}
    resource = {
        "apiVersion": "lookupdb.dev/v1alpha1",
        "kind": "LookupDataset",
        "metadata": {"name": "test"},
        "spec": spec,
    }
    return replace(_parse(json.dumps(resource)), base=base)


@functools.cache
def _parse(resource: str) -> DatasetSpec:
    """Parse each spec once: this takes most of the time in which a small file is read, and many tests share a spec."""
    return parse_resource(json.loads(resource))


def read(
    spec: DatasetSpec,
    scratch: Path,
    memory: int = MEMORY,
    progress: Progress | None = None,
    parallel_from: int = PARALLEL_FROM,
    volume: Path | None = None,
) -> Read:
    """Resolve, fetch, parse and sort."""
    scratch.mkdir(exist_ok=True)
    progress = progress or SilentProgress()
    files = fetch_files(open_source(spec, volume=volume).list_files(), scratch, progress)
    with SortedRecords(spec, files, scratch, memory, 2, progress, parallel_from) as records:
        found = [(key, value, *records.find_origin(place)) for batch in records for key, place, value in batch]
        return Read(found, records.rows, records.rejected, records.sample)


def read_file(folder: Path, name: str, content: bytes | str, key: str | list[str] = "k", **spec: Any) -> Read:
    """The records of one file called ``name``."""
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return read(dataset(folder, name, key, **spec), folder / "scratch")


@pytest.fixture
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit rows to 1 MiB, a sixteenth of the least that a build allows, so that files beyond it are small as well."""
    budget = BuildBudget.for_build
    monkeypatch.setattr(
        BuildBudget, "for_build", lambda *words, **options: replace(budget(*words, **options), row=1 << 20)
    )
