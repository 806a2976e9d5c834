"""`lookupdb build --explain`: what a build would do, in words, from the spec, the source's listing and the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lookupdb import shardfile
from lookupdb.build import existing_generations, pipeline
from lookupdb.build.budget import least_limit
from lookupdb.build.parse.csv_headers import check_headers
from lookupdb.build.progress_display import quantity
from lookupdb.build.source.listing import SourceObject, fingerprint, resolve
from lookupdb.build.write.generation_writer import open_files
from lookupdb.manifest import Manifest
from lookupdb.runtime.descriptors import raise_limit
from lookupdb.spec import DatasetSpec, Gates
from lookupdb.store import Dataset, Store
from lookupdb.store.directory import free_bytes
from lookupdb.wording import counted

_SHOWN_FILES = 20


def explain(spec: DatasetSpec, store: Store, options: pipeline.Options) -> str:
    """Several lines. Reads the source's listing, the headers of CSV files that are here and the store. Writes nothing.

    Raises what ``build`` would before it reads the data."""
    pipeline.check_room(spec, options)
    objects = resolve(spec, volume=options.volume, local_files=options.local_files)
    check_headers(spec, objects)
    dataset = store.dataset(spec)
    active = existing_generations.active_manifest(dataset, options.active, spec.gates)
    generation = options.generation or dataset.next_generation()
    source_bytes = sum(one.described.bytes for one in objects)
    parts: list[tuple[str, Sequence[str]]] = [
        ("dataset", [f"{spec.namespace}/{spec.name}"]),
        ("source", list(_source(objects))),
        ("format", list(_format(spec, objects))),
        ("key", list(_key(spec))),
        ("value", [_value(spec)]),
        ("duplicates", [_duplicates(spec)]),
        ("shards", [f"{spec.shards}: {_shard_names(spec.shards)}"]),
        ("gates", list(_gates(spec.gates, active))),
        ("memory", [_memory(spec, options)]),
        ("open files", [f"{open_files(spec.shards):,} at most, {raise_limit():,} allowed"]),
        ("scratch", [_room(options, source_bytes)]),
        ("target", [f"{dataset.url}/{generation}", *_store_room(dataset.free_bytes())]),
        ("fingerprint", [_fingerprint(objects, options, dataset, spec)]),
    ]
    return "\n".join(
        f"{name if number == 0 else '':<12} {line}" for name, lines in parts for number, line in enumerate(lines)
    )


def _source(objects: Sequence[SourceObject]) -> Iterator[str]:
    total = sum(one.described.bytes for one in objects)
    yield f"{counted(len(objects), 'file')}, {quantity(total, 'bytes')}"
    for one in objects[:_SHOWN_FILES]:
        modified = f", {one.described.modified}" if one.described.modified else ""
        yield f"  {one.described.url} ({quantity(one.described.bytes, 'bytes')}{modified})"
    if len(objects) > _SHOWN_FILES:
        yield f"  and {len(objects) - _SHOWN_FILES:,} more"


def _format(spec: DatasetSpec, objects: Sequence[SourceObject]) -> Iterator[str]:
    source = spec.source
    for form, compression in sorted({(one.format, one.compression) for one in objects}):
        yield f"{form}, compression {compression}"
    delimiters = sorted({one.delimiter for one in objects if one.format == "csv"})
    if delimiters:
        header = "the first row names the columns" if source.csv.header else "the manifest names the columns"
        yield f"delimiter {', '.join(map(repr, delimiters))}, quote {source.csv.quote!r}, {header}"
        for column in source.csv.columns:
            empty = ", empty is null" if column.empty == "null" else ""
            yield f"  {column.name}: {column.type}{empty}"


def _key(spec: DatasetSpec) -> Iterator[str]:
    joined = f" joined by {spec.key.separator!r}" if len(spec.key.columns) > 1 else ""
    steps = f", then {', '.join(spec.key.normalize)}" if spec.key.normalize else ", as it is"
    what = "the names of the object's members" if spec.key.member_names else ", ".join(spec.key.columns)
    yield f"{what}{joined}{steps}"


def _value(spec: DatasetSpec) -> str:
    value = spec.value
    if value.column:
        what = f"the column {value.column}"
    elif value.field:
        what = f"the field {value.field}"
    elif value.columns is not None:
        what = f"the columns {', '.join(value.columns)}"
    elif spec.key.member_names:
        what = "all that the member holds"
    else:
        what = "all columns but the key's"
    return f"{what}, as {value.format}, compression {value.compression}, at most {quantity(value.max_bytes, 'bytes')}"


def _duplicates(spec: DatasetSpec) -> str:
    return {
        "fail": "the build fails when a key stands twice",
        "first": "of rows with one key, the first is kept",
        "last": "of rows with one key, the last is kept",
    }[spec.duplicates]


def _shard_names(shards: int) -> str:
    first = shardfile.file_name(0, shards)
    return first if shards == 1 else f"{first} … {shardfile.file_name(shards - 1, shards)}"


def _gates(gates: Gates, active: Manifest | None) -> Iterator[str]:
    yield f"at least {counted(gates.min_records, 'record')}, at most {counted(gates.max_rejected_rows, 'rejected row')}"
    against = f"{active.generation} with {counted(active.totals.records, 'record')}" if active else "no generation yet"
    for percent, word in ((gates.max_shrink_percent, "fewer"), (gates.max_growth_percent, "more")):
        if percent is not None:
            yield f"at most {percent} % {word} records than the active generation ({against})"
    if gates.required_keys:
        yield f"these keys are found: {', '.join(map(repr, gates.required_keys))}"


def _memory(spec: DatasetSpec, options: pipeline.Options) -> str:
    limit, least = quantity(options.memory_limit, "bytes"), quantity(least_limit(spec.shards), "bytes")
    return f"{limit} at most, on {options.threads} cores; so many shards need {least}"


def _room(options: pipeline.Options, source_bytes: int) -> str:
    free = free_bytes(options.scratch)
    return (
        f"{options.scratch}, {quantity(free, 'bytes')} free; needed: about twice the uncompressed source "
        f"(the files as they are: {quantity(source_bytes, 'bytes')})"
    )


def _store_room(free: int | None) -> list[str]:
    return [] if free is None else [f"{quantity(free, 'bytes')} free"]


def _fingerprint(
    objects: Sequence[SourceObject], options: pipeline.Options, dataset: Dataset, spec: DatasetSpec
) -> str:
    found = fingerprint(objects)
    if found is None:
        return "known once the source is read: its server tells neither ETag nor Last-Modified"
    if options.unless_fingerprint is None:
        return found
    if found != options.unless_fingerprint:
        return f"{found}, not the one given"
    if not existing_generations.holds(dataset, spec, found):
        return f"{found}, as given, and no whole generation of it and this spec is in the store"
    return f"{found}, as given: nothing would be built"
