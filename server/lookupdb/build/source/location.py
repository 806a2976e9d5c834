"""The places a source can be: files of this machine, objects behind a URL. Finds them; ``fetch`` reads them.

Every scheme is listed in ``SCHEMES``; anything else is refused. Plain http is read from this machine only, because
anybody on the way could change the data.
"""

from __future__ import annotations

import datetime
import glob
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError

from lookupdb.build.source.http_stream import Streamed
from lookupdb.errors import BadSource
from lookupdb.manifest import SourceFile
from lookupdb.network import describe_failure, is_unreachable, is_without_credentials, without_secrets

MAX_FILES: Final = 10_000
"""The most files one url may match: a pattern that matches more is taken for a mistake."""

_CLIENT: Final = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "7days"}
"""``timeout`` is for a whole file, however large: what stalls is ended by ``read_timeout``."""
_RETRIES: Final = {"max_retries": 4, "retry_timeout": datetime.timedelta(seconds=30)}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_USER: Final = re.compile(r"//[^/]*@")
_WILD: Final = re.compile(r"[*?\[]")


UNKNOWN_BYTES: Final = 0
"""The size of what is ``Streamed``, until it was read."""


@dataclass(frozen=True, slots=True)
class Remote:
    """An object behind a URL."""

    store: Any
    """An obstore store."""
    path: str

    def open(self, described: SourceFile) -> Any:
        """Its bytes, as an iterator of chunks. Raises BadSource, also when it is not what ``described`` says."""
        with remote_errors(described.url):
            result = obstore.get(self.store, self.path)
            if _describe(described.url, result.meta) != described:
                raise PreconditionError("its size, ETag or time is another")
            return result.stream(min_chunk_size=1 << 20)


@dataclass(frozen=True, slots=True)
class Found:
    """One file or object, and where to read it."""

    described: SourceFile
    place: Path | Remote | Streamed


def find(url: str, *, base: Path | None, volume: Path | None) -> list[Found]:
    """What ``url`` names or, if it holds wildcards, matches, by path. Raises BadSource; never returns nothing."""
    try:
        return _find(url, base, volume)
    except (ValueError, re.error) as error:
        shown = _USER.sub("//", url.partition("?")[0])
        raise BadSource(f"{shown!r} is not a url: {error}", hint="check source.url") from error


def _find(url: str, base: Path | None, volume: Path | None) -> list[Found]:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _find_path(url, url, base)
    if scheme == "volume":
        return _find_in_volume(url, rest, volume)
    finder = SCHEMES.get(scheme)
    if finder is None:
        known = ", ".join(f"{name}://" for name in (*SCHEMES, "volume") if name != "http")
        raise BadSource(f"{url}: {scheme}:// is not a scheme a source is read from", hint=f"use one of {known}")
    return finder(url)


def _find_path(url: str, path: str, base: Path | None) -> list[Found]:
    if not Path(path).is_absolute() and base is None:
        raise BadSource(
            f"{url} is a relative path, and there is no manifest's folder to take it from",
            hint="use https://, s3://, gs://, az:// or volume://; relative paths are for a laptop",
        )
    root = base or Path("/")
    return [_local(root / match, match) for match in _matches(url, path, root)]


def _find_file(url: str) -> list[Found]:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise BadSource(f"{url}: a file:// url has no host", hint="write three slashes: file:///folder/file.csv")
    path = unquote(url.removeprefix("file://").removeprefix("localhost"))
    return [_local(Path(match), Path(match).as_uri()) for match in _matches(url, path, Path("/"))]


def _find_in_volume(url: str, path: str, volume: Path | None) -> list[Found]:
    if volume is None:
        raise BadSource(f"{url}: no volume is mounted", hint="give its folder with --volume")
    root = volume.resolve()
    found = []
    for match in _matches(url, path.lstrip("/"), root):
        if not (root / match).resolve().is_relative_to(root):
            raise BadSource(f"{url}: {match} leads out of the volume")
        found.append(_local(root / match, f"volume://{match}"))
    return found


