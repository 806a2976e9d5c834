"""List the source: the files and objects behind its URLs, their fingerprint, and the success file.

The first part reads http(s) URLs and buckets, the second resolves the spec's URLs to ``SourceObject``, and the third
reads the success file.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote, unquote_plus, urlencode, urlsplit
from xml.etree import ElementTree

import obstore
import orjson
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from lookupdb.builder.files import (
    FOLDER_HINT,
    ICEBERG_ENDINGS,
    ICEBERG_FOLDER,
    ICEBERG_TABLE,
    TABLE_FOLDERS,
    WILDCARD,
    LocatedFile,
    PathMatches,
    PatternFolder,
    RemoteFile,
    add_checksums,
    find_example,
    find_file,
    find_in_volume,
    find_path,
    find_table,
)
from lookupdb.builder.http_stream import HttpStream
from lookupdb.builder.streams import ENDINGS, FIRST_BYTES, Compression, decompress, recognize, wrong_kind_error
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import BadSource, SourceMissing, SourceUnreadable
from lookupdb.manifest import SourceFile
from lookupdb.network import describe_failure, is_unreachable, lacks_credentials, panics_as_errors, proxy_options
from lookupdb.process.daemon_calls import call_interruptibly, iterate_interruptibly
from lookupdb.wording import strip_secrets

# Sources behind a URL: http(s), and objects of S3, GCS and Azure.
#
# Plain http is limited to this machine, because anybody on the way could change the data.


_CLIENT: Final = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "7days"}
"""``timeout`` covers a whole file of any size; ``read_timeout`` ends a transfer that stalls."""
_RETRIES: Final = {"max_retries": 4, "retry_timeout": datetime.timedelta(seconds=30)}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
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
    bucket: _Bucket | None = None

    def open(self, description: SourceFile) -> Any:
        """Return its bytes as an iterator of chunks. Raises BadSource, also if it no longer matches ``description``."""
        with remote_errors(description.url):
            result = call_interruptibly(obstore.get, self.store, self.path)
            if _describe_object(description.url, result.meta) != description:
                raise PreconditionError("its size, ETag or time has changed")
            return iterate_interruptibly(result.stream(min_chunk_size=1 << 20))

    def find_table(self) -> str | None:
        """Return the table of a bucket that it is part of; None if none is known. Raises BadSource."""
        if self.bucket is None:
            return None
        with remote_errors(f"{self.bucket.url}/{self.path}"):
            return self.bucket.find_table(self.path)


def find_http(url: str, label: str) -> list[LocatedFile]:
    """Return the file behind an http(s) url. Raises BadSource."""
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
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
        bucket = _Bucket(scheme, bucket_name)
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
"""The most parent folders of the listed ones to search for the marks of a table."""


def _is_name(path: str) -> bool:
    """Return whether the object store's client supports this object name."""
    return not _ODD.search(path) and not {"", ".", ".."}.intersection(path.split("/"))


def _locate_object(bucket: _Bucket, path: str, label: str) -> LocatedFile:
    """Return the object at ``path``. Raises BadSource if it is a folder, FileNotFoundError if there is neither."""
    try:
        if not path.endswith("/"):
            return bucket.locate(path, call_interruptibly(obstore.head, bucket.store, path))
    except FileNotFoundError:
        if not bucket.has_any(path):
            raise
    raise BadSource(f"{label} is a folder, expected a file", hint=FOLDER_HINT)


def _match_by_level(bucket: _Bucket, matches: PathMatches) -> dict[str, Any] | None:
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


def _match_below(bucket: _Bucket, matches: PathMatches, top: PatternFolder, metas: dict[str, Any]) -> None:
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


