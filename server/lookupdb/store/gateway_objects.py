"""The objects of a store behind a gateway, which has the store's credentials: it is shown a token instead."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import orjson

from lookupdb.errors import StoreError
from lookupdb.store.directory import store_errors
from lookupdb.store.gateway_answer import GatewayAnswer
from lookupdb.store.gateway_client import CLAIM_TIMEOUT, PROBE_TIMEOUT, REQUEST_TIMEOUT, UPLOAD_TIMEOUT, GatewayClient
from lookupdb.store.gateway_listing import BrokenListing, InvalidListing, read_folders, read_objects
from lookupdb.store.gateway_problem import TransientFailure, absent_error, no_gateway_error
from lookupdb.store.gateway_wire import (
    COPY_PATH,
    DELETE_PATH,
    LIST_PATH,
    LISTING_TYPE,
    MAX_CONDITIONAL_BYTES,
    MAX_DELETED_PATHS,
    MODE_HEADER,
    OBJECT_PATH,
    REDIRECTED_SUFFIX,
    STREAM_HEADER,
)
from lookupdb.store.object_store import MAX_COPY_BYTES, RETRIES, PutMode, Version, check_small

_PROBE: Final = "lookupdb-is-there"
_NO_COPY: Final = (400, 413)
"""The gateway knows no such request, or its store takes none for so many bytes: then nothing was copied."""
_MOST_OF_CLAIM: Final = 4 << 10
"""Bytes. Manifests, which are larger, may take their time."""
_UPLOAD_SECONDS: Final = float("inf")
"""Retries of an upload are limited by their number: one that breaks off at its end has taken longer than any patience.
"""

T = TypeVar("T")


class GatewayObjects:
    """The objects that the token reaches. What may pass is retried, and so is an answer that breaks off."""

    def __init__(self, url: str, retries: int = RETRIES) -> None:
        """Raises UsageError."""
        self._client = GatewayClient(url, retries)
        self.identity = self._client.identity
        self._follows = True
        """Whether what a gateway redirects to could be read so far; if not, it is asked for the bytes themselves."""

    def get(self, path: str) -> tuple[bytes, Version] | None:
        """Objects that are put on a condition have a limit, and so has what is read at once."""

        def attempt() -> tuple[bytes, Version] | None:
            with self._client.exchange("read", "GET", _object_target(path)) as answer:
                if answer.is_missing():
                    return None
                answer.expect(200)
                check_small(f"{self._client.describe('read')}/{path}", answer.length())
                return answer.body(MAX_CONDITIONAL_BYTES), answer.version()

        return self._client.retry(attempt)

    def size(self, path: str) -> int | None:
        """One HEAD."""

        def attempt() -> int | None:
            with self._client.exchange("read", "HEAD", _object_target(path)) as answer:
                if answer.is_missing():
                    return None
                answer.expect(200)
                answer.version()
                return answer.length()

        return self._client.retry(attempt)

    def stream(self, path: str, start: int = 0) -> Iterator[bytes] | None:
        """The gateway sends the bytes, or says where the store would. Retried until they begin to come."""
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
            _check_body(answer, start)
            answer.version()
        except BaseException:
            answer.close()
            raise
        return answer

    def _follow(self, redirect: GatewayAnswer, start: int, headers: dict[str, str]) -> GatewayAnswer:
        """What a gateway redirects to, if it has the bytes from ``start`` on. Raises TransientFailure if it has not:
        the URL may have expired."""
        redirect.close()
        self._follows = False
        answer = self._client.follow("read", redirect.location, headers)
        try:
            _check_body(answer, start)
        except StoreError as error:
            answer.close()
            raise TransientFailure(absent_error(error.message)) from error
        self._follows = True
        return answer

    def put(self, path: str, body: bytes, mode: PutMode = None) -> Version:
        """A retry of a conditional put whose answer was lost is refused: ``Bucket.put_if`` reads what stands."""
        headers = {} if mode is None else {MODE_HEADER: mode if isinstance(mode, str) else json.dumps(mode)}
        timeout = CLAIM_TIMEOUT if mode and len(body) <= _MOST_OF_CLAIM else REQUEST_TIMEOUT
        target = _object_target(path)

        def attempt() -> Version:
            with self._client.exchange(
                "write to", "PUT", target, headers=headers, body=body, timeout=timeout
            ) as answer:
                answer.expect(200)
                return answer.put_version()

        return self._client.retry(attempt)

    def upload(self, path: str, file: Path) -> None:
        """One PUT, from the file's beginning at each retry."""
        action = f"put {file.name} into"

        def attempt() -> None:
            with store_errors(f"cannot read {file}"):
                content = file.open("rb")
            with content:
                headers = {"Content-Length": str(os.fstat(content.fileno()).st_size)}
                with self._client.exchange(
                    action, "PUT", _object_target(path), headers=headers, body=content, timeout=UPLOAD_TIMEOUT
                ) as answer:
                    answer.expect(200)
                    answer.put_version()

        self._client.retry(attempt, _UPLOAD_SECONDS)

    def copy(self, source: str, target: str, size: int) -> bool:
        """The gateway's store copies, if both can: a gateway of before knows no such request. One that takes longer
        than a retry may is not begun again: what asked for it has another way."""
        if size > MAX_COPY_BYTES:
            return False
        body = orjson.dumps({"from": source, "to": target})
        headers = {"Content-Type": "application/json"}

        def attempt() -> bool:
            with self._client.exchange(
                "copy within", "POST", COPY_PATH, headers=headers, body=body, timeout=UPLOAD_TIMEOUT
            ) as answer:
                if answer.status in _NO_COPY:
                    return False
                answer.expect(200)
                answer.check_done()
            return True

        return self._client.retry(attempt)

    def delete(self, paths: Sequence[str]) -> None:
        """A thousand at a time."""
        for begin in range(0, len(paths), MAX_DELETED_PATHS):
            body = orjson.dumps({"paths": list(paths[begin : begin + MAX_DELETED_PATHS])})
            self._client.retry(lambda body=body: self._delete(body))  # type: ignore[misc]

    def _delete(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        with self._client.exchange("remove objects from", "POST", DELETE_PATH, headers=headers, body=body) as answer:
            answer.expect(200)
            answer.check_done()

    def list_objects(self, path: str) -> Sequence[dict[str, Any]]:
        """The whole listing, or an error."""
        return self._list({"prefix": path}, lambda answer: read_objects(answer.chunks(), path))

    def list_folders(self, path: str) -> Sequence[str]:
        """The whole listing, or an error. Of a cluster's folder a gateway shows the caller's own namespace alone."""
        return self._list({"prefix": path, "delimiter": "1"}, lambda answer: read_folders(answer.chunks(), path))

    def walk_folders(self, path: str) -> Sequence[str]:
        """The same: what a listing may take is bounded."""
        return self.list_folders(path)

    def _list(self, query: dict[str, str], parse: Callable[[GatewayAnswer], T]) -> T:
        target = f"{LIST_PATH}?{urlencode(query)}"

        def attempt() -> T:
            with self._client.exchange("list", "GET", target) as answer:
                answer.expect(200)
                answer.check_type(LISTING_TYPE)
                try:
                    return parse(answer)
                except BrokenListing as error:
                    text = f"{self._client.describe('list')}: the listing ended before its last line"
                    raise TransientFailure(absent_error(text)) from error
                except InvalidListing as error:
                    raise no_gateway_error(self._client.describe("list"), str(error)) from error

        return self._client.retry(attempt)

    def probe(self, folder: str) -> None:
        """A listing of ``folder``, because a gateway answers other requests that it refuses without its store."""
        query = urlencode({"prefix": folder, "delimiter": "1"})
        target = f"{LIST_PATH}?{query}" if folder else _object_target(_PROBE)
        try:
            with self._client.exchange("reach", "GET", target, timeout=PROBE_TIMEOUT) as answer:
                if answer.status >= 500:
                    answer.fail()
        except TransientFailure as failure:
            raise failure.error from failure


def _object_target(path: str) -> str:
    return OBJECT_PATH + quote(path)


def _check_body(answer: GatewayAnswer, start: int) -> None:
    """Raises StoreError, TransientFailure unless the answer has the bytes from ``start`` on, and says how many."""
    answer.expect(206 if start else 200)
    answer.length()
    if start:
        answer.check_start(start)


def _read_chunks(answer: GatewayAnswer) -> Iterator[bytes]:
    """Raises StoreError when it breaks off: the caller resumes behind the last chunk."""
    try:
        yield from answer.chunks()
    except TransientFailure as failure:
        raise failure.error from failure
    finally:
        answer.close()
