"""`lookupdb copy` and `lookupdb image`: bring generations to other stores, and to registries as container images."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import click

from lookupdb import store
from lookupdb.builder.options import Progress, open_progress
from lookupdb.cli.addressing import (
    GenerationLocator,
    cluster_option,
    locator_options,
    patience_option,
    store_wait_option,
)
from lookupdb.cli.options import (
    EXISTING_FOLDER,
    FILE,
    FOLDER,
    GenerationAddress,
    json_option,
    log_format,
    option,
    progress_option,
    scratch_option,
    termination_log_option,
)
from lookupdb.cli.program import report_outcome
from lookupdb.errors import (
    GateClosed,
    LookupdbError,
    NotEnoughRoom,
    StoreDenied,
    StoreError,
    StoreUnreachable,
    UsageError,
)
from lookupdb.image.push import (
    ImageLayout,
    PushedImage,
    Registry,
    default_path,
    parse_repository,
    push_shard,
    read_docker_config,
)
from lookupdb.store import Store, StoreAddress, objects
from lookupdb.store.directory import folder_errors
from lookupdb.store.generations import CopiedGeneration, StoredGeneration, copy_generation, find_addresses
from lookupdb.wording import format_count, render_json, strip_secrets

_MAX_SHOWN: Final = 3  # number of problems in the last message; each was printed when it happened
_AGAIN: Final = "fix that and run it again: what was copied completely is not copied again"


@click.command()
@click.argument("source_url", metavar="SOURCE")
@click.argument("target_url", metavar="TARGET")
@store_wait_option
@cluster_option
@option("--to-cluster-id", help="Part of TARGET to copy into.  [default: that of --cluster-id]")
@option(
    "--dataset",
    "names",
    metavar="[NAMESPACE/]NAME",
    multiple=True,
    help="Dataset to copy. May be repeated.  [default: all of the cluster]",
)
@option("--uid", metavar="UID", help="Copy only the dataset with this uid; the first eight characters suffice.")
@option(
    "--generation",
    type=GenerationAddress(),
    help="Generation to copy, for a single dataset.  [default: the active one]",
)
@scratch_option("Scratch folder for one shard file, if the store cannot copy by itself.", EXISTING_FOLDER)
@progress_option
@click.option("--json", "as_json", is_flag=True, help="Write every line as JSON.")
@log_format
def copy(
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
    """Copy the active generation of datasets from the store SOURCE into the store TARGET.

    \b
        lookupdb copy s3://lookups/eu s3://lookups-us/main --cluster-id c1 --to-cluster-id c2
        lookupdb copy .lookupdb/store s3://lookups/eu --to-cluster-id c1 --dataset airports

    The active generation is the announced one (active.json), else the newest whole one that no gate rejected.

    A dataset keeps its namespace, name, uid and generation numbers. In the other cluster, a dataset of that name adopts
    it: set spec.adopt to the printed value. Until then the copy is retained: no sweep removes it.

    Each generation appears completely or not at all. If the copy breaks off, run it again: what exists already is not
    copied again. If SOURCE and TARGET are in one bucket, with the same URL, endpoint and credentials, the store copies
    by itself. All other data pass through this process and are verified (size, SHA-256). A dataset that cannot be
    copied is reported, and the others are copied. The exit code is then 6 if only room was lacking, else 5. If nothing
    is announced and the newest generation is damaged, the newest whole one is copied, and the exit code is 5.

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
        raise UsageError(f"--generation needs one dataset, found {found}", hint="choose one with --dataset and --uid")
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
                click.echo(_format_line(failed, problems[-1], as_json))
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
    source: Store, target: Store, address: StoreAddress, generation: str | None, scratch: Path, progress: Progress
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
    adopt = f"spec.adopt: {{uid: '{manifest.uid}', generation: {manifest.generation}}}"
    text = f"{members['dataset']}: {manifest.generation} {done} ({sizes}); {adopt}"
    click.echo(_format_line(members, text, as_json))


def _report_damage(address: StoreAddress, copied: CopiedGeneration, source: Store, as_json: bool) -> str:
    """Return a message about newer generations that are damaged and were not copied."""
    chosen, names = copied.manifest.generation, ", ".join(copied.damaged)
    text = (
        f"{address} ({address.uid}): {names} in {strip_secrets(source.url)} is damaged and was not copied: "
        f"the target has the older {chosen} (build another one, or choose with --generation {chosen})"
    )
    members = {"outcome": "damaged", "dataset": str(address), "uid": address.uid}
    click.echo(_format_line({**members, "generations": copied.damaged}, text, as_json))
    return text


def _format_line(members: Mapping[str, object], text: str, as_json: bool) -> str | bytes:
    return render_json({**members, "message": text}) if as_json else text


_REGISTRY_PATIENCE_SECONDS: Final = 60.0


@click.group()
def image() -> None:
    """Package a generation as container images, which Kubernetes mounts into shard servers as volumes.

    Each shard becomes an image of two layers: manifest.json and the shard's file. Its tag never changes, for example
    people-3f2b9c1e-g12-shard-00003. The same generation always gives the same digests.
    """


_shard_option = option(
    "--shard",
    "selected",
    type=click.IntRange(min=0),
    multiple=True,
    help="Shard to take. May be repeated.  [default: all]",
)
_override_option = option(
    "--override-gates", "overridden", type=GenerationAddress(), help="Take this generation although a gate rejected it."
)


