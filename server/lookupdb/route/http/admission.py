"""How a request that may not be asked is answered."""

from __future__ import annotations

from typing import Final

from lookupdb.route.access.verdict import Denial, Denied
from lookupdb.route.counters import INDEX
from lookupdb.route.http import problems
from lookupdb.route.http.problems import HttpProblem

NO_ACCESS_DATA: Final = "AccessUnknown"
"""The member ``reason`` of a 503: nothing is known of who may ask."""
_COUNTERS: Final = {
    Denial.UNAUTHENTICATED: INDEX["requests_unauthenticated"],
    Denial.FORBIDDEN: INDEX["requests_forbidden"],
}


def make_denial(denied: Denied, counts: memoryview) -> HttpProblem:
    """The problem that tells of ``denied``, which is counted."""
    if denied.denial is Denial.UNDECIDED:
        return HttpProblem(problems.UNAVAILABLE, denied.detail, members={"reason": NO_ACCESS_DATA})
    counts[_COUNTERS[denied.denial]] += 1
    if denied.denial is Denial.FORBIDDEN:
        return HttpProblem(problems.FORBIDDEN, denied.detail)
    challenge = 'Bearer error="invalid_token"' if denied.has_token else "Bearer"
    return HttpProblem(problems.UNAUTHENTICATED, denied.detail, fields={"WWW-Authenticate": challenge})
