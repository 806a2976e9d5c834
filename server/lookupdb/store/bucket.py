"""A bucket of S3, GCS or Azure, through obstore: its credentials, its errors, what is in it.

A write that fails may have happened: the answer can be lost, and what obstore then tries again is refused because of
its own first try. So a conditional put ends with what stands in the bucket, whatever the answer was (``put_if``).
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from lookupdb.errors import StoreDenied, StoreError, StoreUnreachable
from lookupdb.network import describe_failure, is_unreachable, strip_secrets
from lookupdb.store import credentials
from lookupdb.store.layout import StoreAddress

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 3.0
LEASE_SECONDS: Final = 15.0
"""A claim that did not change for this long is a dead builder's."""
PATIENCE_SECONDS: Final = 20.0
"""So long a builder asks again for one step of a publication, beyond what obstore tries by itself."""
PART_BYTES: Final = 8 << 20
_RETRIES: Final = 8
_RETRY_SECONDS: Final = 20
"""Of one request; whoever can do without the store for longer tries again."""
_MAX_BACKOFF_SECONDS: Final = 2
_CLIENT: Final = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "7days"}
"""``timeout`` is for a whole file, however large: what stalls is ended by ``read_timeout``."""
_PROBE_SECONDS: Final = 0.5
"""Between two looks at whether a store is there yet."""
_PROBE_CLIENT: Final = {"connect_timeout": "2s", "read_timeout": "5s", "timeout": "5s"}
_PROBE: Final = "lookupdb-is-there"
"""A name that no object has: any answer to it, a refusal too, says that the store is there."""

Version = dict[str, Any]
"""What a condition on an object names: stores tell an ETag, a version or both."""


@dataclass(frozen=True, slots=True)
class ObjectState:
    """What an object is after an attempt to put it; ``body`` is None when there is no such object."""

    body: bytes | None
    version: Version
    error: StoreError | None = None
    """Why the put did not succeed, if it was not told that it did."""


