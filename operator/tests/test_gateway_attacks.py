"""What somebody tries who wants more than their own: paths, HTTP, tokens, and all of the gateway's room."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import obstore
import orjson
import pytest
from operator_support.gateways import CLUSTER, Signer, Standing, ec_signer, head, jwks, rsa_signer, standing
from operator_support.kube import Refusal
from operator_support.running import until
from support.buckets import new_bucket, s3_server

from lookupdb.store.bucket import Bucket

MIB = 1 << 20
FOLDER = f"{CLUSTER}/team"
OWN = f"/v1/object/{FOLDER}"
SECRET = b"of another namespace"
JWKS = "/openid/v1/jwks"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def bucket(url: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """With an object of each neighbour."""
    bucket = new_bucket(url, monkeypatch)
    for path in (f"{CLUSTER}/other/x", f"{CLUSTER}/team-b/x", f"{CLUSTER}/tea/x", "another-cluster/team/x", "x"):
        obstore.put(bucket.store, path, SECRET)
    return bucket


@pytest.fixture
async def gateway(bucket: Bucket, tmp_path: Path) -> AsyncIterator[Standing]:
    async with standing(tmp_path, bucket.url, part_bytes=5 * MIB, idle_seconds=2.0, keepalive_seconds=2.0) as gateway:
        yield gateway


# Paths

FOREIGN = [f"{CLUSTER}/other/x", f"{CLUSTER}/team-b/x", f"{CLUSTER}/tea/x", "another-cluster/team/x", f"{CLUSTER}/x"]


@pytest.mark.parametrize("path", [*FOREIGN, FOLDER, CLUSTER, "x", "team", f"team/{CLUSTER}/x"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
async def test_what_is_somebody_elses_is_forbidden(gateway: Standing, bucket: Bucket, path: str, method: str) -> None:
    answer = await gateway.ask(method, f"/v1/object/{path}", body=b"mine" if method == "PUT" else None)
    assert answer.status == 403
    assert SECRET not in answer.body
    assert bucket.read(path).body in (SECRET, None)


@pytest.mark.parametrize(
    "path",
    [
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
    ],
)
async def test_a_path_that_leads_elsewhere_is_no_path(gateway: Standing, path: str) -> None:
    raw = await gateway.send(head("GET", f"/v1/object/{path}", "Connection: close"))
    assert raw.startswith(b"HTTP/1.1 400"), raw[:200]
    assert SECRET not in raw


@pytest.mark.parametrize(
    "target",
    ["/", "*", "/v1/object", "/v2/object/x", "/v1/objects/x", "/v1//object/x", f"//v1/object/{FOLDER}/x"]
    + [f"http://gateway/v1/object/{FOLDER}/x", f"/x/../v1/object/{FOLDER}/x", "/%76%31/list?prefix=x", "/metrics"],
)
async def test_there_are_no_other_paths(gateway: Standing, target: str) -> None:
    assert (await gateway.send(head("GET", target, "Connection: close"))).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "COPY", "get"])
async def test_there_are_no_other_methods(gateway: Standing, method: str) -> None:
    raw = await gateway.send(head(method, f"{OWN}/x", "Connection: close"))
    assert raw[:12] in (b"HTTP/1.1 405", b"HTTP/1.1 400"), raw[:200]


@pytest.mark.parametrize(
    ("query", "status"),
    [
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
    ],
)
async def test_a_listing_of_somebody_elses_is_refused(gateway: Standing, query: str, status: int) -> None:
    answer = await gateway.ask("GET", f"/v1/list?{query}")
    assert (answer.status, answer.kind) == (status, "invalid" if status == 400 else "forbidden")


@pytest.mark.parametrize("foreign", [*FOREIGN, FOLDER, f"{FOLDER}/../other/x", f"{FOLDER}//x", "", f"{FOLDER}/x\u0000"])
async def test_one_foreign_path_among_many_and_nothing_is_deleted(
    gateway: Standing, bucket: Bucket, foreign: str
) -> None:
    await gateway.ask("PUT", f"{OWN}/mine/x", body=b"x")
    body = orjson.dumps({"paths": [f"{FOLDER}/mine/x", *(f"{FOLDER}/mine/{n}" for n in range(500)), foreign]})
    answer = await gateway.ask("POST", "/v1/delete", body=body)
    assert answer.status in (400, 403)
    assert bucket.read(f"{FOLDER}/mine/x").body == b"x"
    assert bucket.read(f"{CLUSTER}/other/x").body == SECRET


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


@pytest.mark.parametrize("value", ["Basic dGVhbTp4", "Bearer", "Bearer ", "bearer x", "Token {}", "{}", "Bearer {} x"])
async def test_other_ways_to_show_a_token_are_refused(gateway: Standing, value: str) -> None:
    headers = {"Authorization": value.replace("{}", rsa_signer().token())}
    assert (await gateway.ask("GET", f"{OWN}/x", token="", headers=headers)).kind == "unauthenticated"


async def test_a_new_key_is_read_when_a_token_names_it(gateway: Standing) -> None:
    new = rsa_signer("rotated")
    gateway.gateway.keys._tried_at = -1e9  # the last reading was long ago
    gateway.kube.jwks = jwks(rsa_signer(), new)
    assert (await gateway.ask("GET", f"{OWN}/x", token=new.token())).kind == "missing"


async def test_unknown_keys_ask_the_api_server_once(gateway: Standing) -> None:
    gateway.kube.reads.clear()
    tokens = [Signer(f"k{number}", "ES256", ec_signer().key).token() for number in range(50)]
    answers = await asyncio.gather(*(gateway.ask("GET", f"{OWN}/x", token=token) for token in tokens))
    assert {answer.kind for answer in answers} == {"unauthenticated"}
    assert gateway.kube.reads.count(("GET", JWKS)) <= 1


async def test_without_the_api_server_known_keys_count_and_unknown_ones_wait(gateway: Standing) -> None:
    gateway.kube.refused[JWKS] = Refusal(500, "etcd is away")
    gateway.gateway.keys._tried_at = -1e9
    unknown = await gateway.ask("GET", f"{OWN}/x", token=rsa_signer("unheard-of").token())
    assert (unknown.status, unknown.kind, unknown.headers["Retry-After"]) == (503, "busy", "1")
    assert (await gateway.ask("GET", f"{OWN}/x")).kind == "missing"


async def test_the_log_tells_of_refusals_now_and_then_and_never_of_a_token(
    gateway: Standing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = rsa_signer("stranger").token()
    for _ in range(20):
        await gateway.ask("GET", f"{OWN}/x", token=token)
        await gateway.ask("GET", f"/v1/object/{CLUSTER}/other/x")
    await gateway.send(head("GET", f"{OWN}/x", "Bad Header: x", token=token))
    await gateway.send(head("GET", f"{OWN}/x", token=token + "x" * 30_000))
    refused = [record for record in caplog.records if "refused a request" in record.getMessage()]
    assert len(refused) == 1
    shown = "\n".join(f"{record.getMessage()} {record.__dict__} {record.exc_text}" for record in caplog.records)
    assert token[-20:] not in shown
    assert rsa_signer().token()[:60] not in shown
    metrics = (await gateway.admin("/metrics"))[1]
    assert 'lookupdb_gateway_refusals_total{reason="forbidden"} 20.0' in metrics
    assert 'lookupdb_gateway_refusals_total{reason="key"} 20.0' in metrics


# HTTP


@pytest.mark.parametrize(
    "lines",
    [
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
    ],
)
async def test_a_request_that_two_parsers_may_read_differently_puts_nothing(
    gateway: Standing, bucket: Bucket, lines: tuple[str, ...]
) -> None:
    raw = await gateway.send(head("PUT", f"{OWN}/d/x", *lines) + b"x")
    assert raw.startswith((b"HTTP/1.1 400", b"HTTP/1.1 411")), raw[:300]
    assert b"200 OK" not in raw
    assert bucket.read(f"{FOLDER}/d/x").body is None


async def test_a_length_that_no_object_has_is_too_large(gateway: Standing) -> None:
    for length in (10**13, 10**30):
        raw = await gateway.send(head("PUT", f"{OWN}/d/x", f"Content-Length: {length}"))
        assert raw.startswith(b"HTTP/1.1 413"), raw[:200]


@pytest.mark.parametrize("size", [100, 12 * MIB])
async def test_a_body_that_ends_early_puts_nothing(gateway: Standing, bucket: Bucket, url: str, size: int) -> None:
    sent = bytes(size - 1)
    await gateway.send(head("PUT", f"{OWN}/d/x", f"Content-Length: {size}") + sent, close=True)
    await until(lambda: gateway.gateway.metrics.requests["write", 400], "the upload to be given up")
    assert bucket.read(f"{FOLDER}/d/x").body is None
    assert await count_uploads(gateway, bucket, url) == 0
    assert gateway.gateway.budget.used == 0


async def count_uploads(gateway: Standing, bucket: Bucket, url: str) -> int:
    """Uploads that began, and of which parts lie in the bucket."""
    async with gateway.session.get(f"{url}/{bucket.url.split('/')[2]}?uploads") as response:
        return (await response.text()).count("<UploadId>")


@pytest.mark.parametrize("size", [100, 12 * MIB])
async def test_a_body_that_stops_coming_puts_nothing(gateway: Standing, bucket: Bucket, url: str, size: int) -> None:
    raw = await gateway.send(head("PUT", f"{OWN}/d/x", f"Content-Length: {size}") + bytes(size // 2))
    assert raw.startswith(b"HTTP/1.1 408"), raw[:200]
    assert bucket.read(f"{FOLDER}/d/x").body is None
    assert await count_uploads(gateway, bucket, url) == 0


async def test_what_comes_behind_a_body_is_not_part_of_it(gateway: Standing, bucket: Bucket) -> None:
    smuggled = head("PUT", f"/v1/object/{CLUSTER}/other/x", "Content-Length: 4") + b"mine"
    raw = await gateway.send(head("PUT", f"{OWN}/d/x", "Content-Length: 3") + b"abc" + smuggled)
    assert raw.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 403" in raw
    assert bucket.read(f"{FOLDER}/d/x").body == b"abc"
    assert bucket.read(f"{CLUSTER}/other/x").body == SECRET


async def test_a_client_that_asks_first_is_told_before_it_sends(gateway: Standing) -> None:
    expects = ("Content-Length: 3", "Expect: 100-continue", "Connection: close")
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head("PUT", f"{OWN}/d/x", *expects))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"abc")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    refused = await gateway.send(head("PUT", f"/v1/object/{CLUSTER}/other/x", *expects), seconds=30)
    assert refused.startswith(b"HTTP/1.1 403")


async def test_a_head_that_does_not_end_ends_the_connection(gateway: Standing) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(20):
            writer.write(b"GET /v1/list HTTP/1.1\r\n")
            while not reader.at_eof():
                writer.write(b"X: y\r\n")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.2)
    writer.close()
    assert reader.at_eof()


# Room


async def test_clients_that_send_nothing_keep_nobody_away(bucket: Bucket, tmp_path: Path) -> None:
    async with standing(tmp_path, bucket.url, max_requests=16) as gateway:
        silent = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(300)))
        assert (await gateway.ask("PUT", f"{OWN}/d/x", body=b"x")).status == 200
        assert gateway.gateway.server
        assert gateway.gateway.server.connections <= 16 * 4 + 1
        for _, writer in silent:
            writer.close()


async def test_uploads_of_one_namespace_leave_room_for_another(bucket: Bucket, tmp_path: Path) -> None:
    async with standing(tmp_path, bucket.url, max_requests=8) as gateway:
        begun = [await begin_upload(gateway, 100) for _ in range(6)]
        await until(lambda: gateway.gateway.admission.in_flight == 4, "half of all requests")
        refused = await gateway.ask("GET", f"{OWN}/d/x")
        assert (refused.status, refused.kind, refused.headers["Retry-After"]) == (503, "busy", "1")
        other = await gateway.ask("PUT", f"/v1/object/{CLUSTER}/other/d/x", namespace="other", body=b"x")
        assert other.status == 200
        for writer in begun:
            writer.close()
        await until(lambda: gateway.gateway.admission.in_flight == 0, "nothing in flight")
        assert (await gateway.ask("GET", f"{OWN}/d/x")).kind == "missing"


async def begin_upload(gateway: Standing, size: int) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head("PUT", f"{OWN}/d/x", f"Content-Length: {size}") + b"x")
    return writer


async def test_uploads_of_one_namespace_leave_memory_for_another(bucket: Bucket, tmp_path: Path) -> None:
    async with standing(tmp_path, bucket.url, memory=64 * MIB) as gateway:
        begun = [await begin_upload(gateway, 64 * MIB) for _ in range(4)]  # of 16 MiB of memory each, and a little
        await until(lambda: gateway.gateway.admission.in_flight == 4, "all of them")
        assert 16 * MIB < gateway.gateway.budget.used <= 32 * MIB
        other = await gateway.ask("PUT", f"/v1/object/{CLUSTER}/other/d/x", namespace="other", body=bytes(MIB))
        assert other.status == 200
        for writer in begun:
            writer.close()
        await until(lambda: gateway.gateway.budget.used == 0, "all memory to be free")


async def test_a_client_that_does_not_read_is_cut_off(gateway: Standing, bucket: Bucket) -> None:
    obstore.put(bucket.store, f"{FOLDER}/d/large", bytes(40 * MIB))
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
    writer.write(head("GET", f"{OWN}/d/large"))
    await until(lambda: gateway.gateway.metrics.requests["read", 499], "the reader to be cut off")
    assert gateway.gateway.budget.used == 0
    writer.close()
