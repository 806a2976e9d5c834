"""Sources behind a URL: http(s), and objects of S3, GCS and Azure.

Plain http is limited to this machine, because anybody on the way could change the data. The object store's client
rejects responses without a length, so ``HttpStream`` reads them: they come in chunks, up to a marked end.
"""

from __future__ import annotations

import datetime
import os
import re
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import obstore
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from lookupdb.builder.files import (
    ENDINGS,
    FOLDER_HINT,
    ICEBERG_ENDINGS,
    ICEBERG_FOLDER,
    ICEBERG_TABLE,
    TABLE_FOLDERS,
    WILDCARD,
    Compression,
    LocatedFile,
    PathMatches,
    PatternFolder,
)
from lookupdb.errors import BadSource, SourceMissing, SourceUnreadable
from lookupdb.manifest import SourceFile
from lookupdb.network import (
    describe_failure,
    is_unreachable,
    lacks_credentials,
    panics_as_errors,
    proxy_handlers,
    proxy_options,
)
from lookupdb.process.launch import call_interruptibly, iterate_interruptibly

_CLIENT: Final = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "7days"}
"""``timeout`` covers a whole file of any size; ``read_timeout`` ends a transfer that stalls."""
_RETRIES: Final = {"max_retries": 4, "retry_timeout": datetime.timedelta(seconds=30)}
_CODINGS: Final = (*ENDINGS, "br", "deflate", "compress", "dcb", "dcz")
"""Values of Content-Encoding that are compressions. Servers also send others, for example aws-chunked and utf-8."""
UNKNOWN_BYTES: Final = 0
"""Size of an ``HttpStream`` before it is read."""


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object behind a URL."""

    store: Any
    """An obstore store."""
    path: str
    bucket: SourceBucket | None = None

    def open(self, description: SourceFile) -> Any:
        """Return its bytes as an iterator of chunks. Raises BadSource, also if it no longer matches ``description``."""
        with remote_errors(description.url):
            result = call_interruptibly(obstore.get, self.store, self.path)
            if _describe_object(description.url, result.meta) != description:
                raise PreconditionError("its size, ETag or time has changed")
            return iterate_interruptibly(result.stream(min_chunk_size=1 << 20))


def find_http(url: str, label: str) -> list[LocatedFile]:
    """Return the file behind an http(s) url. Raises BadSource."""
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise BadSource(
            f"{label}: plain http is read from this machine only",
            hint="anybody on the way could change the data: use https://",
        )
    with remote_errors(label):
        client = {**_CLIENT, **proxy_options(url), "allow_http": parts.scheme == "http"}
        # The whole url is the store and the object's path is empty, so the query of a signed url stays unchanged. The
        # request is GET, because a url signed for GET answers 403 to HEAD.
        store = obstore.store.HTTPStore.from_url(url, client_options=client, retry_config=_RETRIES)  # type: ignore[arg-type]
        try:
            result = call_interruptibly(obstore.get, store, "")
        except BaseError as error:
            if "Content-Length" not in str(error):
                raise
            stream = HttpStream(url)
            coding = _parse_coding(call_interruptibly(stream.content_encoding), label)
            return [LocatedFile(SourceFile(label, UNKNOWN_BYTES, None, None), stream, coding)]
        coding = _parse_coding(result.attributes.get("Content-Encoding", ""), label)
        return [LocatedFile(_describe_object(label, result.meta), RemoteObject(store, ""), coding)]


def _parse_coding(header: str, label: str) -> Compression:
    """Return the compression in a Content-Encoding, "none" if it has none. Raises BadSource if it is not supported."""
    codings = [part.strip().lower().removeprefix("x-") for part in header.split(",")]
    known = [coding for coding in codings if coding in _CODINGS]
    if not known:
        return "none"
    if len(known) > 1 or known[0] not in ENDINGS:
        raise BadSource(
            f"{label} is sent in the Content-Encoding {', '.join(known)}, expected one of {', '.join(ENDINGS)}",
            hint="have its server send it uncompressed, or in gzip",
        )
    return known[0]


def find_objects(url: str, label: str) -> list[LocatedFile]:
    """Return the objects that a bucket url names or matches. Raises BadSource."""
    scheme, _, rest = url.partition("://")
    bucket_name, _, path = rest.partition("/")
    if not bucket_name or not path:
        raise BadSource(f"{label}: expected {scheme}://bucket/path")
    if not _is_name(path.removesuffix("/")):
        raise BadSource(f"{label}: objects with such names are not read: {_ODD_NAMES}", hint=_RENAME)
    with remote_errors(label):
        bucket = SourceBucket(scheme, bucket_name)
        if path.endswith("/") or not WILDCARD.search(path):
            return [_locate_object(bucket, path, label)]
        with suppress(FileNotFoundError, PermissionDeniedError):  # if access is denied, the listing reports it
            return [bucket.locate(path, call_interruptibly(obstore.head, bucket.store, path))]
        matches = PathMatches(label, path)
        metas = _match_by_level(bucket, matches)
        if metas is None:
            matches, metas = PathMatches(label, path), {}
            _match_below(bucket, matches, matches.root, metas)
        paths = matches.finish()
        if (odd := next((path for path in paths if not _is_name(path)), None)) is not None:
            raise BadSource(f"{label} matches {odd!r}, and objects with such names are not read: {_ODD_NAMES}")
        return [bucket.locate(path, metas[path]) for path in paths]


_ODD: Final = re.compile(r"[\x00-\x1f\x7f]")
_ODD_NAMES: Final = "an empty part (`//`), a part that is `.` or `..`, a control character"
_RENAME: Final = "copy the object to another name"
_MAX_LEVELS: Final = 100
"""The most folders of a bucket to list one by one; beyond that, everything below the pattern's fixed part is listed."""
_MAX_PARENTS: Final = 16
"""The most folders above an object to search for the marks of a table."""


