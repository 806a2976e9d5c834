"""The list of live datasets, which the store's sweep must not remove."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from lookupdb.errors import UsageError
from lookupdb.store import StoreAddress, sweep
from lookupdb_operator.cluster.api import Refused
from lookupdb_operator.cluster.cache import ObjectCache
from lookupdb_operator.cluster.cluster import Cluster
from lookupdb_operator.model import Manifest, ObservedDataset
from lookupdb_operator.names import Kind
from lookupdb_operator.status import (
    BuildStatus,
    DatasetStatus,
    GenerationStatus,
    RefusedGeneration,
    RolloutStatus,
    TableStatus,
)
from lookupdb_operator.store import (
    MOST_RETAINED,
    REFRESH_SECONDS,
    LiveDatasetsWriter,
    find_retained,
    render_live_datasets,
)

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC).timestamp()
GENERATION = GenerationStatus("g4", "content", "print", 1, 1, 1, 1, (), "json", "2030-01-01T00:00:00Z")
REFUSED = RefusedGeneration("g1", "content", "print", 1, 1, 1, 1, (), "json", "2030-01-01T00:00:00Z")
STATUS = DatasetStatus(
    generation="g9",
    generations=(GENERATION,),
    rollouts=(RolloutStatus("r1", "g10", "template", "2030-01-01T00:00:00Z"),),
    table=TableStatus(1, "r1", "g11", 1, 1, "2030-01-01T00:00:00Z"),
    build=BuildStatus("g12", "content", "", "digest", "2030-01-01T00:00:00Z", active="g9"),
)


def dataset(name: str, **spec: int | str) -> ObservedDataset:
    return ObservedDataset("shop", name, f"0123abcd-of-{name}", "7", 1, spec, None, status=STATUS)


class FakeCache:
    def __init__(self, *datasets: ObservedDataset) -> None:
        self.by_key = {dataset.key: dataset for dataset in datasets}

    def datasets(self) -> Iterator[ObservedDataset]:
        yield from self.by_key.values()


class FakeCluster:
    def __init__(self) -> None:
        self.held: Manifest | None = None
        self.writes = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        assert (kind.name, namespace, name) == ("ConfigMap", "lookupdb", "living")
        return self.held

    async def apply(self, manifest: Manifest) -> Manifest:
        self.held = manifest
        self.writes += 1
        return manifest


def test_everything_that_serves_or_is_being_built_is_protected() -> None:
    assert STATUS.protected_generations() == {"g4", "g9", "g10", "g11", "g12"}
    assert DatasetStatus().protected_generations() == frozenset()


async def test_the_list_of_five_thousand_datasets_fits_into_a_config_map() -> None:
    cluster = FakeCluster()
    names = (f"customer-recommendations-{number:05d}" for number in range(5000))
    cache = cast("ObjectCache", FakeCache(*(dataset(name) for name in names)))
    writer = LiveDatasetsWriter(
        cache,
        cast("Cluster", cluster),
        namespace="lookupdb",
        name="living",
        cluster_id="c",
        namespaces=(),
        now=lambda: NOON,
    )
    await writer.write()
    assert len((cluster.held or {})["data"]["living.json"]) < 1_000_000, "a ConfigMap takes 1 MiB"


def test_the_document() -> None:
    told = render_live_datasets("cluster-uid", (), [dataset("airports", keepGenerations=5), dataset("rivers")], NOON)
    assert told == {
        "formatVersion": 1,
        "cluster": "cluster-uid",
        "writtenAt": "2030-01-01T12:00:00Z",
        "datasets": [
            {
                "namespace": "shop",
                "name": name,
                "uid": f"0123abcd-of-{name}",
                "keep": keep,
                "protect": ["g4", "g9", "g10", "g11", "g12"],
            }
            for name, keep in (("airports", 5), ("rivers", 3))
        ],
    }
    assert render_live_datasets("c", ("b", "a"), [], NOON)["namespaces"] == ["a", "b"], (
        "the rest must not be taken for dead"
    )


def test_a_dataset_with_a_store_of_its_own_is_named_as_others_are() -> None:
    """Otherwise a sweep would remove what is at its address: its own bucket may be the chart's."""
    shared = dataset("airports")
    own = replace(shared, spec={**shared.spec, "store": {"url": "s3://lookupdb"}})
    told = [render_live_datasets("c", (), [one], NOON)["datasets"] for one in (own, shared)]
    assert told[0] == told[1] != []


