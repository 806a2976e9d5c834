"""`lookupdb load`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from lookupdb.cli.addressing import DEFAULT_STORE, GenerationLocator, locator_options
from lookupdb.cli.interruption import ended_in_time
from lookupdb.cli.load_options import SAMPLE, FileLine, make_plan, plan_options, read_keys
from lookupdb.cli.options import option, token_file
from lookupdb.cli.outcome import say_of_failure
from lookupdb.cli.router_address import ca_file_option, data_dir_option, find_router_url, is_url
from lookupdb.errors import LimitExceeded, LookupdbError, UsageError
from lookupdb.load.plan import DEFAULT_SAMPLE, MAX_KEYS, DatasetFacts, LoadOrder, SenderPlan, make_target
from lookupdb.load.result import list_exceeded, parse_condition, render_summary
from lookupdb.load.run import LoadDisplay, Preflight, run_load, sample_generation
from lookupdb.local.trust import Trust
from lookupdb.manifest import GENERATION
from lookupdb.store.stored_generation import StoredGeneration
from lookupdb.wording import format_count, render_json

_OTHER_KEYS: Final = (
    "give keys in another way: --sample-from FOLDER takes those of a generation's folder, of whatever namespace, and"
    " --keys FILE those of a file"
)
_BY_SIGNAL: Final = 128
_REPORT_SUFFIXES: Final = (".html", ".svg")


@dataclass(frozen=True, slots=True)
class _KeyOptions:
    """Where keys come from."""

    keys: str
    size: int
    sample_from: str | None
    seed: int
    locator: GenerationLocator
    named: str | None
    """The dataset that --dataset names."""

    def read(self, facts: DatasetFacts, scratch: list[Path]) -> tuple[list[str], str]:
        """The keys, and what they are from. Raises UsageError, StoreError, CorruptFile."""
        if self.keys == SAMPLE:
            generation = self._find(facts)
            with tempfile.TemporaryDirectory(prefix="lookupdb-load-") as folder:
                scratch.append(Path(folder))
                keys = sample_generation(generation, Path(folder), self.seed, self.size)
            return keys, f"a sample of {generation.where}"
        return read_keys(self.keys, self.seed), "standard input" if self.keys == "-" else self.keys

    def _find(self, facts: DatasetFacts) -> StoredGeneration:
        """The generation that is sampled: the one that answers, unless another is named. Raises UsageError for one of
        another dataset than answers; of a folder the namespace is not asked, as it may have been built elsewhere."""
        target = self.sample_from or facts.generation
        if not GENERATION.fullmatch(target):
            generation = self.locator.find(target)
            _check_sampled(f"--sample-from {target} is of", generation.manifest.name, facts)
            return generation
        if self.named:
            _check_sampled("--dataset is", self.named, facts)
        try:
            return self.locator.find(target)
        except LookupdbError as error:
            error.hint = f"{error.hint}; or {_OTHER_KEYS}" if error.hint else _OTHER_KEYS
            raise


def _check_sampled(what: str, dataset: str, facts: DatasetFacts) -> None:
    namespace, _, name = dataset.rpartition("/")
    if name != facts.name or namespace not in ("", facts.namespace):
        raise UsageError(
            f"keys would be sampled of another dataset than answers: {what} {dataset}, and the router serves"
            f" {facts.namespace}/{facts.name}",
            hint="leave --dataset and --sample-from out, unset LOOKUPDB_DATASET and LOOKUPDB_SAMPLE_FROM, or ask"
            f" another router; or {_OTHER_KEYS}",
        )


def _check_reports(_: click.Context, __: click.Parameter, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    for path in paths:
        if path.suffix not in _REPORT_SUFFIXES:
            raise click.BadParameter(f"{path} has neither ending: {' or '.join(_REPORT_SUFFIXES)}")
    return paths


@click.command("load")
@click.argument("router", metavar="DATASET")
@plan_options
@option("--keys", metavar="FILE|-|sample", default=SAMPLE, help="One key a line; or a sample of what answers.")
@option(
    "--sample-size", type=click.IntRange(1, MAX_KEYS), default=DEFAULT_SAMPLE, help="Of --keys sample: so many keys."
)
@option("--sample-from", metavar="FOLDER|gN", help="Of --keys sample: a generation's folder, or another generation.")
@option("--timeout", type=click.FloatRange(0.05, 60), default=5.0, help="Seconds from a request's intended time.")
@click.option(
    "--json",
    "json_files",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="The result, as JSON; - is stdout. May be repeated.",
)
@option(
    "--report",
    "reports",
    type=FileLine(path_type=Path, dir_okay=False),
    metavar="FILE.html|FILE.svg",
    multiple=True,
    callback=_check_reports,
    help="The result, as a page with plots, or as plots alone. May be repeated.",
)
@data_dir_option
@ca_file_option
@token_file("The router is shown the token in this file (or in LOOKUPDB_TOKEN).")
@locator_options
@click.pass_context
def command(ctx: click.Context, /, router: str, **options: Any) -> None:
    """Put a load on a router of DATASET, and measure: the name of one that `lookupdb up` serves ([NAMESPACE/]NAME), or
    a router's URL.

    Requests leave by the clock, at --rate, however slowly others are answered, and latencies count from that time on: a
    router that stalls is charged for all that it keeps waiting. At most --max-in-flight are unanswered; what has to
    wait for that is counted, and its latency includes it.

    Ctrl-C ends it with the result so far. Exit code 7: a condition of --fail-if holds. 4: no router answers, or it
    serves nothing. 1: the router refuses, or this machine cannot send as fast as it is asked to. 0 says that the load
    has run, whatever was answered.

    \b
        lookupdb load airports --rate 500 --duration 30
        lookupdb load https://lookups.example.com --keys keys.txt --batch 100 --fail-if 'p99>20ms' --fail-if 'errors>0'
        lookupdb load airports --ramp 100:1000:60 --report load.html
    """
    conditions = [parse_condition(text) for text in options["conditions"]]
    json_files, reports = options["json_files"], options["reports"]
    for path in (*json_files, *reports):
        if str(path) != "-":
            _check_writable(path)
    if reports:
        from lookupdb.load import report  # noqa: F401 - before the load: it says if its library is not installed
    scratch: list[Path] = []

    def clean_up(_code: int) -> None:
        for folder in scratch:
            shutil.rmtree(folder, ignore_errors=True)

    with ended_in_time(clean_up):
        order = _prepare(ctx, router, options, scratch)
    document, ended_by = run_load(order, LoadDisplay(), conditions)
    exceeded = list_exceeded(conditions, document)
    _write_result(document, json_files, reports, is_failure=bool(ended_by or exceeded))
    if ended_by:
        sys.exit(_BY_SIGNAL + ended_by)
    if exceeded:
        raise LimitExceeded("\n".join(exceeded))


def _prepare(ctx: click.Context, router: str, options: dict[str, Any], scratch: list[Path]) -> LoadOrder:
    """Ask the router once, and read the keys. Folders to be removed are in ``scratch``."""
    plan = make_plan(ctx, options)
    generation, trust = options["generation"], options["trust"]
    assert isinstance(trust, Trust)
    target = make_target(find_router_url(router, options["data_dir"]), options["token"], generation, options["headers"])
    preflight = Preflight(target, trust.context, trust.hint_for)
    facts = preflight.read_dataset(generation)
    keys, source = _key_options(ctx, router, facts, options).read(facts, scratch)
    if len(keys) < plan.batch:
        raise UsageError(
            f"batches of {format_count(plan.batch, 'key')} need as many, found {len(keys):,} in {source}",
            hint="give more keys, or a smaller --batch",
        )
    preflight.look_up(keys[: plan.batch], partial=plan.partial)
    sender = SenderPlan(plan, target, 0, str(trust.file) if trust.file else None, keys)
    return LoadOrder(sender, facts, is_asked_by_name=generation is not None, key_source=source)


def _key_options(ctx: click.Context, router: str, facts: DatasetFacts, options: dict[str, Any]) -> _KeyOptions:
    """The store of the `lookupdb up` that serves ``router`` is the one that is meant, unless another is named."""
    store_url = options["store_url"]
    is_default = ctx.get_parameter_source("store_url") is click.core.ParameterSource.DEFAULT
    if is_default and not is_url(router):
        store_url = str(options["data_dir"] / Path(DEFAULT_STORE).name)
    locator = GenerationLocator(store_url, options["cluster_id"], f"{facts.namespace}/{facts.name}", options["uid"])
    return _KeyOptions(
        options["keys"], options["sample_size"], options["sample_from"], options["seed"], locator, options["dataset"]
    )


def _write_result(
    document: Mapping[str, Any], json_files: Sequence[Path], reports: Sequence[Path], *, is_failure: bool
) -> None:
    line = render_json(document)
    say = say_of_failure if is_failure else click.echo
    try:
        say(line if Path("-") in json_files else render_summary(document))
    finally:  # also when nobody reads that any more
        contents = [(path, line + b"\n") for path in json_files if str(path) != "-"]
        if reports:
            from lookupdb.load.report import render_report

            contents += [(path, render_report(document, is_page=path.suffix == ".html").encode()) for path in reports]
        _write_files(contents)


def _write_files(contents: Sequence[tuple[Path, bytes]]) -> None:
    """Write as many as can be written. Raises UsageError for the first that cannot."""
    failures = []
    for path, content in contents:
        try:
            path.write_bytes(content)
        except OSError as error:
            failures.append(UsageError(f"{path} cannot be written: {error.strerror}", hint="give another file"))
    if failures:
        raise failures[0]


def _check_writable(path: Path) -> None:
    """Raises UsageError if ``path`` cannot be written: it is known before the load, and nothing is written yet."""
    folder = path.parent
    try:
        is_folder, is_there = folder.is_dir(), path.exists()
    except OSError as error:  # a folder above them may not be looked into
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="give another file") from error
    if not is_folder:
        raise UsageError(
            f"{path} cannot be written: there is no folder {folder}", hint="make the folder, or give another file"
        )
    if not (os.access(path, os.W_OK) if is_there else os.access(folder, os.W_OK | os.X_OK)):
        place = path if is_there else f"the folder {folder}"
        raise UsageError(f"{path} cannot be written: {place} is not writable for this user", hint="give another file")
