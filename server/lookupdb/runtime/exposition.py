"""The Prometheus text format of counters, gauges, histograms and labels: all that a server tells, read at scrape time.

prometheus-client would bring an HTTP server, its registry and its sampling into the memory of every pod. A test
compares this with what it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Final, Literal, Protocol

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_ESCAPED_IN_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric with the value of each set of labels; a metric without labels has one value, of the empty set."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]
    suffixes: Sequence[str] = ()
    """Of the name, for each sample; empty where all have the name itself."""


class Collector(Protocol):
    """What reads figures when they are asked for."""

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the families as they are now."""
        ...


def counter(name: str, help_text: str, value: float) -> MetricFamily:
    """The counter ``name``, which gets the ending that counters have."""
    return labelled_counter(name, help_text, [({}, value)])


def labelled_counter(name: str, help_text: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> MetricFamily:
    """The same with labels."""
    return MetricFamily(f"{name}_total", "counter", help_text, samples)


def gauge(name: str, help_text: str, value: float) -> MetricFamily:
    """A number that rises and falls."""
    return labelled_gauge(name, help_text, [({}, value)])


def labelled_gauge(name: str, help_text: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> MetricFamily:
    """The same with labels."""
    return MetricFamily(name, "gauge", help_text, samples)


def histogram(name: str, help_text: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> MetricFamily:
    """How often something fell into each bucket, of which there is one more than ``bounds``; ``total`` is the sum of
    what was observed."""
    labels = [{"le": repr(float(bound))} for bound in bounds] + [{"le": "+Inf"}]
    at_most = list(accumulate(counts))
    samples: list[tuple[Mapping[str, str], float]] = list(zip(labels, at_most, strict=True))
    suffixes = [*("_bucket" for _ in labels), "_count", "_sum"]
    return MetricFamily(name, "histogram", help_text, [*samples, ({}, at_most[-1]), ({}, total)], suffixes)


def info(name: str, help_text: str, labels: Mapping[str, str]) -> MetricFamily:
    """What is told by labels: a gauge that is always 1, with the ending that those have."""
    return MetricFamily(f"{name}_info", "gauge", help_text, [(labels, 1)])


def render_metrics(collectors: Iterable[Collector]) -> bytes:
    """What the scrape is answered."""
    families = (family for collector in collectors for family in collector.collect())
    return "".join(line for family in families for line in _lines(family)).encode()


def _lines(family: MetricFamily) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help.translate(_ESCAPED_IN_HELP)}\n"
    yield f"# TYPE {family.name} {family.kind}\n"
    for (labels, value), suffix in zip(family.samples, family.suffixes or repeat(""), strict=False):
        pairs = ",".join(f'{name}="{text.translate(_ESCAPED)}"' for name, text in labels.items())
        yield f"{family.name}{suffix}{pairs and f'{{{pairs}}}'} {float(value)!r}\n"
