"""A bucket: the objects of a store, with conditional writes that survive lost answers.

``Bucket`` reaches them at a gateway, or at S3, GCS and Azure through obstore (``ObstoreObjects``).

A write that fails may have taken effect: the answer can be lost, and the store then refuses the retry. So after an
error a conditional put reads the object, and the content of the bucket decides (``put_if``).
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from lookupdb.errors import ListingTooLong, StoreDenied, StoreError, StoreUnreachable
from lookupdb.network import describe_failure, is_unreachable, panics_as_errors
from lookupdb.store.objects import (
    CONNECT_SECONDS,
    MAX_BACKOFF_SECONDS,
    MAX_COPY_BYTES,
    PART_BYTES,
    PROBE_CONNECT_SECONDS,
    PROBE_SECONDS,
    RETRIES,
    RETRY_SECONDS,
    SILENCE_SECONDS,
    PutMode,
    Version,
    allows_http,
    check_small,
    find_endpoint,
    folder_names,
    identify_store,
    object_version,
    store_environment,
)
from lookupdb.wording import strip_secrets

if TYPE_CHECKING:
    from obstore import GetOptions

    from lookupdb.store.gateway import GatewayObjects

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 3.0
LEASE_SECONDS: Final = 15.0
"""The builder of a claim that did not change for this long counts as dead."""
PATIENCE_SECONDS: Final = 20.0
"""Seconds that a builder retries one step of a publication, beyond the retries of a request."""
MAX_LISTING_BYTES: Final = 40 << 20
"""Limit of a listing, counted as ``_ENTRY_BYTES`` and the path of each object: about 150,000 objects or folders, and
100 MiB of memory. A dataset keeps at most 100 generations of 1,024 shards."""
_ENTRY_BYTES: Final = 200
_ENTRY: Final = ("size", "e_tag", "version", "last_modified")
_PROBE_PAUSE_SECONDS: Final = 0.5
"""Seconds between two probes of a store that does not answer yet."""


@dataclass(frozen=True, slots=True)
class ObjectState:
    """An object as it was found or put; ``body`` is None if there is no such object."""

    body: bytes | None
    version: Version
    error: StoreError | None = None
    """Why the put failed, if the answer was an error."""


class Bucket:
    """A bucket, a folder of one, or a gateway to one."""

    def __init__(
        self,
        url: str,
        *,
        heartbeat: float = HEARTBEAT_SECONDS,
        lease: float = LEASE_SECONDS,
        patience: float = PATIENCE_SECONDS,
        retries: int = RETRIES,
    ) -> None:
        """Raises UsageError or StoreError if the environment does not say how to reach it."""
        self.url = url.rstrip("/")
        self.heartbeat = heartbeat
        self.lease = lease
        self.patience = patience
        self.objects: ObstoreObjects | GatewayObjects
        if urlsplit(url).scheme in ("http", "https"):
            from lookupdb.store.gateway import GatewayObjects

            self.objects = GatewayObjects(self.url, retries)
        else:
            self.objects = ObstoreObjects(self.url, retries)
        self.identity = self.objects.identity
        """Equal for two references to the same bucket with the same credentials."""

    def wait(self, seconds: float, folder: str = "") -> None:
        """Return once the store answers. Raises StoreUnreachable after ``seconds`` without an answer."""
        began = time.monotonic()
        is_logged = False
        while True:
            try:
                self.objects.probe(folder)
            except StoreUnreachable as error:
                failure = error
            else:
                return
            if time.monotonic() - began + _PROBE_PAUSE_SECONDS > seconds:
                raise failure
            if not is_logged:
                is_logged = True
                log.warning("waiting for the store: %s", failure.message, extra={"atMostSeconds": seconds})
            time.sleep(_PROBE_PAUSE_SECONDS)

    def read(self, path: str) -> ObjectState:
        """Return the object at ``path``. Raises StoreError if it cannot be read."""
        found = self.objects.get(path)
        return ObjectState(None, {}) if found is None else ObjectState(*found)

    def put_if(self, path: str, body: bytes, mode: PutMode) -> ObjectState:
        """Put ``body`` at ``path`` on a condition ("create", or the version to replace), and return the object as it
        is then. It holds ``body`` exactly if the put took effect, even if the answer was an error.

        A missing object may still appear, because a request may be in flight. Raises StoreError if the answer was an
        error and the bucket cannot be read.
        """
        try:
            return ObjectState(body, self.objects.put(path, body, mode))
        except StoreError as error:
            standing = self.read(path)
            return ObjectState(standing.body, standing.version, error)

    def folders(self, path: str) -> Collection[str]:
        """Return the names directly under ``path`` that have objects under them. Raises StoreError."""
        return set(self.objects.list_folders(path))

    def files(self, path: str) -> dict[str, dict[str, Any]]:
        """Return every object under ``path``: its relative name, and its entry in the store's listing. Raises
        StoreError, ListingTooLong if they do not fit into memory."""
        return dict(self._list(path))

    def _list(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        held = 0
        for entry in self.objects.list_objects(path):
            held += len(entry["path"]) + _ENTRY_BYTES
            self._check_size(held, path, "objects")
            if entry["path"].startswith(f"{path}/"):  # skip a console's empty object for the folder
                yield entry["path"].removeprefix(f"{path}/"), {name: entry.get(name) for name in _ENTRY}

    def _check_size(self, size: int, path: str, what: str) -> None:
        """Raise ListingTooLong if a listing of ``path`` takes too much memory."""
        if size > MAX_LISTING_BYTES:
            raise ListingTooLong(
                f"{self.url}/{path} has more {what} than lookupdb creates: its listing has more than"
                f" {MAX_LISTING_BYTES} bytes",
                hint="find out what else writes there, and remove what belongs to no generation",
            )

    def entries(self, path: str) -> dict[str, dict[str, dict[str, Any]]]:
        """Return ``files`` grouped by the first part of the names, without files beside the folders. A folder's own
        marker is listed without its slash, like a file beside the folder. No build leaves a marker, and obstore cannot
        delete it."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for name, entry in self._list(path):
            folder, _, file = name.partition("/")
            if file:
                found.setdefault(folder, {})[file] = entry
        return found

    def walk_folders(self, path: str) -> set[str]:
        """Return the same as ``folders``, in bounded memory. Raises StoreError, ListingTooLong."""
        found: set[str] = set()
        held = 0
        for name in self.objects.walk_folders(path):
            if name not in found:
                held += len(name) + _ENTRY_BYTES
                self._check_size(held, path, "folders")
                found.add(name)
        return found


