"""`lookupdb diff`: compare the records of two generations."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
import orjson

from lookupdb.builder.gate_facts import compare_stored
from lookupdb.cli.addressing import GenerationLocator, locator_options
from lookupdb.cli.output import render_line, render_member
from lookupdb.cli.program import ended_in_time
from lookupdb.errors import UsageError
from lookupdb.process.launch import drop_unwritten
from lookupdb.process.limits import raise_limit
from lookupdb.store.stored_generation import (
    SAMPLES,
    GenerationDifference,
    KeyChange,
    StoredGeneration,
    compare_generations,
)
from lookupdb.wording import format_count

_SHOWN_CHARACTERS: Final = 200
_MAX_SAMPLES: Final = 100


@click.command()
@click.argument("before", metavar="G1")
@click.argument("after", metavar="G2")
@locator_options
@click.option(
    "--sampled",
    envvar="LOOKUPDB_SAMPLED",
    show_envvar=True,
    is_flag=True,
    help="Compare a sample of about 100,000 keys, chosen by hash.",
)
@click.option(
    "--samples",
    envvar="LOOKUPDB_SAMPLES",
    show_envvar=True,
    type=click.IntRange(0, _MAX_SAMPLES),
    default=SAMPLES,
    show_default=True,
    help="Number of keys to show for each kind of change; at most 10 with --sampled.",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
@click.option("--exit-code", "with_exit_code", is_flag=True, help="Exit with 1 if there are differences.")
def command(
    before: str, after: str, sampled: bool, samples: int, as_json: bool, with_exit_code: bool, **location: Any
) -> None:
    """Compare the records of two generations: keys added, removed and changed, with counts and samples.

    Each argument is a generation's folder, or gN of a dataset in a store. They may have different numbers of shards.

    --sampled reads only the first shards, at most a gigabyte of the first generation. The counts are then those of the
    compared keys.

    \b
        lookupdb diff g11 g12 --dataset airports
        lookupdb diff g11 g12 --store s3://lookups/production --sampled
        lookupdb diff ./old ./new --exit-code
    """
    raise_limit()
    scratch: list[Path] = []

    def clean_up(_code: int) -> None:
        for folder in scratch:
            shutil.rmtree(folder, ignore_errors=True)

    with ended_in_time(clean_up):
        locator = GenerationLocator(**location)
        old, new = locator.find(before), locator.find(after)
        if old.where == new.where:
            raise UsageError(f"{before} and {after} are the same generation", hint="give two different ones")
        for generation in (old, new):
            generation.check_files()  # shards with equal checksums are never opened
        with tempfile.TemporaryDirectory(prefix="lookupdb-diff-") as folder:
            scratch.append(Path(folder))
            if sampled:
                found = compare_stored(old, new, Path(folder))
                keys = {
                    kind: [KeyChange(key, None, None) for key in part[:samples]] for kind, part in found.samples.items()
                }
                difference = GenerationDifference(found.added, found.removed, found.changed, found.same, keys, samples)
                is_whole = found.is_whole
            else:
                difference, is_whole = compare_generations(old, new, Path(folder), samples), True
    facts = old, new, difference, is_whole
    try:
        click.echo(_render_json(*facts) if as_json else "\n".join(_render_lines(*facts)))
    except BrokenPipeError:
        if not with_exit_code:
            raise
        drop_unwritten()  # the reader has closed the pipe; the exit code still matters
    if with_exit_code and difference.has_changes:
        sys.exit(1)


def _render_lines(
    old: StoredGeneration, new: StoredGeneration, difference: GenerationDifference, is_whole: bool
) -> Iterator[str]:
    yield f"before   {old.manifest.generation}, {format_count(old.manifest.totals.records, 'record')}, {old.where}"
    yield f"after    {new.manifest.generation}, {format_count(new.manifest.totals.records, 'record')}, {new.where}"
    if old.manifest.normalize != new.manifest.normalize:
        yield f"note     keys are normalised differently: {old.manifest.normalize} and {new.manifest.normalize}"
    if not is_whole:
        yield "note     these are the keys that were compared, and not all"
    yield f"same     {difference.same:,}"
    for kind, count in (("added", difference.added), ("removed", difference.removed), ("changed", difference.changed)):
        yield f"{kind:<8} {count:,}"
        for change in difference.samples[kind]:
            yield f"    {render_line(change.key)}"
            if change.before is not None:
                yield f"      - {render_line(change.before, _SHOWN_CHARACTERS)}"
            if change.after is not None:
                yield f"      + {render_line(change.after, _SHOWN_CHARACTERS)}"
        if count > len(difference.samples[kind]):
            yield f"    and {count - len(difference.samples[kind]):,} more"


def _render_json(
    old: StoredGeneration, new: StoredGeneration, difference: GenerationDifference, is_whole: bool
) -> bytes:
    document = {
        "before": {"generation": old.manifest.generation, "records": old.manifest.totals.records, "where": old.where},
        "after": {"generation": new.manifest.generation, "records": new.manifest.totals.records, "where": new.where},
        "added": difference.added,
        "removed": difference.removed,
        "changed": difference.changed,
        "same": difference.same,
        "isWhole": is_whole,
        "samples": {
            kind: [
                {name: None if data is None else render_member(data) for name, data in asdict(change).items()}
                for change in changes
            ]
            for kind, changes in difference.samples.items()
        },
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)