class _Bucket:
    """A bucket, and what is known of the tables in it."""

    def __init__(self, scheme: str, name: str) -> None:
        self.url, self._scheme, self._name = f"{scheme}://{name}", scheme, name
        self.store: Any = self._open_store()
        self._tables: dict[str, str | None] = {}
        """Folder → its table, if known."""
        self._listed: list[str] = []
        """Folders that were listed at any depth."""

    def _open_store(self, **options: Any) -> Any:
        return obstore.store.from_url(  # type: ignore[call-overload]
            self.url,
            client_options={**_CLIENT, "allow_http": _allows_http(self._scheme)},
            retry_config=_RETRIES,
            **options,
        )

    def locate(self, path: str, meta: Any) -> LocatedFile:
        return LocatedFile(_describe_object(f"{self.url}/{path}", meta), RemoteObject(self.store, path, self))

    def list_level(self, folder: str) -> tuple[dict[str, Any], list[str]]:
        """Return the objects in ``folder`` by name, and the names of its folders."""
        try:
            found = call_interruptibly(obstore.list_with_delimiter, self.store, folder[:-1] or None)
            objects, prefixes = found["objects"], [f"{prefix}/" for prefix in found["common_prefixes"]]
        except InvalidPathError as error:
            objects, prefixes = self._list_signed(folder, "/", error)
        names = [prefix[len(folder) : -1] for prefix in prefixes]
        self._tables.setdefault(folder, None)
        for name in names:
            if name in TABLE_FOLDERS:
                self._tables[folder] = TABLE_FOLDERS[name]
        if ICEBERG_FOLDER in names and self._tables[folder] is None:
            del self._tables[folder]  # ``find_table`` looks into it if needed
        return {
            meta["path"][len(folder) :]: meta
            for meta in objects
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
        try:
            for batch in iterate_interruptibly(obstore.list(self.store, folder[:-1] or None)):
                yield from batch
        except InvalidPathError as error:
            yield from self._list_signed(folder, "", error)[0]

    def has_any(self, path: str) -> bool:
        """Return whether there is an object below the folder ``path``."""
        return next(self._list_all(f"{path.removesuffix('/')}/"), None) is not None

    def _list_signed(self, folder: str, delimiter: str, error: Exception) -> tuple[list[Any], list[str]]:
        """List ``folder`` when an odd name in it makes the client fail; return the objects and the folders.

        The client signs the request, and the answer is parsed here. Raises ``error`` if the bucket is not on S3.
        """
        if self._scheme != "s3":
            raise error
        objects: list[Any] = []
        prefixes: list[str] = []
        token: str | None = None
        bucket_url = self._sign(self.store).partition("?")[0].removesuffix("/x")
        while True:
            query = {"list-type": "2", "prefix": folder, "delimiter": delimiter, "encoding-type": "url"}
            query = {name: text for name, text in query.items() if text}
            if token is not None:
                query["continuation-token"] = token
            # The client appends a path; the endpoint ends in a query parameter that absorbs it.
            endpoint = f"{bucket_url}?{urlencode(query, quote_via=quote)}&x-path="
            url = self._sign(self._open_store(endpoint=endpoint, virtual_hosted_style_request=True))
            page = call_interruptibly(_read_page, url)
            for entry in page.iterfind("{*}Contents"):
                objects.append(_describe_entry(entry))
            prefixes += [unquote_plus(entry.text or "") for entry in page.iterfind("{*}CommonPrefixes/{*}Prefix")]
            token = page.findtext("{*}NextContinuationToken")
            if not token:
                return objects, prefixes

    def _sign(self, store: Any) -> str:
        return str(call_interruptibly(obstore.sign, store, "GET", "x", datetime.timedelta(minutes=5)))

    def find_table(self, path: str) -> str | None:
        """Return the table that the object at ``path`` belongs to, "a Delta table at …"; None if none is known."""
        parts = path.split("/")[:-1]
        folders = ["".join(f"{part}/" for part in parts[:number]) for number in range(len(parts), -1, -1)]
        for folder in folders[:_MAX_PARENTS]:
            if folder not in self._tables:
                with suppress(PermissionDeniedError):  # credentials may allow reading but not listing
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
    """Return whether an object marks a folder, as consoles (``folder/``) and Hadoop (``folder_$folder$``) make it."""
    return meta["path"].endswith("/") or (not meta["size"] and meta["path"].endswith("_$folder$"))


def _read_page(url: str) -> ElementTree.Element:
    """Fetch and parse one page of a listing."""
    content = b"".join(HttpStream(url).open(SourceFile("the bucket's listing", UNKNOWN_BYTES, None, None)))
    try:
        return ElementTree.fromstring(content)  # noqa: S314 - the bucket's own server
    except ElementTree.ParseError as error:
        raise ValueError(f"its listing is not XML: {error}") from error


def _describe_entry(entry: ElementTree.Element) -> dict[str, Any]:
    """Describe an object of a listing as the client does."""
    return {
        "path": unquote_plus(entry.findtext("{*}Key", "")),
        "size": int(entry.findtext("{*}Size", "0")),
        "e_tag": entry.findtext("{*}ETag"),
        "last_modified": datetime.datetime.fromisoformat(entry.findtext("{*}LastModified", "1970-01-01T00:00:00Z")),
    }


def _allows_http(scheme: str) -> bool:
    """Return whether the environment allows plain http for a bucket's endpoint (AWS_ENDPOINT_URL, …), as a private
    store needs. obstore ignores these variables when other client options are given."""
    provider = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}[scheme]
    return os.environ.get(f"{provider}_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")


