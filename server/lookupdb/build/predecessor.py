"""What an earlier dataset of the same name has left in the store, and what of it a new one adopts in place of a build.

A name says nothing about whose data it was, so nothing is adopted unless it is asked for by uid. Then a generation must
say itself, in its manifest, that it is of that dataset, and was built to the very spec that is asked for now. Its files
are copied, and the copy is published as any generation is: under a number and the uid of the dataset that adopts it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from lookupdb.build import adoption, gates
from lookupdb.build.build_options import BuildOptions, EarlierDataset
from lookupdb.build.build_report import BuildReport
from lookupdb.build.gate_facts import WrittenGeneration, gather_facts
from lookupdb.build.progress import Progress
from lookupdb.build.scratch import scratch_folder
from lookupdb.errors import AdoptionFailed, CorruptFile, GenerationExists
from lookupdb.manifest import AdoptedGeneration, Manifest, Refusal, generation_number
from lookupdb.shardfile import ShardReader
from lookupdb.spec import DatasetSpec
from lookupdb.store import Store, StoreAddress, StoredDataset
from lookupdb.wording import strip_secrets

log = logging.getLogger(__name__)

_MAX_SHOWN: Final = 10
"""Of datasets and generations in one message."""


@dataclass(frozen=True, slots=True)
class OwnGeneration:
    """The newest generation that a dataset has built itself."""

    generation: str
    manifest: Manifest | None
    """None if it is damaged."""

    def as_error(self, spec: DatasetSpec) -> AdoptionFailed:
        """That nothing is adopted where nothing can be built either: no volume with the source is mounted."""
        state = "of which files are missing" if self.manifest is None else "built to another spec"
        return AdoptionFailed(
            f"nothing is adopted: {spec.namespace}/{spec.name} has {self.generation} of its own, {state}",
            hint="take spec.adopt away to build from the source",
        )


def find_own(dataset: StoredDataset) -> OwnGeneration | None:
    """What ``dataset`` has of its own that may have served, or a copy of that: adopting would go back to older data.
    What it has adopted is none of its own, nor what a gate has refused. None if it has none."""
    published, manifests = dataset.published_generations(), dataset.whole_manifests()
    for name in sorted(published, key=generation_number, reverse=True):
        manifest = manifests.get(name)
        if manifest is None or (manifest.refused is None and _is_own(manifest)):
            log.info("nothing is adopted: the dataset has a generation of its own", extra={"generation": name})
            return OwnGeneration(name, manifest)
    return None


def _is_own(manifest: Manifest) -> bool:
    return manifest.adopted is None or manifest.adopted.uid == manifest.uid


def copy_existing(
    spec: DatasetSpec, store: Store, predecessor: EarlierDataset, options: BuildOptions, progress: Progress
) -> BuildReport | None:
    """A copy in place of a build: of what ``predecessor`` has left, or of what the dataset has of its own, where
    whoever asks did not know of that; None if it must be built. Raises what ``adopt_predecessor`` does."""
    dataset = store.dataset(spec)
    own = find_own(dataset)
    if own is None:
        return adopt_predecessor(spec, store, predecessor, options, progress)
    known = own.manifest
    if options.build_id is not None and known is not None and known.content == spec.content_hash():
        try:
            return _publish_copy(spec, dataset, dataset, known, options, progress)
        except CorruptFile as error:
            log.warning("the dataset's own generation cannot be copied", extra={"reason": error.message})
    if spec.source.volume is not None and options.volume is None:
        raise own.as_error(spec)
    return None


def adopt_predecessor(
    spec: DatasetSpec, store: Store, predecessor: EarlierDataset, options: BuildOptions, progress: Progress
) -> BuildReport:
    """Publish a copy of what ``predecessor`` has left as a generation of the dataset of ``spec``. Its gates judge it as
    they do a first generation.

    Raises AdoptionFailed, GenerationRefused, CorruptFile, StoreError.
    """
    dataset = store.dataset(spec)
    original = find_original(spec, store, predecessor)
    source = store.dataset_at(_address(spec, store, predecessor))
    _check_refusal(spec, dataset, original, options.unless_refused)
    return _publish_copy(spec, dataset, source, original, options, progress)


def _publish_copy(
    spec: DatasetSpec,
    dataset: StoredDataset,
    source: StoredDataset,
    original: Manifest,
    options: BuildOptions,
    progress: Progress,
) -> BuildReport:
    """Publish ``original``, which ``source`` has, in ``dataset``, whose gates have judged what is its own."""
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
            # Another builder published it while this one waited for the claim.
            return adoption.adopt_generation(spec, dataset, generation, started_at, options.build_id)
    if published.refused is not None:
        raise adoption.refusal_error(published.refused, published)
    return adoption.adopted_report(published, started_at)


def make_copy(original: Manifest, uid: str, generation: str, refused: Refusal | None = None) -> Manifest:
    """The manifest of the copy of ``original`` that is ``generation`` of the dataset ``uid``. It keeps when and of what
    the original was built: that is how old the data are, and how a refresh finds the source unchanged."""
    adopted = AdoptedGeneration(original.uid, original.generation)
    return replace(original, uid=uid, generation=generation, adopted=adopted, refused=refused)


def find_original(spec: DatasetSpec, store: Store, predecessor: EarlierDataset) -> Manifest:
    """The generation that is adopted: the one that is named, else the newest that is whole and that no gate has
    refused. Raises AdoptionFailed if there is none, or if it was built to another spec; StoreError."""
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
            f"{newest.generation} of {spec.namespace}/{spec.name} {newest.uid} was built to another spec:"
            f" {differences}",
            hint=_spec_hint(newest, spec),
        )
    return newest


def _address(spec: DatasetSpec, store: Store, predecessor: EarlierDataset) -> StoreAddress:
    """Raises AdoptionFailed if that is the dataset itself: one folder holds the generations of both then."""
    address = StoreAddress(store.cluster, spec.namespace, spec.name, predecessor.uid)
    if address.uid == spec.uid[:8]:
        raise AdoptionFailed(
            f"spec.adopt.uid {predecessor.uid} is the uid of this very dataset, or begins as it does",
            hint="name the uid of the earlier dataset, or take spec.adopt away to build from the source",
        )
    return address


def _describe_differences(manifest: Manifest, spec: DatasetSpec) -> str:
    """What ``manifest`` was built to and ``spec`` is not; empty if the same source would give the same files."""
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
        "spec.source, key, value or duplicates differ in what a manifest does not tell apart; it was built from"
        f" {first}{' and more' if len(manifest.source) > 1 else ''}"
    )


def _spec_hint(manifest: Manifest, spec: DatasetSpec) -> str:
    """What to do about ``manifest``, which was built to another spec than ``spec``."""
    if any(_is_local(file.url) for file in manifest.source) and not any(map(_is_local, spec.source.urls)):
        return (
            "a path of the machine that built it and a URL are two specs, whatever the files hold: build it there from"
            " the URL and copy that, or take spec.adopt away to build from the source here"
        )
    return (
        "let the spec be what it was, and change it afterwards; or name another of its generations, or take spec.adopt"
        " away to build from the source"
    )


def _is_local(url: str) -> bool:
    return "://" not in url or url.startswith("file://")


def _missing_error(
    spec: DatasetSpec, store: Store, predecessor: EarlierDataset, source: StoredDataset, manifests: Sequence[Manifest]
) -> AdoptionFailed:
    """Says what was looked for, and what there is."""
    expected = f"{predecessor.generation}, whole" if predecessor.generation else "a whole generation"
    return AdoptionFailed(
        f"nothing can be adopted from {source.url}: expected {expected} and refused by no gate, of"
        f" {spec.namespace}/{spec.name} {predecessor.uid}; {_list_what_is_there(spec, store, source, manifests)}",
        hint="correct spec.adopt, or take it away to build from the source",
    )


def _list_what_is_there(spec: DatasetSpec, store: Store, source: StoredDataset, manifests: Sequence[Manifest]) -> str:
    if manifests:
        names = [f"{found.generation}{' (refused)' if found.refused is not None else ''}" for found in manifests]
        return f"it has {_shorten(names[::-1])}"
    if others := list(source.whole_manifests().values()):
        other = others[-1]
        return f"{other.generation} there says that it is of {other.namespace}/{other.name} {other.uid}"
    if damaged := source.damaged_generations():
        return f"it has {_shorten(damaged[::-1])}, of which files are missing"
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


def _check_refusal(spec: DatasetSpec, dataset: StoredDataset, original: Manifest, generation: str | None) -> None:
    """Raises GenerationRefused if ``generation`` is the copy of ``original`` that these very gates have refused."""
    manifest = None if generation is None else dataset.whole_manifests().get(generation)
    if manifest is None or manifest.refused is None:
        return
    is_same = manifest.adopted == AdoptedGeneration(original.uid, original.generation)
    if is_same and manifest.refused.gates == spec.gates.content_hash():
        raise adoption.refusal_error(manifest.refused, manifest)


def _judge(
    spec: DatasetSpec, source: StoredDataset, original: Manifest, scratch: Path, progress: Progress
) -> Refusal | None:
    """Why the copy must not be rolled out; None if every gate is open that a first generation must pass."""
    with ExitStack() as copies:
        files = _StoredFiles(spec, source, original, scratch, copies)
        facts = gather_facts(files, original.totals, original.rejected, None, source, scratch, progress)
        closed = gates.find_closed_gates(spec.gates, facts)
    if not closed:
        return None
    return Refusal(gates.describe_closed_gates(closed), spec.gates.content_hash(), active="")


class _StoredFiles(WrittenGeneration):
    """The files of a generation in a store: a gate that has to read one gets a verified copy, made once."""

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
        """Shard ``number``."""
        if number not in self._paths:
            shard = self._manifest.shards[number]
            stored = self._source.verified_shard(self._manifest.generation, shard, self.folder)
            self._paths[number] = self._copies.enter_context(stored)
        with ShardReader(self._paths[number]) as reader:
            yield reader