def _is_name(path: str) -> bool:
    """Return whether the object store's client supports this object name."""
    return not _ODD.search(path) and not {"", ".", ".."}.intersection(path.split("/"))


def _locate_object(bucket: SourceBucket, path: str, label: str) -> LocatedFile:
    """Return the object at ``path``. Raises BadSource if it is a folder, FileNotFoundError if there is neither."""
    try:
        if not path.endswith("/"):
            return bucket.locate(path, call_interruptibly(obstore.head, bucket.store, path))
    except FileNotFoundError:
        if not bucket.has_any(path):
            raise
    raise BadSource(f"{label} is a folder, expected a file", hint=FOLDER_HINT)


def _match_by_level(bucket: SourceBucket, matches: PathMatches) -> dict[str, Any] | None:
    """Return the objects that match, listing one folder after another; None if there are too many folders."""
    metas: dict[str, Any] = {}
    folders = [matches.root]
    for number, folder in enumerate(folders):  # the list grows during the loop
        if matches.crosses_folders(folder):
            _match_below(bucket, matches, folder, metas)
            continue
        if number == _MAX_LEVELS:
            return None
        objects, names = bucket.list_level(folder.path)
        for name, meta in objects.items():
            if matches.add(folder, name):
                metas[folder.path + name] = meta
        folders += [inner for name in names if (inner := matches.enter(folder, name)) is not None]
    return metas


def _match_below(bucket: SourceBucket, matches: PathMatches, top: PatternFolder, metas: dict[str, Any]) -> None:
    """Add to ``metas`` the objects below ``top`` that match."""
    folders: dict[str, PatternFolder | None] = {top.path: top}

    def find_folder(path: str) -> PatternFolder | None:
        if path not in folders:
            parent, _, name = path[:-1].rpartition("/")
            outer = find_folder(f"{parent}/" if _ else "")
            folders[path] = None if outer is None else matches.enter(outer, name)
        return folders[path]

    def is_object(path: str) -> bool:
        """Return whether an empty object is a file: the client hides the slash at the end of a folder mark's key."""
        try:
            metas[path] = call_interruptibly(obstore.head, bucket.store, path)
        except FileNotFoundError:
            return False
        return True

    for path, meta in bucket.list_below(top.path):
        parent, slash, name = path.rpartition("/")
        folder = find_folder(parent + slash)
        if folder is None or not name:
            continue
        is_file = partial(is_object, path) if not meta["size"] and _is_name(path) else lambda: True
        if path not in metas and matches.add(folder, name, is_file):
            metas.setdefault(path, meta)


