"""A bucket of S3, GCS or Azure, through obstore: its credentials, its errors, what is in it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from lookupdb.errors import StoreDenied, StoreError
from lookupdb.store import credentials
from lookupdb.store.layout import Address

HEARTBEAT_SECONDS: Final = 3.0
LEASE_SECONDS: Final = 15.0
"""A claim that did not change for this long is a dead builder's."""
PART_BYTES: Final = 8 << 20
_CLIENT: Final = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "7days"}
"""``timeout`` is for a whole file, however large: what stalls is ended by ``read_timeout``."""
_RETRIES: Final = {"max_retries": 6, "retry_timeout": datetime.timedelta(seconds=20)}
"""Of one request; whoever can do without the store for longer tries again."""


class Bucket:
    """A bucket, or a folder of one."""

    def __init__(self, url: str, *, heartbeat: float = HEARTBEAT_SECONDS, lease: float = LEASE_SECONDS) -> None:
        self.url = url.rstrip("/")
        self.heartbeat = heartbeat
        self.lease = lease
        with self.errors("use"):
            scheme = self.url.partition("://")[0]
            with credentials.of_the_store(scheme) as variables:
                # Options given here displace those that obstore would take from the environment.
                client = {**_CLIENT, "allow_http": credentials.may_be_http(scheme, variables)}
                self.store: Any = obstore.store.from_url(  # type: ignore[call-overload]
                    self.url, client_options=client, retry_config=_RETRIES
                )

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turn what obstore says into the error a user can act on; the last of its lines says why."""
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            if _is_denial(error):
                raise StoreDenied(
                    f"cannot {doing} {self.url}: access denied: {told(error)}",
                    hint="check the store's credentials and what they may do",
                ) from error
            raise StoreError(
                f"cannot {doing} {self.url}: {told(error)}", hint="check its address, credentials and rights"
            ) from error

    def folders(self, path: str) -> list[str]:
        """The names directly under ``path`` that have something under them."""
        with self.errors("list"):
            prefixes = obstore.list_with_delimiter(self.store, path)["common_prefixes"]
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes]

    def names(self, path: str) -> dict[str, list[str]]:
        """Every object under ``path``, relative to it, by the first part of its name."""
        return {folder: list(files) for folder, files in self.entries(path).items()}

    def entries(self, path: str) -> dict[str, dict[str, Any]]:
        """As ``names``, each with what the store tells of it."""
        found: dict[str, dict[str, Any]] = {}
        with self.errors("list"):
            for page in obstore.list(self.store, path):
                for entry in page:
                    folder, _, file = entry["path"].removeprefix(path + "/").partition("/")
                    found.setdefault(folder, {})[file] = entry
        return found

    def addresses(self, cluster: str) -> tuple[Address, ...]:
        """Every dataset of ``cluster``, by path."""
        found = (
            Address.parse(cluster, namespace, folder)
            for namespace in sorted(self.folders(cluster))
            for folder in sorted(self.folders(f"{cluster}/{namespace}"))
        )
        return tuple(address for address in found if address)


def _is_denial(error: Exception) -> bool:
    """Of a request that lists, obstore tells the status in its text only."""
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return True
    return any(f"status code: {status}" in str(error) for status in ("401", "403"))


def told(error: Exception) -> str:
    """What ``error`` says for people, without obstore's own view of it."""
    return str(error).split("Debug source:")[0].strip()
