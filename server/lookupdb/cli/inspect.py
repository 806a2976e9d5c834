"""`lookupdb inspect`: show the contents of a shard file or a generation."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
import orjson

from lookupdb.builder.options import format_quantity
from lookupdb.cli.addressing import GenerationLocator, locator_options
from lookupdb.cli.stores import render_line, render_member
from lookupdb.disk import raise_limit
from lookupdb.errors import StoreError, UsageError
from lookupdb.manifest import FILE_NAME, Manifest, check_shard_size, verify_shard_file
from lookupdb.shardfile import ShardReader
from lookupdb.store.generations import ShardFigures, find_shard_entry, measure_shards, open_shard, sample_records
from lookupdb.wording import format_count

_SHOWN_CHARACTERS: Final = 100  # of a sampled value, without --json; JSON shows more
_SHOWN_FILES: Final = 8


@click.command()
@click.argument("target", metavar="FILE|FOLDER|GENERATION")
@locator_options
@click.option(
    "--verify", "with_checksums", is_flag=True, help="Read every file and compare its checksum with manifest.json."
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
def command(target: str, with_checksums: bool, as_json: bool, **location: Any) -> None:
    """Show the contents of a shard FILE, the FOLDER of a generation, or a GENERATION (gN) in a store.

    \b
        lookupdb inspect g1 --dataset airports
        lookupdb inspect .lookupdb/store/local/default/airports-local/g1 --verify
        lookupdb inspect shard-00000-of-00004.lmdb --json
        lookupdb inspect g12 --store s3://lookups/eu --dataset team/people
    """
    if Path(target).is_file():
        _check_file(Path(target), with_checksum=with_checksums)
        with open_shard(Path(target)) as shard:
            _print_contents(None, [shard], verified=with_checksums, as_json=as_json)
        return
    raise_limit()
    generation = GenerationLocator(**location).find(target, expected="a file, a folder")
    with tempfile.TemporaryDirectory(prefix="lookupdb-inspect-") as scratch:
        if with_checksums:
            for entry in generation.manifest.shards:
                with generation.file(entry, Path(scratch)) as path:
                    verify_shard_file(path, entry)
        with generation.shards(Path(scratch)) as shards:
            _print_contents(generation.manifest, shards, verified=with_checksums, as_json=as_json)


def _check_file(path: Path, *, with_checksum: bool) -> None:
    """Compare a single file with the manifest beside it. Only the checksum requires a manifest."""
    try:
        entry = find_shard_entry(path)
    except StoreError as error:
        if not with_checksum:
            return
        raise UsageError(
            f"--verify has nothing to compare {path} with: {error.message}",
            hint="the checksum is in the generation's manifest.json: put that beside the file, or give the "
            "generation's folder, or gN with --store and --dataset",
        ) from error
    (verify_shard_file if with_checksum else check_shard_size)(path, entry)


def _print_contents(manifest: Manifest | None, shards: Sequence[ShardReader], *, verified: bool, as_json: bool) -> None:
    total, records = measure_shards(shards), sample_records(shards)
    if as_json:
        document = {
            "manifest": asdict(manifest) if manifest else None,
            "shards": [asdict(shard.meta) for shard in shards],
            "figures": {**asdict(total), "compression": round(total.compression, 4)},
            "sample": [{"key": render_member(key), "value": render_member(value)} for key, value in records],
            "verified": verified,
        }
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        return
    described = _describe_manifest(manifest, verified) if manifest else _describe_file(shards[0], verified)
    for name, text in (*described, *_describe_figures(total)):
        click.echo(f"{name:<14} {text}")
    for number, (key, value) in enumerate(records):
        click.echo(f"{'' if number else 'sample':<14} {render_line(key)}  {render_line(value, _SHOWN_CHARACTERS)}")


def _describe_file(shard: ShardReader, verified: bool) -> Iterator[tuple[str, str]]:
    meta = shard.meta
    yield "dataset", meta.dataset
    checked = f", checksum verified by the {FILE_NAME} beside it" if verified else ""
    yield "shard", f"{meta.shard} of {meta.shards}{checked}"
    yield "key", f"normalised: {', '.join(meta.normalize) or 'no'}"
    yield "value", f"{meta.value_format}, {meta.compression}"


def _describe_manifest(manifest: Manifest, verified: bool) -> Iterator[tuple[str, str]]:
    yield "dataset", f"{manifest.namespace}/{manifest.name} ({manifest.uid})"
    built = f"built {manifest.built_at} in {manifest.seconds:.1f} s by lookupdb {manifest.lookupdb}"
    yield "generation", f"{manifest.generation}, {built}"
    if manifest.refused is not None:
        yield from _describe_reasons("refused", manifest.refused.reasons)
    yield from _describe_reasons("overridden", manifest.overridden)
    size = sum(file.bytes for file in manifest.source)
    yield (
        "source files",
        f"{len(manifest.source)}, {format_quantity(size, 'bytes')}, fingerprint {manifest.fingerprint}",
    )
    for file in manifest.source[:_SHOWN_FILES]:
        yield "", f"{file.url} ({format_quantity(file.bytes, 'bytes')})"
    steps = f", then {', '.join(manifest.normalize)}" if manifest.normalize else ""
    columns = f" {manifest.separator} ".join(manifest.key_columns)
    yield "key", (columns or "names of members") + steps
    yield "value", f"{manifest.value_format}, {manifest.compression}"
    if manifest.dictionary is not None:
        yield "dictionary", str(manifest.dictionary)
    for name, rows in (("rejected", manifest.rejected), ("duplicates", manifest.duplicates)):
        yield name, format_count(rows.count, "row")
        for row in rows.samples[:3]:
            yield "", f"row {row.row} of {row.file}: {row.reason}"
    checked = ", checksums verified" if verified else ""
    yield "shards", f"{len(manifest.shards)}{checked}"
    for shard in manifest.shards[:_SHOWN_FILES]:
        size_text = format_quantity(shard.bytes, "bytes")
        yield "", f"{shard.file}  {format_count(shard.records, 'record')}  {size_text}  sha256 {shard.sha256[:16]}…"
    if len(manifest.shards) > _SHOWN_FILES:
        yield "", f"and {len(manifest.shards) - _SHOWN_FILES} more"


def _describe_reasons(name: str, reasons: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the reasons of failed gates, one a line."""
    lines = [line for reason in reasons for line in reason.splitlines()]
    yield from (("" if number else name, line) for number, line in enumerate(lines))


def _describe_figures(total: ShardFigures) -> Iterator[tuple[str, str]]:
    yield "records", f"{total.records:,} in {format_quantity(total.file_bytes, 'bytes')}"
    sizes = {"key": total.key_bytes, "value": total.value_bytes, "stored": total.stored_bytes, "file": total.file_bytes}
    yield "bytes/record", ", ".join(f"{name} {total.per_record(size):.1f}" for name, size in sizes.items())
    dictionary = format_quantity(total.dictionary_bytes, "bytes") if total.dictionary_bytes else "none"
    yield "compression", f"stored : value = {total.compression:.3f}, dictionary {dictionary}"
    share = 100 * total.overflow_waste_bytes / total.file_bytes if total.file_bytes else 0.0
    wasted = f"{format_quantity(total.overflow_waste_bytes, 'bytes')} in them are unused, {share:.1f} % of the files"
    yield "overflow pages", f"{total.overflow_pages:,}" + (f"; {wasted}" if total.overflow_pages else "")
