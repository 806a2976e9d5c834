"""The routing table: which generation is active, and where its shards are. Parses the file, and watches it.

``parse_table`` accepts or rejects a table as a whole; after a rejection, the table in effect keeps serving.
``TableWatcher`` polls the file. Polling notices every kind of change: a rename, a rewrite in place, and a swapped
symbolic link, as with the ``..data`` of a ConfigMap.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

import orjson

from lookupdb.errors import LookupdbError
from lookupdb.keys import NORMALIZATIONS
from lookupdb.router.link import PasswordRef
from lookupdb.router.server_connection import ServerAddress

# In format version 1, all shards of an entry have its generation. In version 2 the table is *mixed*: a step of a
# shard-by-shard rollout. Its only entry is that of the new generation, and a shard that another generation still serves
# names it::
#
#     {"generation": "g12", "builtAt": "2026-11-20T00:00:00Z", "endpoints": ["10.0.0.1:6379"]}
#
# All generations of a mixed table have the entry's number of shards, normalisation and value format.
#
# An entry whose servers require a password names the fingerprint of its key: ``"passwordKey": "8d3f6b1a"``. The
# password is that of the entry's rollout. A shard served by another rollout says so, ``"rollout": "r33"``, with its own
# key, or without one if it needs no password. Passwords did not change the format version: a router that does not know
# them is rejected by the servers, and keeps its table.
#
# An entry whose keys have several columns names the columns and their separator: ``"keyColumns": ["country", "id"],
# "separator": ":"``. Routers pass them on to clients.
#
# An entry may have ``"content"``, a checksum of its files. Outside a cluster, where all datasets have the same uid, it
# distinguishes generations of the same name.


FORMAT_VERSION: Final = 1
"""Each entry has one generation."""
MIXED_FORMAT_VERSION: Final = 2
MAX_BYTES: Final = 4 << 20
"""Limit of a routing table file. 1,024 shards of 16 endpoints need about 1 MiB, which is also a ConfigMap's limit."""
MAX_GENERATIONS: Final = 16
MAX_SHARDS: Final = 1024
MAX_ENDPOINTS: Final = 4096
"""Limit per shard: 64 replicas of 64 workers."""
DIGEST_DIGITS: Final = 16
_GENERATION: Final = re.compile(r"g[1-9][0-9]{0,8}")
_KEY: Final = re.compile(r"[0-9a-f]{8}")
_PORT_MAX: Final = 65535


class InvalidTable(LookupdbError):
    """A routing table file that cannot be used."""

    reason = "InvalidRoutingTable"


@dataclass(frozen=True, slots=True)
class RoutedDataset:
    """The dataset of a table."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard and its servers."""

    generation: str
    built_at: str
    """Build time of the generation: ISO 8601 with time zone."""
    endpoints: tuple[ServerAddress, ...]
    password: PasswordRef | None = None
    """The password of its servers, or None if the table names none."""
    content: str = ""
    """Checksum of the files, for a generation whose dataset has no uid of its own."""


@dataclass(frozen=True, slots=True)
class GenerationEntry:
    """One generation of a table, active or available by name. The entry of a mixed table is that of the new generation;
    each shard names the generation that serves it."""

    generation: str
    rollout: str
    records: int
    bytes: int
    built_at: str
    """ISO 8601 with time zone."""
    normalize: tuple[str, ...]
    value_format: Literal["json", "raw"]
    shards: tuple[ShardEntry, ...]
    key_columns: tuple[str, ...] = ()
    """The columns of a key, if the table names several."""
    separator: str = ""

    @property
    def shard_generations(self) -> dict[str, int]:
        """The number of shards that each generation serves, in the order of generations."""
        counts = Counter(shard.generation for shard in self.shards)
        return {name: counts[name] for name in sorted(counts, key=lambda name: int(name[1:]))}

    @property
    def oldest_built_at(self) -> str:
        """Build time of the oldest generation that serves a shard."""
        return min((shard.built_at for shard in self.shards), key=datetime.datetime.fromisoformat)


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """A valid routing table."""

    version: int
    dataset: RoutedDataset
    active: str
    entries: tuple[GenerationEntry, ...]
    digest: str = field(compare=False)
    """Digest of the text (``digest_table``); two texts may mean the same."""

    @property
    def active_entry(self) -> GenerationEntry:
        """The entry of the active generation."""
        return next(entry for entry in self.entries if entry.generation == self.active)

    @property
    def is_mixed(self) -> bool:
        """Return whether several generations serve the shards; then clients can request none by name."""
        return any(shard.generation != self.active for shard in self.active_entry.shards)


