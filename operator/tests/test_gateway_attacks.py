"""Attacks by paths, tokens and HTTP of callers who want more than their own; none changes the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import orjson
import pytest
import pytest_asyncio
from operator_support.gateways import CLUSTER, Standing, head, standing
from support.buckets import new_bucket, s3_server
from support.signers import ec_signer, rsa_signer

from lookupdb.store.bucket import Bucket

pytestmark = pytest.mark.asyncio(loop_scope="module")

FOLDER = f"{CLUSTER}/team"
OWN = f"/v1/object/{FOLDER}"
SECRET = b"of another namespace"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """A bucket with an object of each neighbour."""
    with s3_server() as url, pytest.MonkeyPatch.context() as environment:
        bucket = new_bucket(url, environment)
        for path in (f"{CLUSTER}/other/x", f"{CLUSTER}/team-b/x", f"{CLUSTER}/tea/x", "another-cluster/team/x", "x"):
            bucket.objects.put(path, SECRET)
        yield bucket


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Standing]:
    async with standing(tmp_path_factory.mktemp("gateway"), bucket.url) as gateway:
        yield gateway


# Paths


def status_of(raw: bytes) -> int:
    """Return the status of the first response; HTTP/1.0 answers what is no HTTP/1.1."""
    assert raw.startswith(b"HTTP/1."), raw[:200]
    return int(raw[9:12])


FOREIGN = [f"{CLUSTER}/other/x", f"{CLUSTER}/team-b/x", f"{CLUSTER}/tea/x", "another-cluster/team/x", f"{CLUSTER}/x"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
async def test_what_is_somebody_elses_is_forbidden(gateway: Standing, bucket: Bucket, method: str) -> None:
    for path in (*FOREIGN, FOLDER, CLUSTER, "x", "team", f"team/{CLUSTER}/x"):
        answer = await gateway.ask(method, f"/v1/object/{path}", body=b"mine" if method == "PUT" else None)
        assert answer.status == 403, path
        assert SECRET not in answer.body
        assert bucket.read(path).body in (SECRET, None), path


async def test_a_path_that_leads_elsewhere_is_no_path(gateway: Standing) -> None:
    for path in (
        "",
        "/",
        f"/{FOLDER}/x",
        f"{FOLDER}/",
        f"{FOLDER}//x",
        f"{FOLDER}/../other/x",
        f"{FOLDER}/%2e%2e/other/x",
        f"{FOLDER}/.%2E/other/x",
        f"{FOLDER}%2F..%2Fother%2Fx",
        f"{CLUSTER}%2fother%2fx",
        f"{FOLDER}/x%252F..%252Fother",
        f"{FOLDER}/..%5cother/x",
        f"{FOLDER}/..\\other\\x",
        f"{FOLDER}/./x",
        f"{FOLDER}/..",
        f"{FOLDER}/x%00",
        f"{FOLDER}/x%0d%0aSet-Cookie:a",
        f"{FOLDER}/x%20y",
        f"{FOLDER}/%c3%a9",
        f"{FOLDER}/%ef%bc%8e%ef%bc%8e/other",
        f"{FOLDER}/%c0%ae%c0%ae/other/x",
        f"{FOLDER}/%zz",
        f"{FOLDER}/x;y",
        f"{FOLDER}/x#y",
        f"{FOLDER}/{'x' * 1024}",
        f"{FOLDER}/x?versionId=1",
    ):
        raw = await gateway.send(head("GET", f"/v1/object/{path}", "Connection: close"))
        assert status_of(raw) == 400, path
        assert SECRET not in raw


async def test_there_are_no_other_paths(gateway: Standing) -> None:
    inner = f"v1/object/{FOLDER}/x"
    targets = ("/", "*", "/v1/object", "/v2/object/x", "/v1/objects/x", "/v1//object/x", "/metrics", f"//{inner}")
    for target in (*targets, f"http://gateway/{inner}", f"/x/../{inner}", "/%76%31/list?prefix=x"):
        assert status_of(await gateway.send(head("GET", target, "Connection: close"))) == 400, target


async def test_there_are_no_other_methods(gateway: Standing) -> None:
    for method in ("POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "COPY", "get"):
        raw = await gateway.send(head(method, f"{OWN}/x", "Connection: close"))
        assert status_of(raw) in (400, 405), method


async def test_a_listing_of_somebody_elses_is_refused(gateway: Standing) -> None:
    for query, status in (
        ("", 400),
        ("prefix=", 400),
        (f"prefix={FOLDER}/", 400),
        (f"prefix={FOLDER}/..", 400),
        (f"prefix={FOLDER}&prefix={CLUSTER}/other", 400),
        (f"prefix={FOLDER}&delimiter=2", 400),
        (f"prefix={FOLDER}&offset=x", 400),
        (f"prefix={FOLDER};delimiter=1", 400),
        (f"prefix={CLUSTER}", 403),
        (f"prefix={CLUSTER}&delimiter=", 403),
        (f"prefix={CLUSTER}/tea", 403),
        (f"prefix={CLUSTER}/team-b&delimiter=1", 403),
        (f"prefix={CLUSTER}/other", 403),
        ("prefix=another-cluster&delimiter=1", 403),
        ("prefix=another-cluster/team", 403),
    ):
        answer = await gateway.ask("GET", f"/v1/list?{query}")
        assert (answer.status, answer.kind) == (status, "invalid" if status == 400 else "forbidden"), query


async def test_one_foreign_path_among_many_and_nothing_is_deleted(gateway: Standing, bucket: Bucket) -> None:
    await gateway.ask("PUT", f"{OWN}/mine/x", body=b"x")
    for foreign in (*FOREIGN, FOLDER, f"{FOLDER}/../other/x", f"{FOLDER}//x", "", f"{FOLDER}/x\u0000"):
        body = orjson.dumps({"paths": [f"{FOLDER}/mine/x", *(f"{FOLDER}/mine/{n}" for n in range(50)), foreign]})
        answer = await gateway.ask("POST", "/v1/delete", body=body)
        assert answer.status in (400, 403), foreign
        assert bucket.read(f"{FOLDER}/mine/x").body == b"x", foreign
        assert bucket.read(f"{CLUSTER}/other/x").body == SECRET, foreign


async def test_a_copy_of_or_to_what_is_somebody_elses_is_refused(gateway: Standing, bucket: Bucket) -> None:
    bucket.objects.put(f"{CLUSTER}/other/x.lmdb", SECRET)
    await gateway.ask("PUT", f"{OWN}/mine/a.lmdb", body=b"x")
    own = {"from": f"{FOLDER}/mine/a.lmdb", "to": f"{FOLDER}/mine/taken.lmdb"}
    for foreign in (*FOREIGN, FOLDER, f"{FOLDER}/../other/x", f"{FOLDER}//x", f"{FOLDER}/%2e%2e/x"):
        for side in ("from", "to"):
            copy = orjson.dumps({**own, side: f"{foreign}.lmdb"})
            answer = await gateway.ask("POST", "/v1/copy", body=copy)
            assert answer.status in (400, 403), copy
            assert SECRET not in answer.body
            assert bucket.read(f"{FOLDER}/mine/taken.lmdb").body is None, copy
            assert bucket.read(f"{CLUSTER}/other/x.lmdb").body == SECRET, copy
    assert (await gateway.ask("GET", "/v1/copy")).status == 405
    assert (await gateway.ask("POST", "/v1/copy?x=1", body=orjson.dumps(own))).status == 400
    assert (await gateway.ask("POST", "/v1/copy", token="", body=orjson.dumps(own))).status == 401


@pytest.mark.parametrize(("source", "target"), [("claim.json", "a.lmdb"), ("a.lmdb", "manifest.json"), ("x", "y")])
async def test_what_builders_agree_by_cannot_be_copied_nor_copied_over(
    gateway: Standing, bucket: Bucket, source: str, target: str
) -> None:
    await gateway.ask("PUT", f"{OWN}/agreed/{source}", body=b"x")
    body = orjson.dumps({"from": f"{FOLDER}/agreed/{source}", "to": f"{FOLDER}/agreed/{target}"})
    assert (await gateway.ask("POST", "/v1/copy", body=body)).status == 400
    assert bucket.read(f"{FOLDER}/agreed/{target}").body is None


# Tokens


async def test_nobody_without_a_token_learns_anything(gateway: Standing) -> None:
    targets = (f"{OWN}/x", f"{OWN}/../x", "/", "/v1/list?prefix=x", f"/v1/object/{CLUSTER}/other/x")
    bodies = {(await gateway.ask("GET", target, token="")).body for target in targets}
    assert len(bodies) == 1
    answer = await gateway.ask("GET", "/", token="")
    assert (answer.status, answer.kind, answer.headers["WWW-Authenticate"]) == (401, "unauthenticated", "Bearer")


async def test_a_token_of_one_namespace_is_of_no_use_in_another(gateway: Standing) -> None:
    for signer in (rsa_signer(), ec_signer()):
        assert (await gateway.ask("GET", f"{OWN}/x", token=signer.token("other"))).kind == "forbidden"
        assert (await gateway.ask("GET", f"{OWN}/x", token=signer.token("team"))).kind == "missing"


async def test_other_ways_to_show_a_token_are_refused(gateway: Standing) -> None:
    for value in ("Basic dGVhbTp4", "Bearer", "Bearer ", "bearer x", "Token {}", "{}", "Bearer {} x"):
        headers = {"Authorization": value.replace("{}", rsa_signer().token())}
        assert (await gateway.ask("GET", f"{OWN}/x", token="", headers=headers)).kind == "unauthenticated", value


# HTTP


async def test_a_request_that_two_parsers_may_read_differently_puts_nothing(gateway: Standing, bucket: Bucket) -> None:
    for lines in (
        ("Content-Length: 1", "Content-Length: 1"),
        ("Content-Length: 1", "Content-Length: 2"),
        ("Content-Length: 1", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 1"),
        ("Content-Length: -1",),
        ("Content-Length: +1",),
        ("Content-Length: 1x",),
        ("Content-Length: 1, 1",),
        ("Content-Length : 1",),
        ("Transfer-Encoding: chunked, identity",),
        ("Content-Length: 1", "Lookupdb-Mode: create", "Lookupdb-Mode: create"),
        ("Content-Length: 1", "Authorization: Bearer x"),
        ("Content-Length: 1", "Host: other"),
        ("Content-Length: 1", "Content-Encoding: gzip"),
        ("Content-Length: 1", "X: " + "x" * 30_000),
        ("Content-Length: 1", *(f"X-{n}: x" for n in range(200))),
        ("Content-Length: 1", " folded: x"),
        ("Content-Length: 1", "X: a\x00b"),
    ):
        raw = await gateway.send(head("PUT", f"{OWN}/d/x", "Connection: close", *lines) + b"x")
        assert status_of(raw) in (400, 411), lines
        assert b"200 OK" not in raw
        assert bucket.read(f"{FOLDER}/d/x").body is None, lines


async def test_a_length_that_no_object_has_is_too_large(gateway: Standing) -> None:
    for length in (10**13, 10**30):
        raw = await gateway.send(head("PUT", f"{OWN}/d/x", f"Content-Length: {length}"))
        assert status_of(raw) in (400, 413)


async def test_what_comes_behind_a_body_is_not_part_of_it(gateway: Standing, bucket: Bucket) -> None:
    smuggled = head("PUT", f"/v1/object/{CLUSTER}/other/x", "Content-Length: 4", "Connection: close") + b"mine"
    raw = await gateway.send(head("PUT", f"{OWN}/d/x", "Content-Length: 3") + b"abc" + smuggled)
    assert raw.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 403" in raw
    assert bucket.read(f"{FOLDER}/d/x").body == b"abc"
    assert bucket.read(f"{CLUSTER}/other/x").body == SECRET


async def test_a_client_that_asks_first_gets_an_answer_before_it_sends(gateway: Standing) -> None:
    expects = ("Content-Length: 3", "Expect: 100-continue", "Connection: close")
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head("PUT", f"{OWN}/d/x", *expects))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"abc")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    refused = await gateway.send(head("PUT", f"/v1/object/{CLUSTER}/other/x", *expects), seconds=30)
    assert refused.startswith(b"HTTP/1.1 403")
