"""When requests are to be sent: a rate over time, and arrivals by it. Pure; seconds since the load began.

A rate is a line of segments, each of which goes from one rate to another. The expected number of requests up to an
instant is its integral; arrivals are positions on that number (0, 1, 2, … or those of a Poisson process of rate 1),
which the integral's inverse turns into instants.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from lookupdb.errors import UsageError

Arrivals = Literal["poisson", "uniform"]

_RAMP_EXAMPLE: Final = "give START:END:SECONDS, as --ramp 100:1000:30"


@dataclass(frozen=True, slots=True)
class RateSegment:
    """A rate that goes from ``start`` to ``end`` requests a second within ``seconds``."""

    seconds: float
    start: float
    end: float

    @property
    def requests(self) -> float:
        """How many are expected in all of it."""
        return self.seconds * (self.start + self.end) / 2

    def find_instant(self, count: float) -> float:
        """When ``count`` requests are expected to have been sent, in seconds since the segment's begin."""
        if count <= 0:
            return 0.0
        slope = (self.end - self.start) / self.seconds
        root = math.sqrt(max(0.0, self.start * self.start + 2 * slope * count))
        return min(self.seconds, 2 * count / (self.start + root))  # without a difference of numbers that are near


@dataclass(frozen=True, slots=True)
class RateProfile:
    """The rate of all senders together."""

    segments: tuple[RateSegment, ...]

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return sum(segment.seconds for segment in self.segments)

    @property
    def requests(self) -> float:
        """How many are expected in all of it."""
        return sum(segment.requests for segment in self.segments)

    @property
    def highest(self) -> float:
        """The highest rate."""
        return max(max(segment.start, segment.end) for segment in self.segments)

    def find_instants(self, counts: Iterator[float]) -> Iterator[float]:
        """For each of ``counts``, which grow, the instant by which so many requests are expected; those of the profile
        alone."""
        segments = iter(self.segments)
        segment = next(segments)
        begin, base = 0.0, 0.0
        for count in counts:
            while count - base >= segment.requests:
                base += segment.requests
                begin += segment.seconds
                following = next(segments, None)
                if following is None:
                    return
                segment = following
            yield begin + segment.find_instant(count - base)


def make_profile(start: float, end: float, *, ramp: float, duration: float, warmup: float) -> RateProfile:
    """The profile that warms up at ``start`` for ``warmup`` seconds, goes to ``end`` within ``ramp`` seconds, and stays
    there until ``duration`` seconds since the warm-up have passed."""
    parts = (
        RateSegment(warmup, start, start),
        RateSegment(min(ramp, duration), start, start + (end - start) * (min(ramp, duration) / ramp if ramp else 0)),
        RateSegment(duration - min(ramp, duration), end, end),
    )
    return RateProfile(tuple(part for part in parts if part.seconds > 0))


def parse_ramp(text: str) -> tuple[float, float, float]:
    """START:END:SECONDS. Raises UsageError."""
    try:
        start, end, seconds = (float(part) for part in text.split(":"))
    except ValueError as error:
        raise UsageError(f"--ramp {text} is no ramp", hint=_RAMP_EXAMPLE) from error
    if not all(map(math.isfinite, (start, end, seconds))) or min(start, end) < 0 or max(start, end) <= 0 or seconds < 1:
        raise UsageError(
            f"--ramp {text} cannot be: rates are 0 or more, one of them is more, and it takes a second or more",
            hint=_RAMP_EXAMPLE,
        )
    return start, end, seconds


def intended_times(
    profile: RateProfile, arrivals: Arrivals, seed: int, process: int, processes: int
) -> Iterator[float]:
    """When sender ``process`` of ``processes`` is to send, in order. All of them together follow ``profile``: of
    uniform arrivals each sends every so many, and Poisson processes add up to one."""
    if arrivals == "uniform":
        return profile.find_instants(_count_evenly(process, processes))
    return profile.find_instants(_count_at_random(random.Random(f"arrivals {seed} {process}"), 1 / processes))  # noqa: S311


def _count_evenly(first: int, step: int) -> Iterator[float]:
    position = first
    while True:
        yield float(position)
        position += step


def _count_at_random(source: random.Random, share: float) -> Iterator[float]:
    position = 0.0
    while True:
        position += source.expovariate(share)
        yield position
