"""The compression dictionary: keep the active generation's, or train the one that makes shard files smallest.

A dictionary holds what many values share, so that short values compress well. Each candidate size is trained on one
part of the sample and judged on the other. Limits are bytes and counts, never time, so that the same sample gives the
same dictionary on every machine.

A refresh keeps the active generation's dictionary while it is nearly as good as a new one: then unchanged values keep
their stored bytes. This version's compressor judges both dictionaries. ``choose_dictionary`` is a pure function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Self

import zstandard

from lookupdb.builder.gates import ActiveGeneration
from lookupdb.builder.options import SAMPLE_BYTES
from lookupdb.builder.write import Compressor
from lookupdb.errors import LookupdbError
from lookupdb.manifest import DictionaryChoice
from lookupdb.shardfile import frame
from lookupdb.store import StoredDataset
from lookupdb.store.dataset import call_with_retries
from lookupdb.wording import to_utf8

ROUNDS: Final = ((16 << 10, 110 << 10), (512 << 10, 1 << 20))
"""Dictionary sizes to try, side by side within a round. The first round shows which sizes to try in the second."""

_SEGMENT: Final = 200
_MATCH: Final = 8
"""The trainer looks for runs of ``_SEGMENT`` bytes rich in ``_MATCH``-byte strings that many samples share. Its own
search for these parameters takes ten seconds or more, and gained nothing measurable."""
_ACCELERATION: Final = 4
"""The trainer skips three of four strings: this halves its time, and no dictionary got 1 % worse."""
_TRAINING_SHARE: Final = 18
_MIN_TRAINING_BYTES: Final = 2 << 20
"""A dictionary is trained on ``_TRAINING_SHARE`` bytes for each of its own bytes, and on at least this many. More did
not improve small ones; large ones need the whole sample."""

_EVALUATION_BYTES: Final = 1 << 20
_EVALUATION_SHARE: Final = 8
"""One in this many sampled records is kept for evaluation: those whose keys have the smallest hashes. They are the same
in each generation, so no earlier dictionary was trained on them."""
_MIN_SAMPLES: Final = 64
"""Fewer records have too little in common to train on."""
_MIN_GAIN: Final = 0.02
"""A larger dictionary must save at least this share of the stored bytes, because each worker keeps it in memory."""
MAX_GROWTH: Final = 0.02
"""A dictionary is kept unless it makes stored values or files larger by more than this share."""
_MAX_SAMPLE_VALUE_BYTES: Final = 64 << 10
"""A longer value compresses well alone, and would crowd others out of the sample."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A dictionary, and the size of all files with it: stored values, and a copy of the dictionary in each file."""

    dictionary: bytes
    stored_bytes: float
    shards: int

    @property
    def size(self) -> int:
        return len(self.dictionary)

    @property
    def cost(self) -> float:
        return self.stored_bytes + self.size * self.shards


@dataclass(frozen=True, slots=True)
class PreviousDictionary:
    """The dictionary of the generation that is active while another is built."""

    generation: str
    content: bytes
    obstacle: str = ""
    """Why it cannot be used; empty if it can."""

    @classmethod
    def unusable(cls, generation: str, cause: str) -> Self:
        """Return a stand-in for a dictionary that cannot be used."""
        return cls(generation, b"", to_utf8(f"{generation}'s cannot be used: {cause:.200}"))


NO_PREVIOUS: Final = PreviousDictionary("", b"", "there is no earlier generation")


