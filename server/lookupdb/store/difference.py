"""Compares two generations: one pass over both, in key order, in little memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from lookupdb.manifest import ShardFile
from lookupdb.shardfile import FRAMED, ShardReader, unframe

SAMPLES: Final = 5

_Entry = tuple[bytes, bytes, ShardReader]
"""Key, stored value, and the shard that can inflate it."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key with its values before and after; None where the key does not exist."""

    key: bytes
    before: bytes | None
    after: bytes | None


@dataclass(slots=True)
class GenerationDifference:
    """How many keys were added, removed, changed or stayed the same, with the first few changes of each kind in key
    order."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    same: int = 0
    samples: dict[str, list[KeyChange]] = field(default_factory=lambda: {"added": [], "removed": [], "changed": []})

    @property
    def has_changes(self) -> bool:
        """Whether the generations differ."""
        return bool(self.added or self.removed or self.changed)


def compare_generations(
    before: Sequence[ShardReader], after: Sequence[ShardReader], files: tuple[Sequence[ShardFile], Sequence[ShardFile]]
) -> GenerationDifference:
    """Compare all records of two generations, which may have different numbers of shards. ``files`` are their
    descriptions."""
    result = GenerationDifference()
    if len(before) != len(after):
        _compare_streams(_merge_entries(before), _merge_entries(after), result)
        return result
    for old, new, *descriptions in zip(before, after, *files, strict=True):
        if descriptions[0].sha256 == descriptions[1].sha256:
            result.same += descriptions[0].records  # identical content, whatever the names of the files
        else:
            _compare_streams(_read_entries(old), _read_entries(new), result)
    for changes in result.samples.values():
        changes.sort(key=lambda change: change.key)
        del changes[SAMPLES:]
    return result


def _read_entries(shard: ShardReader) -> Iterator[_Entry]:
    for key, stored in shard.items():
        yield key, stored, shard


def _merge_entries(shards: Sequence[ShardReader]) -> Iterator[_Entry]:
    return heapq.merge(*map(_read_entries, shards), key=itemgetter(0))


def _compare_streams(before: Iterator[_Entry], after: Iterator[_Entry], result: GenerationDifference) -> None:
    """Compare two streams in key order. Samples the first few changes of each kind within this pair of streams."""
    sample_counts = dict.fromkeys(result.samples, 0)

    def sample(kind: str, key: bytes, old: _Entry | None, new: _Entry | None) -> None:
        if sample_counts[kind] < SAMPLES:
            sample_counts[kind] += 1
            result.samples[kind].append(KeyChange(key, old and _value(old), new and _value(new)))

    old, new = next(before, None), next(after, None)
    while old or new:
        if new is None or (old is not None and old[0] < new[0]):
            assert old is not None
            result.removed += 1
            sample("removed", old[0], old, None)
            old = next(before, None)
        elif old is None or new[0] < old[0]:
            result.added += 1
            sample("added", new[0], None, new)
            new = next(after, None)
        else:
            if _is_same(old, new):
                result.same += 1
            else:
                result.changed += 1
                sample("changed", old[0], old, new)
            old, new = next(before, None), next(after, None)


def _is_same(old: _Entry, new: _Entry) -> bool:
    """Whether two stored values are equal. Inflates only if it must: equal bytes are equal values if they are
    uncompressed or share a dictionary."""
    if old[1] == new[1] and (old[1][0] == FRAMED or old[2].dictionary == new[2].dictionary):
        return True
    return _framed(old) == _framed(new)


def _framed(entry: _Entry) -> bytes:
    return entry[2].expand(entry[1])


def _value(entry: _Entry) -> bytes:
    return unframe(_framed(entry))
