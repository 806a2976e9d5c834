"""Two builders of one generation in a bucket: the first stands still at any request, the second takes over, and the
first wakes. It publishes nothing then, and damages nothing; and a builder that is alive is not taken for dead.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator

import pytest
from support.faults import Fault, Request
from support.generations import in_batches, manifest, publish, records, write
from support.sites import Site, attempt, site, site_servers
from support.waiting import until

from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import LookupdbError, StoreError
from lookupdb.manifest import FILE_NAME
from lookupdb.shardfile import ShardReader
from lookupdb.store import StoreAddress
from lookupdb.store.bucket import Bucket, ObjectState
from lookupdb.store.bucket_dataset import CLAIM, BucketDataset, Lease
from lookupdb.store.objects import PutMode

pytestmark = pytest.mark.long

__all__ = ["site", "site_servers"]


class Pause:
    """Lets the request with a number wait, and everything after it of the one who sent it."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.is_reached = threading.Event()
        self._go = threading.Event()

    def __call__(self, number: int, _request: Request) -> None:
        if number == self._number:
            self.is_reached.set()
            assert self._go.wait(60)

    def end(self) -> None:
        self._go.set()


@contextlib.contextmanager
def standing_still(site: Site, spec: DatasetSpec, number: int, *, is_done: bool) -> Iterator[dict[str, str]]:
    """While a build of g1 stands still at a request, before or after its effect; then its outcome."""
    outcome: dict[str, str] = {}
    front, pause = site.front(), Pause(number)
    site.proxy.reset()
    site.proxy.set_hooks(before=None if is_done else pause, after=pause if is_done else None)

    def build() -> None:
        try:
            outcome["outcome"] = site.build(spec, front)
        except LookupdbError as error:
            outcome["error"] = str(error)

    thread = threading.Thread(target=build)
    thread.start()
    try:
        until(lambda: pause.is_reached.is_set() or not thread.is_alive(), "the first builder stands still")
        assert pause.is_reached.is_set()
        yield outcome
    finally:
        pause.end()
        thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("is_done", [False, True], ids=["before its effect", "after its effect"])
def test_a_builder_that_wakes_after_another_took_over(site: Site, is_done: bool) -> None:
    counted = site.next()
    site.source("of the first")
    front = site.front()
    site.build(counted, front)
    requests = list(site.proxy.requests)
    second_built = 0
    for number in range(len(requests)):
        spec = site.next()
        first = site.source("of the first")
        with standing_still(site, spec, number, is_done=is_done) as outcome:
            second = site.source("of the second")
            result = site.build(spec, site.direct)
            second_built += result == "built"
            content = second if result == "built" else first
            site.check(spec, "g1", content)
            before = site.direct.read(f"{site.dataset(spec).address.path}/g1/{FILE_NAME}")
        assert site.direct.read(f"{site.dataset(spec).address.path}/g1/{FILE_NAME}") == before, requests[number]
        site.check(spec, "g1", content)
        said = outcome.get("outcome")
        assert said != "built" or content == first, "the first does not say that it built what the second did"
        shards = site.dataset(spec).manifest("g1").shards
        names = set(site.direct.files(f"{site.dataset(spec).address.path}/g1"))
        assert names - {CLAIM} == {FILE_NAME, *(shard.file for shard in shards)}, "nothing else is left"
    assert 5 <= second_built < len(requests), "it takes over until the first has decided"


@pytest.mark.parametrize("fault", [Fault.LOSE, Fault.ERROR, Fault.DROP, Fault.TWICE, Fault.LATE])
def test_a_living_builders_claim_survives_what_happens_to_heartbeats(site: Site, fault: Fault) -> None:
    content = {f"{number}": b"value" for number in range(20)}
    spec = site.next()
    beats: list[Request] = []

    def is_third_beat(_number: int, request: Request) -> bool:
        if request.method == "PUT" and request.path.endswith(CLAIM):
            beats.append(request)
            return len(beats) % 3 == 0
        return False

    with site.dataset(spec, site.front(heartbeat=0.02)).claim("g1", site.scratch()) as claim:
        site.proxy.fail(fault, is_third_beat)
        until(lambda: len(beats) > 12, "heartbeats")
        site.proxy.calm()
        files, totals = write(claim.folder, in_batches(records(content)), shards=2)
        claim.publish(manifest("g1", files, totals))
    site.proxy.reset()
    site.check(spec, "g1", {key.encode(): value for key, value in content.items()})


