"""A gateway whose keys change, with slow or lost clients, and some that want all of its room."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
import resource
from pathlib import Path
from typing import Any, cast

import pytest
from operator_support.gateways import CLUSTER, MIB, Standing, head, standing
from operator_support.kube import Refusal
from operator_support.running import until
from support.buckets import variables
from support.signers import Signer, ec_signer, jwks, rsa_signer

from lookupdb import account_tokens
from lookupdb.store.bucket import Bucket
from lookupdb.store.objects import MODE_HEADER
from lookupdb_operator.cluster.api import Answer
from lookupdb_operator.cluster.client import MOST_WAITING, Api
from lookupdb_operator.gateway.request import RequestProblem
from lookupdb_operator.gateway.transfers import WAIT_SECONDS, Budget

pytest_plugins = ["operator_support.gateway_fixtures"]

FOLDER = f"{CLUSTER}/team"
OWN = f"/v1/object/{FOLDER}"
JWKS = "/openid/v1/jwks"


async def test_a_new_key_is_read_when_a_token_names_it(gateway: Standing) -> None:
    new = rsa_signer("rotated")
    gateway.gateway.keys._tried_at = -1e9  # the last read was long ago
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


async def test_refusals_of_each_reason_begin_at_zero(gateway: Standing) -> None:
    metrics = (await gateway.admin("/metrics"))[1]
    of_tokens = re.findall(r'InvalidToken\("(\w+)"', inspect.getsource(account_tokens))
    for reason in ("absent", "forbidden", "key", *of_tokens):
        assert f'lookupdb_gateway_refusals_total{{reason="{reason}"}} 0.0' in metrics


@pytest.mark.parametrize("size", [100, 12 * MIB])
async def test_a_body_that_ends_early_puts_nothing(gateway: Standing, bucket: Bucket, url: str, size: int) -> None:
    sent = bytes(size - 1)
    await gateway.send(head("PUT", f"{OWN}/d/x.lmdb", f"Content-Length: {size}") + sent, close=True)
    await until(lambda: gateway.gateway.metrics.requests["write", 400], "the upload to be given up")
    assert bucket.read(f"{FOLDER}/d/x.lmdb").body is None
    assert await count_uploads(gateway, bucket, url) == 0
    assert gateway.gateway.budget.used == 0


async def count_uploads(gateway: Standing, bucket: Bucket, url: str) -> int:
    """Return the number of uploads with parts in the bucket."""
    async with gateway.session.get(f"{url}/{bucket.url.split('/')[2]}?uploads") as response:
        return (await response.text()).count("<UploadId>")


@pytest.mark.parametrize("size", [100, 12 * MIB])
async def test_a_body_that_stops_coming_puts_nothing(gateway: Standing, bucket: Bucket, url: str, size: int) -> None:
    raw = await gateway.send(head("PUT", f"{OWN}/d/x.lmdb", f"Content-Length: {size}") + bytes(size // 2))
    assert raw.startswith(b"HTTP/1.1 408"), raw[:200]
    assert bucket.read(f"{FOLDER}/d/x.lmdb").body is None
    assert await count_uploads(gateway, bucket, url) == 0


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
        assert len(gateway.gateway.server.connections) <= 16 * 4 + 1
        for _, writer in silent:
            writer.close()


async def test_silent_clients_do_not_take_the_descriptors_of_others(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the hard limit is low."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    async with standing(tmp_path, bucket.url, max_requests=256) as gateway:
        assert gateway.gateway.server
        assert gateway.gateway.server.most_connections + 2 * 256 < 1024


async def test_uploads_of_one_namespace_leave_room_for_another(bucket: Bucket, tmp_path: Path) -> None:
    async with standing(tmp_path, bucket.url, max_requests=8) as gateway:
        begun = [await begin_upload(gateway, 100) for _ in range(6)]
        await until(lambda: gateway.gateway.in_flight == 3, "half of the places for files")
        refused = await gateway.ask("PUT", f"{OWN}/d/y", body=b"y")
        assert (refused.status, refused.kind, refused.headers["Retry-After"]) == (503, "busy", "1")
        claim = await gateway.ask("PUT", f"{OWN}/d/claim.json", body=b"{}", headers={MODE_HEADER: "create"})
        assert claim.status == 200, "what is short finds a place beside them"
        assert (await gateway.ask("GET", f"{OWN}/d/x")).kind == "missing"
        other = await gateway.ask("PUT", f"/v1/object/{CLUSTER}/other/d/x", namespace="other", body=b"x")
        assert other.status == 200
        for writer in begun:
            writer.close()
        await until(lambda: gateway.gateway.in_flight == 0, "nothing in flight")


async def test_it_takes_many_namespaces_to_leave_another_no_place() -> None:
    places = Budget(192, "requests", wait_seconds=0)
    async with contextlib.AsyncExitStack() as taken:
        for number in range(7):
            with contextlib.suppress(RequestProblem):
                while True:
                    await taken.enter_async_context(places.reserve(f"team-{number}", 1))
        assert places.used < 192
        await taken.enter_async_context(places.reserve("another", 1))
        with pytest.raises(RequestProblem, match="namespace team-0 has 96 of 192 requests, others have 96"):
            await taken.enter_async_context(places.reserve("team-0", 1))
    assert places.used == 0


async def begin_upload(gateway: Standing, size: int) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head("PUT", f"{OWN}/d/x.lmdb", f"Content-Length: {size}") + b"x")
    return writer


async def test_uploads_of_one_namespace_leave_memory_for_another(bucket: Bucket, tmp_path: Path) -> None:
    async with standing(tmp_path, bucket.url) as gateway:
        begun = [await begin_upload(gateway, 64 * MIB) for _ in range(7)]  # of 16 MiB of memory each, and a little
        await until(lambda: gateway.gateway.in_flight == 7, "all of them")
        assert 80 * MIB < gateway.gateway.budget.used <= 96 * MIB, "half of it"
        other = await gateway.ask("PUT", f"/v1/object/{CLUSTER}/other/d/x", namespace="other", body=bytes(MIB))
        assert other.status == 200
        for writer in begun:
            writer.close()
        await until(lambda: gateway.gateway.budget.used == 0, "all memory to be free")


async def test_what_many_namespaces_hold_leaves_room_for_what_is_short(bucket: Bucket, tmp_path: Path) -> None:
    async with standing(tmp_path, bucket.url) as gateway:
        budget = gateway.gateway.short_budget
        begun = []
        for team in ("one", "two", "three", "four"):
            for _ in range(9):
                begun.append(await begin_conditional(gateway, team, budget.most - MIB))
        await until(lambda: budget.used > 0.8 * budget.total, "most of the memory to be taken")
        for method, target in (("GET", f"{OWN}/d/x"), ("GET", f"/v1/list?prefix={FOLDER}")):
            async with asyncio.timeout(WAIT_SECONDS / 2):
                assert (await gateway.ask(method, target)).status in (200, 404)
        claim = await gateway.ask("PUT", f"{OWN}/d/claim.json", body=b"{}", headers={MODE_HEADER: "create"})
        assert claim.status == 200
        for writer in begun:
            writer.close()
        await until(lambda: budget.used == 0, "all memory to be free")


async def begin_conditional(gateway: Standing, namespace: str, size: int) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    lines = (f"Content-Length: {size}", f"{MODE_HEADER}: create")
    target = f"/v1/object/{CLUSTER}/{namespace}/d/x"
    writer.write(head("PUT", target, *lines, token=rsa_signer().token(namespace)) + b"x")
    return writer


async def test_who_waits_keeps_no_other_namespace_waiting() -> None:
    budget = Budget(8 * MIB, wait_seconds=60)
    async with contextlib.AsyncExitStack() as held:
        for namespace in ("one", "one", "one", "one", "two", "two"):
            await held.enter_async_context(budget.reserve(namespace, MIB))
        waiting = [asyncio.create_task(hold(budget, name, MIB)) for name in ("one", "two", "three", "three")]
        await asyncio.sleep(0)
        async with asyncio.timeout(5), budget.reserve("four", MIB // 8):
            assert not waiting[0].done()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)
    assert budget.used == 0


async def hold(budget: Budget, namespace: str, amount: int) -> None:
    async with budget.reserve(namespace, amount):
        pass


async def test_one_request_has_an_eighth_at_most() -> None:
    budget = Budget(8 * MIB)
    with pytest.raises(RequestProblem, match="body-memory"):
        await hold(budget, "team", MIB + 1)


async def test_a_short_body_that_trickles_in_does_not_take_for_ever(bucket: Bucket, tmp_path: Path) -> None:
    async with standing(tmp_path, bucket.url, short_seconds=1.0) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head("PUT", f"{OWN}/d/x", f"Content-Length: {2 * MIB}", f"{MODE_HEADER}: create"))
        async with asyncio.timeout(20):
            answer = asyncio.create_task(reader.readline())
            while not answer.done():
                writer.write(bytes(1000))
                await asyncio.wait([answer], timeout=0.05)
        assert answer.result().startswith(b"HTTP/1.1 408"), answer.result()
        assert gateway.gateway.short_budget.used == 0
        writer.close()


@pytest.mark.parametrize("request_line", [f"GET {OWN}/d/x", f"HEAD {OWN}/d/x", f"GET /v1/list?prefix={FOLDER}"])
async def test_who_goes_while_the_store_is_silent_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_line: str
) -> None:
    silent = await asyncio.start_server(read_all, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    for name, value in variables(f"http://127.0.0.1:{port}").items():
        monkeypatch.setenv(name, value)
    async with silent, standing(tmp_path, "s3://bucket") as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head(*request_line.split(" ", 1)))
        await until(lambda: gateway.gateway.in_flight == 1, "the request")
        writer.close()
        async with asyncio.timeout(3):
            await until(lambda: gateway.gateway.in_flight == 0, "its end")
        assert gateway.gateway.short_budget.used == 0


async def read_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def test_few_wait_for_keys_that_do_not_come(gateway: Standing) -> None:
    never = asyncio.Event()

    class Silent:
        async def fetch(self, path: str, *, subject: str) -> Answer:
            await never.wait()
            raise AssertionError("it is never set")

    keys = gateway.gateway.keys
    keys._api = cast(Api, Silent())
    keys._tried_at = -1e9
    token = rsa_signer("unheard-of").token()
    asked = [asyncio.create_task(gateway.ask("GET", f"{OWN}/x", token=token)) for _ in range(MOST_WAITING + 9)]
    done: set[asyncio.Task[Any]] = set()
    async with asyncio.timeout(5):
        while len(done) < 9:
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=0.1)
    assert {(task.result().status, task.result().kind) for task in done} == {(503, "busy")}
    assert len(done) == 9
    for task in asked:
        task.cancel()


async def test_a_client_that_does_not_read_is_cut_off(gateway: Standing, bucket: Bucket) -> None:
    bucket.objects.put(f"{FOLDER}/d/large", bytes(20 * MIB))
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
    writer.write(head("GET", f"{OWN}/d/large"))
    await until(lambda: gateway.gateway.metrics.requests["read", 499], "the reader to be cut off")
    assert gateway.gateway.budget.used == 0
    writer.close()
