"""The life of a link: what leads from which state to which, and what its user and the next lookup learn of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from support.routing import identity
from support.scripted_shard import ScriptedShard
from support.waiting import soon

from lookupdb.router.budget import RouterBudget
from lookupdb.router.counters import INDEX, NAMES
from lookupdb.router.link import Link, LinkSettings
from lookupdb.router.server_connection import Reading, ServerConnection

NEVER = float("-inf")


class User:
    """Records the callbacks of a link, and checks its invariants in each."""

    def __init__(self, address: object) -> None:
        self.counters = memoryview(bytearray(8 * len(NAMES))).cast("Q")
        settings = LinkSettings(self.counters, random.Random(1), RouterBudget(1 << 20))
        self.link = Link(address, identity(), settings, self, "small")  # type: ignore[arg-type]
        self.states: list[bool] = []
        """Whether the link was ready after each change."""
        self.connections: list[ServerConnection] = []
        self.reasons: list[str] = []

    def on_connection(self, connection: ServerConnection) -> None:
        connection.use(lambda reply: None, self)
        self.connections.append(connection)

    def on_no_connection(self, why: str) -> None:
        assert not self.link.is_ready
        assert self.link._connection is None
        self.reasons.append(why)

    def on_state_change(self) -> None:
        link = self.link
        assert (link._connection is not None) == link.is_ready == (link.last_failure is None)
        self.states.append(link.is_ready)

    def expected_keys(self) -> int:
        return 0

    def accept(self, index: int, size: int) -> bool:
        return False

    def count(self, name: str) -> int:
        return self.counters[INDEX[name]]

    async def be_ready(self) -> None:
        await soon(lambda: self.link.is_ready, "the link is ready")

    async def fail(self) -> None:
        await soon(lambda: self.reasons, "an attempt has failed")


@pytest.fixture
def users() -> Iterator[list[User]]:
    users: list[User] = []
    yield users
    for user in users:
        user.link.close()


@pytest.fixture
async def shard(stack: AsyncExitStack) -> ScriptedShard:
    return await stack.enter_async_context(ScriptedShard(identity(), {}))


@pytest.fixture
async def user(shard: ScriptedShard, users: list[User]) -> User:
    """Make a user of a link to ``shard``; the link is not started."""
    users.append(User(shard.address))
    return users[0]


async def test_a_new_link_connects_when_it_is_started_and_is_ready_once_the_server_has_proven_itself(
    user: User, shard: ScriptedShard
) -> None:
    await asyncio.sleep(0.02)
    assert shard.proofs == 0
    user.link.start()
    user.link.start()
    assert not user.link.is_ready
    await user.be_ready()
    assert user.states == [True]
    assert user.link.was_ready
    assert len(user.connections) == shard.proofs == 1


async def test_one_that_cannot_be_made_says_why_and_is_tried_again(user: User, shard: ScriptedShard) -> None:
    await shard.stop()
    user.link.start()
    await user.fail()
    assert "cannot be connected to" in (user.link.last_failure or "")
    assert user.reasons[0] == user.link.last_failure
    assert (user.link.was_ready, user.link.broken_at) == (False, NEVER)
    await shard.start()
    await user.be_ready()
    assert user.link.last_failure is None


async def test_one_whose_server_proves_to_be_another_is_not_used(user: User, shard: ScriptedShard) -> None:
    shard.identity = identity(generation="g2")
    user.link.start()
    await user.fail()
    assert "serves something else" in (user.link.last_failure or "")
    assert user.count("proofs_failed") >= 1
    assert not user.connections


async def test_the_same_reason_again_is_no_news(user: User, shard: ScriptedShard) -> None:
    await shard.stop()
    user.link.start()
    await soon(lambda: len(user.reasons) >= 3, "three attempts have failed")
    assert user.states == [False]


async def test_one_that_breaks_may_be_back_in_a_moment(user: User, shard: ScriptedShard) -> None:
    user.link.start()
    await user.be_ready()
    began = asyncio.get_running_loop().time()
    shard.hang_up()
    await soon(lambda: user.reasons, "the user knows")
    assert user.link.broken_at >= began
    assert user.count("endpoints_broken") == 1
    await user.be_ready()
    assert user.states == [True, False, True]
    assert shard.proofs == 2


async def test_one_whose_user_fails_to_take_the_news_is_made_again(
    user: User, shard: ScriptedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(why: str) -> None:
        raise MemoryError

    said: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context.get("exception")))
    user.link.start()
    await user.be_ready()
    with monkeypatch.context() as patch:
        patch.setattr(user, "on_no_connection", fail)
        shard.hang_up()
        await soon(lambda: shard.proofs == 2, "the server has proven itself again")
    await user.be_ready()
    assert [type(error) for error in said] == [MemoryError]


async def test_one_that_its_user_breaks_is_made_again(user: User, shard: ScriptedShard) -> None:
    user.link.start()
    await user.be_ready()
    user.link.break_connection("it is of no use")
    assert (user.link.is_ready, user.link.last_failure, user.reasons) == (
        False,
        "it is of no use",
        ["it is of no use"],
    )
    await user.be_ready()


@pytest.mark.parametrize("state", ["new", "connecting", "ready", "broken"])
async def test_a_closed_one_stays_closed_whatever_it_was_doing(user: User, shard: ScriptedShard, state: str) -> None:
    if state == "broken":
        await shard.stop()
    if state != "new":
        user.link.start()
    if state == "ready":
        await user.be_ready()
    elif state == "broken":
        await user.fail()
    user.link.close()
    user.link.close()
    assert (user.link.is_ready, user.link._connection, user.link.last_failure) == (False, None, "closed")
    if user.link._life:
        await asyncio.wait([user.link._life])
    await asyncio.sleep(0.02)
    assert not user.link.is_ready
    assert all(connection.reading is Reading.CLOSED for connection in user.connections)
