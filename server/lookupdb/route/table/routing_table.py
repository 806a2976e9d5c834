"""The routing table: which generation is active and where its shards are. Parsing and judging, no I/O.

A table that is not whole or not valid is refused as a whole; the one in effect keeps serving.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

import orjson

from lookupdb.errors import LookupdbError
from lookupdb.keys import NORMALIZATIONS
from lookupdb.route.servers.address import ServerAddress

FORMAT_VERSION: Final = 1
MAX_BYTES: Final = 4 << 20
"""Of a routing table file. 1,024 shards of 16 endpoints need about 1 MiB, which is also a ConfigMap's limit."""
MAX_GENERATIONS: Final = 16
MAX_SHARDS: Final = 1024
MAX_ENDPOINTS: Final = 4096
"""Of one shard: 64 replicas of 64 workers."""
_GENERATION: Final = re.compile(r"g[1-9][0-9]{0,8}")
_PORT_MAX: Final = 65535


class InvalidTable(LookupdbError):
    """A routing table file that cannot be used."""

    reason = "InvalidRoutingTable"


@dataclass(frozen=True, slots=True)
class RoutedDataset:
    """Whose table it is."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class GenerationEntry:
    """One generation of a table: the active one, or another that can be asked for by name."""

    generation: str
    rollout: str
    records: int
    bytes: int
    built_at: str
    """ISO 8601, UTC."""
    normalize: tuple[str, ...]
    value_format: Literal["json", "raw"]
    shards: tuple[tuple[ServerAddress, ...], ...]
    """Of each shard, its endpoints: at least one."""

    @property
    def built_timestamp(self) -> float:
        """``built_at`` in seconds since 1970."""
        return datetime.datetime.fromisoformat(self.built_at).timestamp()


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """A valid routing table."""

    version: int
    dataset: RoutedDataset
    active: str
    entries: tuple[GenerationEntry, ...]

    @property
    def active_entry(self) -> GenerationEntry:
        """The entry of the active generation."""
        return next(entry for entry in self.entries if entry.generation == self.active)


def parse_table(content: bytes) -> RoutingTable:
    """The routing table that a file's ``content`` is. Raises InvalidTable with what was expected and found."""
    if len(content) > MAX_BYTES:
        raise InvalidTable(f"a routing table has at most {MAX_BYTES} bytes, found {len(content)}")
    try:
        members = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidTable(f"a routing table is JSON, found {len(content)} bytes that are not: {error}") from error
    members = _check_type(members, dict, "a routing table")
    version = members.get("formatVersion")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise InvalidTable(
            f"the routing table has format version {version!r}, this lookupdb reads {FORMAT_VERSION}",
            hint="upgrade the router before whoever writes its table",
        )
    entries = tuple(_entry(entry, f"generations[{i}]") for i, entry in enumerate(_entries(members)))
    table = RoutingTable(
        version=_count_member(members, "version", "the routing table"),
        dataset=_dataset(_member(members, "dataset", dict, "the routing table")),
        active=_text_member(members, "active", "the routing table"),
        entries=entries,
    )
    _check_names(table)
    return table


def diagnose_refusal(new: RoutingTable, current: RoutingTable | None, uid: str | None = None) -> str | None:
    """Why ``new`` may not follow ``current`` in a router of the dataset with ``uid`` (None: of any), as a sentence;
    None when it may.

    Versions only grow, so that a late or repeated write cannot bring back shards that are being retired. Another
    dataset (also one deleted and made again: its uid differs) counts from its own beginning.
    """
    if uid is not None and new.dataset.uid != uid:
        return (
            f"it is the table of {new.dataset} with uid {new.dataset.uid!r}, and this router is of the dataset with "
            f"uid {uid!r}"
        )
    if current is None or new.dataset != current.dataset or new.version > current.version or new == current:
        return None
    if new.version == current.version:
        return f"version {new.version} is in effect with other content; a change needs a greater version"
    return f"version {new.version} is older than version {current.version}, which is in effect"


def may_take_over(
    new: RoutingTable, proven: Iterable[bool], current: RoutingTable | None, current_proven: Iterable[bool]
) -> bool:
    """Whether ``new`` can be put into effect; ``proven`` tells, shard by shard of the active generation, whether
    an endpoint has proven itself.

    Another generation needs every shard. New endpoints of the same generation need only be no worse than the
    current ones: a shard that is down before and after must not keep the others from their new addresses.
    """
    new_shards = list(proven)
    if current is None:
        return True
    same = new.dataset == current.dataset and new.active == current.active
    current_shards = list(current_proven)
    if not same or len(current_shards) != len(new_shards):
        return all(new_shards)
    return all(now or not before for now, before in zip(new_shards, current_shards, strict=True))


