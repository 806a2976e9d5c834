"""The objects of a store: the protocol between a gateway and its clients, and credentials of buckets.

``ObstoreObjects`` has the objects of S3, GCS and Azure, ``GatewayObjects`` those of a gateway. Only the gateway
has the store's credentials; its clients send a token, whose namespace decides their part of the store. See
docs/concepts/architecture.md.

A builder reads the user's source and writes the operator's store, and takes the credentials of both from environment
variables. LOOKUPDB_STORE_<NAME> is <NAME> for the store alone, for example LOOKUPDB_STORE_AWS_ACCESS_KEY_ID. If there
are any for the store's provider, the store gets only these; else it gets the plain ones, like sources.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

import orjson

from lookupdb.errors import CorruptFile, StoreDenied, StoreError, StoreUnreachable

PART_BYTES: Final = 8 << 20
"""Size of a part of a large object that is put or read in parts."""
MAX_COPY_BYTES: Final = 5_000_000_000
"""The largest object that S3 copies in one request; obstore does not copy in parts."""
RETRIES: Final = 8
RETRY_SECONDS: Final = 20
"""Retries of one request. Callers with more patience retry themselves."""
MAX_BACKOFF_SECONDS: Final = 2
CONNECT_SECONDS: Final = 10
SILENCE_SECONDS: Final = 60
"""A transfer that stalls for this long is ended."""
PROBE_CONNECT_SECONDS: Final = 2
PROBE_SECONDS: Final = 5

Version = dict[str, Any]
"""The version in a conditional request: an ETag, a version, or both."""
PutMode = Version | Literal["create"] | None
"""The version to replace; ``create`` if there must be none; None overwrites any object."""


def check_small(message: str, size: int) -> None:
    """Raise CorruptFile, which begins with ``message``, if an object is too large to be read at once."""
    if size > MAX_CONDITIONAL_BYTES:
        raise CorruptFile(
            f"{message}: it has {size} bytes, expected at most {MAX_CONDITIONAL_BYTES}",
            hint="no manifest, claim or note is as large: find out what else writes there, and remove it",
        )


def folder_names(entries: Iterable[Mapping[str, Any]], path: str) -> Iterator[str]:
    """Yield the folders directly under ``path`` in a listing, ``entries``. A folder comes once if the listing is
    sorted, and may come again if not."""
    prefix, last = f"{path}/", ""
    for entry in entries:
        name, separator, _ = entry["path"].removeprefix(prefix).partition("/")
        # A console creates an empty object for a folder. It is listed without a slash, and is no subfolder.
        if separator and name != last and entry["path"].startswith(prefix):
            last = name
            yield name


def object_version(entry: Mapping[str, Any]) -> Version:
    """Return the version in an entry of the store's listing."""
    return {name: entry[name] for name in ("e_tag", "version") if entry.get(name) is not None}


# The HTTP protocol between a gateway and its clients, version 1: paths, headers, kinds of errors, limits.


TOKEN_FILE_VARIABLE: Final = "LOOKUPDB_STORE_TOKEN_FILE"  # noqa: S105 - the name of a variable
"""The variable with the path of the token file, which each request reads again, because the token is replaced."""
CA_FILE_VARIABLE: Final = "LOOKUPDB_STORE_CA_FILE"
"""The variable with the path of the CA file for a gateway's certificate, if the system does not know the CA."""

OBJECT_PATH: Final = "/v1/object/"
"""Followed by the object's path, percent-encoded: GET, HEAD, PUT."""
LIST_PATH: Final = "/v1/list"
DELETE_PATH: Final = "/v1/delete"
COPY_PATH: Final = "/v1/copy"
"""POST of {"from": path, "to": path}: copies a shard file to a path without an object."""

VERSION_HEADER: Final = "Lookupdb-Version"
"""The version of the object in an answer: {"e_tag": …, "version": …}, without members that the store does not send."""
MODE_HEADER: Final = "Lookupdb-Mode"
"""The condition of a put: ``create``, or the version to replace, as in ``VERSION_HEADER``."""
CREATE: Final = "create"