def parse_table(content: bytes) -> RoutingTable:
    """Parse a file's ``content``. Raises InvalidTable with what was expected and found."""
    if len(content) > MAX_BYTES:
        raise InvalidTable(f"a routing table has at most {MAX_BYTES} bytes, found {len(content)}")
    try:
        members = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidTable(f"a routing table is JSON, found {len(content)} bytes that are not: {error}") from error
    members = _check_type(members, dict, "a routing table")
    version = members.get("formatVersion")
    if version not in (FORMAT_VERSION, MIXED_FORMAT_VERSION) or isinstance(version, bool):
        raise InvalidTable(
            f"the routing table has format version {version!r}, this lookupdb reads {FORMAT_VERSION} and "
            f"{MIXED_FORMAT_VERSION}",
            hint="upgrade the router before the operator that writes its table",
        )
    may_mix = version == MIXED_FORMAT_VERSION
    where = "the routing table"
    entries = _check_count(_member(members, "generations", list, where), MAX_GENERATIONS, "generations")
    dataset = _member(members, "dataset", dict, where)
    table = RoutingTable(
        entries=tuple(_entry(entry, f"generations[{i}]", may_mix=may_mix) for i, entry in enumerate(entries)),
        version=_count_member(members, "version", where),
        dataset=RoutedDataset(*(_text_member(dataset, name, "dataset") for name in ("namespace", "name", "uid"))),
        active=_text_member(members, "active", where),
        digest=digest_table(content),
    )
    names = [entry.generation for entry in table.entries]
    if len(set(names)) != len(names):
        _fail(f"the routing table names a generation twice: {', '.join(names)}")
    if table.active not in names:
        _fail(f"the routing table's active generation {table.active!r} is not in its generations ({', '.join(names)})")
    if not may_mix:
        return table
    if len(table.entries) > 1:
        _fail(
            f"a routing table of format version {MIXED_FORMAT_VERSION} has one entry of generations, "
            f"found {', '.join(names)}"
        )
    counts = table.active_entry.shard_generations
    if table.active not in counts:
        _fail(f"the routing table's active generation {table.active} serves none of the shards: {', '.join(counts)} do")
    if len(counts) > MAX_GENERATIONS:
        _fail(f"at most {MAX_GENERATIONS} generations may serve the shards of a routing table, found {len(counts)}")
    return table


def digest_table(content: bytes) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a file's ``content``, to distinguish files of the same version.
    Routers report it as ``tableDigest``, and operators of other versions compare it. If you change the digest, report
    it under another name."""
    return hashlib.sha256(content).hexdigest()[:DIGEST_DIGITS]


def _entry(value: Any, where: str, *, may_mix: bool) -> GenerationEntry:
    members = _check_type(value, dict, where)
    name = _generation_member(members, where)
    value_format = _text_member(members, "valueFormat", where)
    if value_format not in ("json", "raw"):
        raise InvalidTable(f"{where}.valueFormat must be json or raw, found {value_format!r}")
    steps = _member(members, "normalize", list, where)
    unknown = [step for step in steps if step not in NORMALIZATIONS]
    if unknown:
        raise InvalidTable(
            f"{where}.normalize may contain only {', '.join(NORMALIZATIONS)}, found {unknown[0]!r}",
            hint="upgrade the router before the operator that writes its table",
        )
    shards = _check_count(_member(members, "shards", list, where), MAX_SHARDS, f"{where}.shards")
    built_at = _moment_member(members, where)
    rollout = _text_member(members, "rollout", where)
    content = _text_member(members, "content", where) if "content" in members else ""
    of_entry = ShardEntry(name, built_at, (), _password(members, rollout, where), content)
    columns: tuple[str, ...] = ()
    separator = ""
    if "keyColumns" in members:
        names = _member(members, "keyColumns", list, where)
        columns = tuple(_check_type(column, str, f"{where}.keyColumns") for column in names)
        separator = _text_member(members, "separator", where)
    return GenerationEntry(
        generation=name,
        rollout=rollout,
        records=_count_member(members, "records", where),
        bytes=_count_member(members, "bytes", where),
        built_at=built_at,
        normalize=tuple(steps),
        value_format="json" if value_format == "json" else "raw",
        shards=tuple(
            _shard(shard, f"{where}.shards[{i}]", of_entry, may_mix=may_mix) for i, shard in enumerate(shards)
        ),
        key_columns=columns,
        separator=separator,
    )


def _generation_member(members: dict[str, Any], where: str) -> str:
    name = _text_member(members, "generation", where)
    return name if _GENERATION.fullmatch(name) else _fail(f"{where}.generation must be g1, g2, …, found {name!r}")


def _moment_member(members: dict[str, Any], where: str) -> str:
    built_at = _text_member(members, "builtAt", where)
    try:
        moment = datetime.datetime.fromisoformat(built_at)
    except ValueError as error:
        raise InvalidTable(f"{where}.builtAt must be an ISO 8601 time, found {built_at!r}") from error
    if moment.tzinfo is None:
        raise InvalidTable(f"{where}.builtAt must name its time zone (Z), found {built_at!r}")
    return built_at


def _password(members: dict[str, Any], rollout: str, where: str) -> PasswordRef | None:
    """Return the reference to the password of ``rollout``'s servers, from ``passwordKey``; None if there is none."""
    if "passwordKey" not in members:
        return None
    key = _text_member(members, "passwordKey", where)
    if not _KEY.fullmatch(key):
        _fail(f"{where}.passwordKey must be the 8 hexadecimal digits of a key's fingerprint, found {key[:64]!r}")
    return PasswordRef(rollout, key)


