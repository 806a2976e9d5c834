"""The release's password key: created once, at random, read again and again, and never guessed."""

from __future__ import annotations

import base64
import logging
from typing import Any, cast

import pytest

from lookupdb_operator.cluster.api import Refused, Unreachable
from lookupdb_operator.cluster.cluster import Cluster
from lookupdb_operator.model import Manifest
from lookupdb_operator.store import ShardKeyReader


class Secrets:
    """At most one Secret."""

    def __init__(self, held: Manifest | None = None) -> None:
        self.held = held
        self.created = 0
        self.loses_answer = False
        self.rival: Manifest | None = None
        """A Secret that somebody else creates at the same moment."""

    async def get_secret(self, namespace: str, name: str) -> Manifest | None:
        assert (namespace, name) == ("lookupdb", "lookupdb-shard-key")
        return self.held

    async def create_secret(self, manifest: Manifest) -> bool:
        self.created += 1
        self.held = self.held or self.rival or manifest
        if self.loses_answer:
            self.loses_answer = False
            raise Unreachable("Secret lookupdb-shard-key", "the connection was reset")
        return self.held is manifest


def reader_of(secrets: Secrets) -> tuple[ShardKeyReader, list[bytes]]:
    told: list[bytes] = []
    reader = ShardKeyReader(cast(Cluster, secrets), "lookupdb", "lookupdb-shard-key")
    reader.on_change = told.append
    return reader, told


def secret_of(value: Any, name: str = "key") -> Manifest:
    return {"data": {name: value}}


async def test_is_made_once_and_is_another_in_each_release() -> None:
    keys = []
    for _ in range(2):
        secrets = Secrets()
        reader, told = reader_of(secrets)
        assert await reader.refresh()
        assert not await reader.refresh()
        assert secrets.created == 1
        (key,) = told
        assert len(key) == 32
        keys.append(key)
    assert keys[0] != keys[1]


async def test_of_an_operator_that_starts_again_is_the_same() -> None:
    secrets = Secrets()
    first, told_first = reader_of(secrets)
    await first.refresh()
    again, told_again = reader_of(secrets)
    await again.refresh()
    assert told_again == told_first


async def test_that_was_made_though_the_answer_was_lost_is_used() -> None:
    secrets = Secrets()
    secrets.loses_answer = True
    reader, told = reader_of(secrets)
    with pytest.raises(Unreachable):
        await reader.refresh()
    await reader.refresh()
    assert (secrets.created, len(told)) == (1, 1)


async def test_that_somebody_else_has_made_in_the_very_moment_is_used() -> None:
    secrets = Secrets()
    secrets.rival = secret_of(base64.b64encode(b"r" * 32).decode())
    reader, told = reader_of(secrets)
    await reader.refresh()
    assert told == [b"r" * 32]


async def test_that_was_deleted_is_made_again_and_reported() -> None:
    secrets = Secrets()
    reader, told = reader_of(secrets)
    await reader.refresh()
    secrets.held = None
    assert await reader.refresh()
    assert len(set(told)) == 2


@pytest.mark.parametrize(
    "held",
    [
        {},
        {"data": None},
        secret_of(""),
        secret_of(None),
        secret_of("c2VjcmV0"),
        secret_of("no base64!"),
        secret_of(base64.b64encode(b"k" * 33).decode()),
        secret_of(base64.b64encode(b"k" * 32).decode(), "another"),
    ],
)
async def test_that_is_none_is_refused_and_not_shown_and_the_one_before_stays(
    held: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = Secrets()
    reader, told = reader_of(secrets)
    await reader.refresh()
    secrets.held = held
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(Refused, match="no key of 32 bytes under 'key'; delete it") as error,
    ):
        await reader.refresh()
    assert "c2VjcmV0" not in str(error.value) + caplog.text
    assert len(told) == 1
