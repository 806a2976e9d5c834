"""Use what the store already holds: compare with it, adopt it, or reject the same generation again.

First come the questions that a build asks about earlier generations, then the reports and errors for a generation that
exists. The rest adopts a generation of an earlier dataset with the same name instead of building one.

A name does not say whose data it was, so adoption needs the earlier dataset's uid. The generation's manifest must name
that dataset, and the spec must be the same. The copy is published under a number and the uid of the adopting dataset.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from lookupdb import keys
from lookupdb.builder import gates
from lookupdb.builder.gates import ActiveGeneration, GateFacts, SampledDifference, comparing_gates
from lookupdb.builder.options import (
    BuildOptions,
    BuildReport,
    EarlierDataset,
    GenerationRefused,
    Progress,
    built_report,
    scratch_folder,
)
from lookupdb.dataset.spec import DatasetSpec, Gates
from lookupdb.errors import AdoptionFailed, CorruptFile, GenerationExists, GenerationMissing
from lookupdb.keys import UNICODE_VERSION, file_name, has_same_normalization, make_sampler, shard_number
from lookupdb.manifest import AdoptedGeneration, ExcludedRows, Manifest, Refusal, ShardFile, Totals, generation_number
from lookupdb.shardfile import FRAMED, ShardReader, unframe
from lookupdb.store import Store, StoreAddress, StoredDataset
from lookupdb.store.dataset import find_announced
from lookupdb.store.generations import StoredGeneration, is_same_value, open_shard
from lookupdb.wording import format_count, format_some, strip_secrets

# Estimate how much a new generation differs from the active one, at a cost that does not grow with the store, for a
# build's gate and ``lookupdb diff --sampled``.
#
# Shard s of N holds the keys whose hash is s modulo N: a random sample of all keys, the same in every build. So only
# the first shards of the active generation are read: enough for ``MAX_KEYS`` keys of the larger generation, at most
# ``MAX_BYTES`` of either, but at least one shard. One key in 2^k is compared, chosen by other bits of the hash. Values
# are compared as lookups return them.
#
# If both generations have the same number of shards, a key has the same shard in both. Otherwise the compared keys stay
# in memory, each with a hash of its value, and no file of either generation is read twice. A new key counts only if it
# would be in the shards that were read, so that added keys are estimated as exactly as removed ones.
#
# With n keys compared, the standard deviation of the share is at most 1 / (2 √n): 0.16 % for 100,000 keys.


log = logging.getLogger(__name__)

MAX_KEYS: Final = 100_000
"""Compare this many keys of the larger generation, or up to twice as many."""
MAX_BYTES: Final = 1 << 30
"""Read at most this many bytes of each generation, but always the active one's first file, and the other's files
with that file's keys."""
MAX_KEPT_BYTES: Final = 16 << 20
"""Bytes of keys in memory, approximately, while two generations with different numbers of shards are compared."""


def compare_stored(before: StoredGeneration, after: StoredGeneration, scratch: Path) -> SampledDifference:
    """Compare two stored generations, as ``compare_sampled`` does."""
    shards, totals = after.manifest.shards, after.manifest.totals
    return compare_sampled(before, lambda number: _open(after, shards[number], scratch), len(shards), totals, scratch)


