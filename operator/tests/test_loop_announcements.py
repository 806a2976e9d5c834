"""Announcements are written apart from reconcile passes, retried until they succeed, through a gateway that knows their
writer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from operator_support.gateways import CLUSTER, Standing, standing
from operator_support.running import until
from support.buckets import new_bucket, s3_server
from support.ports import free_port
from support.signers import rsa_signer

from lookupdb.account_tokens import Caller
from lookupdb.manifest import ANNOUNCEMENT_NOTE, Announcement
from lookupdb.store import StoreAddress
from lookupdb.store.bucket import Bucket
from lookupdb.store.bucket_dataset import BucketDataset
from lookupdb.store.dataset import read_announcement
from lookupdb_operator.loop import observe as loop
from lookupdb_operator.loop.observe import Announcements
from lookupdb_operator.model import NotAnnounced
from lookupdb_operator.store import GatewayAnnouncer

KEY = ("team", "people")
DUE = Announcement("team", "people", "3f2b9c1e-77aa", "g12", 17, "2026-11-20T02:04:00Z")
ANNOUNCER = Caller("lookupdb", "operator")


class Store:
    """Refuses so many times, and accepts every later write."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.told: list[Announcement] = []
        self.problems: Iterator[str] = itertools.repeat("the store is away")
        self.at_once = self.most_at_once = 0

    async def announce(self, announcement: Announcement) -> None:
        self.told.append(announcement)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.failures:
            self.failures -= 1
            raise NotAnnounced(next(self.problems))


@pytest.fixture(autouse=True)
def _hastened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(loop, "LONGEST_PAUSE_SECONDS", 0.02)


class TestAttempts:
    async def test_what_is_due_is_announced_and_the_dataset_looked_at_again(self) -> None:
        store, woken = Store(), asyncio.Queue[tuple[str, str]]()
        announcements = Announcements(store, woken.put_nowait)
        for _ in range(3):
            announcements.follow(KEY, DUE)
        assert await asyncio.wait_for(woken.get(), 60) == KEY
        assert announcements.report(KEY).written == DUE
        assert store.told == [DUE]
        announcements.follow(KEY, DUE)
        await asyncio.sleep(0.05)
        assert store.told == [DUE], "until status has it, it is not written again"
        announcements.follow(KEY, None)
        assert announcements.report(KEY).written is None

    async def test_it_is_tried_again_and_is_no_trouble_for_a_while(self) -> None:
        store, woken, now = Store(failures=10**6), asyncio.Queue[tuple[str, str]](), 0.0
        announcements = Announcements(store, woken.put_nowait, lambda: now)
        announcements.follow(KEY, DUE)
        await until(lambda: len(store.told) > 5, "it was tried again")
        assert announcements.report(KEY).problem == ""
        assert woken.empty()
        now = loop.PATIENCE_SECONDS
        assert await asyncio.wait_for(woken.get(), 60) == KEY
        assert announcements.report(KEY).problem == "the store is away"
        store.failures = 0
        await until(lambda: announcements.report(KEY).written == DUE, "it has succeeded")
        await announcements.close()

    async def test_alternating_problems_are_reported_and_logged_seldom(self, caplog: pytest.LogCaptureFixture) -> None:
        """Each is a write of the status, and there may be 500 datasets."""
        store, now, woken = Store(failures=10**6), 0.0, list[object]()
        announcements = Announcements(store, woken.append, lambda: now)
        announcements.follow(KEY, DUE)
        await until(lambda: len(store.told) > 20, "it was tried again")
        assert len([record for record in caplog.records if "is not announced" in record.getMessage()]) == 1
        now = loop.PATIENCE_SECONDS
        await until(lambda: len(woken) == 1, "the report")
        store.problems = itertools.cycle(["503", "no answer"])
        tried = len(store.told)
        await until(lambda: len(store.told) > tried + 20, "it was tried again")
        assert len(woken) == 1
        now += loop.PATIENCE_SECONDS
        await until(lambda: len(woken) == 2, "the report of another problem")
        await announcements.close()

    async def test_another_one_takes_its_place(self) -> None:
        store = Store(failures=10**6)
        announcements = Announcements(store, lambda key: None)
        announcements.follow(KEY, DUE)
        await until(lambda: len(store.told) > 2, "it was tried")
        store.failures = 0
        later = replace(DUE, generation="g13", version=18)
        announcements.follow(KEY, later)
        await until(lambda: announcements.report(KEY).written == later, "the later one")
        assert store.told[-1] == later

    async def test_of_many_datasets_a_few_are_announced_at_a_time(self) -> None:
        store = Store()
        announcements = Announcements(store, lambda key: None)
        for number in range(200):
            announcements.follow(("team", f"d{number}"), replace(DUE, name=f"d{number}"))
        await until(lambda: len(store.told) == 200, "all are announced")
        assert store.most_at_once <= 16

    async def test_without_a_gateway_nothing_is(self) -> None:
        announcements = Announcements(None, lambda key: None)
        announcements.follow(KEY, DUE)
        assert announcements.report(KEY).written is None


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with s3_server() as url:
        yield url


