"""A builder's result: the JSON line of its termination message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import orjson

from lookupdb_operator.model import BuildResult
from lookupdb_operator.status_json import is_moment

_OUTCOMES: Final = ("built", "adopted", "unchanged", "waiting", "failed")
_TEXTS: Final = ("generation", "fingerprint", "successFile", "builtAt", "reason", "message", "adoptedFrom", "nextFree")
_MOST_SECONDS: Final = 1e9
_MOST_ADDRESS_CHARACTERS: Final = 64
"""As in status."""
_MOST: Final = 2**53 - 1
"""Of records and bytes, as in status."""


def parse_build_result(message: str | None) -> BuildResult | None:
    """A builder's termination message; None when it is not one."""
    members = message_members(message)
    outcome = members.get("outcome")
    if outcome not in _OUTCOMES:
        return None
    counts = [members.get(member) or 0 for member in ("records", "fileBytes", "largestShardBytes", "exitCode")]
    texts = [members.get(member) or "" for member in _TEXTS]
    seconds = members.get("seconds") or 0.0
    # A bool is an int to Python, and none to the API server, which would refuse the status.
    if type(seconds) not in (int, float) or not 0 <= seconds < _MOST_SECONDS:
        return None
    if not all(type(count) is int and 0 <= count <= _MOST for count in counts) or not all(
        isinstance(text, str) for text in texts
    ):
        return None
    records, file_bytes, largest, exit_code = counts
    generation, fingerprint, success_file, built_at, reason, sentence, adopted_from, next_free = texts
    if built_at and not is_moment(built_at):
        return None
    return BuildResult(
        outcome=cast(Literal["built", "adopted", "unchanged", "waiting", "failed"], outcome),
        generation=generation,
        fingerprint=fingerprint,
        success_file=success_file,
        records=records,
        file_bytes=file_bytes,
        largest_shard_bytes=largest,
        built_at=built_at,
        seconds=float(seconds),
        exit_code=exit_code,
        reason=reason,
        message=sentence,
        adopted_from=adopted_from[:_MOST_ADDRESS_CHARACTERS],
        next_free=next_free[:_MOST_ADDRESS_CHARACTERS],
    )


def message_members(message: str | None) -> Mapping[str, Any]:
    """The JSON object that the last line of a termination message is; empty for anything else."""
    lines = (message or "").strip().splitlines()
    try:
        members = orjson.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}
