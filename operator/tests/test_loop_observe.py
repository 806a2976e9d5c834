"""The cache of a dataset, and the requests that are made when something is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from lookupdb_operator import names
from lookupdb_operator.cluster.api import Unreachable
from lookupdb_operator.cluster.cache import ObjectCache
from lookupdb_operator.cluster.cluster import Cluster, WarningEvent
from lookupdb_operator.loop.observe import ImageVolumes, NamespaceWarnings, Observer, ReportsPending, RouterPolls
from lookupdb_operator.model import Observed, Predecessor, RouterReport, StoreAccess
from lookupdb_operator.plan import reasons

KEY = ("maps", "airports")
BORN = datetime(2026, 3, 1, 12, tzinfo=UTC)

Json = dict[str, Any]


def body(name: str, uid: str, *, version: int = 1, owner: tuple[str, str] | None = None, **members: Any) -> Json:
    """An object; ``owner`` is kind and uid."""
    meta: Json = {
        "name": name,
        "namespace": "maps",
        "uid": uid,
        "resourceVersion": str(version),
        "generation": 1,
        "creationTimestamp": "2026-03-01T12:00:00Z",
        "labels": names.labels("airports", "ds-1", members.pop("component", None)) | members.pop("labels", {}),
    }
    if owner:
        reference = {"kind": owner[0], "uid": owner[1], "name": members.pop("owner_name", "x"), "controller": True}
        meta["ownerReferences"] = [reference]
    return {"metadata": meta, **members}


def dataset(uid: str = "ds-1", version: int = 1) -> Json:
    made = body("airports", uid, version=version, spec={"source": {"url": "example://airports"}})
    del made["metadata"]["labels"]
    return made


def job(uid: str = "job-1", owner: str = "ds-1", version: int = 1) -> Json:
    return body("airports-g1-build", uid, version=version, owner=(names.KIND, owner))


def shard_set(uid: str = "set-1", replicas: int = 2) -> Json:
    labels = {names.ROLLOUT: "r1", names.SHARD: "0"}
    return body("airports-r1-s0", uid, owner=(names.KIND, "ds-1"), labels=labels, spec={"replicas": replicas})


def pod(name: str, uid: str, owner: tuple[str, str], component: str = names.SHARDS, **members: Any) -> Json:
    return body(name, uid, owner=owner, component=component, **members)


def cached(*objects: tuple[str, Json]) -> ObjectCache:
    cache = ObjectCache()
    for kind, one in objects:
        cache.put(kind, one)
    return cache


def of(cache: ObjectCache) -> Observed:
    observed = cache.observed(KEY)
    assert observed is not None
    return observed


def test_nothing_is_observed_of_what_is_not_there() -> None:
    cache = cached(("Job", job()))
    assert cache.observed(KEY) is None
    assert not cache.dataset_keys()


def test_all_that_belongs_to_a_dataset() -> None:
    cache = cached(
        ("LookupDataset", dataset()),
        ("Service", body("airports-r1", "svc-1", owner=(names.KIND, "ds-1"))),
        ("Job", job()),
        ("StatefulSet", shard_set()),
        ("Pod", pod("airports-r1-s0-1", "pod-2", ("StatefulSet", "set-1"))),
        ("Pod", pod("airports-r1-s0-0", "pod-1", ("StatefulSet", "set-1"))),
    )
    observed = of(cache)
    assert list(cache.dataset_keys()) == [KEY]
    assert observed.dataset.uid == "ds-1"
    assert [one.ref.uid for one in observed.jobs] == ["job-1"]
    assert [one.ref.uid for one in observed.shard_sets] == ["set-1"]
    assert [one.uid for one in observed.pods] == ["pod-1", "pod-2"]
    assert [one.ref.kind for one in observed.other_objects] == ["Service"]


def test_a_server_outlives_its_stateful_set_for_as_long_as_it_takes_to_end() -> None:
    """Its room is taken until then: a shard-by-shard rollout has none to spare."""
    server = pod("airports-r1-s0-0", "pod-1", ("StatefulSet", "set-1"), owner_name="airports-r1-s0")
    cache = cached(("LookupDataset", dataset()), ("StatefulSet", shard_set()), ("Pod", server))
    cache.drop("StatefulSet", "maps", "airports-r1-s0", "set-1", "9")
    assert (of(cache).shard_sets, [one.uid for one in of(cache).pods]) == ((), ["pod-1"])

    cache.put("StatefulSet", shard_set("set-2"))
    assert of(cache).pods == (), "another StatefulSet of the name makes its own"
    cache.drop("StatefulSet", "maps", "airports-r1-s0", "set-2", "10")
    assert cache.drop("Pod", "maps", "airports-r1-s0-0", "pod-1", "11") == KEY
    assert of(cache).pods == ()


@pytest.mark.parametrize(
    ("labels", "owner"),
    [({names.DATASET_UID: "ds-0"}, "airports-r1-s0"), ({}, "lights-r1-s0")],
    ids=["of a predecessor", "of another StatefulSet"],
)
def test_servers_of_others_are_not_taken_for_ones_that_outlived_theirs(labels: dict[str, str], owner: str) -> None:
    server = pod("airports-r1-s0-0", "pod-1", ("StatefulSet", "set-1"), owner_name=owner, labels=labels)
    assert of(cached(("LookupDataset", dataset()), ("Pod", server))).pods == ()


def test_what_another_of_the_same_name_had_is_not_its() -> None:
    cache = cached(
        ("LookupDataset", dataset("ds-2")),
        ("Job", job(owner="ds-1")),
        ("Pod", pod("airports-g1-build-x", "pod-1", ("Job", "job-1"))),
        ("ConfigMap", body("airports-mine", "cm-1")),
    )
    observed = of(cache)
    assert (observed.jobs, observed.pods, observed.other_objects) == ((), (), ())


def test_what_a_predecessor_left_is_reported_until_it_is_gone() -> None:
    labels = {names.DATASET_UID: "ds-0"}
    collected = body("airports-r1-s0", "set-0", owner=(names.KIND, "ds-0"), labels=labels, spec={"replicas": 1})
    orphaned = body("airports-r1", "svc-0", labels=labels)
    left_pod = pod("airports-r1-s0-0", "pod-0", ("StatefulSet", "set-0"), labels=labels)
    of_the_user = body("airports-mine", "cm-1")
    del of_the_user["metadata"]["labels"][names.DATASET_UID]
    cache = cached(
        ("LookupDataset", dataset()),
        ("StatefulSet", collected),
        ("Service", orphaned),
        ("Pod", left_pod),
        ("ConfigMap", of_the_user),
        ("Job", job()),
    )
    assert of(cache).predecessors == (
        Predecessor("Service", "airports-r1", "ds-0", orphaned=True),
        Predecessor("StatefulSet", "airports-r1-s0", "ds-0"),
    )
    cache.drop("Service", "maps", "airports-r1", "svc-0")
    cache.drop("StatefulSet", "maps", "airports-r1-s0", "set-0")
    assert of(cache).predecessors == ()
    assert [one.ref.uid for one in of(cache).jobs] == ["job-1"]


def test_router_pods_of_a_predecessor_are_not_ours_though_their_replica_set_has_our_name() -> None:
    labels = {names.DATASET_UID: "ds-0"}
    left = pod(
        "airports-router-1-a",
        "pod-0",
        ("ReplicaSet", "rs-0"),
        names.ROUTER,
        owner_name="airports-router-1",
        labels=labels,
    )
    assert of(cached(("LookupDataset", dataset()), ("Pod", left))).pods == ()


def test_router_pods_are_known_by_their_replica_set() -> None:
    ours = pod("airports-router-1-a", "pod-1", ("ReplicaSet", "rs-1"), names.ROUTER, owner_name="airports-router-1")
    other = pod("other-1-a", "pod-2", ("ReplicaSet", "rs-2"), names.ROUTER, owner_name="other-1")
    assert [one.uid for one in of(cached(("LookupDataset", dataset()), ("Pod", ours), ("Pod", other))).pods] == [
        "pod-1"
    ]


def test_executors_of_spark_are_known_by_their_driver() -> None:
    owner = ("Pod", "driver-1")
    ours = pod("airports-g1-build-a-exec-1", "pod-1", owner, names.EXECUTOR, owner_name="airports-g1-build-a")
    other = pod("other-g1-build-a-exec-1", "pod-2", owner, names.EXECUTOR, owner_name="other-g1-build-a")
    assert [one.uid for one in of(cached(("LookupDataset", dataset()), ("Pod", ours), ("Pod", other))).pods] == [
        "pod-1"
    ]


def test_putting_tells_which_dataset_to_look_at() -> None:
    cache = ObjectCache()
    assert cache.put("LookupDataset", dataset()) == KEY
    assert cache.put("Job", job()) == KEY
    assert cache.put("Job", job()) is None, "nothing new"
    done = job(version=3) | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert cache.put("Job", done) == KEY
    assert cache.put("Job", job(version=2)) is None, "older than what is cached"
    done["metadata"]["resourceVersion"] = "4"
    assert cache.put("Job", done) is None, "a version in which nothing differs that is decided by"
    strange = body("x", "u")
    del strange["metadata"]["labels"]
    assert cache.put("Job", strange) is None


def test_another_object_of_the_same_name_replaces_it_whatever_its_version() -> None:
    cache = cached(("LookupDataset", dataset()), ("Job", job(version=9)))
    assert cache.put("Job", job("job-2", version=2)) == KEY
    assert [one.ref.uid for one in of(cache).jobs] == ["job-2"]


def test_what_is_gone_stays_gone() -> None:
    cache = cached(("LookupDataset", dataset()), ("Job", job()))
    assert cache.drop("Job", "maps", "airports-g1-build", "job-1") == KEY
    assert cache.put("Job", job(version=2)) is None, "an answer that came late"
    assert of(cache).jobs == ()
    assert cache.put("Job", job("job-2")) == KEY
    assert cache.drop("Job", "maps", "airports-g1-build", "job-1") is None, "another one is there by now"
    assert cache.drop("Job", "maps", "airports-g1-build") == KEY
    assert cache.drop("Job", "maps", "airports-g1-build") is None


def test_an_object_whose_label_was_taken_away_and_given_back_is_there_again() -> None:
    """A watch by label reports the removal of the label as a deletion, with that change's version."""
    cache = cached(("LookupDataset", dataset()), ("Job", job()))
    assert cache.drop("Job", "maps", "airports-g1-build", "job-1", "5") == KEY
    assert cache.put("Job", job(version=4)) is None, "an answer that came late"
    assert cache.put("Job", job(version=5)) is None, "the version that was deleted"
    assert cache.put("Job", job(version=6)) == KEY
    assert [one.ref.uid for one in of(cache).jobs] == ["job-1"]
    assert cache.put("Job", job(version=7)) is None, "it is as it was"


