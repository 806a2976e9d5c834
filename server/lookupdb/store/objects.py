"""What holds objects: the interface that a bucket needs, whatever speaks to the store.

``obstore_objects`` implements it for S3, GCS and Azure, ``gateway_objects`` for a gateway that stands before one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from lookupdb.errors import CorruptFile
from lookupdb.store.gateway_wire import MAX_CONDITIONAL_BYTES

PART_BYTES: Final = 8 << 20
"""Of a large object that is put or read in parts."""
MAX_COPY_BYTES: Final = 5_000_000_000
"""Of an object that S3 copies in one request; a larger one would be copied in parts, which obstore does not do."""
RETRIES: Final = 8
RETRY_SECONDS: Final = 20
"""For one request. Callers that can do without the store for longer retry themselves."""
MAX_BACKOFF_SECONDS: Final = 2
CONNECT_SECONDS: Final = 10
SILENCE_SECONDS: Final = 60
"""A transfer in which nothing moves for so long is ended."""
PROBE_CONNECT_SECONDS: Final = 2
PROBE_SECONDS: Final = 5

Version = dict[str, Any]
"""The version that a conditional request names: an ETag, a version, or both."""
PutMode = Version | Literal["create"] | None
"""The version to replace; ``create`` if there must be none; None overwrites whatever is there."""


class ObjectStore(Protocol):
    """Objects by their paths. Every method raises StoreError, and its kinds as their docstrings say; a put that raised
    may have happened."""

    identity: str
    """The same for two that reach the same objects with the same credentials (``credentials.identify_store``)."""

    def get(self, path: str) -> tuple[bytes, Version] | None:
        """A small object and its version; None if there is none. Raises CorruptFile, and has read nothing, if it has
        more than ``MAX_CONDITIONAL_BYTES``."""

    def size(self, path: str) -> int | None:
        """The bytes of an object; None if there is none."""

    def stream(self, path: str, start: int = 0) -> Iterator[bytes] | None:
        """The bytes of an object from ``start`` on, in chunks as they arrive; None if there is none. The iterator
        raises StoreError as well."""

    def put(self, path: str, body: bytes, mode: PutMode = None) -> Version:
        """Put a small object, if the condition ``mode`` holds; its version."""

    def upload(self, path: str, file: Path) -> None:
        """Put the content of ``file``, in parts if it is large. The object appears whole or not at all."""

    def copy(self, source: str, target: str, size: int) -> bool:
        """Copy an object of ``size`` bytes within the store, where that takes one request and none of its bytes pass
        through here; False where it does not, and nothing was done. The copy appears whole or not at all."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete those of ``paths`` that exist, in as few requests as the store allows."""

    def list_objects(self, path: str) -> Iterable[Mapping[str, Any]]:
        """Every object under the folder ``path``: ``path``, ``size``, ``e_tag``, ``version``, ``last_modified``."""

    def list_folders(self, path: str) -> Iterable[str]:
        """The names directly under ``path`` that have objects under them, all at once. One may come again."""

    def walk_folders(self, path: str) -> Iterable[str]:
        """The same in bounded memory, however many there are: as they come, at the price of many requests."""

    def probe(self, folder: str) -> None:
        """Ask once, and not for long, whether the store is there: any answer proves it, even a refusal. ``folder`` is
        one that the caller may list. Raises StoreUnreachable."""


def check_small(message: str, size: int) -> None:
    """Raises CorruptFile, which begins with ``message``, if an object that is read at once is too large for that."""
    if size > MAX_CONDITIONAL_BYTES:
        raise CorruptFile(
            f"{message}: it has {size} bytes, expected at most {MAX_CONDITIONAL_BYTES}",
            hint="no manifest, claim or note is as large: look who else writes there, and remove it",
        )


def folder_names(entries: Iterable[Mapping[str, Any]], path: str) -> Iterator[str]:
    """The folders directly under ``path`` in which ``entries`` of its listing are. One comes once where the listing has
    the order of names, and may come again where it has not."""
    prefix, last = f"{path}/", ""
    for entry in entries:
        name, separator, _ = entry["path"].removeprefix(prefix).partition("/")
        # The folder's own marker, which consoles of stores make, comes without the slash behind it.
        if separator and name != last and entry["path"].startswith(prefix):
            last = name
            yield name


def object_version(entry: Mapping[str, Any]) -> Version:
    """The version in an entry of the store's listing."""
    return {name: entry[name] for name in ("e_tag", "version") if entry.get(name) is not None}
