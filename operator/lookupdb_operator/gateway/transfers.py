"""Requests to the store: reads, listings, puts, copies and deletions. Bodies are streamed in parts, or whole if
small."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from email.utils import format_datetime
from typing import Any, Final

import obstore
import orjson
from aiohttp import web
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from lookupdb.account_tokens import Caller
from lookupdb.network import panics_as_errors
from lookupdb.process.admin import (
    MetricFamily,
    build_info,
    counter,
    gauge,
    histogram,
    labelled_counter,
    process_families,
)
from lookupdb.store.bucket import ObstoreObjects
from lookupdb.store.objects import (
    CREATE,
    END,
    MAX_CONDITIONAL_BYTES,
    MAX_COPY_REQUEST_BYTES,
    MAX_DELETE_BYTES,
    MAX_DELETED_PATHS,
    MODE_HEADER,
    REDIRECTED_SUFFIX,
    STREAM_HEADER,
    VERSION_HEADER,
    ErrorKind,
    Version,
    folder_names,
    object_version,
)
from lookupdb_operator.gateway.credentials import StoreClient
from lookupdb_operator.gateway.request import (
    Access,
    BrokenOff,
    Operation,
    RequestProblem,
    RequestTarget,
    busy,
    check_path,
    from_store,
    invalid,
    too_large,
)

# Requests in flight, and memory for them, in total and for each namespace.
#
# Transfers of files are slow, so they never take everything: a quarter is reserved for short requests, which builds
# need. One namespace may have half of what the others leave, and one request an eighth of the memory. So no namespace
# waits behind another one's requests, and a new one usually finds room. It finds none if many namespaces take all they
# may: eight namespaces can use up 192 transfers, and a ninth must retry in a second.
#
# A request that finds no memory waits up to WAIT_SECONDS, behind earlier ones of its namespace.


WAIT_SECONDS: Final = 10.0
_REQUESTS: Final = 8
"""The budget holds this many requests of the largest size."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    namespace: str
    amount: int
    granted: asyncio.Future[None]


