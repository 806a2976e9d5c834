"""Objects, conditions and listings of builders and fetchers through the gateway, in front of a real S3 server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from operator_support.gateways import CLUSTER, MIB, Standing, standing
from operator_support.running import until

from lookupdb.store import bucket as bucket_objects
from lookupdb.store.bucket import Bucket
from lookupdb.store.objects import STREAM_HEADER
from lookupdb_operator.gateway.transfers import CHUNK_BYTES

pytest_plugins = ["operator_support.gateway_fixtures"]

OWN = f"/v1/object/{CLUSTER}/team/people-1a2b3c4d"


async def test_what_is_put_is_read_with_its_version(gateway: Standing) -> None:
    put = await gateway.ask("PUT", f"{OWN}/g1/manifest.json", body=b'{"a": 1}')
    assert put.status == 200
    assert put.json["e_tag"]
    got = await gateway.ask("GET", f"{OWN}/g1/manifest.json")
    assert (got.status, got.body) == (200, b'{"a": 1}')
    assert got.headers["Content-Length"] == "8"
    assert got.headers["ETag"] == put.json["e_tag"]
    assert orjson.loads(got.headers["Lookupdb-Version"]) == {"e_tag": put.json["e_tag"]}
    assert got.headers["Last-Modified"].endswith("GMT")
    asked = await gateway.ask("HEAD", f"{OWN}/g1/manifest.json")
    names = ("Content-Length", "ETag", "Lookupdb-Version", "Last-Modified")
    assert (asked.status, asked.body) == (200, b"")
    assert [asked.headers[name] for name in names] == [got.headers[name] for name in names]


async def test_it_stands_in_the_store_under_the_clusters_and_the_namespaces_folder(
    gateway: Standing, bucket: Bucket
) -> None:
    await gateway.ask("PUT", f"{OWN}/g1/claim.json", body=b"mine")
    assert bucket.read(f"{CLUSTER}/team/people-1a2b3c4d/g1/claim.json").body == b"mine"


async def test_what_is_not_there_is_missing(gateway: Standing) -> None:
    answer = await gateway.ask("GET", f"{OWN}/g1/manifest.json")
    assert (answer.status, answer.kind) == (404, "missing")
    assert (await gateway.ask("HEAD", f"{OWN}/g1/manifest.json")).status == 404


async def test_an_empty_object_is_one(gateway: Standing) -> None:
    assert (await gateway.ask("PUT", f"{OWN}/empty", body=b"")).status == 200
    got = await gateway.ask("GET", f"{OWN}/empty")
    assert (got.status, got.body, got.headers["Content-Length"]) == (200, b"", "0")


async def test_a_read_goes_on_where_it_broke_off(gateway: Standing) -> None:
    await gateway.ask("PUT", f"{OWN}/file", body=bytes(range(100)))
    rest = await gateway.ask("GET", f"{OWN}/file", headers={"Range": "bytes=90-"})
    assert (rest.status, rest.body) == (206, bytes(range(90, 100)))
    assert rest.headers["Content-Range"] == "bytes 90-99/100"
    whole = await gateway.ask("GET", f"{OWN}/file", headers={"Range": "bytes=0-"})
    assert (whole.status, whole.body) == (206, bytes(range(100)))
    for start in (100, 10**17):
        beyond = await gateway.ask("GET", f"{OWN}/file", headers={"Range": f"bytes={start}-"})
        assert (beyond.status, beyond.headers["Content-Range"]) == (416, "bytes */100")
    for other in ("bytes=1-2", "bytes=-5", "bytes=1-,3-", "lines=1-", "bytes=٣-"):
        refused = await gateway.ask("GET", f"{OWN}/file", headers={"Range": other})
        assert (refused.status, refused.kind) == (400, "invalid"), other


@pytest.mark.parametrize("size", [5 * MIB, 5 * MIB + 1, 11 * MIB])
async def test_large_objects_travel_in_parts(gateway: Standing, bucket: Bucket, size: int) -> None:
    body = os.urandom(size)
    assert (await gateway.ask("PUT", f"{OWN}/g1/shard.lmdb", body=body)).status == 200
    assert b"".join(bucket.objects.stream(f"{CLUSTER}/team/people-1a2b3c4d/g1/shard.lmdb") or ()) == body
    got = await gateway.ask("GET", f"{OWN}/g1/shard.lmdb")
    assert got.body == body
    await until(lambda: gateway.gateway.budget.used == 0, "what was reserved to be free")


async def test_create_puts_only_what_is_not_there(gateway: Standing) -> None:
    create = {"Lookupdb-Mode": "create"}
    assert (await gateway.ask("PUT", f"{OWN}/claim", body=b"first", headers=create)).status == 200
    second = await gateway.ask("PUT", f"{OWN}/claim", body=b"second", headers=create)
    assert (second.status, second.kind) == (412, "precondition")
    assert (await gateway.ask("GET", f"{OWN}/claim")).body == b"first"


async def test_a_version_is_replaced_once(gateway: Standing) -> None:
    version = (await gateway.ask("PUT", f"{OWN}/claim", body=b"first")).json
    on_version = {"Lookupdb-Mode": orjson.dumps(version).decode()}
    replaced = await gateway.ask("PUT", f"{OWN}/claim", body=b"second", headers=on_version)
    assert replaced.status == 200
    assert replaced.json["e_tag"] != version["e_tag"]
    again = await gateway.ask("PUT", f"{OWN}/claim", body=b"third", headers=on_version)
    assert (again.status, again.kind) == (412, "precondition")
    assert (await gateway.ask("GET", f"{OWN}/claim")).body == b"second"


async def test_a_condition_that_is_none_puts_nothing(gateway: Standing) -> None:
    for mode in ("", "overwrite", "{}", "[]", "null", '{"e_tag": 1}', '{"other": "x"}', "{" * 3000):
        answer = await gateway.ask("PUT", f"{OWN}/claim", body=b"x", headers={"Lookupdb-Mode": mode})
        assert (answer.status, answer.kind) == (400, "invalid"), mode
        assert (await gateway.ask("GET", f"{OWN}/claim")).status == 404, mode


async def test_a_version_that_cannot_stand_in_a_header_is_none(gateway: Standing) -> None:
    for text in ("a\\nb", "\\u0000", "a\\r\\nX-Amz-Copy-Source: x", "", "\u00fc"):
        mode = f'{{"e_tag": "{text}"}}'.encode().decode("latin-1")
        answer = await gateway.ask("PUT", f"{OWN}/x", body=b"x", headers={"Lookupdb-Mode": mode})
        assert (answer.status, answer.kind) == (400, "invalid"), text


async def test_what_is_put_on_a_condition_is_small(gateway: Standing) -> None:
    most = gateway.gateway.short_budget.most - 2 * CHUNK_BYTES
    assert 7 * MIB < most < 8 * MIB
    too_large = {"Lookupdb-Mode": "create", "Content-Length": str(most + 1)}
    answer = await gateway.ask("PUT", f"{OWN}/claim", body=iter_body(most + 1), headers=too_large)
    assert (answer.status, answer.kind) == (413, "too-large")
    largest = await gateway.ask("PUT", f"{OWN}/c", body=bytes(most), headers={"Lookupdb-Mode": "create"})
    assert largest.status == 200


async def test_what_is_no_shard_file_is_small(gateway: Standing) -> None:
    """The sweep reads it whole, and there is one sweep for all namespaces."""
    most = gateway.gateway.short_budget.most - 2 * CHUNK_BYTES
    too_large = {"Content-Length": str(most + 1)}
    for name in ("swept.json", "g1/manifest.json", "g1/claim.json", "g1/x.lmdb/y"):
        answer = await gateway.ask("PUT", f"{OWN}/{name}", body=iter_body(most + 1), headers=too_large)
        assert (answer.status, answer.kind) == (413, "too-large"), name
    assert (await gateway.ask("PUT", f"{OWN}/swept.json", body=bytes(most))).status == 200


async def iter_body(size: int) -> AsyncIterator[bytes]:
    for start in range(0, size, MIB):
        yield bytes(min(MIB, size - start))


async def test_a_body_of_unknown_length_is_refused(gateway: Standing) -> None:
    answer = await gateway.ask("PUT", f"{OWN}/file", body=iter_body(10))
    assert (answer.status, answer.kind) == (411, "invalid")


async def delete(gateway: Standing, paths: Any) -> Any:
    return await gateway.ask("POST", "/v1/delete", body=orjson.dumps({"paths": paths}))


async def test_what_is_deleted_is_gone_and_what_is_not_there_is_no_error(gateway: Standing) -> None:
    folder = f"{CLUSTER}/team/people-1a2b3c4d"
    for name in ("a", "b", "c"):
        await gateway.ask("PUT", f"{OWN}/{name}", body=b"x")
    answer = await delete(gateway, [f"{folder}/a", f"{folder}/b", f"{folder}/never"])
    assert (answer.status, answer.json) == (200, {})
    assert [(await gateway.ask("HEAD", f"{OWN}/{name}")).status for name in "abc"] == [404, 404, 200]
    assert (await delete(gateway, [])).status == 200


async def test_a_deletion_that_is_none(gateway: Standing) -> None:
    for body, status in (
        (b"", 400),
        (b"[]", 400),
        (b'{"paths": "a"}', 400),
        (b'{"paths": [1]}', 400),
        (orjson.dumps({"paths": [f"{CLUSTER}/team/x/{n}" for n in range(1001)]}), 413),
        (bytes(2 * MIB + 1), 413),
    ):
        assert (await gateway.ask("POST", "/v1/delete", body=body)).status == status, body[:20]


async def test_a_listing_has_every_object_below_a_folder_and_an_end(gateway: Standing) -> None:
    for name in ("g1/a", "g1/b", "g10/c", "d"):
        await gateway.ask("PUT", f"{OWN}/{name}", body=name.encode())
    folder = f"{CLUSTER}/team/people-1a2b3c4d"
    *entries, end = (await gateway.ask("GET", f"/v1/list?prefix={folder}/g1")).lines
    assert end == {"end": True}
    assert [entry["path"] for entry in entries] == [f"{folder}/g1/a", f"{folder}/g1/b"]
    assert set(entries[0]) == {"path", "size", "e_tag", "version", "last_modified"}
    assert entries[0]["size"] == 4
    got = await gateway.ask("GET", f"/v1/object/{entries[0]['path']}")
    assert got.headers["ETag"] == entries[0]["e_tag"]
    assert (await gateway.ask("GET", f"/v1/list?prefix={folder}/none")).lines == [{"end": True}]


async def test_a_listing_with_a_delimiter_has_folders(gateway: Standing) -> None:
    for name in ("g1/a", "g1/b", "g10/c", "d"):
        await gateway.ask("PUT", f"{OWN}/{name}", body=b"x")
    folder = f"{CLUSTER}/team/people-1a2b3c4d"
    answer = await gateway.ask("GET", f"/v1/list?prefix={folder}&delimiter=1")
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    assert answer.lines == [{"prefix": f"{folder}/g1"}, {"prefix": f"{folder}/g10"}, {"end": True}]


async def test_a_listing_with_a_delimiter_names_a_folder_once_however_many_pages_it_has(
    gateway: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory holds one page: a namespace may have millions of folders."""
    monkeypatch.setattr("lookupdb_operator.gateway.transfers._PAGE", 2)
    for name in ("g1/a", "g1/b", "g1/c", "g1/d", "g2/a", "g3/a", "note"):
        await gateway.ask("PUT", f"{OWN}/{name}", body=b"x")
    folder = f"{CLUSTER}/team/people-1a2b3c4d"
    answer = await gateway.ask("GET", f"/v1/list?prefix={folder}&delimiter=1")
    assert answer.lines == [*({"prefix": f"{folder}/{name}"} for name in ("g1", "g2", "g3")), {"end": True}]
    assert b"\n\n" in answer.body, "a page without another folder keeps the client waiting"


