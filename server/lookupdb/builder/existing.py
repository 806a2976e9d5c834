"""Use what the store already holds: compare with it, adopt it, or reject the same generation again.

First come the questions that a build asks about earlier generations, then the reports and errors for a generation that
exists. The rest adopts a generation of an earlier dataset with the same name instead of building one.

A name does not say whose data it was, so adoption needs the earlier dataset's uid. The generation's manifest must name
that dataset, and the spec must be the same. The copy is published under a number and the uid of the adopting dataset.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from lookupdb.builder import gates
from lookupdb.builder.gate_facts import WrittenGeneration, gather_facts, read_or_none, readable_manifests
from lookupdb.builder.gates import ActiveGeneration
from lookupdb.builder.options import (
    BuildOptions,
    BuildReport,
    EarlierDataset,
    GenerationRefused,
    Progress,
    built_report,
    scratch_folder,
)
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import AdoptionFailed, CorruptFile, GenerationExists
from lookupdb.keys import UNICODE_VERSION, has_same_normalization
from lookupdb.manifest import AdoptedGeneration, Manifest, Refusal, generation_number
from lookupdb.shardfile import ShardReader
from lookupdb.store import Store, StoreAddress, StoredDataset
from lookupdb.wording import format_count, strip_secrets

# Earlier generations: is a build needed, what do its gates compare with, and did they reject the same one before?


log = logging.getLogger(__name__)


def has_generation(dataset: StoredDataset, spec: DatasetSpec, fingerprint: str, active: str | None = None) -> bool:
    """Return whether the store holds a generation of this spec and of the source with this ``fingerprint``. Raises
    StoreError.

    The store is always checked: it may have been lost or replaced since the last build. A generation whose keys were
    normalised with other Unicode tables does not count, because it must be rebuilt. A rejected one counts if it is
    ``active``: an operator has overridden its gates.
    """
    if any(_is_same_build(manifest, spec, fingerprint) for manifest in readable_manifests(dataset)):
        return True
    if active is None or active not in dataset.refused_generations():
        return False
    manifest = read_or_none(dataset, active)
    return manifest is not None and _is_same_build(manifest, spec, fingerprint)


def _is_same_build(manifest: Manifest, spec: DatasetSpec, fingerprint: str) -> bool:
    is_same = (manifest.content, manifest.fingerprint) == (spec.content_hash(), fingerprint)
    return is_same and has_same_normalization(manifest.normalize, manifest.unicode)


def find_refusal(
    dataset: StoredDataset, generation: str, spec: DatasetSpec, fingerprint: str, active: ActiveGeneration | None
) -> Manifest | None:
    """Return the manifest of ``generation`` if a gate rejected it and a build now would give the same result: same
    content, gates and active generation. Raises StoreError."""
    if generation not in dataset.refused_generations():
        return None
    manifest = read_or_none(dataset, generation)
    if manifest is None or manifest.refused is None or not _is_same_build(manifest, spec, fingerprint):
        return None
    if manifest.refused.unjudged and manifest.refused.active in dataset.whole_manifests():
        return None  # its files may have come back
    judged_by = (manifest.refused.gates, manifest.refused.active)
    return manifest if judged_by == (spec.gates.content_hash(), active.generation if active else "") else None


# Generations that exist when a build begins or ends: adopted, rejected, or passed with an override.


_MOST_COUNTED: Final = 10**8
"""The largest generation number that counts. The operator ignores larger ones that it did not assign."""


def adopt_generation(
    spec: DatasetSpec, dataset: StoredDataset, generation: str, started_at: float, build_id: str | None = None
) -> BuildReport:
    """Report ``generation``, which the store already holds. Raises GenerationExists if it was built from another spec
    or by another build than ``build_id``; GenerationRefused if it failed a gate."""
    manifest = dataset.manifest(generation)
    if build_id is not None:
        _check_build(manifest, build_id, dataset)
    _check_content(manifest, spec, dataset)
    if manifest.refused is not None:
        raise refusal_error(manifest.refused, manifest)
    return adopted_report(manifest, started_at)


def override_gates(spec: DatasetSpec, store: Store, generation: str) -> BuildReport:
    """Override the gates of ``generation``, which failed one. Raises UsageError if it did not, StoreError,
    GenerationExists if it was built from another spec."""
    started_at = time.monotonic()
    dataset = store.dataset(spec)
    _check_content(dataset.manifest(generation), spec, dataset)
    reasons = "\n".join(dataset.admit(generation).overridden)
    report = adopt_generation(spec, dataset, generation, started_at)
    return replace(report, message=f"{generation} passes, although:\n{reasons}")


def refusal_error(refused: Refusal, manifest: Manifest | None) -> GenerationRefused:
    """Return the error for a rejected generation; ``manifest`` is its own, if it is in the store."""
    message = "\n".join(refused.reasons)
    if manifest is None:
        hint = "nothing was published, because it is empty; correct the source, or the spec"
        return GenerationRefused(message, None, hint=hint)
    generation = manifest.generation
    hint = (
        f"{generation} is in the store to be looked at, and does not serve: correct the source, change spec.gates, or "
        "let it pass as it is"
    )
    return GenerationRefused(message, manifest, hint=hint)


def adopted_report(manifest: Manifest, started_at: float) -> BuildReport:
    """Return the report of a generation that was adopted: from this dataset or an earlier one."""
    message = f"{manifest.generation} already exists, built from this spec at {manifest.built_at}"
    if manifest.adopted is not None:
        uid, generation = manifest.adopted.uid, manifest.adopted.generation
        records = format_count(manifest.totals.records, "record")
        message = f"{manifest.generation} is {generation} of the dataset {uid}, built at {manifest.built_at}: {records}"
    return replace(
        built_report(manifest, 0),
        outcome="adopted",
        seconds=round(time.monotonic() - started_at, 3),
        reason="Adopted",
        message=f"{message}; nothing was built{_describe_other_tables(manifest)}",
    )


def _describe_other_tables(manifest: Manifest) -> str:
    """Return a note that routers of this version may miss keys of ``manifest``; empty if they normalise keys alike.
    Keep it short: a status keeps 256 characters of the message."""
    if has_same_normalization(manifest.normalize, manifest.unicode):
        return ""
    tables = f"its keys were normalised with Unicode {manifest.unicode}, not {UNICODE_VERSION}"
    return f". {tables}: some may not be found until a refresh"


def _check_build(manifest: Manifest, build_id: str, dataset: StoredDataset) -> None:
    if manifest.build == build_id:
        return
    next_free = _next_free(dataset, manifest.generation)
    raise GenerationExists(
        f"generation {manifest.generation} of {dataset.address} already exists in {dataset.url}, built at"
        f" {manifest.built_at} by another build",
        hint=f"a generation never changes: the next free one is {next_free}",
        next_free=next_free,
    )


def _next_free(dataset: StoredDataset, after: str) -> str:
    """Return the number after all that are in use, or the first free one after ``after`` if that number is too large to
    count."""
    highest = dataset.next_generation()
    if int(highest[1:]) <= _MOST_COUNTED:
        return highest
    used = set(map(generation_number, (*dataset.published_generations(), *dataset.unfinished_generations())))
    return f"g{next(number for number in itertools.count(generation_number(after) + 1) if number not in used)}"


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
    """Return the newest generation of ``dataset`` itself that may have served, or a copy of it, and its manifest, None
    if it is damaged; None if there is none. Adopting would then go back to older data. Adopted and rejected generations
    do not count."""
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
            return _publish_copy(spec, dataset, dataset, known, options, progress)
        except CorruptFile as error:
            log.warning("the dataset's own generation cannot be copied", extra={"reason": error.message})
    if spec.source.volume is not None and options.volume is None:
        state = "with missing files" if known is None else "built from another spec"
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
    dataset = store.dataset(spec)
    original = find_original(spec, store, predecessor)
    source = store.dataset_at(_address(spec, store, predecessor))
    refused = None if options.unless_refused is None else dataset.whole_manifests().get(options.unless_refused)
    if refused is not None and refused.refused is not None:
        is_same = refused.adopted == AdoptedGeneration(original.uid, original.generation)
        if is_same and refused.refused.gates == spec.gates.content_hash():
            raise refusal_error(refused.refused, refused)
    return _publish_copy(spec, dataset, source, original, options, progress)


def _publish_copy(
    spec: DatasetSpec,
    dataset: StoredDataset,
    source: StoredDataset,
    original: Manifest,
    options: BuildOptions,
    progress: Progress,
) -> BuildReport:
    """Publish ``original`` from ``source`` in ``dataset``. Gates check it, unless it is the dataset's own."""
    started_at, generation = time.monotonic(), options.generation
    with scratch_folder(options.scratch) as folder:
        refused = None if source is dataset else _judge(spec, source, original, folder, progress)
        try:
            with dataset.claim(generation or dataset.next_generation(), folder) as claim:
                copy = replace(make_copy(original, spec.uid, claim.generation, refused), build=options.build_id)
                progress.begin_phase("copying", original.totals.file_bytes, "bytes")
                published = claim.publish_copy(source, original.generation, copy, progress.advance)
                progress.end_phase()
        except GenerationExists:
            if generation is None:
                raise
            # Another builder published it while this build waited for the claim.
            return adopt_generation(spec, dataset, generation, started_at, options.build_id)
    if published.refused is not None:
        raise refusal_error(published.refused, published)
    return adopted_report(published, started_at)