def test_a_dataset_that_is_gone() -> None:
    cache = cached(("LookupDataset", dataset()), ("Job", job()))
    assert cache.drop("LookupDataset", "maps", "airports", "ds-1") == KEY
    assert cache.observed(KEY) is None
    assert not cache.dataset_keys()


def test_an_object_whose_label_is_taken_away_is_let_go() -> None:
    cache = cached(("LookupDataset", dataset()), ("Job", job()))
    moved = job(version=2)
    moved["metadata"]["labels"] = {}
    cache.put("Job", moved)
    assert of(cache).jobs == ()


def test_an_object_whose_label_is_changed_moves() -> None:
    cache = cached(("LookupDataset", dataset()), ("Job", job()))
    moved = job(version=2)
    moved["metadata"]["labels"] = {names.DATASET: "other"}
    assert cache.put("Job", moved) == ("maps", "other")
    assert of(cache).jobs == ()


class Asked:
    """A cluster with prepared answers."""

    def __init__(self, warnings: Mapping[str, WarningEvent] | None = None) -> None:
        self.warned = warnings
        self.asked = 0
        self.ips: list[str] = []

    async def list_warnings(self, namespace: str) -> Mapping[str, WarningEvent]:
        assert namespace == "maps"
        self.asked += 1
        if self.warned is None:
            raise Unreachable("events", "no answer")
        return self.warned

    async def ask_router(self, ip: str, dataset_uid: str) -> RouterReport:
        assert dataset_uid == "ds-1"
        self.ips.append(ip)
        return RouterReport(7)


