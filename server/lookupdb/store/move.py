"""Copies whole generations from one store, or one cluster's part of it, into another: the same dataset's folder there,
the same number, the same manifest. What is whole there already is not copied again, so it can be run again at any time.

A dataset keeps its namespace and its name: its shard files say both themselves. It keeps its uid, by which a new
dataset of that name adopts it (``build.predecessor``). Until it does, it belongs to no living dataset there, so what is
copied is noted as retained, before anything of it is there: a sweep would remove it else. Where a copy fails and
nothing is there, nothing is retained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from lookupdb.errors import CorruptFile, GenerationExists, GenerationMissing, LookupdbError, UsageError
from lookupdb.manifest import Manifest
from lookupdb.store.dataset import OnCopied, StoredDataset, is_older
from lookupdb.store.layout import StoreAddress
from lookupdb.store.sweep import MARK_NOTE, RETAIN_NOTE, retain

_MAX_SHOWN: Final = 10
"""Datasets in one message."""


@dataclass(frozen=True, slots=True)
class CopiedGeneration:
    """What became of one generation."""

    outcome: Literal["copied", "present"]
    manifest: Manifest
    """As it stands in the target."""
    damaged: tuple[str, ...]
    """Newer ones of the source, of which this one took the place."""


def find_addresses(
    addresses: Sequence[StoreAddress], names: Sequence[str], uid: str | None = None
) -> Iterator[StoreAddress]:
    """Those of ``addresses`` that ``names`` name ([namespace/]name; without any, all) and that have ``uid``. Raises
    UsageError if one of ``names`` is none of them."""
    fitting = [address for address in addresses if uid is None or address.uid == uid[:8]]
    for name in names:
        if not any(_is_named(address, name) for address in fitting):
            raise UsageError(
                f"the store has no dataset {name}{'' if uid is None else f' with the uid {uid}'}",
                hint=f"it has: {_list_names(addresses)}; --cluster-id names another part of it",
            )
    return (address for address in fitting if not names or any(_is_named(address, name) for name in names))


def _list_names(addresses: Sequence[StoreAddress]) -> str:
    shown = ", ".join(f"{address} ({address.uid})" for address in addresses[:_MAX_SHOWN]) or "none"
    return f"{shown} and {len(addresses) - _MAX_SHOWN} more" if len(addresses) > _MAX_SHOWN else shown


def _is_named(address: StoreAddress, name: str) -> bool:
    namespace, _, own = name.rpartition("/")
    return address.name == own and namespace in ("", address.namespace)


def copy_generation(
    source: StoredDataset, target: StoredDataset, generation: str | None, scratch: Path, on_copied: OnCopied
) -> CopiedGeneration:
    """Copy ``generation``, or the newest that is whole and that no gate has refused, from ``source`` to ``target``.

    Raises GenerationMissing if there is none, GenerationExists if ``target`` has another one of that number,
    CorruptFile if it has a damaged one, or if a file is not what its manifest says, StoreError, NotEnoughRoom.
    """
    original, damaged = _choose(source, generation)
    _find_copy(target, original)  # another one of that number is not retained
    try:
        _retain(target)
        outcome, standing = _publish(source, target, original, scratch, on_copied)
    except BaseException:
        with suppress(LookupdbError):  # the sweep looks for it, too
            _stop_retaining_nothing(target)
        raise
    _retain(target)  # a copy that failed, or a sweep, may have found nothing here and removed the note
    return CopiedGeneration(outcome, standing, damaged)


def _publish(
    source: StoredDataset, target: StoredDataset, original: Manifest, scratch: Path, on_copied: OnCopied
) -> tuple[Literal["copied", "present"], Manifest]:
    standing = _find_copy(target, original)  # a sweep that did not see the note may have removed it
    if standing is None:
        try:
            with target.claim(original.generation, scratch) as claim:
                return "copied", claim.publish_copy(source, original.generation, original, on_copied)
        except GenerationExists:  # another copy, or one that was killed when all was decided, and is completed now
            standing = _find_copy(target, original)
            if standing is None:
                raise
    return "present", standing


def _choose(source: StoredDataset, generation: str | None) -> tuple[Manifest, tuple[str, ...]]:
    """The manifest, and damaged ones that are newer, if nobody chose ``generation``."""
    published = source.published_generations()  # first: one may be published in between
    manifests = source.whole_manifests()
    usable = [name for name, manifest in manifests.items() if manifest.refused is None]
    name = generation or (usable[-1] if usable else None)
    if name is None or name not in manifests:
        raise GenerationMissing(
            f"{source.url} has no {'' if generation is None else f'{generation}, '}whole generation to copy",
            hint=f"it has: {', '.join(manifests) or 'none'}",
        )
    damaged = [other for other in published if other not in manifests and is_older(name, other)]
    return manifests[name], () if generation else tuple(damaged)


def _find_copy(target: StoredDataset, original: Manifest) -> Manifest | None:
    """The copy of ``original`` that is whole in ``target``. Raises GenerationExists if another one has its number,
    CorruptFile if it is damaged there."""
    published = target.published_generations()
    standing = target.whole_manifests().get(original.generation)
    if standing is None and original.generation in published:
        _check_damage(target, original.generation)
    if standing is None or _without_names(standing) == _without_names(original):
        return standing
    raise GenerationExists(
        f"{target.url} has another {original.generation}, of {standing.uid}, built at {standing.built_at}",
        hint="choose another one with --generation, or remove what is there",
    )


def _check_damage(target: StoredDataset, generation: str) -> None:
    """Raises CorruptFile: a copy removes nothing, so what is damaged stays in its way."""
    try:
        target.check_files(target.manifest(generation))
    except CorruptFile as error:
        hint = f"remove {target.url}/{generation} and run it again, or choose another one with --generation"
        raise CorruptFile(f"the target's {generation} is damaged: {error.message}", hint=hint) from error


def _retain(target: StoredDataset) -> None:
    """A sweep lists what is there before it looks for the note. So it removes nothing that comes after the note."""
    retain(target)
    if target.read_note(MARK_NOTE) is not None:
        target.write_note(MARK_NOTE, None)


def _stop_retaining_nothing(target: StoredDataset) -> None:
    """Remove the note if nothing is there: whoever lost the answer to a publication may have published nevertheless,
    and another copy may be at work. One that comes while the note is removed is seen afterwards."""
    if not _has_anything(target):
        target.write_note(RETAIN_NOTE, None)
        if _has_anything(target):
            retain(target)


def _has_anything(target: StoredDataset) -> bool:
    return bool(target.published_generations() or target.unfinished_generations())


def _without_names(manifest: Manifest) -> Manifest:
    """What two copies have in common: all but the names that files have in their stores."""
    return replace(manifest, shards=tuple(replace(shard, file="") for shard in manifest.shards))
