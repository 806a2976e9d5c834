"""The report: ratios first, then their parts. Pure: results in, Markdown out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from benchmarks.results import OURS, PYTHON, PYTHON_UNCOMPRESSED, UNCOMPRESSED, Result, Side
from benchmarks.settings import Settings
from benchmarks.targets import LIMITS, MB, PROFILED, Verdict, show

_HOW: Final = """\
Written by `make bench`; [benchmarks/README.md](../benchmarks/README.md) says what is measured and how. Every ratio is
of one run: sides took turns, round by round ({rounds} rounds of {seconds:g} s), on one core each, with the load
generator on the other; ratios are of medians, and in brackets stand the least and the greatest of one round. *lookupdb*
has native kernels and compressed values where nothing else is said. *CPU µs a key* is the server's user and system
time, which a shared machine changes less than rates. *Busy* is the part of a core that a process used. Where a server's
is near 100 %, the server was the limit; where that of the load generator and of what stands behind the server (they
share a core) together is, they were; where neither is, somebody else used the machine. The data are {rows:,}
recommendations (ten product ids a customer, all UUIDs), of which {sample:,} random ones are asked for.

What takes a cluster, an hour, or a separate command is in [measurements.md](measurements.md)."""

_BETTER: Final = {"requests/s": "more", "keys/s": "more", "records/s": "more", "s": "less", "bytes": "less"}
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
        "Of rates, times and sizes, ours to theirs:",
        ratios(results.values()),
        "Of the processor time that the server takes for a key, ours to theirs; less is better:",
        cpu_ratios(results.values()),
        "## Figures",
        *[
            part
            for result in results.values()
            for part in (f"### {result.title}", figures(result), result.note)
            if part
        ],
        "## Versions",
        _table(("program", "version"), list(versions.items())),
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
    """Return our ratio to each baseline: a line for each comparison, a column for each of our sides."""
    return _compared(results, _ratio, lambda result: (_BETTER[result.unit],), ("better is",))


def cpu_ratios(results: Iterable[Result]) -> str:
    """Return the same of processor time, for results of load."""
    return _compared((result for result in results if _is_load(result)), _cpu_ratio)


def _compared(
    results: Iterable[Result],
    cell: Callable[[Result, str, str], str],
    last: Callable[[Result], tuple[str, ...]] = lambda _: (),
    header: tuple[str, ...] = (),
) -> str:
    rows = []
    for result in results:
        for baseline in result.baselines:
            cells = [cell(result, n, baseline) if n in result.sides and n != baseline else "" for n in _OURS]
            rows.append((result.title, baseline, *cells, *last(result)))
    return _table(("what", "to", *_OURS, *header), rows)


def _ratio(result: Result, side: str, baseline: str) -> str:
    ratio = result.ratio(side, baseline)
    spread = f" ({_number(ratio.least)} to {_number(ratio.greatest)})" if ratio.least < ratio.greatest else ""
    return f"**{_number(ratio.value)}**{spread}"


def _cpu_ratio(result: Result, side: str, baseline: str) -> str:
    ratio = result.cpu_ratio(side, baseline)
    return "" if ratio is None else f"**{_number(ratio)}**"


def _is_load(result: Result) -> bool:
    return any(side.samples for side in result.sides.values())


def figures(result: Result) -> str:
    """Return one result's sides in full."""
    if not _is_load(result):
        return _table(("", result.unit), [(name, _amount(s, result.unit)) for name, s in result.sides.items()])
    header = ("", result.unit, "rounds", "CPU µs a key", "server busy", "behind it", "load busy", "p50", "p99")
    return _table(header, [(name, *_load(side)) for name, side in result.sides.items()])


def _load(side: Side) -> tuple[str, ...]:
    rounds = f"{min(side.values):,.0f} to {max(side.values):,.0f}"
    busy = [f"{side.typical(name) or 0:.0%}" for name in ("server_busy", "behind_busy", "load_busy")]
    latency = [f"{(side.typical(name) or 0) / 1000:.2f} ms" for name in ("p50_us", "p99_us")]
    cpu = f"{median(side.cpu_us):.2f} ({min(side.cpu_us):.2f} to {max(side.cpu_us):.2f})"
    return (f"{side.value:,.0f}", rounds, cpu, *busy, *latency)


def _amount(side: Side, unit: str) -> str:
    if unit == "bytes":
        return f"{side.value / MB:,.1f} MB"
    digits = 0 if unit == "records/s" else 1 if side.value >= 0.1 else 4
    rounds = ", ".join(f"{value:,.{digits}f}" for value in side.values)
    return f"{side.value:,.{digits}f}" + (f" ({rounds})" if len(side.values) > 1 else "")


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
