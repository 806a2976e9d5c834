"""The JSON files of a dataset in a store: manifest.json of a generation, and active.json beside the generations.

manifest.json describes a whole generation; messages and docs call it the generation's index. It is written last: if it
exists, the generation is whole. active.json announces which generation is active.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

import orjson

from lookupdb.errors import CorruptFile, opening_error

T = TypeVar("T")

_TYPES: Final[dict[Any, Any]] = {"int": int, "float": int | float, "str": str, "str | None": str | None}
"""Annotation → the JSON types that it accepts. Any other type would cause a traceback when the member is used."""

FORMAT_VERSION: Final = 1
REFUSED_VERSION: Final = 2
"""The version of a rejected generation's manifest. Older readers think that it is damaged, and do not serve it."""
FILE_NAME: Final = "manifest.json"
GENERATION: Final = re.compile(r"g([1-9][0-9]{0,8})")

DAMAGED_HINT: Final = "the generation is damaged: build another, or fetch it again"

_MIN_PARTS: Final = 100_000
"""JSON with fewer parts than this is never rejected, however small its parts are."""
SAMPLES: Final = 10
"""The number of rejected or duplicate rows that a manifest names; it counts all of them."""


def find_generations(status: Any) -> set[str]:
    """Return all generations that the ``status`` of a LookupDataset names as {"generation": "g12"}, at any depth."""
    if isinstance(status, list):
        return {name for item in status for name in find_generations(item)}
    if not isinstance(status, dict):
        return set()
    own = {status["generation"]} if isinstance(status.get("generation"), str) else set()
    # builds is a history, which names generations that are gone
    return own.union(*(find_generations(value) for name, value in status.items() if name != "builds"))


def generation_number(generation: str) -> int:
    """Return 12 for ``g12``. Raises ValueError if ``generation`` is not a generation's name."""
    match = GENERATION.fullmatch(generation)
    if not match:
        raise ValueError(f"a generation is called g1, g2, …, found {generation!r}")
    return int(match[1])


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An object of the source, as it was when a build read it."""

    url: str
    bytes: int
    etag: str | None
    modified: str | None
    """ISO 8601, UTC."""


@dataclass(frozen=True, slots=True)
class ShardFile:
    """The file of one shard."""

    file: str
    bytes: int
    records: int
    sha256: str
    dictionary_offset: int = 0
    """Offset in the file of its copy of the dictionary; 0 if it has none, or an older builder did not record it."""


@dataclass(frozen=True, slots=True)
class DictionaryChoice:
    """Why a generation has its compression dictionary."""

    outcome: str
    """``kept`` from the generation that was active, or ``trained``."""
    reason: str
    sha256: str
    """Checksum of the dictionary."""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RowSample:
    """A row that was excluded, and why."""

    file: str
    row: int
    """From 1, without the header."""
    reason: str


@dataclass(frozen=True, slots=True)
class ExcludedRows:
    """The number of rows excluded for one cause, with the first few of them."""

    count: int = 0
    samples: tuple[RowSample, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all shards: bytes of keys, of values as lookups return them, and of files."""

    records: int
    key_bytes: int
    value_bytes: int
    stored_bytes: int
    """Bytes of the stored values: framed, and compressed if that is smaller."""
    file_bytes: int
    largest_value_bytes: int = 0
    """Size of the largest value as lookups return it; 0 if an older builder did not record it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a generation must not be rolled out, and the facts behind it."""

    reasons: tuple[str, ...]
    """A message for each gate that failed."""
    gates: str
    """``Gates.content_hash()``."""
    active: str
    """The generation that the gates compared with; empty for none."""
    unjudged: tuple[str, ...] = ()
    """The reasons that only say that the active generation could not be read. A retry may pass."""


