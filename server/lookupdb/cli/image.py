"""`lookupdb image`: package a generation as container images, one for each shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from lookupdb.builder.options import open_progress
from lookupdb.cli.addressing import GenerationLocator, locator_options
from lookupdb.cli.fetch import patience_option
from lookupdb.cli.options import GenerationAddress, log_format, option, progress_option
from lookupdb.cli.output import json_option, report_outcome, termination_log_option
from lookupdb.errors import GateClosed, UsageError
from lookupdb.image.push import (
    ImageLayout,
    PushedImage,
    Registry,
    default_path,
    parse_repository,
    push_shard,
    read_docker_config,
)
from lookupdb.store.stored_generation import StoredGeneration
from lookupdb.wording import format_count

_REGISTRY_PATIENCE_SECONDS: Final = 60.0


@click.group()
def command() -> None:
    """Package a generation as container images, which Kubernetes mounts into shard servers as volumes.

    Each shard becomes an image of two layers: manifest.json and the shard's file. Its tag never changes, for example
    people-3f2b9c1e-g12-shard-00003. The same generation always gives the same digests.
    """


_shard_option = option(
    "--shard",
    "selected",
    type=click.IntRange(min=0),
    multiple=True,
    show_default=False,
    help="Shard to take. May be repeated.  [default: all]",
)
_override_option = option(
    "--override-gates",
    "overridden",
    type=GenerationAddress(),
    show_default=False,
    help="Take this generation although a gate rejected it.",
)


@command.command(short_help="Write the images of a generation as an OCI image layout.")
@click.argument("target", metavar="FOLDER|GENERATION")
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
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
def write(
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
        generation, shards = _find(location, target, selected, overridden)
        layout = ImageLayout(folder)
        with _phase(style, "writing", generation, shards, passes=1) as advance:
            images = layout.write(generation, shards, patience, advance)
        unreferenced = layout.measure_unreferenced()
        message = f"{folder} holds {_count(images)}"
        if unreferenced:
            message += (
                f", and {unreferenced} bytes to which its index.json no longer refers: write to a new folder to be rid"
                " of them"
            )
        result.update(
            outcome="written",
            folder=str(folder),
            images=[asdict(image) for image in images],
            unreferencedBytes=unreferenced,
            message=message,
        )


@command.command(short_help="Push the images of a generation to a registry.")
@click.argument("target", metavar="FOLDER|GENERATION")
@option(
    "--repository", metavar="HOST/PATH", required=True, help="Repository to push to: registry.example/team/lookups."
)
@option(
    "--docker-config",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    show_default=False,
    help="File with credentials, as docker login or a Secret has it.  [default: $DOCKER_CONFIG/config.json]",
)
@option(
    "--ca-file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    show_default=False,
    help="Also trust the certificate authorities in this PEM file.",
)
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
def push(
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
            generation, shards = _find(location, target, selected, overridden)
            with _phase(style, "pushing", generation, shards, passes=2) as advance:
                images.extend(push_shard(generation, shard, registry, patience, advance) for shard in shards)
        pushed = sum(image.outcome == "pushed" for image in images)
        result.update(
            outcome="pushed" if pushed else "present",
            generation=generation.manifest.generation,
            pushed=pushed,
            present=len(images) - pushed,
            sentBytes=sum(image.sent_bytes for image in images),
            message=f"{repository} has {_count(images)} of {generation.manifest.generation}, {pushed} of them new",
        )


def _find(
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
def _phase(
    style: str, verb: str, generation: StoredGeneration, shards: Sequence[int], *, passes: int
) -> Iterator[Callable[[int], None]]:
    """Show progress while the block runs, which reads the files ``passes`` times at most. Yields what advances it."""
    size = passes * sum(generation.manifest.shards[shard].bytes for shard in shards)
    with open_progress(style) as progress:
        progress.begin_phase(f"{verb} {generation.manifest.generation}", size, "bytes")
        yield progress.advance
        progress.end_phase()


def _count(images: Sequence[object]) -> str:
    return format_count(len(images), "image")