async def test_of_the_cluster_everybody_sees_their_own_namespace(gateway: Standing, bucket: Bucket) -> None:
    bucket.objects.put(f"{CLUSTER}/other/people-1a2b3c4d/x", b"x")
    of_cluster = f"/v1/list?prefix={CLUSTER}&delimiter=1"
    assert (await gateway.ask("GET", of_cluster)).lines == [{"end": True}]
    await gateway.ask("PUT", f"{OWN}/x", body=b"x")
    assert (await gateway.ask("GET", of_cluster)).lines == [{"prefix": f"{CLUSTER}/team"}, {"end": True}]
    assert (await gateway.ask("GET", f"/v1/list?prefix={CLUSTER}")).kind == "forbidden"


async def test_shard_files_may_be_had_from_the_store(bucket: Bucket, tmp_path: Path) -> None:
    async with standing(tmp_path, bucket.url, redirects=True) as gateway:
        for name in ("shard.lmdb", "manifest.json"):
            await gateway.ask("PUT", f"{OWN}/{name}", body=name.encode())
        sent = await gateway.ask("GET", f"{OWN}/shard.lmdb")
        assert sent.status == 307
        location = sent.headers["Location"]
        async with gateway.session.get(location) as response:
            assert await response.read() == b"shard.lmdb"
        assert "X-Amz-Expires=300" in location
        assert sent.headers["Cache-Control"] == "no-store"
        streamed = await gateway.ask("GET", f"{OWN}/shard.lmdb", headers={STREAM_HEADER: "1"})
        assert (streamed.status, streamed.body) == (200, b"shard.lmdb")
        assert (await gateway.ask("HEAD", f"{OWN}/shard.lmdb")).status == 200
        assert (await gateway.ask("GET", f"{OWN}/manifest.json")).body == b"manifest.json"
        assert (await gateway.ask("GET", f"{OWN}/none.lmdb")).kind == "missing"
        foreign = f"/v1/object/{CLUSTER}/other/shard.lmdb"
        assert (await gateway.ask("GET", foreign)).kind == "forbidden"


