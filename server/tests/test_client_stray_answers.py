"""lookupdb.client does not take unrequested bytes after an answer for the answer to its next request."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest
from support.clients import Kind, blocking
from support.faulty_router import answer, scripted

from lookupdb.client import InvalidAnswer, sync_transport
from lookupdb.client.async_transport import AsyncConnection
from lookupdb.client.core import PIECE_BYTES
from lookupdb.client.settings import TlsContexts, check_settings

pytest_plugins = ["support.client_fixtures"]

WHOLE = answer("a")


def answer_of(size: int) -> bytes:
    """A whole answer of so many bytes."""
    told = answer(b"x" * (size - len(answer(b"")) - len(str(size)) + 1))
    assert len(told) == size
    return told


@pytest.mark.parametrize(
    ("scheme", "piece"),
    [("https", 1 << 14), ("http", PIECE_BYTES)],
    ids=["a record of TLS", "a piece"],
)
def test_what_follows_a_piece_that_ends_an_answer_answers_nothing(
    scheme: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gives up the connection, as it does if the bytes come in the same piece."""

    class Pieces(socket.socket):
        def recv(self, size: int, flags: int = 0) -> bytes:
            return super().recv(min(size, piece), flags)

    pair = socket.socketpair()
    ours, router = Pieces(fileno=pair[0].detach()), pair[1]
    monkeypatch.setattr(sync_transport, "_connect", lambda *_: ours)
    settings = check_settings(f"{scheme}://localhost", {})
    with ours, router:
        link = sync_transport.RouterConnection(settings, TlsContexts(settings), time.monotonic() + 30)
        router.sendall(answer_of(piece))
        assert link.exchange(b"1", time.monotonic() + 30).keeps_open
        assert link.is_open
        router.sendall(answer_of(piece) + answer(b"of another"))
        assert not link.exchange(b"2", time.monotonic() + 30).keeps_open
        assert not link.is_open


@pytest.fixture
async def pair() -> AsyncIterator[tuple[AsyncConnection, socket.socket]]:
    """A connection of a coroutine, and the router's end of it."""
    loop, settings = asyncio.get_running_loop(), check_settings("http://localhost", {})
    ours, router = socket.socketpair()
    _, link = await loop.create_connection(lambda: AsyncConnection(loop, settings, set()), sock=ours)
    with router:
        yield link, router
    link.close()


async def test_what_follows_a_piece_that_ends_an_answer_answers_no_coroutine(
    pair: tuple[AsyncConnection, socket.socket],
) -> None:
    link, router = pair
    ends_at = asyncio.get_running_loop().time() + 30
    router.sendall(answer_of(PIECE_BYTES))
    assert (await link.exchange(b"1", ends_at)).keeps_open
    assert link.is_open
    router.sendall(answer_of(PIECE_BYTES) + answer(b"of another"))
    await link.exchange(b"2", ends_at)
    assert not link.is_open


async def test_a_second_answer_within_one_turn_of_the_loop_is_none(pair: tuple[AsyncConnection, socket.socket]) -> None:
    """uvloop reads again at once after a piece that fills its buffer."""
    link, _ = pair
    asked = asyncio.ensure_future(link.exchange(b"1", asyncio.get_running_loop().time() + 30))
    await asyncio.sleep(0)
    link.data_received(answer_of(PIECE_BYTES))
    link.data_received(answer(b"of another"))
    assert len((await asked).body) > 60_000
    assert not link.is_open


def test_bytes_behind_an_answer_are_an_error(kind: Kind) -> None:
    with scripted(WHOLE + WHOLE) as router, blocking(kind, router.url) as client:
        with pytest.raises(InvalidAnswer, match="continues after its Content-Length"):
            client.get("a")
        assert client.get("b") == "b"
