"""`lookupdb diff`: compare the records of two generations."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import orjson

from lookupdb.cli.addressing import Place, place_options
from lookupdb.errors import UsageError
from lookupdb.store.difference import GenerationDifference, KeyChange, compare_generations
from lookupdb.store.stored_generation import StoredGeneration

_SHOWN_CHARACTERS: Final = 200


@click.command()
@click.argument("before", metavar="G1")
@click.argument("after", metavar="G2")
@place_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
@click.option("--exit-code", "tells", is_flag=True, help="End with 1 when there are differences.")
def command(before: str, after: str, as_json: bool, tells: bool, **place: Any) -> None:
    """Compare the records of two generations: keys added, removed and changed, with counts and samples.

    Each is a generation's folder, or gN of a dataset in a store. They may have different numbers of shards.

    \b
        lookupdb diff g11 g12 --dataset airports
        lookupdb diff ./old ./new --exit-code
    """
    where = Place(**place)
    old, new = where.find(before), where.find(after)
    if old.where == new.where:
        raise UsageError(f"{before} and {after} are the same generation", hint="give two different ones")
    with (
        tempfile.TemporaryDirectory(prefix="lookupdb-diff-") as scratch,
        old.shards(Path(scratch)) as old_shards,
        new.shards(Path(scratch)) as new_shards,
    ):
        found = compare_generations(old_shards, new_shards, (old.manifest.shards, new.manifest.shards))
    click.echo(_document(old, new, found) if as_json else "\n".join(_lines(old, new, found)))
    if tells and found.has_changes:
        sys.exit(1)


def _lines(old: StoredGeneration, new: StoredGeneration, found: GenerationDifference) -> Iterator[str]:
    yield f"before   {old.manifest.generation}, {old.manifest.totals.records:,} records, {old.where}"
    yield f"after    {new.manifest.generation}, {new.manifest.totals.records:,} records, {new.where}"
    if old.manifest.normalize != new.manifest.normalize:
        yield f"note     keys are normalised differently: {old.manifest.normalize} and {new.manifest.normalize}"
    yield f"same     {found.same:,}"
    for kind, count in (("added", found.added), ("removed", found.removed), ("changed", found.changed)):
        yield f"{kind:<8} {count:,}"
        for change in found.samples[kind]:
            yield f"    {_text(change.key)}"
            if change.before is not None:
                yield f"      - {_shortened(change.before)}"
            if change.after is not None:
                yield f"      + {_shortened(change.after)}"
        if count > len(found.samples[kind]):
            yield f"    and {count - len(found.samples[kind]):,} more"


def _document(old: StoredGeneration, new: StoredGeneration, found: GenerationDifference) -> bytes:
    document = {
        "before": {"generation": old.manifest.generation, "records": old.manifest.totals.records, "where": old.where},
        "after": {"generation": new.manifest.generation, "records": new.manifest.totals.records, "where": new.where},
        "added": found.added,
        "removed": found.removed,
        "changed": found.changed,
        "same": found.same,
        "samples": {kind: [_sample(change) for change in changes] for kind, changes in found.samples.items()},
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def _sample(change: KeyChange) -> dict[str, str | None]:
    return {
        "key": _text(change.key),
        "before": None if change.before is None else _text(change.before),
        "after": None if change.after is None else _text(change.after),
    }


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _shortened(data: bytes) -> str:
    text = _text(data)
    text = text if text.isprintable() else text.encode("unicode_escape").decode()
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
