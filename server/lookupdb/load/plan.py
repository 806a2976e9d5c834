"""What a load is: where requests go, when each is due, and which keys it asks for.

A rate is a line of segments. The number of requests expected up to an instant is its integral; arrivals are positions
on that number (0, 1, 2, … or those of a Poisson process of rate 1), which the integral's inverse turns into instants.

LoadPlan is the whole load, and SenderPlan the part of one process, which reads it as a line of JSON and reports each
Tally as another.
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
MAX_LABELS: Final = 50  # of one kind of failure, and of generations: what servers say must not fill memory
OTHER_LABELS: Final = "(others)"
MAX_KEYS: Final = 1_000_000
DEFAULT_SAMPLE: Final = 100_000
_MAX_EXPONENT: Final = 10.0
_TRIES: Final = 8  # for each key of a batch until all differ: a skewed choice may hardly ever give more than a few
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_TEXT: Final = re.compile(r"[\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")
_SECRET_FIELDS: Final = ("authorization", "proxy-authorization", "cookie")
_OWN_FIELDS: Final = ("connection", "content-length", "content-type", "transfer-encoding", "expect", "upgrade")
_MAX_FIELDS: Final = 50


@dataclass(frozen=True, slots=True)
class RateSegment:
    """A rate that goes from ``start`` to ``end`` requests a second within ``seconds``."""

    seconds: float
    start: float
    end: float

    @property
    def requests(self) -> float:
        """The number expected in all of it."""
        return self.seconds * (self.start + self.end) / 2

    def find_instant(self, count: float) -> float:
        """When ``count`` requests should have been sent, in seconds since the segment began."""
        if count <= 0:
            return 0.0
        slope = (self.end - self.start) / self.seconds
        root = math.sqrt(max(0.0, self.start * self.start + 2 * slope * count))
        return min(self.seconds, 2 * count / (self.start + root))  # subtracts no numbers that are nearly equal


@dataclass(frozen=True, slots=True)
class RateProfile:
    """The rate of all senders together."""

    segments: tuple[RateSegment, ...]

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return sum(segment.seconds for segment in self.segments)

    @property
    def highest(self) -> float:
        """The highest rate."""
        return max(max(segment.start, segment.end) for segment in self.segments)

    def find_instants(self, counts: Iterable[float]) -> Iterator[float]:
        """The instant of each of ``counts``, which grow, until the profile ends."""
        segments, begin, base = list(self.segments), 0.0, 0.0
        for count in counts:
            while count - base >= segments[0].requests:
                base += segments[0].requests
                begin += segments.pop(0).seconds
                if not segments:
                    return
            yield begin + segments[0].find_instant(count - base)


def make_profile(start: float, end: float, *, ramp: float, duration: float, warmup: float) -> RateProfile:
    """Warm up at ``start`` for ``warmup`` seconds, go to ``end`` within ``ramp`` seconds, and stay there until
    ``duration`` seconds after the warm-up."""
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
    """When sender ``process`` of ``processes`` is to send, in order. All of them together follow ``profile``: each
    takes every so many of uniform arrivals, and Poisson processes add up to one."""
    if arrivals == "uniform":
        return profile.find_instants(itertools.count(process, processes))
    source = random.Random(f"arrivals {seed} {process}")  # noqa: S311 - not a secret
    gaps = (source.expovariate(1 / processes) for _ in itertools.repeat(None))
    return profile.find_instants(itertools.accumulate(gaps))


def parse_ramp(text: str) -> tuple[float, float, float]:
    """START:END:SECONDS. Raises UsageError."""
    with suppress(ValueError):
        start, end, seconds = map(float, text.split(":"))
        if math.isfinite(start + end + seconds) and min(start, end) >= 0 < max(start, end) and seconds >= 1:
            return start, end, seconds
    raise UsageError(
        f"--ramp {text} is no ramp: rates are 0 or more, one of them is more, and it takes a second or more",
        hint="give START:END:SECONDS, as --ramp 100:1000:30",
    )


def parse_distribution(text: str) -> float:
    """The exponent of ``zipf:1.1``: the key of rank n is asked for 1/n^1.1 as often as the first (Zipf's law). 0 for
    ``uniform``: all equally often. Raises UsageError."""
    name, _, digits = text.partition(":")
    with suppress(ValueError):
        if text == "uniform" or (name == "zipf" and 0 < float(digits) <= _MAX_EXPONENT):
            return float(digits or 0)
    raise UsageError(
        f"--distribution {text} is none", hint=f"give uniform, or zipf:S with S up to {_MAX_EXPONENT:g}, as zipf:1.1"
    )


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Where requests go, and the header fields of each. It holds a token: show it to nobody."""

    url: str
    host: str
    port: int
    is_encrypted: bool
    path: str  # the router's path behind a proxy: empty, or ``/people``
    fields: tuple[tuple[str, str], ...]

    @property
    def head(self) -> bytes:
        """The fields as they are sent."""
        return "".join(f"{name}: {value}\r\n" for name, value in self.fields).encode("latin-1")


def make_target(url: str, token: str | None, generation: str | None, headers: Iterable[str]) -> LoadTarget:
    """The router at ``url``, a checked URL; each of ``headers`` is ``Name: text``. Raises UsageError."""
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise UsageError(f"a router's URL has no ? and no #, found {url}", hint="leave out what begins with it")
    is_encrypted = parts.scheme == "https"
    given = dict(map(_parse_header, headers))
    if len(given) > _MAX_FIELDS:
        raise UsageError(f"{len(given)} header fields are given by --header, {_MAX_FIELDS} are the most")
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
        what, hint = f"{name[:80]!r} is no header field", "give its name and its text, as --header 'X-Team: search'"
    elif lower in _SECRET_FIELDS:
        what = f"{name} would show a secret to whoever lists processes"
        hint = "give a token by --token-file, or in LOOKUPDB_TOKEN"
    elif lower == GENERATION_FIELD.lower():
        what, hint = f"{name} names a generation", "give it by --at"
    elif lower in _OWN_FIELDS:
        what, hint = f"{name} is one that this program sets itself", "leave it out"
    else:
        return name, text
    raise UsageError(f"--header {what}", hint=hint)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The load of all senders together."""

    profile: RateProfile
    arrivals: Arrivals
    warmup: float  # seconds at the beginning of the profile that are not measured
    batch: int
    partial: bool
    hit_ratio: float
    distribution: str
    seed: int
    max_in_flight: int  # requests, and so connections
    processes: int
    timeout: float  # seconds from the intended time of a request

    @property
    def duration(self) -> float:
        """Seconds that are measured."""
        return self.profile.seconds - self.warmup


@dataclass(frozen=True, slots=True)
class SenderPlan:
    """The part of sender number ``process``. It holds a token, so it is sent through a pipe."""

    load: LoadPlan
    target: LoadTarget
    process: int
    ca_file: str | None
    keys: list[str]

    def to_line(self) -> bytes:
        """For the pipe."""
        return orjson.dumps(self) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """The opposite of ``to_line``."""
        members = orjson.loads(line)
        load, target = members["load"], members["target"]
        load["profile"] = RateProfile(tuple(RateSegment(**segment) for segment in load["profile"]["segments"]))
        target["fields"] = tuple(map(tuple, target["fields"]))
        return cls(**{**members, "load": LoadPlan(**load), "target": LoadTarget(**target)})

    @property
    def max_in_flight(self) -> int:
        """This sender's share, at least one."""
        whole, rest = divmod(self.load.max_in_flight, self.load.processes)
        return max(1, whole + (self.process < rest))


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What a router says about its dataset, and the generation that is asked: the one of --at, or the active one."""

    namespace: str
    name: str
    records: int
    generation: str


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """All that a load needs."""

    sender: SenderPlan  # the first one; the others differ by their number
    facts: DatasetFacts
    is_asked_by_name: bool  # the generation, by --at
    key_source: str


@dataclass(slots=True)
class Tally:
    """What a sender counted since its last report: requests that were due after the warm-up, their latencies in
    microseconds."""

    scheduled: int = 0  # requests that were due
    held_back: int = 0  # those of them that had to wait for a connection because --max-in-flight were unanswered
    answered: int = 0  # requests of which every key was found or missing
    timeouts: int = 0  # sent, but not answered in time
    unsent: int = 0  # not sent in time
    found: int = 0  # keys, as the next two
    missing: int = 0
    unavailable_keys: int = 0
    mixed: int = 0  # answers from several generations
    failures: dict[str, dict[str, int]] = field(default_factory=lambda: {kind: {} for kind in FAILURE_KINDS})
    generations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name: the number of answers; firstSeconds and lastSeconds, since measuring began."""
    latencies: list[int] = field(default_factory=list)
    """From the intended time: until the answer, or until a timeout or an unsent request was given up."""
    failure_latencies: list[int] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)  # how late the sender itself was with each request
    busy: float = 0.0  # seconds of processor time

    def count_generation(self, name: str, instant: float) -> None:
        """Count an answer from the generations that ``name`` lists."""
        key = name if name in self.generations or len(self.generations) < MAX_LABELS else OTHER_LABELS
        seconds = round(instant, 3)
        span = self.generations.setdefault(key, {"answers": 0, "firstSeconds": seconds, "lastSeconds": seconds})
        span["answers"] += 1
        span["lastSeconds"] = seconds

    @property
    def failed(self) -> int:
        """Requests that were not answered."""
        return sum(sum(labels.values()) for labels in self.failures.values()) + self.timeouts + self.unsent


