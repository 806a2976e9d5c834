"""`lookupdb diff`: compare the records of two generations."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
import orjson

from lookupdb.builder.existing import compare_stored
from lookupdb.cli.addressing import NamedDataset, complete_datasets, dataset_option, with_dataset
from lookupdb.cli.output import render_line, render_member
from lookupdb.cli.program import ended_in_time
from lookupdb.disk import raise_limit
from lookupdb.errors import UsageError
from lookupdb.manifest import GENERATION
from lookupdb.process.launch import drop_unwritten
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
@click.argument("targets", nargs=-1, required=True, metavar="DATASET [G1] [G2]", shell_complete=complete_datasets)
@dataset_option
@with_dataset
@click.option(
    "--sampled/--exact",
    envvar="LOOKUPDB_SAMPLED",
    show_envvar=True,
    default=False,
    help="Compare a sample of about 100,000 keys, chosen by hash, or all keys (the default).",
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
    targets: tuple[str, ...],
    dataset: str | None,
    locate: Callable[[str | None], NamedDataset],
    sampled: bool,
    samples: int,
    as_json: bool,
    with_exit_code: bool,
) -> None:
    """Compare the records of two generations: keys added, removed and changed, with counts and samples.

    Without G1 and G2 it compares the active generation of DATASET with its candidate; with G1 alone, the active one
    with G1. Their numbers of shards may differ. It also compares two folders of generations.

    --sampled reads only the first shards, at most a gigabyte of the first generation. The counts are then those of the
    compared keys.

    \b
        lookupdb diff airports g11 g12
        lookupdb diff team/people g11 g12 --store s3://lookups/production --sampled
        lookupdb diff ./old ./new --exit-code
    """
    raise_limit()
    scratch: list[Path] = []

    def clean_up(_code: int) -> None:
        for folder in scratch:
            shutil.rmtree(folder, ignore_errors=True)

    with ended_in_time(clean_up):
        named, before, after = _choose(targets, dataset, locate)
        old, new = named.locator.find(before), named.locator.find(after)
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
    document = _make_document(old, new, difference, is_whole)
    text = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    try:
        click.echo(text if as_json else "\n".join(render_difference(document)))
    except BrokenPipeError:
        if not with_exit_code:
            raise
        drop_unwritten()  # the reader has closed the pipe; the exit code still matters
    if with_exit_code and difference.has_changes:
        sys.exit(1)


def _choose(
    targets: tuple[str, ...], dataset: str | None, locate: Callable[[str | None], NamedDataset]
) -> tuple[NamedDataset, str, str]:
    """Return the dataset and the two generations that ``targets`` name. Raises UsageError."""
    if len(targets) == 2:
        first, second = targets
        is_folder = Path(first).is_dir() and not GENERATION.fullmatch(second)
        if is_folder or GENERATION.fullmatch(first):  # as a cluster's Job gives them, with --dataset
            return locate(dataset), first, second
    if len(targets) > 3 or dataset is not None:
        raise UsageError("expected DATASET, DATASET G1, or DATASET G1 G2", hint="lookupdb diff --help has examples")
    named, *generations = locate(targets[0]), *targets[1:]
    candidate = (named.status.get("candidate") or {}).get("generation")
    before, after = [None, *generations][-2:] if generations else [None, candidate]
    before = before or named.find_active()
    if before is None or after is None:
        lack = "active generation" if before is None else "candidate"
        raise UsageError(f"{targets[0]} has no {lack}", hint="name two generations: lookupdb diff DATASET g12 g13")
    return named, before, after


def render_difference(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a difference in JSON, of this program or of the Job of `kubectl lookupdb diff`."""
    before, after = document["before"], document["after"]
    for kind, side in (("before", before), ("after", after)):
        yield f"{kind:<8} {side['generation']}, {format_count(side['records'], 'record')}, {side['where']}"
    if before["normalize"] != after["normalize"]:
        yield f"note     keys are normalised differently: {before['normalize']} and {after['normalize']}"
    if not document["isWhole"]:
        yield "note     these are the keys that were compared, and not all"
    yield f"same     {document['same']:,}"
    for kind in ("added", "removed", "changed"):
        count, samples = document[kind], document["samples"].get(kind, ())
        yield f"{kind:<8} {count:,}"
        for change in samples:
            yield f"    {_shorten(change['key'])}"
            if change["before"] is not None:
                yield f"      - {_shorten(change['before'])}"
            if change["after"] is not None:
                yield f"      + {_shorten(change['after'])}"
        if samples and count > len(samples):
            yield f"    and {count - len(samples):,} more"


def _shorten(text: str) -> str:
    return render_line(text.encode(), _SHOWN_CHARACTERS)


def _describe_side(generation: StoredGeneration) -> dict[str, Any]:
    manifest = generation.manifest
    records, normalize = manifest.totals.records, list(manifest.normalize)
    return {"generation": manifest.generation, "records": records, "where": generation.where, "normalize": normalize}


def _make_document(
    old: StoredGeneration, new: StoredGeneration, difference: GenerationDifference, is_whole: bool
) -> dict[str, Any]:
    return {
        "before": _describe_side(old),
        "after": _describe_side(new),
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
