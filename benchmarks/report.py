"""The report: ratios first, then their parts. Pure: results in, Markdown out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from benchmarks.results import OURS, PYTHON, PYTHON_UNCOMPRESSED, UNCOMPRESSED, Result, Side
from benchmarks.settings import Settings
from benchmarks.targets import LIMITS, MB, PROFILED, Verdict, show

_HOW: Final = """\
Written by `make bench`; [benchmarks/README.md](../benchmarks/README.md) says what is measured and how. The sides of a
row took turns in one run ({rounds} rounds of {seconds:g} s), on one core each, with the load generator on the other.
Ratios are of medians; brackets have the least and the greatest ratio of one round. *lookupdb* uses native kernels and
compressed values, unless a column says otherwise. *CPU µs a key* is the server's user and system time; other load on
the machine changes it less than rates. *Busy* is the part of a core that a process used. A server near 100 % was the
limit. The load generator and what is behind the server share a core: if their sum is near 100 %, they were the limit.
If neither is, something else used the machine. The data are {rows:,} recommendations (ten product ids a customer, all
UUIDs). Lookups ask for {sample:,} random ones.
Over RESP, every answer is compared with the expected bytes.

[Measurements](measurements.md) has what takes a cluster, an hour, or a separate command."""

_RATIOS: Final = (
    "Ours divided by theirs. Less is better for builds, memory and disk, more for everything else. *CPU a key* is "
    "lookupdb's CPU time for a key divided by theirs; less is better."
)
_OURS: Final = (OURS, UNCOMPRESSED, PYTHON, PYTHON_UNCOMPRESSED)


def markdown(
    results: Mapping[str, Result],
    verdicts: Sequence[Verdict],
    *,
    settings: Settings,
    date: str,
    command: str,
    seconds: float,
    machine: Mapping[str, str],
    versions: Mapping[str, str],
) -> str:
    """Return docs/benchmarks.md."""
    how = _HOW.format(rounds=settings.rounds, seconds=settings.seconds, rows=settings.rows, sample=settings.sample)
    parts = [
        "# Benchmarks",
        how,
        _table(("", ""), [("Date", date), ("Command", f"`{command}` ({seconds / 60:.1f} minutes)"), *machine.items()]),
        "## What must be reached",
        must_reach(verdicts),
        *_shortfalls(verdicts),
        "## Ratios",
        _RATIOS,
        ratios(results.values()),
        "## Figures",
        *[
            part
            for result in results.values()
            for part in (f"### {result.title}", figures(result), result.note)
            if part
        ],
        "## Versions",
        ", ".join(f"{program} {version}" for program, version in versions.items()) + ".",
    ]
    return "\n\n".join(parts) + "\n"


def must_reach(verdicts: Sequence[Verdict]) -> str:
    """The table of targets."""
    rows = [
        (v.target.what, v.target.bound, "" if v.value is None else f"{show(v.value)}{v.target.unit}", _mark(v))
        for v in verdicts
    ]
    return _table(("what", "must be", "is", ""), rows)


def ratios(results: Iterable[Result]) -> str:
    """Return our ratios to each baseline: a line for each comparison, a column for each of our sides."""
    rows = []
    for result in results:
        for baseline in result.baselines:
            cells = [_ratio(result, n, baseline) if n in result.sides and n != baseline else "" for n in _OURS]
            if any(cells):
                cpu = _cpu_ratio(result, baseline) if OURS in result.sides else ""
                rows.append((result.title, baseline, *cells, cpu))
    return _table(("what", "to", *_OURS, "CPU a key"), rows)


def _ratio(result: Result, side: str, baseline: str) -> str:
    ratio = result.ratio(side, baseline)
    spread = f" ({_number(ratio.least)}-{_number(ratio.greatest)})" if ratio.least < ratio.greatest else ""
    return f"**{_number(ratio.value)}**{spread}"


def _cpu_ratio(result: Result, baseline: str) -> str:
    ratio = result.cpu_ratio(OURS, baseline)
    return "" if ratio is None else f"**{_number(ratio)}**"


def _is_load(result: Result) -> bool:
    return any(side.samples for side in result.sides.values())


def figures(result: Result) -> str:
    """Return one result's sides in full."""
    if not _is_load(result):
        return _table(("", result.unit), [(name, _amount(s, result.unit)) for name, s in result.sides.items()])
    header = ("", result.unit, "rounds", "CPU µs a key", "server busy", "behind it", "load busy", "p50, ms", "p99, ms")
    return _table(header, [(name, *_load(side)) for name, side in result.sides.items()])


def _load(side: Side) -> tuple[str, ...]:
    rounds = f"{min(side.values):,.0f}-{max(side.values):,.0f}"
    busy = [f"{side.typical(name) or 0:.0%}" for name in ("server_busy", "behind_busy", "load_busy")]
    latency = [f"{(side.typical(name) or 0) / 1000:.2f}" for name in ("p50_us", "p99_us")]
    return (f"{side.value:,.0f}", rounds, f"{median(side.cpu_us):.2f}", *busy, *latency)


def _amount(side: Side, unit: str) -> str:
    if unit == "bytes":
        return f"{side.value / MB:,.1f} MB"
    digits = 0 if side.value >= 100 else 1 if side.value >= 0.1 else 4
    rounds = f" ({min(side.values):,.{digits}f}-{max(side.values):,.{digits}f})" if len(side.values) > 1 else ""
    return f"{side.value:,.{digits}f}{rounds}"


def _mark(verdict: Verdict) -> str:
    return {"reached": "✓", "short": "✗ short", "not measured": "not measured"}[verdict.word]


def _shortfalls(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the limits of the targets that were not reached, grouped by limit."""
    limited: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.word == "short":
            what = verdict.target.what
            limited.setdefault(LIMITS.get(what, "not yet profiled."), []).append(f"**{what}**")
    lines = [f"- {', '.join(names)}: {limit}" for limit, names in limited.items()]
    return [PROFILED, "\n".join(lines)] if lines else []


def _number(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
