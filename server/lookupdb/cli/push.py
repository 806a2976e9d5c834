"""`lookupdb push`: push a generation to a dataset whose source is pushed."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import click

from lookupdb import store
from lookupdb.builder import build
from lookupdb.builder.files import Format
from lookupdb.builder.options import BuildOptions, open_progress
from lookupdb.cli import output
from lookupdb.cli.addressing import cluster_option, store_option, store_wait_option
from lookupdb.cli.build import report_outcome
from lookupdb.cli.options import ManifestOption, Size, log_format, option, progress_option
from lookupdb.dataset.spec import Gates, read_manifest


@click.command()
@click.argument("files", nargs=-1, required=True)
@option(
    "--file",
    "-f",
    "file",
    required=True,
    metavar="MANIFEST",
    type=click.Path(path_type=Path),
    cls=ManifestOption,
    help="The YAML of the LookupDataset, with its namespace and uid: `kubectl get lds NAME -o yaml`.",
)
@store_option
@store_wait_option
@cluster_option
@option(
    "--source-format",
    "file_format",
    type=click.Choice(get_args(Format)),
    help="Format of FILES.  [default: by their names]",
    show_default=False,
)
@option(
    "--no-gates",
    is_flag=True,
    show_default=False,
    help="Check no gates before the push. The dataset's own gates still apply.",
)
@option("--memory-limit", type=Size(), default="1GiB", help="Memory that the push and its child processes may use.")
@option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    default=tempfile.gettempdir,
    show_default="the system's temporary folder",
    help="Scratch folder for sorting; needs about twice the size of the uncompressed rows.",
)
@option(
    "--threads",
    type=click.IntRange(1, 256),
    default=build.count_usable_cores,
    show_default="all cores",
    help="Number of cores to use.",
)
@output.json_option
@progress_option
@log_format
def command(
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
    with report_outcome(None, began, as_json) as attempt:
        spec = attempt.spec = read_manifest(file)
        if no_gates:
            spec = replace(spec, gates=Gates(max_rejected_rows=sys.maxsize))
        place = store.open_store(store_url, cluster_id)
        place.wait(store_wait)
        options = BuildOptions(scratch=scratch, memory_limit=memory_limit, threads=threads)
        urls = [name if "://" in name else str(Path(name).absolute()) for name in files]
        with open_progress(style) as progress:
            attempt.result = build.push_generation(spec, place, urls, options, progress, file_format)