def choose_dictionary(
    sample: Sequence[bytes], previous: PreviousDictionary, *, records: int, shards: int, threads: int = 1
) -> tuple[bytes, DictionaryChoice]:
    """Return the dictionary for ``records`` records in ``shards`` files, and the reason. It is the ``previous`` one
    if that is nearly as good as the best. The best makes the files smallest; it is empty if no dictionary pays.

    ``sample`` holds uncompressed values, in the order of their keys' hashes. Each shard file holds a copy of the
    dictionary.
    """
    framed = [frame(value) for value in _take_first(sample, SAMPLE_BYTES) if len(value) <= _MAX_SAMPLE_VALUE_BYTES]
    cut = -(-len(framed) // _EVALUATION_SHARE)
    evaluation, training = _take_first(framed[:cut], _EVALUATION_BYTES), framed[cut:]

    def judge(dictionary: bytes) -> _Trial:
        return _Trial(dictionary, _stored_bytes(evaluation, dictionary) * records / max(1, len(evaluation)), shards)

    trained = judge(b"")
    if len(training) >= _MIN_SAMPLES:
        with ThreadPoolExecutor(threads, "train") as pool:
            trained = _choose(trained, lambda sizes: pool.map(lambda size: judge(_train(size, training)), sizes))
    keeps, reason = _compare(previous, trained, judge)
    content = previous.content if keeps else trained.dictionary
    return content, DictionaryChoice("kept" if keeps else "trained", reason, hashlib.sha256(content).hexdigest())


def _compare(previous: PreviousDictionary, trained: _Trial, judge: Callable[[bytes], _Trial]) -> tuple[bool, str]:
    """Return whether to keep the ``previous`` dictionary, and why."""
    if previous.obstacle:
        return False, previous.obstacle
    if not trained.stored_bytes:
        return False, "the sample has no values"
    try:
        kept = judge(previous.content)
    except zstandard.ZstdError as error:
        return False, PreviousDictionary.unusable(previous.generation, str(error)).obstacle
    ratio = max(kept.stored_bytes / trained.stored_bytes, kept.cost / trained.cost)
    change = f"{abs(100 * (ratio - 1)):.2f} % {'smaller' if ratio < 1 else 'larger'}"
    reason = f"by the sample, {previous.generation}'s makes files {change} than a newly trained one"
    return ratio <= 1 + MAX_GROWTH, reason


def _choose(none: _Trial, try_sizes: Callable[[Iterable[int]], Iterable[_Trial]]) -> _Trial:
    """Return the best trial of all rounds; ``none`` is the one without a dictionary."""
    best = largest = none
    for sizes in ROUNDS:
        promising = [size for size in sizes if _least_cost(size, none, largest) < best.cost * (1 - _MIN_GAIN)]
        for trial in try_sizes(promising):
            largest = max(largest, trial, key=lambda tried: tried.size)
            if trial.cost < best.cost * (1 - _MIN_GAIN):
                best = trial
    return best


def _least_cost(size: int, none: _Trial, largest: _Trial) -> float:
    """Return a lower bound of the cost of a dictionary of ``size`` bytes, estimated from ``largest``, the largest
    dictionary tried.

    Its best content comes first: a larger dictionary saves no more per byte.
    """
    most_saved = none.stored_bytes
    if largest.size:
        most_saved = min(most_saved, (none.stored_bytes - largest.stored_bytes) * size / largest.size)
    return none.stored_bytes - most_saved + size * none.shards


def _take_first(values: Sequence[bytes], limit: int) -> Sequence[bytes]:
    """Return the first values that together have at most ``limit`` bytes; at least one."""
    total = 0
    for number, value in enumerate(values):
        total += len(value)
        if total > limit and number:
            return values[:number]
    return values


def _train(size: int, training: Sequence[bytes]) -> bytes:
    """Train a dictionary of ``size`` bytes; empty if the sample is too small."""
    texts = _take_first(training, max(_TRAINING_SHARE * size, _MIN_TRAINING_BYTES))
    if sum(map(len, texts)) < size:
        return b""
    try:
        trained = zstandard.train_dictionary(size, list(texts), k=_SEGMENT, d=_MATCH, accel=_ACCELERATION)
    except zstandard.ZstdError:
        return b""  # the samples have too little in common
    return trained.as_bytes()


def _stored_bytes(values: Sequence[bytes], dictionary: bytes) -> int:
    return sum(map(len, Compressor(dictionary).store(values)))


# Read the dictionary of the active generation.


_LARGEST_DICTIONARY: Final = max(map(max, ROUNDS))
"""The largest dictionary that the memory limit of a build allows."""
_DICTIONARY_SECONDS: Final = 20.0
"""Time limit for reading the dictionary, with the store's retries. After that, the build trains a new one."""


def read_dictionary(dataset: StoredDataset, active: ActiveGeneration | None) -> PreviousDictionary:
    """Return the dictionary of the generation that is ``active``, or why it cannot be used. One request reads a part
    of one shard's file."""
    if active is None:
        return NO_PREVIOUS
    name, manifest = active.generation, active.manifest
    if manifest is None:
        return PreviousDictionary.unusable(name, "the store has lost it")
    if manifest.compression == "none":
        return PreviousDictionary.unusable(name, "its values are not compressed")
    shard, size = manifest.shards[0], manifest.dictionary_bytes
    if manifest.dictionary is None or (size and not 0 < shard.dictionary_offset < shard.bytes):
        return PreviousDictionary.unusable(name, "its builder did not record where it is")
    if not 0 <= size <= _LARGEST_DICTIONARY:
        return PreviousDictionary.unusable(name, f"it has {size} bytes, expected at most {_LARGEST_DICTIONARY}")

    def read() -> bytes:
        content = b""
        chunks = dataset.read(name, shard, shard.dictionary_offset)
        while len(content) < size and (chunk := next(chunks, None)):
            content += chunk[: size - len(content)]
        return content

    try:
        content = call_with_retries(read, _DICTIONARY_SECONDS) if size else b""
    except LookupdbError as error:
        return PreviousDictionary.unusable(name, error.message)
    if hashlib.sha256(content).hexdigest() != manifest.dictionary.sha256:
        return PreviousDictionary.unusable(name, f"{shard.file} of {name} has a damaged copy of it")
    return PreviousDictionary(name, content)