def test_the_sweep_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "living.json"
    file.write_bytes(
        orjson.dumps(render_live_datasets("cluster-uid", (), [dataset("airports", keepGenerations=5)], NOON))
    )
    live = sweep.read_live_list(file, "cluster-uid", NOON + REFRESH_SECONDS, 3600)
    (found,) = live.datasets.values()
    assert (found.address.namespace, found.address.name, found.keep) == ("shop", "airports", 5)
    assert found.protect == STATUS.protected_generations()
    assert live.namespaces is None
    with pytest.raises(UsageError, match=r"2\.0 hours ago"):
        sweep.read_live_list(file, "cluster-uid", NOON + 7200, 3600)
    file.write_bytes(orjson.dumps(render_live_datasets("cluster-uid", ("shop",), [], NOON)))
    assert sweep.read_live_list(file, "cluster-uid", NOON, 3600).namespaces == frozenset({"shop"})


async def test_it_is_written_when_it_changes_or_is_old_and_not_by_another_operator_that_starts() -> None:
    cluster, cache = FakeCluster(), FakeCache(dataset("airports"))
    now = NOON

    def new_writer() -> LiveDatasetsWriter:
        return LiveDatasetsWriter(
            cast(ObjectCache, cache),
            cast(Cluster, cluster),
            namespace="lookupdb",
            name="living",
            cluster_id="cluster-uid",
            namespaces=(),
            now=lambda: now,
        )

    first = new_writer()
    await first.write()
    await first.write()
    await new_writer().write()
    assert cluster.writes == 1
    cache.by_key.clear()
    await first.write()
    assert cluster.writes == 2
    assert orjson.loads((cluster.held or {})["data"]["living.json"])["datasets"] == []
    now += REFRESH_SECONDS - 1
    await first.write()
    assert cluster.writes == 2
    now += 1
    await new_writer().write()
    await first.write()
    assert cluster.writes == 4, "each knows what it has written itself"
    assert orjson.loads((cluster.held or {})["data"]["living.json"])["writtenAt"] == "2030-01-01T12:10:00Z"


def test_a_pinned_generation_is_protected_though_status_has_forgotten_it() -> None:
    (entry,) = render_live_datasets("c", (), [dataset("airports", generation="g3")], NOON)["datasets"]
    assert entry["protect"] == ["g3", "g4", "g9", "g10", "g11", "g12"]
    (entry,) = render_live_datasets("c", (), [dataset("airports", generation="no name")], NOON)["datasets"]
    assert "no name" not in entry["protect"], "the sweep refuses such a list"


@pytest.mark.parametrize("status", [STATUS, DatasetStatus()], ids=["known", "wiped or unreadable"])
def test_the_pin_of_a_number_yet_to_come_gives_nothing_up_to_the_sweep(status: DatasetStatus) -> None:
    """The sweep removes what is older than the newest protected generation, and nothing if none is protected: then
    nobody knows what serves."""
    pinned = replace(dataset("airports", generation="g999"), status=status)
    (entry,) = render_live_datasets("c", (), [pinned], NOON)["datasets"]
    assert set(entry["protect"]) == status.protected_generations()


class TestAdopted:
    """The list names the address that a dataset adopts as long as a builder may adopt it."""

    def entry(self, adopt: Any, status: DatasetStatus) -> dict[str, Any]:
        waiting = replace(dataset("airports"), spec={"adopt": adopt}, status=status)
        (entry,) = render_live_datasets("c", (), [waiting], NOON)["datasets"]
        return cast(dict[str, Any], entry)

    @pytest.mark.parametrize("uid", ["89abcdef", "89abcdef-0123-4567-89ab-cdef01234567"])
    @pytest.mark.parametrize(
        "status",
        [DatasetStatus(), DatasetStatus(build=STATUS.build), DatasetStatus(refused=REFUSED)],
        ids=["new or lost", "adopting", "refused"],
    )
    def test_the_sweep_spares_it(self, tmp_path: Path, uid: str, status: DatasetStatus) -> None:
        waiting = replace(dataset("airports"), spec={"adopt": {"uid": uid, "generation": "g7"}}, status=status)
        file = tmp_path / "living.json"
        file.write_bytes(orjson.dumps(render_live_datasets("c", (), [waiting], NOON)))
        live = sweep.read_live_list(file, "c", NOON, 3600)
        (found,) = live.datasets.values()
        assert found.predecessor == StoreAddress("c", "shop", "airports", "89abcdef")
        assert live.retained == frozenset(), "it gets no note"

    def test_nothing_when_the_dataset_has_a_generation(self) -> None:
        assert "adopt" not in self.entry({"uid": "89abcdef"}, STATUS)
        assert "adopt" not in self.entry({"uid": "89abcdef"}, DatasetStatus(generations=(GENERATION,)))

    @pytest.mark.parametrize("adopt", [None, {}, "89abcdef", {"uid": 7}, {"uid": ""}, {"uid": "../other"}])
    def test_nothing_that_the_sweep_would_refuse_the_list_for(self, adopt: Any) -> None:
        assert "adopt" not in self.entry(adopt, DatasetStatus())


