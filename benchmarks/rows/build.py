"""The cost of loading the data, and their size."""

from __future__ import annotations

from benchmarks import datasets
from benchmarks.arena import SHARDS, Arena, cost_name
from benchmarks.results import OURS, PICKLE, PYTHON, REDIS, SOURCE, SQLITE, UNCOMPRESSED, Result, Side, single

_PEAK_NOTE = "Summed over processes. Redis: the loading program; *Private memory* has its server's."


def time_and_memory(arena: Arena) -> list[Result]:
    """Build the example (four shards, compressed) and load the same file elsewhere, in turns."""
    name = arena.generation(shards=SHARDS).name
    port, manifest = arena.redis[1], arena.run / f"{name}.yaml"
    for number in range(arena.settings.builds):
        if number:  # the first one is served
            arena.build(manifest)
            arena.load_redis(port)
        arena.build(manifest, "python")
    _files(arena)
    ours = {OURS: name, PYTHON: cost_name(name, "python")}
    labels = {REDIS: "redis", PICKLE: "pickle", SQLITE: "sqlite", **ours}
    times = {label: Side(tuple(c.seconds for c in arena.costs[key])) for label, key in labels.items()}
    peaks = {label: Side(tuple(c.peak_bytes for c in arena.costs[key])) for label, key in labels.items()}
    title = "recommendations, both cores"
    return [
        Result("build-time", f"Build or load of {title}", "s", times, "", (REDIS, PICKLE, SQLITE)),
        Result("build-memory", f"Peak memory of building or loading {title}", "bytes", peaks, _PEAK_NOTE, (REDIS,)),
    ]


def disk(arena: Arena) -> list[Result]:
    """Sizes of files. Without compression, LMDB's default page layout shows."""
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
    arena.build(arena.run / f"{generation.name}.yaml", "python")
    costs = {OURS: arena.costs[generation.name], PYTHON: arena.costs[cost_name(generation.name, "python")]}
    speeds = {side: single(*(rows / cost.seconds for cost in found)) for side, found in costs.items()}
    peaks = {side: single(*(cost.peak_bytes for cost in found)) for side, found in costs.items()}
    sizes = {SOURCE: single(source.stat().st_size), OURS: single(generation.file_bytes)}
    return [
        Result("persons-speed", f"Build of {rows:,} persons, both cores", "records/s", speeds),
        Result("persons-memory", f"Peak memory of building {rows:,} persons", "bytes", peaks),
        Result("persons-disk", f"{rows:,} persons on disk", "bytes", sizes, "", (SOURCE,)),
    ]


def _files(arena: Arena) -> tuple[int, int]:
    paths = {kind: arena.run / f"recommendations.{kind}" for kind in ("pickle", "sqlite")}
    for kind, path in paths.items():
        if not path.exists():
            arena.load(kind, str(path))
    return paths["pickle"].stat().st_size, paths["sqlite"].stat().st_size