def compare_sampled(
    before: StoredGeneration,
    open_after: Callable[[int], AbstractContextManager[ShardReader]],
    shards: int,
    totals: Totals,
    scratch: Path,
) -> SampledDifference:
    """Compare ``before`` with a generation of ``shards`` shards and ``totals``, whose files ``open_after`` opens.

    Copies one file of a store at a time to ``scratch``, unless it is on this machine. Raises StoreError, NotEnoughRoom,
    and CorruptFile if a part that it reads is damaged.
    """
    every = before.manifest.shards
    chosen = choose_shards(every, totals)
    halvings = choose_halvings(max(sum(shard.records for shard in chosen), totals.records * len(chosen) // len(every)))
    if shards != len(every):
        key_bytes = before.manifest.totals.key_bytes * len(chosen) // len(every)
        halvings = max(halvings, (key_bytes // MAX_KEPT_BYTES).bit_length())
        return _compare_resharded(before, chosen, halvings, open_after, shards, scratch)
    result, is_sampled = SampledDifference(is_whole=len(chosen) == shards and not halvings), make_sampler(halvings)
    for number, shard in enumerate(chosen):
        with _open(before, shard, scratch) as old, open_after(number) as new:
            for key in _sampled_keys(old, is_sampled):
                stored = new.txn.get(key)
                if stored is None:
                    result.count("removed", key)
                elif is_same_value(old, old.txn.get(key, b""), new, stored):
                    result.same += 1
                else:
                    result.count("changed", key)
            for key in _sampled_keys(new, is_sampled):
                if old.txn.get(key) is None:
                    result.count("added", key)
    return result


@contextmanager
def _open(generation: StoredGeneration, shard: ShardFile, scratch: Path) -> Iterator[ShardReader]:
    with generation.file(shard, scratch) as path, open_shard(path) as reader:
        yield reader


def choose_shards(shards: Sequence[ShardFile], totals: Totals) -> Sequence[ShardFile]:
    """Return the first of ``shards``, enough for the sample, at least one. The same share of the other generation, with
    ``totals``, is compared."""
    records = size = 0
    for number, shard in enumerate(shards):
        size += shard.bytes
        most_records = max(records, totals.records * number // len(shards))
        most_bytes = max(size, totals.file_bytes * (number + 1) // len(shards))
        if number and (most_records >= MAX_KEYS or most_bytes > MAX_BYTES):
            return shards[:number]
        records += shard.records
    return shards


def choose_halvings(keys: int) -> int:
    """Return how often to halve a sample of ``keys`` keys, so that at least ``MAX_KEYS`` are left."""
    return max(0, (keys // MAX_KEYS).bit_length() - 1)


def _sampled_keys(shard: ShardReader, is_sampled: Callable[[bytes], bool]) -> Iterator[bytes]:
    return filter(is_sampled, shard.txn.cursor().iternext(keys=True, values=False))


def _compare_resharded(
    before: StoredGeneration,
    sampled_shards: Sequence[ShardFile],
    halvings: int,
    open_after: Callable[[int], AbstractContextManager[ShardReader]],
    shards: int,
    scratch: Path,
) -> SampledDifference:
    """Compare generations with different numbers of shards: each file is opened once, one at a time. A new key that no
    chosen shard has was added; a key of a chosen shard that no file has was removed."""
    every, is_sampled = len(before.manifest.shards), make_sampler(halvings)
    result = SampledDifference(is_whole=len(sampled_shards) == every and not halvings)
    values: dict[bytes, int] = {}
    for shard in sampled_shards:
        with _open(before, shard, scratch) as old:
            values.update((key, _hash_value(old, key)) for key in _sampled_keys(old, is_sampled))
    for number in range(shards):
        # This shard cannot hold keys of a chosen shard: both numbers are remainders of the same hash.
        if number % math.gcd(every, shards) >= len(sampled_shards):
            continue
        with open_after(number) as new:
            for key in _sampled_keys(new, is_sampled):
                if shard_number(key, every) >= len(sampled_shards):
                    continue  # the key would be in no chosen shard
                value = values.pop(key, None)
                if value is None:
                    result.count("added", key)
                elif value == _hash_value(new, key):
                    result.same += 1
                else:
                    result.count("changed", key)
    for key in values:
        result.count("removed", key)
    return result


def _hash_value(shard: ShardReader, key: bytes) -> int:
    return hash(shard.expand(shard.txn.get(key, b"")))


# The facts for the gates, from the files of the written generation and of the active one.


def gather_facts(
    generation: WrittenGeneration,
    totals: Totals,
    rejected: ExcludedRows,
    active: ActiveGeneration | None,
    dataset: StoredDataset,
    scratch: Path,
    progress: Progress,
) -> GateFacts:
    """Return the facts of a generation that is written but not yet published. ``scratch`` takes a copy of one file of
    the active generation at a time."""

    @cache
    def compare() -> SampledDifference | str:
        if active is None or active.manifest is None:
            return "the store has lost it"
        progress.begin_phase("comparing", None, "rows")
        try:
            before = StoredGeneration("", active.manifest, dataset)
            return compare_sampled(before, generation.open_shard, generation.spec.shards, totals, scratch)
        except (CorruptFile, GenerationMissing) as error:
            return error.message
        finally:
            progress.end_phase()

    return GateFacts(
        records=totals.records,
        rejected=rejected,
        active=active,
        value_format=generation.spec.value.format,
        largest_value_bytes=totals.largest_value_bytes,
        find=generation.find,
        list_large_values=generation.list_large_values,
        compare=compare,
    )


class WrittenGeneration:
    """The files of a generation, in the folder of its builder."""

    def __init__(self, spec: DatasetSpec, folder: Path) -> None:
        self.spec = spec
        self.folder = folder
        self._encode = keys.make_key_encoder(spec.key.normalize)

    def find(self, text: str) -> bytes | None:
        """Return the value of a key as a router looks it up; None if there is none."""
        try:
            key = self._encode(text)
        except keys.InvalidKey:
            return None
        with self.open_shard(keys.shard_number(key, self.spec.shards)) as shard:
            reply = shard.find(key)
        return None if reply is None else unframe(reply)

    def list_large_values(self, limit: int) -> Iterator[tuple[bytes, int]]:
        """Yield the keys whose values have more than ``limit`` bytes, with the size."""
        for number in range(self.spec.shards):
            with self.open_shard(number) as shard:
                for key, stored in shard.items():
                    if stored[0] == FRAMED and len(stored) <= limit:
                        continue
                    size = len(unframe(shard.expand(stored)))
                    if size > limit:
                        yield key, size

    def open_shard(self, number: int) -> AbstractContextManager[ShardReader]:
        """Open the file of shard ``number``."""
        return ShardReader(self.folder / file_name(number, self.spec.shards))


class StoredFiles(WrittenGeneration):
    """The files of a generation in a store. A gate that reads a file gets a verified copy, made once."""

    def __init__(
        self,
        spec: DatasetSpec,
        scratch: Path,
        shards: Sequence[ShardFile],
        fetch: Callable[[ShardFile, Path], AbstractContextManager[Path]],
        copies: ExitStack,
    ) -> None:
        super().__init__(spec, scratch)
        self._shards, self._fetch, self._copies = shards, fetch, copies
        self._paths: dict[int, Path] = {}

    @contextmanager
    def open_shard(self, number: int) -> Iterator[ShardReader]:
        """Open shard ``number``."""
        if number not in self._paths:
            self._paths[number] = self._copies.enter_context(self._fetch(self._shards[number], self.folder))
        with ShardReader(self._paths[number]) as reader:
            yield reader


# The active generation, which the gates compare with.


def usable_manifests(dataset: StoredDataset) -> list[Manifest]:
    """Return the manifests of whole generations, newest first, except rejected ones. Raises StoreError."""
    return [manifest for manifest in reversed(dataset.whole_manifests().values()) if manifest.refused is None]


def find_active(
    dataset: StoredDataset, generation: str | None, records: int | None, gate_spec: Gates
) -> ActiveGeneration | None:
    """Return the generation that gates compare with: ``generation``, else the announced one if it is there, else the
    newest published one that passed; None if there is none yet.

    If it is lost or unreadable, the newest readable one replaces it, with a warning. If none is readable, the lost
    one's number of ``records`` is used. If that is unknown and ``gate_spec`` has a gate that needs it, raises
    GenerationMissing or CorruptFile: a source that has shrunk must not pass because the store was lost. Raises
    StoreError if the store itself cannot be read.
    """
    name = generation
    if name is None:
        published, refused = dataset.published_generations(), dataset.refused_generations()
        newest = next((found for found in reversed(published) if found not in refused), None)
        name = announced if (announced := find_announced(dataset)) in published else newest
    if name is None:
        return None
    try:
        manifest = dataset.manifest(name)
    except (GenerationMissing, CorruptFile) as error:
        substitute = next(iter(usable_manifests(dataset)), None)
        ways_out = comparing_gates(gate_spec)
        if substitute is None and records is None and ways_out:
            hint = (
                "no push is left to compare with: leave the gates to the dataset with --no-gates"
                if dataset.address.is_inbox
                else f"no generation is left to compare with: restore {name}, or {' and '.join(ways_out)} until the "
                "next generation is built"
            )
            raise type(error)(error.message, hint=hint) from error
        log.warning(
            "the active generation cannot be read from the store",
            extra={
                "generation": name,
                "comparedWith": substitute.generation if substitute else "none",
                "reason": error.message,
            },
        )
        if substitute is None:
            return None if records is None else ActiveGeneration(name, records, None)
        manifest = substitute
    return ActiveGeneration(manifest.generation, manifest.totals.records, manifest)


# What earlier generations tell a build: whether it is needed, what its gates compare with, and what they rejected.


def has_generation(dataset: StoredDataset, spec: DatasetSpec, fingerprint: str, active: str | None = None) -> bool:
    """Return whether the store holds a generation of this spec and of the source with this ``fingerprint``. Raises
    StoreError.

    The store is always checked: it may have been lost or replaced since the last build. A generation does not count if
    its keys were normalised with other Unicode tables: it must be rebuilt. But a copy of a push counts: another copy
    would be the same. A rejected one counts if it is ``active``: an operator has overridden its gates.
    """
    return any(
        (manifest.refused is None or name == active) and _is_same_build(manifest, spec, fingerprint)
        for name, manifest in dataset.whole_manifests().items()
    )


def _is_same_build(manifest: Manifest, spec: DatasetSpec, fingerprint: str) -> bool:
    is_same = (manifest.content, manifest.fingerprint) == (spec.content_hash(), fingerprint)
    return is_same and (spec.source.takes_pushes or has_same_normalization(manifest.normalize, manifest.unicode))


def check_refusal(
    dataset: StoredDataset, generation: str | None, spec: DatasetSpec, fingerprint: str, active: ActiveGeneration | None
) -> None:
    """Raise GenerationRefused again if a gate rejected ``generation`` and nothing has changed since: content, gates and
    active generation are the same. Raises StoreError."""
    manifest = None if generation is None else dataset.whole_manifests().get(generation)
    if manifest is None or manifest.refused is None or not _is_same_build(manifest, spec, fingerprint):
        return
    if manifest.refused.unjudged and manifest.refused.active in dataset.whole_manifests():
        return  # the active generation may be readable again
    judged_by = (manifest.refused.gates, manifest.refused.active)
    if judged_by == (spec.gates.content_hash(), active.generation if active else ""):
        raise refusal_error(manifest.refused, manifest)


# Generations that exist when a build begins or ends: adopted, rejected, or passed with an override.


_MOST_COUNTED: Final = 10**8
"""The largest generation number that counts. The operator ignores larger ones that it did not assign."""


def adopt_generation(
    spec: DatasetSpec, dataset: StoredDataset, generation: str, started_at: float, build_id: str | None = None
) -> BuildReport:
    """Report ``generation``, which the store already holds. Raises GenerationExists if it was built from another spec
    or by another build than ``build_id``; GenerationRefused if it failed a gate."""
    manifest = dataset.manifest(generation)
    if build_id is not None and manifest.build != build_id:
        next_free = dataset.next_generation()
        if int(next_free[1:]) > _MOST_COUNTED:
            used = {*dataset.published_generations(), *dataset.unfinished_generations()}
            numbers = itertools.count(generation_number(generation) + 1)
            next_free = next(name for name in map("g{}".format, numbers) if name not in used)
        raise GenerationExists(
            f"generation {generation} of {dataset.address} already exists in {dataset.url}, built at"
            f" {manifest.built_at} by another build",
            hint=f"a generation never changes: the next free one is {next_free}",
            next_free=next_free,
        )
    _check_content(manifest, spec, dataset)
    if manifest.refused is not None:
        raise refusal_error(manifest.refused, manifest)
    return adopted_report(manifest, started_at)


def override_gates(spec: DatasetSpec, store: Store, generation: str) -> BuildReport:
    """Override the gates of ``generation``, which failed one. Raises StoreError, UsageError if it failed
    none, or GenerationExists if it was built from another spec."""
    started_at = time.monotonic()
    dataset = store.dataset(spec)
    _check_content(dataset.manifest(generation), spec, dataset)
    reasons = "\n".join(dataset.admit(generation).overridden)
    report = adopt_generation(spec, dataset, generation, started_at)
    return replace(report, message=f"{generation} passes despite:\n{reasons}")


def refusal_error(refused: Refusal, manifest: Manifest | None, *, is_pushed: bool = False) -> GenerationRefused:
    """Return the error for a rejected generation; ``manifest`` is its own, if it is in the store."""
    message = "\n".join(refused.reasons)
    if manifest is None:
        hint = "an empty generation is not published; correct the source, or the spec"
        if is_pushed:
            hint = "nothing was pushed: correct the rows, or leave the gates to the dataset with --no-gates"
        return GenerationRefused(message, None, hint=hint)
    generation = manifest.generation
    hint = (
        f"{generation} is in the store for inspection, and does not serve: correct the source, change spec.gates, or "
        "override the gate"
    )
    return GenerationRefused(message, manifest, hint=hint)


def adopted_report(manifest: Manifest, started_at: float) -> BuildReport:
    """Return the report of an existing generation that is used instead of a build, from this dataset or an earlier
    one.
    """
    message = f"{manifest.generation} already exists, built from this spec at {manifest.built_at}"
    if manifest.adopted is not None:
        uid, generation = manifest.adopted.uid, manifest.adopted.generation
        records = format_count(manifest.totals.records, "record")
        message = f"{manifest.generation} is {generation} of the dataset {uid}, built at {manifest.built_at}: {records}"
    message += "; nothing was built"
    if not has_same_normalization(manifest.normalize, manifest.unicode):
        # Routers of this version may miss such keys. Keep the text short: a status keeps 256 characters of the message.
        message += (
            f"; its keys were normalised with Unicode {manifest.unicode}, not {UNICODE_VERSION}: some may not be found"
            " until a refresh"
        )
    return replace(
        built_report(manifest, 0),
        outcome="adopted",
        seconds=round(time.monotonic() - started_at, 3),
        reason="Adopted",
        message=message,
    )


def _check_content(manifest: Manifest, spec: DatasetSpec, dataset: StoredDataset) -> None:
    if manifest.content != spec.content_hash():
        raise GenerationExists(
            f"generation {manifest.generation} of {dataset.address} already exists in {dataset.url}, built from"
            " another spec",
            hint="a generation never changes: omit --generation to build the next one",
        )


_MAX_SHOWN: Final = 10
"""The most datasets and generations that one message lists."""


def find_own(dataset: StoredDataset) -> tuple[str, Manifest | None] | None:
    """Return the newest generation that ``dataset`` has built itself, and its manifest, which is None if damaged.
    Adopted and rejected generations do not count. Return None if there is none: then adoption replaces nothing newer.
    """
    published, manifests = dataset.published_generations(), dataset.whole_manifests()
    for name in sorted(published, key=generation_number, reverse=True):
        manifest = manifests.get(name)
        if manifest is not None:
            is_own = manifest.adopted is None or manifest.adopted.uid == manifest.uid
            if manifest.refused is not None or not is_own:
                continue
        log.info("nothing is adopted: the dataset already has a generation", extra={"generation": name})
        return name, manifest
    return None


def copy_existing(
    spec: DatasetSpec, store: Store, predecessor: EarlierDataset, options: BuildOptions, progress: Progress
) -> BuildReport | None:
    """Copy a generation instead of building one: a generation of ``predecessor``, or one of the dataset itself that the
    caller did not know of. Return None if a build is needed. Raises what ``adopt_predecessor`` raises."""
    dataset = store.dataset(spec)
    own = find_own(dataset)
    if own is None:
        return adopt_predecessor(spec, store, predecessor, options, progress)
    generation, known = own
    if options.build_id is not None and known is not None and known.content == spec.content_hash():
        try:
            return _copy_as_adopted(spec, dataset, dataset, known, options, progress)
        except CorruptFile as error:
            log.warning("the dataset's own generation cannot be copied", extra={"reason": error.message})
    if spec.source.volume is not None and options.volume is None:
        state = "which lacks files" if known is None else "built from another spec"
        raise AdoptionFailed(
            f"nothing is adopted: {spec.namespace}/{spec.name} already has {generation}, {state}",
            hint="remove spec.adopt to build from the source",
        )
    return None


def adopt_predecessor(
    spec: DatasetSpec, store: Store, predecessor: EarlierDataset, options: BuildOptions, progress: Progress
) -> BuildReport:
    """Publish a copy of a generation of ``predecessor`` in the dataset of ``spec``. Gates check it like a first
    generation.

    Raises AdoptionFailed, GenerationRefused, CorruptFile, StoreError.
    """
    dataset, address = store.dataset(spec), StoreAddress(store.cluster, spec.namespace, spec.name, predecessor.uid)
    if address == dataset.address:
        raise AdoptionFailed(
            f"spec.adopt.uid {predecessor.uid} is this dataset's own uid, or has the same beginning",
            hint="name the uid of the earlier dataset, or remove spec.adopt to build from the source",
        )
    source = store.dataset_at(address)
    original = _find_original(spec, store, source, predecessor)
    refused = None if options.unless_refused is None else dataset.whole_manifests().get(options.unless_refused)
    if refused is not None and refused.refused is not None:
        is_same = refused.adopted == AdoptedGeneration(original.uid, original.generation)
        if is_same and refused.refused.gates == spec.gates.content_hash():
            raise refusal_error(refused.refused, refused)
    return _copy_as_adopted(spec, dataset, source, original, options, progress)


def publish_copy(
    spec: DatasetSpec,
    dataset: StoredDataset,
    origin: StoredDataset,
    original: Manifest,
    options: BuildOptions,
    scratch: Path,
    progress: Progress,
    **changes: Any,
) -> Manifest:
    """Publish ``original`` from ``origin`` in ``dataset``, with ``changes`` to its manifest. Raises GenerationRefused
    if the copy is marked as rejected."""
    with dataset.claim(options.generation or dataset.next_generation(), scratch) as claim:
        copy = replace(original, uid=spec.uid, generation=claim.generation, build=options.build_id, **changes)
        progress.begin_phase("copying", original.totals.file_bytes, "bytes")
        published = claim.publish_copy(origin, original.generation, copy, progress.advance)
        progress.end_phase()
    if published.refused is not None:
        raise refusal_error(published.refused, published)
    return published


def _copy_as_adopted(
    spec: DatasetSpec,
    dataset: StoredDataset,
    source: StoredDataset,
    original: Manifest,
    options: BuildOptions,
    progress: Progress,
) -> BuildReport:
    """Publish ``original`` from ``source`` in ``dataset``. Gates check it, unless it is the dataset's own.

    The copy keeps the build time and the source of the original: they show the age of the data, and whether the source
    has changed.
    """
    started_at = time.monotonic()
    adopted = AdoptedGeneration(original.uid, original.generation)
    with scratch_folder(options.scratch) as scratch:
        refused = None if source is dataset else judge(spec, source, original, scratch, progress)
        published = publish_copy(
            spec, dataset, source, original, options, scratch, progress, adopted=adopted, refused=refused
        )
    return adopted_report(published, started_at)


def _find_original(spec: DatasetSpec, store: Store, source: StoredDataset, predecessor: EarlierDataset) -> Manifest:
    """Return the generation to adopt from ``source``: the named one, else the newest whole one that passed its gates.
    Raises StoreError, or AdoptionFailed if there is none, or if it was built from another spec."""
    manifests = [manifest for manifest in source.whole_manifests().values() if predecessor.has_built(manifest, spec)]
    usable = [manifest for manifest in manifests if manifest.refused is None]
    if predecessor.generation is not None:
        usable = [manifest for manifest in usable if manifest.generation == predecessor.generation]
    if not usable:
        expected = f"{predecessor.generation}, whole" if predecessor.generation else "a whole generation"
        raise AdoptionFailed(
            f"nothing can be adopted from {source.url}: expected {expected} that passed its gates, of"
            f" {spec.namespace}/{spec.name} {predecessor.uid}; {_list_what_is_there(spec, store, source, manifests)}",
            hint="correct spec.adopt, or remove it to build from the source",
        )
    newest = max(usable, key=lambda manifest: generation_number(manifest.generation))
    if differences := describe_differences(newest, spec):
        hint = (
            "restore the earlier spec, and change it afterwards; or name another generation, or remove spec.adopt to"
            " build from the source"
        )
        if any(_is_local(file.url) for file in newest.source) and not any(map(_is_local, spec.source.urls)):
            hint = (
                "specs with a local path and with a URL differ, even for the same files: build from the URL where that"
                " generation was built and copy the result, or remove spec.adopt to build from the source here"
            )
        raise AdoptionFailed(
            f"{newest.generation} of {spec.namespace}/{spec.name} {newest.uid} was built from another spec:"
            f" {differences}",
            hint=hint,
        )
    return newest


def describe_differences(manifest: Manifest, spec: DatasetSpec) -> str:
    """Return how the spec of ``manifest`` differs from ``spec``; empty if the same source would give the same files."""
    pairs = (
        ("shards", len(manifest.shards), spec.shards),
        ("key.columns", list(manifest.key_columns), list(spec.key.columns)),
        ("key.separator", manifest.separator, spec.key.separator),
        ("key.normalize", list(manifest.normalize), list(spec.key.normalize)),
        ("value.format", manifest.value_format, spec.value.format),
        ("value.compression", manifest.compression, spec.value.compression),
    )
    found = [
        f"{name} was {str(before)[:100]}, the spec says {str(now)[:100]}"
        for name, before, now in pairs
        if before != now
    ]
    if found:
        return "; ".join(found)
    if manifest.content == spec.content_hash():
        return ""
    first = strip_secrets(manifest.source[0].url)[:200] if manifest.source else "nothing"
    return (
        "spec.source, key, value or duplicates differ in a part that the manifest does not record; the earlier"
        f" source was {first}{' and more' if len(manifest.source) > 1 else ''}"
    )


def _is_local(url: str) -> bool:
    return "://" not in url or url.startswith("file://")


def _list_what_is_there(spec: DatasetSpec, store: Store, source: StoredDataset, manifests: Sequence[Manifest]) -> str:
    if manifests:
        names = [f"{found.generation}{' (rejected)' if found.refused is not None else ''}" for found in manifests]
        return f"it has {format_some(names[::-1], _MAX_SHOWN)}"
    if others := list(source.whole_manifests().values()):
        other = others[-1]
        return f"{other.generation} there belongs to {other.namespace}/{other.name} {other.uid}"
    if damaged := source.take_inventory().damaged:
        return f"it has {format_some(damaged[::-1], _MAX_SHOWN)}, with missing files"
    uids = [
        address.uid
        for address in store.addresses_in(spec.namespace)
        if address.name == spec.name and address.uid != spec.uid[:8]
    ]
    what = f"{spec.namespace}/{spec.name} in cluster {store.cluster}"
    some = format_some(uids, _MAX_SHOWN)
    return f"the store has {what} only with the uids {some}" if uids else f"there is no other dataset of {what}"


def judge(
    spec: DatasetSpec,
    source: StoredDataset,
    original: Manifest,
    scratch: Path,
    progress: Progress,
    dataset: StoredDataset | None = None,
    active: ActiveGeneration | None = None,
) -> Refusal | None:
    """Return why a copy of ``original`` must not be rolled out; None if it passes every gate. Gates compare it with
    ``active`` of ``dataset``; if there is none, they judge it like a first generation."""
    with ExitStack() as copies:
        files = StoredFiles(spec, scratch, original.shards, partial(source.verified_shard, original.generation), copies)
        facts = gather_facts(files, original.totals, original.rejected, active, dataset or source, scratch, progress)
        if active is not None and active.manifest is not None and active.manifest.has_same_files(original):
            # Both may be links to the same files, which LMDB does not open twice.
            facts = replace(facts, compare=lambda: SampledDifference(same=original.totals.records))
        closed = gates.find_closed_gates(spec.gates, facts)
    return None if not closed else make_refusal(spec, closed, active)


def make_refusal(spec: DatasetSpec, failed: Sequence[gates.ClosedGate], active: ActiveGeneration | None) -> Refusal:
    """Return the mark of a generation that failed the gates ``failed``."""
    return Refusal(
        reasons=gates.describe_closed_gates(failed),
        gates=spec.gates.content_hash(),
        active=active.generation if active else "",
        unjudged=gates.describe_closed_gates([gate for gate in failed if gate.is_unjudged]),
    )
