"""The keys that are asked for: lines of a file, or a sample of what comes one by one. At most ``MAX_KEYS`` are kept.

Of more keys, as many are kept at random as may be: which ones depends on the seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from math import exp, floor, log
from typing import BinaryIO, Final, TypeVar

from lookupdb.errors import UsageError

T = TypeVar("T")

MAX_KEYS: Final = 1_000_000
DEFAULT_SAMPLE: Final = 100_000
_MAX_LINE_BYTES: Final = 1 << 16
"""No key of a record is longer than 511 bytes; what is much longer is no list of keys."""
_MAX_FILE_KEY_BYTES: Final = 256 << 20


def read_key_lines(stream: BinaryIO, where: str, seed: int, size: int = MAX_KEYS) -> list[str]:
    """The keys of ``stream``, one a line, ``size`` of them at most. Raises UsageError for what is no UTF-8, or no
    key."""
    keys = take_sample(_decode_lines(stream, where), size, seed)
    if not keys:
        raise UsageError(f"{where} has no keys", hint="give a file with one key a line, or --keys sample")
    if sum(map(len, keys)) > _MAX_FILE_KEY_BYTES:
        raise UsageError(f"the keys of {where} take more than {_MAX_FILE_KEY_BYTES >> 20} MiB", hint="give fewer")
    return keys


def _decode_lines(stream: BinaryIO, where: str) -> Iterator[str]:
    number = 0
    while line := stream.readline(_MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > _MAX_LINE_BYTES:
            raise UsageError(f"line {number} of {where} has more than {_MAX_LINE_BYTES:,} bytes, it is no key")
        text = line.rstrip(b"\r\n")
        if not text:
            continue
        try:
            yield text.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"line {number} of {where} is not UTF-8: {text[:80]!r}") from error


def take_sample(items: Iterable[T], size: int, seed: int) -> list[T]:
    """``size`` of ``items``, or all if there are fewer, in random order: what comes first is asked for most often if
    some are. Those that are not taken are passed over quickly (Li's algorithm L)."""
    source = random.Random(f"sample {seed}")  # noqa: S311 - not a secret
    iterator = iter(items)
    sample = list(islice(iterator, size))
    if len(sample) == size:
        weight = 1.0
        while True:
            weight *= exp(log(_draw(source)) / size)
            skipped = floor(log(_draw(source)) / log(1.0 - weight)) if weight < 1.0 else 0
            item = next(islice(iterator, skipped, None), _END)
            if item is _END:
                break
            sample[source.randrange(size)] = item  # type: ignore[assignment]
    source.shuffle(sample)
    return sample


def _draw(source: random.Random) -> float:
    """Between 0 and 1, and neither."""
    return source.random() or 0.5


_END: Final = object()
