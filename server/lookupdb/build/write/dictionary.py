"""Chooses the compression dictionary that makes a dataset's shard files smallest.

A dictionary holds what many values have in common, so that a value of some hundred bytes compresses as if it stood in
one long text with the others. Trial finds the size that pays: each candidate is trained on one part of the sample and
judged on the other. What is trained, on how much, is bounded by bytes and counts and never by time, so that the same
sample gives the same dictionary on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import zstandard

from lookupdb.build.budget import SAMPLE_BYTES
from lookupdb.build.write.compression import Compressor
from lookupdb.shardfile import frame

ROUNDS: Final = ((16 << 10, 110 << 10), (512 << 10, 1 << 20))
"""The sizes that are tried, side by side within a round. The first tells which of the second can pay."""

_SEGMENT: Final = 200
_MATCH: Final = 8
"""The trainer's parameters: runs of ``_SEGMENT`` bytes rich in ``_MATCH``-byte strings that many samples share. They
are fixed, because the trainer's search costs ten seconds and more, and gained nothing measurable."""
_ACCELERATION: Final = 4
"""The trainer skips three of four strings: in half of the time, and no dictionary got 1 % worse."""
_TRAINING_SHARE: Final = 18
_MIN_TRAINING_BYTES: Final = 2 << 20
"""A dictionary is trained on so many bytes for each of its own, and on no less than so many. More made small ones no
better, and large ones need all that the sample has."""

_EVALUATION_BYTES: Final = 1 << 20
_EVALUATION_SHARE: Final = 8
"""One in this many sampled records is kept for evaluation."""
_MIN_SAMPLES: Final = 64
"""Fewer records have too little in common to train on."""
_MIN_GAIN: Final = 0.02
"""A larger dictionary must save at least this share of the stored bytes: each worker keeps it in memory."""
_MAX_SAMPLE_VALUE_BYTES: Final = 64 << 10
"""A longer value compresses well by itself and would crowd the others out of the sample."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A dictionary, and what all files together have then: stored values, and a copy of it each."""

    dictionary: bytes
    stored_bytes: float
    shards: int

    @property
    def size(self) -> int:
        return len(self.dictionary)

    @property
    def cost(self) -> float:
        return self.stored_bytes + self.size * self.shards


def choose_dictionary(sample: Sequence[bytes], *, records: int, shards: int, threads: int = 1) -> bytes:
    """The dictionary that makes ``records`` records in ``shards`` files smallest; empty if none pays.

    ``sample`` holds uncompressed values, in an order that is independent of their content. Each shard file carries the
    dictionary.
    """
    framed = [frame(value) for value in _take_first(sample, SAMPLE_BYTES) if len(value) <= _MAX_SAMPLE_VALUE_BYTES]
    evaluation = _take_first(framed[::_EVALUATION_SHARE], _EVALUATION_BYTES)
    training = [value for number, value in enumerate(framed) if number % _EVALUATION_SHARE]
    if len(training) < _MIN_SAMPLES:
        return b""

    def judge(dictionary: bytes) -> _Trial:
        return _Trial(dictionary, _stored_bytes(evaluation, dictionary) * records / len(evaluation), shards)

    with ThreadPoolExecutor(threads, "train") as pool:
        return _choose(judge(b""), lambda sizes: pool.map(lambda size: judge(_train(size, training)), sizes))


def _choose(none: _Trial, try_sizes: Callable[[Iterable[int]], Iterable[_Trial]]) -> bytes:
    """The best dictionary of all rounds, where ``none`` is the trial without any."""
    best = largest = none
    for sizes in ROUNDS:
        promising = [size for size in sizes if _least_cost(size, none, largest) < best.cost * (1 - _MIN_GAIN)]
        for trial in try_sizes(promising):
            largest = max(largest, trial, key=lambda tried: tried.size)
            if trial.cost < best.cost * (1 - _MIN_GAIN):
                best = trial
    return best.dictionary


def _least_cost(size: int, none: _Trial, largest: _Trial) -> float:
    """What a dictionary of ``size`` bytes costs at least, by ``largest``, the largest one tried.

    The best comes first: a larger one saves no more for each of its bytes.
    """
    most_saved = none.stored_bytes
    if largest.size:
        most_saved = min(most_saved, (none.stored_bytes - largest.stored_bytes) * size / largest.size)
    return none.stored_bytes - most_saved + size * none.shards


def _take_first(values: Sequence[bytes], limit: int) -> Sequence[bytes]:
    """The first values that together are at most ``limit`` bytes long; at least one."""
    total = 0
    for number, value in enumerate(values):
        total += len(value)
        if total > limit and number:
            return values[:number]
    return values


def _train(size: int, training: Sequence[bytes]) -> bytes:
    """A dictionary of ``size`` bytes; empty if there is too little to make it of."""
    texts = _take_first(training, max(_TRAINING_SHARE * size, _MIN_TRAINING_BYTES))
    if sum(map(len, texts)) < size:
        return b""
    try:
        trained = zstandard.train_dictionary(size, list(texts), k=_SEGMENT, d=_MATCH, accel=_ACCELERATION)
    except zstandard.ZstdError:
        return b""  # the samples have too little in common
    return trained.as_bytes()


def _stored_bytes(values: Sequence[bytes], dictionary: bytes) -> int:
    return sum(map(len, Compressor(dictionary, threads=1).store(values)))