async def test_a_panic_of_the_stores_client_is_a_failure_of_the_store(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A panic of native code is not a defect of the gateway, and no answer repeats what the store said."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:secret key")
    async with standing(tmp_path, bucket.url) as gateway:
        for asked in (
            gateway.ask("GET", f"{OWN}/x"),
            gateway.ask("PUT", f"{OWN}/x", body=b"x"),
            gateway.ask("GET", f"/v1/list?prefix={CLUSTER}/team/x"),
            delete(gateway, [f"{CLUSTER}/team/x/y"]),
        ):
            answer = await asked
            assert (answer.status // 100, answer.kind) == (5, "store-failed")
            assert "its client crashed" in answer.json["detail"]
    assert "because of a bug" not in " ".join(record.getMessage() for record in caplog.records)


async def test_no_answer_tells_what_it_was_made_with(gateway: Standing) -> None:
    await gateway.ask("PUT", f"{OWN}/x", body=b"x")
    for target in (f"{OWN}/x", f"{OWN}/none", "/nothing", f"/v1/list?prefix={CLUSTER}/team/people-1a2b3c4d"):
        assert "Server" not in (await gateway.ask("GET", target)).headers
    assert b"Server:" not in await gateway.send(b"this is not HTTP\r\n\r\n")


async def copy(gateway: Standing, source: str, target: str) -> Any:
    folder = f"{CLUSTER}/team/people-1a2b3c4d"
    body = orjson.dumps({"from": f"{folder}/{source}", "to": f"{folder}/{target}"})
    return await gateway.ask("POST", "/v1/copy", body=body)


async def test_a_shard_file_is_copied_within_the_store(gateway: Standing, bucket: Bucket) -> None:
    await gateway.ask("PUT", f"{OWN}/g1/a.lmdb", body=b"content")
    answer = await copy(gateway, "g1/a.lmdb", "g2/b.lmdb")
    assert (answer.status, answer.json) == (200, {})
    assert bucket.read(f"{CLUSTER}/team/people-1a2b3c4d/g2/b.lmdb").body == b"content"
    metrics = (await gateway.admin("/metrics"))[1]
    assert 'lookupdb_gateway_requests_total{operation="copy",code="200"} 1' in metrics


async def test_a_copy_never_replaces_what_is_there(gateway: Standing, bucket: Bucket) -> None:
    for name in ("a", "b"):
        await gateway.ask("PUT", f"{OWN}/g1/{name}.lmdb", body=name.encode())
    answer = await copy(gateway, "g1/a.lmdb", "g1/b.lmdb")
    assert (answer.status, answer.kind) == (412, "precondition")
    assert bucket.read(f"{CLUSTER}/team/people-1a2b3c4d/g1/b.lmdb").body == b"b"


async def test_a_copy_of_nothing_is_missing(gateway: Standing) -> None:
    answer = await copy(gateway, "g1/none.lmdb", "g1/b.lmdb")
    assert (answer.status, answer.kind) == (404, "missing")


async def test_a_copy_that_the_store_does_not_make_by_itself_is_too_large(
    gateway: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_objects, "MAX_COPY_BYTES", 6)
    await gateway.ask("PUT", f"{OWN}/g1/a.lmdb", body=b"content")
    answer = await copy(gateway, "g1/a.lmdb", "g1/b.lmdb")
    assert (answer.status, answer.kind) == (413, "too-large")


async def test_a_copy_names_two_shard_files_and_nothing_else(gateway: Standing) -> None:
    for body in (
        b"",
        b"{",
        b"[]",
        b'{"from": "a.lmdb"}',
        b'{"from": 1, "to": "a.lmdb"}',
        b'{"from": "a.lmdb", "to": "a.lmdb"}',
        b'{"from": "a.lmdb", "to": "b.lmdb", "mode": "create"}',
    ):
        assert (await gateway.ask("POST", "/v1/copy", body=body)).status == 400, body
    assert (await gateway.ask("POST", "/v1/copy", body=b" " * 5000)).status == 413
