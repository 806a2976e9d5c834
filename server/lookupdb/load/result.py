"""The result of a load. The senders' reports become histograms, points over time, and the result: a JSON document with
the schema docs/reference/load-result.schema.json. It is rendered as text, and judged by conditions: ``p99>20ms``,
``unavailable>0``, ``missing>5%``, ``rate<900``. No I/O.
"""

from __future__ import annotations

import bisect
import math
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from lookupdb import __version__
from lookupdb.errors import LookupdbError, UsageError
from lookupdb.load.plan import FAILURE_KINDS, LoadOrder, Tally, add_label, clean
from lookupdb.wording import format_count

FORMAT_VERSION: Final = 1
KIND: Final = "LoadResult"
HIGHEST_MICROSECONDS: Final = 300_000_000  # longer than any request may take; larger values count as this
PERCENTILES: Final = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)
CURVE_PERCENTILES: Final = tuple(round(100 - 100 * 10 ** -(step / 16), 6) for step in range(16 * 5 + 1))
"""Percentiles from 0 to 99.999, closer together near the end: even steps of the logarithm of the distance to 100."""
MAX_POINTS: Final = 600  # the points of a longer load cover more time
LABELS: Final = dict(
    zip(FAILURE_KINDS, ("unavailable", "HTTP error", "broken connection", "invalid answer"), strict=True)
)
NO_LATENCY: Final = "–"  # shown if too few requests were answered
NOTICEABLE_MICROSECONDS: Final = 10_000  # a 99th percentile of the senders' lags above this is reported
BUSY_SHARE: Final = 0.9  # share of a CPU above which a sender's own queue affects its results
COUNTS: Final = (
    *("scheduled", "answered", "unavailable", "http-errors", "broken", "invalid", "timeouts", "unsent", "held-back"),
    *("errors", "found", "missing", "mixed", "generations"),
)
"""Counts for conditions: of keys (found, missing), of generations, else of requests. errors are all requests without an
answer: failures of all kinds, timeouts and unsent ones."""
_EDGE_SECONDS: Final = 0.05  # seconds by which an interval may begin before its point
_SUMS: Final = tuple(count.name for count in fields(Tally) if count.type in ("int", "float"))
_CONDITION: Final = re.compile(r"\s*([a-zA-Z0-9.-]+?)\s*(>=|<=|>|<)\s*([0-9]+(?:\.[0-9]+)?)\s*(us|µs|ms|s|%|)\s*")
_PERCENTILE: Final = re.compile(r"p([0-9]{1,2}(?:\.[0-9]{1,4})?)")
_OPERATORS: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_MICROSECONDS: Final = {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_OF_KEYS: Final = ("found", "missing")
_HINT: Final = (
    "give a name, one of > >= < <=, and a number: for a latency with its unit (us, ms, s), p99>20ms, p99.9>=1s, max>2s,"
    f" mean>5ms; rate<900; or a count, alone or as a share: unavailable>0, missing>5%. Counts are {', '.join(COUNTS)}"
)


def find_rank(percentile: float, count: int) -> int:
    """Return the rank of a percentile among ``count`` requests; the fastest has rank 1."""
    return max(1, math.ceil(round(percentile * count / 100, 6)))


def format_microseconds(microseconds: float | None) -> str:
    """Return ``850 µs``, ``1.23 ms``, ``4.5 s``; ``–`` for None."""
    if microseconds is None:
        return NO_LATENCY
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    return f"{microseconds / 1e3:.3g} ms" if microseconds < 1e6 else f"{microseconds / 1e6:.3g} s"


def format_rate(rate: float) -> str:
    """Return ``1,200/s``, ``4.5/s``."""
    return f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s"


class LatencyHistogram:
    """Latencies in microseconds, each counted within a thousandth of its value."""

    def __init__(self) -> None:
        try:
            from hdrh.histogram import HdrHistogram
        except ModuleNotFoundError as error:
            raise UsageError(
                "lookupdb load needs hdrhistogram, which is not installed",
                hint="pip install hdrhistogram; where it has no wheel, as for arm64, that needs a C compiler",
            ) from error
        self._counts = HdrHistogram(1, HIGHEST_MICROSECONDS, 3)
        self._sum = 0
        self.highest: int | None = None  # exact; None without latencies

    def record(self, microseconds: Iterable[int]) -> None:
        """Count each of ``microseconds``."""
        for value, times in Counter(microseconds).items():
            counted = min(max(value, 1), HIGHEST_MICROSECONDS)
            self._counts.record_value(counted, times)
            self._sum += counted * times
            self.highest = max(self.highest or 0, counted)

    def merge(self, other: Self) -> None:
        """Add the counts of ``other``."""
        self._counts.add(other._counts)
        self._sum += other._sum
        self.highest = max(self.highest or 0, other.highest or 0) or None

    @property
    def count(self) -> int:
        """The number of latencies."""
        return int(self._counts.get_total_count())

    @property
    def mean(self) -> float | None:
        """Mean in microseconds; None without latencies."""
        return self._sum / self.count if self.count else None

    def percentiles(self, percentiles: Sequence[float], failure_count: int = 0) -> list[int | None]:
        """Return each of ``percentiles``. ``failure_count`` failed requests count as slower than any latency: a
        percentile that falls among them is None."""
        count, highest = self.count, self.highest
        if highest is None:
            return [None] * len(percentiles)
        # The library rounds to the nearest rank: the 99th percentile of 51 would be the 50th, which 2 % exceed.
        shares = [100 * find_rank(percentile, count + failure_count) / count for percentile in percentiles]
        found = self._counts.get_percentile_to_value_dict([share for share in shares if share <= 100])
        return [min(int(found[share]), highest) if share <= 100 else None for share in shares]

    def encode(self) -> str:
        """Return all counts in HdrHistogram's common format (V2, base64)."""
        return bytes(self._counts.encode()).decode()

    def summarize(self, percentiles: Sequence[float], failure_count: int = 0) -> dict[str, Any]:
        """Return the latencies' part of the document; ``failure_count`` is as for ``percentiles``."""
        values, mean = self.percentiles(percentiles, failure_count), self.mean
        return {
            "count": self.count,
            "mean": mean if mean is None else round(mean, 1),
            "max": self.highest,
            "percentiles": {f"{name:g}": value for name, value in zip(percentiles, values, strict=True)},
        }


def thin_curve(histogram: LatencyHistogram, failure_count: int = 0) -> list[tuple[float, int | None]]:
    """Return the curve of percentiles, with as many points as the count supports, ending with the highest latency. With
    ``failure_count`` failed requests, which count as slower, it ends before 100 %."""
    if not (count := histogram.count):
        return []
    chosen = CURVE_PERCENTILES[: bisect.bisect_right(CURVE_PERCENTILES, 100 - 100 / count)] or (0.0,)
    curve = [*zip(chosen, histogram.percentiles(chosen), strict=True), (100.0, histogram.highest)]
    return [(round(percentile * count / (count + failure_count), 6), value) for percentile, value in curve]


class Recording:
    """The reports of all senders."""

    def __init__(self, duration: float, processes: int) -> None:
        self.width = max(1.0, -(-duration // MAX_POINTS))  # seconds of a point
        self._duration = duration
        self._last = max(0, math.ceil(duration / self.width) - 1)
        self.total = Tally()  # without latencies
        self.latencies, self.failure_latencies, self.lags = (LatencyHistogram() for _ in range(3))
        self.failure_count = 0  # requests that failed early: they count as slower than any answer
        self.points: list[dict[str, Any]] = []  # closed points, for the document
        self._open: dict[int, tuple[dict[str, Any], LatencyHistogram]] = {}
        self._failed: Counter[int] = Counter()  # point → ``failure_count``
        self._reached = [0] * processes  # the last point of each sender

    def take(self, process: int, begin: float, tally: Tally) -> None:
        """Take a report about an interval that began ``begin`` seconds after measuring did. An interval that began in
        the warm-up may hold requests due just after the warm-up. Answers after the end belong to the last point."""
        index = min(max(0, int((begin + _EDGE_SECONDS) / self.width)), self._last)
        if begin < -_EDGE_SECONDS:
            tally.busy = 0.0
        self._reached[process] = index
        for name in _SUMS:
            setattr(self.total, name, getattr(self.total, name) + getattr(tally, name))
        for kind in FAILURE_KINDS:
            for label, count in tally.failures[kind].items():
                add_label(self.total.failures[kind], label, count)
        for name, span in tally.generations.items():
            known = self.total.generations.setdefault(name, {**span, "answers": 0})
            known["answers"] += span["answers"]
            known["firstSeconds"] = min(known["firstSeconds"], span["firstSeconds"])
            known["lastSeconds"] = max(known["lastSeconds"], span["lastSeconds"])
        self.failure_latencies.record(tally.failure_latencies)
        self.lags.record(tally.lags)
        if tally.scheduled or tally.latencies or tally.failure_latencies:
            if index not in self._open:
                seconds = round(min(self.width, self._duration - index * self.width), 3)
                times = {"begin": round(index * self.width, 3), "seconds": seconds}
                self._open[index] = {**times, "scheduled": 0, "answered": 0, "failed": 0}, LatencyHistogram()
            point, latencies = self._open[index]
            for name in ("scheduled", "answered", "failed"):
                point[name] += getattr(tally, name)
            latencies.record(tally.latencies)
            self._failed[index] += tally.failed - tally.timeouts - tally.unsent
        self._close_points(min(self._reached))

    def finish(self) -> None:
        """Close the last points."""
        self._close_points(self._last + 1)

    def _close_points(self, end: int) -> None:
        for index in sorted(index for index in self._open if index < end):
            (point, latencies), failure_count = self._open.pop(index), self._failed.pop(index, 0)
            p50, p99 = latencies.percentiles((50.0, 99.0), failure_count)
            self.points.append({**point, "p50": p50, "p99": p99, "max": latencies.highest})
            self.latencies.merge(latencies)
            self.failure_count += failure_count


def make_document(
    order: LoadOrder,
    recording: Recording,
    *,
    started_at: str,
    seconds: float,
    is_interrupted: bool,
    conditions: Sequence[FailCondition] = (),
) -> dict[str, Any]:
    """Return the result. Measuring began at ``started_at`` (ISO 8601, UTC), and lasted ``seconds``."""
    load, total, latencies, divisor = order.sender.load, recording.total, recording.latencies, seconds or math.inf
    percentiles = {*PERCENTILES, *(judge.percentile for judge in conditions if judge.percentile is not None)}
    plan: dict[str, Any] = {"profile": [asdict(segment) for segment in load.profile.segments]}
    plan |= {"arrivals": load.arrivals, "warmupSeconds": load.warmup}
    plan |= {"durationSeconds": round(load.duration, 6), "batch": load.batch, "partial": load.partial}
    plan |= {"keys": len(order.sender.keys), "keySource": order.key_source, "hitRatio": load.hit_ratio}
    plan |= {"distribution": load.distribution, "seed": load.seed, "maxInFlight": load.max_in_flight}
    plan |= {"processes": load.processes, "timeoutSeconds": load.timeout}
    requests: dict[str, Any] = {"scheduled": total.scheduled, "answered": total.answered}
    requests |= {kind: dict(sorted(labels.items())) for kind, labels in total.failures.items()}
    requests |= {"timeouts": total.timeouts, "unsent": total.unsent, "heldBack": total.held_back}
    busy = total.busy / divisor / load.processes
    keys = {"found": total.found, "missing": total.missing, "unavailable": total.unavailable_keys}
    document: dict[str, Any] = {
        "formatVersion": FORMAT_VERSION,
        "kind": KIND,
        "lookupdb": __version__,
        "target": {"url": order.sender.target.url, **asdict(order.facts), "isAskedByName": order.is_asked_by_name},
        "plan": plan,
        "startedAt": started_at,
        "seconds": round(seconds, 3),
        "isInterrupted": is_interrupted,
        "requests": requests,
        "keys": {"asked": sum(keys.values()), **keys},
        "mixed": total.mixed,
        "rate": {"scheduled": round(total.scheduled / divisor, 2), "answered": round(total.answered / divisor, 2)},
        "latency": {
            **latencies.summarize(sorted(percentiles), recording.failure_count),
            "curve": thin_curve(latencies, recording.failure_count),
            "histogram": latencies.encode(),
        },
        "failureLatency": recording.failure_latencies.summarize(PERCENTILES),
        "senders": {"lag": recording.lags.summarize((50.0, 99.0)), "busy": round(busy, 3)},
        "generations": sorted(
            ({"name": name, **span} for name, span in total.generations.items()), key=lambda span: span["firstSeconds"]
        ),
        "points": recording.points,
    }
    document["failIf"] = [condition.judge(document) for condition in conditions]
    return document


def check_version(document: Mapping[str, Any]) -> None:
    """Raise LookupdbError unless this version reads ``document``."""
    found = document.get("formatVersion"), document.get("kind")
    if found != (FORMAT_VERSION, KIND):
        raise LookupdbError(
            f"this is not a result that this version reads: expected version {FORMAT_VERSION} of {KIND}, found {found}",
            hint="use the version of lookupdb that made it",
        )


def count_requests(document: Mapping[str, Any], name: str) -> int:
    """Return the count ``name``, one of ``COUNTS``."""
    requests = document["requests"]
    if name == "errors":
        return sum(sum(requests[kind].values()) for kind in LABELS) + int(requests["timeouts"] + requests["unsent"])
    if name in _OF_KEYS:
        return int(document["keys"][name])
    if name == "generations":
        return len(document["generations"])
    if name == "mixed":
        return int(document["mixed"])
    count = requests[{"http-errors": "httpErrors", "held-back": "heldBack"}.get(name, name)]
    return sum(count.values()) if isinstance(count, dict) else int(count)


@dataclass(frozen=True, slots=True)
class FailCondition:
    """A condition of --fail-if."""

    text: str
    name: str
    comparison: str
    bound: float  # microseconds for a latency
    unit: str

    @property
    def percentile(self) -> float | None:
        """The condition's percentile, if any."""
        return float(self.name[1:]) if _PERCENTILE.fullmatch(self.name) else None

    def judge(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the condition's value, and whether it holds for ``document``. A failed request has no latency, and
        counts as slower than any bound. So if no request was answered, every condition on a latency holds."""
        value = self._measure(document)
        if value is None:
            holds = self.comparison in (">", ">=") or not document["requests"]["answered"]
        else:
            holds = _OPERATORS[self.comparison](value, self.bound)
        return {"condition": self.text, "value": value, "holds": holds}

    def describe(self, document: Mapping[str, Any], value: float | None) -> str:
        """Return ``value`` with its unit."""
        if value is None:
            requests = format_count(document["requests"]["scheduled"], "request")
            return f"there is no such latency: {document['requests']['answered']:,} of {requests} were answered"
        if self.unit in _MICROSECONDS:
            return f"it is {format_microseconds(value)}"
        return f"it is {value:g} %" if self.unit == "%" else f"it is {value:,.6g}"

    def _measure(self, document: Mapping[str, Any]) -> float | None:
        """Return the value; None for a latency if a failed request has its rank. mean and max are None if any request
        failed."""
        requests = document["requests"]
        if self.unit in _MICROSECONDS:
            answered, latency = requests["answered"], document["latency"]
            count = answered + count_requests(document, "errors")
            rank = count if self.percentile is None else find_rank(self.percentile, count)
            if rank > answered or not answered:
                return None
            value = latency[self.name] if self.percentile is None else latency["percentiles"][self.name[1:]]
            return None if value is None else float(value)
        if self.name == "rate":
            return float(document["rate"]["answered"])
        count = count_requests(document, self.name)
        if self.unit != "%":
            return float(count)
        whole = document["keys"]["asked"] if self.name in _OF_KEYS else requests["scheduled"]
        return round(100 * count / whole, 6) if whole else 0.0


def parse_condition(text: str) -> FailCondition:
    """Parse a condition of --fail-if. Raises UsageError."""
    match = _CONDITION.fullmatch(text)
    name, comparison, digits, unit = match.groups() if match else ("", "", "", "")
    if is_percentile := bool(_PERCENTILE.fullmatch(name)):
        name = f"p{float(name[1:]):g}"
    if is_percentile or name in ("mean", "max"):
        fits = unit in _MICROSECONDS
    else:
        fits = unit == "" if name == "rate" else name in COUNTS and unit in ("", "%")
    if not fits:
        raise UsageError(f"--fail-if {text!r} is not a condition", hint=_HINT)
    return FailCondition(text.strip(), name, comparison, float(digits) * _MICROSECONDS.get(unit, 1.0), unit)


def list_exceeded(conditions: Sequence[FailCondition], document: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each of ``conditions`` that holds for ``document``."""
    return [
        f"--fail-if '{condition.text}' holds: {condition.describe(document, judged['value'])}"
        for condition, judged in zip(conditions, document["failIf"], strict=True)
        if judged["holds"]
    ]


def render_summary(document: Mapping[str, Any]) -> str:
    """Return a result as text. Raises LookupdbError if another version wrote ``document``."""
    check_version(document)
    target = document["target"]
    head = f"{target['namespace']}/{target['name']} at {target['url']}, {document['seconds']:.1f} s measured"
    return "\n".join([clean(head), *(f"{name:<10} {text}" for name, text in list_rows(document))])


def list_rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of a result's summary: a name or a count, and a text."""
    rate, requests, keys, latency = (document[name] for name in ("rate", "requests", "keys", "latency"))
    figures = [(f"p{name}", value) for name, value in latency["percentiles"].items()] + [("max", latency["max"])]
    sizes = f"{format_count(requests['scheduled'], 'request')} of {format_count(document['plan']['batch'], 'key')}"
    outcomes = list_failures(requests, requests["timeouts"], requests["unsent"])
    rows = [
        ("rate", f"{format_rate(rate['answered'])} answered of {format_rate(rate['scheduled'])} scheduled ({sizes})"),
        ("latency", "  ".join(f"{name} {format_microseconds(value)}" for name, value in figures)),
        (f"{requests['answered']:>10,}", "answered"),
        *((f"{count:>10,}", name) for name, count in outcomes),
        ("keys", f"{keys['found']:,} found, {keys['missing']:,} missing, {keys['unavailable']:,} unavailable"),
    ]
    for span in document["generations"]:
        seconds = f"from {span['firstSeconds']:.1f} s to {span['lastSeconds']:.1f} s"
        rows.append(("generation", f"{span['name']}: {format_count(span['answers'], 'answer')}, {seconds}"))
    rows += [("note", remark) for remark in _list_remarks(document)]
    for judged in document["failIf"]:
        rows.append(("fail-if", f"{judged['condition']}: {'holds' if judged['holds'] else 'does not hold'}"))
    return [(name, clean(text)) for name, text in rows]


def render_progress(recording: Recording, seconds: float, duration: float) -> str:
    """Return a line of progress, with the last point's rates and latencies."""
    none: dict[str, Any] = {"seconds": 1, "scheduled": 0, "answered": 0, "p50": None, "p99": None}
    last, total = recording.points[-1] if recording.points else none, recording.total
    answered, scheduled = (format_rate(last[name] / last["seconds"]) for name in ("answered", "scheduled"))
    failures = list_failures(total.failures, total.timeouts, total.unsent)[:6]
    parts = [
        f"warming up, {-seconds:.0f} s left" if seconds < 0 else f"{min(seconds, duration):.0f} of {duration:g} s",
        f": {answered} answered of {scheduled}",
        f", p50 {format_microseconds(last['p50'])}, p99 {format_microseconds(last['p99'])}",
        *(f", {count:,} {name}" for name, count in failures),
    ]
    return clean("".join(parts))


def list_failures(failures: Mapping[str, Any], timeouts: int, unsent: int) -> list[tuple[str, int]]:
    """Return the kinds of failed requests, and their counts. ``failures`` has the labels of each kind."""
    rows = [(f"{name}: {label}", count) for kind, name in LABELS.items() for label, count in failures[kind].items()]
    return [row for row in (*rows, ("timeout", timeouts), ("not sent", unsent)) if row[1]]


def _list_remarks(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a reader must know to interpret the figures."""
    senders, requests, keys, plan = (document[name] for name in ("senders", "requests", "keys", "plan"))
    if not requests["scheduled"]:
        yield "nothing was measured"
    if failures := count_requests(document, "errors"):
        yield (
            f"{failures:,} of {format_count(requests['scheduled'], 'request')} were not answered. Timeouts and"
            f" unsent requests count with the timeout, other failures as slower than any answer. "
            f"{NO_LATENCY} means that too few were answered"
        )
    if (lag := senders["lag"]["percentiles"]["99"] or 0) > NOTICEABLE_MICROSECONDS:
        yield (
            f"this machine itself sent 1 of 100 requests at least {format_microseconds(lag)} late, and latencies"
            " include that; give more --processes, or a quieter machine"
        )
    if senders["busy"] > BUSY_SHARE:
        share = f"{senders['busy']:.0%}"
        yield f"senders were busy {share} of the time, and latencies include waiting for them; give more --processes"
    if requests["heldBack"]:
        waited = format_count(requests["heldBack"], "request")
        yield (
            f"{waited} had to wait because {plan['maxInFlight']:,} were in flight (--max-in-flight); their latencies"
            " include the wait"
        )
    if keys["missing"] and keys["missing"] == keys["asked"] and plan["hitRatio"]:
        dataset = f"{document['target']['namespace']}/{document['target']['name']}"
        yield f"all keys are missing: check that {plan['keySource']} has keys of {dataset}"
    if document["mixed"]:
        yield f"{format_count(document['mixed'], 'answer')} came from several generations"
    if document["isInterrupted"]:
        yield "it was interrupted"