class Bucket:
    """A bucket, or a folder of one."""

    def __init__(
        self,
        url: str,
        *,
        heartbeat: float = HEARTBEAT_SECONDS,
        lease: float = LEASE_SECONDS,
        patience: float = PATIENCE_SECONDS,
        retries: int = _RETRIES,
    ) -> None:
        self.url = url.rstrip("/")
        self.heartbeat = heartbeat
        self.lease = lease
        self.patience = patience
        self._label = self.url
        self.store: Any = self._client(_CLIENT, retries)

    def _client(self, options: Mapping[str, Any], retries: int) -> Any:
        with self.translate_errors("use"):
            scheme = self.url.partition("://")[0]
            with credentials.store_environment(scheme) as variables:
                # Options given here displace those that obstore would take from the environment.
                client = {**options, "allow_http": credentials.allows_http(scheme, variables)}
                if endpoint := credentials.find_endpoint(scheme, variables):
                    self._label = f"{self.url} at {strip_secrets(endpoint)}"
                return obstore.store.from_url(  # type: ignore[call-overload]
                    self.url,
                    client_options=client,
                    retry_config={
                        "max_retries": retries,
                        "retry_timeout": datetime.timedelta(seconds=_RETRY_SECONDS),
                        "backoff": {"max_backoff": datetime.timedelta(seconds=_MAX_BACKOFF_SECONDS)},
                    },
                )

    @contextmanager
    def translate_errors(self, action: str) -> Iterator[None]:
        """Turn what obstore says into the error a user can act on."""
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise self.error(action, error) from error

    def error(self, action: str, error: Exception) -> StoreError:
        """What it means that ``error`` came of ``action`` something to this bucket."""
        message = f"cannot {action} {self._label}"
        if _is_denied(error):
            return StoreDenied(
                f"{message}: access denied: {describe_failure(error)}",
                hint="check the store's credentials and what they may do",
            )
        if is_unreachable(error):
            return StoreUnreachable(
                f"{message}: {describe_failure(error)}",
                hint="check that the store runs, its address, and what is between it and here",
            )
        return StoreError(f"{message}: {describe_failure(error)}", hint="check its address, credentials and rights")

    def wait(self, seconds: float) -> None:
        """Return once the store answers anything at all. Raises StoreUnreachable when it has not for ``seconds``."""
        probe = self._client(_PROBE_CLIENT, 0)
        began = time.monotonic()
        is_logged = False
        while True:
            try:
                obstore.head(probe, _PROBE)
            except (BaseError, OSError, ValueError) as error:
                if not is_unreachable(error):
                    return
                failure = self.error("reach", error)
            else:
                return
            if time.monotonic() - began + _PROBE_SECONDS > seconds:
                raise failure
            if not is_logged:
                is_logged = True
                log.warning("waiting for the store: %s", failure.message, extra={"atMostSeconds": seconds})
            time.sleep(_PROBE_SECONDS)

    def read(self, path: str) -> ObjectState:
        """The object at ``path`` as it stands. Raises StoreError when that cannot be told."""
        with self.translate_errors("read"):
            try:
                result = obstore.get(self.store, path)
                return ObjectState(bytes(result.bytes()), version_of(result.meta))
            except FileNotFoundError:
                return ObjectState(None, {})

    def put_if(self, path: str, body: bytes, mode: Any) -> ObjectState:
        """Put ``body`` at ``path`` on a condition ("create", or the version that is to be replaced), and return what
        stands there then: ``body`` exactly when the put took effect, even if an error was the answer.

        What is not there when it is looked for may still come: a request can be under way. Raises StoreError when the
        answer was an error and the bucket cannot be read.
        """
        try:
            result = obstore.put(self.store, path, body, mode=mode, use_multipart=False)
            return ObjectState(body, version_of(result))
        except (BaseError, OSError, ValueError) as error:
            standing = self.read(path)
            return ObjectState(standing.body, standing.version, self.error("write to", error))

    def delete(self, paths: Sequence[str]) -> None:
        """Delete what is there of ``paths``, in as few requests as the store allows. Raises StoreError."""
        with self.translate_errors("remove objects from"):
            try:
                obstore.delete(self.store, paths)
            except FileNotFoundError:  # not every store passes over what is not there
                for path in paths:
                    with suppress(FileNotFoundError):
                        obstore.delete(self.store, path)

    def folders(self, path: str) -> list[str]:
        """The names directly under ``path`` that have something under them."""
        with self.translate_errors("list"):
            prefixes = obstore.list_with_delimiter(self.store, path)["common_prefixes"]
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes]

    def files(self, path: str) -> dict[str, dict[str, Any]]:
        """Every object under ``path``, by its name relative to it, with what the store tells of it."""
        with self.translate_errors("list"):
            entries: Iterator[Any] = (entry for page in obstore.list(self.store, path) for entry in page)
            return {entry["path"].removeprefix(path + "/"): entry for entry in entries}

    def entries(self, path: str) -> dict[str, dict[str, dict[str, Any]]]:
        """As ``files``, by the first part of their names and by the rest."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for name, entry in self.files(path).items():
            folder, _, file = name.partition("/")
            found.setdefault(folder, {})[file] = entry
        return found

    def addresses(self, cluster: str) -> tuple[StoreAddress, ...]:
        """Every dataset of ``cluster``, by path."""
        found = (
            StoreAddress.parse(cluster, namespace, folder)
            for namespace in sorted(self.folders(cluster))
            for folder in sorted(self.folders(f"{cluster}/{namespace}"))
        )
        return tuple(address for address in found if address)


def version_of(entry: Mapping[str, Any]) -> Version:
    """The version in what the store tells of an object."""
    return {name: entry[name] for name in ("e_tag", "version") if entry[name] is not None}


def _is_denied(error: Exception) -> bool:
    """Of a request that lists, obstore tells the status in its text only."""
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return True
    return any(f"status code: {status}" in str(error) for status in ("401", "403"))
