"""How values become stored values: the dictionary, and the choice between compressed and not, record by record.

A dictionary holds what many values have in common, so that a value of some hundred bytes compresses as if it stood
in one long text with the others. Which size pays is found by trying: each candidate is trained on one part of the
sample and judged on the other. Everything here is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import zstandard

from lookupdb.shardfile import frame

LEVEL: Final = 3
"""Measured on ten product ids a value: level 1 hardly uses the dictionary (0.45), 3 gives 0.140, 5 gives 0.137."""

DICTIONARY_SIZES: Final = (16 << 10, 110 << 10, 512 << 10, 1 << 20)
_SEGMENT: Final = 200
_MATCH: Final = 8
"""What the trainer looks for: runs of ``_SEGMENT`` bytes rich in ``_MATCH``-byte strings that many samples share.
Given, not searched for: the search costs ten seconds and more, and gained nothing measurable."""

SAMPLE_BYTES: Final = 9 << 20
"""More made the dictionary no better, and training takes time in proportion. No more than the sample has under the
smallest memory limit, because the dictionary must not depend on that."""
_HELD_BYTES: Final = 1 << 20
_HELD_SHARE: Final = 8
"""One in so many sampled records is held out to judge by."""
_MIN_SAMPLES: Final = 64
"""Fewer records hold too little in common to train on."""
_MIN_GAIN: Final = 0.02
"""A larger dictionary must save this part of the stored bytes: each worker keeps it in memory."""
_LARGEST_SAMPLE: Final = 64 << 10
"""A value longer than this compresses well by itself and would only crowd the others out of the sample."""


def choose_dictionary(sample: Sequence[bytes], *, records: int, shards: int, threads: int = 1) -> bytes:
    """The dictionary that makes ``records`` records in ``shards`` files smallest; empty when none pays.

    ``sample`` holds values as the source gives them, in an order that has nothing to do with theirs. Each shard file
    carries the dictionary.
    """
    framed = [frame(value) for value in _up_to(sample, SAMPLE_BYTES) if len(value) <= _LARGEST_SAMPLE]
    held = _up_to(framed[::_HELD_SHARE], _HELD_BYTES)
    training = [value for number, value in enumerate(framed) if number % _HELD_SHARE]
    if len(training) < _MIN_SAMPLES:
        return b""
    best, best_cost = b"", _stored_bytes(held, b"") * records / len(held)
    # A dictionary that takes more than it could save is not worth training.
    sizes = [size for size in DICTIONARY_SIZES if size * shards < best_cost]
    with ThreadPoolExecutor(threads, "train") as pool:
        candidates = [trained for trained in pool.map(lambda size: _train(size, training), sizes) if trained]
    for dictionary in candidates:
        cost = _stored_bytes(held, dictionary) * records / len(held) + len(dictionary) * shards
        if cost < best_cost * (1 - _MIN_GAIN):
            best, best_cost = dictionary, cost
    return best


def _up_to(values: Sequence[bytes], limit: int) -> Sequence[bytes]:
    """The first values that together are not longer than ``limit``; at least one."""
    total = 0
    for number, value in enumerate(values):
        total += len(value)
        if total > limit and number:
            return values[:number]
    return values


def _train(size: int, training: list[bytes]) -> bytes:
    if sum(map(len, training)) < size:
        return b""
    try:
        return zstandard.train_dictionary(size, list(training), k=_SEGMENT, d=_MATCH).as_bytes()
    except zstandard.ZstdError:
        return b""  # the samples have too little in common


def _stored_bytes(values: Sequence[bytes], dictionary: bytes) -> int:
    return sum(map(len, Compressor(dictionary, threads=1).store(values)))


class Compressor:
    """Compresses batches of values on ``threads`` cores."""

    def __init__(self, dictionary: bytes, threads: int) -> None:
        self._threads = threads
        parameters = zstandard.ZstdCompressionParameters.from_level(
            LEVEL,
            format=zstandard.FORMAT_ZSTD1_MAGICLESS,
            write_content_size=True,
            write_checksum=False,
            write_dict_id=False,
        )
        prepared = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        if prepared:
            # Otherwise each batch would digest it anew: 3 ms for 1 MiB, as much as a thousand values cost.
            prepared.precompute_compress(compression_params=parameters)
        self._zstd = zstandard.ZstdCompressor(dict_data=prepared, compression_params=parameters)

    def store(self, framed: Sequence[bytes]) -> list[bytes]:
        """For each RESP bulk string what is stored for it: itself, or its zstd frame where that is smaller."""
        if not framed:
            return []
        frames = self._zstd.multi_compress_to_buffer(list(framed), threads=self._threads)
        return [
            packed.tobytes() if len(packed := frames[number]) < len(value) else value
            for number, value in enumerate(framed)
        ]