def make_copy(original: Manifest, uid: str, generation: str, refused: Refusal | None = None) -> Manifest:
    """Return the manifest of a copy of ``original`` as ``generation`` of the dataset ``uid``. It keeps the build time
    and the source of the original: they tell how old the data are, and whether the source has changed."""
    adopted = AdoptedGeneration(original.uid, original.generation)
    return replace(original, uid=uid, generation=generation, adopted=adopted, refused=refused)


def find_original(spec: DatasetSpec, store: Store, predecessor: EarlierDataset) -> Manifest:
    """Return the generation to adopt: the named one, else the newest whole one that passed its gates. Raises
    AdoptionFailed if there is none, or if it was built from another spec; StoreError."""
    address = _address(spec, store, predecessor)
    source = store.dataset_at(address)
    manifests = [manifest for manifest in source.whole_manifests().values() if predecessor.has_built(manifest, spec)]
    usable = [manifest for manifest in manifests if manifest.refused is None]
    if predecessor.generation is not None:
        usable = [manifest for manifest in usable if manifest.generation == predecessor.generation]
    if not usable:
        raise _missing_error(spec, store, predecessor, source, manifests)
    newest = max(usable, key=lambda manifest: generation_number(manifest.generation))
    if differences := _describe_differences(newest, spec):
        raise AdoptionFailed(
            f"{newest.generation} of {spec.namespace}/{spec.name} {newest.uid} was built from another spec:"
            f" {differences}",
            hint=_spec_hint(newest, spec),
        )
    return newest


