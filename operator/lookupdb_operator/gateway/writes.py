"""PUT, the copy and the deletion of objects: bodies go on to the store in parts, or whole where they are small."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Final

import orjson
from aiohttp import web

from lookupdb.store.gateway_wire import (
    CREATE,
    MAX_CONDITIONAL_BYTES,
    MAX_COPY_REQUEST_BYTES,
    MAX_DELETE_BYTES,
    MAX_DELETED_PATHS,
    MODE_HEADER,
    REDIRECTED_SUFFIX,
    ErrorKind,
)
from lookupdb.store.object_store import Version
from lookupdb.tokens.verification import Caller
from lookupdb_operator.gateway.bodies import CHUNK_BYTES, Body, read_length
from lookupdb_operator.gateway.objects import PART_BYTES, UPLOADS_AT_ONCE, Objects
from lookupdb_operator.gateway.problems import RequestProblem, invalid, too_large
from lookupdb_operator.gateway.room import Room
from lookupdb_operator.gateway.targets import RequestTarget, check_path

MAX_PARTS: Final = 10_000
"""Of one object, in S3."""
_MAX_MODE: Final = 2048
_ROUND: Final = 1 << 20
_VERSION_TEXT: Final = re.compile(r"[\x21-\x7e]{1,1024}")
_VERSION_MEMBERS: Final = ("e_tag", "version")


class Writes:
    """Answers requests that change what is in the store."""

    def __init__(
        self,
        objects: Objects,
        room: Room,
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._objects = objects
        self._room = room
        self._part_bytes = part_bytes

    @property
    def most(self) -> int:
        """Bytes of the largest object: its parts must fit what one request may have of the budget."""
        largest_part = (self._room.budget.most - 2 * CHUNK_BYTES) // UPLOADS_AT_ONCE
        return max(0, largest_part // _ROUND * _ROUND * MAX_PARTS)

    @property
    def most_conditional(self) -> int:
        """Bytes of the largest object that is put on a condition."""
        return min(MAX_CONDITIONAL_BYTES, self._room.short_budget.most - _hold_whole(0))

    async def put(self, request: web.BaseRequest, target: RequestTarget, caller: Caller) -> web.Response:
        """Put the body at the target's path. Shard files alone may be large: whoever reads anything else has all of it
        in memory, and the sweep reads that of every namespace."""
        mode = parse_mode(request.headers.get(MODE_HEADER))
        is_file = mode is None and target.path.endswith(REDIRECTED_SUFFIX)
        length = read_length(request, self.most if is_file else self.most_conditional)
        if mode is not None:
            version = await self._put_short(self._short_body(request, length), mode, target, caller)
        else:
            body = Body(request, length, idle_seconds=self._room.idle_seconds)
            version = await self._put_file(body, target, caller)
        return web.Response(body=orjson.dumps(version), content_type="application/json")

    async def _put_short(self, body: Body, mode: Any, target: RequestTarget, caller: Caller) -> Version:
        async with self._room.short_budget.reserve(caller.namespace, _hold_whole(body.length)):
            return await self._objects.put(target.path, await self._read(body), mode)

    async def _put_file(self, body: Body, target: RequestTarget, caller: Caller) -> Version:
        if body.length <= self._part_bytes:
            async with self._room.budget.reserve(caller.namespace, _hold_whole(body.length)):
                return await self._objects.put(target.path, await self._read(body), None)
        part_bytes = choose_part_bytes(body.length, self._part_bytes)
        async with self._room.budget.reserve(caller.namespace, UPLOADS_AT_ONCE * part_bytes + 2 * CHUNK_BYTES):
            return await self._objects.put_parts(target.path, self._count(body), part_bytes)

    def _short_body(self, request: web.BaseRequest, length: int) -> Body:
        room = self._room
        return Body(request, length, idle_seconds=room.idle_seconds, whole_seconds=room.short_seconds)

    async def _read(self, body: Body) -> bytearray:
        data, end = bytearray(body.length), 0
        async for chunk in self._count(body):
            begin, end = end, end + len(chunk)
            data[begin:end] = chunk
        return data

    async def _count(self, body: Body) -> AsyncIterator[bytes]:
        async for chunk in body.chunks():
            self._room.metrics.received_bytes += len(chunk)
            yield chunk

    async def delete(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        """Delete the objects that the body names, if all of them are the caller's."""
        length = read_length(request, MAX_DELETE_BYTES)
        async with self._room.short_budget.reserve(caller.namespace, 4 * length + CHUNK_BYTES):
            paths = parse_paths(await self._read(self._short_body(request, length)))
            for path in paths:
                if not self._room.access.may_write(check_path(path), caller):
                    detail = f"{self._room.access.explain_refusal(path, caller)}; nothing was deleted"
                    raise RequestProblem(ErrorKind.FORBIDDEN, detail)
            if paths:
                await self._objects.delete(paths)
        return web.Response(body=b"{}", content_type="application/json")

    async def copy(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        """Copy a shard file that is the caller's to a path of theirs where nothing is. Claims and manifests, by which
        builders agree, are not copied."""
        length = read_length(request, MAX_COPY_REQUEST_BYTES)
        async with self._room.short_budget.reserve(caller.namespace, 4 * length + CHUNK_BYTES):
            source, target = parse_copy(await self._read(self._short_body(request, length)))
        for path in (source, target):
            if not self._room.access.may_write(check_path(path), caller):
                detail = f"{self._room.access.explain_refusal(path, caller)}; nothing was copied"
                raise RequestProblem(ErrorKind.FORBIDDEN, detail)
        size = (await self._objects.head(source))["size"]
        await self._check_absent(target)
        if not await self._objects.copy(source, target, size):
            raise too_large(f"{source} has {size} bytes, which the store does not copy by itself")
        return web.Response(body=b"{}", content_type="application/json")

    async def _check_absent(self, path: str) -> None:
        try:
            await self._objects.head(path)
        except RequestProblem as problem:
            if problem.kind is ErrorKind.MISSING:
                return
            raise
        raise RequestProblem(ErrorKind.PRECONDITION, f"{path} is there; nothing was copied")


def _hold_whole(length: int) -> int:
    """Bytes of memory for a body of ``length`` that is put at once: a chunk, and what has come."""
    return length + 2 * CHUNK_BYTES


def choose_part_bytes(length: int, least: int) -> int:
    """How large the parts of ``length`` bytes must be, so that ``MAX_PARTS`` suffice: at least ``least``, else whole
    MiB."""
    needed = -(-length // MAX_PARTS)
    return least if needed <= least else -(-needed // _ROUND) * _ROUND


def parse_mode(header: str | None) -> Any:
    """The condition of a put, as obstore takes it; None without a header. Raises RequestProblem."""
    if header is None or header == CREATE:
        return header
    try:
        members = orjson.loads(header) if len(header) <= _MAX_MODE else None
    except ValueError:
        members = None
    is_version = isinstance(members, dict) and members and members.keys() <= {*_VERSION_MEMBERS}
    if not is_version or not all(_is_version_text(value) for value in (members or {}).values()):
        raise invalid(f'expected {MODE_HEADER}: {CREATE}, or {{"e_tag": …, "version": …}}')
    return members


def _is_version_text(value: object) -> bool:
    """Whether ``value`` can stand in a header to the store."""
    return isinstance(value, str) and _VERSION_TEXT.fullmatch(value) is not None


def parse_copy(text: bytes | bytearray) -> tuple[str, str]:
    """The paths of a copy: from where, and to where. Raises RequestProblem."""
    try:
        members = orjson.loads(text)
    except ValueError as error:
        raise invalid("the body is no JSON") from error
    is_pair = isinstance(members, dict) and members.keys() == {"from", "to"}
    paths = [members["from"], members["to"]] if is_pair else []
    if not paths or not all(isinstance(path, str) and path.endswith(REDIRECTED_SUFFIX) for path in paths):
        raise invalid('expected {"from": …, "to": …}, both with the path of a shard file')
    if paths[0] == paths[1]:
        raise invalid("both paths are the same")
    return paths[0], paths[1]


def parse_paths(text: bytes | bytearray) -> list[str]:
    """The paths of a deletion. Raises RequestProblem."""
    try:
        members = orjson.loads(text)
    except ValueError as error:
        raise invalid("the body is no JSON") from error
    paths = members.get("paths") if isinstance(members, dict) else None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise invalid('expected {"paths": […]}')
    if len(paths) > MAX_DELETED_PATHS:
        raise too_large(f"it names {len(paths)} paths, {MAX_DELETED_PATHS} are the most")
    return paths
