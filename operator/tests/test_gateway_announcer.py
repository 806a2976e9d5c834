"""Announcements of datasets: only the operator's service account writes them, and it does nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import orjson
import pytest
import pytest_asyncio
from operator_support.gateways import CLUSTER, Standing, standing
from support.buckets import new_bucket, s3_server
from support.signers import rsa_signer

from lookupdb.account_tokens import Caller
from lookupdb.store.bucket import Bucket
from lookupdb_operator.gateway.request import Access

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANNOUNCER = Caller("lookupdb", "operator")
ACTIVE = f"{CLUSTER}/team/people-3f2b9c1e/active.json"
OTHERS = f"{CLUSTER}/other/places-3f2b9c1e/active.json"
OBJECT = b'{"formatVersion":1}'


def token(namespace: str = ANNOUNCER.namespace, account: str = ANNOUNCER.account) -> str:
    return rsa_signer().token(namespace, sub=f"system:serviceaccount:{namespace}:{account}")


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_server() as url, pytest.MonkeyPatch.context() as environment:
        yield new_bucket(url, environment)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Standing]:
    async with standing(tmp_path_factory.mktemp("gateway"), bucket.url, announcer=ANNOUNCER) as gateway:
        yield gateway


@pytest.mark.parametrize("path", [ACTIVE, OTHERS])
async def test_the_announcer_writes_and_reads_it_in_every_namespace(
    gateway: Standing, bucket: Bucket, path: str
) -> None:
    target = f"/v1/object/{path}"
    assert (await gateway.ask("GET", target, token=token())).kind == "missing"
    written = await gateway.ask("PUT", target, token=token(), body=OBJECT, headers={"Lookupdb-Mode": "create"})
    assert written.status == 200
    assert bucket.read(path).body == OBJECT
    assert (await gateway.ask("GET", target, token=token())).body == OBJECT
    again = await gateway.ask("PUT", target, token=token(), body=b"x", headers={"Lookupdb-Mode": "create"})
    assert again.kind == "precondition"
    version = {"Lookupdb-Mode": orjson.dumps(written.json).decode()}
    assert (await gateway.ask("PUT", target, token=token(), body=OBJECT, headers=version)).status == 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
async def test_the_announcer_reaches_nothing_else(gateway: Standing, bucket: Bucket, method: str) -> None:
    for path in (
        f"{CLUSTER}/team/people-3f2b9c1e/g1/manifest.json",
        f"{CLUSTER}/team/people-3f2b9c1e/g1/active.json",
        f"{CLUSTER}/team/people-3f2b9c1e/active.json/x",
        f"{CLUSTER}/team/people-3f2b9c1e/active.jsonx",
        f"{CLUSTER}/team/people-3f2b9c1e/Active.json",
        f"{CLUSTER}/team/people-3f2b9c1e/retained.json",
        f"{CLUSTER}/team/people/active.json",
        f"{CLUSTER}/team/-/active.json",
        f"{CLUSTER}/team/active.json",
        f"{CLUSTER}/active.json",
        "active.json",
        "another-cluster/team/people-3f2b9c1e/active.json",
        f"{CLUSTER}/team/x/people-3f2b9c1e/active.json",
        f"{CLUSTER}/{ANNOUNCER.namespace}/people-3f2b9c1e/g1/claim.json",
        f"{CLUSTER}/{ANNOUNCER.namespace}/x",
    ):
        bucket.objects.put(path, b"secret")
        answer = await gateway.ask(method, f"/v1/object/{path}", token=token(), body=b"x" if method == "PUT" else None)
        assert answer.status == 403, path
        assert b"secret" not in answer.body
        assert bucket.read(path).body == b"secret", path


@pytest.mark.parametrize(
    "path",
    [f"{CLUSTER}/team/../other/p-a/active.json", f"{CLUSTER}//p-3f2b9c1e/active.json", f"{ACTIVE}%2f", f"/{ACTIVE}"],
)
async def test_a_path_that_leads_elsewhere_is_none(gateway: Standing, path: str) -> None:
    answer = await gateway.ask("PUT", f"/v1/object/{path}", token=token(), body=b"x")
    assert answer.status == 400


@pytest.mark.parametrize("delimiter", ["", "&delimiter=1"])
async def test_the_announcer_lists_nothing(gateway: Standing, delimiter: str) -> None:
    for prefix in (CLUSTER, f"{CLUSTER}/team", f"{CLUSTER}/{ANNOUNCER.namespace}", ACTIVE):
        answer = await gateway.ask("GET", f"/v1/list?prefix={prefix}{delimiter}", token=token())
        assert answer.kind == "forbidden", prefix


async def test_the_announcer_neither_deletes_generations_nor_copies(gateway: Standing, bucket: Bucket) -> None:
    shard = f"{CLUSTER}/{ANNOUNCER.namespace}/people-3f2b9c1e/g1/a.lmdb"
    bucket.objects.put(shard, b"x")
    body = orjson.dumps({"paths": [shard]})
    assert (await gateway.ask("POST", "/v1/delete", token=token(), body=body)).kind == "forbidden"
    copy = orjson.dumps({"from": shard, "to": shard.replace("a.lmdb", "b.lmdb")})
    assert (await gateway.ask("POST", "/v1/copy", token=token(), body=copy)).kind == "forbidden"
    assert bucket.read(shard).body == b"x"


@pytest.mark.parametrize(
    ("namespace", "account"),
    [
        ("team", "default"),
        ("team", ANNOUNCER.account),
        ("team", ANNOUNCER.namespace),
        (ANNOUNCER.namespace, "default"),
        (ANNOUNCER.namespace, f"{ANNOUNCER.account}x"),
    ],
)
async def test_nobody_else_writes_it_or_takes_it_away(
    gateway: Standing, bucket: Bucket, namespace: str, account: str
) -> None:
    """Not even a builder of the namespace."""
    path = f"{CLUSTER}/{namespace}/people-3f2b9c1e/active.json"
    bucket.objects.put(path, OBJECT)
    shown = token(namespace, account)
    for mode in ({}, {"Lookupdb-Mode": "create"}):
        answer = await gateway.ask("PUT", f"/v1/object/{path}", token=shown, body=b"lie", headers=mode)
        assert (answer.status, "only the operator may write it" in answer.json["detail"]) == (403, True)
    body = orjson.dumps({"paths": [path]})
    assert (await gateway.ask("POST", "/v1/delete", token=shown, body=body)).kind == "forbidden"
    assert bucket.read(path).body == OBJECT
    assert (await gateway.ask("GET", f"/v1/object/{path}", token=shown)).body == OBJECT, "it reads its own"
    other = f"{CLUSTER}/{'other' if namespace == 'team' else 'team'}/people-3f2b9c1e/active.json"
    assert (await gateway.ask("GET", f"/v1/object/{other}", token=shown)).kind == "forbidden"


async def test_without_an_announcer_nobody_may() -> None:
    access = Access(CLUSTER)
    assert not access.may_write(ACTIVE, Caller("team", "default"))
    assert not access.may_write(ACTIVE, ANNOUNCER)
    assert access.may_read(ACTIVE, Caller("team", "default"))
    assert access.may_write(f"{CLUSTER}/team/people-3f2b9c1e/retained.json", Caller("team", "default"))