def _describe_object(url: str, meta: Any) -> SourceFile:
    return SourceFile(url, meta["size"], meta["e_tag"], _format_time(meta))


def _format_time(meta: Any) -> str | None:
    """Return the object's time; None if the server sends none, which obstore reports as 1970."""
    moment: datetime.datetime = meta["last_modified"]
    return moment.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z") if moment.timestamp() else None


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
        raise SourceUnreadable(
            f"{url}: access denied ({code})",
            hint=_credentials_hint(url),
        ) from error
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
        return "use the name that its certificate is for, signed by an authority that is known here"
    if "Content-Length" in str(error) and url.startswith("gs://"):
        return (
            "GCS unpacks an object with contentEncoding: gzip as it sends it, without its length: clear contentEncoding"
        )
    if isinstance(error, InvalidPathError):
        return f"{_RENAME}, or begin the pattern with a folder that has no such name in it"
    if lacks_credentials(error):
        return _credentials_hint(url)
    return "check source.url, and that its host can be reached from here" if is_unreachable(error) else None


# The files of a dataset's source, listed before any is read, and their fingerprint.


Format = Literal["csv", "json", "jsonl", "parquet"]

_FORMATS: Final[dict[str, Format]] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_COMPRESSIONS: Final = {ending: compression for compression, ending in ENDINGS.items()}
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SourceObject:
    """One file or object of the source, and how it is read."""

    description: SourceFile
    format: Format
    compression: Compression
    delimiter: str
    """The field separator of CSV."""
    place: Path | RemoteFile


def resolve_source(spec: DatasetSpec, *, volume: Path | None, local_files: bool = True) -> tuple[SourceObject, ...]:
    """Return the files that the source's urls name, in the order of the urls, then of their paths.

    ``volume`` is the folder behind volume:// urls. Without ``local_files``, no other file of this machine is read.
    Raises BadSource for a file that is missing, unreadable or not allowed.
    """
    if not local_files:
        refuse_local_files(spec.source.urls)
    files = [file for url in spec.source.urls for file in find_files(url, base=spec.base, volume=volume)]
    objects = tuple(_source_object(file, spec) for file in add_checksums(files))
    _refuse_tables(objects)
    return objects


def _refuse_tables(objects: Iterable[SourceObject]) -> None:
    """Raise BadSource for a file of a table: its folder also has files with rows that are no longer in the table."""
    tables: dict[Path, str | None] = {}
    for item in objects:
        table = None
        if item.format == "parquet" and isinstance(item.place, Path):
            table = find_table(item.place, tables)
        elif item.format == "parquet" and isinstance(item.place, RemoteObject):
            table = item.place.find_table()
        if table is not None:
            raise BadSource(
                f"{item.description.url} is a file of {table}, which may hold rows that are no longer in it",
                hint="export the table as Parquet files to another folder, with Spark, DuckDB (delta_scan, "
                "iceberg_scan) or the deltalake library, and read those",
            )