def _listed(cluster: FakeCluster) -> dict[str, Any]:
    members: dict[str, Any] = orjson.loads((cluster.held or {})["data"]["living.json"])
    return members


class TestRetained:
    def writer(self, cluster: FakeCluster, cache: FakeCache) -> LiveDatasetsWriter:
        return LiveDatasetsWriter(
            cast(ObjectCache, cache),
            cast(Cluster, cluster),
            namespace="lookupdb",
            name="living",
            cluster_id="c",
            namespaces=(),
            now=lambda: NOON,
        )

    async def test_a_deleted_dataset_that_is_to_be_retained_stays_on_the_list(self) -> None:
        """Even if it was deleted while no operator ran."""
        cluster, cache = FakeCluster(), FakeCache(dataset("airports", deletionPolicy="Retain"), dataset("rivers"))
        await self.writer(cluster, cache).write()
        assert [entry.get("retain", False) for entry in _listed(cluster)["datasets"]] == [True, False]
        cache.by_key.clear()
        for _ in range(2):
            await self.writer(cluster, cache).write()
            assert _listed(cluster)["datasets"] == []
            assert _listed(cluster)["retained"] == [
                {"namespace": "shop", "name": "airports", "uid": "0123abcd-of-airports"}
            ]

    async def test_one_that_was_made_again_under_its_name_is_another_one(self) -> None:
        cluster, cache = FakeCluster(), FakeCache(dataset("airports", deletionPolicy="Retain"))
        writer = self.writer(cluster, cache)
        await writer.write()
        cache.by_key = {("shop", "airports"): replace(dataset("airports"), uid="4567abcd")}
        await writer.write()
        assert [entry["uid"] for entry in _listed(cluster)["datasets"]] == ["4567abcd"]
        assert [entry["uid"] for entry in _listed(cluster)["retained"]] == ["0123abcd-of-airports"]

    async def test_one_that_came_back_with_a_backup_lives(self) -> None:
        cluster, cache = FakeCluster(), FakeCache(dataset("airports", deletionPolicy="Retain"))
        writer = self.writer(cluster, cache)
        await writer.write()
        alive, cache.by_key = cache.by_key, {}
        await writer.write()
        cache.by_key = alive
        await writer.write()
        assert "retained" not in _listed(cluster)

    def test_the_list_of_them_is_bounded_and_the_oldest_are_dropped(self) -> None:
        before = [{"namespace": "shop", "name": f"d{i}", "uid": f"uid{i}"} for i in range(MOST_RETAINED)]
        last = {"namespace": "shop", "name": "last", "uid": "u", "keep": 3, "protect": [], "retain": True}
        found = find_retained({"retained": before, "datasets": [last]}, [])
        assert len(found) == MOST_RETAINED
        assert found[0] == before[1]
        assert found[-1] == {"namespace": "shop", "name": "last", "uid": "u"}

    def test_what_is_no_list_names_nobody(self) -> None:
        assert find_retained({"retained": "all", "datasets": [None, {"retain": True}]}, []) == []
        assert find_retained(None, []) == []

    def test_the_sweep_reads_it(self, tmp_path: Path) -> None:
        file = tmp_path / "living.json"
        gone = {"namespace": "shop", "name": "rivers", "uid": "89abcdef"}
        listed = render_live_datasets("c", (), [dataset("airports", deletionPolicy="Retain")], NOON, [gone])
        file.write_bytes(orjson.dumps(listed))
        live = sweep.read_live_list(file, "c", NOON, 3600)
        assert [found.retain for found in live.datasets.values()] == [True]
        assert [str(address) for address in live.retained] == ["shop/rivers"]


async def test_a_config_map_of_that_name_that_is_somebody_elses_stays_theirs() -> None:
    cluster, cache = FakeCluster(), FakeCache(dataset("airports"))
    cluster.held = {"metadata": {"name": "living", "labels": {"app": "mine"}}, "data": {"notes": "mine"}}
    writer = LiveDatasetsWriter(
        cast(ObjectCache, cache),
        cast(Cluster, cluster),
        namespace="lookupdb",
        name="living",
        cluster_id="cluster-uid",
        namespaces=(),
    )
    for _ in range(2):
        with pytest.raises(Refused, match="but did not create this one: delete it"):
            await writer.write()
    assert cluster.writes == 0
