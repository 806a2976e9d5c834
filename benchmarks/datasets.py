"""The measured data: generated files, generations built from them, and a sample of keys."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from benchmarks import generators
from benchmarks.machine import BenchError

EXAMPLES: Final = Path(__file__).parents[1] / "examples"
_SUFFIXES: Final = {"recommendations": "jsonl", "persondb": "csv"}


def source(folder: Path, kind: str, rows: int) -> Path:
    """Return the generated file of ``rows`` rows; make it if necessary."""
    path = folder / f"{kind}-{rows}.{_SUFFIXES[kind]}"
    if not path.exists():
        generators.write(kind, rows, path)
    return path


def manifest(folder: Path, kind: str, source: Path, *, shards: int, compression: str) -> Path:
    """Write the example's manifest with another name, source, shard count and compression."""
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{kind}.yaml").read_text())
    name = f"{source.stem}-{compression}-{shards}"
    document["metadata"]["name"] = name
    document["spec"]["source"]["url"] = str(source)
    document["spec"]["shards"] = shards
    document["spec"].setdefault("value", {})["compression"] = compression
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def text_source(source: Path) -> Path:
    """Return the recommendations of ``source`` with products as text; make the file if necessary."""
    path = source.with_name(source.name.replace("recommendations", "recommendations-text"))
    if not path.exists():
        unfinished = path.with_suffix(".tmp")
        with source.open("rb") as lines, unfinished.open("wb") as file:
            for record in map(orjson.loads, lines):
                text = orjson.dumps(record["products"]).decode()
                file.write(orjson.dumps({"customer": record["customer"], "products": text}) + b"\n")
        unfinished.rename(path)
    return path


def raw_manifest(folder: Path, text_source: Path, *, shards: int, compression: str) -> Path:
    """Write ``manifest`` again, for recommendations whose products are raw values."""
    path = manifest(folder, "recommendations", text_source, shards=shards, compression=compression)
    document = yaml.safe_load(path.read_text())
    document["spec"]["value"] = {"column": "products", "format": "raw", "compression": compression}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation that lookupdb built."""

    folder: Path
    namespace: str
    name: str
    uid: str
    generation: str
    records: int
    normalize: tuple[str, ...]
    value_format: str
    built_at: str
    files: tuple[Path, ...]

    @property
    def file_bytes(self) -> int:
        """The size of all shard files."""
        return sum(file.stat().st_size for file in self.files)


def copy(generation: Generation, folder: Path) -> Generation:
    """Copy ``generation``, for a row that changes its files."""
    shutil.copytree(generation.folder, folder)
    return replace(generation, folder=folder, files=tuple(folder / file.name for file in generation.files))


def generation(store: Path, name: str) -> Generation:
    """Return the only generation of dataset ``name`` in the local ``store``. Raises BenchError if there is none."""
    found = sorted(store.glob(f"local/default/{name}-local/*/manifest.json"))
    if len(found) != 1:
        raise BenchError(f"expected one generation of {name} in {store}, found {len(found)}")
    members = orjson.loads(found[0].read_bytes())
    folder = found[0].parent
    return Generation(
        folder=folder,
        namespace=members["namespace"],
        name=members["name"],
        uid=members["uid"],
        generation=members["generation"],
        records=members["totals"]["records"],
        normalize=tuple(members["normalize"]),
        value_format=members["value_format"],
        built_at=members["built_at"],
        files=tuple(folder / shard["file"] for shard in members["shards"]),
    )


@dataclass(frozen=True, slots=True)
class Pairs:
    """A random sample: keys, and the expected values, byte for byte."""

    keys: tuple[bytes, ...]
    values: tuple[bytes, ...]

    def batches(self, size: int) -> list[tuple[tuple[bytes, ...], tuple[bytes, ...]]]:
        """Return the sample in groups of ``size``, without a rest."""
        starts = range(0, len(self.keys) - size + 1, size)
        return [(self.keys[at : at + size], self.values[at : at + size]) for at in starts]


def sample(recommendations: Path, rows: int, count: int, seed: int = 7) -> Pairs:
    """Return ``count`` different random records of a recommendations file of ``rows`` rows, in random order."""
    rng = random.Random(seed)
    wanted = set(rng.sample(range(rows), min(count, rows)))
    with recommendations.open("rb") as file:
        records = [orjson.loads(line) for number, line in enumerate(file) if number in wanted]
    rng.shuffle(records)
    return Pairs(
        tuple(record["customer"].encode() for record in records),
        tuple(orjson.dumps(record["products"]) for record in records),
    )