def _shard(value: Any, where: str, of_entry: ShardEntry, *, may_mix: bool) -> ShardEntry:
    """Parse a shard; members that it omits are as in ``of_entry``."""
    members = _check_type(value, dict, where)
    generation, built_at, password = of_entry.generation, of_entry.built_at, of_entry.password
    content = of_entry.content
    if "rollout" in members:
        password = _password(members, _text_member(members, "rollout", where), where)
    elif "passwordKey" in members:
        _fail(f"{where} must name the rollout of its passwordKey")
    if "generation" in members:
        if not may_mix:
            _fail(f"{where} must not name a generation in format version {FORMAT_VERSION}, in which the entry names it")
        own_generation = _generation_member(members, where)
        if own_generation != generation:
            generation, built_at, content = own_generation, _moment_member(members, where), ""
    endpoints = _check_count(_member(members, "endpoints", list, where), MAX_ENDPOINTS, where)
    addresses = tuple(_address(endpoint, f"{where}.endpoints[{i}]") for i, endpoint in enumerate(endpoints))
    return ShardEntry(generation, built_at, tuple(dict.fromkeys(addresses)), password, content)


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


POLL_SECONDS: Final = 0.2
_SETTLED_SECONDS: Final = 1.0
"""A file changed this recently may change again within the resolution of its timestamp, so it is read again."""


class TableWatcher:
    """Calls ``on_table`` with each new valid routing table in the file at ``path``, else ``on_invalid`` with a reason.

    It calls back once for each content and each reason, and never before the file has first appeared.
    """

    def __init__(self, path: Path, on_table: Callable[[RoutingTable], None], on_invalid: Callable[[str], None]) -> None:
        self._path = path
        self._on_table = on_table
        self._on_invalid = on_invalid
        self._signature: tuple[int, int, int, int] | None = None
        self._content: bytes | None = None
        self._unreadable: str | None = None
        """The reason why the file was unreadable at the last poll."""
        self.has_found = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Poll now, and repeatedly until ``stop``."""
        self._timer = self._loop.call_later(POLL_SECONDS, self.start)  # first, in case a callback raises an error
        self.look()

    def stop(self) -> None:
        """Stop polling."""
        if self._timer:
            self._timer.cancel()

    def look(self) -> None:
        """Read the file if it has changed."""
        try:
            about = self._path.stat()
            signature = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
            if signature == self._signature:
                return
            with self._path.open("rb") as stream:
                content = stream.read(MAX_BYTES + 1)  # enough to reject a larger file
        except OSError as error:
            self._signature = self._content = None
            if isinstance(error, FileNotFoundError) and not self.has_found:
                return
            why = error.strerror or str(error)
            if why != self._unreadable:
                self._unreadable = why
                self._on_invalid(f"{self._path} cannot be read: {why}")
            return
        self.has_found, self._unreadable = True, None
        settled = abs(time.time() - about.st_mtime) > _SETTLED_SECONDS
        self._signature = signature if settled else None
        if content == self._content:
            return
        self._content = content
        try:
            table = parse_table(content)
        except InvalidTable as error:
            self._on_invalid(f"{self._path}: {error.message}")
        else:
            self._on_table(table)


_CONTRADICTION: Final = "is in effect with other content"


def diagnose_refusal(new: RoutingTable, current: RoutingTable | None, uid: str | None = None) -> str | None:
    """Return why ``new`` may not follow ``current`` in a router of the dataset with ``uid`` (None for any), or None.

    Versions only grow, so that a late or repeated write cannot bring back shards that are being retired. Another
    dataset, or one recreated with another uid, has its own versions.
    """
    if uid is not None and new.dataset.uid != uid:
        return (
            f"it is the table of {new.dataset} with uid {new.dataset.uid!r}, and this router serves the dataset with "
            f"uid {uid!r}"
        )
    if current is None or new.dataset != current.dataset or new.version > current.version or new == current:
        return None
    if new.version == current.version:
        return f"{describe_contradiction(new.version)}; a change needs a greater version"
    return f"version {new.version} is older than version {current.version}, which is in effect"


def describe_contradiction(version: int) -> str:
    """Return the phrase by which the operator recognises that a router has a different table of the same ``version``.
    Only a greater version resolves that."""
    return f"version {version} {_CONTRADICTION}"


def tells_contradiction(why: str) -> bool:
    """Return whether ``why`` has that phrase, for any version."""
    return _CONTRADICTION in why