def _check_names(table: RoutingTable) -> None:
    names = [entry.generation for entry in table.entries]
    if len(set(names)) != len(names):
        raise InvalidTable(f"the routing table names a generation twice: {', '.join(names)}")
    if table.active not in names:
        raise InvalidTable(
            f"the routing table's active generation {table.active!r} is none of its generations ({', '.join(names)})"
        )


def _dataset(members: dict[str, Any]) -> RoutedDataset:
    return RoutedDataset(*(_text_member(members, name, "dataset") for name in ("namespace", "name", "uid")))


def _entries(members: dict[str, Any]) -> list[Any]:
    entries = _member(members, "generations", list, "the routing table")
    return _check_count(entries, MAX_GENERATIONS, "generations")


def _entry(value: Any, where: str) -> GenerationEntry:
    members = _check_type(value, dict, where)
    name = _text_member(members, "generation", where)
    if not _GENERATION.fullmatch(name):
        raise InvalidTable(f"{where}.generation must be g1, g2, …, found {name!r}")
    value_format = _text_member(members, "valueFormat", where)
    if value_format not in ("json", "raw"):
        raise InvalidTable(f"{where}.valueFormat must be json or raw, found {value_format!r}")
    shards = _check_count(_member(members, "shards", list, where), MAX_SHARDS, f"{where}.shards")
    entry = GenerationEntry(
        generation=name,
        rollout=_text_member(members, "rollout", where),
        records=_count_member(members, "records", where),
        bytes=_count_member(members, "bytes", where),
        built_at=_text_member(members, "builtAt", where),
        normalize=_steps(_member(members, "normalize", list, where), f"{where}.normalize"),
        value_format="json" if value_format == "json" else "raw",
        shards=tuple(_shard(shard, f"{where}.shards[{i}]") for i, shard in enumerate(shards)),
    )
    try:
        moment = datetime.datetime.fromisoformat(entry.built_at)
    except ValueError as error:
        raise InvalidTable(f"{where}.builtAt must be an ISO 8601 time, found {entry.built_at!r}") from error
    if moment.tzinfo is None:
        raise InvalidTable(f"{where}.builtAt must name its time zone (Z), found {entry.built_at!r}")
    return entry


def _steps(steps: list[Any], where: str) -> tuple[str, ...]:
    for step in steps:
        if step not in NORMALIZATIONS:
            raise InvalidTable(
                f"{where} must be steps of {', '.join(NORMALIZATIONS)}, found {step!r}",
                hint="upgrade the router before whoever writes its table",
            )
    return tuple(steps)


def _shard(value: Any, where: str) -> tuple[ServerAddress, ...]:
    endpoints = _check_count(_member(_check_type(value, dict, where), "endpoints", list, where), MAX_ENDPOINTS, where)
    addresses = tuple(_address(endpoint, f"{where}.endpoints[{i}]") for i, endpoint in enumerate(endpoints))
    return tuple(dict.fromkeys(addresses))


def _address(value: Any, where: str) -> ServerAddress:
    host, _, port = _check_type(value, str, where).rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not 0 < len(host) <= 253 or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) <= _PORT_MAX:
        raise InvalidTable(f"{where} must be host:port, found {value!r}")
    return ServerAddress(host, int(port))


def _member(members: dict[str, Any], name: str, kind: type, where: str) -> Any:
    if name not in members:
        raise InvalidTable(f"{where} must have {name!r}, it has {', '.join(members) or 'nothing'}")
    return _check_type(members[name], kind, f"{where}: {name}")


def _text_member(members: dict[str, Any], name: str, where: str) -> str:
    text: str = _member(members, name, str, where)
    return text or _fail(f"{where}: {name} must not be empty")


def _count_member(members: dict[str, Any], name: str, where: str) -> int:
    number: int = _member(members, name, int, where)
    return number if number >= 0 else _fail(f"{where}: {name} must not be negative, found {number}")


def _check_count(values: list[Any], most: int, where: str) -> list[Any]:
    return values if 0 < len(values) <= most else _fail(f"{where} must have 1 to {most} entries, found {len(values)}")


_KINDS: Final = {dict: "an object", list: "a list", str: "text", int: "a whole number"}


def _check_type(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        _fail(f"{where} must be {_KINDS[kind]}, found {type(value).__name__}")
    return value


def _fail(message: str) -> NoReturn:
    raise InvalidTable(message)
