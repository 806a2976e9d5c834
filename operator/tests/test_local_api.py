"""The API server of `lookupdb up`: objects in memory and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lookupdb_operator import names
from lookupdb_operator.cluster.api import (
    APPLY_PATCH,
    MERGE_PATCH,
    AlreadyExists,
    Conflict,
    NotFound,
    Refused,
)
from lookupdb_operator.local.api import LocalApi

Json = dict[str, Any]

PEOPLE: Json = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "metadata": {"namespace": "default", "name": "people"},
    "spec": {"source": {"url": "people.csv"}, "key": {"columns": ["email"]}},
}
DATASETS = names.DATASET_KIND.path("default")
ONE = names.DATASET_KIND.path("default", "people")


@pytest.fixture
def api(tmp_path: Path) -> LocalApi:
    return started(tmp_path)


def started(folder: Path) -> LocalApi:
    """An API server that goes on with the objects in ``folder``."""
    api = LocalApi()
    api.add_folder("default", "people", folder / "objects")
    return api


def child(name: str, **spec: Any) -> Json:
    """A StatefulSet of people."""
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "people", "uid": "local", "controller": True}
    meta = {"namespace": "default", "name": name, "labels": {names.DATASET: "people"}, "ownerReferences": [owner]}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": {"replicas": 1, **spec}}


async def create(api: LocalApi) -> Json:
    made: Json = await api.request("POST", DATASETS, subject="people", body=PEOPLE)
    return made


async def apply(api: LocalApi, manifest: Json, manager: str = names.FIELD_MANAGER) -> Json:
    path = names.STATEFUL_SET.path("default", manifest["metadata"]["name"])
    query = {"fieldManager": manager, "force": "true"}
    answer: Json = await api.request("PATCH", path, subject="it", query=query, body=manifest, content_type=APPLY_PATCH)
    return answer


async def test_what_was_written_is_there_after_a_restart_and_versions_grow_on(api: LocalApi, tmp_path: Path) -> None:
    made = await create(api)
    api.put_status(made, {"generation": "g1"})
    again = started(tmp_path)
    found = again.get(names.DATASET_KIND, "default", "people")
    assert found is not None
    assert found["status"] == {"generation": "g1"}
    changed = await again.request("PATCH", ONE, subject="it", body={"metadata": {"annotations": {"a": "1"}}})
    assert int(changed["metadata"]["resourceVersion"]) > int(found["metadata"]["resourceVersion"])


async def test_only_a_change_of_the_spec_is_another_generation(api: LocalApi) -> None:
    made = await create(api)
    noted = await api.request("PATCH", ONE, subject="it", body={"metadata": {"annotations": {"a": "1"}}})
    changed = await api.request("PATCH", ONE, subject="it", body={"spec": {"shards": 2}}, content_type=MERGE_PATCH)
    assert [item["metadata"]["generation"] for item in (made, noted, changed)] == [1, 1, 2]


async def test_a_status_is_written_only_over_the_version_that_was_read(api: LocalApi) -> None:
    made = await create(api)
    body = {**made, "status": {"generation": "g1"}}
    await api.request("PUT", f"{ONE}/status", subject="it", body=body)
    with pytest.raises(Conflict):
        await api.request("PUT", f"{ONE}/status", subject="it", body=body)


async def test_a_dataset_is_validated_and_made_once(api: LocalApi) -> None:
    with pytest.raises(Refused, match=r"spec\.shards"):
        await api.request("POST", DATASETS, subject="it", body={**PEOPLE, "spec": {**PEOPLE["spec"], "shards": 0}})
    await create(api)
    with pytest.raises(AlreadyExists):
        await create(api)


async def test_what_the_operator_leaves_out_of_an_apply_is_removed_and_what_a_scale_leaves_out_stays(
    api: LocalApi,
) -> None:
    await create(api)
    await apply(api, child("people-r1-s0", serviceName="people-r1"))
    scale = {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {"replicas": 3}}
    scaled = await apply(api, {**scale, "metadata": {"namespace": "default", "name": "people-r1-s0"}}, "other")
    assert scaled["spec"] == {"replicas": 3, "serviceName": "people-r1"}
    whole = await apply(api, child("people-r1-s0"))
    assert whole["spec"] == {"replicas": 1}


async def test_what_a_deleted_object_owned_goes_with_it_and_its_files(api: LocalApi, tmp_path: Path) -> None:
    await create(api)
    made = await apply(api, child("people-r1-s0"))
    told: list[tuple[str, str]] = []
    api.watchers.append(lambda event, item: told.append((event, item["kind"])))
    where = names.STATEFUL_SET.path("default", "people-r1-s0")
    with pytest.raises(Conflict):
        await api.request("DELETE", where, subject="it", body={"preconditions": {"uid": "another"}})
    await api.request("DELETE", ONE, subject="it")
    assert told == [("DELETED", names.KIND), ("DELETED", "StatefulSet")]
    assert list((tmp_path / "objects").glob("*.json")) == []
    with pytest.raises(NotFound):
        await api.request("DELETE", where, subject="it", body={"preconditions": {"uid": made["metadata"]["uid"]}})


async def test_lists_are_by_labels_and_fields(api: LocalApi) -> None:
    await create(api)
    await apply(api, child("people-r1-s0"))
    where = names.STATEFUL_SET.path("default")
    for query, count in (
        ({"labelSelector": names.DATASET}, 1),
        ({"labelSelector": f"{names.DATASET}=others"}, 0),
        ({"fieldSelector": "metadata.name=people-r1-s0"}, 1),
        ({"fieldSelector": "metadata.name=people-r1-s1"}, 0),
    ):
        found = await api.request("GET", where, subject="all", query=query)
        assert len(found["items"]) == count, query


async def test_what_cannot_be_written_holds_and_is_written_later(api: LocalApi, tmp_path: Path) -> None:
    await create(api)
    await apply(api, child("people-r1-s0"))
    folder = tmp_path / "objects"
    folder.rename(tmp_path / "elsewhere")
    folder.write_text("a file in its place")
    await api.request("PATCH", ONE, subject="it", body={"spec": {"shards": 2}})
    assert "cannot be written: " in api.flush()
    folder.unlink()
    assert api.flush() == ""
    again = started(tmp_path)
    for kind, name in ((names.DATASET_KIND, "people"), (names.STATEFUL_SET, "people-r1-s0")):
        assert again.get(kind, "default", name) == api.get(kind, "default", name), "also what had not changed"


async def test_a_file_that_is_no_object_is_ignored(api: LocalApi, tmp_path: Path) -> None:
    await create(api)
    (tmp_path / "objects" / "Job.broken.json").write_text("{")
    assert started(tmp_path).get(names.DATASET_KIND, "default", "people") is not None
