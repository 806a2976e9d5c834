"""Sources behind a URL: http(s), and objects of S3, GCS and Azure.

Plain http is read from this machine only, because anybody on the way could change the data.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError

from lookupdb.build.source.file_kinds import ENDINGS, Compression
from lookupdb.build.source.http_stream import HttpStream
from lookupdb.build.source.location import MAX_FILES, WILDCARD, LocatedFile, collect_matches
from lookupdb.errors import BadSource, SourceMissing, SourceUnreadable
from lookupdb.loopback import proxy_options
from lookupdb.manifest import SourceFile
from lookupdb.network import describe_failure, is_unreachable, lacks_credentials, panics_as_errors
from lookupdb.runtime.daemon_calls import call_interruptibly, iterate_interruptibly

_CLIENT: Final = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "7days"}
"""``timeout`` covers a whole file, however large; ``read_timeout`` ends a transfer that stalls."""
_RETRIES: Final = {"max_retries": 4, "retry_timeout": datetime.timedelta(seconds=30)}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_CODINGS: Final = (*ENDINGS, "br", "deflate", "compress", "dcb", "dcz")
"""The compressions among values of Content-Encoding. Servers send others too, for example aws-chunked and utf-8."""
UNKNOWN_BYTES: Final = 0
"""The size of an ``HttpStream`` until it is read."""


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object behind a URL."""

    store: Any
    """An obstore store."""
    path: str

    def open(self, description: SourceFile) -> Any:
        """Its bytes, as an iterator of chunks. Raises BadSource, also if it no longer matches ``description``."""
        with remote_errors(description.url):
            result = call_interruptibly(obstore.get, self.store, self.path)
            if _describe_object(description.url, result.meta) != description:
                raise PreconditionError("its size, ETag or time is another")
            return iterate_interruptibly(result.stream(min_chunk_size=1 << 20))


def find_http(url: str, label: str) -> list[LocatedFile]:
    """The one file behind an http(s) url. Raises BadSource."""
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise BadSource(
            f"{label}: plain http is read from this machine only",
            hint="anybody on the way could change the data: use https://",
        )
    with remote_errors(label):
        client = {**_CLIENT, **proxy_options(url), "allow_http": parts.scheme == "http"}
        # The whole url is the store, and its object has the empty path: so the query of a signed url stays unchanged.
        # The request is GET, because a url signed for GET answers 403 to HEAD.
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
    """The compression that a Content-Encoding names; none for what is no compression. Raises BadSource for one that
    is not read."""
    codings = [part.strip().lower().removeprefix("x-") for part in header.split(",")]
    known = [coding for coding in codings if coding in _CODINGS]
    if not known:
        return "none"
    if len(known) > 1 or known[0] not in ENDINGS:
        raise BadSource(
            f"{label} is sent in the Content-Encoding {', '.join(known)}, expected one of {', '.join(ENDINGS)}",
            hint="have its server send it as it is, or in gzip",
        )
    return known[0]


def find_objects(url: str, label: str) -> list[LocatedFile]:
    """The objects that a bucket url names or matches. Raises BadSource."""
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    if not bucket or not path:
        raise BadSource(f"{label}: expected {scheme}://bucket/path")
    with remote_errors(label):
        store: Any = obstore.store.from_url(
            f"{scheme}://{bucket}",
            client_options={**_CLIENT, "allow_http": _allows_http(scheme)},  # type: ignore[call-overload]
            retry_config=_RETRIES,
        )
        if not WILDCARD.search(path):
            return [
                LocatedFile(
                    _describe_object(url, call_interruptibly(obstore.head, store, path)), RemoteObject(store, path)
                )
            ]
        metas = _list_matches(store, path)
    names = collect_matches(label, iter(metas))
    return [
        LocatedFile(_describe_object(f"{scheme}://{bucket}/{name}", metas[name]), RemoteObject(store, name))
        for name in names
    ]


def _allows_http(scheme: str) -> bool:
    """Whether the environment allows plain http for a bucket's endpoint (AWS_ENDPOINT_URL, …), as a private store
    needs. obstore reads these variables too, but not together with other client options."""
    provider = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}[scheme]
    return os.environ.get(f"{provider}_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")


def _list_matches(store: Any, pattern: str) -> dict[str, Any]:
    fixed = pattern[: WILDCARD.search(pattern).start()]  # type: ignore[union-attr]
    matches = re.compile(pattern_to_regex(pattern)).fullmatch
    objects: dict[str, Any] = {}
    for batch in iterate_interruptibly(obstore.list(store, fixed.rpartition("/")[0] or None)):
        objects.update((meta["path"], meta) for meta in batch if matches(meta["path"]))
        if len(objects) > MAX_FILES:
            break
    return objects


def pattern_to_regex(pattern: str) -> str:
    """The regular expression of a path pattern: ``*``, ``?`` and ``[…]`` stay within a folder, ``**`` crosses
    folders."""
    expression = ""
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\[!?[^]]+\]|.", pattern, re.DOTALL):
        match token:
            case "**/":
                expression += "(?:[^/]+/)*"
            case "**":
                expression += ".*"
            case "*":
                expression += "[^/]*"
            case "?":
                expression += "[^/]"
            case _ if len(token) > 2:
                negated, members = token[1] == "!", token[1:-1].lstrip("!")
                expression += f"[{'^/' if negated else ''}{re.escape(members).replace(chr(92) + '-', '-')}]"
            case _:
                expression += re.escape(token)
    return expression


def _describe_object(url: str, meta: Any) -> SourceFile:
    return SourceFile(url, meta["size"], meta["e_tag"], _format_time(meta))


def _format_time(meta: Any) -> str | None:
    """The object's time, or None if the server sends none: obstore then says 1970."""
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
"""Scheme → the variables that hold its credentials."""


def _credentials_hint(url: str) -> str:
    """Where the credentials for ``url`` come from."""
    if variables := _CREDENTIALS.get(url.partition("://")[0]):
        return f"its credentials are {variables} in the environment; in a cluster, of source.secretName"
    return (
        "no variable holds credentials for https: the URL itself carries them, signed or as https://USER:PASSWORD@…, "
        "or the file is copied to where it can be read"
    )


def _hint(error: Exception, url: str) -> str | None:
    """What to do about a server that cannot be reached; None if the error itself says it."""
    if "InvalidCertificate" in str(error):
        return "use the name that its certificate is for, signed by an authority that is known here"
    if "Content-Length" in str(error) and url.startswith("gs://"):
        return (
            "GCS unpacks an object with contentEncoding: gzip as it sends it, without its length: clear contentEncoding"
        )
    if lacks_credentials(error):
        return _credentials_hint(url)
    return "check source.url, and that its host can be reached from here" if is_unreachable(error) else None
