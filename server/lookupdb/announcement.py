"""The announcement of a dataset's active generation: ``active.json`` beside the generations.

    {"formatVersion": 1, "dataset": {"namespace": "team", "name": "people", "uid": "3f2b9c1e-…"},
     "generation": "g12", "version": 17, "announcedAt": "2026-11-20T02:04:00Z"}

`lookupdb up` or a cluster's operator writes it after a cutover, once routers have confirmed. ``version`` is that of
the routing table, and only grows. It is a note of the dataset (``StoredDataset.read_note``), not of a generation.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lookupdb.errors import CorruptFile
from lookupdb.manifest import GENERATION, generation_number

_FORMAT: Final = 1
ANNOUNCEMENT_NOTE: Final = "active.json"
MAX_ANNOUNCEMENT_BYTES: Final = 4096
LOST_HINT: Final = (
    "it was removed, or has not arrived yet: `lookupdb up` or an operator announces the next one;"
    " if neither runs, remove that file, and the newest generation is followed"
)
WRITE_AGAIN: Final = "`lookupdb up` or an operator writes it again at the next cutover; until then remove or correct it"


@dataclass(frozen=True, slots=True)
class Announcement:
    """The generation of a dataset that routers have confirmed, by the version of their table."""

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
            "formatVersion": _FORMAT,
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
        if version != _FORMAT or isinstance(version, bool):
            raise CorruptFile(
                f"{where} has format version {version!r}, this lookupdb reads {_FORMAT}",
                hint="upgrade the readers of announcements before the writers",
            )
        dataset = _check_type(members["dataset"], dict, "dataset", "an object")
        names = [_check_type(dataset[name], str, f"dataset.{name}", "text") for name in ("namespace", "name", "uid")]
        generation = _check_type(members["generation"], str, "generation", "text")
        if not GENERATION.fullmatch(generation):
            raise ValueError(f"generation is {generation!r:.80}, expected g1, g2, …")
        number = _check_type(members["version"], int, "version", "a whole number")
        if number < 0:
            raise ValueError(f"version is {number}, expected a whole number")
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
    """Return whether to follow the ``newest`` whole generation instead of ``announced``, which the store no longer has:
    it is newer, so it came after the announcement.

    Only for a directory, where a listing is complete: `lookupdb up` has announced, and has ended. A bucket may list
    late, and its operator builds lost generations again.
    """
    return newest is not None and generation_number(announced) < generation_number(newest)


def _check_type(value: Any, kind: type, name: str, expected: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool) or value == "":
        raise TypeError(f"{name} is {value!r:.80}, expected {expected}")
    return value
