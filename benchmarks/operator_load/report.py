"""The section of docs/measurements.md on the operator's cost."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from typing import Final

from benchmarks import machine

_TITLE: Final = "## The operator\n"
_RESYNCS_AN_HOUR: Final = 12


@dataclass(frozen=True, slots=True)
class Size:
    """A cluster."""

    datasets: int
    shards: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Phase:
    """The operator's cost of one phase."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    """Peak resident memory since the operator's start."""
    objects: int
    """The API server's objects at its end."""
    resyncs: float = 0.0


_TEXT: Final = """\
On {date} at commit {commit}, by `{command}`: {cpu}, {cores} cores, {memory}, {system}, Python {python}, kopf {kopf};
load average {load} when it began and {load_after} when it ended{verdict}. The operator is the real one; API server,
controllers, kubelets and routers are simulated over HTTP in another process
([benchmarks/README.md](../benchmarks/README.md)). Every dataset has {shards} shards of {replicas} servers. Times are
CPU seconds.

{table}

A start ends when every dataset has been reconciled and nothing is left to do; it writes nothing. A refresh covers all
datasets, fifty at a time: build, rollout, cutover and the end of the old rollout. A check of all is asked for by their
schedules, within a minute, and finds nothing new. An hour at rest is computed:
{resyncs} resyncs, whose CPU time was measured at short intervals. Memory is the operator's peak resident memory.
An empty cell was not measured.
"""


def section(measured: Mapping[Size, Mapping[str, Phase]], command: str) -> str:
    """Return the section, with its heading."""
    about, size = machine.describe(), next(iter(measured))
    text = _TEXT.format(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        commit=about["Commit"],
        command=command,
        cpu=about["CPU"],
        cores=about["Cores"],
        memory=about["Memory"],
        system=about["System"],
        python=machine.versions()["Python"],
        kopf=metadata.version("kopf"),
        load=about["Load average at the start"],
        load_after=f"{os.getloadavg()[0]:.2f}",
        verdict="" if machine.is_quiet() else ", with other work, so these are upper bounds",
        shards=size.shards,
        replicas=size.replicas,
        table="\n".join(_table(measured)),
        resyncs=_RESYNCS_AN_HOUR,
    )
    return f"{_TITLE}\n{text}"


def merged(report: str, written: str) -> str:
    """Return ``report`` with its section replaced by ``written``, or with that appended."""
    start = report.find(_TITLE)
    if start < 0:
        return f"{report.rstrip()}\n\n{written}"
    end = report.find("\n## ", start + 1)
    return report[:start] + written + (report[end:] if end >= 0 else "")


def _table(measured: Mapping[Size, Mapping[str, Phase]]) -> Sequence[str]:
    head = (
        "datasets",
        "objects",
        "first installation",
        "start",
        "a dataset",
        "refresh of all",
        "check of all",
        "an hour at rest",
        "most memory",
    )
    rows = [head, ("---",) * len(head), *(_row(size, phases) for size, phases in measured.items())]
    return [f"| {' | '.join(row)} |" for row in rows]


def _row(size: Size, phases: Mapping[str, Phase]) -> tuple[str, ...]:
    def cpu(name: str) -> str:
        return f"{phases[name].cpu_seconds:.1f}" if name in phases else ""

    start = phases["start"]
    resync = phases.get("resyncs")
    rest = f"{resync.cpu_seconds / resync.resyncs * _RESYNCS_AN_HOUR:.0f}" if resync and resync.resyncs else ""
    return (
        str(size.datasets),
        f"{start.objects:,}",
        cpu("install"),
        f"{cpu('start')} in {start.wall_seconds:.0f} s",
        f"{start.cpu_seconds / size.datasets * 1000:.0f} ms",
        cpu("refresh"),
        cpu("checks"),
        rest,
        f"{max(phase.peak_bytes for phase in phases.values()) / 2**20:.0f} MiB",
    )