def refuse_local_files(urls: Iterable[str]) -> None:
    """Raise BadSource for a url that is a file of this machine."""
    for url in urls:
        scheme, separator, _ = url.partition("://")
        if not separator or scheme == "file":
            raise BadSource(
                f"{strip_secrets(url)} is a local file of the machine that builds, and such files are not read here",
                hint="use https://, s3://, gs:// or az://, or volume:// with source.volume",
            )


def find_files(url: str, *, base: Path | None, volume: Path | None) -> list[LocatedFile]:
    """Return the files that ``url`` names or, with wildcards, matches, sorted by path; at least one. Raises
    BadSource."""
    label = strip_secrets(url)
    try:
        return _dispatch(url, label, base, volume)
    except OSError as error:  # a folder without search permission, a name that is too long
        raise SourceUnreadable(f"{label} cannot be read: {error.strerror or error}") from error
    except (ValueError, re.error) as error:
        why = "" if label != url and "netloc" in str(error) else f": {error}"  # the error quotes the password
        raise BadSource(f"{label!r} is not a url{why}", hint="check source.url") from error


def _dispatch(url: str, label: str, base: Path | None, volume: Path | None) -> list[LocatedFile]:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return find_path(label, url, base)
    if scheme == "volume":
        return find_in_volume(label, rest, volume)
    finder = SCHEMES.get(scheme)
    if finder is None:
        schemes = ", ".join(f"{name}://" for name in (*SCHEMES, "volume"))
        raise BadSource(
            f"{label}: {scheme}:// is not a scheme of a source",
            hint=f"use one of {schemes}; http:// is for this machine alone",
        )
    return finder(url, label)


SCHEMES: Final[dict[str, Callable[[str, str], list[LocatedFile]]]] = {
    "file": find_file,
    "https": find_http,
    "http": find_http,
    "s3": find_objects,
    "gs": find_objects,
    "az": find_objects,
    "example": find_example,
}
"""Scheme → the function that finds the files of a url; its second argument names the url in messages. ``find_files``
handles ``volume`` itself, because it knows the mount."""


class HasDescription(Protocol):
    """An object of the source, at any stage of its fetch."""

    @property
    def description(self) -> SourceFile:
        """The object as it was when it was read."""


def is_identified(description: SourceFile) -> bool:
    """Return whether a change of the object would show: some web servers send neither ETag nor time."""
    return description.etag is not None or description.modified is not None


