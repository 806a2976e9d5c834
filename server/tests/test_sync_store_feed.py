"""The active generation according to the store alone: the announced one, or else the newest that may serve."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.buckets import new_bucket, s3_server
from support.gateways import CLUSTER as GATEWAY_CLUSTER
from support.gateways import NAMESPACE, fake_gateway, use_token
from support.syncing import CLUSTER, MOMENT, OTHER_UID, UID, announce, publish

from lookupdb.errors import CorruptFile, StoreError
from lookupdb.manifest import ANNOUNCEMENT_NOTE, Announcement, Refusal
from lookupdb.store import Store, StoreAddress, open_store
from lookupdb.store.bucket_dataset import BucketDataset, BucketStore
from lookupdb.sync import feeds as store_feed
from lookupdb.sync.feeds import NamespaceListings, StoreFeed, SyncTarget, parse_moment

REFUSED = Refusal(("too few",), "gates", "g1")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(store_feed, "LISTING_SECONDS", 0.0)
    monkeypatch.setattr(store_feed, "LOCAL_LISTING_SECONDS", 0.0)
    monkeypatch.setattr(store_feed, "UNANNOUNCED_SECONDS", 0.0)
    if getattr(request, "param", "directory") == "directory":
        return open_store(str(tmp_path / "store"), CLUSTER)
    bucket = new_bucket(request.getfixturevalue("server"), monkeypatch)
    return BucketStore(bucket.url, CLUSTER, bucket)


in_each_store = pytest.mark.parametrize("place", ["directory", "s3"], indirect=True)
"""For what differs in a bucket."""


def feed_of(place: Store, uid: str | None = None, name: str = "people") -> StoreFeed:
    return StoreFeed(place, NamespaceListings(place), "team", name, uid)


def look(place: Store, uid: str | None = None) -> tuple[str, str, int | None] | None:
    found = feed_of(place, uid).look()
    return None if found is None else (found.uid, found.generation, found.version)


class TestAnnounced:
    @in_each_store
    def test_counts_whatever_is_newer(self, place: Store) -> None:
        publish(place, "g1")
        people = publish(place, "g2")
        announce(people, "g1", 3)
        assert look(place) == (UID, "g1", 3)
        assert look(place, UID) == (UID, "g1", 3)

    def test_that_is_none_is_no_reason_to_take_the_newest(self, place: Store) -> None:
        publish(place, "g1").write_note(ANNOUNCEMENT_NOTE, b"{}")
        with pytest.raises(CorruptFile, match="format version None"):
            look(place)

    def test_of_another_dataset_is_refused(self, place: Store) -> None:
        people = publish(place, "g1")
        other = Announcement("team", "people", OTHER_UID, "g1", 1, "2026-11-20T00:00:00Z")
        people.write_note(ANNOUNCEMENT_NOTE, other.to_json())
        with pytest.raises(CorruptFile, match="announces team/people"):
            look(place)


class TestAnnouncedAndGone:
    """In a directory a look sees all that there is: a newer one takes its place. A bucket may be listed late."""

    @in_each_store
    def test_gives_way_to_a_newer_one_in_a_directory_alone(self, place: Store) -> None:
        people = publish(place, "g3")
        announce(people, "g2", 7)
        assert look(place) == look(place, UID) == ((UID, "g3", None) if place.folder else (UID, "g2", 7))
        publish(place, "g2")
        assert look(place) == (UID, "g2", 7)

    def test_does_not_give_way_to_what_is_older_or_cannot_serve(self, place: Store) -> None:
        people = publish(place, "g1")
        publish(place, "g3", refused=REFUSED)
        announce(people, "g2", 7)
        assert look(place) == (UID, "g2", 7)

    def test_gives_way_to_nothing_while_a_table_is_waited_for(self, place: Store) -> None:
        announce(publish(place, "g3"), "g2", 7)
        found = feed_of(place).look(takes_newest=False)
        assert found is not None
        assert found.generation == "g2"


class TestNewest:
    def test_is_whole_and_refused_by_no_gate(self, place: Store) -> None:
        publish(place, "g1")
        publish(place, "g2")
        publish(place, "g10", refused=REFUSED)
        assert look(place) == (UID, "g2", None)
        place.dataset_at(StoreAddress(CLUSTER, "team", "people", UID)).admit("g10")
        assert look(place) == (UID, "g10", None)

    @in_each_store
    def test_is_none_that_is_damaged_or_being_built(self, place: Store) -> None:
        publish(place, "g1")
        people = publish(place, "g2")
        lost = people.manifest("g2").shards[0].file
        if isinstance(people, BucketDataset):
            people.bucket.objects.delete([f"{people.address.path}/g2/{lost}"])
        else:
            (Path(people.url) / "g2" / lost).unlink()
        with tempfile.TemporaryDirectory() as scratch, people.claim("g3", Path(scratch)):
            assert look(place) == (UID, "g1", None)

    @in_each_store
    def test_of_a_dataset_that_is_not_there_is_none(self, place: Store) -> None:
        publish(place, "g1", name="team/places")
        assert look(place) is None
        assert look(place, OTHER_UID) is None

    def test_of_that_number_that_was_built_again_is_another_one(self, place: Store) -> None:
        people = publish(place, "g1")
        before = feed_of(place).look()
        people.remove("g1")
        publish(place, "g1", built_at="2026-11-22T00:00:00Z")
        assert feed_of(place).look() != before


class TestUid:
    def test_without_one_the_dataset_that_was_announced_last_counts(self, place: Store) -> None:
        announce(publish(place, "g5"), "g5", 50, "2026-11-20T00:00:00Z")
        made_again = publish(place, "g1", uid=OTHER_UID)
        announce(made_again, "g1", 1, "2026-11-21T00:00:00Z")
        assert look(place) == (OTHER_UID, "g1", 1)
        assert look(place, UID) == (UID, "g5", 50), "asked for by its uid"

    @in_each_store
    def test_where_nothing_is_announced_what_was_built_last_counts(self, place: Store) -> None:
        publish(place, "g5", built_at="2026-11-20T00:00:00Z")
        publish(place, "g1", uid=OTHER_UID, built_at="2026-11-21T00:00:00Z")
        assert look(place) == (OTHER_UID, "g1", None)


def test_many_datasets_cost_a_listing_and_a_small_read_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 announced datasets list names at the gateway only once."""
    use_token(tmp_path, monkeypatch)
    with fake_gateway() as gateway:
        for number in range(500):
            address = StoreAddress(GATEWAY_CLUSTER, NAMESPACE, f"d{number}", "local")
            announcement = Announcement(NAMESPACE, f"d{number}", "local", "g1", 1, MOMENT)
            gateway.put(f"{address.path}/{ANNOUNCEMENT_NOTE}", announcement.to_json())
        place = open_store(gateway.url, GATEWAY_CLUSTER)
        monkeypatch.setattr(store_feed, "LISTING_SECONDS", 60.0)
        listings = NamespaceListings(place)
        feeds = [StoreFeed(place, listings, NAMESPACE, f"d{number}", None) for number in range(500)]
        assert {feed.look() for feed in feeds} == {SyncTarget("local", "g1", "announcement", 1, parse_moment(MOMENT))}
        assert len(gateway.requests) == 501
        assert sum("/v1/list" in path for _method, path, _headers in gateway.requests) == 1