def _find_example(url: str) -> list[Found]:
    name = url.removeprefix("example://")
    folder = resources.files("lookupdb").joinpath("data")
    names = sorted(entry.name for entry in folder.iterdir() if ".csv" in entry.name)
    if name not in names:
        raise BadSource(f"{url}: there is no such example", hint=f"lookupdb ships with {', '.join(names)}")
    with resources.as_file(folder.joinpath(name)) as path:
        content = path.read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        return [Found(SourceFile(url, len(content), etag, None), path)]


def _matches(url: str, path: str, root: Path) -> list[str]:
    """Paths of files, relative to ``root`` as ``path`` is. A file that is called like a pattern is that file."""
    whole = root / path
    if whole.is_file() or not _WILD.search(path):
        if whole.is_dir():
            raise BadSource(f"{url} is a folder, expected a file", hint="match its files with a wildcard: folder/*.csv")
        return [path]
    matches = glob.iglob(path, root_dir=root, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
    return _some(url, (match for match in matches if (root / match).is_file()))


def _some(url: str, paths: Iterator[str]) -> list[str]:
    found = []
    for path in paths:
        found.append(path)
        if len(found) > MAX_FILES:
            raise BadSource(f"{url} matches more than {MAX_FILES} files", hint="narrow the pattern")
    if not found:
        raise BadSource(f"{url} matches no file", hint="`*` does not match `/`; `**` matches folders")
    return sorted(set(found))


def _local(path: Path, url: str) -> Found:
    try:
        status = path.stat()
        with path.open("rb"):
            pass
    except FileNotFoundError as error:
        raise BadSource(f"{url}: there is no such file ({path})", hint="check source.url") from error
    except OSError as error:
        raise BadSource(f"{url} cannot be read: {error.strerror}") from error
    return Found(describe_local(url, status), path)


IDENTIFIED_BYTES: Final = 64 << 20
"""Up to so much in local files, their content is their ETag: it costs a fraction of a second to read."""


def identified(found: list[Found]) -> list[Found]:
    """``found``, its local files with a checksum as ETag unless they are large together: a ConfigMap that is mounted
    anew, or a file written again as it was, is no change. Raises BadSource."""
    if sum(one.described.bytes for one in found if _is_local(one)) > IDENTIFIED_BYTES:
        return found
    return [_with_checksum(one) if _is_local(one) else one for one in found]


def _is_local(one: Found) -> bool:
    """An example, which never changes, has its checksum already."""
    return isinstance(one.place, Path) and one.described.etag is None


def _with_checksum(one: Found) -> Found:
    assert isinstance(one.place, Path)
    try:
        with one.place.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadSource(f"{one.described.url} cannot be read: {error.strerror}") from error
    return replace(one, described=replace(one.described, etag=checksum))


def describe_local(url: str, status: os.stat_result) -> SourceFile:
    """A local file as it is now; its time is kept to the nanosecond, so that a quick second write is seen."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 1_000_000_000)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return SourceFile(url, status.st_size, None, f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z")


def _find_http(url: str) -> list[Found]:
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise BadSource(
            f"{without_secrets(url)}: plain http is read from this machine only",
            hint="anybody on the way could change the data: use https://",
        )
    with remote_errors(without_secrets(url)):
        client = {**_CLIENT, "allow_http": parts.scheme == "http"}
        # The whole url is the store, the empty path is in it: a query, as signed urls have, stays as it is. And GET,
        # because a url signed for GET answers 403 to HEAD.
        store = obstore.store.HTTPStore.from_url(url, client_options=client, retry_config=_RETRIES)  # type: ignore[arg-type]
        try:
            meta = obstore.get(store, "").meta
        except BaseError as error:
            if "Content-Length" not in str(error):
                raise
            return [Found(SourceFile(without_secrets(url), UNKNOWN_BYTES, None, None), Streamed(url))]
        return [Found(_describe(without_secrets(url), meta), Remote(store, ""))]


def _find_object(url: str) -> list[Found]:
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    if not bucket or not path:
        raise BadSource(f"{url}: expected {scheme}://bucket/path")
    with remote_errors(url):
        store: Any = obstore.store.from_url(
            f"{scheme}://{bucket}",
            client_options={**_CLIENT, "allow_http": _may_be_http(scheme)},  # type: ignore[call-overload]
            retry_config=_RETRIES,
        )
        if not _WILD.search(path):
            return [Found(_describe(url, obstore.head(store, path)), Remote(store, path))]
        metas = _list(store, path)
    names = _some(url, iter(metas))
    return [Found(_describe(f"{scheme}://{bucket}/{name}", metas[name]), Remote(store, name)) for name in names]


def _may_be_http(scheme: str) -> bool:
    """Whether the environment allows a bucket's endpoint (AWS_ENDPOINT_URL, …) to be plain http, for a store of one's
    own. obstore reads these variables too, but not beside other client options."""
    provider = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}[scheme]
    return os.environ.get(f"{provider}_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")


def _list(store: Any, pattern: str) -> dict[str, Any]:
    fixed = pattern[: _WILD.search(pattern).start()]  # type: ignore[union-attr]
    matches = re.compile(pattern_expression(pattern)).fullmatch
    found: dict[str, Any] = {}
    for batch in obstore.list(store, fixed.rpartition("/")[0] or None):
        found.update((meta["path"], meta) for meta in batch if matches(meta["path"]))
        if len(found) > MAX_FILES:
            break
    return found


def pattern_expression(pattern: str) -> str:
    """The regular expression of a path pattern: ``*``, ``?`` and ``[…]`` stay within a folder, ``**`` does not."""
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


def _describe(url: str, meta: Any) -> SourceFile:
    return SourceFile(url, meta["size"], meta["e_tag"], _time(meta))


def _time(meta: Any) -> str | None:
    """None where the server tells no time: obstore then says it is 1970."""
    moment: datetime.datetime = meta["last_modified"]
    return moment.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z") if moment.timestamp() else None


@contextmanager
def remote_errors(url: str) -> Iterator[None]:
    """Turn what obstore says about ``url`` into a sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadSource(f"{url}: there is no such object (404)", hint="check source.url") from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        code = 403 if isinstance(error, PermissionDeniedError) else 401
        raise BadSource(
            f"{url}: access denied ({code})",
            hint=_credentials_hint(url),
        ) from error
    except PreconditionError as error:
        raise BadSource(f"{url} changed while it was read", hint="build again once it is complete") from error
    except (BaseError, OSError, ValueError) as error:
        raise BadSource(f"{url} cannot be read: {describe_failure(error)}", hint=_hint(error, url)) from error


_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN, AWS_REGION)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, the path of a key file",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Scheme → the variables that hold its credentials."""


def _credentials_hint(url: str) -> str:
    """Where credentials for ``url`` come from."""
    if variables := _CREDENTIALS.get(url.partition("://")[0]):
        return f"its credentials are {variables} in the environment; in a cluster, of source.secretName"
    return (
        "no variable holds credentials for https: the URL itself carries them, signed or as https://USER:PASSWORD@…, "
        "or the file is copied to where it can be read"
    )


def _hint(error: Exception, url: str) -> str | None:
    """What to do about a server that cannot be spoken to; None where its own words say it."""
    if "InvalidCertificate" in str(error):
        return "use the name that its certificate is for, signed by an authority that is known here"
    if is_without_credentials(error):
        return _credentials_hint(url)
    return "check source.url, and that its host can be reached from here" if is_unreachable(error) else None


SCHEMES: Final[dict[str, Callable[[str], list[Found]]]] = {
    "file": _find_file,
    "https": _find_http,
    "http": _find_http,
    "s3": _find_object,
    "gs": _find_object,
    "az": _find_object,
    "example": _find_example,
}
"""Scheme → what finds its files; ``volume`` is found by ``find``, which knows where it is mounted."""
