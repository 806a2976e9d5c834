"""What an answer means. Pure. Unavailable is never missing, and an answer that says neither is invalid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import orjson

from lookupdb.load.wording import clean

AnswerKind = Literal["answered", "unavailable", "httpErrors", "invalid"]

_OK, _NOT_FOUND, _UNAVAILABLE = 200, 404, 503
_MISSING_MARK: Final = b"/problems/missing"
_MAX_LABEL: Final = 60


@dataclass(frozen=True, slots=True)
class AnswerVerdict:
    """What came of a request that was answered."""

    kind: AnswerKind
    label: str = ""
    """Of all but ``answered``: the reason, the status and the name of the problem, or what is wrong with it."""
    found: int = 0
    """Keys."""
    missing: int = 0
    unavailable: int = 0


FOUND: Final = AnswerVerdict("answered", found=1)
MISSING: Final = AnswerVerdict("answered", missing=1)


def judge_single(status: int, generation: bytes, body: bytes) -> AnswerVerdict:
    """Of GET of one key: ``generation`` is the header field, empty if there is none."""
    if status == _OK:
        return FOUND if generation else AnswerVerdict("invalid", "200 without a generation")
    if status == _NOT_FOUND and generation and _MISSING_MARK in body:
        return MISSING
    return _judge_refusal(status, body, 1)


def judge_batch(status: int, generation: bytes, body: bytes, keys: int) -> AnswerVerdict:
    """Of POST of ``keys`` different keys."""
    if status != _OK:
        return _judge_refusal(status, body, keys)
    if not generation:
        return AnswerVerdict("invalid", "200 without a generation")
    try:
        answer = orjson.loads(body)
        found, missing, unavailable = (
            len(answer["found"]),
            len(answer["missing"]),
            len(answer.get("unavailable", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return AnswerVerdict("invalid", "200 that is no batch's answer")
    if found + missing + unavailable != keys:  # a key that is not spoken of is not missing
        return AnswerVerdict("invalid", "200 that does not speak of all keys")
    if unavailable:
        return AnswerVerdict("unavailable", "Partial", found, missing, unavailable)
    return AnswerVerdict("answered", "", found, missing)


def _judge_refusal(status: int, body: bytes, keys: int) -> AnswerVerdict:
    name, reason = read_problem(body)
    if status == _UNAVAILABLE and name == "unavailable":
        return AnswerVerdict("unavailable", reason or "Unsaid", unavailable=keys)
    return AnswerVerdict("httpErrors", f"{status} {name}".rstrip())


def read_problem(body: bytes) -> tuple[str, str]:
    """The name and the reason of the problem that ``body`` is; empty if it has none."""
    try:
        problem = orjson.loads(body)
        name, reason = problem["type"].rpartition("/")[2], problem.get("reason", "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""
    return clean_label(str(name)), clean_label(str(reason))


def clean_label(text: str) -> str:
    """``text`` from a server, short and without what would control a terminal."""
    return clean(text[:_MAX_LABEL])
