"""Commands for the generations in a store: `diff` compares two, `prune` and `sweep` remove those that nothing needs."""

from __future__ import annotations

import codecs
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
import orjson

from lookupdb import store
from lookupdb.builder.existing import compare_stored
from lookupdb.cli.addressing import NamedDataset, complete_datasets, dataset_option, store_option, with_dataset
from lookupdb.cli.options import FILE, GenerationAddress, log_format, option
from lookupdb.cli.program import ended_in_time, temporary_folder
from lookupdb.dataset.schema import complete_resource, to_camel_case
from lookupdb.disk import raise_limit
from lookupdb.errors import StoreError, UsageError
from lookupdb.manifest import GENERATION, find_generations
from lookupdb.store.dataset import find_announced
from lookupdb.store.generations import (
    MAX_VALUE_BYTES,
    MAX_VALUE_CHARACTERS,
    SAMPLES,
    GenerationDifference,
    KeyChange,
    StoredGeneration,
    compare_generations,
)
from lookupdb.store.sweep import Sweep, find_prunable, read_live_list
from lookupdb.store.sweep import prune as prune_dataset
from lookupdb.wording import format_count, format_some, needs_escape, shorten

_DIFF_CHARACTERS: Final = 200
_MAX_SAMPLES: Final = 100


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="DATASET [G1] [G2]", shell_complete=complete_datasets)
@dataset_option
@with_dataset
@click.option(
    "--sampled/--exact",
    envvar="LOOKUPDB_SAMPLED",
    show_envvar=True,
    help="Compare a sample of about 100,000 keys, chosen by hash, or all keys (the default).",
)
@option(
    "--samples",
    type=click.IntRange(0, _MAX_SAMPLES),
    default=SAMPLES,
    help="Number of keys to show for each kind of change; at most 10 with --sampled.",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
@click.option("--exit-code", "with_exit_code", is_flag=True, help="Exit with 1 if there are differences.")
def diff(
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
    with G1. Their numbers of shards may differ. It also compares the folders of two generations.

    --sampled reads only the first shards, at most a gigabyte of the first generation. The counts are then those of the
    compared keys.

    \b
        lookupdb diff airports g11 g12
        lookupdb diff team/people g11 g12 --store s3://lookups/production --sampled
        lookupdb diff ./old ./new --exit-code
    """
    raise_limit()
    with temporary_folder("lookupdb-diff-") as scratch:
        named, before, after = _choose(targets, dataset, locate)
        old, new = named.locator.find(before), named.locator.find(after)
        if old.where == new.where:
            raise UsageError(f"{before} and {after} are the same generation", hint="give two different ones")
        for generation in (old, new):
            generation.check_files()  # shards with equal checksums are never opened
        if sampled:
            found = compare_stored(old, new, scratch)
            keys = {
                kind: [KeyChange(key, None, None) for key in part[:samples]] for kind, part in found.samples.items()
            }
            difference = GenerationDifference(found.added, found.removed, found.changed, found.same, keys, samples)
            is_whole = found.is_whole
        else:
            difference, is_whole = compare_generations(old, new, scratch, samples), True
    document = _make_document(old, new, difference, is_whole)
    text = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    click.echo(text if as_json else "\n".join(render_difference(document)))
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
    before = before or named.status.get("generation") or find_announced(named.locator.find_dataset())
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
        yield "note     not all keys were compared: the counts are of a sample"
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
    return render_line(text.encode(), _DIFF_CHARACTERS)


def _make_document(
    old: StoredGeneration, new: StoredGeneration, difference: GenerationDifference, is_whole: bool
) -> dict[str, Any]:
    sides = {
        kind: {
            "generation": side.manifest.generation,
            "records": side.manifest.totals.records,
            "where": side.where,
            "normalize": list(side.manifest.normalize),
        }
        for kind, side in (("before", old), ("after", new))
    }
    return {
        **sides,
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


# Keys and values as ``inspect`` and ``diff`` write them: text unchanged, other bytes in Python's notation.

_ELLIPSIS: Final = "…"


def render_line(data: bytes, characters: int = MAX_VALUE_CHARACTERS) -> str:
    """Return ``data`` in one line of at most ``characters``, with an ellipsis if there is more.

    Control characters in text are escaped, as \\n or \\x1b; then a backslash is \\\\. Bytes that are not UTF-8 are
    written in quotes, as Python writes them: '\\x89PNG'.
    """
    text = _decode(data)
    if text is None:
        return _render_bytes(data, characters)
    if not any(map(needs_escape, text)):
        return shorten(text, characters)
    line = ""
    for character in text:
        is_escaped = character == "\\" or needs_escape(character)
        shown = character.encode("unicode_escape").decode() if is_escaped else character
        if len(line) + len(shown) > characters:
            return line + _ELLIPSIS
        line += shown
    return line


def render_member(data: bytes) -> str:
    """Return ``data`` as a string for JSON, cut if it is long. Bytes that are not UTF-8 are as in ``render_line``."""
    text = _decode(data)
    return _render_bytes(data, MAX_VALUE_CHARACTERS) if text is None else shorten(text, MAX_VALUE_CHARACTERS)


def _decode(data: bytes) -> str | None:
    """Return the text, or None if ``data`` is not UTF-8. A cut value may end within a character."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=len(data) < MAX_VALUE_BYTES)
    except UnicodeDecodeError:
        return None


def _render_bytes(data: bytes, characters: int) -> str:
    """Return ``data`` as Python writes bytes, without the b and with whole bytes only."""
    kept, shown = data, repr(data)[1:]
    while (excess := len(shown) - characters) > 0:
        kept = kept[: -((excess + 3) // 4)]  # a byte has at most four characters
        shown = repr(kept)[1:]
    return shown if len(kept) == len(data) else shown + _ELLIPSIS


_SHOWN: Final = 20


@click.command("prune")
@click.argument("dataset", metavar="DATASET", shell_complete=complete_datasets)
@with_dataset
@option(
    "--keep",
    type=click.IntRange(min=1),
    help="Number of generations to keep, besides those in the status of a dataset of `lookupdb up`. Without it, the "
    "dataset's spec.keepGenerations.",
)
@option("--protect", type=GenerationAddress(), multiple=True, help="Also keep this generation. May be repeated.")
@option("--dry-run", is_flag=True, help="Remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def prune(
    dataset: str,
    locate: Callable[[str | None], NamedDataset],
    keep: int | None,
    protect: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove the generations of DATASET that nothing needs.

    It keeps the newest (--keep), the announced one, and each one that serves, waits for promotion, is pinned, or can be
    rolled back to. It removes damaged ones if they are older than all the newest (--keep), rejected ones if they are
    older than the newest. `lookupdb up` and builds in a cluster do the same after each build.

    \b
        lookupdb prune airports --dry-run
        lookupdb prune team/people --store s3://lookups/eu --cluster-id c1 --keep 3
    """
    named = locate(dataset)
    if keep is None:
        if not named.resource:
            raise UsageError(f"it is not known how many generations of {dataset} to keep", hint="give --keep")
        about = {member: named.resource["metadata"][member] for member in ("namespace", "name")}
        keep = complete_resource({**named.resource, "metadata": about})["spec"]["keepGenerations"]
    protected, stored = {*protect, *find_generations(named.status)}, named.locator.find_dataset()
    removed = (find_prunable if dry_run else prune_dataset)(stored, keep, protected)
    document = {"dataset": dataset, "dryRun": dry_run, "removed": removed}
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2) if as_json else render_removal(document))


def render_removal(document: Any) -> str:
    """Return the sentence about ``document``, of this program or of the Job of `kubectl lookupdb prune`."""
    verb = "would be removed" if document["dryRun"] else "removed"
    return f"{document['dataset']}: {verb}: {format_some(document['removed'], _SHOWN) or 'nothing'}"


def _describe_outcome(outcome: dict[str, Any]) -> str:
    counts = {
        "marked": outcome["marked"],
        "unmarked": outcome["unmarked"],
        "generations removed": outcome["removedGenerations"],
        "remains removed": outcome["removedRemains"],
        "datasets removed": outcome["removedDatasets"],
        "retained": outcome["retainedDatasets"],
        "problems": len(outcome["problems"]),
    }
    listed = ", ".join(f"{what}: {count:,}" for what, count in counts.items() if count)
    return f"{format_count(outcome['datasets'], 'dataset')} looked at; {listed or 'nothing to do'}"


_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[float]):
    """A duration in seconds, written as 24h, 30m, 7d or 90s. The unit is required: sweeps remove data."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds, or fail with a usage error."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value).strip())
        if not match:
            self.fail(f"{value!r} is not a duration; write it as 24h, 30m, 7d or 90s", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


@click.command()
@store_option
@option(
    "--cluster-id",
    help="Cluster whose part of the store is swept; no other is touched.  [default: the cluster of the list]",
)
@option(
    "--living",
    "living_list",
    required=True,
    metavar="FILE",
    type=FILE,
    help="JSON file with the live datasets of the cluster, written by its operator.",
)
@option(
    "--grace",
    type=Duration(),
    default="24h",
    help="Minimum time since a dataset was deleted, or since an unfinished generation changed.",
)
@option(
    "--max-age",
    type=Duration(),
    default="1h",
    help="Maximum age of the list, which the operator writes every ten minutes.",
)
@option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Write every line as JSON.")
@log_format
def sweep(
    store_url: str,
    cluster_id: str | None,
    living_list: Path,
    grace: float,
    max_age: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove data of deleted datasets of a cluster from a store.

    \b
        lookupdb sweep --store s3://lookups/eu --cluster-id c1 --living living.json --dry-run

    For live datasets, the newest generations stay (as many as the dataset keeps), and so do those that the list
    protects and all newer ones: they may have become active since the list was written. If it protects none, all stay.

    The first sweep that misses a dataset in the list marks it. A later sweep removes it once the mark is older than the
    grace period. A generation whose builder is alive stays, and so does every unknown file.

    The list has the members formatVersion (1), cluster, writtenAt (ISO 8601), and datasets: [{namespace, name, uid,
    keep, protect, retain, adopt}]. With namespaces: [...], only those namespaces are swept. Generations of deleted
    datasets stay if the dataset had retain: true, or if it is in retained: [{namespace, name, uid}]. Generations of
    the dataset that `adopt` names are kept while it is named. A list of another cluster or format, or one older than
    --max-age, is rejected. Standard output gets a line for each removal (with --json
    {"message": …}), and then the totals (with --json one object).
    """
    with ended_in_time():
        now = time.time()
        live = read_live_list(living_list, cluster_id, now, max_age)
        place = store.open_store(store_url, live.cluster)
        found = Sweep(live.datasets, retained=live.retained, grace=grace, now=now, dry=dry_run)
        for sentence in found.run(found.find(place, live.namespaces)):
            message = f"would have: {sentence}" if dry_run else sentence
            click.echo(orjson.dumps({"message": message}) if as_json else message)
    summary = found.summary
    members = {to_camel_case(name): value for name, value in asdict(summary).items()}
    outcome = {"outcome": "failed" if summary.problems else "swept", "dryRun": dry_run, **members}
    click.echo(orjson.dumps(outcome) if as_json else _describe_outcome(outcome))
    if summary.problems:
        more = f" (and {len(summary.problems) - 1} more)" if len(summary.problems) > 1 else ""
        raise StoreError(f"not everything could be swept: {summary.problems[0]}{more}", hint="it can be run again")
