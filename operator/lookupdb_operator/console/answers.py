"""Answers of routers about keys. Values stay unchanged, because reformatting would alter numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

_PROBLEM: Final = "application/problem+json"
_JSON: Final = "application/json"
_PROBLEMS: Final = "https://lookupdb.dev/problems/"
GENERATION_HEADER: Final = "Lookupdb-Generation"


@dataclass(frozen=True, slots=True)
class FoundKey:
    """A record has the key."""

    key: str
    generation: str
    value: bytes
    is_json: bool


@dataclass(frozen=True, slots=True)
class AbsentKey:
    """A router says that no record of the generation has the key."""

    key: str
    generation: str
    why: str


@dataclass(frozen=True, slots=True)
class UnavailableKey:
    """The key cannot be looked up now."""

    key: str
    why: str


Lookup = FoundKey | AbsentKey | UnavailableKey


def read_answer(key: str, status: int, headers: Mapping[str, str], body: bytes) -> Lookup | None:
    """Parse a router's answer about ``key``; None if it is not from a router, or the request is invalid. A 404 from
    elsewhere, for example about a missing Service, says nothing about the key."""
    media_type = headers.get("Content-Type", "").partition(";")[0].strip()
    generation = headers.get(GENERATION_HEADER, "")
    if status == 200 and generation:
        return FoundKey(key, generation, body, media_type == _JSON)
    problem = _read_problem(body) if media_type == _PROBLEM else {}
    name, detail = str(problem.get("type", "")).removeprefix(_PROBLEMS), str(problem.get("detail", ""))
    if status == 404 and name == "missing":
        return AbsentKey(key, generation, detail)
    if status == 503:
        return UnavailableKey(key, detail or "no router can be reached")
    return None


def read_refusal(status: int, body: bytes) -> tuple[str, str] | None:
    """Return why a router refuses the request, and a hint; None if it does not, or if the API server does."""
    problem = _read_problem(body)
    name, detail = str(problem.get("type", "")).removeprefix(_PROBLEMS), str(problem.get("detail", ""))
    if (status, name) == (412, "unknown-generation"):
        why = detail.partition(f"; leave {GENERATION_HEADER} out")[0]
        return why, "without --generation, the active one answers"
    if (status, name) in ((401, "unauthenticated"), (403, "forbidden")):
        return detail, "give a token that the routers accept, by --token-file"
    return None


def read_detail(body: bytes) -> str:
    """Return the sentence in a router's problem document; empty if ``body`` is not one."""
    problem = _read_problem(body)
    return str(problem.get("detail", "")) if str(problem.get("type", "")).startswith(_PROBLEMS) else ""


def _read_problem(body: bytes) -> Mapping[str, Any]:
    try:
        problem = orjson.loads(body)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}