async def observe(cache: ObjectCache, asked: Asked, *, seconds: float = 60, ask_routers: bool = False) -> Observed:
    polled = asyncio.Event()
    polls = RouterPolls(cast(Cluster, asked), lambda key: polled.set())
    observer = Observer(cache, cast(Cluster, asked), polls, lambda: BORN + timedelta(seconds=seconds))

    async def look() -> Observed | None:
        store = StoreAccess(digest="d")
        return await observer.observe(KEY, ask_routers=ask_routers, refusals={("Job", "x"): "no"}, store=store)

    try:
        observed = await look()
    except ReportsPending:
        await asyncio.wait_for(polled.wait(), 60)
        observed = await look()
    assert observed is not None
    assert observed.refusals == {("Job", "x"): "no"}
    assert observed.store.digest == "d"
    return observed


QUOTA = WarningEvent("FailedCreate", 'Error creating: pods "x" is forbidden: exceeded quota: q')
MOUNT = WarningEvent("FailedMount", 'MountVolume.SetUp failed for volume "source" : configmap "mine" not found')


async def test_a_job_without_a_pod_is_explained_by_events() -> None:
    cache = cached(("LookupDataset", dataset()), ("Job", job()))
    asked = Asked({"job-1": QUOTA})
    observed = await observe(cache, asked)
    assert asked.asked == 1
    assert observed.jobs[0].failure is not None
    assert observed.jobs[0].failure.reason == reasons.QUOTA_EXCEEDED