class Budget:
    """Counts requests or bytes, in total and by namespace."""

    def __init__(self, total: int, unit: str = "bytes of memory", *, wait_seconds: float = WAIT_SECONDS) -> None:
        """``wait_seconds`` is the time limit to wait for room; 0 refuses at once."""
        self.total = total
        self.most = max(1, total // _REQUESTS)
        """The most that one request may have."""
        self._unit = unit
        self.used = 0
        self._wait_seconds = wait_seconds
        self._used_by: Counter[str] = Counter()
        self._waiters: deque[_Waiter] = deque()

    @asynccontextmanager
    async def reserve(self, namespace: str, amount: int) -> AsyncIterator[None]:
        """Reserve ``amount`` while the block runs. Raises RequestProblem if there is no room for too long."""
        if amount > self.most:
            raise too_large(f"it needs {amount} {self._unit}, the limit for one request is {self.most} (--body-memory)")
        await self._acquire(namespace, amount)
        try:
            yield
        finally:
            self._release(namespace, amount)

    async def _acquire(self, namespace: str, amount: int) -> None:
        waiter = _Waiter(namespace, amount, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._grant()
        try:
            async with asyncio.timeout(self._wait_seconds):
                await waiter.granted
        except BaseException as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._grant()
            else:
                self._release(namespace, amount)
            if isinstance(error, TimeoutError):
                raise busy(
                    f"namespace {namespace} has {self._used_by[namespace]} of {self.total} {self._unit}, others have "
                    f"{self.used - self._used_by[namespace]}, and each may have half of what the others leave"
                ) from error
            raise

    def _release(self, namespace: str, amount: int) -> None:
        self.used -= amount
        self._used_by[namespace] -= amount
        if not self._used_by[namespace]:
            del self._used_by[namespace]
        self._grant()

    def _grant(self) -> None:
        full: set[str] = set()
        """Namespaces with a request that must keep waiting."""
        for waiter in tuple(self._waiters):
            if waiter.namespace in full:
                continue
            of_others = self.used - self._used_by[waiter.namespace]
            if self._used_by[waiter.namespace] + waiter.amount > (self.total - of_others + 1) // 2:
                full.add(waiter.namespace)
                continue
            self._waiters.remove(waiter)
            self.used += waiter.amount
            self._used_by[waiter.namespace] += waiter.amount
            if not waiter.granted.done():
                waiter.granted.set_result(None)


# Request bodies: the length is known beforehand.


CHUNK_BYTES: Final = 256 << 10
IDLE_SECONDS: Final = 60.0
"""Seconds for a chunk to be sent or received: at least 4 KiB a second."""
SHORT_SECONDS: Final = 30.0
"""Seconds for a whole short body."""
_MAX_DIGITS: Final = 18


def _read_length(request: web.BaseRequest, most: int) -> int:
    """Return the body's declared length. Raises RequestProblem, also if it is more than ``most``."""
    text = request.headers.get("Content-Length", "")
    if not text:
        raise RequestProblem(ErrorKind.INVALID, "expected a Content-Length", status=411)
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise invalid("expected a body without Content-Encoding")
    if not (text.isascii() and text.isdecimal()):
        raise invalid("the Content-Length is not a number")
    if len(text) > _MAX_DIGITS or int(text) > most:
        raise too_large(f"the body has {text[:_MAX_DIGITS]} bytes, the limit is {most}")
    return int(text)


# Metrics, and a log of refused requests that is limited in rate.


log = logging.getLogger(__name__)

LOG_SECONDS: Final = 10.0
"""Minimum seconds between two log lines about refused requests."""
_TRANSFER_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""The upper bounds of the buckets."""
BROKEN_OFF: Final = 499
"""The status label of responses that ended early; it is never sent."""
REFUSALS: Final = ("absent", "audience", "claims", "early", "expired", "forbidden", "form", "key", "signature", "size")
"""Reasons of refusals: those of ``InvalidToken``, and the gateway's own."""


class GatewayMetrics:
    """Counters, which only the event loop changes, and gauges, which are read at each scrape."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        """Answered requests by operation and status."""
        self.refusals: Counter[str] = Counter(dict.fromkeys(REFUSALS, 0))
        """By reason. All begin at 0, so that Prometheus sees even the first refusal as an increase."""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.transfers: dict[tuple[str, str], list[float]] = {
            (operation, outcome): [0] * (len(_TRANSFER_SECONDS) + 2)
            for operation in (Operation.READ.value, Operation.WRITE.value)
            for outcome in ("ok", "failed")
        }
        """By operation and outcome: transfers in each bucket, and the sum of their seconds."""
        self.gauges: dict[str, tuple[str, Callable[[], float | None]]] = {}
        """Name → help text and function for the value, which may be None."""
        self._logged_at: float | None = None
        self._suppressed = 0

    def count_transfer(self, operation: str, status: int, seconds: float) -> None:
        """Count a request if it read or wrote an object; reading a missing object counts too."""
        transfer = self.transfers.get((operation, "failed" if status >= BROKEN_OFF else "ok"))
        if transfer is not None:
            transfer[bisect_left(_TRANSFER_SECONDS, seconds)] += 1
            transfer[-1] += seconds

    def count_refusal(self, reason: str, detail: str, remote: str | None) -> None:
        """Count a refused request, and log it, or include it in the number of suppressed lines."""
        self.refusals[reason] += 1
        now = time.monotonic()
        if self._logged_at is not None and now - self._logged_at < LOG_SECONDS:
            self._suppressed += 1
            return
        extra = {"reason": reason, "client": remote, "othersSince": self._suppressed}
        log.warning("refused a request: %s", detail, extra=extra)
        self._logged_at, self._suppressed = now, 0

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the current metric families."""
        yield labelled_counter(
            "lookupdb_gateway_requests",
            "Requests answered, by operation and HTTP status.",
            [
                ({"operation": operation, "code": str(code)}, count)
                for (operation, code), count in sorted(dict(self.requests).items())
            ],
        )
        yield labelled_counter(
            "lookupdb_gateway_refusals",
            "Requests refused because of their token or their path, by reason.",
            [({"reason": reason}, count) for reason, count in sorted(dict(self.refusals).items())],
        )
        yield counter("lookupdb_gateway_received_bytes", "Bytes of objects that clients sent.", self.received_bytes)
        yield counter("lookupdb_gateway_sent_bytes", "Bytes of objects sent to clients.", self.sent_bytes)
        transfers = [
            ({"operation": operation, "outcome": outcome}, [int(count) for count in counts], seconds)
            for (operation, outcome), (*counts, seconds) in self.transfers.items()
        ]
        yield histogram(
            "lookupdb_gateway_transfer_duration_seconds",
            "Seconds from a request that reads or writes an object to the end of its answer.",
            _TRANSFER_SECONDS,
            transfers,
        )
        yield build_info("gateway")
        yield from process_families((), {})
        for name, (help_text, read) in self.gauges.items():
            value = read()
            if value is not None:
                yield gauge(name, help_text, value)


@dataclass(frozen=True, slots=True)
class Room:
    """Limits and permissions for ``Reads`` and ``Writes``."""

    budget: Budget
    """Memory for files."""
    short_budget: Budget
    """Memory for short requests, kept free of files."""
    metrics: GatewayMetrics
    access: Access
    idle_seconds: float = IDLE_SECONDS
    """Seconds a client may be idle."""
    short_seconds: float = SHORT_SECONDS
    """Seconds for a short body."""


# Calls to the store; its errors become problems.


_LINK_SECONDS: Final = 300
"""Validity of a presigned URL in seconds."""
_UPLOADS_AT_ONCE: Final = 2
"""Number of parts of one object that are sent to the store at once."""
_PAGE: Final = 1000
"""Entries of a listing in memory at once."""


class Objects:
    """The store, with the credentials that are current when a call begins."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    @contextmanager
    def _calling(self, action: str, path: str, *, is_slow: bool = False) -> Iterator[ObstoreObjects]:
        """Yield the store for a call that does ``action``. Its errors raise RequestProblem."""
        store = self._client.patient_store if is_slow else self._client.store
        try:
            with panics_as_errors():
                yield store
        except FileNotFoundError as error:
            raise RequestProblem(ErrorKind.MISSING, f"there is no object {path}") from error
        except (AlreadyExistsError, PreconditionError) as error:
            raise RequestProblem(ErrorKind.PRECONDITION, f"{path} exists already, or has another version") from error
        except (BaseError, OSError, ValueError) as error:
            raise from_store(store.error(action, error)) from error

    async def head(self, path: str) -> Mapping[str, Any]:
        """Return the entry of the object ``path``. Raises RequestProblem."""
        with self._calling("read", path) as store:
            return await obstore.head_async(store.store, path)

    async def open(self, path: str, offset: int) -> Any:
        """Return obstore's result for the object ``path`` from byte ``offset``, which must be less than its size.
        Raises RequestProblem."""
        with self._calling("read", path) as store:
            return await obstore.get_async(store.store, path, options={"range": {"offset": offset}} if offset else {})

    def describe_failure(self, error: Exception) -> str:
        """Return a sentence for the log about a failed read."""
        return self._client.store.error("read", error).message

    async def put(self, path: str, body: bytearray, mode: Any) -> Version:
        """Put ``body`` at ``path``, under the condition ``mode`` if any. Raises RequestProblem."""
        with self._calling("write to", path) as store:
            result = await obstore.put_async(store.store, path, body, mode=mode, use_multipart=False)
            return object_version(result)

    async def put_parts(self, path: str, chunks: AsyncIterator[bytes], part_bytes: int) -> Version:
        """Put ``chunks`` at ``path``, in parts. If ``chunks`` raises, nothing is put and its error is raised.
        Errors of the store raise RequestProblem. Do not cancel a call: parts would stay in the store."""
        with self._calling("write to", path, is_slow=True) as store:
            result = await obstore.put_async(
                store.store,
                path,
                chunks,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=_UPLOADS_AT_ONCE,
            )
            return object_version(result)

    async def copy(self, source: str, target: str, size: int) -> bool:
        """Copy ``source``, of ``size`` bytes, to ``target``; return False if it is too large for the store to copy.
        Raises RequestProblem.
        """
        with self._calling("copy within", source, is_slow=True) as store:
            if not store.can_copy(size):
                return False
            await obstore.copy_async(store.store, source, target)
        return True

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete ``paths``, ignoring missing ones. Raises RequestProblem."""
        with self._calling("remove objects from", "") as store:
            try:
                await obstore.delete_async(store.store, paths)
            except FileNotFoundError:  # some stores refuse to delete a missing object
                for path in paths:
                    with suppress(FileNotFoundError):
                        await obstore.delete_async(store.store, path)

    async def pages(self, folder: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """Yield the entries under ``folder``, page by page. Raises RequestProblem."""
        with self._calling("list", folder) as store:
            async for page in obstore.list(store.store, folder, chunk_size=_PAGE):
                yield page

    async def link(self, path: str) -> str:
        """Return a URL with which anybody can read only the object ``path``, for ``_LINK_SECONDS``. Raises
        RequestProblem."""
        with self._calling("sign a link to", path) as store:
            seconds = timedelta(seconds=_LINK_SECONDS)
            return await obstore.sign_async(store.store, "GET", path, expires_in=seconds)


# GET and HEAD of objects, and listings, streamed to the client.


READ_BYTES: Final = 4 * CHUNK_BYTES
"""Memory for one read: an incoming chunk, an outgoing one, and buffers."""
_LIST_BYTES: Final = 4 << 20
"""Memory for one listing: a page of entries, and its lines."""
_NDJSON: Final = "application/x-ndjson"
_BYTES: Final = "application/octet-stream"
_RANGE: Final = re.compile(r"bytes=[0-9]{1,18}-")
_LINE: Final = orjson.OPT_APPEND_NEWLINE


@dataclass(frozen=True, slots=True)
class Reads:
    """Answers requests that change nothing."""

    objects: Objects
    room: Room
    redirects: bool

    async def head(self, request: web.BaseRequest, target: RequestTarget) -> web.StreamResponse:
        """Return the headers of an object."""
        entry = await self.objects.head(target.path)
        response = web.StreamResponse(headers=_object_headers(entry))
        response.content_length = entry["size"]
        await _prepare(response, request)
        return response

    async def get(self, request: web.BaseRequest, target: RequestTarget, caller: Caller) -> web.StreamResponse:
        """Return an object, from an offset if requested, or a redirect to it."""
        header = request.headers.get("Range")
        if header is not None and not _RANGE.fullmatch(header):
            raise invalid("expected the range bytes=N-")
        offset = None if header is None else int(header.removeprefix("bytes=").removesuffix("-"))
        if self.redirects and target.path.endswith(REDIRECTED_SUFFIX) and STREAM_HEADER not in request.headers:
            await self.objects.head(target.path)
            location = await self.objects.link(target.path)
            return web.Response(status=307, headers={"Location": location, "Cache-Control": "no-store"})
        budget = self.room.budget if target.path.endswith(REDIRECTED_SUFFIX) else self.room.short_budget
        async with budget.reserve(caller.namespace, READ_BYTES):
            if offset is not None and offset >= (size := (await self.objects.head(target.path))["size"]):
                headers = {"Content-Range": f"bytes */{size}"}
                detail = f"{target.path} has {size} bytes"
                raise RequestProblem(ErrorKind.INVALID, detail, status=416, headers=headers)
            result = await self.objects.open(target.path, offset or 0)
            return await self._stream(request, result, offset)

    async def _stream(self, request: web.BaseRequest, result: Any, offset: int | None) -> web.StreamResponse:
        first, end = result.range
        response = web.StreamResponse(status=200 if offset is None else 206, headers=_object_headers(result.meta))
        response.content_length = end - first
        if offset is not None:
            response.headers["Content-Range"] = f"bytes {first}-{end - 1}/{result.meta['size']}"
        await _prepare(response, request)
        sent = 0
        try:
            with panics_as_errors():
                async for chunk in result.stream(min_chunk_size=CHUNK_BYTES):
                    sent += await self._send(response, bytes(chunk))
        except (BaseError, OSError, ValueError) as error:
            raise BrokenOff(self.objects.describe_failure(error)) from error
        if sent != end - first:
            raise BrokenOff(f"the store gave {sent} of {end - first} bytes")
        return response

    async def _send(self, response: web.StreamResponse, data: bytes) -> int:
        """Write ``data`` in pieces, each within the time limit. Return its length. Raises BrokenOff."""
        view = memoryview(data)
        try:
            for start in range(0, len(data), CHUNK_BYTES):
                async with asyncio.timeout(self.room.idle_seconds):
                    await response.write(view[start : start + CHUNK_BYTES])
        except TimeoutError as error:
            raise BrokenOff(f"the client took no bytes for {self.room.idle_seconds:g} s") from error
        except OSError as error:
            raise BrokenOff("the client went away") from error
        self.room.metrics.sent_bytes += len(data)
        return len(data)

    async def list(self, request: web.BaseRequest, target: RequestTarget, caller: Caller) -> web.StreamResponse:
        """Return the content of a folder, one line for each entry."""
        async with self.room.short_budget.reserve(caller.namespace, _LIST_BYTES):
            if target.folders_only:
                lines = self._folder_lines(target.path, caller)
            else:
                lines = (_render_entries(page) async for page in self.objects.pages(target.path))
            first = await anext(lines, b"")  # first, so that a refusal by the store becomes the response
            response = web.StreamResponse(headers={"Content-Type": _NDJSON, "Cache-Control": "no-store"})
            await _prepare(response, request)
            try:
                await self._send(response, first)
                async for text in lines:
                    await self._send(response, text)
            except RequestProblem as problem:
                raise BrokenOff(problem.detail) from problem
            await self._send(response, orjson.dumps({END: True}, option=_LINE))
            return response

    async def _folder_lines(self, folder: str, caller: Caller) -> AsyncIterator[bytes]:
        if folder == self.room.access.cluster:
            own = f"{self.room.access.cluster}/{caller.namespace}"
            async for page in self.objects.pages(own):
                if page:
                    yield _render_folder(own)
                return
            return
        last = ""
        async for page in self.objects.pages(folder):
            names = [name for name in folder_names(page, folder) if name != last]
            last = names[-1] if names else last
            # For a page without new folders, send a sign of life: clients wait only a few seconds.
            yield b"".join(_render_folder(f"{folder}/{name}") for name in names) or b"\n"


async def _prepare(response: web.StreamResponse, request: web.BaseRequest) -> None:
    """Send the head of ``response``. Raises BrokenOff."""
    try:
        await response.prepare(request)
    except OSError as error:
        raise BrokenOff("the client went away") from error


def _render_entries(entries: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a line for each object."""
    return b"".join(
        orjson.dumps(
            {
                "path": entry["path"],
                "size": entry["size"],
                "e_tag": entry["e_tag"],
                "version": entry["version"],
                "last_modified": entry["last_modified"].isoformat(),
            },
            option=_LINE,
        )
        for entry in entries
    )


def _render_folder(prefix: str) -> bytes:
    return orjson.dumps({"prefix": prefix}, option=_LINE)


def _object_headers(entry: Mapping[str, Any]) -> dict[str, str]:
    headers = {
        "Content-Type": _BYTES,
        "Cache-Control": "no-store",
        "Last-Modified": format_datetime(entry["last_modified"], usegmt=True),
        VERSION_HEADER: orjson.dumps(object_version(entry)).decode(),
    }
    return {**headers, "ETag": entry["e_tag"]} if entry["e_tag"] else headers


_MAX_PARTS: Final = 10_000
"""Maximum number of parts of an object in S3."""
_MAX_MODE: Final = 2048
_ROUND: Final = 1 << 20
_VERSION_TEXT: Final = re.compile(r"[\x21-\x7e]{1,1024}")
"""Text that can be sent in a header to the store."""
_VERSION_MEMBERS: Final = ("e_tag", "version")


@dataclass(frozen=True, slots=True)
class Writes:
    """Answers requests that change the store."""

    objects: Objects
    room: Room
    part_bytes: int

    @property
    def most(self) -> int:
        """Size limit of an object: its parts must fit into one request's share of the budget."""
        largest_part = (self.room.budget.most - 2 * CHUNK_BYTES) // _UPLOADS_AT_ONCE
        return max(0, largest_part // _ROUND * _ROUND * _MAX_PARTS)

    async def put(self, request: web.BaseRequest, target: RequestTarget, caller: Caller) -> web.Response:
        """Put the body at the target's path. Only shard files may be large: the sweep reads whole objects of other
        kinds into memory, in every namespace."""
        mode = parse_mode(request.headers.get(MODE_HEADER))
        is_file = mode is None and target.path.endswith(REDIRECTED_SUFFIX)
        most_conditional = min(MAX_CONDITIONAL_BYTES, self.room.short_budget.most - _hold_whole(0))
        length = _read_length(request, self.most if is_file else most_conditional)
        if mode is None and length > self.part_bytes:
            part_bytes, needed = self.part_bytes, -(-length // _MAX_PARTS)
            if needed > part_bytes:
                part_bytes = -(-needed // _ROUND) * _ROUND
            async with self.room.budget.reserve(caller.namespace, _UPLOADS_AT_ONCE * part_bytes + 2 * CHUNK_BYTES):
                version = await self.objects.put_parts(target.path, self._receive(request, length), part_bytes)
        else:
            budget = self.room.budget if mode is None else self.room.short_budget
            seconds = math.inf if mode is None else self.room.short_seconds
            async with budget.reserve(caller.namespace, _hold_whole(length)):
                version = await self.objects.put(target.path, await self._read(request, length, seconds), mode)
        return web.Response(body=orjson.dumps(version), content_type="application/json")

    async def _read(self, request: web.BaseRequest, length: int, seconds: float) -> bytearray:
        data, end = bytearray(length), 0
        async for chunk in self._receive(request, length, seconds):
            begin, end = end, end + len(chunk)
            data[begin:end] = chunk
        return data

    async def _receive(
        self, request: web.BaseRequest, length: int, whole_seconds: float = math.inf
    ) -> AsyncIterator[bytes]:
        """Yield the body of ``length`` bytes. Raises RequestProblem if it ends early, if a chunk takes longer than a
        client may be idle, or if the last one does not arrive within ``whole_seconds``."""
        transport, received = request.transport, 0
        if transport and request.headers.get("Expect", "").lower() == "100-continue":
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        end = time.monotonic() + whole_seconds
        while received < length:
            size = min(CHUNK_BYTES, length - received)
            seconds = min(self.room.idle_seconds, end - time.monotonic())
            why, status = "the client went away", 400
            try:
                async with asyncio.timeout(seconds):
                    chunk = await request.content.readexactly(size)
            except (EOFError, OSError, web.RequestPayloadError) as error:  # TimeoutError is an OSError
                if isinstance(error, TimeoutError):
                    status = 408
                    is_idle = seconds >= self.room.idle_seconds
                    limit = f"{size} bytes did not arrive within {seconds:.3g} s"
                    why = limit if is_idle else f"it did not arrive within {whole_seconds:g} s"
                detail = f"the body ends after {received} of {length} bytes, nothing was put: {why}"
                raise RequestProblem(ErrorKind.INVALID, detail, status=status) from error
            received += size
            self.room.metrics.received_bytes += size
            yield chunk

    async def delete(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        """Delete the objects that the body names, if all belong to the caller."""
        length = _read_length(request, MAX_DELETE_BYTES)
        async with self.room.short_budget.reserve(caller.namespace, 4 * length + CHUNK_BYTES):
            paths = parse_paths(await self._read(request, length, self.room.short_seconds))
            for path in paths:
                if not self.room.access.may_write(check_path(path), caller):
                    detail = f"{self.room.access.explain_refusal(path, caller)}; nothing was deleted"
                    raise RequestProblem(ErrorKind.FORBIDDEN, detail)
            if paths:
                await self.objects.delete(paths)
        return web.Response(body=b"{}", content_type="application/json")

    async def copy(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        """Copy the caller's shard file to a free path of theirs. Claims and indexes are not copied: builders coordinate
        through them."""
        length = _read_length(request, MAX_COPY_REQUEST_BYTES)
        async with self.room.short_budget.reserve(caller.namespace, 4 * length + CHUNK_BYTES):
            source, target = _parse_copy(await self._read(request, length, self.room.short_seconds))
        for path in (source, target):
            if not self.room.access.may_write(check_path(path), caller):
                detail = f"{self.room.access.explain_refusal(path, caller)}; nothing was copied"
                raise RequestProblem(ErrorKind.FORBIDDEN, detail)
        size = (await self.objects.head(source))["size"]
        try:
            await self.objects.head(target)
        except RequestProblem as problem:
            if problem.kind is not ErrorKind.MISSING:
                raise
        else:
            raise RequestProblem(ErrorKind.PRECONDITION, f"{target} exists already; nothing was copied")
        if not await self.objects.copy(source, target, size):
            raise too_large(f"{source} has {size} bytes, too many for the store to copy by itself")
        return web.Response(body=b"{}", content_type="application/json")


def _hold_whole(length: int) -> int:
    """Return the memory for a body of ``length`` that is put in one request: the body and two chunks."""
    return length + 2 * CHUNK_BYTES


def parse_mode(header: str | None) -> Any:
    """Return the condition of a put for obstore; None without a header. Raises RequestProblem."""
    if header is None or header == CREATE:
        return header
    try:
        members = orjson.loads(header) if len(header) <= _MAX_MODE else None
    except ValueError:
        members = None
    is_version = isinstance(members, dict) and members and members.keys() <= {*_VERSION_MEMBERS}
    if not is_version or not all(
        isinstance(value, str) and _VERSION_TEXT.fullmatch(value) for value in (members or {}).values()
    ):
        raise invalid(f'expected {MODE_HEADER}: {CREATE}, or {{"e_tag": …, "version": …}}')
    return members


def _read_members(text: bytes | bytearray) -> Mapping[str, Any]:
    """Return the members of the body; none if it is not an object. Raises RequestProblem."""
    try:
        members = orjson.loads(text)
    except ValueError as error:
        raise invalid("the body is not JSON") from error
    return members if isinstance(members, dict) else {}


def _parse_copy(text: bytes | bytearray) -> tuple[str, str]:
    """Return the source and target path of a copy. Raises RequestProblem."""
    members = _read_members(text)
    paths = [members["from"], members["to"]] if members.keys() == {"from", "to"} else []
    if not paths or not all(isinstance(path, str) and path.endswith(REDIRECTED_SUFFIX) for path in paths):
        raise invalid('expected {"from": …, "to": …}, both with the path of a shard file')
    if paths[0] == paths[1]:
        raise invalid("both paths are the same")
    return paths[0], paths[1]


def parse_paths(text: bytes | bytearray) -> list[str]:
    """Return the paths of a deletion. Raises RequestProblem."""
    paths = _read_members(text).get("paths")
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise invalid('expected {"paths": […]}')
    if len(paths) > MAX_DELETED_PATHS:
        raise too_large(f"it names {len(paths)} paths, the limit is {MAX_DELETED_PATHS}")
    return paths
