"""The store of generations: a directory, a bucket of S3, GCS or Azure, or a gateway to one.

    dataset = store.open_store("s3://lookups/production", cluster="local").dataset(spec)
    dataset.generations()                   # ("g11", "g12"): whole ones, oldest first
    with dataset.claim("g13", scratch) as claim:
        …                                   # write shard files into claim.folder
        claim.publish(manifest)

``layout`` defines names and paths, ``dataset`` the interface to one dataset's generations. ``directory`` implements it
on a file system, ``bucket_dataset`` on a bucket, whose builders coordinate by ``publication``. A bucket's requests go
to its store (``obstore_objects``), or to a gateway, which alone has the store's credentials (``gateway``).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from lookupdb.dataset.spec import LOCAL, DatasetSpec
from lookupdb.errors import UsageError
from lookupdb.store.bucket import Bucket
from lookupdb.store.bucket_dataset import BucketDataset
from lookupdb.store.dataset import BuildClaim, StoredDataset
from lookupdb.store.directory import DirectoryDataset, list_addresses, list_namespaces
from lookupdb.store.layout import StoreAddress, check_cluster_id
from lookupdb.wording import check_path, strip_secrets

__all__ = ["BuildClaim", "Store", "StoreAddress", "StoredDataset", "open_store"]

_OBJECT_SCHEMES: Final = ("s3", "gs", "az")
_GATEWAY_SCHEMES: Final = ("http", "https")
_BROKEN_URL: Final = re.compile(r"(?:file|s3|gs|az|https?)(?::|//)(?!//)", re.IGNORECASE)
"""Text that was meant as a URL, but would be a folder of that name."""


class Store:
    """The part of a store that belongs to one cluster."""

    def __init__(self, url: str, cluster: str, place: Path | Bucket) -> None:
        self.url = url
        self.cluster = cluster
        self._place = place

    @property
    def identity(self) -> str:
        """Equal for two references to the same store with the same credentials."""
        return str(self._place) if isinstance(self._place, Path) else self._place.identity

    def dataset(self, spec: DatasetSpec) -> StoredDataset:
        """Return the generations of the dataset that ``spec`` describes; there may be none yet."""
        return self.dataset_at(StoreAddress(self.cluster, spec.namespace, spec.name, spec.uid))

    def dataset_at(self, address: StoreAddress) -> StoredDataset:
        """Return the generations of the dataset at ``address``."""
        if isinstance(self._place, Path):
            return DirectoryDataset(self._place, address)
        return BucketDataset(self._place, address)

    def wait(self, seconds: float) -> None:
        """Return once a bucket answers: its server may still be starting. A directory needs no wait.

        Raises StoreUnreachable after ``seconds`` without an answer.
        """
        if not isinstance(self._place, Path):
            self._place.wait(seconds, self.cluster)

    def addresses(self) -> tuple[StoreAddress, ...]:
        """Return every dataset of this cluster with anything in the store; a gateway shows only those of the caller's
        namespace. Raises StoreError."""
        return tuple(address for namespace in self.namespaces() for address in self.addresses_in(namespace))

    def namespaces(self) -> tuple[str, ...]:
        """Return the namespaces with anything in the store, as far as the caller may see. Raises StoreError."""
        if isinstance(self._place, Path):
            return list_namespaces(self._place, self.cluster)
        return self._place.namespaces(self.cluster)

    def addresses_in(self, namespace: str) -> tuple[StoreAddress, ...]:
        """Return the datasets of ``namespace`` with anything in the store, by one listing. Raises StoreError."""
        if isinstance(self._place, Path):
            return list_addresses(self._place, self.cluster, namespace)
        return self._place.addresses_in(self.cluster, namespace)

    def walk_addresses_in(self, namespace: str) -> tuple[StoreAddress, ...]:
        """Return the same in bounded memory, for any number of objects; a bucket takes a request for each thousand.
        Raises StoreError, ListingTooLong."""
        if isinstance(self._place, Path):
            return list_addresses(self._place, self.cluster, namespace)
        return self._place.walk_addresses_in(self.cluster, namespace)

    def find_missing_folder(self) -> Path | None:
        """Return the path of a directory that does not exist."""
        return self._place if isinstance(self._place, Path) and not self._place.is_dir() else None

    @property
    def is_local(self) -> bool:
        """True if it is a directory, which is cheap to list."""
        return isinstance(self._place, Path)


def open_store(url: str, cluster: str = LOCAL) -> Store:
    """Open the store at ``url``: a directory's path, a file://, s3://, gs:// or az:// URL, or a gateway's http(s)://
    URL.

    Nothing is read or created yet. Buckets take credentials and endpoints from the environment: LOOKUPDB_STORE_AWS_…
    and the like, or AWS_…, GOOGLE_…, AZURE_… (see ``credentials``). A gateway gets the token in the file that
    LOOKUPDB_STORE_TOKEN_FILE names. Raises UsageError for an unusable URL, or if that variable is not set.
    """
    check_cluster_id(cluster)
    try:
        parts = urlsplit(url if "://" in url else "")
    except ValueError as error:
        raise _bad_url_error(url) from error
    if parts.scheme in _GATEWAY_SCHEMES and parts.netloc:
        _check_gateway_url(url, parts)
        return Store(url, cluster, Bucket(url))
    _check_own_url(url, parts)
    if parts.scheme in _OBJECT_SCHEMES and parts.netloc:
        return Store(url, cluster, Bucket(url))
    if parts.scheme not in ("", "file") or not url or _BROKEN_URL.match(url):
        raise _bad_url_error(url)
    path = unquote(parts.path) if parts.scheme else url
    folder = os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links
    check_path(folder)
    return Store(url, cluster, Path(folder))


def _check_gateway_url(url: str, parts: SplitResult) -> None:
    """Raise UsageError unless it is a host and its port: a gateway has no folders, and a token no user."""
    try:
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if has_host and "@" not in parts.netloc and parts.path in ("", "/") and not parts.query and not parts.fragment:
        return
    raise UsageError(
        f"{strip_secrets(url)!r} is not a store",
        hint="a gateway's URL is http://host:port; a bucket's begins with s3://, gs:// or az://",
    )


def _check_own_url(url: str, parts: SplitResult) -> None:
    """Raise UsageError if part of the URL of a bucket or a folder would be ignored."""
    if parts.scheme and ("?" in url or "#" in url):
        raise UsageError(f"{url!r} is not a store: its URL has no ? and no #", hint="in a name, write %3F and %23")
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise UsageError(
            f"{url!r} is not a store: {parts.netloc!r} would be a host, but folders are on this machine",
            hint="use file:///folder, with three slashes and the whole path, or the folder alone",
        )


def _bad_url_error(url: str) -> UsageError:
    return UsageError(
        f"{url!r} is not a store",
        hint="use a directory, or a URL: file:///folder, s3://, gs:// or az://bucket, or a gateway's http://host:port",
    )
