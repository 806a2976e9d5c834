"""The objects of a store behind a gateway. The gateway has the store's credentials; the client sends a token."""

from __future__ import annotations

import datetime
import json
import os
import random
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import IO, Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import orjson
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from lookupdb.backoff import Backoff
from lookupdb.credentials import MAX_TOKEN_BYTES
from lookupdb.errors import StoreDenied, StoreError, UsageError
from lookupdb.network import describe_socket_failure, trust_also
from lookupdb.store.directory import store_errors
from lookupdb.store.objects import (
    CA_FILE_VARIABLE,
    COPY_PATH,
    DELETE_PATH,
    END,
    LIST_PATH,
    LISTING_TYPE,
    MAX_BACKOFF_SECONDS,
    MAX_CONDITIONAL_BYTES,
    MAX_COPY_BYTES,
    MAX_DELETED_PATHS,
    MODE_HEADER,
    OBJECT_PATH,
    PROBE_CONNECT_SECONDS,
    PROBE_SECONDS,
    REDIRECTED_SUFFIX,
    RETRIES,
    STREAM_HEADER,
    TOKEN_FILE_VARIABLE,
    VERSION_HEADER,
    ErrorKind,
    GatewayProblem,
    PutMode,
    TransientFailure,
    Version,
    absent_error,
    check_small,
    identify_store,
    is_object_path,
    no_gateway_error,
    object_version,
    parse_problem,
)

# Parse a listing of a gateway: lines of JSON; the last one says that it is whole.


_MAX_LINE_BYTES: Final = 16 << 10
MAX_LISTING_BYTES: Final = 64 << 20
"""About 250,000 objects; a dataset has thousands."""


class BrokenListing(Exception):
    """A listing ends without its last line."""


def read_objects(chunks: Iterable[bytes], folder: str) -> list[dict[str, Any]]:
    """Return the objects of a listing of ``folder`` as obstore would, including the folder's own marker. Raises
    BrokenListing; ValueError, KeyError or TypeError if it is not a gateway's listing."""
    found = []
    for members in _read_members(chunks):
        path, size = members["path"], members["size"]
        version = {name: members.get(name) for name in ("e_tag", "version")}
        moment = datetime.datetime.fromisoformat(members["last_modified"])
        if (
            not f"{path}/".startswith(f"{folder}/")
            or not is_object_path(path)
            or type(size) is not int
            or size < 0
            or not all(isinstance(text, str | None) for text in version.values())
        ):
            raise ValueError(f"it lists {str(members)[:200]} under {folder}")
        moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
        found.append({"path": path, "size": size, "last_modified": moment, **version})
    return found


def read_folders(chunks: Iterable[bytes], folder: str) -> list[str]:
    """Return the names of the folders directly under ``folder``. Raises as ``read_objects``."""
    names = []
    for members in _read_members(chunks):
        prefix = str(members["prefix"])
        name = prefix.removeprefix(f"{folder}/").rstrip("/")
        if not prefix.startswith(f"{folder}/") or "/" in name or not is_object_path(name):
            raise ValueError(f"it lists the folder {prefix[:200]!r} under {folder}")
        names.append(name)
    return names