def clean(text: str) -> str:
    """``text`` in one line, without what would control a terminal or cannot be in XML."""
    return "".join(character if character.isprintable() else "?" for character in text)


def add_label(labels: dict[str, int], label: str, count: int = 1) -> None:
    """Add ``count`` to ``label``, or to the rest if there is no room for it."""
    key = label if label in labels or len(labels) < MAX_LABELS else OTHER_LABELS
    labels[key] = labels.get(key, 0) + count


def take_sample(items: Iterable[T], size: int, seed: int) -> list[T]:
    """``size`` of ``items``, or all if there are fewer, in random order: a skewed choice prefers the first. The rest
    are skipped quickly (Li's algorithm L)."""
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
    """Chooses the keys of each request: the place of a key, or a key that is made up."""

    def __init__(self, keys: int, distribution: str, hit_ratio: float, source: random.Random) -> None:
        self._places, self._hit_ratio, self._source, self._random = range(keys), hit_ratio, source, source.random
        exponent = parse_distribution(distribution)
        self._sums = list(itertools.accumulate(rank**-exponent for rank in range(1, keys + 1))) if exponent else None

    def choose(self) -> int | str:
        """The key of a GET."""
        return self._choose_place() if self._is_hit() else self._make_up()

    def choose_batch(self, count: int) -> list[int | str]:
        """``count`` different keys; a skewed choice may give fewer."""
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
    """A function that makes one request after another: its bytes, and its number of keys."""
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
    """What follows ``/v1/lookup`` for ``key``: a query, if clients or proxies might tidy it away in a path."""
    quoted = quote(key, safe="").encode()
    return b"?key=" + quoted if "/" in key or key in ("", ".", "..") else b"/" + quoted