class SourceBucket:
    """A bucket, and what is known of the tables in it."""

    def __init__(self, scheme: str, name: str, **options: Any) -> None:
        """``options`` are obstore's; by default obstore reads the environment."""
        self.url = f"{scheme}://{name}"
        # A private store may need plain http for its endpoint (AWS_ENDPOINT_URL, …). If other client options are given,
        # obstore ignores the variable that allows it.
        provider = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}[scheme]
        allow_http = os.environ.get(f"{provider}_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
        self.store: Any = obstore.store.from_url(  # type: ignore[call-overload]
            self.url, client_options={**_CLIENT, "allow_http": allow_http}, retry_config=_RETRIES, **options
        )
        self._tables: dict[str, str | None] = {}
        """Folder → its table, if known."""
        self._listed: list[str] = []
        """Folders that were listed with all folders in them."""

    def locate(self, path: str, meta: Any) -> LocatedFile:
        """Return the object at ``path``, which a listing describes by ``meta``."""
        return LocatedFile(_describe_object(f"{self.url}/{path}", meta), RemoteObject(self.store, path, self))

    def list_level(self, folder: str) -> tuple[dict[str, Any], list[str]]:
        """Return the objects in ``folder`` by name, and the names of its folders."""
        found: Any = call_interruptibly(obstore.list_with_delimiter, self.store, folder[:-1] or None)
        names = [prefix[len(folder) :] for prefix in found["common_prefixes"]]
        self._tables.setdefault(folder, None)
        for name in names:
            if name in TABLE_FOLDERS:
                self._tables[folder] = TABLE_FOLDERS[name]
        if ICEBERG_FOLDER in names and self._tables[folder] is None:
            del self._tables[folder]  # ``find_table`` looks into it if needed
        return {
            meta["path"][len(folder) :]: meta
            for meta in found["objects"]
            if len(meta["path"]) > len(folder) and not _is_mark(meta)
        }, names

    def list_below(self, folder: str) -> Iterator[tuple[str, Any]]:
        """Yield the objects below ``folder``, at any depth."""
        self._listed.append(folder)
        for meta in self._list_all(folder):
            path = meta["path"]
            outer, slash, inner = f"/{path}".rpartition(f"/{ICEBERG_FOLDER}/")
            if slash and "/" not in inner and inner.endswith(ICEBERG_ENDINGS):
                self._tables[f"{outer[1:]}/" if outer else ""] = ICEBERG_TABLE
            for name, kind in TABLE_FOLDERS.items():
                outer, slash, _ = f"/{path}/".partition(f"/{name}/")
                if slash:
                    self._tables[f"{outer[1:]}/" if outer else ""] = kind
            if len(path) > len(folder) and not _is_mark(meta):
                yield path, meta

    def _list_all(self, folder: str) -> Iterator[Any]:
        batches: Any = obstore.list(self.store, folder[:-1] or None)
        for batch in iterate_interruptibly(batches):
            yield from batch

    def has_any(self, path: str) -> bool:
        """Return whether there is an object below the folder ``path``."""
        return next(self._list_all(f"{path.removesuffix('/')}/"), None) is not None

    def find_table(self, path: str) -> str | None:
        """Return the table that the object at ``path`` belongs to, "a Delta table at …"; None if none is known. Raises
        BadSource."""
        parts = path.split("/")[:-1]
        folders = ["".join(f"{part}/" for part in parts[:number]) for number in range(len(parts), -1, -1)]
        for folder in folders[:_MAX_PARENTS]:
            if folder not in self._tables:
                # Credentials may allow reading but not listing.
                with remote_errors(f"{self.url}/{path}"), suppress(PermissionDeniedError):
                    self._tables[folder] = self._recognize_table(folder)
            if (kind := self._tables.get(folder)) is not None:
                return f"{kind} at {self.url}/{folder.removesuffix('/')}"
        return None

    def _recognize_table(self, folder: str) -> str | None:
        if any(folder.startswith(listed) for listed in self._listed):
            return None
        for name, kind in TABLE_FOLDERS.items():
            if self.has_any(folder + name):
                return kind
        names = (meta["path"] for meta in self._list_all(f"{folder}{ICEBERG_FOLDER}/"))
        return ICEBERG_TABLE if any(name.endswith(ICEBERG_ENDINGS) for name in names) else None


def _is_mark(meta: Any) -> bool:
    """Return whether an object marks a folder, as consoles (``folder/``) and Hadoop (``folder_$folder$``) make them."""
    return meta["path"].endswith("/") or (not meta["size"] and meta["path"].endswith("_$folder$"))


def _describe_object(url: str, meta: Any) -> SourceFile:
    moment: datetime.datetime = meta["last_modified"]  # 1970 if the server sends no time
    modified = moment.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z") if moment.timestamp() else None
    return SourceFile(url, meta["size"], meta["e_tag"], modified)


@contextmanager
def remote_errors(url: str) -> Iterator[None]:
    """Turn an error of obstore about ``url`` into a BadSource."""
    try:
        with panics_as_errors():
            yield
    except FileNotFoundError as error:
        raise SourceMissing(f"{url}: there is no such object (404)", hint="check source.url") from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        code = 403 if isinstance(error, PermissionDeniedError) else 401
        raise SourceUnreadable(f"{url}: access denied ({code})", hint=_credentials_hint(url)) from error
    except PreconditionError as error:
        raise SourceUnreadable(f"{url} changed while it was read", hint="build again once it is complete") from error
    except (BaseError, OSError, ValueError) as error:
        raise SourceUnreadable(f"{url} cannot be read: {describe_failure(error)}", hint=_hint(error, url)) from error


_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN, AWS_REGION)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, the path of a key file",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Scheme → the variables with its credentials."""


