"""Describe a load: its target, the times of its requests, and their keys.

A rate consists of linear segments. Its integral up to a time is the number of requests expected until then. So the time
of request n is the inverse of the integral at n; for Poisson arrivals, at the n-th point of a Poisson process with rate
1.

LoadPlan is the whole load. SenderPlan is the part of one process, which reads it as a line of JSON and reports each
Tally as another line.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import quote, urlsplit

import orjson

from lookupdb.errors import UsageError

T = TypeVar("T")
Arrivals = Literal["poisson", "uniform"]

FAILURE_KINDS: Final = ("unavailable", "httpErrors", "broken", "invalid")
GENERATION_FIELD: Final = "Lookupdb-Generation"
MAX_LABELS: Final = 50  # labels per kind of failure, and generations: answers must not fill memory
OTHER_LABELS: Final = "(others)"
MAX_KEYS: Final = 1_000_000
DEFAULT_SAMPLE: Final = 100_000
_MAX_EXPONENT: Final = 10.0
_TRIES: Final = 8  # attempts for each key of a batch, until all differ: a skewed choice may give few different keys
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_TEXT: Final = re.compile(r"[\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")
_SECRET_FIELDS: Final = ("authorization", "proxy-authorization", "cookie")
_OWN_FIELDS: Final = ("connection", "content-length", "content-type", "transfer-encoding", "expect", "upgrade")
_MAX_FIELDS: Final = 50


@dataclass(frozen=True, slots=True)
class RateSegment:
    """A rate that changes from ``start`` to ``end`` requests a second within ``seconds``."""

    seconds: float
    start: float
    end: float

    @property
    def requests(self) -> float:
        """The expected number of requests."""
        return self.seconds * (self.start + self.end) / 2

    def find_instant(self, count: float) -> float:
        """Return when ``count`` requests should have been sent, in seconds since the segment began."""
        if count <= 0:
            return 0.0
        slope = (self.end - self.start) / self.seconds
        root = math.sqrt(max(0.0, self.start * self.start + 2 * slope * count))
        return min(self.seconds, 2 * count / (self.start + root))  # avoids a difference of nearly equal numbers


@dataclass(frozen=True, slots=True)
class RateProfile:
    """The rate of all senders together."""

    segments: tuple[RateSegment, ...]

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return sum(segment.seconds for segment in self.segments)

    @property
    def highest(self) -> float:
        """The highest rate."""
        return max(max(segment.start, segment.end) for segment in self.segments)

    def find_instants(self, counts: Iterable[float]) -> Iterator[float]:
        """Yield the instant at which each of the increasing ``counts`` is reached, until the profile ends."""
        segments, begin, base = list(self.segments), 0.0, 0.0
        for count in counts:
            while count - base >= segments[0].requests:
                base += segments[0].requests
                begin += segments.pop(0).seconds
                if not segments:
                    return
            yield begin + segments[0].find_instant(count - base)


def make_profile(start: float, end: float, *, ramp: float, duration: float, warmup: float) -> RateProfile:
    """Return the profile: ``warmup`` seconds at ``start``, then ``duration`` seconds: ``ramp`` of them to reach
    ``end``, the rest at ``end``."""
    climb = min(ramp, duration)
    parts = (
        RateSegment(warmup, start, start),
        RateSegment(climb, start, start + (end - start) * (climb / ramp if ramp else 0)),
        RateSegment(duration - climb, end, end),
    )
    return RateProfile(tuple(part for part in parts if part.seconds > 0))


def intended_times(
    profile: RateProfile, arrivals: Arrivals, seed: int, process: int, processes: int
) -> Iterator[float]:
    """Yield the instants at which sender ``process`` of ``processes`` sends. Together the senders follow ``profile``:
    each takes every ``processes``-th of uniform arrivals, and Poisson processes add up to one."""
    if arrivals == "uniform":
        return profile.find_instants(itertools.count(process, processes))
    source = random.Random(f"arrivals {seed} {process}")  # noqa: S311 - not a secret
    gaps = (source.expovariate(1 / processes) for _ in itertools.repeat(None))
    return profile.find_instants(itertools.accumulate(gaps))


def parse_ramp(text: str) -> tuple[float, float, float]:
    """Parse START:END:SECONDS. Raises UsageError."""
    with suppress(ValueError):
        start, end, seconds = map(float, text.split(":"))
        if math.isfinite(start + end + seconds) and min(start, end) >= 0 < max(start, end) and seconds >= 1:
            return start, end, seconds
    raise UsageError(
        f"--ramp {text} is not a ramp: expected rates of 0 or more, one of them above 0, and SECONDS of 1 or more",
        hint="give START:END:SECONDS, as --ramp 100:1000:30",
    )


def parse_distribution(text: str) -> float:
    """Return the exponent S of ``zipf:S``: the key of rank n occurs 1/n^S as often as the first (Zipf's law). 0 for
    ``uniform``. Raises UsageError."""
    name, _, digits = text.partition(":")
    with suppress(ValueError):
        if text == "uniform" or (name == "zipf" and 0 < float(digits) <= _MAX_EXPONENT):
            return float(digits or 0)
    raise UsageError(
        f"--distribution {text} is unknown", hint=f"give uniform or zipf:S, with S up to {_MAX_EXPONENT:g}, as zipf:1.1"
    )


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The address of a router, and the header fields of requests. It holds a token: never print it."""

    url: str
    host: str
    port: int
    is_encrypted: bool
    path: str  # the router's path behind a proxy: empty, or ``/people``
    fields: tuple[tuple[str, str], ...]

    @property
    def head(self) -> bytes:
        """Return the fields as sent."""
        return "".join(f"{name}: {value}\r\n" for name, value in self.fields).encode("latin-1")


def make_target(url: str, token: str | None, generation: str | None, headers: Iterable[str]) -> LoadTarget:
    """Return the target at ``url``, a checked URL; each of ``headers`` is ``Name: text``. Raises UsageError."""
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise UsageError(f"a router's URL has no ? and no #, found {url}", hint="remove that part")
    is_encrypted = parts.scheme == "https"
    given = dict(map(_parse_header, headers))
    if len(given) > _MAX_FIELDS:
        raise UsageError(f"--header is given {len(given)} times, the limit is {_MAX_FIELDS}")
    names = {name.lower() for name in given}
    fields = {} if "host" in names else {"Host": parts.netloc}
    if "user-agent" not in names:
        fields["User-Agent"] = "lookupdb-load"
    if token:
        fields["Authorization"] = f"Bearer {token}"
    if generation:
        fields[GENERATION_FIELD] = generation
    port = parts.port or (443 if is_encrypted else 80)
    every = (*fields.items(), *given.items())
    return LoadTarget(url.rstrip("/"), parts.hostname or "", port, is_encrypted, parts.path.rstrip("/"), every)


def _parse_header(header: str) -> tuple[str, str]:
    name, colon, text = header.partition(":")
    lower, text = name.lower(), text.strip()
    if not colon or not _TOKEN.fullmatch(name) or not _FIELD_TEXT.fullmatch(text):
        what, hint = f"{name[:80]!r} is not a header field", "give its name and its text, as --header 'X-Team: search'"
    elif lower in _SECRET_FIELDS:
        what = f"{name} would show a secret in the list of processes"
        hint = "give a token by --token-file, or in LOOKUPDB_TOKEN"
    elif lower == GENERATION_FIELD.lower():
        what, hint = f"{name} names a generation", "give it by --at"
    elif lower in _OWN_FIELDS:
        what, hint = f"{name} is set by this program itself", "leave it out"
    else:
        return name, text
    raise UsageError(f"--header {what}", hint=hint)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The load of all senders together."""

    profile: RateProfile
    arrivals: Arrivals
    warmup: float  # seconds at the beginning that are not measured
    batch: int
    partial: bool
    hit_ratio: float
    distribution: str
    seed: int
    max_in_flight: int  # requests at the same time, and so connections
    processes: int
    timeout: float  # seconds from the intended time of a request

    @property
    def duration(self) -> float:
        """Measured seconds."""
        return self.profile.seconds - self.warmup


@dataclass(frozen=True, slots=True)
class SenderPlan:
    """The part of sender ``process``. It holds a token, so it is sent through a pipe."""

    load: LoadPlan
    target: LoadTarget
    process: int
    ca_file: str | None
    keys: list[str]

    def to_line(self) -> bytes:
        """Return the plan as a line of JSON."""
        return orjson.dumps(self) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Return the plan that ``to_line`` wrote."""
        members = orjson.loads(line)
        load, target = members["load"], members["target"]
        load["profile"] = RateProfile(tuple(RateSegment(**segment) for segment in load["profile"]["segments"]))
        target["fields"] = tuple(map(tuple, target["fields"]))
        return cls(**{**members, "load": LoadPlan(**load), "target": LoadTarget(**target)})

    @property
    def max_in_flight(self) -> int:
        """This sender's share of ``max_in_flight``, at least one."""
        whole, rest = divmod(self.load.max_in_flight, self.load.processes)
        return max(1, whole + (self.process < rest))


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """A router's dataset, and the generation to use: the one of --at, or the active one."""

    namespace: str
    name: str
    records: int
    generation: str


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """Everything that a load needs."""

    sender: SenderPlan  # the first sender's; the others differ by their number
    facts: DatasetFacts
    is_asked_by_name: bool  # --at names the generation
    key_source: str


@dataclass(slots=True)
class Tally:
    """A sender's counts since its last report: requests due after the warm-up, and their latencies in microseconds."""

    scheduled: int = 0  # due requests
    held_back: int = 0  # due requests that waited for a connection, because of --max-in-flight
    answered: int = 0  # requests whose keys were all found or missing
    timeouts: int = 0  # sent, but not answered in time
    unsent: int = 0  # not sent in time
    found: int = 0  # keys
    missing: int = 0
    unavailable_keys: int = 0
    mixed: int = 0  # answers from several generations
    failures: dict[str, dict[str, int]] = field(default_factory=lambda: {kind: {} for kind in FAILURE_KINDS})
    generations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Generations → number of answers, and firstSeconds and lastSeconds since measuring began."""
    latencies: list[int] = field(default_factory=list)
    """Microseconds from the intended time to the answer; for timeouts and unsent requests, to the timeout."""
    failure_latencies: list[int] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)  # microseconds by which the sender itself was late
    busy: float = 0.0  # seconds of processor time

    def count_generation(self, name: str, instant: float) -> None:
        """Count an answer. ``name`` is its generation, or a list of several."""
        key = name if name in self.generations or len(self.generations) < MAX_LABELS else OTHER_LABELS
        seconds = round(instant, 3)
        span = self.generations.setdefault(key, {"answers": 0, "firstSeconds": seconds, "lastSeconds": seconds})
        span["answers"] += 1
        span["lastSeconds"] = seconds

    @property
    def failed(self) -> int:
        """Number of requests without an answer."""
        return sum(sum(labels.values()) for labels in self.failures.values()) + self.timeouts + self.unsent


def clean(text: str) -> str:
    """Return ``text`` as one line, without control characters and others that XML forbids."""
    return "".join(character if character.isprintable() else "?" for character in text)


def add_label(labels: dict[str, int], label: str, count: int = 1) -> None:
    """Add ``count`` to ``label``, or to the rest if there are too many labels."""
    key = label if label in labels or len(labels) < MAX_LABELS else OTHER_LABELS
    labels[key] = labels.get(key, 0) + count


def take_sample(items: Iterable[T], size: int, seed: int) -> list[T]:
    """Return ``size`` random ``items``, or all if there are fewer, in random order, because a skewed choice prefers the
    first ones. Uses Li's algorithm L."""
    source = random.Random(f"sample {seed}")  # noqa: S311 - not a secret
    iterator = iter(items)
    sample = list(itertools.islice(iterator, size))
    weight = 1.0
    while len(sample) == size:
        weight *= math.exp(math.log(source.random() or 0.5) / size)
        skipped = math.floor(math.log(source.random() or 0.5) / math.log(1.0 - weight)) if weight < 1.0 else 0
        try:
            item = next(itertools.islice(iterator, skipped, None))
        except StopIteration:
            break
        sample[source.randrange(size)] = item
    source.shuffle(sample)
    return sample


class KeyChooser:
    """Choose the keys of each request: the index of a key, or an invented key."""

    def __init__(self, keys: int, distribution: str, hit_ratio: float, source: random.Random) -> None:
        self._places, self._hit_ratio, self._source, self._random = range(keys), hit_ratio, source, source.random
        exponent = parse_distribution(distribution)
        self._sums = list(itertools.accumulate(rank**-exponent for rank in range(1, keys + 1))) if exponent else None

    def choose(self) -> int | str:
        """Return the key of a GET."""
        return self._choose_place() if self._is_hit() else self._make_up()

    def choose_batch(self, count: int) -> list[int | str]:
        """Return ``count`` different keys; a skewed choice may return fewer."""
        hits = sum(self._is_hit() for _ in range(count)) if self._hit_ratio < 1.0 else count
        if self._sums is None:
            places = self._source.sample(self._places, hits)
        else:
            distinct: dict[int, None] = {}
            for _ in range(hits * _TRIES):
                distinct[self._choose_place()] = None
                if len(distinct) == hits:
                    break
            places = list(distinct)
        return [*places, *(self._make_up() for _ in range(count - hits))]

    def _is_hit(self) -> bool:
        return self._hit_ratio >= 1.0 or self._random() < self._hit_ratio

    def _choose_place(self) -> int:
        if self._sums is None:
            return int(self._random() * len(self._places))
        return bisect_left(self._sums, self._random() * self._sums[-1], 0, len(self._sums) - 1)

    def _make_up(self) -> str:  # random, to spread over all shards
        return f"lookupdb-load-{self._source.getrandbits(64):016x}"


def make_requests(
    target: LoadTarget, keys: Sequence[str], chooser: KeyChooser, batch: int, *, partial: bool
) -> Callable[[], tuple[bytes, int]]:
    """Return a function that renders the next request, and returns its bytes and its number of keys."""
    if batch == 1:
        begin, end = f"GET {target.path}/v1/lookup".encode(), b" HTTP/1.1\r\n" + target.head + b"\r\n"
        quoted = [quote_key(key) for key in keys]

        def make_get() -> tuple[bytes, int]:
            place = chooser.choose()
            return b"%b%b%b" % (begin, quoted[place] if isinstance(place, int) else quote_key(place), end), 1

        return make_get
    head = f"POST {target.path}/v1/lookup HTTP/1.1\r\n".encode() + target.head
    head += b"Content-Type: application/json\r\nContent-Length: "
    tail = b'],"partial":true}' if partial else b"]}"
    encoded = [orjson.dumps(key) for key in keys]

    def make_post() -> tuple[bytes, int]:
        places = chooser.choose_batch(batch)
        chosen = [encoded[place] if isinstance(place, int) else orjson.dumps(place) for place in places]
        body = b'{"keys":[' + b",".join(chosen) + tail
        return b"%b%d\r\n\r\n%b" % (head, len(body), body), len(chosen)

    return make_post


def quote_key(key: str) -> bytes:
    """Return the target after ``/v1/lookup`` for ``key``: a query if proxies could normalise the path."""
    quoted = quote(key, safe="").encode()
    return b"?key=" + quoted if "/" in key or key in ("", ".", "..") else b"/" + quoted
