"""Product recommendations: a customer, and ten different products of a pool of 10,000, all random UUIDs.

Products are drawn evenly. Real recommendations favour some products and compress better: this is the hard case.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

POOL: Final = 10_000
PRODUCTS: Final = 10
_CHUNK: Final = 5_000
"""Rows made at once: random numbers are cheap by the thousand."""


def generate(rows: int, seed: int) -> Iterator[bytes]:
    """JSON lines of ``{"customer": uuid, "products": [10 uuids]}`` without white space, about 450 bytes each."""
    rng = random.Random(seed)
    pool = uuids(rng, POOL)
    for start in range(0, rows, _CHUNK):
        size = min(_CHUNK, rows - start)
        customers = uuids(rng, size)
        picks = rng.choices(pool, k=size * PRODUCTS)
        lines = []
        for row, customer in enumerate(customers):
            products = picks[row * PRODUCTS : (row + 1) * PRODUCTS]
            if len(set(products)) < PRODUCTS:
                products = rng.sample(pool, PRODUCTS)
            listed = '","'.join(products)
            lines.append(f'{{"customer":"{customer}","products":["{listed}"]}}\n')
        yield "".join(lines).encode()


def uuids(rng: random.Random, count: int) -> list[str]:
    """Return ``count`` random UUIDs (version 4) as text."""
    digits = rng.randbytes(count * 16).hex()
    return [
        f"{digits[at : at + 8]}-{digits[at + 8 : at + 12]}-4{digits[at + 13 : at + 16]}"
        f"-{'89ab'[int(digits[at + 16], 16) & 3]}{digits[at + 17 : at + 20]}-{digits[at + 20 : at + 32]}"
        for at in range(0, count * 32, 32)
    ]
