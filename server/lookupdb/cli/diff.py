"""`lookupdb diff`: compare the records of two generations."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import orjson

from lookupdb.cli.addressing import GenerationLocator, locator_options
from lookupdb.errors import UsageError
from lookupdb.store.difference import GenerationDifference, KeyChange, compare_generations
from lookupdb.store.stored_generation import StoredGeneration

_SHOWN_CHARACTERS: Final = 200


@click.command()
@click.argument("before", metavar="G1")
@click.argument("after", metavar="G2")
@locator_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
@click.option("--exit-code", "with_exit_code", is_flag=True, help="End with 1 when there are differences.")
def command(before: str, after: str, as_json: bool, with_exit_code: bool, **location: Any) -> None:
    """Compare the records of two generations: keys added, removed and changed, with counts and samples.

    Each is a generation's folder, or gN of a dataset in a store. They may have different numbers of shards.

    \b
        lookupdb diff g11 g12 --dataset airports
        lookupdb diff ./old ./new --exit-code
    """
    locator = GenerationLocator(**location)
    old, new = locator.find(before), locator.find(after)
    if old.where == new.where:
        raise UsageError(f"{before} and {after} are the same generation", hint="give two different ones")
    with (
        tempfile.TemporaryDirectory(prefix="lookupdb-diff-") as scratch,
        old.shards(Path(scratch)) as old_shards,
        new.shards(Path(scratch)) as new_shards,
    ):
        difference = compare_generations(old_shards, new_shards, (old.manifest.shards, new.manifest.shards))
    click.echo(_render_json(old, new, difference) if as_json else "\n".join(_render_lines(old, new, difference)))
    if with_exit_code and difference.has_changes:
        sys.exit(1)


def _render_lines(old: StoredGeneration, new: StoredGeneration, difference: GenerationDifference) -> Iterator[str]:
    yield f"before   {old.manifest.generation}, {old.manifest.totals.records:,} records, {old.where}"
    yield f"after    {new.manifest.generation}, {new.manifest.totals.records:,} records, {new.where}"
    if old.manifest.normalize != new.manifest.normalize:
        yield f"note     keys are normalised differently: {old.manifest.normalize} and {new.manifest.normalize}"
    yield f"same     {difference.same:,}"
    for kind, count in (("added", difference.added), ("removed", difference.removed), ("changed", difference.changed)):
        yield f"{kind:<8} {count:,}"
        for change in difference.samples[kind]:
            yield f"    {_decode(change.key)}"
            if change.before is not None:
                yield f"      - {_shorten(change.before)}"
            if change.after is not None:
                yield f"      + {_shorten(change.after)}"
        if count > len(difference.samples[kind]):
            yield f"    and {count - len(difference.samples[kind]):,} more"


def _render_json(old: StoredGeneration, new: StoredGeneration, difference: GenerationDifference) -> bytes:
    document = {
        "before": {"generation": old.manifest.generation, "records": old.manifest.totals.records, "where": old.where},
        "after": {"generation": new.manifest.generation, "records": new.manifest.totals.records, "where": new.where},
        "added": difference.added,
        "removed": difference.removed,
        "changed": difference.changed,
        "same": difference.same,
        "samples": {kind: [_sample(change) for change in changes] for kind, changes in difference.samples.items()},
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def _sample(change: KeyChange) -> dict[str, str | None]:
    return {
        "key": _decode(change.key),
        "before": None if change.before is None else _decode(change.before),
        "after": None if change.after is None else _decode(change.after),
    }


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _shorten(data: bytes) -> str:
    text = _decode(data)
    text = text if text.isprintable() else text.encode("unicode_escape").decode()
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
