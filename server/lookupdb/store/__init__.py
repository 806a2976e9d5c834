"""Where generations are kept: a directory, or a bucket of S3, GCS or Azure.

    dataset = store.open_store("s3://lookups/production", cluster="local").dataset(spec)
    dataset.generations()                   # ("g11", "g12"): whole ones, oldest first
    with dataset.claim("g13", scratch) as claim:
        …                                   # write shard files into claim.folder
        claim.publish(manifest)

``layout`` defines names and paths, ``dataset`` the interface to one dataset's generations. ``directory`` implements it
on a file system, ``bucket_dataset`` on a bucket, whose builders coordinate by ``lease`` and ``publication``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from lookupdb.errors import UsageError
from lookupdb.spec import LOCAL, DatasetSpec
from lookupdb.store.bucket import Bucket
from lookupdb.store.bucket_dataset import BucketDataset
from lookupdb.store.dataset import BuildClaim, StoredDataset
from lookupdb.store.directory import DirectoryDataset, list_addresses
from lookupdb.store.layout import StoreAddress, check_cluster_id

__all__ = ["BuildClaim", "Store", "StoreAddress", "StoredDataset", "open_store"]

_OBJECT_SCHEMES: Final = ("s3", "gs", "az")
_BROKEN_URL: Final = re.compile(r"(?:file|s3|gs|az|https?)(?::|//)(?!//)")
"""What was to be a URL, and would be a folder of that name."""


class Store:
    """The part of a store that belongs to one cluster."""

    def __init__(self, url: str, cluster: str, place: Path | Bucket) -> None:
        self.url = url
        self.cluster = cluster
        self._place = place

    def dataset(self, spec: DatasetSpec) -> StoredDataset:
        """The generations of the dataset that ``spec`` describes; there may be none yet."""
        return self.dataset_at(StoreAddress(self.cluster, spec.namespace, spec.name, spec.uid))

    def dataset_at(self, address: StoreAddress) -> StoredDataset:
        """The generations of the dataset at ``address``."""
        if isinstance(self._place, Path):
            return DirectoryDataset(self._place, address)
        return BucketDataset(self._place, address)

    def wait(self, seconds: float) -> None:
        """Return once a bucket answers at all: its server may still be starting. A directory needs no wait.

        Raises StoreUnreachable after ``seconds`` without an answer.
        """
        if not isinstance(self._place, Path):
            self._place.wait(seconds)

    def addresses(self) -> tuple[StoreAddress, ...]:
        """Every dataset of this cluster that has anything in the store. Raises StoreError."""
        if isinstance(self._place, Path):
            return list_addresses(self._place, self.cluster)
        return self._place.addresses(self.cluster)


def open_store(url: str, cluster: str = LOCAL) -> Store:
    """The store at ``url``: a directory's path, or a file://, s3://, gs:// or az:// URL.

    Nothing is read or created yet. Buckets take credentials and endpoints from the environment: LOOKUPDB_STORE_AWS_…
    and the like, or AWS_…, GOOGLE_…, AZURE_… (see ``credentials``). Raises UsageError for an unusable URL.
    """
    check_cluster_id(cluster)
    try:
        parts = urlsplit(url if "://" in url else "")
    except ValueError as error:
        raise _bad_url_error(url) from error
    if parts.scheme in _OBJECT_SCHEMES and parts.netloc:
        return Store(url, cluster, Bucket(url))
    if parts.scheme not in ("", "file") or not url or _BROKEN_URL.match(url):
        raise _bad_url_error(url)
    path = unquote(parts.path) if parts.scheme else url
    return Store(url, cluster, Path(os.path.abspath(path)))  # noqa: PTH100 - resolve() would follow links


def _bad_url_error(url: str) -> UsageError:
    return UsageError(
        f"{url!r} is not a store", hint="give a directory, or a URL: file:///folder, or s3://, gs:// or az://bucket"
    )
