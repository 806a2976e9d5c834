"""Make HTML pages of facts and figures. Everything is escaped, and a template that uses an unknown name fails."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lookupdb import keys
from lookupdb_operator import names
from lookupdb_operator.console.dataset import Dataset, DatasetPods, FoundKey
from lookupdb_operator.console.facts import FleetRow, ShardFacts, describe_row, format_age, format_bytes, format_seconds
from lookupdb_operator.console.figures import DatasetRates, interpolate_quantile
from lookupdb_operator.console.watch import Point, Watch
from lookupdb_operator.model import Pod

FOLDER: Final = Path(__file__).parent
ROWS: Final = 100
"""Datasets on a page."""
UNKNOWN: Final = "–"
MAX_SHOWN_CHARACTERS: Final = 65_536
"""Maximum number of characters of a value that a page shows."""


def format_number(value: float | None) -> str:
    """Return a number with groups of three digits; with a decimal if it is small."""
    if value is None or math.isnan(value):
        return UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def format_latency(seconds: float | None) -> str:
    """Return a duration in the unit that suits it: 85 µs, 1.2 ms, 1.5 s."""
    if seconds is None or math.isnan(seconds):
        return UNKNOWN
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


_WORD: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')


def indent_json(text: str) -> str:
    """Return JSON ``text`` on several lines. Its strings and numbers stay as they are."""
    parts: list[str] = []
    depth, before = 0, ""
    for word in _WORD.findall(text):
        opens, closes, is_first = word in ("[", "{"), word in ("]", "}"), before in ("[", "{")
        depth -= closes
        if before == "," or (is_first != closes and (is_first or closes)):
            parts.append("\n" + "  " * depth)
        parts.append(": " if word == ":" else word)
        depth += opens
        before = word
    return "".join(parts)


def make_environment() -> Environment:
    """Return the templates."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "number": format_number,
        "latency": format_latency,
        "size": lambda value: UNKNOWN if value is None else format_bytes(value),
        "duration": format_seconds,
        "age": format_age,
    }
    environment.globals["parts"] = environment.get_template("parts.html").module
    return environment


# The list of all datasets.


@dataclass(frozen=True, slots=True)
class FleetEntry:
    """A dataset in the list, with its figures."""

    row: FleetRow
    rates: DatasetRates


_LEVELS: Final = ("bad", "warning", "unknown", "good")
SORTS: Final[Mapping[str, Any]] = {
    "health": lambda entry: (_LEVELS.index(entry.row.level), entry.row.namespace, entry.row.name),
    "name": lambda entry: (entry.row.namespace, entry.row.name),
    "age": lambda entry: entry.row.built_at or "9",
    "records": lambda entry: -(entry.row.records or 0),
    "lookups": lambda entry: -(entry.rates.lookups or 0.0),
    "p99": lambda entry: -(entry.rates.p99 or 0.0),
    "memory": lambda entry: -(entry.rates.private_bytes or 0.0),
}
"""Orders of the list: worst, oldest or largest first, or by name."""


@dataclass(frozen=True, slots=True)
class FleetPage:
    """One page of the list."""

    entries: tuple[FleetEntry, ...]
    query: str
    sort: str
    page: int
    pages: int
    found: int
    counts: Mapping[str, int]
    """The number of all datasets at each level."""
    lookups: float | None

    def links(self, **changed: Any) -> str:
        """Return the query of this page with some members changed."""
        members = {"q": self.query, "sort": self.sort, "page": self.page} | changed
        defaults = {"q": "", "sort": "health", "page": 1}
        return urlencode({name: value for name, value in members.items() if value != defaults[name]})


def describe_fleet(views: Sequence[DatasetPods], watch: Watch, query: Mapping[str, str]) -> FleetPage:
    """Return the page of the list that ``query`` asks for."""
    rows = [describe_row(view.dataset) for view in views]
    entries = [FleetEntry(row, watch.rates(row.namespace, row.name)) for row in rows]
    counts = {level: sum(row.level == level for row in rows) for level in _LEVELS}
    known = [entry.rates.lookups for entry in entries if entry.rates.lookups is not None]
    wanted = query.get("q", "").strip()[:200]
    found = [entry for entry in entries if wanted.lower() in f"{entry.row.namespace}/{entry.row.name}".lower()]
    sort = query.get("sort", "health")
    sort = sort if sort in SORTS else "health"
    found.sort(key=SORTS[sort])
    pages = max(1, math.ceil(len(found) / ROWS))
    asked = query.get("page", "1")
    page = min(int(asked), pages) if re.fullmatch("[1-9][0-9]{0,4}", asked) else 1
    shown = tuple(found[(page - 1) * ROWS : page * ROWS])
    return FleetPage(shown, wanted, sort, page, pages, len(found), counts, sum(known) if known else None)


