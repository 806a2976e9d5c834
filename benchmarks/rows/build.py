"""What it costs to put the data in place, and how large it is there."""

from __future__ import annotations

from benchmarks import datasets
from benchmarks.arena import SHARDS, Arena
from benchmarks.results import OURS, PICKLE, REDIS, SOURCE, SQLITE, UNCOMPRESSED, Result, Side, single

_PEAK_NOTE = "Summed over processes. Redis: of the loading program; the server's own memory is in the memory row."


def time_and_memory(arena: Arena) -> list[Result]:
    """Build the example (four shards, compressed) and load the same file elsewhere, in turns."""
    name = arena.generation(shards=SHARDS).name
    port = arena.redis[1]
    for _ in range(arena.settings.builds - 1):
        arena.build(arena.run / f"{name}.yaml")
        arena.load_redis(port)
    _files(arena)
    labels = {REDIS: "redis", PICKLE: "pickle", SQLITE: "sqlite", OURS: name}
    times = {label: Side(tuple(c.seconds for c in arena.costs[key])) for label, key in labels.items()}
    peaks = {label: Side(tuple(c.peak_bytes for c in arena.costs[key])) for label, key in labels.items()}
    title = "recommendations, both cores"
    return [
        Result("build-time", f"Build or load of {title}", "s", times, "", (REDIS, PICKLE, SQLITE)),
        Result("build-memory", f"Peak memory of building or loading {title}", "bytes", peaks, _PEAK_NOTE, (REDIS,)),
    ]


def disk(arena: Arena) -> list[Result]:
    """Bytes of files. Without compression the default page layout of LMDB shows."""
    pickle, sqlite = _files(arena)
    sides = {
        SOURCE: single(arena.source.stat().st_size),
        PICKLE: single(pickle),
        SQLITE: single(sqlite),
        UNCOMPRESSED: single(arena.generation(compression="none").file_bytes),
        OURS: single(arena.generation(shards=SHARDS).file_bytes),
    }
    return [Result("disk", "Recommendations on disk", "bytes", sides, "", (SOURCE,))]


def persons(arena: Arena) -> list[Result]:
    """The person database: many small records, keys that are normalised."""
    rows = arena.settings.persons
    arena.say(f"generating {rows:,} persons, unless that was done before")
    source = datasets.source(arena.folder / "data", "persondb", rows)
    generation = arena.built(source, "persondb", shards=SHARDS, compression="zstd")
    (cost,) = arena.costs[generation.name]
    sizes = {SOURCE: single(source.stat().st_size), OURS: single(generation.file_bytes)}
    return [
        Result("persons-time", f"Build of {rows:,} persons", "s", {OURS: single(cost.seconds)}),
        Result("persons-memory", f"Peak memory of building {rows:,} persons", "bytes", {OURS: single(cost.peak_bytes)}),
        Result("persons-disk", f"{rows:,} persons on disk", "bytes", sizes, "", (SOURCE,)),
    ]


def _files(arena: Arena) -> tuple[int, int]:
    paths = {kind: arena.run / f"recommendations.{kind}" for kind in ("pickle", "sqlite")}
    for kind, path in paths.items():
        if not path.exists():
            arena.load(kind, str(path))
    return paths["pickle"].stat().st_size, paths["sqlite"].stat().st_size
