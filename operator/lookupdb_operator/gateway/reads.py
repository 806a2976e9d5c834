"""GET and HEAD of an object, and listings: what comes from the store goes on to the client, a chunk at a time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from email.utils import format_datetime
from typing import Any, Final

import orjson
from aiohttp import web
from obstore.exceptions import BaseError

from lookupdb.network import panics_as_errors
from lookupdb.store.gateway_wire import END, REDIRECTED_SUFFIX, STREAM_HEADER, VERSION_HEADER, ErrorKind
from lookupdb.store.object_store import folder_names
from lookupdb.tokens.verification import Caller
from lookupdb_operator.gateway.bodies import CHUNK_BYTES
from lookupdb_operator.gateway.objects import Objects, object_version
from lookupdb_operator.gateway.problems import BrokenOff, RequestProblem, invalid
from lookupdb_operator.gateway.room import Room
from lookupdb_operator.gateway.targets import RequestTarget

READ_BYTES: Final = 4 * CHUNK_BYTES
"""Of memory for one read: a chunk that comes, one that goes, and what lies in buffers."""
LIST_BYTES: Final = 4 << 20
"""Of memory for one listing: a page of entries, and its lines."""
NDJSON: Final = "application/x-ndjson"
_BYTES: Final = "application/octet-stream"
_RANGE: Final = re.compile(r"bytes=([0-9]{1,18})-")
_LINE: Final = orjson.OPT_APPEND_NEWLINE


class Reads:
    """Answers requests that change nothing."""

    def __init__(
        self,
        objects: Objects,
        room: Room,
        *,
        redirects: bool,
    ) -> None:
        self._objects = objects
        self._room = room
        self._redirects = redirects

    async def head(self, request: web.BaseRequest, target: RequestTarget) -> web.StreamResponse:
        """The headers of an object."""
        entry = await self._objects.head(target.path)
        response = web.StreamResponse(headers=_object_headers(entry))
        response.content_length = entry["size"]
        await _prepare(response, request)
        return response

    async def get(self, request: web.BaseRequest, target: RequestTarget, caller: Caller) -> web.StreamResponse:
        """An object, or what of it begins at an offset, or where it is."""
        offset = parse_offset(request.headers.get("Range"))
        if self._redirects and target.path.endswith(REDIRECTED_SUFFIX) and STREAM_HEADER not in request.headers:
            await self._objects.head(target.path)
            location = await self._objects.link(target.path)
            return web.Response(status=307, headers={"Location": location, "Cache-Control": "no-store"})
        budget = self._room.budget if target.path.endswith(REDIRECTED_SUFFIX) else self._room.short_budget
        async with budget.reserve(caller.namespace, READ_BYTES):
            if offset is not None:
                await self._check_offset(target.path, offset)
            result = await self._objects.open(target.path, offset or 0)
            return await self._stream(request, result, offset)

    async def _check_offset(self, path: str, offset: int) -> None:
        size = (await self._objects.head(path))["size"]
        if offset >= size:
            headers = {"Content-Range": f"bytes */{size}"}
            raise RequestProblem(ErrorKind.INVALID, f"{path} has {size} bytes", status=416, headers=headers)

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
            raise BrokenOff(self._objects.describe_failure(error)) from error
        if sent != end - first:
            raise BrokenOff(f"the store gave {sent} of {end - first} bytes")
        return response

    async def _send(self, response: web.StreamResponse, data: bytes) -> int:
        """Write ``data`` in pieces, each of which must leave in time. Returns its length. Raises BrokenOff."""
        view = memoryview(data)
        try:
            for start in range(0, len(data), CHUNK_BYTES):
                async with asyncio.timeout(self._room.idle_seconds):
                    await response.write(view[start : start + CHUNK_BYTES])
        except TimeoutError as error:
            raise BrokenOff(f"the client took no bytes for {self._room.idle_seconds:g} s") from error
        except OSError as error:
            raise BrokenOff("the client went away") from error
        self._room.metrics.sent_bytes += len(data)
        return len(data)

    async def list(self, request: web.BaseRequest, target: RequestTarget, caller: Caller) -> web.StreamResponse:
        """What is in a folder, one line each."""
        async with self._room.short_budget.reserve(caller.namespace, LIST_BYTES):
            lines = self._folder_lines(target.path, caller) if target.folders_only else self._entry_lines(target.path)
            first = await anext(lines, b"")  # what the store refuses, it refuses now
            response = web.StreamResponse(headers={"Content-Type": NDJSON, "Cache-Control": "no-store"})
            await _prepare(response, request)
            try:
                await self._send(response, first)
                async for text in lines:
                    await self._send(response, text)
            except RequestProblem as problem:
                raise BrokenOff(problem.detail) from problem
            await self._send(response, orjson.dumps({END: True}, option=_LINE))
            return response

    async def _entry_lines(self, folder: str) -> AsyncIterator[bytes]:
        async for page in self._objects.pages(folder):
            yield render_entries(page)

    async def _folder_lines(self, folder: str, caller: Caller) -> AsyncIterator[bytes]:
        if folder == self._room.cluster:
            own = f"{self._room.cluster}/{caller.namespace}"
            async for page in self._objects.pages(own):
                if page:
                    yield _render_folder(own)
                return
            return
        last = ""
        async for page in self._objects.pages(folder):
            names = [name for name in folder_names(page, folder) if name != last]
            last = names[-1] if names else last
            # A page without another folder says that it is at work: the client waits for some seconds only.
            yield b"".join(_render_folder(f"{folder}/{name}") for name in names) or b"\n"


async def _prepare(response: web.StreamResponse, request: web.BaseRequest) -> None:
    """Send the head of ``response``. Raises BrokenOff."""
    try:
        await response.prepare(request)
    except OSError as error:
        raise BrokenOff("the client went away") from error


def parse_offset(header: str | None) -> int | None:
    """The first byte that ``bytes=N-`` asks for; None without a header. Raises RequestProblem."""
    if header is None:
        return None
    match = _RANGE.fullmatch(header)
    if match is None:
        raise invalid("expected the range bytes=N-")
    return int(match[1])


def render_entries(entries: Sequence[Mapping[str, Any]]) -> bytes:
    """A line for each object."""
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
