"""Random changes of samples. The same seed gives the same inputs."""

from __future__ import annotations

import random
from collections.abc import Iterator

from fuzzing.target import MAX_INPUT_BYTES, Target

_NUMBERS = (
    b"0",
    b"1",
    b"-1",
    b"255",
    b"65536",
    b"2147483648",
    b"18446744073709551616",
    b"1e999",
    b"NaN",
    b"null",
    b"true",
)


def inputs(target: Target, seed: int) -> Iterator[bytes]:
    """Endless inputs for ``target``, beginning with its samples."""
    yield from target.samples
    chance = random.Random(f"{target.name} {seed}")  # noqa: S311 - inputs are no secret
    while True:
        data = chance.choice(target.samples)
        for _ in range(chance.choice((1, 1, 2, 3, 8))):
            data = _change(data, target, chance)
        yield data[:MAX_INPUT_BYTES]


def _change(data: bytes, target: Target, chance: random.Random) -> bytes:
    start = chance.randint(0, len(data))
    end = min(len(data), start + chance.choice((0, 1, 1, 2, 4, 16, 64)))
    match chance.randrange(6):
        case 0:
            middle = b""
        case 1:
            middle = chance.randbytes(chance.choice((1, 1, 2, 4)))
        case 2:
            middle = chance.choice(target.words or _NUMBERS)
        case 3:
            middle = chance.choice(_NUMBERS)
        case 4:
            middle = data[start:end] * chance.choice((2, 3, 20))
        case _:
            other = chance.choice(target.samples)
            begin = chance.randint(0, len(other))
            middle = other[begin : begin + chance.choice((1, 8, 64, 512))]
    return data[:start] + middle + data[end:]