def source_fingerprint(objects: Iterable[HasDescription]) -> str | None:
    """Return 32 hex digits that change with the order of the objects and any object's url, size and ETag (time if it
    has none).

    Return None if an object is not identified before its fetch: an equal size does not prove that it is unchanged.
    """
    entries = []
    for item in objects:
        if not is_identified(item.description):
            return None
        entry = asdict(item.description)
        if entry["etag"] is not None:
            del entry["modified"]
        entries.append(entry)
    return hashlib.sha256(orjson.dumps(entries, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def _source_object(located: LocatedFile, spec: DatasetSpec) -> SourceObject:
    source = spec.source
    format_suffix, compression = _split_suffixes(located.description.url)
    compression = source.compression or compression
    if compression == "none":
        compression = located.coding
    file_format = source.format or _FORMATS.get(format_suffix)
    if file_format is None:
        raise _unknown_format_error(located, compression)
    if spec.key.member_names and file_format != "json":
        raise BadSource(
            f"{located.description.url} is {file_format} by its name, but key.memberNames needs one JSON object",
            hint="set source.format: json if it is one, or name the key's columns in key.columns",
        )
    return SourceObject(
        description=located.description,
        format=file_format,
        compression=compression,
        delimiter=source.csv.delimiter or ("\t" if format_suffix == ".tsv" else ","),
        place=located.place,
    )


def _unknown_format_error(located: LocatedFile, compression: Compression) -> BadSource:
    """Return the error for a file of unknown format, with a guess from its first bytes."""
    name = located.description.url
    kind = recognize(read_beginning(located, compression))
    if kind is not None and not kind.is_read:
        return wrong_kind_error(kind, name if compression == "none" else f"{name}, unpacked,", "")
    looks_like = f"; by its first bytes it is {kind.name}" if kind else ""
    return BadSource(
        f"{name}: its name does not show its format{looks_like}",
        hint=f"set source.format, or name it {', '.join(_FORMATS)} (and {', '.join(_COMPRESSIONS)} if it is compressed)"
        + (f"; {kind.hint}" if kind else ""),
    )


def read_chunks(file: LocatedFile | SourceObject) -> Iterator[bytes]:
    """Yield the bytes of ``file`` as they are stored or sent. Raises BadSource."""
    name = file.description.url
    if not isinstance(file.place, Path):
        with remote_errors(name):
            yield from file.place.open(file.description)
        return
    try:
        with file.place.open("rb") as opened:
            while chunk := opened.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise SourceUnreadable(f"{name} cannot be read: {error.strerror}") from error


def read_beginning(file: LocatedFile | SourceObject, compression: Compression) -> bytes:
    """Return the first uncompressed bytes of ``file``, as many as show its kind. Raises BadSource."""
    chunks, first = read_chunks(file), b""
    if compression != "none":
        chunks = decompress(chunks, compression, file.description.url)
    for chunk in chunks:
        first += chunk[:FIRST_BYTES]
        if len(first) >= FIRST_BYTES:
            break
    return first[:FIRST_BYTES]


def _split_suffixes(url: str) -> tuple[str, Compression]:
    """Return the suffix that gives the format, and the compression."""
    name = url.rpartition("/")[2].lower()
    compression: Compression = "none"
    stem, dot, suffix = name.rpartition(".")
    if dot and f".{suffix}" in _COMPRESSIONS:
        compression = _COMPRESSIONS[f".{suffix}"]
        stem, dot, suffix = stem.rpartition(".")
    return dot + suffix, compression


_MAX_BYTES: Final = 1 << 20
"""Bytes to hash of a success file that its server does not identify."""


class SourceNotWhole(SourceUnreadable):
    """The source has changed without its success file: somebody may still be writing it."""

    reason = "SourceNotWhole"
    may_pass = False


def read_success_file(spec: DatasetSpec, *, volume: Path | None, local_files: bool = True) -> str | None:
    """Return the identity of the success file that ``spec`` names, 32 hex digits; None if there is no such file. The
    identity changes with each write of the file, even if its content stays the same: most are empty.

    Raises BadSource if access is denied or the server does not answer.
    """
    url = spec.refresh.success_file
    assert url is not None, "only where one is named"
    if not local_files:
        refuse_local_files([url])
    try:
        files = find_files(url, base=spec.base, volume=volume)
    except SourceMissing:
        return None
    if len(files) != 1:
        raise BadSource(
            f"{describe_success_file(spec)} is {len(files)} files, expected one", hint="check refresh.successFile"
        )
    (file,) = files
    identity = asdict(file.description)
    if not is_identified(file.description):
        identity["content"] = _hash_begin(file)
    return hashlib.sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def not_whole_error(spec: DatasetSpec) -> SourceNotWhole:
    """Return the error for a source that has changed since its success file was written."""
    return SourceNotWhole(
        f"the source has changed since {describe_success_file(spec)} was written; it is read when that is written again"
    )


def describe_success_file(spec: DatasetSpec) -> str:
    """Return the url of the success file, for messages."""
    url = spec.refresh.success_file
    assert url is not None, "only where one is named"
    return f"the success file {strip_secrets(url)}"


def _hash_begin(file: LocatedFile) -> str:
    checksum, left = hashlib.sha256(), _MAX_BYTES
    for chunk in _read_chunks(file):
        checksum.update(chunk[:left])
        left -= len(chunk)
        if left <= 0:
            break
    return checksum.hexdigest()


def _read_chunks(file: LocatedFile) -> Iterator[bytes]:
    if isinstance(file.place, Path):
        yield file.place.read_bytes()
        return
    with remote_errors(file.description.url):
        yield from file.place.open(file.description)
