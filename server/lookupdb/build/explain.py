"""`lookupdb build --explain`: says in words what a build would do, from the spec, the source's listing and the
store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from lookupdb import shard_name
from lookupdb.build import existing_generations, pipeline
from lookupdb.build.budget import BuildBudget, min_memory_limit
from lookupdb.build.build_options import BuildOptions
from lookupdb.build.explained_refresh import describe_refresh
from lookupdb.build.gates import ActiveGeneration
from lookupdb.build.progress import format_quantity
from lookupdb.build.source.listing import SourceObject, resolve_source, source_fingerprint
from lookupdb.build.source_columns import describe_columns, describe_readers
from lookupdb.build.write.generation_writer import max_open_files
from lookupdb.cluster_fields import describe_left_out
from lookupdb.runtime.descriptors import raise_limit
from lookupdb.spec import LOCAL, DatasetSpec, Gates
from lookupdb.store import Store, StoredDataset
from lookupdb.store.directory import free_bytes
from lookupdb.wording import format_count, strip_secrets

_SHOWN_FILES: Final = 20


def explain_build(spec: DatasetSpec, store: Store, options: BuildOptions) -> str:
    """Several lines of text. Reads the source's listing, the columns of its local files, and the store; writes nothing.

    Raises what ``build_generation`` would raise before it reads the data.
    """
    pipeline.check_resources(spec, options)
    success_file = pipeline.find_success_file(spec, options)
    objects = resolve_source(spec, volume=options.volume, local_files=options.local_files)
    pipeline.check_seen(spec, options, success_file, source_fingerprint(objects))
    budget = BuildBudget.for_build(options.memory_limit, shards=spec.shards, threads=options.threads)
    column_lines = list(describe_columns(spec, objects, budget))
    dataset = store.dataset(spec)
    active = existing_generations.find_active(dataset, options.active, options.active_records, spec.gates)
    generation = options.generation or dataset.next_generation()
    now = datetime.now(UTC)
    source_bytes = sum(item.description.bytes for item in objects)
    parts: list[tuple[str, Sequence[str]]] = [
        ("dataset", [f"{spec.namespace}/{spec.name}"]),
        ("source", list(_source_lines(objects))),
        ("success file", list(_success_file_line(spec, success_file, options))),
        ("refresh", list(describe_refresh(spec.refresh, uid=spec.uid, is_suspended=spec.suspend, now=now))),
        ("format", list(_format_lines(spec, objects))),
        ("columns", column_lines),
        ("read by", list(describe_readers(spec, objects))),
        ("key", list(_key_line(spec))),
        ("value", [_value_line(spec)]),
        ("duplicates", [_duplicates_line(spec)]),
        ("shards", [f"{spec.shards}: {_shard_names(spec.shards)}"]),
        ("gates", list(_gate_lines(spec.gates, active))),
        ("memory", [_memory_line(spec, options)]),
        ("open files", [f"{max_open_files(spec.shards):,} at most, {raise_limit():,} allowed"]),
        ("scratch", [_scratch_line(options, source_bytes)]),
        ("target", [f"{dataset.url}/{generation}", *_store_room_lines(dataset)]),
        ("fingerprint", [_fingerprint_line(objects, options, dataset, spec)]),
        ("left out", list(_left_out_lines(spec, options))),
    ]
    return "\n".join(
        f"{name if number == 0 else '':<12} {line}" for name, lines in parts for number, line in enumerate(lines)
    )


def _source_lines(objects: Sequence[SourceObject]) -> Iterator[str]:
    total = sum(item.description.bytes for item in objects)
    yield f"{format_count(len(objects), 'file')}, {format_quantity(total, 'bytes')}"
    for item in objects[:_SHOWN_FILES]:
        modified = f", {item.description.modified}" if item.description.modified else ""
        yield f"  {item.description.url} ({format_quantity(item.description.bytes, 'bytes')}{modified})"
    if len(objects) > _SHOWN_FILES:
        yield f"  and {len(objects) - _SHOWN_FILES:,} more"


def _success_file_line(spec: DatasetSpec, success_file: str | None, options: BuildOptions) -> Iterator[str]:
    if spec.refresh.success_file is None:
        return
    if success_file is None:
        yield f"{strip_secrets(spec.refresh.success_file)} is not there: the build would wait for it"
    elif success_file == options.unless_success_file:
        yield f"{success_file}, as given: nothing would be read"
    else:
        yield success_file


def _format_lines(spec: DatasetSpec, objects: Sequence[SourceObject]) -> Iterator[str]:
    source = spec.source
    for file_format, compression in sorted({(item.format, item.compression) for item in objects}):
        yield f"{file_format}, compression {compression}"
    delimiters = sorted({item.delimiter for item in objects if item.format == "csv"})
    if delimiters:
        header = "the first row names the columns" if source.csv.header else "the manifest names the columns"
        escape = f", escape '{source.csv.escape}'" if source.csv.escape else ""
        yield f"delimiter {', '.join(map(repr, delimiters))}, quote {source.csv.quote!r}{escape}, {header}"
        if source.csv.null_values:
            nulls = " or ".join(f"'{text}'" for text in source.csv.null_values)
            yield f"  unquoted {nulls} is null"
        for column in source.csv.columns:
            empty = ", empty is null" if column.empty == "null" else ""
            yield f"  {column.name}: {column.type}{empty}"


def _key_line(spec: DatasetSpec) -> Iterator[str]:
    is_joined = len(spec.key.columns) > 1
    joined = f" joined by {spec.key.separator!r}" if is_joined else ""
    then = ", then, on the joined text, " if is_joined else ", then "
    steps = f"{then}{', '.join(spec.key.normalize)}" if spec.key.normalize else ", as it is"
    what = "the names of the object's members" if spec.key.member_names else ", ".join(spec.key.columns)
    yield f"{what}{joined}{steps}"


def _value_line(spec: DatasetSpec) -> str:
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
    most = format_quantity(value.max_bytes, "bytes")
    return f"{what}, as {value.format}, compression {value.compression}, at most {most}"


def _duplicates_line(spec: DatasetSpec) -> str:
    return {
        "fail": "the build fails when a key occurs twice",
        "first": "of rows with one key, the first is kept",
        "last": "of rows with one key, the last is kept",
    }[spec.duplicates]


def _shard_names(shards: int) -> str:
    first = shard_name.file_name(0, shards)
    return first if shards == 1 else f"{first} … {shard_name.file_name(shards - 1, shards)}"


def _gate_lines(gates: Gates, active: ActiveGeneration | None) -> Iterator[str]:
    rejected = format_count(gates.max_rejected_rows, "rejected row")
    yield f"at least {format_count(gates.min_records, 'record')}, at most {rejected}"
    baseline = f"{active.generation} with {format_count(active.records, 'record')}" if active else "no generation yet"
    for percent, word in ((gates.max_shrink_percent, "fewer"), (gates.max_growth_percent, "more")):
        if percent is not None:
            yield f"at most {percent} % {word} records than the active generation ({baseline})"
    if gates.max_changed_percent is not None:
        yield f"at most {gates.max_changed_percent} % of the keys differ from it"
    if gates.max_value_bytes is not None:
        yield f"values of at most {gates.max_value_bytes:,} bytes"
    if gates.required_keys:
        yield f"these keys are found: {', '.join(map(repr, gates.required_keys))}"
    if gates.expected_values:
        keys = ", ".join(repr(expected.key) for expected in gates.expected_values)
        yield f"these keys have the values that are expected: {keys}"


def _memory_line(spec: DatasetSpec, options: BuildOptions) -> str:
    limit, least = (
        format_quantity(options.memory_limit, "bytes"),
        format_quantity(min_memory_limit(spec.shards), "bytes"),
    )
    return f"{limit} at most, on {options.threads} cores; so many shards need {least}"


def _scratch_line(options: BuildOptions, source_bytes: int) -> str:
    free = free_bytes(options.scratch)
    return (
        f"{options.scratch}, {format_quantity(free, 'bytes')} free; needed: about twice the uncompressed source "
        f"(the files as they are: {format_quantity(source_bytes, 'bytes')})"
    )


def _store_room_lines(dataset: StoredDataset) -> Iterator[str]:
    if obstacle := dataset.find_write_obstacle():
        yield f"the build would fail: {obstacle}"
    elif (free := dataset.free_bytes()) is not None:
        yield f"{format_quantity(free, 'bytes')} free"


def _left_out_lines(spec: DatasetSpec, options: BuildOptions) -> Iterator[str]:
    """What holds in a cluster alone; nothing in one, which gives a dataset its uid."""
    if spec.uid != LOCAL:
        return
    yield from describe_left_out(path for path in spec.cluster_fields if path != "adopt" or options.adopt is None)


def _fingerprint_line(
    objects: Sequence[SourceObject], options: BuildOptions, dataset: StoredDataset, spec: DatasetSpec
) -> str:
    fingerprint = source_fingerprint(objects)
    if fingerprint is None:
        return "known once the source is read: its server sends neither ETag nor Last-Modified"
    if options.unless_fingerprint is None:
        return fingerprint
    if fingerprint != options.unless_fingerprint:
        return f"{fingerprint}, not the one given"
    if not existing_generations.has_generation(dataset, spec, fingerprint):
        return f"{fingerprint}, as given, and no whole generation of it and this spec is in the store"
    return f"{fingerprint}, as given: nothing would be built"