@image.command("write", short_help="Write the images of a generation as an OCI image layout.")
@click.argument("target", metavar="FOLDER|GENERATION")
@click.option(
    "--out",
    "folder",
    type=FOLDER,
    required=True,
    help="Folder of the image layout: new, empty, or a layout whose index.json is replaced. Its blobs stay.",
)
@locator_options
@_shard_option
@_override_option
@patience_option
@progress_option
@json_option
@log_format
def write_images(
    target: str,
    folder: Path,
    selected: tuple[int, ...],
    overridden: str | None,
    patience: float,
    style: str,
    as_json: bool,
    **location: Any,
) -> None:
    """Write the images of a GENERATION (gN in a store, or a FOLDER) as an OCI image layout.

    \b
        lookupdb image write g12 --store s3://lookups/eu --dataset team/people --out people-g12
        skopeo copy oci:people-g12:people-3f2b9c1e-g12-shard-00000 docker://registry.example/lookups:…

    Files are verified (size, SHA-256) while they are read. index.json lists only complete images. A generation that a
    gate rejected is not taken, unless --override-gates names it.
    """
    with report_outcome(None, as_json, target=target) as result:
        generation, shards = _find_shards(location, target, selected, overridden)
        layout = ImageLayout(folder)
        with _show_phase(style, "writing", generation, shards, passes=1) as advance:
            images = layout.write(generation, shards, patience, advance)
        result.update(
            outcome="written",
            folder=str(folder),
            images=[{"tag": image.tag, "digest": image.digest} for image in images],
            message=f"{folder} holds {format_count(len(images), 'image')}",
        )


@image.command("push", short_help="Push the images of a generation to a registry.")
@click.argument("target", metavar="FOLDER|GENERATION")
@option(
    "--repository", metavar="HOST/PATH", required=True, help="Repository to push to: registry.example/team/lookups."
)
@option(
    "--docker-config",
    type=FILE,
    help="File with credentials, as docker login or a Secret has it.  [default: $DOCKER_CONFIG/config.json]",
)
@option("--ca-file", type=FILE, help="Also trust the certificate authorities in this PEM file.")
@click.option("--plain-http", is_flag=True, help="Use no TLS; credentials are then sent to this machine only.")
@locator_options
@_shard_option
@_override_option
@patience_option
@option(
    "--registry-patience",
    type=click.FloatRange(min=0),
    default=_REGISTRY_PATIENCE_SECONDS,
    help="Seconds for which the registry may fail before giving up.",
)
@progress_option
@termination_log_option
@json_option
@log_format
def push_images(
    target: str,
    repository: str,
    docker_config: Path | None,
    ca_file: Path | None,
    plain_http: bool,
    selected: tuple[int, ...],
    overridden: str | None,
    patience: float,
    registry_patience: float,
    style: str,
    termination_log: Path | None,
    as_json: bool,
    **location: Any,
) -> None:
    """Push the images of a GENERATION (gN in a store, or a FOLDER) to a repository.

    \b
        lookupdb image push g12 --store s3://lookups/eu --dataset team/people --repository registry.example/lookups

    Shards are streamed and verified (size, SHA-256), and pushed by oras, which must be on PATH; no shard is written to
    disk. If the push breaks off, run it again: what the registry has is not sent again. Credentials come from a file,
    or from a helper that it names. A generation that a gate rejected is not taken, unless --override-gates names it.
    """
    with report_outcome(termination_log, as_json, target=target, repository=repository) as result:
        place = parse_repository(repository)
        config = read_docker_config(docker_config or default_path(), place, must_exist=docker_config is not None)
        images: list[PushedImage] = []
        with closing(
            Registry(place, config, plain_http=plain_http, patience=registry_patience, ca_file=ca_file)
        ) as registry:
            generation, shards = _find_shards(location, target, selected, overridden)
            with _show_phase(style, "pushing", generation, shards, passes=2) as advance:
                images.extend(push_shard(generation, shard, registry, patience, advance) for shard in shards)
        pushed = sum(image.outcome == "pushed" for image in images)
        held = f"{format_count(len(images), 'image')} of {generation.manifest.generation}"
        result.update(
            outcome="pushed" if pushed else "present",
            generation=generation.manifest.generation,
            pushed=pushed,
            present=len(images) - pushed,
            sentBytes=sum(image.sent_bytes for image in images),
            message=f"{repository} has {held}, {pushed} of them new",
        )


def _find_shards(
    location: dict[str, Any], target: str, selected: Sequence[int], overridden: str | None
) -> tuple[StoredGeneration, tuple[int, ...]]:
    """Return the generation and the numbers of the chosen shards.

    Raises UsageError, StoreError, and GateClosed for a rejected generation that is not ``overridden``.
    """
    generation = GenerationLocator(**location).find(target)
    manifest = generation.manifest
    if manifest.refused is not None and overridden != manifest.generation:
        reasons = "\n".join(manifest.refused.reasons)
        raise GateClosed(
            f"{manifest.generation} in {generation.where} was rejected:\n{reasons}",
            hint=f"a rejected generation does not serve; --override-gates {manifest.generation} takes it anyway",
        )
    shards = len(generation.manifest.shards)
    if unknown := [shard for shard in selected if shard >= shards]:
        raise UsageError(f"there is no shard {unknown[0]} in {generation.where}: it has 0 to {shards - 1}")
    return generation, tuple(sorted(set(selected))) if selected else tuple(range(shards))


@contextmanager
def _show_phase(
    style: str, verb: str, generation: StoredGeneration, shards: Sequence[int], *, passes: int
) -> Iterator[Callable[[int], None]]:
    """Show progress while the block reads the files, at most ``passes`` times. Yields the function that advances it."""
    size = passes * sum(generation.manifest.shards[shard].bytes for shard in shards)
    with open_progress(style) as progress:
        progress.begin_phase(f"{verb} {generation.manifest.generation}", size, "bytes")
        yield progress.advance
        progress.end_phase()