_CLIENT: Final = {"connect_timeout": f"{CONNECT_SECONDS}s", "timeout": "7days"}
"""``timeout`` covers a whole file of any size; ``read_timeout`` ends a transfer that stalls."""
_PROBE_CLIENT: Final = {
    "connect_timeout": f"{PROBE_CONNECT_SECONDS}s",
    "read_timeout": f"{PROBE_SECONDS}s",
    "timeout": f"{PROBE_SECONDS}s",
}
_PROBE: Final = "lookupdb-is-there"
"""A name that no object has: any answer to a request for it, even a refusal, proves that the store is there."""
_PARTS_AT_ONCE: Final = 4
"""An upload holds this many parts in memory."""


class ObstoreObjects:
    """The objects of a bucket, or of a folder of one, by their paths. ``GatewayObjects`` has the same methods.

    Every method raises StoreError, or the kinds of it that its docstring names; a put that raised may have taken
    effect.
    """

    def __init__(self, url: str, retries: int = RETRIES, silence_seconds: int = SILENCE_SECONDS) -> None:
        """A request is retried when the store sends nothing for ``silence_seconds``."""
        self.url = url.rstrip("/")
        self.identity = self._label = self.url
        self._prober: Any = None
        self.store: Any = self._client({**_CLIENT, "read_timeout": f"{silence_seconds}s"}, retries)

    def _client(self, options: Mapping[str, Any], retries: int) -> Any:
        with self.translate_errors("use"):
            scheme = self.url.partition("://")[0]
            with store_environment(scheme) as variables:
                self.identity = identify_store(self.url, variables)
                # These options replace obstore's own from the environment.
                client = {**options, "allow_http": allows_http(scheme, variables)}
                if endpoint := find_endpoint(scheme, variables):
                    self._label = f"{self.url} at {strip_secrets(endpoint)}"
                return obstore.store.from_url(  # type: ignore[call-overload]
                    self.url,
                    client_options=client,
                    retry_config={
                        "max_retries": retries,
                        "retry_timeout": datetime.timedelta(seconds=RETRY_SECONDS),
                        "backoff": {"max_backoff": datetime.timedelta(seconds=MAX_BACKOFF_SECONDS)},
                    },
                )

    @contextmanager
    def translate_errors(self, action: str) -> Iterator[None]:
        """Turn obstore's errors into errors that a user can act on."""
        try:
            with panics_as_errors():
                yield
        except (BaseError, OSError, ValueError) as error:
            raise self.error(action, error) from error

    def error(self, action: str, error: Exception) -> StoreError:
        """Return the error for a failed attempt to ``action`` this bucket."""
        message = f"cannot {action} {self._label}"
        # For listings, obstore gives the status only in the error's text.
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or any(
            f"status code: {status}" in str(error) for status in (401, 403)
        ):
            return StoreDenied(
                f"{message}: access denied: {describe_failure(error)}",
                hint="check the store's credentials and their permissions",
            )
        if is_unreachable(error):
            return StoreUnreachable(
                f"{message}: {describe_failure(error)}",
                hint="check that the store runs, its address, and the network in between",
            )
        return StoreError(
            f"{message}: {describe_failure(error)}", hint="check its address, credentials and permissions"
        )

    def get(self, path: str) -> tuple[bytes, Version] | None:
        """Return a small object and its version; None if there is none. Raises CorruptFile, without reading it, if it
        has more than ``MAX_CONDITIONAL_BYTES``."""
        with self.translate_errors("read"):
            try:
                result = obstore.get(self.store, path)
                check_small(f"cannot read {self.url}/{path}", result.meta["size"])
                return bytes(result.bytes()), object_version(result.meta)
            except FileNotFoundError:
                return None

    def size(self, path: str) -> int | None:
        """Return the size of an object; None if there is none."""
        with self.translate_errors("read"):
            try:
                return int(obstore.head(self.store, path)["size"])
            except FileNotFoundError:
                return None

    def stream(self, path: str, start: int = 0) -> Iterator[bytes] | None:
        """Return the bytes of an object from ``start`` on, in chunks as they arrive; None if there is none. The
        iterator raises StoreError as well, and is not resumed."""
        options: GetOptions = {"range": {"offset": start}} if start else {}
        with self.translate_errors("read"):
            try:
                chunks = obstore.get(self.store, path, options=options).stream(min_chunk_size=PART_BYTES)
            except FileNotFoundError:
                return None

        def read_chunks() -> Iterator[bytes]:
            while True:
                with self.translate_errors("read"):
                    chunk = next(chunks, None)
                if chunk is None:
                    return
                yield bytes(chunk)

        return read_chunks()

    def put(self, path: str, body: bytes, mode: PutMode = None) -> Version:
        """Put a small object, if the condition ``mode`` holds; return its version."""
        with self.translate_errors("write to"):
            if mode is None:
                return object_version(obstore.put(self.store, path, body))
            # A multipart upload cannot be conditional.
            return object_version(obstore.put(self.store, path, body, mode=mode, use_multipart=False))  # type: ignore[arg-type]

    def upload(self, path: str, file: Path) -> None:
        """Put the content of ``file``, in parts if it is large. The object appears whole or not at all."""
        with self.translate_errors(f"put {file.name} into"):
            obstore.put(self.store, path, file, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def can_copy(self, size: int) -> bool:
        """Return whether one request copies this many bytes. Azure may answer before it has copied."""
        return size <= MAX_COPY_BYTES and self.url.startswith(("s3://", "gs://"))

    def copy(self, source: str, target: str, size: int) -> bool:
        """Copy an object of ``size`` bytes within the store, if that takes one request and no bytes pass through here.
        If not, do nothing and return False. The copy appears whole or not at all."""
        if not self.can_copy(size):
            return False
        with self.translate_errors("copy within"):
            obstore.copy(self.store, source, target)
        return True

    def delete(self, paths: Sequence[str]) -> None:
        """Delete those of ``paths`` that exist, in as few requests as the store allows."""
        with self.translate_errors("remove objects from"):
            try:
                obstore.delete(self.store, paths)
            except FileNotFoundError:  # some stores refuse to delete missing objects
                for path in paths:
                    with suppress(FileNotFoundError):
                        obstore.delete(self.store, path)

    def list_objects(self, path: str) -> Iterator[Mapping[str, Any]]:
        """Yield every object under the folder ``path``: ``path``, ``size``, ``e_tag``, ``version``,
        ``last_modified``."""
        with self.translate_errors("list"):
            for page in obstore.list(self.store, path):
                yield from page

    def list_folders(self, path: str) -> list[str]:
        """Return the names directly under ``path`` that have objects under them. obstore returns them all at once:
        150,000 take 45 MiB, or 120 MiB if their names have 200 bytes. A name may occur twice."""
        with self.translate_errors("list"):
            prefixes = obstore.list_with_delimiter(self.store, path)["common_prefixes"]
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes]

    def walk_folders(self, path: str) -> Iterator[str]:
        """Yield what ``list_folders`` returns, as it arrives: bounded memory, a request for each thousand objects."""
        return folder_names(self.list_objects(path), path)

    def probe(self, folder: str) -> None:
        """Ask the store once, with a short timeout, for a sign of life. Any answer counts, even a refusal. The caller
        must be allowed to list ``folder``. Raises StoreUnreachable."""
        if self._prober is None:
            self._prober = self._client(_PROBE_CLIENT, 0)
        try:
            with panics_as_errors():
                obstore.head(self._prober, _PROBE)
        except (BaseError, OSError, ValueError) as error:
            if is_unreachable(error):
                raise self.error("reach", error) from error