async def test_servers_that_are_not_made_are_explained_by_events() -> None:
    made = pod("airports-r1-s0-0", "pod-1", ("StatefulSet", "set-1"), status={"phase": "Running"})
    cache = cached(("LookupDataset", dataset()), ("StatefulSet", shard_set()), ("Pod", made))
    asked = Asked({"set-1": QUOTA})
    observed = await observe(cache, asked)
    assert asked.asked == 1
    assert observed.shard_sets[0].trouble is not None
    assert observed.shard_sets[0].trouble.reason == reasons.QUOTA_EXCEEDED


async def test_a_pod_that_waits_in_silence_is_explained_by_events() -> None:
    waiting = pod("airports-g1-build-x", "pod-1", ("Job", "job-1"), names.BUILDER, status={"phase": "Pending"})
    asked = Asked({"pod-1": MOUNT})
    observed = await observe(cached(("LookupDataset", dataset()), ("Job", job()), ("Pod", waiting)), asked)
    assert asked.asked == 1
    assert observed.pods[0].trouble is not None
    assert observed.pods[0].trouble.reason == reasons.VOLUME_MISSING


@pytest.mark.parametrize("seconds", [0, 4])
async def test_what_is_young_is_not_asked_about(seconds: float) -> None:
    asked = Asked({})
    await observe(cached(("LookupDataset", dataset()), ("Job", job())), asked, seconds=seconds)
    assert asked.asked == 0


async def test_what_gets_on_is_not_asked_about() -> None:
    running = {"phase": "Running"}
    cache = cached(
        ("LookupDataset", dataset()),
        ("Job", job()),
        ("Pod", pod("airports-g1-build-x", "pod-0", ("Job", "job-1"), names.BUILDER, status=running)),
        ("StatefulSet", shard_set(replicas=1)),
        ("Pod", pod("airports-r1-s0-0", "pod-1", ("StatefulSet", "set-1"), status=running)),
    )
    asked = Asked()
    await observe(cache, asked, ask_routers=True)
    assert (asked.asked, asked.ips) == (0, [])


async def test_events_that_cannot_be_read_stop_nothing() -> None:
    observed = await observe(cached(("LookupDataset", dataset()), ("Job", job())), Asked())
    assert observed.jobs[0].failure is None


async def test_routers_are_asked_when_they_are_to_be() -> None:
    def router(number: int, status: Json, **meta: Any) -> tuple[str, Json]:
        made = pod(f"a-{number}", f"pod-{number}", ("ReplicaSet", "r"), names.ROUTER, owner_name="airports-router-1")
        return "Pod", made | {"status": status, "metadata": made["metadata"] | meta}

    cache = cached(
        ("LookupDataset", dataset()),
        router(1, {"phase": "Running", "podIP": "10.0.0.1"}),
        router(2, {"phase": "Running", "podIP": "10.0.0.2"}, deletionTimestamp="2026-03-01T12:00:00Z"),
        router(3, {"phase": "Failed", "podIP": "10.0.0.3", "reason": "Evicted"}),
        router(4, {"phase": "Running"}),
    )
    asked = Asked({})
    assert (await observe(cache, asked)).routers == {}
    assert (await observe(cache, asked, ask_routers=True)).routers == {"pod-1": RouterReport(7)}
    assert asked.ips == ["10.0.0.1"]


async def test_a_dataset_that_is_not_there_is_not_observed() -> None:
    asked = Asked()
    polls = RouterPolls(cast(Cluster, asked), lambda key: None)
    assert await Observer(ObjectCache(), cast(Cluster, asked), polls).observe(KEY, ask_routers=True) is None