def test_a_release_that_comes_late_leaves_the_next_builders_claim_alone(site: Site) -> None:
    spec = site.next()
    dataset, front = site.dataset(spec), site.dataset(spec, site.front())
    path = f"{dataset.address.path}/g1/{CLAIM}"
    claim = front.claim("g1", site.scratch())
    with dataset.claim("g1", site.scratch()):  # the first stood still
        standing = site.direct.read(path).body
        claim.release()
        assert site.direct.read(path).body == standing
    assert site.direct.read(path).body is None


def test_what_obstore_tries_again_and_is_refused_is_known_to_be_done(site: Site) -> None:
    """The second try of a conditional put meets the effect of the first."""
    content, front = site.source("first"), site.front(retries=2)
    spec = site.next()
    site.build(spec, front)
    for number, request in enumerate(list(site.proxy.requests)):
        if request.method == "PUT":
            spec = site.next()
            site.proxy.fail(Fault.LOSE, lambda count, _request, number=number: count == number)  # type: ignore[misc]
            assert site.build(spec, front) == "built", request
            site.check(spec, "g1", content)


def test_the_end_of_a_large_upload_may_be_lost(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard is there when the answer to its completion is lost, and so is the upload."""
    monkeypatch.setattr("lookupdb.store.bucket.PART_BYTES", 5 << 20)
    bucket = site.front()
    dataset = BucketDataset(bucket, StoreAddress("local", "default", "large", "local"))
    completions = []

    def is_completion(_number: int, request: Request) -> bool:
        completions.append(request.method == "POST" and "uploadId=" in request.path)
        return completions[-1] and sum(completions) == 1

    site.proxy.fail(Fault.LOSE, is_completion)
    value = random.Random(7).randbytes(1 << 20)
    made = publish(dataset, "g1", {f"key-{number}": value[number:] for number in range(7)}, site.scratch(), shards=1)
    assert sum(completions) >= 1
    assert dataset.generations() == ("g1",)
    with dataset.shard("g1", made.shards[0], site.scratch()) as path, ShardReader(path) as shard:
        assert shard.meta.records == 7


def test_a_store_that_lost_a_shard_while_it_was_published_is_seen(site: Site) -> None:
    spec = site.next()
    front = site.front()

    def lose(_number: int, request: Request) -> None:
        if request.method == "PUT" and "shard-00001" in request.path:
            site.direct.objects.delete([request.path.partition("/some/prefix/")[2]])

    site.proxy.set_hooks(after=lose)
    with pytest.raises(
        StoreError, match=r"the store has lost what was put .* shard-00001-of-00002-\w+\.lmdb is missing"
    ):
        site.build(spec, front)
    assert site.dataset(spec).published_generations() == ()


def test_a_damaged_generation_is_neither_adopted_nor_built_over(site: Site) -> None:
    spec = site.next()
    site.build(spec, site.direct)
    dataset = site.dataset(spec)
    shard = dataset.manifest("g1").shards[1]
    site.direct.objects.put(f"{dataset.address.path}/g1/{shard.file}", b"shorter")
    assert (dataset.generations(), tuple(dataset.take_inventory().damaged)) == ((), ("g1",))
    with pytest.raises(
        StoreError, match=r"g1 of default/people-\d+ .* is damaged: shard-00001-\S+ is 7 bytes long instead"
    ):
        site.build(spec, site.direct)
    assert site.build(spec, site.direct, None) == "built"
    assert dataset.generations() == ("g2",)


def test_what_a_manifest_that_comes_after_its_removal_describes_is_not_whole(site: Site) -> None:
    spec = site.next()
    site.build(spec, site.direct)
    dataset = site.dataset(spec)
    content = dataset.manifest("g1").to_json()
    dataset.remove("g1")
    site.direct.objects.put(f"{dataset.address.path}/g1/{FILE_NAME}", content)
    assert (dataset.generations(), tuple(dataset.take_inventory().damaged)) == ((), ("g1",))


@pytest.mark.parametrize("reads", [0, 1, 2])
def test_a_decision_that_another_completed_is_kept_by_a_builder_that_cannot_read_what_stands(
    site: Site, reads: int
) -> None:
    """The answer to the decision is lost, another builder completes it and takes the claim away, and reads fail."""
    spec, content = site.next(), site.source("first")
    decisions: list[int] = []

    def is_decision(_number: int, request: Request) -> bool:
        return not decisions and request.path.endswith(CLAIM) and rb"\"shards\"" in request.body

    def complete(number: int, request: Request) -> None:
        if is_decision(number, request):
            decisions.append(number)
            assert site.build(spec, site.direct) == "adopted"
            site.proxy.fail(Fault.DROP, lambda count, _request: count == number + 1 + reads)

    front = site.front()
    site.proxy.set_hooks(after=complete)
    site.proxy.fail(Fault.LOSE, is_decision)
    attempt(lambda: site.build(spec, front))
    assert decisions
    site.proxy.reset()
    site.check(spec, "g1", content)


def test_a_claim_that_was_dead_is_watched_if_it_has_changed_since(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder that found it dead may be slow, and another builder may have claimed it meanwhile."""
    dataset = site.dataset(site.next())
    look = dataset._find_abandoned_claim
    watched: list[bytes | None] = []

    def slow_look(prefix: str, dead_seconds: float) -> str | None:
        found = look(prefix, dead_seconds)
        site.direct.objects.put(f"{prefix}/{CLAIM}", b'{"owner": "another"}')
        return found

    def watch(_lease: Lease, first: ObjectState) -> None:
        watched.append(first.body)
        raise StoreError("it is being built")

    site.direct.objects.put(f"{dataset.address.path}/g1/{CLAIM}", b'{"owner": "dead"}')
    monkeypatch.setattr(dataset, "_find_abandoned_claim", slow_look)
    monkeypatch.setattr(Lease, "_await_expiry", watch)
    with pytest.raises(StoreError, match="it is being built"):
        dataset.claim("g1", site.scratch(), dead_seconds=-1)
    assert watched == [b'{"owner": "another"}']
    assert site.direct.read(f"{dataset.address.path}/g1/{CLAIM}").body == b'{"owner": "another"}'


def test_a_claim_that_is_not_known_to_be_dead_is_watched(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = site.dataset(site.next())
    watched: list[bytes | None] = []
    monkeypatch.setattr(Lease, "_await_expiry", lambda _lease, first: watched.append(first.body))
    site.direct.objects.put(f"{dataset.address.path}/g1/{CLAIM}", b'{"owner": "x"}')
    dataset.claim("g1", site.scratch(), dead_seconds=3600).release()
    site.direct.objects.put(f"{dataset.address.path}/g1/{CLAIM}", b'{"owner": "x"}')
    dataset.claim("g1", site.scratch()).release()
    assert watched == [b'{"owner": "x"}'] * 2


def test_a_claim_that_is_given_up_while_another_is_made_is_in_nobodys_way(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = site.dataset(site.next())
    path = f"{dataset.address.path}/g1/{CLAIM}"
    put_if = type(dataset.bucket).put_if

    def give_up_then(bucket: Bucket, at: str, body: bytes, mode: PutMode) -> ObjectState:
        monkeypatch.undo()
        standing = put_if(bucket, at, body, mode)
        assert standing.body == b'{"owner": "another"}'
        bucket.objects.delete([at])
        return ObjectState(None, {}, standing.error)

    site.direct.objects.put(path, b'{"owner": "another"}')
    monkeypatch.setattr(type(dataset.bucket), "put_if", give_up_then)
    monkeypatch.setattr(dataset.bucket, "patience", 0.0)
    with dataset.claim("g1", site.scratch()):
        assert b"another" not in (site.direct.read(path).body or b"")
