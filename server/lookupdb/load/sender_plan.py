"""What one sender process is told, as a line of JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

import orjson

from lookupdb.load.key_choice import KeyDistribution
from lookupdb.load.schedule import Arrivals, RateProfile, RateSegment
from lookupdb.load.target import LoadTarget


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The load, of all senders together."""

    profile: RateProfile
    arrivals: Arrivals
    warmup: float
    """Seconds at the begin of the profile of which nothing is counted."""
    batch: int
    partial: bool
    hit_ratio: float
    distribution: KeyDistribution
    seed: int
    max_in_flight: int
    """Requests, and so connections."""
    processes: int
    timeout: float
    """Seconds from the intended time of a request."""

    @property
    def duration(self) -> float:
        """Seconds that are measured."""
        return self.profile.seconds - self.warmup

    @classmethod
    def from_json(cls, members: dict[str, Any]) -> Self:
        """What orjson made of one."""
        segments = tuple(RateSegment(**segment) for segment in members["profile"]["segments"])
        distribution = KeyDistribution(**members["distribution"])
        return cls(**{**members, "profile": RateProfile(segments), "distribution": distribution})


@dataclass(frozen=True, slots=True)
class SenderPlan:
    """The part of sender number ``process``. It holds a token: it is sent through a pipe."""

    load: LoadPlan
    target: LoadTarget
    process: int
    ca_file: str | None
    keys: list[str]
    sample_answer: str
    """An answer of the router, head and body, as latin-1: by it a sender finds out how many it can read."""

    def to_line(self) -> bytes:
        """For the pipe."""
        return orjson.dumps(asdict(self)) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """What ``to_line`` became."""
        members = orjson.loads(line)
        target = members["target"]
        fields = tuple((name, text) for name, text in target["fields"])
        return cls(
            **{
                **members,
                "load": LoadPlan.from_json(members["load"]),
                "target": LoadTarget(**{**target, "fields": fields}),
            }
        )

    @property
    def max_in_flight(self) -> int:
        """This sender's part, at least one."""
        whole, rest = divmod(self.load.max_in_flight, self.load.processes)
        return max(1, whole + (self.process < rest))