def _credentials_hint(url: str) -> str:
    """Return a hint on where the credentials for ``url`` come from."""
    if variables := _CREDENTIALS.get(url.partition("://")[0]):
        return f"set {variables} in the environment; in a cluster, use source.secretName"
    return (
        "https has no credentials of its own: use a signed URL or https://USER:PASSWORD@…, or copy the file "
        "to where it can be read"
    )


def _hint(error: Exception, url: str) -> str | None:
    """Return a hint about a server that cannot be reached; None if the error says enough."""
    if "InvalidCertificate" in str(error):
        return "use a name that is in its certificate; this machine must trust the CA that signed it"
    if "Content-Length" in str(error) and url.startswith("gs://"):
        return "GCS decompresses an object with contentEncoding: gzip, and omits its length: clear contentEncoding"
    if isinstance(error, InvalidPathError):
        return f"{_RENAME}, or begin the pattern with a folder that has no such name in it"
    if lacks_credentials(error):
        return _credentials_hint(url)
    return "check source.url, and that its host can be reached from here" if is_unreachable(error) else None


_CHUNK: Final = 1 << 20
_STALL_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class HttpStream:
    """The URL of a file whose server sends no length."""

    url: str

    def open(self, description: SourceFile) -> Iterator[bytes]:
        """Yield its bytes, to the end. Raises BadSource if no end is marked, OSError if the server cannot be read."""
        with _open(self.url) as response:
            if response.headers.get("Transfer-Encoding", "").lower() != "chunked" and response.length is None:
                raise BadSource(
                    f"{description.url}: its server sends neither its length nor a marked end",
                    hint="a truncated file would go unnoticed: send Content-Length, or chunks",
                )
            try:
                while chunk := response.read(_CHUNK):
                    yield chunk
            except HTTPException as error:
                raise OSError(f"it is cut short ({type(error).__name__})") from error

    def content_encoding(self) -> str:
        """Return the Content-Encoding header, empty if there is none. Raises OSError if the server cannot be read."""
        with _open(self.url) as response:
            return str(response.headers.get("Content-Encoding", ""))


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirect from https to plain http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https://") and req.full_url.startswith("https://"):
            raise OSError("it is redirected to plain http")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str) -> Any:
    parts = urlsplit(url)
    user, at_sign, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=host, fragment="")))  # noqa: S310 - http(s) only
    request.add_header("Accept-Encoding", "identity")
    if at_sign:
        credentials = b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {credentials}")
    return urllib.request.build_opener(_SafeRedirects, *proxy_handlers(url)).open(request, timeout=_STALL_SECONDS)
