"""`lookupdb build` and `lookupdb push`: build a generation of a dataset from its source, or from rows, into a store."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

import click

from lookupdb import store, telemetry
from lookupdb.builder import build, existing, explain
from lookupdb.builder.files import Format
from lookupdb.builder.options import (
    MAX_BYTES,
    BuildOptions,
    BuildReport,
    EarlierDataset,
    failure_report,
    interruption_report,
    open_progress,
    remove_open_folders,
)
from lookupdb.cli import addressing, program
from lookupdb.cli.addressing import cluster_option, store_option, store_wait_option
from lookupdb.cli.options import (
    EXISTING_FOLDER,
    GenerationAddress,
    Size,
    json_option,
    log_format,
    manifest_option,
    option,
    progress_option,
    scratch_option,
    termination_log_option,
)
from lookupdb.cli.program import end_at_once, ended_in_time
from lookupdb.dataset.spec import DatasetSpec, Gates, read_manifest
from lookupdb.errors import CorruptFile, LookupdbError, StoreError, UsageError
from lookupdb.manifest import ANNOUNCEMENT_NOTE, is_stale
from lookupdb.process import launch
from lookupdb.process.launch import write_termination_log
from lookupdb.store import Store, sweep
from lookupdb.store.dataset import read_announcement
from lookupdb.wording import escape_controls

log = logging.getLogger(__name__)

_MAX_REPORT_BYTES: Final = 64 << 10
"""Limit of a failure report, whose message is cut to fit: `lookupdb up` reads the report as one line."""


_threads_option = option(
    "--threads",
    type=click.IntRange(1, 256),
    default=lambda: len(os.sched_getaffinity(0)),
    show_default="all cores",
    help="Number of cores to use.",
)


@click.command()
@manifest_option("The YAML of a LookupDataset.")
@store_option
@store_wait_option
@cluster_option
@option("--generation", type=GenerationAddress(), help="The generation to build.  [default: the next free one]")
@option(
    "--build-id",
    metavar="ID",
    help="Your name for this build. An existing --generation is adopted only if it was built under this name.",
)
@option(
    "--active",
    type=GenerationAddress(),
    help="Generation that gates compare with; if the store has lost it, the newest readable one.  "
    "[default: the announced one, else the newest whole one]",
)
@option(
    "--active-records",
    type=click.IntRange(min=0),
    help="Number of records in the --active generation. Gates use it if the store has lost all generations.",
)
@option(
    "--override-gates",
    "overridden",
    type=GenerationAddress(),
    help="Build nothing; override the gates that rejected this generation.",
)
@option(
    "--memory-limit",
    type=Size(),
    default="1GiB",
    help="Memory that the build and its child processes may use, whatever the size of the source.",
)
@scratch_option("Scratch folder for sorting; needs about twice the size of the uncompressed source.")
@_threads_option
@option("--engine", type=click.Choice(["Local", "Spark"]), help="The engine, in place of spec.build.engine.")
@option("--spark-master", metavar="URL", help="The Spark master, in place of spec.build.spark.master.")
@option(
    "--spark-conf",
    metavar="NAME=VALUE",
    multiple=True,
    help="A property of Spark, which overrides spec.build.spark. May be repeated.",
)
@option("--volume", type=EXISTING_FOLDER, help="Folder that volume:// URLs refer to.")
@option("--no-local-files", is_flag=True, help="Reject local files (paths, file://) as sources; volume:// is allowed.")
@option(
    "--base",
    type=EXISTING_FOLDER,
    help="Folder to which local files of the source are relative.  [default: the manifest's]",
)
@option(
    "--unless-fingerprint",
    metavar="F",
    help="Build nothing if the source's fingerprint is F and the store has a generation of this source and spec.",
)
@option(
    "--unless-success-file",
    metavar="S",
    help="With --unless-fingerprint: build nothing, without reading the source, if the success file is still S "
    "(`successFile` of the last result).",
)
@option(
    "--unless-refused",
    type=GenerationAddress(),
    help="If a gate rejected this generation and nothing has changed since, report that again and build nothing.",
)
@option(
    "--adopt",
    metavar="UID[/gN]",
    callback=lambda _ctx, _param, text: None if text is None else EarlierDataset.parse(text),
    help="If the dataset has no generation yet, copy one instead of building: the newest, or gN, of the earlier "
    "dataset with this name and this uid. The generation must have the same spec.",
)
@option(
    "--keep",
    type=click.IntRange(min=1),
    help="Before the build, remove generations older than the newest --protect. The newest N whole ones, the protected "
    "ones and the announced one (active.json) stay.  [default: remove none]",
)
@option(
    "--protect",
    type=GenerationAddress(),
    multiple=True,
    help="With --keep: generation to keep. May be repeated. Without --protect, nothing is removed.",
)
@option(
    "--explain",
    "explains",
    is_flag=True,
    help="Print what would be done, with the columns of a local file, and do nothing.",
)
@termination_log_option
@json_option
@progress_option
@log_format
def command(
    file: Path,
    store_url: str,
    store_wait: float,
    cluster_id: str,
    overridden: str | None,
    keep: int | None,
    protect: tuple[str, ...],
    explains: bool,
    termination_log: Path | None,
    as_json: bool,
    style: str,
    no_local_files: bool,
    base: Path | None,
    engine: Literal["Local", "Spark"] | None,
    spark_master: str | None,
    spark_conf: tuple[str, ...],
    **options: Any,
) -> None:
    """Build one generation of the dataset that MANIFEST describes.

    Reads the source, sorts its records within the memory limit, writes one file per shard, and publishes the generation
    into the store. If a gate fails, the generation is marked as rejected. --json prints the result, or the failure, as
    one line. --explain writes no JSON.

    \b
        lookupdb build -f examples/airports.yaml
        lookupdb build -f examples/airports.yaml --explain
        lookupdb build -f people.yaml --store s3://lookups/eu --memory-limit 4GiB
        lookupdb build -f examples/airports.yaml --override-gates g3

    A generation never changes once it is published. Old ones stay until something removes them: `lookupdb up` and a
    cluster keep spec.keepGenerations; a build with --keep removes some. A --generation that exists already is adopted
    if it was built with the same spec, so you can repeat a build whose result was lost. A build that fails or is
    interrupted leaves nothing behind and changes no earlier generation: run it again.

    With spec.refresh.successFile, nothing is read until that file exists: the outcome is "waiting", with exit code 0,
    as for an unchanged source.

    A generation that a gate rejects (exit code 4) does not serve, but you can inspect it. --override-gates overrides
    the gates for that one generation. The error message shows both commands.

    Gates compare with the active generation, or with the newest readable one if the store has lost it. If the store has
    lost every generation, maxShrinkPercent and maxGrowthPercent fail the build. Then give --active-records; or set the
    first to 100 and remove the second until the next generation is built.
    """
    began = time.monotonic()
    chosen = BuildOptions(**options, local_files=not no_local_files)
    with (
        report_build(termination_log, began, as_json and not explains) as attempt,
        addressing.show_ways_out(file, store_url, cluster_id),
    ):
        spec = read_manifest(file, base)
        spark = replace(spec.spark, master=spark_master or spec.spark.master)
        spec = attempt.spec = replace(spec, engine=engine or spec.engine, spark=spark)
        place = store.open_store(store_url, cluster_id)
        if explains:
            click.echo(escape_controls(explain.explain_build(spec, place, chosen)))
            return
        place.wait(store_wait)
        if overridden is not None:
            attempt.result = existing.override_gates(spec, place, overridden)
            return
        if keep is not None:
            _remove_superseded(place.dataset(spec), keep, protect, chosen.generation)
        runner = None
        if spec.engine == "Spark" and not spec.source.takes_pushes:
            from lookupdb.spark import make_engine

            runner = make_engine(spec, chosen, _parse_properties(spark_conf))
        with (
            telemetry.open_tracing("lookupdb-build"),
            telemetry.open_span("build", spec.namespace, spec.name, chosen.generation) as span,
            open_progress(style, span, spec.name) as progress,
        ):
            result = build.build_generation(spec, place, chosen, progress, runner)
            span.describe(generation=result.generation, records=result.records)
            span.settle(result.outcome, is_failure=False)
        attempt.result = _add_note(result, place, spec, chosen.active)


def _parse_properties(texts: tuple[str, ...]) -> dict[str, str]:
    for text in texts:
        if not re.fullmatch(r"spark\.[^=]+=.*", text, re.DOTALL):
            raise UsageError(
                f"--spark-conf takes the name and value of a property, got {text!r}", hint="write spark.local.dir=/disk"
            )
    return dict(text.split("=", 1) for text in texts)


def _remove_superseded(
    dataset: store.StoredDataset, keep: int, protect: tuple[str, ...], generation: str | None
) -> None:
    """Remove generations that are not kept, unless ``generation``, the one to build, exists already.

    A failure to remove does not stop the build: the store's credentials may lack that right.
    """
    try:
        if generation in dataset.published_generations():
            return
        for generation in sweep.remove_superseded(dataset, keep, protect):
            log.info("removed %s of %s", generation, dataset.address)
    except StoreError as error:
        log.warning("older generations of %s cannot be removed: %s", dataset.address, error.message)


class _BuildAttempt:
    """The state of the running build, for its report."""

    spec: DatasetSpec | None = None
    result: BuildReport | None = None


@contextmanager
def report_build(termination_log: Path | None, began: float, as_json: bool) -> Iterator[_BuildAttempt]:
    """Let SIGTERM end the build as cleanly and as quickly as Ctrl-C, and always report the outcome."""
    attempt = _BuildAttempt()

    def report_failure(report: BuildReport) -> None:
        write_termination_log(termination_log, report.to_json(MAX_BYTES))
        if as_json:
            click.echo(report.to_json(_MAX_REPORT_BYTES))

    def report_interruption(code: int) -> None:
        report_failure(interruption_report(attempt.spec, code, time.monotonic() - began))

    def clean_up(code: int) -> None:
        remove_open_folders()
        report_interruption(code)
        if sys.stderr.isatty():
            click.echo("\x1b[?25h", nl=False, err=True)  # show the cursor, which progress bars hide

    try:
        with ended_in_time(clean_up):
            yield attempt
    except Exception as error:
        report_failure(failure_report(attempt.spec, error, time.monotonic() - began))
        if telemetry.NAMED_ERRORS in os.environ and isinstance(error, LookupdbError) and attempt.spec:
            error.message = f"{attempt.spec.name}: {error.message}"
        raise
    except (KeyboardInterrupt, SystemExit) as error:
        code = 130 if isinstance(error, KeyboardInterrupt) else int(error.code or 0)
        report_interruption(code)
        if launch.are_unfinished():
            end_at_once(code)
        raise
    if attempt.result:
        write_termination_log(termination_log, attempt.result.to_json(MAX_BYTES))
        click.echo(attempt.result.to_json() if as_json else program.render_message(attempt.result.message))


def _add_note(report: BuildReport, store: Store, spec: DatasetSpec, active: str | None) -> BuildReport:
    """Return ``report`` with a note, also printed to standard error, if the store announces another generation.

    A caller that names the ``active`` generation announces by itself, and gets no note.
    """
    if active is not None or report.outcome == "waiting":
        return report
    try:
        note = _describe_announced(report, store, spec)
    except StoreError:  # the build succeeded, and readers report this error
        return report
    if note is None:
        return report
    click.echo(f"note: {note}", err=True)
    return replace(report, message=f"{report.message}; {note}" if report.message else note)


def _describe_announced(report: BuildReport, store: Store, spec: DatasetSpec) -> str | None:
    dataset = store.dataset(spec)
    built = report.generation or next(reversed(dataset.generations()), None)
    file = f"{dataset.url}/{ANNOUNCEMENT_NOTE}"
    try:
        announcement = read_announcement(dataset)
    except CorruptFile as error:
        return f"lookupdb.open and lookupdb sync do not follow {built}: {error.message}; {error.hint}"
    if announcement is None or built is None or announcement.generation == built:
        return None
    announced = announcement.generation
    if store.folder and announced not in dataset.published_generations() and is_stale(announced, built):
        return None  # the newest is followed
    return (
        f"{file} announces {announced}: lookupdb.open and lookupdb sync follow that one, and not {built}, until "
        "lookupdb up or an operator announces another; if neither runs, remove that file to follow the newest"
    )


@click.command()
@click.argument("files", nargs=-1, required=True)
@manifest_option("The YAML of the LookupDataset, with its namespace and uid: `kubectl get lds NAME -o yaml`.")
@store_option
@store_wait_option
@cluster_option
@option(
    "--source-format",
    "file_format",
    type=click.Choice(get_args(Format)),
    help="Format of FILES.  [default: by their names]",
)
@option("--no-gates", is_flag=True, help="Check no gates before the push. The dataset's own gates still apply.")
@option("--memory-limit", type=Size(), default="1GiB", help="Memory that the push and its child processes may use.")
@scratch_option("Scratch folder for sorting; needs about twice the size of the uncompressed rows.")
@_threads_option
@json_option
@progress_option
@log_format
def push(
    files: tuple[str, ...],
    file: Path,
    store_url: str,
    store_wait: float,
    cluster_id: str,
    file_format: Format | None,
    no_gates: bool,
    memory_limit: int,
    scratch: Path,
    threads: int,
    as_json: bool,
    style: str,
) -> None:
    """Push a generation of the rows in FILES to the dataset that MANIFEST describes, with source.pushed: true.

    \b
        lookupdb push -f airports.yaml airports.parquet
        lookupdb push -f airports.yaml 's3://exports/airports/*.parquet' --store s3://lookups/eu --cluster-id c1

    FILES are paths or URLs, as in source.urls. Keys, values, duplicates and rejected rows are treated as by `lookupdb
    build`, and gates compare with the previous push. If one fails, nothing is pushed (exit code 4). A push becomes
    visible when it is complete. The two newest pushes are kept.

    `lookupdb up --watch` or a cluster verifies the newest push, checks the dataset's gates, and serves a copy. It
    reports a push that does not fit the dataset as PushRejected.
    """
    began = time.monotonic()
    with report_build(None, began, as_json) as attempt:
        spec = attempt.spec = read_manifest(file)
        if no_gates:
            spec = replace(spec, gates=Gates(max_rejected_rows=sys.maxsize))
        place = store.open_store(store_url, cluster_id)
        place.wait(store_wait)
        options = BuildOptions(scratch=scratch, memory_limit=memory_limit, threads=threads)
        urls = [name if "://" in name else str(Path(name).absolute()) for name in files]
        with open_progress(style) as progress:
            attempt.result = build.push_generation(spec, place, urls, options, progress, file_format)
