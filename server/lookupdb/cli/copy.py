"""`lookupdb copy`: copy generations between stores, or between clusters' parts of a store."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from lookupdb import store
from lookupdb.builder.options import Progress, open_progress
from lookupdb.cli.addressing import cluster_option, store_wait_option
from lookupdb.cli.options import GenerationAddress, log_format, option, progress_option
from lookupdb.cli.output import say_of_failure
from lookupdb.errors import LookupdbError, NotEnoughRoom, StoreDenied, StoreError, StoreUnreachable, UsageError
from lookupdb.store import Store, StoreAddress, objects
from lookupdb.store.directory import folder_errors
from lookupdb.store.fetch import CopiedGeneration, copy_generation, find_addresses
from lookupdb.wording import format_count, render_json, strip_secrets

_MAX_SHOWN: Final = 3  # number of problems in the last message; each was printed when it happened
_AGAIN: Final = "fix that and run it again: what was copied completely is not copied again"


@click.command()
@click.argument("source_url", metavar="SOURCE")
@click.argument("target_url", metavar="TARGET")
@store_wait_option
@cluster_option
@option(
    "--to-cluster-id",
    default=None,
    show_default=False,
    help="Part of TARGET to copy into.  [default: that of --cluster-id]",
)
@option(
    "--dataset",
    "names",
    metavar="[NAMESPACE/]NAME",
    multiple=True,
    show_default=False,
    help="Dataset to copy. May be repeated.  [default: all of the cluster]",
)
@option("--uid", metavar="UID", help="Copy only the dataset with this uid; the first eight characters suffice.")
@option(
    "--generation",
    type=GenerationAddress(),
    help="Generation to copy, for a single dataset.  [default: the newest whole one that no gate rejected]",
    show_default=False,
)
@option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=tempfile.gettempdir,
    show_default="the system's temporary folder",
    help="Scratch folder for one shard file, if the store cannot copy by itself.",
)
@progress_option
@click.option("--json", "as_json", is_flag=True, help="Write every line as JSON.")
@log_format
def command(
    source_url: str,
    target_url: str,
    store_wait: float,
    cluster_id: str,
    to_cluster_id: str | None,
    names: tuple[str, ...],
    uid: str | None,
    generation: str | None,
    scratch: Path,
    style: str,
    as_json: bool,
) -> None:
    """Copy the newest generation of datasets from the store SOURCE into the store TARGET.

    \b
        lookupdb copy s3://lookups/eu s3://lookups-us/main --cluster-id c1 --to-cluster-id c2
        lookupdb copy .lookupdb/store s3://lookups/eu --to-cluster-id c1 --dataset airports

    A dataset keeps its namespace, name, uid and generation numbers. In the other cluster, a dataset of that name adopts
    it: set spec.adopt to the printed value. Until then the copy is retained: no sweep removes it.

    Each generation appears completely or not at all. If the copy breaks off, run it again: what exists already is not
    copied again. Within one bucket, with the same URL, endpoint and credentials, the store copies by itself. All other
    data pass through this process and are verified (size, SHA-256). A dataset that cannot be copied is reported, and
    the others are copied. The exit code is then 6 if only room was lacking, else 5. If the newest generation is
    damaged, the newest whole one is copied, and the exit code is 5 unless --generation chose it.

    Credentials of TARGET are those of every command (LOOKUPDB_STORE_AWS_…, else AWS_…, and so on). If SOURCE has other
    credentials, set LOOKUPDB_SOURCE_STORE_AWS_….
    """
    with objects.source_store():
        source = store.open_store(source_url, cluster_id)
        source.wait(store_wait)
    target = store.open_store(target_url, to_cluster_id or cluster_id)
    target.wait(store_wait)
    if (source.identity, source.cluster) == (target.identity, target.cluster):
        raise UsageError("SOURCE and TARGET are the same", hint="give another store, or --to-cluster-id")
    addresses = list(find_addresses(source.addresses(), names, uid))
    if not addresses:
        raise UsageError(f"{source_url} has nothing of cluster {cluster_id}", hint="name another with --cluster-id")
    if generation is not None and len(addresses) != 1:
        found = format_count(len(addresses), "dataset")
        raise UsageError(f"--generation is of one dataset, found {found}", hint="choose one with --dataset and --uid")
    problems: list[str] = []
    lacks_room = True
    with open_progress(style) as progress:
        for address in addresses:
            try:
                copied = _copy(source, target, address, generation, scratch, progress)
            except (StoreDenied, StoreUnreachable):
                raise
            except LookupdbError as error:  # a full disk too: another dataset may fit
                remedy = f" ({error.hint})" if error.hint else ""
                problems.append(f"{address} ({address.uid}): {error.message}{remedy}")
                lacks_room &= isinstance(error, NotEnoughRoom)
                failed = {"outcome": "failed", "dataset": str(address), "uid": address.uid}
                say_of_failure(_format_line(failed, problems[-1], as_json))
                continue
            _report(copied, as_json)
            if copied.damaged:
                problems.append(_report_damage(address, copied, source, as_json))
                lacks_room = False
    if problems:
        more = f" (and {len(problems) - _MAX_SHOWN} more)" if len(problems) > _MAX_SHOWN else ""
        shown = "; ".join(problems[:_MAX_SHOWN])
        kind = NotEnoughRoom if lacks_room else StoreError
        raise kind(f"not everything could be copied: {shown}{more}", hint=_AGAIN)


def _copy(
    source: Store,
    target: Store,
    address: StoreAddress,
    generation: str | None,
    scratch: Path,
    progress: Progress,
) -> CopiedGeneration:
    place = target.dataset_at(StoreAddress(target.cluster, address.namespace, address.name, address.uid))
    with ExitStack() as stack:
        with folder_errors(f"cannot write to the scratch folder {scratch}"):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lookupdb-copy-", dir=scratch))
        progress.begin_phase(f"copying {address}", None, "bytes")
        copied = copy_generation(source.dataset_at(address), place, generation, Path(folder), progress.advance)
        progress.end_phase()
    return copied


def _report(copied: CopiedGeneration, as_json: bool) -> None:
    manifest = copied.manifest
    done = "copied" if copied.outcome == "copied" else "there already"
    sizes = f"{format_count(manifest.totals.records, 'record')}, {format_count(len(manifest.shards), 'shard')}"
    members = {
        "outcome": copied.outcome,
        "dataset": f"{manifest.namespace}/{manifest.name}",
        "uid": manifest.uid,
        "generation": manifest.generation,
        "records": manifest.totals.records,
        "fileBytes": manifest.totals.file_bytes,
    }
    text = f"{members['dataset']}: {manifest.generation} {done} ({sizes}); spec.adopt: {{uid: '{manifest.uid}'}}"
    click.echo(_format_line(members, text, as_json))


def _report_damage(address: StoreAddress, copied: CopiedGeneration, source: Store, as_json: bool) -> str:
    """Return a message about newer generations that are damaged and were not copied."""
    chosen, names = copied.manifest.generation, ", ".join(copied.damaged)
    text = (
        f"{address} ({address.uid}): {names} in {strip_secrets(source.url)} is damaged and was not copied, only "
        f"{chosen}, which is older (build another one, or choose with --generation {chosen})"
    )
    members = {"outcome": "damaged", "dataset": str(address), "uid": address.uid}
    say_of_failure(_format_line({**members, "generations": copied.damaged}, text, as_json))
    return text


def _format_line(members: Mapping[str, object], text: str, as_json: bool) -> str | bytes:
    return render_json({**members, "message": text}) if as_json else text
