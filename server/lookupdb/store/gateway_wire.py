"""What a gateway and its clients say to one another over HTTP, version 1: paths, headers, kinds of errors, limits.

A gateway stands before a store and is the only one that has its credentials. Clients show a token; the namespace in it
says which part of the store is theirs. docs/concepts/architecture.md tells the rest.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

TOKEN_FILE_VARIABLE: Final = "LOOKUPDB_STORE_TOKEN_FILE"  # noqa: S105 - the name of a variable
"""Names the file with the token, which is read at each request, because it is replaced before it expires."""
CA_FILE_VARIABLE: Final = "LOOKUPDB_STORE_CA_FILE"
"""Names the file with the authority of a gateway's certificate, if the system does not know it."""

OBJECT_PATH: Final = "/v1/object/"
"""And the object's path, percent-encoded: GET, HEAD, PUT."""
LIST_PATH: Final = "/v1/list"
DELETE_PATH: Final = "/v1/delete"
COPY_PATH: Final = "/v1/copy"
"""POST of {"from": path, "to": path}: a shard file, to where nothing is."""

VERSION_HEADER: Final = "Lookupdb-Version"
"""Of an object that is answered: {"e_tag": …, "version": …}, without what the store does not say."""
MODE_HEADER: Final = "Lookupdb-Mode"
"""Of a put on a condition: ``create``, or the version to replace, as in ``VERSION_HEADER``."""
CREATE: Final = "create"

MAX_PATH_BYTES: Final = 1024
MAX_CONDITIONAL_BYTES: Final = 16 << 20
"""Of an object that is put on a condition: manifests and claims."""
MAX_DELETED_PATHS: Final = 1000
"""Of one request."""
MAX_DELETE_BYTES: Final = MAX_DELETED_PATHS * (MAX_PATH_BYTES + 16)
MAX_COPY_REQUEST_BYTES: Final = 4 << 10
LISTING_TYPE: Final = "application/x-ndjson"
END: Final = "end"
"""The member of a listing's last line. Without that line a listing is not whole."""
STREAM_HEADER: Final = "Lookupdb-Stream"
"""Asks for the bytes themselves, where the gateway would redirect: the client could not read what it was sent to."""
REDIRECTED_SUFFIX: Final = ".lmdb"
"""Only shard files are worth a second request."""

_PATH: Final = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")


class ErrorKind(StrEnum):
    """The member ``kind`` of a problem: what the client makes of it."""

    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    MISSING = "missing"
    PRECONDITION = "precondition"
    TOO_LARGE = "too-large"
    INVALID = "invalid"
    BUSY = "busy"
    STORE_DENIED = "store-denied"
    STORE_UNREACHABLE = "store-unreachable"
    STORE_FAILED = "store-failed"


def is_object_path(path: str) -> bool:
    """Whether ``path`` can name an object: plain segments, none of which leads elsewhere."""
    return len(path) <= MAX_PATH_BYTES and _PATH.fullmatch(path) is not None and not {".", ".."} & set(path.split("/"))