MAX_PATH_BYTES: Final = 1024
MAX_CONDITIONAL_BYTES: Final = 16 << 20
"""The largest object that is put on a condition: manifests and claims."""
MAX_DELETED_PATHS: Final = 1000
"""Maximum number of paths in one request."""
MAX_DELETE_BYTES: Final = MAX_DELETED_PATHS * (MAX_PATH_BYTES + 16)
MAX_COPY_REQUEST_BYTES: Final = 4 << 10
LISTING_TYPE: Final = "application/x-ndjson"
END: Final = "end"
"""The name of the member in a listing's last line. A listing without that line is incomplete."""
STREAM_HEADER: Final = "Lookupdb-Stream"
"""Asks for the bytes themselves instead of a redirect that the client could not follow."""
REDIRECTED_SUFFIX: Final = ".lmdb"
"""Only shard files are worth a second request."""

_PATH: Final = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")


class ErrorKind(StrEnum):
    """The member ``kind`` of a problem, which decides the client's reaction."""

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
    """Return whether ``path`` can name an object: plain segments, none of which leads elsewhere."""
    return len(path) <= MAX_PATH_BYTES and _PATH.fullmatch(path) is not None and not {".", ".."} & set(path.split("/"))


# Error answers of a gateway, as its client understands them. No I/O.


_MAX_DETAIL: Final = 2000
_MAX_PAUSE_SECONDS: Final = 10.0
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f]+")
_DENIALS: Final = {
    ErrorKind.UNAUTHENTICATED: "check that the token is of a service account of this cluster, and for this gateway",
    ErrorKind.FORBIDDEN: "a token reaches the part of its own cluster and namespace: check --cluster-id and --dataset",
    ErrorKind.STORE_DENIED: "check the gateway's credentials for the store, and their permissions",
}
_TRANSIENT: Final = (ErrorKind.BUSY, ErrorKind.STORE_UNREACHABLE)
_ABSENT_HINT: Final = "check that the gateway and its store run, its address, and the network in between"


class TransientFailure(Exception):
    """A request failed, but may succeed a little later."""

    def __init__(self, error: StoreError, pause: float = 0.0) -> None:
        super().__init__()
        self.error = error
        """The error to raise if no retry succeeds."""
        self.pause = pause
        """The seconds that the gateway asks to wait."""


@dataclass(frozen=True, slots=True)
class GatewayProblem:
    """An answer that reports no success."""

    status: int
    kind: ErrorKind | None
    """None if the answer is not a gateway's."""
    detail: str
    pause: float = 0.0

    @property
    def is_transient(self) -> bool:
        """Return whether a retry may help. Proxies in front of a gateway answer 5xx in their own format."""
        return self.kind in _TRANSIENT or (self.kind is None and self.status >= 500)

    def error(self, message: str) -> StoreError:
        """Return the error for a user; ``message`` says what could not be done."""
        if self.kind in _DENIALS:
            return StoreDenied(f"{message}: {self.detail}", hint=_DENIALS[self.kind])
        if self.is_transient:
            return StoreUnreachable(f"{message}: {self.detail}", hint=_ABSENT_HINT)
        if self.kind is None:
            return no_gateway_error(message, f"it answers with status {self.status}")
        return StoreError(f"{message}: {self.detail}", hint="look at the gateway's log, and at its store")


_KINDS: Final = {
    401: ErrorKind.UNAUTHENTICATED,
    403: ErrorKind.FORBIDDEN,
    404: ErrorKind.MISSING,
    502: ErrorKind.STORE_FAILED,
    503: ErrorKind.BUSY,
}
"""Status of an answer to HEAD, which has no body, → the kind of problem."""


def parse_problem(status: int, content_type: str, body: bytes | None, retry_after: str) -> GatewayProblem:
    """Parse an error answer. The result has no ``kind`` if the answer is not a gateway's problem. ``body`` is None
    after HEAD."""
    pause = min(float(retry_after), _MAX_PAUSE_SECONDS) if re.fullmatch(r"[0-9]{1,6}", retry_after) else 0.0
    is_problem = content_type.partition(";")[0].strip().lower() == "application/problem+json"
    if is_problem and body is None:
        return GatewayProblem(status, _KINDS.get(status), f"it answers with status {status}", pause)
    try:
        members = orjson.loads(body) if is_problem and body else {}
    except ValueError:
        members = {}
    members = members if isinstance(members, dict) else {}
    kind, detail = members.get("kind"), members.get("detail") or members.get("title")
    if not isinstance(kind, str) or kind not in set(ErrorKind):
        return GatewayProblem(status, None, f"it answers with status {status}", pause)
    text = _UNPRINTABLE.sub(" ", detail) if isinstance(detail, str) else f"{kind}, with status {status}"
    return GatewayProblem(status, ErrorKind(kind), text[:_MAX_DETAIL], pause)


