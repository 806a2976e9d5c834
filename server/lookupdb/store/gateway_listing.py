"""Reads a listing of a gateway: lines of JSON, of which the last one says that it is whole."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

from lookupdb.store.gateway_wire import END, is_object_path

_MAX_LINE_BYTES: Final = 16 << 10
MAX_LISTING_BYTES: Final = 64 << 20
"""Some 250,000 objects, where a dataset has thousands."""


class BrokenListing(Exception):
    """A listing that ends without its last line."""


class InvalidListing(Exception):
    """What is no listing of a gateway, and why."""


def read_objects(chunks: Iterable[bytes], folder: str) -> list[dict[str, Any]]:
    """The objects of a listing of ``folder``, as obstore would list them, its own marker too. Raises
    BrokenListing, InvalidListing."""
    return [_parse_object(members, folder) for members in _read_members(chunks)]


def read_folders(chunks: Iterable[bytes], folder: str) -> list[str]:
    """The names of the folders directly under ``folder``. Raises BrokenListing, InvalidListing."""
    return [_parse_folder(members, folder) for members in _read_members(chunks)]


def _read_members(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    is_whole = False
    for line in _split_lines(chunks):
        if not line:
            continue  # by which a gateway says that it is at work
        if is_whole:
            raise InvalidListing("the listing goes on after its end")
        try:
            members = orjson.loads(line)
        except ValueError as error:
            raise InvalidListing("a line of the listing is no JSON") from error
        if not isinstance(members, dict):
            raise InvalidListing("a line of the listing is no JSON object")
        if members == {END: True}:
            is_whole = True
        else:
            yield members
    if not is_whole:
        raise BrokenListing


def _split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, each of which ends with a newline. Raises BrokenListing if the last one does not."""
    rest, size = b"", 0
    for chunk in chunks:
        size += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        if (
            size > MAX_LISTING_BYTES
            or len(rest) > _MAX_LINE_BYTES
            or any(len(line) > _MAX_LINE_BYTES for line in lines)
        ):
            raise InvalidListing(f"more than {MAX_LISTING_BYTES} bytes, or {_MAX_LINE_BYTES} in one line")
        yield from lines
    if rest:
        raise BrokenListing


def _parse_object(members: dict[str, Any], folder: str) -> dict[str, Any]:
    path, size, modified = members.get("path"), members.get("size"), members.get("last_modified")
    if not isinstance(path, str) or not f"{path}/".startswith(f"{folder}/") or not is_object_path(path):
        raise InvalidListing(f"it lists {str(path)[:200]!r} under {folder}")
    version = {name: members.get(name) for name in ("e_tag", "version")}
    if type(size) is not int or size < 0 or not all(isinstance(text, str | None) for text in version.values()):
        raise InvalidListing(f"it does not say of {path} which version of which size it is")
    return {"path": path, "size": size, "last_modified": _parse_time(modified, path), **version}


def _parse_time(text: Any, path: str) -> datetime.datetime:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise InvalidListing(f"it does not say when {path} was changed") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def _parse_folder(members: dict[str, Any], folder: str) -> str:
    prefix = members.get("prefix")
    name = prefix.removeprefix(f"{folder}/").rstrip("/") if isinstance(prefix, str) else ""
    if not isinstance(prefix, str) or not prefix.startswith(f"{folder}/") or "/" in name or not is_object_path(name):
        raise InvalidListing(f"it lists the folder {str(prefix)[:200]!r} under {folder}")
    return name
