"""Take pushes to a dataset: verify the newest one, check the gates, and copy it under the dataset's next number.

Only the rows of a push are trusted. Its index and files are compared with the spec and with each other, and every
file is read once. Servers fetch the copy, which the pusher may be unable to write. They verify its checksums, so they
never serve a file that was replaced between the check and the copy."""

from __future__ import annotations

import datetime
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Final

from lookupdb import keys
from lookupdb.builder import existing
from lookupdb.builder.gates import ActiveGeneration
from lookupdb.builder.options import BuildOptions, BuildReport, Progress, built_report, idle_report, scratch_folder
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import CorruptFile, GenerationExists, PushRejected
from lookupdb.manifest import Manifest, ShardFile, SourceFile
from lookupdb.shardfile import ShardMeta, ShardReader
from lookupdb.store import Store, StoredDataset
from lookupdb.store.stored_generation import open_shard

_KEYS_CHECKED: Final = 1000
"""Number of keys in each file whose shard is checked. With another hash, the first ones are wrong already."""
_MOMENT: Final = "%Y-%m-%dT%H:%M:%SZ"


def find_push(inbox: StoredDataset) -> Manifest | None:
    """Return the newest push; None if nothing was pushed yet. Raises PushRejected if its index cannot be read,
    StoreError."""
    published = inbox.published_generations()
    if not published:
        return None
    with _rejecting(inbox, published[-1]):
        return inbox.manifest(published[-1])


def fingerprint_push(push: Manifest) -> str:
    """Return the fingerprint of a copy of ``push``."""
    return hashlib.sha256(push.to_json()).hexdigest()[:32]


def take_push(spec: DatasetSpec, store: Store, options: BuildOptions, progress: Progress) -> BuildReport:
    """Copy the newest push into the dataset of ``spec``, unless that is what ``options.unless_fingerprint`` names.

    Raises PushRejected, GenerationRefused if it fails a gate, StoreError, NotEnoughRoom.
    """
    started_at = time.monotonic()
    dataset, inbox = store.dataset(spec), store.inbox(spec)
    push = find_push(inbox)
    if push is None:
        message = f"waiting for the first push to {inbox.url}: nothing was read"
        return idle_report(spec, started_at, "waiting", "WaitingForSource", message)
    fingerprint = fingerprint_push(push)
    if fingerprint == options.unless_fingerprint and existing.has_generation(
        dataset, spec, fingerprint, options.active
    ):
        message = f"{push.generation} is still the newest push; nothing was copied"
        return idle_report(spec, started_at, "unchanged", "Unchanged", message, fingerprint)
    active = existing.find_active(dataset, options.active, options.active_records, spec.gates)
    if options.unless_refused is not None:
        refused = existing.find_refusal(dataset, options.unless_refused, spec, fingerprint, active)
        if refused is not None and refused.refused is not None:
            raise existing.refusal_error(refused.refused, refused)
    try:
        with scratch_folder(options.scratch) as scratch:
            return _copy(spec, dataset, inbox, push, active, options, scratch, progress, started_at)
    except GenerationExists:
        if options.generation is None:
            raise
        # Another builder published it while this one waited for the claim.
        return existing.adopt_generation(spec, dataset, options.generation, started_at, options.build_id)


def _copy(
    spec: DatasetSpec,
    dataset: StoredDataset,
    inbox: StoredDataset,
    push: Manifest,
    active: ActiveGeneration | None,
    options: BuildOptions,
    scratch: Path,
    progress: Progress,
    started_at: float,
) -> BuildReport:
    with _rejecting(inbox, push.generation):
        verify_push(spec, inbox, push, scratch, progress)
        refused = existing.judge(spec, inbox, push, scratch, progress, dataset, active)
    with dataset.claim(options.generation or dataset.next_generation(), scratch) as claim:
        source = SourceFile(f"{inbox.url}/{push.generation}", push.totals.file_bytes, None, push.built_at)
        copy = replace(
            push,
            uid=spec.uid,
            generation=claim.generation,
            fingerprint=fingerprint_push(push),
            source=(source,),
            seconds=round(time.monotonic() - started_at, 3),
            refused=refused,
            overridden=(),
            adopted=None,
            success_file=None,
            build=options.build_id,
        )
        progress.begin_phase("copying", push.totals.file_bytes, "bytes")
        with _rejecting(inbox, push.generation):
            published = claim.publish_copy(inbox, push.generation, copy, progress.advance)
        progress.end_phase()
    if published.refused is not None:
        raise existing.refusal_error(published.refused, published)
    report = built_report(published, 0)
    return replace(report, message=f"{report.message}, a copy of push {push.generation}")


