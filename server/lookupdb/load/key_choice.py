"""Which keys a request asks for: distribution, share of keys that exist, batches. Pure but for its random numbers, of
which a seed decides."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final, Protocol

from lookupdb.errors import UsageError

_MAX_EXPONENT: Final = 10.0
_MISSING_DIGITS: Final = 16
MISSING_PREFIX: Final = "lookupdb-load-"
"""Of keys that are made up. What follows is random, so that they are spread over all shards."""
_TRIES: Final = 8
"""For each key of a batch, until its keys are distinct. A few keys may be nearly all that a skewed choice gives."""


@dataclass(frozen=True, slots=True)
class KeyDistribution:
    """How often which key is asked for."""

    exponent: float = 0.0
    """Of Zipf's law: the key of rank n is asked for 1/n^exponent as often as the first. 0: all equally often."""

    def __str__(self) -> str:
        return f"zipf:{self.exponent:g}" if self.exponent else "uniform"


def parse_distribution(text: str) -> KeyDistribution:
    """``uniform``, or ``zipf:1.1``. Raises UsageError."""
    if text == "uniform":
        return KeyDistribution()
    name, _, digits = text.partition(":")
    try:
        exponent = float(digits)
        if name == "zipf" and 0 < exponent <= _MAX_EXPONENT:
            return KeyDistribution(exponent)
    except ValueError:
        pass
    raise UsageError(
        f"--distribution {text} is none", hint=f"give uniform, or zipf:S with S up to {_MAX_EXPONENT:g}, as zipf:1.1"
    )


class RankChooser(Protocol):
    """Chooses which of the keys is asked for."""

    def choose(self) -> int:
        """The place of a key."""

    def choose_distinct(self, count: int) -> list[int]:
        """The places of at most ``count`` keys, each once."""


class UniformChooser:
    """All keys equally often."""

    def __init__(self, keys: int, source: random.Random) -> None:
        self._random, self._keys = source.random, keys
        self._sample, self._range = source.sample, range(keys)

    def choose(self) -> int:
        """The place of a key."""
        return int(self._random() * self._keys)

    def choose_distinct(self, count: int) -> list[int]:
        """The places of ``count`` keys."""
        return self._sample(self._range, count)


class ZipfChooser:
    """Some keys far more often than others: those of the first places."""

    def __init__(self, keys: int, exponent: float, source: random.Random) -> None:
        self._random = source.random
        self._sums = list(itertools.accumulate(rank**-exponent for rank in range(1, keys + 1)))

    def choose(self) -> int:
        """The place of a key."""
        return bisect_left(self._sums, self._random() * self._sums[-1], 0, len(self._sums) - 1)

    def choose_distinct(self, count: int) -> list[int]:
        """The places of at most ``count`` keys."""
        places: dict[int, None] = {}
        for _ in range(count * _TRIES):
            places[self.choose()] = None
            if len(places) == count:
                break
        return list(places)


class KeyChooser:
    """Chooses the keys of each request."""

    def __init__(self, keys: int, distribution: KeyDistribution, hit_ratio: float, source: random.Random) -> None:
        self._hit_ratio = hit_ratio
        self._source, self._random = source, source.random
        self._ranks: RankChooser = (
            ZipfChooser(keys, distribution.exponent, source) if distribution.exponent else UniformChooser(keys, source)
        )

    def choose(self) -> int | str:
        """The place of a key, or a key that is made up."""
        if self._hit_ratio < 1.0 and self._random() >= self._hit_ratio:
            return self._make_up()
        return self._ranks.choose()

    def choose_batch(self, count: int) -> list[int | str]:
        """The same for ``count`` keys, no two of which are equal; of a skewed choice there may be fewer."""
        hits = count
        if self._hit_ratio < 1.0:
            hits = sum(self._random() < self._hit_ratio for _ in range(count))
        return [*self._ranks.choose_distinct(hits), *(self._make_up() for _ in range(count - hits))]

    def _make_up(self) -> str:
        return f"{MISSING_PREFIX}{self._source.getrandbits(4 * _MISSING_DIGITS):0{_MISSING_DIGITS}x}"
