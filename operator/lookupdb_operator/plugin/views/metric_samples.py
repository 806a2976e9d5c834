"""The metrics of one admin port at one moment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class MetricSample:
    """By name: the values, each with its labels."""

    values: Mapping[str, tuple[tuple[Mapping[str, str], float], ...]]

    @classmethod
    def parse(cls, text: str) -> Self:
        """The sample that ``text``, in the Prometheus text format, holds; an empty one for any other text."""
        values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    values.setdefault(sample.name, []).append((sample.labels, sample.value))
        except ValueError:
            return cls({})
        return cls({name: tuple(samples) for name, samples in values.items()})

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over all values of ``name`` with these labels; None when there is none."""
        found = [value for found_labels, value in self.values.get(name, ()) if labels.items() <= found_labels.items()]
        return sum(found) if found else None


def bound_quantile(before: MetricSample, after: MetricSample, name: str, share: float) -> float | None:
    """The least bound of the histogram ``name`` that ``share`` of what was observed meanwhile does not exceed: infinite
    beyond the last bound, None when nothing was observed, or nothing is known."""
    grown = {
        float(labels["le"]): value - (before.total(f"{name}_bucket", le=labels["le"]) or 0)
        for labels, value in after.values.get(f"{name}_bucket", ())
    }
    count = grown.get(math.inf, 0)
    if count <= 0 or min(grown.values()) < 0:
        return None
    return min(bound for bound, value in grown.items() if value >= share * count)


def rate(before: MetricSample, after: MetricSample, seconds: float, name: str, **labels: str) -> float | None:
    """By how much ``name`` grew in a second. None when nothing is known, or a server was started anew in between."""
    first, last = before.total(name, **labels), after.total(name, **labels)
    if first is None or last is None or last < first or seconds <= 0:
        return None
    return (last - first) / seconds