def verify_push(spec: DatasetSpec, inbox: StoredDataset, push: Manifest, scratch: Path, progress: Progress) -> None:
    """Raise PushRejected or CorruptFile if ``push`` is not a whole generation of ``spec``. Reads every file."""
    if (push.namespace, push.name) != (spec.namespace, spec.name):
        found = f"{push.namespace}/{push.name}"
        raise PushRejected(f"it is of {found[:100]!r}, expected '{spec.namespace}/{spec.name}'")
    if differences := existing.describe_differences(push, spec):
        raise PushRejected(f"it was made for another spec: {differences}", hint="push again with the dataset's spec")
    if push.refused is not None:
        raise PushRejected("it failed a gate where it was made")
    if not _is_past(push.built_at):
        raise PushRejected(
            f"its build time is {push.built_at[:40]!r}, expected a time in the past",
            hint="correct the clock of the machine that pushes, and push again",
        )
    totals, shards = push.totals, push.shards
    sums = (sum(shard.records for shard in shards), sum(shard.bytes for shard in shards))
    if sums != (totals.records, totals.file_bytes):
        raise PushRejected(f"its shards have {sums[0]:,} records in {sums[1]:,} bytes, which differs from its totals")
    inbox.check_files(push)
    progress.begin_phase("verifying", totals.file_bytes, "bytes")
    for number, shard in enumerate(shards):
        with inbox.verified_shard(push.generation, shard, scratch) as path, open_shard(path) as reader:
            if path.is_symlink():
                raise PushRejected(f"{shard.file} is a link, expected a file")
            _check_shard(spec, number, shard, push, reader)
        progress.advance(shard.bytes)
    progress.end_phase()


def _check_shard(spec: DatasetSpec, number: int, shard: ShardFile, push: Manifest, reader: ShardReader) -> None:
    expected = ShardMeta(
        dataset=f"{spec.namespace}/{spec.name}",
        shard=number,
        shards=spec.shards,
        records=reader.pages()["entries"],
        normalize=spec.key.normalize,
        value_format=spec.value.format,
        compression=spec.value.compression,
        content=spec.content_hash(),
    )
    for name, value in {**asdict(expected), "extra": reader.meta.extra}.items():
        if (found := getattr(reader.meta, name)) != value:
            raise PushRejected(f"{shard.file} has {name} {str(found)[:100]!r}, expected {str(value)[:100]!r}")
    if shard.records != expected.records:
        raise PushRejected(f"{shard.file} has {expected.records:,} records, its index says {shard.records:,}")
    if reader.dictionary_bytes != push.dictionary_bytes:
        sizes = f"{reader.dictionary_bytes:,} bytes, its index says {push.dictionary_bytes:,}"
        raise PushRejected(f"{shard.file} has a dictionary of {sizes}")
    first_keys = reader.txn.cursor().iternext(keys=True, values=False)
    if any(keys.shard_number(key, spec.shards) != number for key in islice(first_keys, _KEYS_CHECKED)):
        raise PushRejected(f"{shard.file} has keys of other shards: its writer assigns keys to shards differently")


def _is_past(moment: str) -> bool:
    try:
        built_at = datetime.datetime.strptime(moment, _MOMENT).replace(tzinfo=datetime.UTC)
    except ValueError:
        return False
    return built_at <= datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5)


@contextmanager
def _rejecting(inbox: StoredDataset, generation: str) -> Iterator[None]:
    """Add the name of the push to an error about it."""
    try:
        yield
    except (PushRejected, CorruptFile) as error:
        hint = error.hint if isinstance(error, PushRejected) else None
        raise PushRejected(
            f"push {generation} in {inbox.url} was rejected: {error.message}", hint=hint or "push again"
        ) from error
