"""An answer of a gateway as it comes in: never more of it in memory than it may be long, and nothing taken for whole
that broke off."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, IncompleteRead
from typing import Any, Final

import orjson
import urllib3

from lookupdb.errors import StoreError
from lookupdb.network import describe_socket_failure
from lookupdb.store.gateway_problem import (
    GatewayProblem,
    TransientFailure,
    absent_error,
    no_gateway_error,
    parse_problem,
)
from lookupdb.store.gateway_wire import VERSION_HEADER, ErrorKind
from lookupdb.store.object_store import Version, object_version

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
        """Give the connection back if all was read, else close it."""
        self._response.close()

    def fail(self) -> StoreError:
        """The error that this answer is, if it may not pass. Raises TransientFailure if it may."""
        problem = self._problem()
        error = problem.error(self._message)
        if problem.is_transient:
            raise TransientFailure(error, problem.pause)
        return error

    def is_missing(self) -> bool:
        """Whether a gateway says that there is no such object; another server's 404 says nothing of it."""
        if self.status != 404:
            return False
        problem = self._problem()
        if problem.kind is not ErrorKind.MISSING:
            raise problem.error(self._message)
        return True

    def _problem(self) -> GatewayProblem:
        body = self._read_all(_MAX_PROBLEM_BYTES) if self._has_body else None
        return parse_problem(self.status, self._header("Content-Type"), body, self._header("Retry-After"))

    def expect(self, status: int) -> None:
        """Raises what the answer says if it has another status."""
        if self.status != status:
            raise self.fail()

    def version(self) -> Version:
        """The version of the object that is answered."""
        return self._parse_version(self._header(VERSION_HEADER).encode("latin-1", "replace"))

    def length(self) -> int:
        """Of the body, which has to be known: what ends with its connection may have broken off."""
        text = self._header("Content-Length")
        if not re.fullmatch(r"[0-9]{1,19}", text):
            raise no_gateway_error(self._message, "its answer does not say how long it is")
        return int(text)

    def check_start(self, start: int) -> None:
        """Raises StoreError unless the body begins at the byte ``start``."""
        found = _RANGE.fullmatch(self._header("Content-Range"))
        if found is None or int(found[1]) != start:
            raise no_gateway_error(self._message, f"asked for what follows byte {start}, it answers something else")

    def body(self, limit: int) -> bytes:
        """All of a body of at most ``limit`` bytes."""
        length = self.length()
        if length > limit:
            raise StoreError(f"{self._message}: it has {length} bytes, expected at most {limit}")
        body = self._read_all(limit)
        if len(body) != length:  # what broke off may look whole
            raise TransientFailure(absent_error(f"{self._message}: {self._host} ended its answer early"))
        return body

    def put_version(self) -> Version:
        """The version in the answer to a put."""
        return self._parse_version(self.body(_MAX_PROBLEM_BYTES))

    def check_done(self) -> None:
        """Raises StoreError unless a gateway says that it has done what was asked for."""
        if _parse_object(self.body(_MAX_PROBLEM_BYTES)) is None:
            raise no_gateway_error(self._message, "its answer is no JSON object")

    def _parse_version(self, text: bytes) -> Version:
        members = _parse_object(text)
        if members is None or not all(isinstance(members.get(name), str | None) for name in ("e_tag", "version")):
            raise no_gateway_error(self._message, "its answer does not say which version of the object it is")
        return object_version(members)

    def check_type(self, content_type: str) -> None:
        """Raises StoreError unless the body is said to be of this type."""
        if self._header("Content-Type").partition(";")[0].strip().lower() != content_type:
            raise no_gateway_error(self._message, f"its answer is not {content_type}")

    def chunks(self) -> Iterator[bytes]:
        """The body as it arrives."""
        while chunk := self._read_some(CHUNK_BYTES):
            yield chunk

    def _read_all(self, limit: int) -> bytes:
        """The body to its end, or its first ``limit`` bytes."""
        chunks, missing = [], limit
        while missing and (chunk := self._read_some(missing)):
            chunks.append(chunk)
            missing -= len(chunk)
        return b"".join(chunks)

    def _read_some(self, limit: int) -> bytes:
        """As many bytes, or all that there are."""
        with transport_errors(self._message, self._host):
            return self._response.read(limit, decode_content=False)

    def _header(self, name: str) -> str:
        return self._response.headers.get(name, "")


def _parse_object(text: bytes) -> dict[str, Any] | None:
    try:
        members = orjson.loads(text)
    except ValueError:
        return None
    return members if isinstance(members, dict) else None


@contextmanager
def transport_errors(message: str, host: str) -> Iterator[None]:
    """Raise what goes wrong on the way to ``host`` and back as TransientFailure, or StoreError if it cannot pass."""
    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError) as error:
        cause = _find_cause(error)
        text = f"{message}: {_describe(cause, host)}"
        if _is_final(cause):
            raise StoreError(text, hint="check the URL of the gateway, and its certificate") from error
        raise TransientFailure(absent_error(text)) from error


def _find_cause(error: BaseException) -> BaseException:
    """urllib3 wraps what Python's client raised."""
    while isinstance(error, urllib3.exceptions.HTTPError) and not isinstance(error, IncompleteRead):
        inner = error.__cause__ or next((part for part in reversed(error.args) if isinstance(part, Exception)), None)
        if inner is None or inner is error:
            break
        error = inner
    return error


def _describe(cause: BaseException, host: str) -> str:
    if isinstance(cause, IncompleteRead):
        return f"{host} ended its answer early"
    if isinstance(cause, urllib3.exceptions.TimeoutError):
        return f"{host} did not answer in time"
    if isinstance(cause, urllib3.exceptions.ProtocolError):
        return f"{host} ended its answer early"
    return describe_socket_failure(cause, host)


def _is_final(cause: BaseException) -> bool:
    """Whether the server is there and will never be understood."""
    if isinstance(cause, ssl.SSLError):
        return not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    return isinstance(cause, HTTPException) and not isinstance(cause, ConnectionError | IncompleteRead)