@dataclass(frozen=True, slots=True)
class AdoptedGeneration:
    """The original of a generation that was copied from an earlier dataset."""

    uid: str
    """The whole uid of that dataset."""
    generation: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One generation of one dataset."""

    namespace: str
    name: str
    uid: str
    generation: str
    content: str
    """``DatasetSpec.content_hash()``."""
    fingerprint: str
    """Changes if any object of the source changes."""
    source: tuple[SourceFile, ...]
    key_columns: tuple[str, ...]
    """Empty if the keys are the names of an object's members."""
    separator: str
    normalize: tuple[str, ...]
    unicode: str
    """The Unicode version of the tables that normalised the keys."""
    value_format: Literal["json", "raw"]
    compression: Literal["zstd", "none"]
    dictionary_bytes: int
    shards: tuple[ShardFile, ...]
    totals: Totals
    rejected: ExcludedRows
    duplicates: ExcludedRows
    built_at: str
    """ISO 8601, UTC."""
    seconds: float
    lookupdb: str
    """The version of lookupdb that built it."""
    success_file: str | None = None
    """The identity of the success file before the source was read."""
    refused: Refusal | None = None
    """Set while a failed gate prevents the rollout of the generation."""
    overridden: tuple[str, ...] = ()
    """Reasons of failed gates that somebody has overridden."""
    adopted: AdoptedGeneration | None = None
    """The original of a copy. The copy differs from it only in uid, generation and build."""
    build: str | None = None
    """The caller's name for the build; None if there is none. It distinguishes two builds of the same number, which
    exist if the first was forgotten."""
    dictionary: DictionaryChoice | None = None
    """None without compression, and if an older builder did not record it."""

    @property
    def source_modified_at(self) -> str | None:
        """When the newest file of the source was modified, in whole seconds; None if unknown."""
        length = len("2026-01-01T00:00:00")
        return max((f"{file.modified[:length]}Z" for file in self.source if file.modified), default=None)

    def has_same_files(self, other: Manifest) -> bool:
        """Return whether the shard files are the same, whatever their names."""
        return [shard.sha256 for shard in self.shards] == [shard.sha256 for shard in other.shards]

    def to_json(self) -> bytes:
        """Return indented JSON, for people too."""
        members = {"formatVersion": REFUSED_VERSION if self.refused else FORMAT_VERSION, **asdict(self)}
        for name in ("refused", "overridden", "adopted", "build", "dictionary"):
            if not members[name]:
                del members[name]
        return orjson.dumps(members, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_json(cls, text: bytes, where: str) -> Self:
        """Parse a manifest, ignoring members of a later minor revision. Raises CorruptFile, which names ``where``, for
        another format version, and for a member that is missing or has another type."""
        try:
            check_density(text)
            members: dict[str, Any] = orjson.loads(text)
            version = members.pop("formatVersion")
            if version not in (FORMAT_VERSION, REFUSED_VERSION):
                raise ValueError(
                    f"format version {version}; this lookupdb reads {FORMAT_VERSION} and {REFUSED_VERSION}"
                )
            generation_number(members["generation"])
            if (version == REFUSED_VERSION) != ("refused" in members):
                raise ValueError(f"format version {REFUSED_VERSION} is that of rejected generations, found {version}")
            if version == REFUSED_VERSION:
                refused = members["refused"]
                members["refused"] = Refusal(
                    reasons=tuple(map(_check_text, refused["reasons"])),
                    gates=_check_text(refused["gates"]),
                    active=_check_text(refused["active"]),
                    unjudged=tuple(map(_check_text, refused["unjudged"])),
                )
            members["overridden"] = tuple(map(_check_text, members.get("overridden", ())))
            if "adopted" in members:
                members["adopted"] = _parse_members(AdoptedGeneration, members["adopted"])
            if "dictionary" in members:
                members["dictionary"] = _parse_members(DictionaryChoice, members["dictionary"])
            for name in ("key_columns", "normalize"):
                members[name] = tuple(map(_check_text, members[name]))
            members["source"] = tuple(_parse_members(SourceFile, entry) for entry in members["source"])
            members["shards"] = tuple(_parse_members(ShardFile, entry) for entry in members["shards"])
            if not members["shards"]:
                raise ValueError("it names no shards")
            members["totals"] = _parse_members(Totals, members["totals"])
            for name in ("rejected", "duplicates"):
                samples = tuple(_parse_members(RowSample, sample) for sample in members[name]["samples"])
                members[name] = _parse_members(ExcludedRows, {"count": members[name]["count"], "samples": samples})
            return _parse_members(cls, members)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptFile(
                f"{where} is not a generation's index: {error}", hint="build the generation again"
            ) from error


def check_density(text: bytes) -> None:
    """Raise ValueError for JSON of very many small parts, such as ``[[],[],…``: parsed, it takes thirty times its size
    in memory. No manifest or claim looks like that."""
    containers, members = text.count(b"[") + text.count(b"{"), text.count(b",")
    if containers > _MIN_PARTS + len(text) // 32 or members > _MIN_PARTS + len(text) // 8:
        raise ValueError(f"too many parts: {containers} lists and objects, {members} members in {len(text)} bytes")


def _parse_members(kind: type[T], members: dict[str, Any]) -> T:
    """Make a ``kind`` from ``members``, ignoring unknown ones. Raises TypeError for a member of another type."""
    present = [field for field in fields(kind) if field.name in members]  # type: ignore[arg-type]
    for field in present:
        if not isinstance(members[field.name], _TYPES.get(field.type, object)) or isinstance(members[field.name], bool):
            shown_value = f"{members[field.name]!r:.80}"
            raise TypeError(f"{field.name} is {shown_value}, expected {field.type}")
    return kind(**{field.name: members[field.name] for field in present})


def _check_text(member: Any) -> str:
    if not isinstance(member, str):
        raise TypeError(f"{member!r:.80} is not text")
    return member


# The announcement of a dataset's active generation: ``active.json`` beside the generations.
#
#     {"formatVersion": 1, "dataset": {"namespace": "team", "name": "people", "uid": "3f2b9c1e-…"},
#      "generation": "g12", "version": 17, "announcedAt": "2026-11-20T02:04:00Z"}
#
# `lookupdb up` or a cluster's operator writes it after a cutover that routers have confirmed. ``version`` is the
# routing table's, and only grows. The file is a note of the dataset (``StoredDataset.read_note``), not of a generation.


_ANNOUNCEMENT_FORMAT: Final = 1
ANNOUNCEMENT_NOTE: Final = "active.json"
MAX_ANNOUNCEMENT_BYTES: Final = 4096
LOST_HINT: Final = (
    "that generation was removed, or has not arrived yet: `lookupdb up` or an operator announces the next one;"
    " if neither runs, remove active.json to follow the newest generation"
)
WRITE_AGAIN: Final = "`lookupdb up` or an operator writes it again at the next cutover; until then remove or correct it"


@dataclass(frozen=True, slots=True)
class Announcement:
    """The active generation of a dataset: the one that routers have confirmed, with the version of their table."""

    namespace: str
    name: str
    uid: str
    generation: str
    version: int
    announced_at: str
    """ISO 8601, with its time zone."""

    def to_json(self) -> bytes:
        """Return one line of JSON."""
        members: dict[str, Any] = {
            "formatVersion": _ANNOUNCEMENT_FORMAT,
            "dataset": {"namespace": self.namespace, "name": self.name, "uid": self.uid},
            "generation": self.generation,
            "version": self.version,
            "announcedAt": self.announced_at,
        }
        return orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE)