class TestGateway:
    @pytest.fixture
    def bucket(self, url: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
        return new_bucket(url, monkeypatch)

    @pytest.fixture
    async def gateway(self, bucket: Bucket, tmp_path: Path) -> AsyncIterator[Standing]:
        async with standing(tmp_path, bucket.url, announcer=ANNOUNCER) as gateway:
            yield gateway

    @pytest.fixture
    def token(self, tmp_path: Path) -> Path:
        path = tmp_path / "token"
        path.write_text(rsa_signer().token("lookupdb", sub="system:serviceaccount:lookupdb:operator") + "\n")
        return path

    @pytest.fixture
    async def announcer(self, gateway: Standing, token: Path) -> AsyncIterator[GatewayAnnouncer]:
        announcer = GatewayAnnouncer(f"http://127.0.0.1:{gateway.port}", CLUSTER, token)
        yield announcer
        await announcer.close()

    @pytest.fixture
    def people(self, bucket: Bucket) -> BucketDataset:
        return BucketDataset(bucket, StoreAddress(CLUSTER, DUE.namespace, DUE.name, DUE.uid))

    async def test_takes_it(self, announcer: GatewayAnnouncer, people: BucketDataset) -> None:
        await announcer.announce(DUE)
        assert read_announcement(people) == DUE
        rollback = replace(DUE, generation="g11", version=18)
        await announcer.announce(rollback)
        assert read_announcement(people) == rollback

    async def test_has_it_already(self, announcer: GatewayAnnouncer, people: BucketDataset, gateway: Standing) -> None:
        await announcer.announce(DUE)
        before = people.bucket.read(f"{people.address.path}/{ANNOUNCEMENT_NOTE}").version
        await announcer.announce(replace(DUE, announced_at="2026-11-21T00:00:00Z"))
        assert people.bucket.read(f"{people.address.path}/{ANNOUNCEMENT_NOTE}").version == before
        assert read_announcement(people) == DUE

    async def test_what_is_late_changes_nothing(self, announcer: GatewayAnnouncer, people: BucketDataset) -> None:
        await announcer.announce(DUE)
        for late in (replace(DUE, generation="g11", version=16), replace(DUE, generation="g11")):
            with pytest.raises(NotAnnounced, match="g12 is announced there already, with table version 17"):
                await announcer.announce(late)
        assert read_announcement(people) == DUE

    async def test_one_that_is_written_in_between_stays(
        self, announcer: GatewayAnnouncer, people: BucketDataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If two operators read the same, the second write is refused."""
        await announcer.announce(DUE)
        later = replace(DUE, generation="g14", version=20)
        read = announcer._read

        async def read_then_stand_still(target: str) -> object:
            found = await read(target)
            monkeypatch.setattr(announcer, "_read", read)
            await announcer.announce(later)
            return found

        monkeypatch.setattr(announcer, "_read", read_then_stand_still)
        with pytest.raises(NotAnnounced, match="412"):
            await announcer.announce(replace(DUE, generation="g13", version=18))
        assert read_announcement(people) == later

    async def test_what_is_none_is_replaced(self, announcer: GatewayAnnouncer, people: BucketDataset) -> None:
        people.write_note(ANNOUNCEMENT_NOTE, b"{")
        await announcer.announce(DUE)
        assert read_announcement(people) == DUE

    async def test_refuses_another_service_account(
        self, announcer: GatewayAnnouncer, people: BucketDataset, token: Path
    ) -> None:
        token.write_text(rsa_signer().token("team"))
        with pytest.raises(NotAnnounced, match="only the operator may write it"):
            await announcer.announce(DUE)
        token.unlink()
        with pytest.raises(NotAnnounced, match="cannot be read"):
            await announcer.announce(DUE)
        assert read_announcement(people) is None

    async def test_does_not_answer(self, token: Path) -> None:
        announcer = GatewayAnnouncer(f"http://127.0.0.1:{free_port()}", CLUSTER, token)
        with pytest.raises(NotAnnounced, match="does not answer"):
            await announcer.announce(DUE)
        await announcer.close()
