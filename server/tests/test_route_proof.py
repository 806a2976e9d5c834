"""An endpoint proves its identity. Bytes that it sends before the question end the connection."""

from __future__ import annotations

from typing import Any

import pytest
from support.routing import identity

from lookupdb.router.budget import RouterBudget
from lookupdb.router.link import QUESTION, NotProven, connect
from lookupdb.router.server_connection import SURPLUS, Reading, ServerAddress, ServerConnection

LINES = "".join(f"{name}:{value}\r\n" for name, value in identity().members().items()).encode()
PROOF = b"$%d\r\n%b\r\n" % (len(LINES), LINES)
SAID = f"{SURPLUS}|something other than RESP"
REFUSED = (NotProven, ConnectionError)
"""ConnectionError if the bytes, such as a list, answer nothing."""
PARTS = [b"$5\r\nWR", b"*2\r\n", b"$", b"+OK\r\n"]


class Server:
    """Sends ``greeting`` to each client, and the next pieces of ``answers`` after each question."""

    def __init__(self, *answers: list[bytes], greeting: bytes = b"") -> None:
        self.asked: list[bytes] = []
        self._answers = [*answers]
        self._greeting = greeting

    async def open(self, address: Any, on_reply: Any, on_lost: Any, budget: RouterBudget) -> ServerConnection:
        """As ``ServerConnection.open``, without a socket."""
        self.connection = ServerConnection(on_reply, on_lost, budget)
        self.connection.connection_made(self)  # type: ignore[arg-type]
        if self._greeting:
            self.connection.data_received(self._greeting)
        return self.connection

    def write(self, data: bytes) -> None:
        self.asked.append(data)
        for piece in self._answers.pop(0):
            self.connection.data_received(piece)

    def abort(self) -> None:
        pass

    def get_extra_info(self, name: str) -> Server:
        return self

    def setsockopt(self, *option: int) -> None:
        pass


@pytest.fixture
def prove(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Connect to a ``Server``."""

    async def prove(server: Server, password: str | None = None) -> ServerConnection:
        monkeypatch.setattr(ServerConnection, "open", server.open)
        address = ServerAddress("shard", 7000)
        return await connect(address, identity(), password, lambda why: None, RouterBudget(1 << 20))

    return prove


async def test_one_that_answers_what_it_is_asked_has_proven_itself(prove: Any) -> None:
    server = Server([b"+O", b"K\r\n"], [PROOF[:9], PROOF[9:]])
    assert (await prove(server, "secret")).reading is not Reading.CLOSED
    assert (len(server.asked), server.asked[1]) == (2, QUESTION)


@pytest.mark.parametrize("password", [None, "secret"])
@pytest.mark.parametrize("greeting", [PROOF, *PARTS])
async def test_one_that_speaks_first_is_not_asked(prove: Any, greeting: bytes, password: str | None) -> None:
    server = Server(greeting=greeting)
    with pytest.raises(REFUSED, match=SAID):
        await prove(server, password)
    assert server.asked == []
    assert server.connection.reading is Reading.CLOSED


@pytest.mark.parametrize("following", [PROOF, *PARTS])
@pytest.mark.parametrize("is_later", [False, True], ids=["same piece", "next piece"])
async def test_what_follows_the_answer_to_its_password_proves_nothing(
    prove: Any, following: bytes, is_later: bool
) -> None:
    server = Server([b"+OK\r\n", following] if is_later else [b"+OK\r\n" + following])
    with pytest.raises(REFUSED, match=SAID):
        await prove(server, "secret")
    assert len(server.asked) == 1
    assert server.connection.reading is Reading.CLOSED


@pytest.mark.parametrize("following", [PROOF, *PARTS])
@pytest.mark.parametrize("is_later", [False, True], ids=["same piece", "next piece"])
async def test_what_follows_its_proof_is_kept_for_no_lookup(prove: Any, following: bytes, is_later: bool) -> None:
    server = Server([PROOF, following] if is_later else [PROOF + following])
    with pytest.raises(REFUSED, match=SAID):
        await prove(server)
    assert server.connection.reading is Reading.CLOSED


async def test_one_that_hangs_up_is_lost_and_has_proven_nothing_wrong(prove: Any) -> None:
    server = Server()

    def write(data: bytes) -> None:
        server.connection.connection_lost(None)

    server.write = write  # type: ignore[method-assign]
    with pytest.raises(ConnectionError, match="closed by the other end"):
        await prove(server)
