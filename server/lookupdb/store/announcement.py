"""The announcement of a dataset's active generation: ``active.json`` beside the generations in the store.

    {"formatVersion": 1, "dataset": {"namespace": "team", "name": "people", "uid": "3f2b9c1e-…"},
     "generation": "g12", "version": 17, "announcedAt": "2026-11-20T02:04:00Z"}

`lookupdb up` or a cluster's operator writes it after a cutover, once routers have confirmed. ``version`` is that of the
routing table, and only grows. It is a note of the dataset (``StoredDataset.read_note``), not of a generation.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lookupdb.errors import CorruptFile
from lookupdb.manifest import GENERATION
from lookupdb.store.dataset import StoredDataset, is_older
from lookupdb.store.layout import StoreAddress

FORMAT_VERSION: Final = 1
ANNOUNCEMENT_NOTE: Final = "active.json"
MAX_ANNOUNCEMENT_BYTES: Final = 4096
LOST_HINT: Final = (
    "it was removed, or has not arrived yet: `lookupdb up` or an operator announces the next one;"
    " if neither runs, remove that file, and the newest generation is followed"
)
_WRITE_AGAIN: Final = (
    "`lookupdb up` or an operator writes it again at the next cutover; until then remove or correct it"
)


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
            "formatVersion": FORMAT_VERSION,
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
        members = _check_object(orjson.loads(content), "it")
        version = members.get("formatVersion")
        if version != FORMAT_VERSION or isinstance(version, bool):
            raise CorruptFile(
                f"{where} has format version {version!r}, this lookupdb reads {FORMAT_VERSION}",
                hint="upgrade the readers of announcements before the writers",
            )
        dataset = _check_object(members["dataset"], "dataset")
        return Announcement(
            **{name: _check_text(dataset[name], f"dataset.{name}") for name in ("namespace", "name", "uid")},
            generation=_check_generation(members["generation"]),
            version=_check_version(members["version"]),
            announced_at=_check_moment(members["announcedAt"]),
        )
    except KeyError as error:
        raise CorruptFile(f"{where} is not an announcement: it lacks {error}", hint=_WRITE_AGAIN) from error
    except (ValueError, TypeError) as error:
        raise CorruptFile(f"{where} is not an announcement: {error}", hint=_WRITE_AGAIN) from error


def read_announcement(dataset: StoredDataset) -> Announcement | None:
    """Return the announcement of ``dataset``; None if there is none. Raises StoreError; CorruptFile also for the
    announcement of another dataset."""
    content = dataset.read_note(ANNOUNCEMENT_NOTE)
    if content is None:
        return None
    where = f"{dataset.url}/{ANNOUNCEMENT_NOTE}"
    found = parse_announcement(content, where)
    if not is_announced_for(found, dataset.address):
        raise CorruptFile(
            f"{where} announces {found.namespace}/{found.name} ({found.uid[:8]}), expected {dataset.address}"
            f" ({dataset.address.uid})",
            hint=_WRITE_AGAIN,
        )
    return found


def write_announcement(dataset: StoredDataset, uid: str, generation: str, version: int, moment: str) -> None:
    """Announce ``generation`` of ``dataset``, whose whole uid is ``uid``, at ``moment``, unless a later version is
    announced.

    Raises StoreError.
    """
    announcement = Announcement(dataset.address.namespace, dataset.address.name, uid, generation, version, moment)
    with dataset.hold_notes():
        try:
            standing = read_announcement(dataset)
        except CorruptFile:
            standing = None
        if standing is None or standing.version < version:
            dataset.write_note(ANNOUNCEMENT_NOTE, announcement.to_json())


def is_stale(announced: str, newest: str | None) -> bool:
    """Return whether to follow the ``newest`` whole generation instead of ``announced``, which the store no longer has:
    it is newer, so it came after the announcement.

    Only for a directory, where a listing is complete: `lookupdb up` has announced, and has ended. A bucket may list
    late, and its operator builds lost generations again.
    """
    return newest is not None and is_older(announced, newest)


def is_announced_for(announcement: Announcement, address: StoreAddress) -> bool:
    """Return whether the announcement is for the dataset at ``address``."""
    own = (address.namespace, address.name, address.uid)
    return own == (announcement.namespace, announcement.name, announcement.uid[:8])


def _check_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{what} is {value!r:.80}, expected an object")
    return value


def _check_text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{what} is {value!r:.80}, expected text")
    return value


def _check_generation(value: Any) -> str:
    if not GENERATION.fullmatch(_check_text(value, "generation")):
        raise ValueError(f"generation is {value!r:.80}, expected g1, g2, …")
    return str(value)


def _check_version(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"version is {value!r:.80}, expected a whole number")
    return value


def _check_moment(value: Any) -> str:
    moment = datetime.datetime.fromisoformat(_check_text(value, "announcedAt"))
    if moment.tzinfo is None:
        raise ValueError(f"announcedAt must name its time zone (Z), found {value!r}")
    return str(value)
