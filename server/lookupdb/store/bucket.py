"""A bucket of S3, GCS or Azure, through obstore: its credentials, its errors, its objects.

A write that fails may have happened: the answer can be lost, and the store then refuses obstore's own retry. So after
an error a conditional put reads the object, and what stands in the bucket counts (``put_if``).
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
"""The builder of a claim that did not change for this long is dead."""
PATIENCE_SECONDS: Final = 20.0
"""How long a builder retries one step of a publication, beyond obstore's own retries."""
PART_BYTES: Final = 8 << 20
_RETRIES: Final = 8
_RETRY_SECONDS: Final = 20
"""For one request. Callers that can do without the store for longer retry themselves."""
_MAX_BACKOFF_SECONDS: Final = 2
_CLIENT: Final = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "7days"}
"""``timeout`` covers a whole file, however large; ``read_timeout`` ends a transfer that stalls."""
_PROBE_SECONDS: Final = 0.5
"""The pause between two probes of a store that does not answer yet."""
_PROBE_CLIENT: Final = {"connect_timeout": "2s", "read_timeout": "5s", "timeout": "5s"}
_PROBE: Final = "lookupdb-is-there"
"""A name that no object has: any answer to a request for it, even a refusal, proves that the store is there."""

Version = dict[str, Any]
"""The version that a conditional request names: an ETag, a version, or both."""


@dataclass(frozen=True, slots=True)
class ObjectState:
    """An object after an attempt to put it; ``body`` is None if there is no such object."""

    body: bytes | None
    version: Version
    error: StoreError | None = None
    """Why the put failed, if the answer was an error."""


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
                # These options displace those that obstore would take from the environment.
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
        """Turn obstore's errors into errors that a user can act on."""
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise self.error(action, error) from error

    def error(self, action: str, error: Exception) -> StoreError:
        """The error for a failed attempt to ``action`` this bucket."""
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
        """Return once the store answers at all. Raises StoreUnreachable after ``seconds`` without an answer."""
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
        """The object at ``path`` as it stands. Raises StoreError if it cannot be read."""
        with self.translate_errors("read"):
            try:
                result = obstore.get(self.store, path)
                return ObjectState(bytes(result.bytes()), object_version(result.meta))
            except FileNotFoundError:
                return ObjectState(None, {})

    def put_if(self, path: str, body: bytes, mode: Any) -> ObjectState:
        """Put ``body`` at ``path`` on a condition ("create", or the version to replace), and return what stands there
        afterwards: ``body`` exactly if the put took effect, even if the answer was an error.

        An object that is not there yet may still appear, because a request can be in flight. Raises StoreError if the
        answer was an error and the bucket cannot be read.
        """
        try:
            result = obstore.put(self.store, path, body, mode=mode, use_multipart=False)
            return ObjectState(body, object_version(result))
        except (BaseError, OSError, ValueError) as error:
            standing = self.read(path)
            return ObjectState(standing.body, standing.version, self.error("write to", error))

    def delete(self, paths: Sequence[str]) -> None:
        """Delete those of ``paths`` that exist, in as few requests as the store allows. Raises StoreError."""
        with self.translate_errors("remove objects from"):
            try:
                obstore.delete(self.store, paths)
            except FileNotFoundError:  # some stores refuse to delete what is not there
                for path in paths:
                    with suppress(FileNotFoundError):
                        obstore.delete(self.store, path)

    def folders(self, path: str) -> list[str]:
        """The names directly under ``path`` that have objects under them."""
        with self.translate_errors("list"):
            prefixes = obstore.list_with_delimiter(self.store, path)["common_prefixes"]
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes]

    def files(self, path: str) -> dict[str, dict[str, Any]]:
        """Every object under ``path``: its relative name, and its entry in the store's listing."""
        with self.translate_errors("list"):
            entries: Iterator[Any] = (entry for page in obstore.list(self.store, path) for entry in page)
            return {entry["path"].removeprefix(path + "/"): entry for entry in entries}

    def entries(self, path: str) -> dict[str, dict[str, dict[str, Any]]]:
        """The same as ``files``, grouped by the first part of the names."""
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


def object_version(entry: Mapping[str, Any]) -> Version:
    """The version in an entry of the store's listing."""
    return {name: entry[name] for name in ("e_tag", "version") if entry[name] is not None}


def _is_denied(error: Exception) -> bool:
    """Whether the store refused the request. For listings, obstore gives the status only in the error's text."""
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return True
    return any(f"status code: {status}" in str(error) for status in ("401", "403"))
