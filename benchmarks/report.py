"""The report: ratios first, then what they are made of. Pure: results in, Markdown out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from benchmarks.results import Result, Side
from benchmarks.settings import Settings
from benchmarks.targets import LIMITS, MB, PROFILED, Verdict

_HOW: Final = """\
Written by `make bench`; [benchmarks/README.md](../benchmarks/README.md) says what is measured and how. Every ratio is
of one run: sides took turns, round by round ({rounds} rounds of {seconds:g} s), on one core each, with the load
generator on the other; ratios are of medians, and in brackets stand the least and the greatest of one round. *Busy* is
the part of a core that a process used. Where a server's is near 100 %, the server was the limit; where that of the load
generator and of what stands behind the server (they share a core) together is, they were; where neither is, somebody
else used the machine. The data are {rows:,} recommendations (ten product ids a customer, all UUIDs), of which
{sample:,} random ones are asked for."""

_BETTER: Final = {"requests/s": "more", "keys/s": "more", "s": "less", "bytes": "less"}


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
    """The whole of docs/benchmarks.md."""
    how = _HOW.format(rounds=settings.rounds, seconds=settings.seconds, rows=settings.rows, sample=settings.sample)
    parts = [
        "# Benchmarks",
        how,
        _table(("", ""), [("Date", date), ("Command", f"`{command}` ({seconds / 60:.1f} minutes)"), *machine.items()]),
        "## What must be reached",
        must_reach(verdicts),
        *_shortfalls(verdicts),
        "## Ratios",
        ratios(results.values()),
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


def apart(text: str) -> str:
    """What of an earlier report was measured by other commands, and stands in every later one as it is."""
    start = text.find("\n## Measured apart\n")
    return text[start:] if start >= 0 else ""


def must_reach(verdicts: Sequence[Verdict]) -> str:
    """The table of targets."""
    rows = [
        (v.target.what, v.target.bound, "" if v.value is None else f"{v.value:.3g}{v.target.unit}", _mark(v))
        for v in verdicts
    ]
    return _table(("what", "must be", "is", ""), rows)


def ratios(results: Iterable[Result]) -> str:
    """Ours to each baseline, every result."""
    rows = []
    for result in results:
        ours = [name for name in result.sides if name.startswith("lookupdb")]
        for name in ours:
            for baseline in result.baselines:
                ratio = result.ratio(name, baseline)
                value = f"**{_number(ratio.value)}**"
                spread = (
                    f" ({_number(ratio.least)} to {_number(ratio.greatest)})" if ratio.least < ratio.greatest else ""
                )
                rows.append((result.title, name, baseline, value + spread, _BETTER[result.unit]))
    return _table(("what", "ours", "to", "ratio", "better is"), rows)


def figures(result: Result) -> str:
    """One result's sides, in full."""
    if not any(side.samples for side in result.sides.values()):
        return _table(("", result.unit), [(name, _amount(s, result.unit)) for name, s in result.sides.items()])
    header = ("", result.unit, "rounds", "server busy", "behind it", "load busy", "p50", "p99")
    return _table(header, [(name, *_load(side)) for name, side in result.sides.items()])


def _load(side: Side) -> tuple[str, ...]:
    rounds = f"{min(side.values):,.0f} to {max(side.values):,.0f}"
    busy = [f"{side.typical(name) or 0:.0%}" for name in ("server_busy", "behind_busy", "load_busy")]
    latency = [f"{(side.typical(name) or 0) / 1000:.2f} ms" for name in ("p50_us", "p99_us")]
    return (f"{side.value:,.0f}", rounds, *busy, *latency)


def _amount(side: Side, unit: str) -> str:
    if unit == "bytes":
        return f"{side.value / MB:,.1f} MB"
    return f"{side.value:,.1f}" + (f" ({', '.join(f'{v:,.1f}' for v in side.values)})" if len(side.values) > 1 else "")


def _mark(verdict: Verdict) -> str:
    return {"reached": "✓", "short": "✗ short", "not measured": "not measured"}[verdict.word]


def _shortfalls(verdicts: Sequence[Verdict]) -> list[str]:
    """What limits the targets that were not reached; those that the same thing limits stand together."""
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
