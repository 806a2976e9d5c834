"""Conditions on a result by which a load fails: ``p99>20ms``, ``unavailable>0``, ``missing>5%``, ``rate<900``. Pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lookupdb.errors import UsageError
from lookupdb.load.rank import find_rank
from lookupdb.load.wording import format_microseconds
from lookupdb.wording import format_count

_CONDITION: Final = re.compile(r"\s*([a-zA-Z0-9.-]+?)\s*(>=|<=|>|<)\s*([0-9]+(?:\.[0-9]+)?)\s*(us|µs|ms|s|%|)\s*")
_PERCENTILE: Final = re.compile(r"p([0-9]{1,2}(?:\.[0-9]{1,4})?)")
_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_MICROSECONDS: Final = {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_FAILURES: Final = ("unavailable", "httpErrors", "broken", "invalid")
COUNTS: Final = (
    *("scheduled", "answered", "unavailable", "http-errors", "broken", "invalid", "timeouts", "unsent", "held-back"),
    *("errors", "found", "missing", "mixed", "generations"),
)
"""Names of counts: of requests, but for found and missing, which are keys. errors are all requests of which nothing was
learnt: all kinds of failures, timeouts and those not sent."""
_OF_KEYS: Final = ("found", "missing")
_HINT: Final = (
    "give a name, one of > >= < <=, and a number, of a latency with its unit (us, ms, s): p99>20ms, p99.9>=1s, max>2s,"
    f" mean>5ms; rate<900; or a count, alone or as a share: unavailable>0, missing>5%. Counts are {', '.join(COUNTS)}"
)


@dataclass(frozen=True, slots=True)
class FailCondition:
    """One condition."""

    text: str
    name: str
    comparison: str
    bound: float
    """In microseconds, of a latency."""
    unit: str

    def judge(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """What ``document``, a result, has of it, and whether it holds. A latency that belongs to a request without an
        answer has no value, and is above any bound; if nothing was answered at all, each condition on one holds."""
        value = self._measure(document)
        if value is None:
            holds = self.comparison in (">", ">=") or not document["requests"]["answered"]
        else:
            holds = _OPERATORS[self.comparison](value, self.bound)
        return {"condition": self.text, "value": value, "holds": holds}

    def describe(self, document: Mapping[str, Any], value: float | None) -> str:
        """What ``value``, which ``document`` has of it, is; with the unit of this condition."""
        if value is None:
            requests = format_count(document["requests"]["scheduled"], "request")
            return f"there is no such latency: {document['requests']['answered']:,} of {requests} were answered"
        return f"it is {self._format_value(value)}"

    def _format_value(self, value: float) -> str:
        if self.unit in _MICROSECONDS:
            return format_microseconds(value)
        return f"{value:g} %" if self.unit == "%" else f"{value:,.6g}"

    def _measure(self, document: Mapping[str, Any]) -> float | None:
        if self.unit in _MICROSECONDS:
            return self._measure_latency(document)
        if self.name == "rate":
            return float(document["rate"]["answered"])
        count = count_requests(document, self.name)
        if self.unit != "%":
            return float(count)
        whole = document["keys"]["asked"] if self.name in _OF_KEYS else document["requests"]["scheduled"]
        return round(100 * count / whole, 6) if whole else 0.0

    def _measure_latency(self, document: Mapping[str, Any]) -> float | None:
        """None where a request without an answer has that rank; of mean and highest, where there is one."""
        answered, latency = document["requests"]["answered"], document["latency"]
        count = answered + count_requests(document, "errors")
        rank = count if self.percentile is None else find_rank(self.percentile, count)
        if rank > answered or not answered:
            return None
        value = latency[self.name] if self.percentile is None else latency["percentiles"][self.name.removeprefix("p")]
        return None if value is None else float(value)

    @property
    def percentile(self) -> float | None:
        """The percentile that a result needs to have for it; None if it is about something else."""
        return float(self.name[1:]) if _PERCENTILE.fullmatch(self.name) else None


def parse_condition(text: str) -> FailCondition:
    """Raises UsageError."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(f"--fail-if {text!r} is no condition", hint=_HINT)
    name, comparison, digits, unit = match.groups()
    is_percentile = _PERCENTILE.fullmatch(name)
    is_latency = bool(is_percentile) or name in ("mean", "max")
    fits = unit in _MICROSECONDS if is_latency else unit == "" if name == "rate" else unit in ("", "%")
    if not fits or not (is_latency or name == "rate" or name in COUNTS):
        raise UsageError(f"--fail-if {text!r} is no condition", hint=_HINT)
    if is_percentile:
        name = f"p{float(name[1:]):g}"
    return FailCondition(text.strip(), name, comparison, float(digits) * _MICROSECONDS.get(unit, 1.0), unit)


def list_exceeded(conditions: Sequence[FailCondition], document: Mapping[str, Any]) -> list[str]:
    """A sentence for each of ``conditions``, those of ``document``, that holds."""
    return [
        f"--fail-if '{condition.text}' holds: {condition.describe(document, judged['value'])}"
        for condition, judged in zip(conditions, document["failIf"], strict=True)
        if judged["holds"]
    ]


def count_requests(document: Mapping[str, Any], name: str) -> int:
    """The count called ``name``, of those in ``COUNTS``."""
    requests, keys = document["requests"], document["keys"]
    if name == "errors":
        failures = sum(sum(requests[kind].values()) for kind in _FAILURES)
        return int(failures + requests["timeouts"] + requests["unsent"])
    if name in _OF_KEYS:
        return int(keys[name])
    if name == "generations":
        return len(document["generations"])
    if name == "mixed":
        return int(document["mixed"])
    member = {"http-errors": "httpErrors", "held-back": "heldBack"}.get(name, name)
    count = requests[member]
    return sum(count.values()) if isinstance(count, dict) else int(count)