def parse_announcement(content: bytes, where: str) -> Announcement:
    """Parse an announcement. Raises CorruptFile, which names ``where``, for another format version or invalid content.
    Ignores members of a later minor revision."""
    try:
        if len(content) > MAX_ANNOUNCEMENT_BYTES:
            raise ValueError(f"it has {len(content)} bytes, expected at most {MAX_ANNOUNCEMENT_BYTES}")
        members = _check_type(orjson.loads(content), dict, "it", "an object")
        version = members.get("formatVersion")
        if version != _ANNOUNCEMENT_FORMAT or isinstance(version, bool):
            raise CorruptFile(
                f"{where} has format version {version!r}, this lookupdb reads {_ANNOUNCEMENT_FORMAT}",
                hint="upgrade the readers of announcements before the writers",
            )
        dataset = _check_type(members["dataset"], dict, "dataset", "an object")
        names = [_check_type(dataset[name], str, f"dataset.{name}", "text") for name in ("namespace", "name", "uid")]
        generation = _check_type(members["generation"], str, "generation", "text")
        if not GENERATION.fullmatch(generation):
            raise ValueError(f"generation is {generation!r:.80}, expected g1, g2, …")
        number = _check_type(members["version"], int, "version", "a whole number")
        if number < 0:
            raise ValueError(f"version is {number}, expected 0 or more")
        announced_at = _check_type(members["announcedAt"], str, "announcedAt", "text")
        if datetime.datetime.fromisoformat(announced_at).tzinfo is None:
            raise ValueError(f"announcedAt must name its time zone (Z), found {announced_at!r}")
        namespace, name, uid = names
        return Announcement(namespace, name, uid, generation, number, announced_at)
    except KeyError as error:
        raise CorruptFile(f"{where} is not an announcement: it lacks {error}", hint=WRITE_AGAIN) from error
    except (ValueError, TypeError) as error:
        raise CorruptFile(f"{where} is not an announcement: {error}", hint=WRITE_AGAIN) from error


def is_stale(announced: str, newest: str | None) -> bool:
    """Return whether to follow ``newest``, a whole generation, because it is newer than the lost ``announced`` one.

    Only for a directory: its listings are complete, and the `lookupdb up` that announced it may have ended. A bucket's
    listing may be late, and its operator builds lost generations again.
    """
    return newest is not None and generation_number(announced) < generation_number(newest)


def _check_type(value: Any, kind: type, name: str, expected: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool) or value == "":
        raise TypeError(f"{name} is {value!r:.80}, expected {expected}")
    return value


def check_shard_size(path: Path, shard: ShardFile) -> None:
    """Raise CorruptFile if the file is missing or has another size than in the manifest; StoreError or NotEnoughRoom if
    it cannot be opened. Call this before mapping a file: touching a page beyond its end kills the process."""
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise CorruptFile(f"{path} is missing, although its index names it", hint=DAMAGED_HINT) from error
    except OSError as error:
        raise opening_error(path, error.errno or 0) from error
    if size != shard.bytes:
        raise CorruptFile(f"{path} is {size} bytes long, its index says {shard.bytes}", hint=DAMAGED_HINT)


def verify_shard_file(path: Path, shard: ShardFile) -> None:
    """Raise CorruptFile if the file at ``path`` does not match its manifest; StoreError or NotEnoughRoom if it cannot
    be read."""
    import hashlib  # here, because it loads OpenSSL

    check_shard_size(path, shard)
    try:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise opening_error(path, error.errno or 0) from error
    if actual != shard.sha256:
        raise CorruptFile(f"{path} has checksum {actual}, its index says {shard.sha256}", hint=DAMAGED_HINT)
