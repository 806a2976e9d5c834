"""The dataclasses of a status as JSON, and back: names in camelCase, what is empty left out, each of its type."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from lookupdb.naming import to_camel_case
from lookupdb_operator.shard_ranges import ALL, parse_shards

MOMENTS: Final = frozenset(
    {
        *("built_at", "confirmed_at", "finished_at", "refreshed_at", "retry_at", "started_at", "written_at"),
        *(
            "store_written_at",
            "password_key_written_at",
            "last_checked",
            "last_refreshed",
            "next_check",
            "since",
            "kept_since",
        ),
        *("slot", "due", "skipped"),
    }
)
"""Members that hold a moment, or nothing."""
_SHARDS: Final = frozenset({"shard_ranges", "window"})
"""Members that hold ranges of shards, or nothing."""
_YEARS: Final = range(1970, 9000)
"""Of moments: those from which every duration of a spec leads to another moment."""
_KEPT: Final = frozenset(
    {"observed_generation", "conditions", "count", "version", "replicas", "records", "bytes", "seconds"}
)
"""Members that are written even when they are zero or empty."""

_BOUNDS: Final = {int: ("minimum", "maximum"), str: ("minLength", "maxLength")}
"""By type, where the CRD says how large or how long."""


def to_json(record: Any) -> dict[str, Any]:
    """The members of the dataclass ``record``, but for empty ones that may be left out."""
    members: dict[str, Any] = {}
    for member in dataclasses.fields(record):
        value = getattr(record, member.name)
        if value in (None, "", (), 0) and member.name not in _KEPT and member.default is not dataclasses.MISSING:
            continue
        members[json_name(member)] = _json(value)
    return members


def _json(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_json(value)
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    return value


def from_json(kind: type, members: Mapping[str, Any]) -> Any:
    """The dataclass ``kind`` that ``members`` are of. Raises KeyError, TypeError, AttributeError or ValueError when a
    member is not what it must be."""
    values = {
        member.name: _parse(member.hint, members[member.json])
        for member in _members(kind)
        if member.json in members or member.is_required
    }
    for member in _members(kind):
        if member.is_moment and (found := values.get(member.name)) and not is_moment(found):
            raise TypeError(f"expected a moment as {member.json}, found {found!r}")
        if member.name in _SHARDS:
            parse_shards(values.get(member.name, ALL))
    return kind(**values)


def is_moment(text: str) -> bool:
    """Whether ``text`` is one that can be calculated with: ISO 8601."""
    try:
        return datetime.fromisoformat(text).year in _YEARS
    except ValueError:
        return False


def check_bounds(value: Any, fields: Mapping[str, Any], name: str = "status") -> None:
    """Raises ValueError when ``value``, whose types are right, is beyond what ``fields``, its part of the CRD, allows:
    a number of shards is the size of sets, and nobody can calculate with an empty moment. An API server checks what is
    written, not what it has from before."""
    if isinstance(value, Mapping):
        properties = fields.get("properties", {})
        for member, inner in value.items():
            if inner is not None and member in properties:
                check_bounds(inner, properties[member], member)
        return
    size = value if isinstance(value, int) else len(value)
    least, most = (fields.get(bound) for bound in _BOUNDS.get(type(value), ("minItems", "maxItems")))
    if (least is not None and size < least) or (most is not None and size > most):
        raise ValueError(f"expected {least or 0} to {most} as the size of {name}, found {size}")
    if "pattern" in fields and not re.fullmatch(fields["pattern"], value):
        raise ValueError(f"expected {fields['pattern']} as {name}, found {value!r}")
    if isinstance(value, list | tuple):
        for item in value:
            check_bounds(item, fields.get("items", {}), name)


@dataclass(frozen=True, slots=True)
class _Member:
    """What JSON must hold for one field of a dataclass."""

    name: str
    json: str
    hint: Any
    is_required: bool
    is_moment: bool


@functools.cache
def _members(kind: type) -> tuple[_Member, ...]:
    """Of the dataclass ``kind``, once: to evaluate its hints takes longer than to read a status."""
    hints = typing.get_type_hints(kind)
    return tuple(
        _Member(
            name=member.name,
            json=json_name(member),
            hint=hints[member.name],
            is_required=member.default is dataclasses.MISSING,
            is_moment=member.name in MOMENTS,
        )
        for member in dataclasses.fields(kind)
    )


def _parse(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        hint = next(option for option in typing.get_args(hint) if option is not types.NoneType)
        return None if value is None else _parse(hint, value)
    if typing.get_origin(hint) is tuple:
        return tuple(_parse(typing.get_args(hint)[0], item) for item in value)
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast(type, hint), value)
    expected = str if typing.get_origin(hint) is Literal else hint
    if not isinstance(value, expected) or isinstance(value, bool):
        raise TypeError(f"expected {expected.__name__}, found {value!r}")
    return value


def json_name(member: dataclasses.Field[Any]) -> str:
    """What ``member`` is called in JSON."""
    return str(member.metadata.get("json") or to_camel_case(member.name))
