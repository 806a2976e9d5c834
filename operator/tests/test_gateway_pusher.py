"""Pushes through the gateway: the pusher's service account reaches the pushes to one dataset, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from operator_support.gateways import CLUSTER, Standing, standing
from support.buckets import new_bucket, s3_server
from support.signers import rsa_signer

from lookupdb.account_tokens import Caller
from lookupdb.builder import build
from lookupdb.builder.options import BuildOptions, SilentProgress
from lookupdb.dataset.spec import parse_resource
from lookupdb.errors import StoreError
from lookupdb.store import open_store
from lookupdb.store.bucket import Bucket
from lookupdb_operator.gateway.request import Access

pytestmark = pytest.mark.asyncio(loop_scope="module")

UID = "3f2b9c1e-0000-4000-8000-00000000000a"
DATASET = f"{CLUSTER}/team/people-3f2b9c1e"
INBOX = f"{DATASET}/pushed"
PUSHER = Caller("team", "people-pusher")
FOREIGN = (
    f"{DATASET}/g1/manifest.json",
    f"{DATASET}/g1/shard-00000-of-00001.lmdb",
    f"{DATASET}/active.json",
    f"{DATASET}/retained.json",
    f"{DATASET}/pushedx/g1/manifest.json",
    f"{DATASET}/g1/pushed/manifest.json",
    f"{DATASET}/x",
    f"{CLUSTER}/team/places-3f2b9c1e/pushed/g1/manifest.json",
    f"{CLUSTER}/team/people-x-3f2b9c1e/pushed/g1/manifest.json",
    f"{CLUSTER}/team/people/pushed/g1/manifest.json",
    f"{CLUSTER}/team/pushed/g1/manifest.json",
    f"{CLUSTER}/team/pushed",
    f"{CLUSTER}/other/people-3f2b9c1e/pushed/g1/manifest.json",
    "another-cluster/team/people-3f2b9c1e/pushed/g1/manifest.json",
    f"{CLUSTER}/people-3f2b9c1e/pushed/g1/manifest.json",
)


def token(account: str = PUSHER.account, namespace: str = "team") -> str:
    return rsa_signer().token(namespace, sub=f"system:serviceaccount:{namespace}:{account}")


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_server() as url, pytest.MonkeyPatch.context() as environment:
        yield new_bucket(url, environment)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Standing]:
    async with standing(tmp_path_factory.mktemp("gateway"), bucket.url) as gateway:
        yield gateway


def describe(name: str = "people") -> dict[str, Any]:
    return {
        "apiVersion": "lookupdb.dev/v1alpha1",
        "kind": "LookupDataset",
        "metadata": {"name": name, "namespace": "team", "uid": UID},
        "spec": {"source": {"pushed": True}, "key": {"columns": ["id"]}, "shards": 2},
    }


async def test_it_pushes_and_a_builder_takes_that(gateway: Standing, bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,n\na,1\nb,2\n")
    spec, options = parse_resource(describe()), BuildOptions(scratch=tmp_path / "scratch")
    with pytest.MonkeyPatch.context() as environment:
        (tmp_path / "token").write_text(token())
        environment.setenv("LOOKUPDB_STORE_TOKEN_FILE", str(tmp_path / "token"))
        place = open_store(f"http://127.0.0.1:{gateway.port}", CLUSTER)
        files = [str(tmp_path / "rows.csv")]
        report = await asyncio.to_thread(build.push_generation, spec, place, files, options, SilentProgress())
        assert report.generation == "g1"
        with pytest.raises(StoreError, match="is not in the only folder that service account people-pusher may access"):
            await asyncio.to_thread(build.build_generation, spec, place, options, SilentProgress())
        other = parse_resource(describe("places"))
        with pytest.raises(StoreError, match="service account people-pusher"):
            await asyncio.to_thread(build.push_generation, other, place, files, options, SilentProgress())
        (tmp_path / "token").write_text(token("default"))
        place = open_store(f"http://127.0.0.1:{gateway.port}", CLUSTER)
        taken = await asyncio.to_thread(build.build_generation, spec, place, options, SilentProgress())
    assert (taken.outcome, taken.records) == ("built", 2)
    assert {path.split("/")[3] for path in (entry["path"] for entry in bucket.objects.list_objects(DATASET))} == {
        "g1",
        "pushed",
    }


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
async def test_it_reaches_nothing_else(gateway: Standing, bucket: Bucket, method: str) -> None:
    for path in FOREIGN:
        bucket.objects.put(path, b"secret")
        answer = await gateway.ask(method, f"/v1/object/{path}", token=token(), body=b"x" if method == "PUT" else None)
        assert answer.status == 403, path
        assert b"secret" not in answer.body
        assert bucket.read(path).body == b"secret", path


@pytest.mark.parametrize(
    "path", [f"{INBOX}/../g1/manifest.json", f"{INBOX}/%2e%2e/g1/manifest.json", f"{INBOX}%2fg1", f"{INBOX}//g1"]
)
async def test_a_path_that_leads_elsewhere_is_none(gateway: Standing, path: str) -> None:
    assert (await gateway.ask("PUT", f"/v1/object/{path}", token=token(), body=b"x")).status == 400


async def test_it_lists_pushes_alone(gateway: Standing) -> None:
    for prefix in (CLUSTER, f"{CLUSTER}/team", DATASET, f"{DATASET}/g1", f"{CLUSTER}/other"):
        assert (await gateway.ask("GET", f"/v1/list?prefix={prefix}", token=token())).kind == "forbidden", prefix
    assert (await gateway.ask("GET", f"/v1/list?prefix={INBOX}", token=token())).status == 200


async def test_it_neither_deletes_nor_copies_anything_else(gateway: Standing, bucket: Bucket) -> None:
    served, own = f"{DATASET}/g1/a.lmdb", f"{INBOX}/g1/a.lmdb"
    for path in (served, own):
        bucket.objects.put(path, path.encode())
    body = orjson.dumps({"paths": [own, served]})
    assert (await gateway.ask("POST", "/v1/delete", token=token(), body=body)).kind == "forbidden"
    for source, target in ((own, f"{DATASET}/g1/b.lmdb"), (served, f"{INBOX}/g1/b.lmdb")):
        copy = orjson.dumps({"from": source, "to": target})
        assert (await gateway.ask("POST", "/v1/copy", token=token(), body=copy)).kind == "forbidden"
    assert [bucket.read(path).body for path in (served, own)] == [served.encode(), own.encode()]


async def test_an_index_that_is_too_large_is_refused(gateway: Standing, bucket: Bucket) -> None:
    """The limit holds for all users: a conditional put is held in memory, and a builder reads no larger index."""
    path = f"{INBOX}/g9/manifest.json"
    answer = await gateway.ask(
        "PUT", f"/v1/object/{path}", token=token(), body=b" " * (65 << 20), headers={"Lookupdb-Mode": "create"}
    )
    assert answer.status == 413
    assert bucket.read(path).body is None


@pytest.mark.parametrize(
    ("account", "namespace"),
    [("people-pusher", "other"), ("people", "other"), ("places-pusher", "team"), ("-pusher", "team")],
)
async def test_only_the_pusher_of_the_dataset_in_its_namespace_writes_pushes(account: str, namespace: str) -> None:
    access, path = Access(CLUSTER), f"{INBOX}/g1/manifest.json"
    assert not access.may_write(path, Caller(namespace, account))
    assert not access.may_list(INBOX, Caller(namespace, account), folders_only=False)
    assert access.may_write(path, PUSHER)