def test_what_is_not_announced_in_a_bucket_is_listed_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_token(tmp_path, monkeypatch)
    with fake_gateway() as gateway:
        gateway.tokens = dict.fromkeys(gateway.tokens, "team")
        gateway.cluster = CLUSTER
        place = open_store(gateway.url, CLUSTER)
        publish(place, "g1")
        feed = feed_of(place, UID)
        assert feed.look() is not None
        gateway.requests.clear()
        for _ in range(5):
            assert feed.look() is not None
        assert len(gateway.requests) == 5, "one small read each"


class TestListings:
    def test_that_take_long_are_taken_by_all_who_wait_for_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_feed, "LOCAL_LISTING_SECONDS", 0.2)
        place, asked = open_store(str(tmp_path), CLUSTER), []

        def fail(namespace: str) -> tuple[StoreAddress, ...]:
            asked.append(namespace)
            time.sleep(0.4)
            raise StoreError("it is away")

        monkeypatch.setattr(place, "addresses_in", fail)
        listings = NamespaceListings(place)
        with ThreadPoolExecutor(5) as threads:
            waiting = [threads.submit(listings.find, "team", f"d{number}") for number in range(5)]
        assert {str(one.exception()) for one in waiting} == {"it is away"}
        assert asked == ["team"]

    @pytest.mark.parametrize(("takes", "after", "listings"), [(12.0, 9.0, 1), (12.0, 10.0, 2), (0.1, 9.0, 1)])
    def test_are_for_all_who_ask_within_some_seconds_of_their_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: float, after: float, listings: int
    ) -> None:
        """However long they take: of many datasets only some ask at a time."""
        place, asked, now = open_store(str(tmp_path), CLUSTER), [], [0.0]

        def take_long(namespace: str) -> tuple[StoreAddress, ...]:
            asked.append(namespace)
            now[0] += takes
            return ()

        monkeypatch.setattr(store_feed, "LOCAL_LISTING_SECONDS", 10.0)
        monkeypatch.setattr(store_feed, "time", SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(place, "addresses_in", take_long)
        found = NamespaceListings(place)
        found.find("team", "a")
        now[0] += after
        found.find("team", "b")
        assert len(asked) == listings

    def test_are_taken_by_who_asks_long_after_they_began_and_made_again_for_who_asks_behind_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_feed, "LOCAL_LISTING_SECONDS", 0)
        place, asked = open_store(str(tmp_path), CLUSTER), []
        goes_on, begun = threading.Event(), threading.Event()

        def wait(namespace: str) -> tuple[StoreAddress, ...]:
            asked.append(namespace)
            begun.set()
            assert goes_on.wait(20)
            return ()

        monkeypatch.setattr(place, "addresses_in", wait)
        listings = NamespaceListings(place)
        arrived = threading.Semaphore(0)

        def ask_for_time() -> float:
            """A caller asks for the time when it has arrived, so count it as arrived."""
            now = time.monotonic()
            arrived.release()
            return now

        with ThreadPoolExecutor(5) as threads:
            first = threads.submit(listings.find, "team", "d0")
            assert begun.wait(20)
            monkeypatch.setattr(store_feed, "time", SimpleNamespace(monotonic=ask_for_time))
            waiting = [threads.submit(listings.find, "team", f"d{number}") for number in range(1, 5)]
            for _ in waiting:
                assert arrived.acquire(timeout=20)
            goes_on.set()
            assert [one.result(20) for one in (first, *waiting)] == [[]] * 5
        assert asked == ["team"]
        listings.find("team", "d0")
        assert asked == ["team", "team"]
