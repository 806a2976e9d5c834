"""The store of generations: a directory, a bucket of S3, GCS or Azure, or a gateway to one.

    dataset = store.open_store("s3://lookups/production", cluster="local").dataset(spec)
    dataset.generations()                   # ("g11", "g12"): whole ones, oldest first
    with dataset.claim("g13", scratch) as claim:
        …                                   # write shard files into claim.folder
        claim.publish(manifest)

``dataset`` defines names and paths, and the interface to a store, its datasets and their generations. ``directory``
implements it on a file system, ``bucket_dataset`` on a bucket, whose builders it coordinates. A bucket's
requests go to its store (``bucket``), or to a gateway, which alone has the store's credentials (``gateway``).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from lookupdb.dataset.spec import LOCAL
from lookupdb.errors import UsageError
from lookupdb.store.bucket import Bucket
from lookupdb.store.bucket_dataset import BucketStore
from lookupdb.store.dataset import BuildClaim, Store, StoreAddress, StoredDataset, check_cluster_id
from lookupdb.store.directory import DirectoryStore
from lookupdb.wording import check_path, strip_secrets

__all__ = ["BuildClaim", "Store", "StoreAddress", "StoredDataset", "open_store"]

_BROKEN_URL: Final = re.compile(r"(?:file|s3|gs|az|https?)(?::|//)(?!//)", re.IGNORECASE)
"""Text that was meant as a URL, but would be a folder of that name."""


def open_store(url: str, cluster: str = LOCAL) -> Store:
    """Open the store at ``url``: a directory's path, a file://, s3://, gs:// or az:// URL, or a gateway's http(s)://
    URL.

    Nothing is read or created yet. Buckets take credentials and endpoints from the environment: LOOKUPDB_STORE_AWS_…
    and the like, or AWS_…, GOOGLE_…, AZURE_… (see ``objects``). A gateway gets the token in the file that
    LOOKUPDB_STORE_TOKEN_FILE names. Raises UsageError for an unusable URL, or if that variable is not set.
    """
    check_cluster_id(cluster)
    try:
        parts = urlsplit(url if "://" in url else "")
    except ValueError as error:
        raise _bad_url_error(url) from error
    if parts.scheme in ("http", "https") and parts.netloc:
        try:
            has_host = bool(parts.hostname) and parts.port != 0
        except ValueError:
            has_host = False
        # A gateway needs no folder and no user.
        if not has_host or "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise UsageError(
                f"{strip_secrets(url)!r} is not a store",
                hint="a gateway's URL is http://host:port; a bucket's begins with s3://, gs:// or az://",
            )
        return BucketStore(url, cluster, Bucket(url))
    if parts.scheme and ("?" in url or "#" in url):
        raise UsageError(f"{url!r} is not a store: its URL has no ? and no #", hint="in a name, write %3F and %23")
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise UsageError(
            f"{url!r} is not a store: a folder of this machine has no host, found {parts.netloc!r}",
            hint="use file:///folder, with three slashes and the whole path, or the folder alone",
        )
    if parts.scheme in ("s3", "gs", "az") and parts.netloc:
        return BucketStore(url, cluster, Bucket(url))
    if parts.scheme not in ("", "file") or not url or _BROKEN_URL.match(url):
        raise _bad_url_error(url)
    path = unquote(parts.path) if parts.scheme else url
    folder = os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links
    check_path(folder)
    return DirectoryStore(url, cluster, Path(folder))


def _bad_url_error(url: str) -> UsageError:
    return UsageError(
        f"{url!r} is not a store",
        hint="use a directory, or a URL: file:///folder, s3://, gs:// or az://bucket, or a gateway's http://host:port",
    )
