"""When a dataset is refreshed: ``spec.refresh`` as a dataclass, and where its success file is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from lookupdb.errors import InvalidManifest

_WILDCARD: Final = re.compile(r"[*?\[]")
_EXAMPLE: Final = "example://"


@dataclass(frozen=True, slots=True)
class Refresh:
    """When the source is looked at, and when it may be read."""

    schedule: str | None
    time_zone: str
    suspend: bool
    starting_deadline_seconds: int | None
    success_file: str | None
    """The url of the file that says that the source is whole: as relative as the source's urls are."""
    stale_after_seconds: int | None


def parse_refresh(members: dict[str, Any], urls: Iterable[str]) -> Refresh:
    """``spec.refresh`` of a resource that the schema has completed; ``urls`` are the source's. Raises
    InvalidManifest."""
    schedule, time_zone = members.get("schedule"), members["timeZone"]
    if schedule is not None:
        from lookupdb.schedule import Schedule  # only who gives one needs the time zones

        Schedule.parse(schedule, time_zone)
    success_file = members.get("successFile")
    return Refresh(
        schedule=schedule,
        time_zone=time_zone,
        suspend=members["suspend"],
        starting_deadline_seconds=members.get("startingDeadlineSeconds"),
        success_file=None if success_file is None else _locate_success_file(success_file, urls),
        stale_after_seconds=members.get("staleAfterSeconds"),
    )


def _locate_success_file(name: str, urls: Iterable[str]) -> str:
    """The url of the success file ``name``: itself, or in the one folder that all of the source's ``urls`` are of."""
    if "://" in name or name.startswith("/"):
        return name
    folders = sorted({_source_folder(url) for url in urls})
    if len(folders) > 1 or folders[0].startswith(_EXAMPLE):
        found = (
            "an example, which is in none"
            if len(folders) == 1
            else f"{len(folders)} folders ({', '.join(folders[:3])})"
        )
        raise InvalidManifest(
            f"refresh.successFile: {name!r} is a file of the source's folder, and the source is of {found}: give its"
            " whole url"
        )
    return folders[0] + name


def _source_folder(url: str) -> str:
    """The folder of ``url``, with the slash at its end, without what wildcards match and without a query. Empty for the
    manifest's own."""
    scheme, separator, rest = url.rpartition("://")
    path = rest.partition("?")[0] if scheme in ("http", "https") else rest
    fixed = path[: match.start()] if (match := _WILDCARD.search(path)) else path
    folder, slash, _ = fixed.rpartition("/")
    return f"{scheme}{separator}{folder}{slash}"
