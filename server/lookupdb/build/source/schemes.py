"""From a url of the spec to the files that it names or matches.

``SCHEMES`` lists every scheme; any other is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lookupdb.build.source.local_files import find_example, find_file, find_in_volume, find_path
from lookupdb.build.source.location import LocatedFile
from lookupdb.build.source.remote_objects import find_http, find_objects
from lookupdb.errors import BadSource

_USER: Final = re.compile(r"//[^/]*@")


def find_files(url: str, *, base: Path | None, volume: Path | None) -> list[LocatedFile]:
    """The files that ``url`` names or, with wildcards, matches, sorted by path; at least one. Raises BadSource."""
    try:
        return _dispatch(url, base, volume)
    except (ValueError, re.error) as error:
        redacted_url = _USER.sub("//", url.partition("?")[0])
        raise BadSource(f"{redacted_url!r} is not a url: {error}", hint="check source.url") from error


def _dispatch(url: str, base: Path | None, volume: Path | None) -> list[LocatedFile]:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return find_path(url, url, base)
    if scheme == "volume":
        return find_in_volume(url, rest, volume)
    finder = SCHEMES.get(scheme)
    if finder is None:
        schemes = ", ".join(f"{name}://" for name in (*SCHEMES, "volume") if name != "http")
        raise BadSource(f"{url}: {scheme}:// is not a scheme a source is read from", hint=f"use one of {schemes}")
    return finder(url)


SCHEMES: Final[dict[str, Callable[[str], list[LocatedFile]]]] = {
    "file": find_file,
    "https": find_http,
    "http": find_http,
    "s3": find_objects,
    "gs": find_objects,
    "az": find_objects,
    "example": find_example,
}
"""Scheme → the function that finds its files. ``find_files`` handles ``volume``, because it knows the mount."""