def _address(spec: DatasetSpec, store: Store, predecessor: EarlierDataset) -> StoreAddress:
    """Return the address of the earlier dataset. Raises AdoptionFailed if it is the dataset's own."""
    address = StoreAddress(store.cluster, spec.namespace, spec.name, predecessor.uid)
    if address.uid == spec.uid[:8]:
        raise AdoptionFailed(
            f"spec.adopt.uid {predecessor.uid} is this dataset's own uid, or has the same beginning",
            hint="name the uid of the earlier dataset, or remove spec.adopt to build from the source",
        )
    return address


def _describe_differences(manifest: Manifest, spec: DatasetSpec) -> str:
    """Return how the spec of ``manifest`` differs from ``spec``; empty if the same source would give the same files."""
    if manifest.content == spec.content_hash() and len(manifest.shards) == spec.shards:
        return ""
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
    first = strip_secrets(manifest.source[0].url)[:200] if manifest.source else "nothing"
    return (
        "spec.source, key, value or duplicates differ in a part that the manifest does not record; it was built from"
        f" {first}{' and more' if len(manifest.source) > 1 else ''}"
    )


def _spec_hint(manifest: Manifest, spec: DatasetSpec) -> str:
    """Return a hint for ``manifest``, which was built from another spec than ``spec``."""
    if any(_is_local(file.url) for file in manifest.source) and not any(map(_is_local, spec.source.urls)):
        return (
            "a local path and a URL are two specs, even if the files are the same: build there from the URL and copy"
            " that generation, or remove spec.adopt to build from the source here"
        )
    return (
        "restore the earlier spec, and change it afterwards; or name another generation, or remove spec.adopt to build"
        " from the source"
    )


