"""HTTP of the admin port, byte by byte: real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from lookupdb.process import listeners
from lookupdb.process.admin import MAX_HEAD_BYTES, ProbeAnswer, ProbeServer

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


async def answer(path: str) -> ProbeAnswer | None:
    if path == "/broken":
        raise RuntimeError("no figures")
    return ProbeAnswer(b"ok\n") if path == "/healthz" else None


@contextlib.asynccontextmanager
async def connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    listener = listeners.bind("127.0.0.1", 0)
    server = ProbeServer(answer)
    await server.start(listener)
    reader, writer = await asyncio.open_connection("127.0.0.1", listeners.bound_port(listener))
    try:
        yield reader, writer
    finally:
        writer.close()
        await server.cleanup()


async def response(reader: asyncio.StreamReader, *, has_body: bool = True) -> tuple[bytes, dict[str, str], bytes]:
    """Status line, fields and body of the next one."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).decode()
    line, *lines = head.strip().split("\r\n")
    fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return line.encode(), fields, await reader.readexactly(int(fields["content-length"])) if has_body else b""


async def test_requests_follow_each_other_on_a_connection_also_when_they_come_together() -> None:
    async with connection() as (reader, writer):
        writer.write(GET + GET)
        for _ in range(2):
            line, fields, body = await response(reader)
            assert (line, body) == (b"HTTP/1.1 200 OK", b"ok\n")
            assert fields["content-type"] == "text/plain; charset=utf-8"
            assert "connection" not in fields
        for part in (GET[:10], GET[10:]):
            writer.write(part)
            await writer.drain()
        assert (await response(reader))[2] == b"ok\n"


async def test_head_has_no_body() -> None:
    async with connection() as (reader, writer):
        writer.write(GET.replace(b"GET", b"HEAD") + GET)
        line, fields, _ = await response(reader, has_body=False)
        assert (line, fields["content-length"]) == (b"HTTP/1.1 200 OK", "3")
        assert (await response(reader))[2] == b"ok\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(GET.replace(b"Host: x", b"Connection: Close"), b"200 OK", id="the client says so"),
        pytest.param(GET.replace(b"1.1", b"1.0"), b"200 OK", id="an older client"),
        pytest.param(GET.replace(b"Host: x", b"Content-Length: 5") + b"GET /x", b"200 OK", id="a body"),
        pytest.param(GET.replace(b"Host: x", b"Transfer-Encoding: chunked"), b"200 OK", id="a body in chunks"),
        pytest.param(b"hello\r\n\r\n", b"400 Bad Request", id="no request"),
        pytest.param(GET.replace(b"1.1", b"2.0"), b"400 Bad Request", id="another HTTP"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"x" * 2 * MAX_HEAD_BYTES, b"400 Bad Request", id="too large a head"),
    ],
)
async def test_the_connection_is_closed_behind_the_answer(request_: bytes, status: bytes) -> None:
    async with connection() as (reader, writer):
        writer.write(request_)
        line, fields, _ = await response(reader)
        assert (line, fields["connection"]) == (b"HTTP/1.1 " + status, "close")
        with contextlib.suppress(ConnectionResetError):  # what was sent beyond was not read
            assert await asyncio.wait_for(reader.read(), 60) == b""


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET.replace(b"healthz", b"healthz?verbose"), b"200 OK"),
        (GET.replace(b"Host: x", b"Connection: Upgrade\r\nUpgrade: h2c"), b"200 OK"),
        (GET.replace(b"healthz", b"elsewhere"), b"404 Not Found"),
        (GET.replace(b"GET", b"DELETE"), b"405 Method Not Allowed"),
        (GET.replace(b"healthz", b"broken"), b"500 Internal Server Error"),
    ],
)
async def test_the_connection_stays(request_: bytes, status: bytes) -> None:
    async with connection() as (reader, writer):
        writer.write(request_ + GET)
        assert (await response(reader))[0] == b"HTTP/1.1 " + status
        assert (await response(reader))[2] == b"ok\n"


async def test_a_client_that_leaves_within_a_request_harms_nobody() -> None:
    async with connection() as (reader, writer):
        _, other_writer = await asyncio.open_connection(*writer.get_extra_info("peername"))
        other_writer.write(GET[:10])
        other_writer.close()
        writer.write(GET)
        assert (await response(reader))[2] == b"ok\n"