def _read_members(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the content of each line."""
    rest, size, is_whole = b"", 0, False
    for chunk in chunks:
        size += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        if size > MAX_LISTING_BYTES or len(rest) > _MAX_LINE_BYTES:
            raise ValueError(f"more than {MAX_LISTING_BYTES} bytes, or {_MAX_LINE_BYTES} in one line")
        for line in filter(None, lines):  # an empty one is a sign of life from the gateway
            members = orjson.loads(line)
            if is_whole or not isinstance(members, dict):
                raise ValueError(f"it has the line {line[:200]!r}")
            is_whole = members == {END: True}
            if not is_whole:
                yield members
    if rest or not is_whole:
        raise BrokenListing


# The answer of a gateway as it arrives: in bounded memory, and never taken as whole if it was cut short.


_MAX_PROBLEM_BYTES: Final = 64 << 10
CHUNK_BYTES: Final = 1 << 20
_RANGE: Final = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/(?:[0-9]{1,19}|\*)")


class GatewayAnswer:
    """One answer. Methods raise StoreError, TransientFailure."""

    def __init__(self, response: urllib3.BaseHTTPResponse, message: str, host: str, *, has_body: bool = True) -> None:
        self.status = response.status
        self.location = response.headers.get("Location", "")
        self._response = response
        self._message = message
        self._host = host
        self._has_body = has_body

    def close(self) -> None:
        """Return the connection to the pool if all was read, else close it."""
        self._response.close()

    def fail(self) -> StoreError:
        """Return the error in this answer if it is permanent. Raises TransientFailure if it is not."""
        problem = self._problem()
        error = problem.error(self._message)
        if problem.is_transient:
            raise TransientFailure(error, problem.pause)
        return error

    def is_missing(self) -> bool:
        """Return whether a gateway says that there is no such object; another server's 404 proves nothing."""
        if self.status != 404:
            return False
        problem = self._problem()
        if problem.kind is not ErrorKind.MISSING:
            raise problem.error(self._message)
        return True

    def _problem(self) -> GatewayProblem:
        body = self._read(_MAX_PROBLEM_BYTES) if self._has_body else None
        return parse_problem(self.status, self._header("Content-Type"), body, self._header("Retry-After"))

    def expect(self, status: int, content_type: str | None = None) -> None:
        """Raise the answer's error unless its status is ``status``, and its body of ``content_type``."""
        if self.status != status:
            raise self.fail()
        if content_type and self._header("Content-Type").partition(";")[0].strip().lower() != content_type:
            raise no_gateway_error(self._message, f"its answer is not {content_type}")

    def version(self, members: dict[str, Any] | None = None) -> Version:
        """Return the object's version, from the header or from ``members``, the answer to a put."""
        text = self._header(VERSION_HEADER).encode("latin-1", "replace")
        found = self._parse(text) if members is None else members
        if not all(isinstance(found.get(name), str | None) for name in ("e_tag", "version")):
            raise no_gateway_error(self._message, "its answer does not say which version of the object it is")
        return object_version(found)

    def members(self) -> dict[str, Any]:
        """Return the whole body, a JSON object, by which a gateway confirms the request."""
        return self._parse(self.body(_MAX_PROBLEM_BYTES))

    def _parse(self, text: bytes) -> dict[str, Any]:
        try:
            members = orjson.loads(text)
        except ValueError:
            members = None
        if not isinstance(members, dict):
            raise no_gateway_error(self._message, "its answer is not a JSON object")
        return members

    def length(self) -> int:
        """Return the length of the body. It is required: a body that ends with its connection may be cut short."""
        text = self._header("Content-Length")
        if not re.fullmatch(r"[0-9]{1,19}", text):
            raise no_gateway_error(self._message, "its answer does not say how long it is")
        return int(text)

    def check_body(self, start: int) -> None:
        """Raise StoreError or TransientFailure unless the answer has the bytes from ``start`` on, and their length."""
        self.expect(206 if start else 200)
        self.length()
        found = _RANGE.fullmatch(self._header("Content-Range"))
        if start and (found is None or int(found[1]) != start):
            raise no_gateway_error(self._message, f"the answer does not begin at byte {start}, as requested")

    def body(self, limit: int) -> bytes:
        """Return the whole body, of at most ``limit`` bytes."""
        length = self.length()
        if length > limit:
            raise StoreError(f"{self._message}: it has {length} bytes, expected at most {limit}")
        body = self._read(limit)
        if len(body) != length:  # a body that is cut short may look whole
            raise TransientFailure(absent_error(f"{self._message}: {self._host} ended its answer early"))
        return body

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        while chunk := self._read(CHUNK_BYTES):
            yield chunk

    def _read(self, limit: int) -> bytes:
        """Return ``limit`` bytes, or all that are left."""
        with transport_errors(self._message, self._host):
            return self._response.read(limit, decode_content=False)

    def _header(self, name: str) -> str:
        return self._response.headers.get(name, "")


@contextmanager
def transport_errors(message: str, host: str) -> Iterator[None]:
    """Turn transport errors between here and ``host`` into TransientFailure, or into StoreError if they are
    permanent."""
    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError) as error:
        cause = _find_cause(error)
        if isinstance(cause, IncompleteRead | urllib3.exceptions.ProtocolError):
            text = f"{message}: {host} ended its answer early"
        elif isinstance(cause, urllib3.exceptions.TimeoutError):
            text = f"{message}: {host} did not answer in time"
        else:
            text = f"{message}: {describe_socket_failure(cause, host)}"
        # Final: the server answers, but can never be understood.
        is_final = isinstance(cause, HTTPException) and not isinstance(cause, ConnectionError | IncompleteRead)
        if isinstance(cause, ssl.SSLError):
            is_final = not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        if is_final:
            raise StoreError(text, hint="check the URL of the gateway, and its certificate") from error
        raise TransientFailure(absent_error(text)) from error


