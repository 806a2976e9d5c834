"""Answers that are no answer to the question, as errors."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from lookupdb.client.json_values import decode_json
from lookupdb.client.response_reader import Response
from lookupdb.errors import InvalidAnswer, LookupFailed, RequestRefused, Unavailable, UnknownGeneration

_TYPE_PREFIX: Final = "https://lookupdb.dev/problems/"
_MAX_PROBLEM_BYTES: Final = 1 << 16
_MAX_CHARACTERS: Final = 1000
_PARTIAL_OF_HTTP: Final = 'with "partial": true'
"""What a router advises who asks for many keys, of which some cannot be looked up now: it does not say which."""
_HINTS: Final = {
    "unauthenticated": "give the token that this client was given, by token= or token_file=",
    "forbidden": "let spec.router.auth of the dataset name this service account",
    "no-such-resource": "is the URL the router's own, up to before /v1, and of its public port?",
    "answer-too-large": "ask for fewer keys at once, or for a large value alone",
}


class ProblemDetails(NamedTuple):
    """Problem details (RFC 9457) of a router; empty where the answer has none."""

    name: str
    title: str
    detail: str
    members: dict[str, Any]


def read_problem(response: Response) -> ProblemDetails:
    """The problem that the answer tells."""
    kind = response.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/problem+json" or len(response.body) > _MAX_PROBLEM_BYTES:
        return ProblemDetails("", "", "", {})
    try:
        members = decode_json(response.body)
    except InvalidAnswer:
        members = None
    if not isinstance(members, dict):
        return ProblemDetails("", "", "", {})
    name, title, detail = (_printable(members.get(member)) for member in ("type", "title", "detail"))
    return ProblemDetails(
        name.removeprefix(_TYPE_PREFIX) if name.startswith(_TYPE_PREFIX) else "", title, detail, members
    )


def is_of_the_connection(response: Response) -> bool:
    """Whether the answer says nothing of the request, but that this connection will not do."""
    if response.status == 503:
        return read_problem(response).name == "too-many-connections"
    return response.status == 408


def refusal(response: Response, keys: tuple[str, ...]) -> LookupFailed:
    """The error that the answer, which is not 200, comes to."""
    status, problem = response.status, read_problem(response)
    if status >= 500:
        return _unavailable(status, problem, keys)
    answered = f"the router answered {status}"
    if not problem.name:
        if status in (404, 405) or status < 400:  # 405: an admin port, of a batch
            return InvalidAnswer(f"{answered}, not as a router does", hint=_HINTS["no-such-resource"])
        return RequestRefused(f"{answered} without saying why", status=status)
    text = f"{answered} {problem.name}: {problem.detail}"
    if status == 412:
        active = problem.members.get("active")
        names = tuple(map(_printable, active)) if isinstance(active, list) else ()
        named = f"; active is {', '.join(names)}" if names else ""
        return UnknownGeneration(f"{text.partition('; leave Lookupdb-Generation')[0]}{named}", active=names)
    limit = problem.members.get("limit")
    return RequestRefused(
        text,
        hint=_HINTS.get(problem.name),
        status=status,
        problem=problem.name,
        limit=limit if isinstance(limit, int) and limit > 0 else None,
    )


def _unavailable(status: int, problem: ProblemDetails, keys: tuple[str, ...]) -> Unavailable:
    """Of a router's 5xx, or of a proxy's: whatever its cause, nothing can be said of the keys."""
    reason = _printable(problem.members.get("reason")) or _camel_case(problem.name) or f"Status{status}"
    detail = (
        problem.detail.replace(_PARTIAL_OF_HTTP, "with partial=True")
        or f"the answer was {status}, and none of a router"
    )
    shard = problem.members.get("shard")
    return make_unavailable(keys, reason, detail, shard if isinstance(shard, int) else None)


def make_unavailable(keys: tuple[str, ...], reason: str, detail: str, shard: int | None = None) -> Unavailable:
    """The error of ``keys``, of which nothing can be said now: of several, of one at least."""
    shown = ", ".join(repr(key[:60]) for key in keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    match len(keys):
        case 0:
            what = "nothing can be said now"
        case 1:
            what = f"nothing can be said now of {shown}"
        case _:  # something may be known of some of them
            what = f"no answer now for {shown}"
    return Unavailable(f"{what} ({reason}): {detail}", keys=keys, reason=reason, detail=detail, shard=shard)


def _camel_case(name: str) -> str:
    return "".join(map(str.capitalize, name.split("-")))


def _printable(value: object) -> str:
    """``value``, if it is text, in one line and without what would control a terminal."""
    if not isinstance(value, str):
        return ""
    return "".join(character if character.isprintable() else " " for character in value[:_MAX_CHARACTERS])
