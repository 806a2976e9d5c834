"""What a router said of a key, and how that is printed. Values are printed as they came: nothing is parsed and written
again, because numbers would come out otherwise."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

_PROBLEM: Final = "application/problem+json"
_JSON: Final = "application/json"
_PROBLEMS: Final = "https://lookupdb.dev/problems/"
_DENIALS: Final = ((401, "unauthenticated"), (403, "forbidden"))
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
    """No record of the generation has it: the router says so itself."""

    key: str
    generation: str
    why: str


@dataclass(frozen=True, slots=True)
class UnavailableKey:
    """Nothing can be said of it now."""

    key: str
    why: str


Lookup = FoundKey | AbsentKey | UnavailableKey


def read_answer(key: str, status: int, headers: Mapping[str, str], body: bytes) -> Lookup | None:
    """What an answer says of ``key``; None for one that is not a router's, or says that the request cannot be. A 404 of
    somebody on the way, that there is no such Service say, is no word about the key."""
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


def read_unknown_generation(status: int, body: bytes) -> str | None:
    """What a router says of a generation that it was asked for and does not serve, without the header's name."""
    problem = _read_problem(body)
    if status != 412 or str(problem.get("type", "")).removeprefix(_PROBLEMS) != "unknown-generation":
        return None
    return str(problem.get("detail", "")).partition(f"; leave {GENERATION_HEADER} out")[0]


def read_denial(status: int, body: bytes) -> str | None:
    """Why a router does not let who asks look up; None if it does, or if it is the API server that does not."""
    problem = _read_problem(body)
    name = str(problem.get("type", "")).removeprefix(_PROBLEMS)
    return str(problem.get("detail", "")) if (status, name) in _DENIALS else None


def render_line(lookup: Lookup) -> bytes:
    """One of several, as a JSON object."""
    key = b'{"key":' + orjson.dumps(lookup.key)
    if isinstance(lookup, UnavailableKey):
        return key + b',"unavailable":' + orjson.dumps(lookup.why) + b"}"
    key += b',"generation":' + orjson.dumps(lookup.generation)
    if isinstance(lookup, AbsentKey):
        return key + b',"missing":true}'
    value = lookup.value if lookup.is_json else orjson.dumps(base64.b64encode(lookup.value).decode())
    return key + b',"value":' + value + b"}"


def _read_problem(body: bytes) -> Mapping[str, Any]:
    try:
        problem = orjson.loads(body)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}