def _find_cause(error: BaseException) -> BaseException:
    """Return the cause that urllib3 has wrapped."""
    while isinstance(error, urllib3.exceptions.HTTPError) and not isinstance(error, IncompleteRead):
        inner = error.__cause__ or next((part for part in reversed(error.args) if isinstance(part, Exception)), None)
        if inner is None or inner is error:
            break
        error = inner
    return error


# The token for a gateway. It is read for each request, because rotation replaces the file.


_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/=-]+")
_HINT: Final = f"{TOKEN_FILE_VARIABLE} names the file of a service account's token, as in a pod's projected volume"


def _read_token(path: Path) -> str:
    """Return the current token. Raises StoreDenied."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TOKEN_BYTES + 2).strip()
    except OSError as error:
        raise StoreDenied(f"cannot read the token for the gateway from {path}: {error.strerror}", hint=_HINT) from error
    if not content:
        raise StoreDenied(f"the token for the gateway is empty: {path}", hint=_HINT)
    if len(content) > MAX_TOKEN_BYTES or not _TOKEN.fullmatch(content):
        raise StoreDenied(
            f"{path} holds no token for the gateway: expected at most {MAX_TOKEN_BYTES} bytes of one word", hint=_HINT
        )
    return content.decode("ascii")


# Requests to a gateway over HTTP: connections, the token, timeouts, retries.


T = TypeVar("T")

# A gateway has replicas, and one may be on a lost node: until the cluster notices, every other connection leads there.
# So each attempt is short, and the next one opens another connection.
CONNECT_SECONDS: Final = 3
SILENCE_SECONDS: Final = 15
RETRY_SECONDS: Final = 60
UPLOAD_SILENCE_SECONDS: Final = 300
"""A gateway takes an upload's bytes when it has room for them, and answers when the store has the last part."""
_FIRST_BACKOFF_SECONDS: Final = 0.1
_CONNECTIONS: Final = 4
"""Connections to keep: a builder uploads and renews its claim at the same time."""
_UNACKNOWLEDGED_SECONDS: Final = 60
"""A peer that acknowledges nothing for this long counts as gone, even if its answer may take longer."""
_SOCKET_OPTIONS: Final = (
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_SECONDS * 1000),
)
CLAIM_SILENCE_SECONDS: Final = 5
"""Short, so that a builder can retry within bucket.LEASE_SECONDS; after that its unchanged claim counts as dead."""
REQUEST_TIMEOUT: Final = urllib3.Timeout(connect=CONNECT_SECONDS, read=SILENCE_SECONDS)
CLAIM_TIMEOUT: Final = urllib3.Timeout(connect=CONNECT_SECONDS, read=CLAIM_SILENCE_SECONDS)
UPLOAD_TIMEOUT: Final = urllib3.Timeout(connect=CONNECT_SECONDS, read=UPLOAD_SILENCE_SECONDS)
PROBE_TIMEOUT: Final = urllib3.Timeout(connect=PROBE_CONNECT_SECONDS, read=PROBE_SECONDS)