# The servers and charts of one dataset.


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A shard server with its figures."""

    pod: Pod
    state: str
    lookups: float | None
    p99: float | None
    private_bytes: float | None
    cached: str


def list_servers(shards: Sequence[ShardFacts], watch: Watch) -> Iterator[ServerEntry]:
    """Yield the servers of ``shards`` with their figures."""
    for shard in shards:
        for pod in shard.pods:
            rates, reading = watch.find_scrape(pod)
            share = reading.cached_bytes / reading.file_bytes if reading and reading.file_bytes else None
            yield ServerEntry(
                pod=pod,
                state="ready" if pod.ready else (pod.trouble.reason if pod.trouble else "not ready"),
                lookups=rates.lookups if rates else None,
                p99=interpolate_quantile(rates.buckets, 0.99) if rates else None,
                private_bytes=reading.private_bytes if reading else None,
                cached=UNKNOWN if share is None else f"{share:.0%}",
            )


def draw_charts(points: Sequence[Point]) -> tuple[Chart, ...]:
    """Return the charts of a dataset's history."""
    times = [point.at for point in points]
    rate = [("lookups", [point.lookups for point in points])]
    latency = [("p99", [point.p99 for point in points]), ("p50", [point.p50 for point in points])]
    return (
        draw("Lookups a second", times, rate, format_number),
        draw("Latency at the routers", times, latency, format_latency),
    )


def find_shard(dataset: Dataset, found: FoundKey) -> int | None:
    """Return the shard of a key that was found; None if the status does not know its generation."""
    for stored in dataset.status.get("generations") or ():
        if stored.get("generation") == found.generation:
            try:
                return keys.shard_number(keys.make_key_encoder(stored["normalize"])(found.key), int(stored["shards"]))
            except (keys.InvalidKey, KeyError, ValueError):
                return None
    return None


def show_value(value: bytes, *, is_json: bool) -> tuple[str, bool]:
    """Return the beginning of a value as text, and whether that is all."""
    text = value[: 4 * MAX_SHOWN_CHARACTERS].decode(errors="backslashreplace")
    is_whole = len(value) <= 4 * MAX_SHOWN_CHARACTERS
    text = indent_json(text) if is_json and is_whole else text
    return text[:MAX_SHOWN_CHARACTERS], is_whole and len(text) <= MAX_SHOWN_CHARACTERS


def list_generations(dataset: Dataset) -> list[str]:
    """Return the generations that can be compared, newest first."""
    held = {str(found["generation"]) for found in dataset.status.get("generations") or ()}
    return sorted(held, key=names.read_number, reverse=True)


def list_served(dataset: Dataset) -> list[str]:
    """Return the generations that routers answer from, the active one first."""
    active = str(dataset.status.get("generation") or "")
    return list(filter(None, (active, dataset.candidate)))


# Make SVG paths of points, for line charts that a template draws. Texts are HTML beside the SVG, so that the picture
# may be stretched to any width.


WIDTH: Final = 600
HEIGHT: Final = 120
_SHORTEST_SECONDS: Final = 60.0
"""The least time from the left to the right edge."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart, with the text of its last value."""

    name: str
    path: str
    last: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its lines. ``top`` and ``middle`` label the grid."""

    title: str
    lines: tuple[Line, ...]
    top: str
    middle: str
    seconds: float
    summary: str
    """A text for readers who cannot see it."""


Series = tuple[str, Sequence[float]]
"""A name and one value for each moment; nan is unknown."""


def draw(title: str, times: Sequence[float], series: Sequence[Series], show: Callable[[float], str]) -> Chart:
    """Return the chart of ``series``. ``show`` formats a value."""
    known = [value for _, values in series for value in values if not math.isnan(value)]
    highest, top = max(known, default=0.0), 1.0
    if highest > 0:  # the next round number is the upper edge
        size = 10.0 ** math.floor(math.log10(highest))
        top = next(step * size for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * size >= highest * 0.999)
    span = max(times[-1] - times[0], _SHORTEST_SECONDS) if times else _SHORTEST_SECONDS
    lines = tuple(
        Line(
            name,
            path=" ".join(_draw_path(times, values, span, top)),
            last=UNKNOWN if not values or math.isnan(values[-1]) else show(values[-1]),
        )
        for name, values in series
    )
    now = ", ".join(f"{line.name} {line.last}" for line in lines)
    summary = f"{title}: now {now}; highest {show(highest)}" if known else f"{title}: no figures yet"
    return Chart(title, lines, show(top), show(top / 2), span, summary)


def _draw_path(times: Sequence[float], values: Sequence[float], span: float, top: float) -> Iterator[str]:
    """Yield the commands of an SVG path, which has gaps where values are unknown."""
    pen = "M"
    for at, value in zip(times, values, strict=True):
        if math.isnan(value):
            pen = "M"
            continue
        x, y = WIDTH - (times[-1] - at) / span * WIDTH, HEIGHT - min(value / top, 1.0) * (HEIGHT - 4) - 1
        yield f"{pen}{x:.1f} {y:.1f}"
        pen = "L"
