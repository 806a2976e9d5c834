"""The store's credentials: created once, read again and again, and passed on as environment variables."""

from __future__ import annotations

import base64
import hashlib
from typing import Any, cast

import pytest

from lookupdb_operator.cluster.api import Refused, Unreachable
from lookupdb_operator.cluster.cluster import Cluster
from lookupdb_operator.model import Manifest
from lookupdb_operator.store import StoreAccessReader, ensure_credentials, make_access, merge_secret

SALT = "s3://lookupdb 8d3f6b1a"


class Secrets:
    """At most one Secret."""

    def __init__(self) -> None:
        self.held: Manifest | None = None
        self.created = 0
        self.failure: Exception | None = None

    async def get_secret(self, namespace: str, name: str) -> Manifest | None:
        assert (namespace, name) == ("lookupdb", "store")
        if self.failure:
            raise self.failure
        return self.held

    async def create_secret(self, manifest: Manifest) -> bool:
        self.created += 1
        if self.held is None:
            self.held = manifest
        return self.held is manifest


def coded(**texts: str) -> dict[str, str]:
    return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}


async def test_credentials_are_made_once() -> None:
    secrets = Secrets()
    await ensure_credentials(cast(Cluster, secrets), "lookupdb", "store")
    assert secrets.held is not None
    made = secrets.held["stringData"]
    assert set(made) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert [len(made[name]) for name in sorted(made)] == [20, 40]
    await ensure_credentials(cast(Cluster, secrets), "lookupdb", "store")
    assert secrets.held["stringData"] == made
    assert secrets.created == 1
    another = Secrets()
    await ensure_credentials(cast(Cluster, another), "lookupdb", "store")
    assert (another.held or {})["stringData"] != made


async def test_the_secret_is_read_again_and_a_change_is_reported() -> None:
    secrets = Secrets()
    store = StoreAccessReader(
        cast(Cluster, secrets), namespace="lookupdb", secret="store", environment={"AWS_REGION": "eu"}, salt=SALT
    )
    assert store.access.problem
    assert await store.refresh()
    assert "Secret store in namespace lookupdb does not exist" in (store.access.problem or "")
    secrets.held = {"data": coded(AWS_ACCESS_KEY_ID="a", AWS_REGION="us")}
    assert await store.refresh()
    assert store.access.problem is None
    assert store.access.environment == {"AWS_ACCESS_KEY_ID": "a", "AWS_REGION": "us"}
    first = store.access.digest
    assert first
    assert not await store.refresh()
    secrets.held = {"data": coded(AWS_ACCESS_KEY_ID="b")}
    assert await store.refresh()
    assert store.access.digest != first


async def test_what_cannot_be_read_now_stays_as_it_is() -> None:
    secrets = Secrets()
    secrets.held = {"data": coded(AWS_ACCESS_KEY_ID="a")}
    store = StoreAccessReader(cast(Cluster, secrets), namespace="lookupdb", secret="store", environment={}, salt=SALT)
    await store.refresh()
    known = store.access
    secrets.failure = Unreachable("Secret store", "the API server does not answer")
    with pytest.raises(Unreachable):
        await store.refresh()
    assert store.access == known
    secrets.failure = Refused("Secret store", "forbidden")
    assert await store.refresh()
    assert "may not read" in (store.access.problem or "")
    assert store.access.digest == ""


async def test_a_store_without_secret_is_reached_as_the_pods_are_known() -> None:
    store = StoreAccessReader(cast(Cluster, Secrets()), namespace="lookupdb", secret="", environment={}, salt=SALT)
    assert await store.refresh()
    assert (store.access.problem, store.access.environment) == (None, {})
    assert store.access.digest, "an environment that is empty is one"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param(
            {"access-key": ""}, "'access-key', which is not the name of an environment variable", id="no variable"
        ),
        pytest.param({"A": "%%%"}, "a value for A that is not text", id="not base64"),
        pytest.param({"A": "//8="}, "a value for A that is not text", id="not text"),
    ],
)
def test_a_secret_that_cannot_be_an_environment_says_why(data: dict[str, str], problem: str) -> None:
    found = merge_secret({}, data, "Secret store", SALT)
    assert problem in (found.problem or "")
    assert not found.environment


def test_the_digest_does_not_hang_on_order() -> None:
    assert make_access({"A": "1", "B": "2"}, SALT) == make_access({"B": "2", "A": "1"}, SALT)


class TestDigest:
    """The digest is in the status, which anyone who may read the dataset sees."""

    def test_is_the_same_in_another_process_or_each_start_would_write_all_secrets(self) -> None:
        assert make_access({"AWS_SECRET_ACCESS_KEY": "minio123"}, SALT).digest == "7d710cf73a61ad1a"

    def test_is_of_the_store_and_cluster_so_that_no_table_of_guesses_fits_several(self) -> None:
        assert make_access({"A": "1"}, SALT).digest != make_access({"A": "1"}, "s3://lookupdb another").digest

    def test_costs_whoever_guesses_as_much_memory_each_time_as_it_is_slow(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rounds: list[int] = []

        def count(password: bytes, *, n: int, r: int, p: int, **rest: Any) -> bytes:
            rounds.append(128 * n * r * p)
            return scrypt(password, n=n, r=r, p=p, **rest)

        scrypt = hashlib.scrypt
        monkeypatch.setattr(hashlib, "scrypt", count)
        digests = {make_access({"A": "guess"}, f"{SALT} slow").digest for _ in range(3)}
        assert rounds == [16 << 20], "once for what is the same"
        assert [len(digest) for digest in digests] == [16]