class _SlowReceiver:
    """urllib3 sends with the timeout for connecting, which is too short for a receiver that has no room."""

    def send(self: Any, data: Any) -> None:
        if self.sock is None:
            self.connect()
        self.sock.settimeout(UPLOAD_SILENCE_SECONDS)
        super().send(data)  # type: ignore[misc]


class _PlainConnection(_SlowReceiver, HTTPConnection):
    pass


class _SecureConnection(_SlowReceiver, HTTPSConnection):
    pass


_AS_SENT: Final[Any] = {"redirect": False, "retries": False, "preload_content": False, "decode_content": False}


class GatewayClient:
    """The client of the gateway at ``url``."""

    def __init__(self, url: str, retries: int) -> None:
        """Raises UsageError if the environment lacks the token's file, or names an invalid CA file."""
        self.url = url
        self._host = urlsplit(url).netloc
        self._retries = retries
        token_file = os.environ.get(TOKEN_FILE_VARIABLE)
        if not token_file:
            raise UsageError(f"{url} is a gateway, but {TOKEN_FILE_VARIABLE} is not set", hint=_HINT)
        self._token_file = Path(token_file)
        self.identity: Final = identify_store(url, {TOKEN_FILE_VARIABLE: str(self._token_file)})
        is_secure = urlsplit(url).scheme == "https"
        settings: dict[str, Any] = (
            {"ssl_context": trust_also(os.environ.get(CA_FILE_VARIABLE), CA_FILE_VARIABLE)} if is_secure else {}
        )
        self._pool = urllib3.connection_from_url(
            url, maxsize=_CONNECTIONS, blocksize=CHUNK_BYTES, socket_options=_SOCKET_OPTIONS, **settings
        )
        self._pool.ConnectionCls = _SecureConnection if is_secure else _PlainConnection
        self._redirects = urllib3.PoolManager(num_pools=1, maxsize=_CONNECTIONS)

    def send(
        self,
        action: str,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | IO[bytes] | None = None,
        timeout: urllib3.Timeout | None = None,
    ) -> GatewayAnswer:
        """Return the head of the answer; the caller closes it. Raises TransientFailure, StoreError."""
        message = f"cannot {action} {self.url}"
        fields = {
            "Authorization": f"Bearer {_read_token(self._token_file)}",
            "Accept-Encoding": "identity",
            **(headers or {}),
        }
        with transport_errors(message, self._host):
            response = self._pool.urlopen(
                method, target, body=body, headers=fields, timeout=timeout or REQUEST_TIMEOUT, **_AS_SENT
            )
        return GatewayAnswer(response, message, self._host, has_body=method != "HEAD")

    def follow(self, action: str, url: str, headers: Mapping[str, str]) -> GatewayAnswer:
        """GET the target of a gateway's redirect, without the token. That URL is a secret: errors name only its host.
        Raises TransientFailure for any error: the gateway can be asked again."""
        message = f"cannot {action} {self.url}"
        try:
            parts = urllib3.util.parse_url(url)
        except urllib3.exceptions.LocationParseError:
            parts = urllib3.util.Url()
        host = parts.host
        if not host or parts.scheme not in ("http", "https"):
            raise TransientFailure(absent_error(f"{message}: it redirects to an invalid URL"))
        message = f"{message}: it redirects to {host}"
        try:
            response = self._redirects.urlopen(
                "GET", url, headers={"Accept-Encoding": "identity", **headers}, timeout=REQUEST_TIMEOUT, **_AS_SENT
            )
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            raise TransientFailure(
                absent_error(f"{message}, which does not answer")
            ) from None  # the cause may contain the URL
        answer = GatewayAnswer(response, message, host)
        if answer.status not in (200, 206):
            answer.close()
            raise TransientFailure(absent_error(f"{message}, which answers with status {answer.status}"))
        return answer

    def retry(self, attempt: Callable[[], T], seconds: float = RETRY_SECONDS) -> T:
        """Return the result of ``attempt``; repeat it for ``seconds`` while it raises TransientFailure. Raises the
        StoreError of the last attempt."""
        deadline = time.monotonic() + seconds
        backoff = Backoff(_FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, random.random)
        for retries_left in range(self._retries, -1, -1):
            try:
                return attempt()
            except TransientFailure as failure:
                pause = max(failure.pause, backoff.fail())
                if not retries_left or time.monotonic() + pause > deadline:
                    raise failure.error from failure
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")


