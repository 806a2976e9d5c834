"""How values are stored: trains the dictionary, and decides record by record whether to compress.

A dictionary holds what many values have in common, so that a value of some hundred bytes compresses as if it stood in
one long text with the others. Trial finds the size that pays: each candidate is trained on one part of the sample and
judged on the other. Everything here is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import zstandard

from lookupdb.build.budget import SAMPLE_BYTES
from lookupdb.shardfile import frame

LEVEL: Final = 3
"""Measured on ten product ids a value: level 1 hardly uses the dictionary (0.45), 3 gives 0.140, 5 gives 0.137."""

DICTIONARY_SIZES: Final = (16 << 10, 110 << 10, 512 << 10, 1 << 20)
_SEGMENT: Final = 200
_MATCH: Final = 8
"""The trainer's parameters: runs of ``_SEGMENT`` bytes rich in ``_MATCH``-byte strings that many samples share. They
are fixed, because the trainer's search costs ten seconds and more, and gained nothing measurable."""

_EVALUATION_BYTES: Final = 1 << 20
_EVALUATION_SHARE: Final = 8
"""One in this many sampled records is kept for evaluation."""
_MIN_SAMPLES: Final = 64
"""Fewer records have too little in common to train on."""
_MIN_GAIN: Final = 0.02
"""A larger dictionary must save at least this share of the stored bytes: each worker keeps it in memory."""
_MAX_SAMPLE_VALUE_BYTES: Final = 64 << 10
"""A longer value compresses well by itself and would crowd the others out of the sample."""


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
    best, best_cost = b"", _stored_bytes(evaluation, b"") * records / len(evaluation)
    # A dictionary that is larger than what it could save is not worth training.
    sizes = [size for size in DICTIONARY_SIZES if size * shards < best_cost]
    with ThreadPoolExecutor(threads, "train") as pool:
        candidates = [trained for trained in pool.map(lambda size: _train(size, training), sizes) if trained]
    for dictionary in candidates:
        cost = _stored_bytes(evaluation, dictionary) * records / len(evaluation) + len(dictionary) * shards
        if cost < best_cost * (1 - _MIN_GAIN):
            best, best_cost = dictionary, cost
    return best


def _take_first(values: Sequence[bytes], limit: int) -> Sequence[bytes]:
    """The first values that together are at most ``limit`` bytes long; at least one."""
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
            # Otherwise each batch would digest it again: 3 ms for 1 MiB, as much as a thousand values cost.
            prepared.precompute_compress(compression_params=parameters)
        self._zstd = zstandard.ZstdCompressor(dict_data=prepared, compression_params=parameters)

    def store(self, framed: Sequence[bytes]) -> list[bytes]:
        """What is stored for each RESP bulk string: its zstd frame if that is smaller, else the string itself."""
        if not framed:
            return []
        frames = self._zstd.multi_compress_to_buffer(list(framed), threads=self._threads)
        return [
            packed.tobytes() if len(packed := frames[number]) < len(value) else value
            for number, value in enumerate(framed)
        ]