def absent_error(message: str) -> StoreUnreachable:
    """Return the error for a gateway that does not answer, or not completely."""
    return StoreUnreachable(message, hint=_ABSENT_HINT)


def no_gateway_error(message: str, reason: str) -> StoreError:
    """Return the error for a server that is not a gateway."""
    return StoreError(
        f"{message}: that is not a lookupdb gateway: {reason}",
        hint="check the URL: a store behind http is a gateway of this version, a bucket is s3://, gs:// or az://",
    )


# Credentials of a bucket.


PREFIX: Final = "LOOKUPDB_STORE_"
SOURCE_PREFIX: Final = "LOOKUPDB_SOURCE_STORE_"
"""Prefix of the variables for the store that `lookupdb copy` reads, if its credentials differ."""

_PROVIDERS: Final = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""Scheme of a bucket → the prefix of the variables that obstore reads for it."""

_environment_lock: Final = threading.Lock()

SECRET_VARIABLE: Final = f"{PREFIX}SECRET"
"""Names the Secret with the store's variables, if there is one: missing variables are not taken from elsewhere."""


def store_variables(scheme: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the store, by their plain names. Empty variables are ignored: obstore would take one for
    an address, and panic."""
    provider = _PROVIDERS[scheme]
    own = {
        name.removeprefix(PREFIX): value
        for name, value in environment.items()
        if name.startswith(PREFIX + provider) and value
    }
    if own or environment.get(SECRET_VARIABLE):
        return own
    return {name: value for name, value in environment.items() if name.startswith(provider) and value}


@contextmanager
def store_environment(scheme: str) -> Iterator[dict[str, str]]:
    """Replace the provider's variables in the environment by the store's while the block runs: obstore always reads the
    environment, and a session token of the source must not go with a key of the store. Yields the variables."""
    provider = _PROVIDERS[scheme]
    variables = store_variables(scheme, os.environ)
    with _environment_lock:
        saved = {name: value for name, value in os.environ.items() if name.startswith(provider)}
        if saved == variables:
            yield variables
            return
        try:
            _replace_variables(saved, variables)
            yield variables
        finally:
            _replace_variables(variables, saved)


@contextmanager
def source_store() -> Iterator[None]:
    """If there are variables LOOKUPDB_SOURCE_STORE_<NAME>, they replace all LOOKUPDB_STORE_<NAME> in the block, which
    opens the store to copy from."""
    own = {
        PREFIX + name.removeprefix(SOURCE_PREFIX): value
        for name, value in os.environ.items()
        if name.startswith(SOURCE_PREFIX) and value
    }
    if not own:
        yield
        return
    with _environment_lock:
        saved = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
        _replace_variables(saved, own)
    try:
        yield
    finally:
        with _environment_lock:
            _replace_variables(own, saved)


def _replace_variables(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    for name in old:
        os.environ.pop(name, None)
    os.environ.update(new)


def identify_store(url: str, variables: Mapping[str, str]) -> str:
    """Return a text that is equal for two references to the same store with the same rights: the same URL may lead to
    another server, or for another user to another bucket. It is a hash, because credentials are secrets."""
    return hashlib.sha256(json.dumps([url, dict(variables)], sort_keys=True).encode()).hexdigest()


def find_endpoint(scheme: str, variables: Mapping[str, str]) -> str | None:
    """Return the URL of the bucket's server, if it is not the provider's own."""
    names = ("ENDPOINT_URL", "ENDPOINT", "ENDPOINT_URL_S3", "STORAGE_ENDPOINT", "BASE_URL")
    return next((found for name in names if (found := variables.get(_PROVIDERS[scheme] + name))), None)


def allows_http(scheme: str, variables: Mapping[str, str]) -> bool:
    """Return whether the bucket's endpoint may be plain http, as a private store on a private network may."""
    return variables.get(f"{_PROVIDERS[scheme]}ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