async def test_the_events_of_a_namespace_are_read_once_for_all_that_wait() -> None:
    now = [BORN]
    asked = Asked({"job-1": QUOTA})
    warnings = NamespaceWarnings(cast(Cluster, asked), lambda: now[0])
    assert await asyncio.gather(*(warnings.read_latest("maps") for _ in range(50))) == [{"job-1": QUOTA}] * 50
    assert asked.asked == 1
    now[0] += timedelta(seconds=5)
    await warnings.read_latest("maps")
    assert asked.asked == 2


class _Probed:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.keeps: bool | None = False

    async def keeps_image_volumes(self, namespace: str) -> bool | None:
        self.asked.append(namespace)
        await asyncio.sleep(0)
        return None if namespace == "refusing" else self.keeps


async def test_whether_there_are_image_volumes_is_asked_once_in_a_while() -> None:
    probed, now = _Probed(), BORN
    images = ImageVolumes(cast(Cluster, probed), lambda: now)
    assert [await images.are_kept("maps"), await images.are_kept("other")] == [False, False]
    assert probed.asked == ["maps"], "it is the same everywhere"
    probed.keeps, now = True, BORN + timedelta(minutes=5)
    assert await images.are_kept("other")


async def test_nobody_goes_on_before_it_is_known_whether_there_are_image_volumes() -> None:
    probed = _Probed()
    images = ImageVolumes(cast(Cluster, probed), lambda: BORN)
    assert await asyncio.gather(*(images.are_kept(f"maps-{number}") for number in range(5))) == [False] * 5
    assert len(probed.asked) == 1


async def test_a_namespace_that_refuses_for_another_reason_says_nothing_of_others() -> None:
    probed, now = _Probed(), BORN
    images = ImageVolumes(cast(Cluster, probed), lambda: now)
    assert await images.are_kept("refusing"), "it is not known: the StatefulSets would be refused as well"
    assert not await images.are_kept("maps")
    assert not await images.are_kept("refusing")
    assert probed.asked == ["refusing", "maps"]
    now += timedelta(minutes=5)
    assert not await images.are_kept("refusing"), "the last answer stays until there is another one"
    assert not await images.are_kept("maps")
    assert probed.asked == ["refusing", "maps"] * 2


@pytest.mark.parametrize("delivery", ["Fetch", "Image"])
async def test_image_volumes_are_asked_for_where_a_dataset_needs_them(delivery: str) -> None:
    made = dataset()
    image = {"image": {"repository": "r.example/lookups"}} if delivery == "Image" else {}
    made["spec"] |= {"key": {"columns": ["id"]}, "serving": {"delivery": {"type": delivery, **image}}}
    probed = _Probed()
    polls = RouterPolls(cast(Cluster, probed), lambda key: None)
    observed = await Observer(cached(("LookupDataset", made)), cast(Cluster, probed), polls).observe(KEY)
    assert observed is not None
    assert observed.lacks_image_volumes == (delivery == "Image") == bool(probed.asked)


async def test_a_push_without_its_pod_is_explained_by_events() -> None:
    push = body("airports-r1-push", "push-1", owner=(names.KIND, "ds-1"), component=names.PUSHER)
    observed = await observe(cached(("LookupDataset", dataset()), ("Job", push)), Asked({"push-1": QUOTA}))
    assert observed.jobs == ()
    (other,) = observed.other_objects
    assert other.trouble is not None
    assert other.trouble.reason == reasons.QUOTA_EXCEEDED
    assert "spec.serving.resources" in other.trouble.message, "they are no builder's"


@pytest.mark.parametrize(("ended", "reason"), [("Complete", ""), ("Failed", reasons.PUSH_FAILED)])
async def test_a_push_that_has_ended_is_not_explained_by_events_of_before(ended: str, reason: str) -> None:
    push = body("airports-r1-push", "push-1", owner=(names.KIND, "ds-1"), component=names.PUSHER)
    push["status"] = {"conditions": [{"type": ended, "status": "True"}]}
    stuck = body("airports-r2-push", "push-2", owner=(names.KIND, "ds-1"), component=names.PUSHER)
    known = cached(("LookupDataset", dataset()), ("Job", push), ("Job", stuck))
    observed = await observe(known, Asked({"push-1": QUOTA, "push-2": QUOTA}))
    found = {other.ref.name: other.trouble.reason if other.trouble else "" for other in observed.other_objects}
    assert found == {"airports-r1-push": reason, "airports-r2-push": reasons.QUOTA_EXCEEDED}
