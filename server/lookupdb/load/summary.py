"""A result as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from lookupdb.load.document import check_version
from lookupdb.load.fail_if import count_requests
from lookupdb.load.honesty import BUSY_SHARE, NOTICEABLE_MICROSECONDS
from lookupdb.load.wording import NO_LATENCY, clean, format_microseconds, format_rate
from lookupdb.wording import format_count

LABELS: Final = {
    "unavailable": "unavailable",
    "httpErrors": "HTTP error",
    "broken": "broken connection",
    "invalid": "invalid answer",
}
"""By kind of failure, how it is called."""


def render_summary(document: Mapping[str, Any]) -> str:
    """For people. Raises LookupdbError when another version wrote ``document``."""
    check_version(document)
    return "\n".join(map(clean, _list_lines(document)))


def list_outcomes(document: Mapping[str, Any]) -> list[tuple[str, int]]:
    """What came of requests: the name of each outcome that there was, and how many; those that are to be, first."""
    requests = document["requests"]
    rows = [("answered", requests["answered"])]
    for kind, name in LABELS.items():
        rows += [(f"{name}: {label}", count) for label, count in requests[kind].items()]
    rows += [("timeout", requests["timeouts"]), ("not sent", requests["unsent"])]
    return [row for row in rows if row[1] or row[0] == "answered"]


def list_remarks(document: Mapping[str, Any]) -> list[str]:
    """What has to be known to judge the figures; nothing if all went as it should."""
    senders, requests, remarks = document["senders"], document["requests"], []
    if not requests["scheduled"]:
        remarks.append("nothing was measured")
    if failures := count_requests(document, "errors"):
        remarks.append(
            f"{failures:,} of {format_count(requests['scheduled'], 'request')} were not answered: in the latencies they"
            f" count as slower than any answer, timeouts and what was not sent with the time waited in vain;"
            f" {NO_LATENCY} is where too few were answered"
        )
    if (lag := senders["lag"]["percentiles"]["99"] or 0) > NOTICEABLE_MICROSECONDS:
        remarks.append(
            f"this machine sent late by itself: 1 of 100 requests by {format_microseconds(lag)} or more, which the"
            " latencies include; give more --processes, or a quieter machine"
        )
    if senders["busy"] > BUSY_SHARE:
        remarks.append(
            f"senders were busy {senders['busy']:.0%} of the time, and latencies include waiting for them; give more"
            " --processes"
        )
    if requests["heldBack"]:
        remarks.append(
            f"{format_count(requests['heldBack'], 'request')} had to wait because {document['plan']['maxInFlight']:,}"
            " were in flight (--max-in-flight); their latencies include the wait"
        )
    keys = document["keys"]
    if keys["missing"] and keys["missing"] == keys["asked"] and document["plan"]["hitRatio"]:
        remarks.append(
            f"all keys are missing: are those of {document['plan']['keySource']} keys of"
            f" {document['target']['namespace']}/{document['target']['name']}?"
        )
    if document["mixed"]:
        remarks.append(f"{format_count(document['mixed'], 'answer')} came out of several generations")
    if document["isInterrupted"]:
        remarks.append("it was interrupted")
    return remarks


def _list_lines(document: Mapping[str, Any]) -> Iterator[str]:
    target, keys, latency, rate = (document[name] for name in ("target", "keys", "latency", "rate"))
    yield f"{target['namespace']}/{target['name']} at {target['url']}, {document['seconds']:.1f} s measured"
    requests, batch = document["requests"]["scheduled"], document["plan"]["batch"]
    yield (
        f"rate       {format_rate(rate['answered'])} answered of {format_rate(rate['scheduled'])} scheduled"
        f" ({format_count(requests, 'request')} of {format_count(batch, 'key')})"
    )
    figures = [(f"p{name}", value) for name, value in latency["percentiles"].items()] + [("max", latency["max"])]
    yield "latency    " + "  ".join(f"{name} {format_microseconds(value)}" for name, value in figures)
    for name, count in list_outcomes(document):
        yield f"{count:>10,} {name}"
    yield f"keys       {keys['found']:,} found, {keys['missing']:,} missing, {keys['unavailable']:,} unavailable"
    for span in document["generations"]:
        yield (
            f"generation {span['name']}: {format_count(span['answers'], 'answer')},"
            f" from {span['firstSeconds']:.1f} s to {span['lastSeconds']:.1f} s"
        )
    for remark in list_remarks(document):
        yield f"note       {remark}"
    for judged in document["failIf"]:
        yield f"fail-if    {judged['condition']}: {'holds' if judged['holds'] else 'does not hold'}"
