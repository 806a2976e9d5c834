"""The store of generations: a directory, a bucket of S3, GCS or Azure, or a gateway to one.

    dataset = store.open_store("s3://lookups/production", cluster="local").dataset(spec)
    dataset.generations()                   # ("g11", "g12"): whole ones, oldest first
    with dataset.claim("g13", scratch) as claim:
        …                                   # write shard files into claim.folder
        claim.publish(manifest)

``dataset`` defines names and paths, and the interface to a store, its datasets and their generations. ``directory``
implements the interface on a file system. ``bucket_dataset`` implements it on a bucket, and coordinates builders.
Requests go to the bucket (``bucket``), or to a gateway, which alone has the store's credentials (``gateway``).
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
"""Text that was meant as a URL, but would be taken for a folder's name."""


def open_store(url: str, cluster: str = LOCAL) -> Store:
    """Open the store at ``url``: a directory's path, a file://, s3://, gs:// or az:// URL, or a gateway's http(s)://
    URL.

    Nothing is read or created yet. Buckets take credentials and endpoints from the environment: LOOKUPDB_STORE_AWS_…
    and the like, or AWS_…, GOOGLE_…, AZURE_… (see ``objects``). A gateway gets the token in the file that
    LOOKUPDB_STORE_TOKEN_FILE names. Raises UsageError for an unusable URL, or for a gateway without that variable.
    """
    check_cluster_id(cluster)
    if "://" not in url:
        if not url or _BROKEN_URL.match(url):
            raise _bad_url_error(url)
        path = url
    else:
        try:
            parts = urlsplit(url)
            has_host = bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
        except ValueError as error:
            raise _bad_url_error(url) from error
        is_gateway = parts.scheme in ("http", "https") and has_host and parts.path in ("", "/")
        is_bucket = parts.scheme in ("s3", "gs", "az") and parts.netloc
        is_folder = parts.scheme == "file" and parts.netloc in ("", "localhost")
        if "?" in url or "#" in url or not (is_gateway or is_bucket or is_folder):
            raise _bad_url_error(url)
        if not is_folder:
            url = parts.geturl()  # with the scheme in lower case
            return BucketStore(url, cluster, Bucket(url))
        path = unquote(parts.path)
    folder = os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links
    check_path(folder)
    return DirectoryStore(url, cluster, Path(folder))


def _bad_url_error(url: str) -> UsageError:
    return UsageError(
        f"{strip_secrets(url)!r} is not a store",
        hint="use a directory, or a URL: file:///folder, s3://, gs:// or az://bucket, or a gateway's http://host:port;"
        " in a name, write %3F for ? and %23 for #",
    )