_PROBE: Final = "lookupdb-is-there"
_JSON: Final = {"Content-Type": "application/json"}
_NO_COPY: Final = (400, 413)
"""The gateway does not know this request, or its store rejects it for an object of this size: nothing was copied."""
_MOST_OF_CLAIM: Final = 4 << 10
"""Limit of a claim's size. Manifests are larger, and may take longer."""
_UPLOAD_SECONDS: Final = float("inf")
"""Only the number of retries limits an upload: one that breaks off late has already exceeded any time limit."""


class GatewayObjects:
    """The objects that the token may access, with the methods of ``ObstoreObjects``. Transient errors are retried, and
    so are answers that are cut short."""

    def __init__(self, url: str, retries: int = RETRIES) -> None:
        """Raises UsageError."""
        self._client = GatewayClient(url, retries)
        self.identity = self._client.identity
        self._follows = True
        """True if redirects have worked so far; if not, the gateway sends the bytes itself."""

    def _ask(self, read: Callable[[GatewayAnswer], T], *request: str, **fields: Any) -> T:
        """Return what ``read`` makes of the answer to ``request``: action, method and target, as ``send`` takes
        them."""

        def attempt() -> T:
            with closing(self._client.send(*request, **fields)) as answer:
                return read(answer)

        return self._client.retry(attempt)

    def get(self, path: str) -> tuple[bytes, Version] | None:
        """Get an object. Its size is limited, because it is read at once."""

        def read(answer: GatewayAnswer) -> tuple[bytes, Version] | None:
            if answer.is_missing():
                return None
            answer.expect(200)
            check_small(f"cannot read {self._client.url}/{path}", answer.length())
            return answer.body(MAX_CONDITIONAL_BYTES), answer.version()

        return self._ask(read, "read", "GET", _object_target(path))

    def size(self, path: str) -> int | None:
        """Return the size, with one HEAD request."""

        def read(answer: GatewayAnswer) -> int | None:
            if answer.is_missing():
                return None
            answer.expect(200)
            answer.version()
            return answer.length()

        return self._ask(read, "read", "HEAD", _object_target(path))

    def stream(self, path: str, start: int = 0) -> Iterator[bytes] | None:
        """The gateway sends the bytes, or redirects to the store. Retried until the first bytes arrive."""
        answer = self._client.retry(lambda: self._open(path, start))
        return None if answer is None else _read_chunks(answer)

    def _open(self, path: str, start: int) -> GatewayAnswer | None:
        headers = {"Range": f"bytes={start}-"} if start else {}
        wish = {} if self._follows else {STREAM_HEADER: "1"}
        answer = self._client.send("read", "GET", _object_target(path), headers=headers | wish)
        try:
            if answer.is_missing():
                answer.close()
                return None
            if answer.status == 307 and path.endswith(REDIRECTED_SUFFIX):
                return self._follow(answer, start, headers)
            answer.check_body(start)
            answer.version()
        except BaseException:
            answer.close()
            raise
        return answer

    def _follow(self, redirect: GatewayAnswer, start: int, headers: dict[str, str]) -> GatewayAnswer:
        """Return the answer of a redirect's target if it has the bytes from ``start`` on. Raises TransientFailure if
        not: the URL may have expired."""
        redirect.close()
        self._follows = False
        answer = self._client.follow("read", redirect.location, headers)
        try:
            answer.check_body(start)
        except StoreError as error:
            answer.close()
            raise TransientFailure(absent_error(error.message)) from error
        self._follows = True
        return answer

    def put(self, path: str, body: bytes, mode: PutMode = None) -> Version:
        """A retry of a conditional put whose answer was lost is refused: ``Bucket.put_if`` then reads the object."""
        headers = {} if mode is None else {MODE_HEADER: mode if isinstance(mode, str) else json.dumps(mode)}
        timeout = CLAIM_TIMEOUT if mode and len(body) <= _MOST_OF_CLAIM else REQUEST_TIMEOUT
        return self._ask(
            _read_version, "write to", "PUT", _object_target(path), headers=headers, body=body, timeout=timeout
        )

    def upload(self, path: str, file: Path) -> None:
        """Send the file in one PUT, again from its beginning at each retry."""
        action = f"put {file.name} into"

        def attempt() -> None:
            with store_errors(f"cannot read {file}"):
                content = file.open("rb")
            with content:
                headers = {"Content-Length": str(os.fstat(content.fileno()).st_size)}
                with closing(
                    self._client.send(
                        action, "PUT", _object_target(path), headers=headers, body=content, timeout=UPLOAD_TIMEOUT
                    )
                ) as answer:
                    _read_version(answer)

        self._client.retry(attempt, _UPLOAD_SECONDS)

    def copy(self, source: str, target: str, size: int) -> bool:
        """Let the gateway's store copy the object, if both support that: an older gateway does not. A copy that exceeds
        the time for retries is not started again: the caller has another way."""
        if size > MAX_COPY_BYTES:
            return False
        body = orjson.dumps({"from": source, "to": target})

        def read(answer: GatewayAnswer) -> bool:
            if answer.status in _NO_COPY:
                return False
            answer.expect(200)
            answer.members()
            return True

        return self._ask(read, "copy within", "POST", COPY_PATH, headers=_JSON, body=body, timeout=UPLOAD_TIMEOUT)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects, a thousand per request."""

        def read(answer: GatewayAnswer) -> None:
            answer.expect(200)
            answer.members()

        for begin in range(0, len(paths), MAX_DELETED_PATHS):
            body = orjson.dumps({"paths": list(paths[begin : begin + MAX_DELETED_PATHS])})
            self._ask(read, "remove objects from", "POST", DELETE_PATH, headers=_JSON, body=body)

    def list_objects(self, path: str) -> Sequence[dict[str, Any]]:
        """Return the whole listing, or raise an error."""
        return self._list({"prefix": path}, lambda answer: read_objects(answer.chunks(), path))

    def list_folders(self, path: str) -> Sequence[str]:
        """Return the whole listing, or raise an error. For a cluster's folder, a gateway shows only the caller's
        namespace."""
        return self._list({"prefix": path, "delimiter": "1"}, lambda answer: read_folders(answer.chunks(), path))

    walk_folders = list_folders  # a listing has a size limit anyway

    def _list(self, query: dict[str, str], parse: Callable[[GatewayAnswer], T]) -> T:
        def read(answer: GatewayAnswer) -> T:
            answer.expect(200, LISTING_TYPE)
            try:
                return parse(answer)
            except BrokenListing as error:
                text = f"cannot list {self._client.url}: the listing ended before its last line"
                raise TransientFailure(absent_error(text)) from error
            except (ValueError, KeyError, TypeError) as error:
                raise no_gateway_error(f"cannot list {self._client.url}", f"its listing: {error}") from error

        return self._ask(read, "list", "GET", f"{LIST_PATH}?{urlencode(query)}")

    def probe(self, folder: str) -> None:
        """List ``folder``: a gateway refuses other requests without asking its store."""
        query = urlencode({"prefix": folder, "delimiter": "1"})
        target = f"{LIST_PATH}?{query}" if folder else _object_target(_PROBE)
        try:
            with closing(self._client.send("reach", "GET", target, timeout=PROBE_TIMEOUT)) as answer:
                if answer.status >= 500:
                    answer.fail()
        except TransientFailure as failure:
            raise failure.error from failure


def _object_target(path: str) -> str:
    return OBJECT_PATH + quote(path)


def _read_version(answer: GatewayAnswer) -> Version:
    """Return the version of the object that was put."""
    answer.expect(200)
    return answer.version(answer.members())


def _read_chunks(answer: GatewayAnswer) -> Iterator[bytes]:
    """Yield the body. Raises StoreError if it is cut short: the caller resumes after the last chunk."""
    try:
        yield from answer.chunks()
    except TransientFailure as failure:
        raise failure.error from failure
    finally:
        answer.close()