def _is_local(url: str) -> bool:
    return "://" not in url or url.startswith("file://")


def _missing_error(
    spec: DatasetSpec, store: Store, predecessor: EarlierDataset, source: StoredDataset, manifests: Sequence[Manifest]
) -> AdoptionFailed:
    """Return the error that says what was expected, and what exists."""
    expected = f"{predecessor.generation}, whole" if predecessor.generation else "a whole generation"
    return AdoptionFailed(
        f"nothing can be adopted from {source.url}: expected {expected} that passed its gates, of"
        f" {spec.namespace}/{spec.name} {predecessor.uid}; {_list_what_is_there(spec, store, source, manifests)}",
        hint="correct spec.adopt, or remove it to build from the source",
    )


def _list_what_is_there(spec: DatasetSpec, store: Store, source: StoredDataset, manifests: Sequence[Manifest]) -> str:
    if manifests:
        names = [f"{found.generation}{' (refused)' if found.refused is not None else ''}" for found in manifests]
        return f"it has {_shorten(names[::-1])}"
    if others := list(source.whole_manifests().values()):
        other = others[-1]
        return f"{other.generation} there belongs to {other.namespace}/{other.name} {other.uid}"
    if damaged := source.damaged_generations():
        return f"it has {_shorten(damaged[::-1])}, with missing files"
    uids = [
        address.uid
        for address in store.addresses_in(spec.namespace)
        if address.name == spec.name and address.uid != spec.uid[:8]
    ]
    what = f"of {spec.namespace}/{spec.name} in cluster {store.cluster}"
    return f"{what} it has the uids {_shorten(uids)}" if uids else f"there is no other dataset {what}"


def _shorten(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_SHOWN])
    return f"{shown} and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else shown


def _judge(
    spec: DatasetSpec, source: StoredDataset, original: Manifest, scratch: Path, progress: Progress
) -> Refusal | None:
    """Return why the copy must not be rolled out; None if it passes every gate of a first generation."""
    with ExitStack() as copies:
        files = _StoredFiles(spec, source, original, scratch, copies)
        facts = gather_facts(files, original.totals, original.rejected, None, source, scratch, progress)
        closed = gates.find_closed_gates(spec.gates, facts)
    if not closed:
        return None
    return Refusal(gates.describe_closed_gates(closed), spec.gates.content_hash(), active="")


class _StoredFiles(WrittenGeneration):
    """The files of a stored generation. A gate that reads one gets a verified copy, made once."""

    def __init__(
        self, spec: DatasetSpec, source: StoredDataset, manifest: Manifest, scratch: Path, copies: ExitStack
    ) -> None:
        super().__init__(spec, scratch)
        self._source = source
        self._manifest = manifest
        self._copies = copies
        self._paths: dict[int, Path] = {}

    @contextmanager
    def open_shard(self, number: int) -> Iterator[ShardReader]:
        """Open shard ``number``."""
        if number not in self._paths:
            shard = self._manifest.shards[number]
            stored = self._source.verified_shard(self._manifest.generation, shard, self.folder)
            self._paths[number] = self._copies.enter_context(stored)
        with ShardReader(self._paths[number]) as reader:
            yield reader
