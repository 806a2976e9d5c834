"""The objects of S3, GCS and Azure, through obstore: its credentials, its requests, its errors."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from lookupdb.errors import StoreDenied, StoreError, StoreUnreachable
from lookupdb.network import describe_failure, is_unreachable, panics_as_errors
from lookupdb.store import credentials
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
    check_small,
    folder_names,
    object_version,
)
from lookupdb.wording import strip_secrets

if TYPE_CHECKING:
    from obstore import GetOptions

_CLIENT: Final = {"connect_timeout": f"{CONNECT_SECONDS}s", "timeout": "7days"}
"""``timeout`` covers a whole file of any size; ``read_timeout`` ends a transfer that stalls."""
_PROBE_CLIENT: Final = {
    "connect_timeout": f"{PROBE_CONNECT_SECONDS}s",
    "read_timeout": f"{PROBE_SECONDS}s",
    "timeout": f"{PROBE_SECONDS}s",
}
_PROBE: Final = "lookupdb-is-there"
"""A name that no object has: any answer to a request for it, even a refusal, proves that the store is there."""
_COPYING_SCHEMES: Final = ("s3://", "gs://")
_PARTS_AT_ONCE: Final = 4
"""An upload holds this many parts in memory."""


class ObstoreObjects:
    """The objects of a bucket, or of a folder of one."""

    def __init__(self, url: str, retries: int = RETRIES, silence_seconds: int = SILENCE_SECONDS) -> None:
        """A request is retried when the store sends nothing for ``silence_seconds``."""
        self.url = url.rstrip("/")
        self.identity = self._label = self.url
        self._prober: Any = None
        self.store: Any = self._client({**_CLIENT, "read_timeout": f"{silence_seconds}s"}, retries)

    def _client(self, options: Mapping[str, Any], retries: int) -> Any:
        with self.translate_errors("use"):
            scheme = self.url.partition("://")[0]
            with credentials.store_environment(scheme) as variables:
                self.identity = credentials.identify_store(self.url, variables)
                # These options replace those that obstore would take from the environment.
                client = {**options, "allow_http": credentials.allows_http(scheme, variables)}
                if endpoint := credentials.find_endpoint(scheme, variables):
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
        if _is_denied(error):
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
        """One GET. The store sends the object's size before its bytes."""
        with self.translate_errors("read"):
            try:
                result = obstore.get(self.store, path)
                check_small(f"cannot read {self.url}/{path}", result.meta["size"])
                return bytes(result.bytes()), object_version(result.meta)
            except FileNotFoundError:
                return None

    def size(self, path: str) -> int | None:
        """One HEAD."""
        with self.translate_errors("read"):
            try:
                return int(obstore.head(self.store, path)["size"])
            except FileNotFoundError:
                return None

    def stream(self, path: str, start: int = 0) -> Iterator[bytes] | None:
        """One GET, which obstore does not resume."""
        options: GetOptions = {"range": {"offset": start}} if start else {}
        with self.translate_errors("read"):
            try:
                chunks = obstore.get(self.store, path, options=options).stream(min_chunk_size=PART_BYTES)
            except FileNotFoundError:
                return None
        return self._read_chunks(chunks)

    def _read_chunks(self, chunks: Iterator[Any]) -> Iterator[bytes]:
        while True:
            with self.translate_errors("read"):
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield bytes(chunk)

    def put(self, path: str, body: bytes, mode: PutMode = None) -> Version:
        """One PUT: parts have no conditions."""
        with self.translate_errors("write to"):
            if mode is None:
                return object_version(obstore.put(self.store, path, body))
            return object_version(obstore.put(self.store, path, body, mode=mode, use_multipart=False))  # type: ignore[arg-type]

    def upload(self, path: str, file: Path) -> None:
        """Upload several parts at once."""
        with self.translate_errors(f"put {file.name} into"):
            obstore.put(self.store, path, file, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def can_copy(self, size: int) -> bool:
        """Return whether one request copies this many bytes. Azure may answer before it has copied."""
        return size <= MAX_COPY_BYTES and self.url.startswith(_COPYING_SCHEMES)

    def copy(self, source: str, target: str, size: int) -> bool:
        """One request, which lasts as long as the copying."""
        if not self.can_copy(size):
            return False
        with self.translate_errors("copy within"):
            obstore.copy(self.store, source, target)
        return True

    def delete(self, paths: Sequence[str]) -> None:
        """Some stores refuse to delete missing objects: then the rest is deleted one by one."""
        with self.translate_errors("remove objects from"):
            try:
                obstore.delete(self.store, paths)
            except FileNotFoundError:
                for path in paths:
                    with suppress(FileNotFoundError):
                        obstore.delete(self.store, path)

    def list_objects(self, path: str) -> Iterator[Mapping[str, Any]]:
        """List page by page."""
        with self.translate_errors("list"):
            for page in obstore.list(self.store, path):
                yield from page

    def list_folders(self, path: str) -> list[str]:
        """List by the delimiter ``/``, with a request for each thousand. obstore returns them all at once: 150,000 take
        45 MiB, or 120 MiB if their names have 200 bytes."""
        with self.translate_errors("list"):
            prefixes = obstore.list_with_delimiter(self.store, path)["common_prefixes"]
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes]

    def walk_folders(self, path: str) -> Iterator[str]:
        """List all objects below, with a request for each thousand."""
        return folder_names(self.list_objects(path), path)

    def probe(self, folder: str) -> None:
        """Request an object that does not exist, whatever ``folder`` is."""
        if self._prober is None:
            self._prober = self._client(_PROBE_CLIENT, 0)
        try:
            with panics_as_errors():
                obstore.head(self._prober, _PROBE)
        except (BaseError, OSError, ValueError) as error:
            if is_unreachable(error):
                raise self.error("reach", error) from error


def _is_denied(error: Exception) -> bool:
    """Return whether the store refused the request. For listings, obstore gives the status only in the error's text."""
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return True
    return any(f"status code: {status}" in str(error) for status in ("401", "403"))
