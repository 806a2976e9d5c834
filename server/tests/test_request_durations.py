"""Histograms of requests: every request is counted once, by what it asked and how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import monotonic_ns

import pytest
from support.http import ScriptedLookups, Server, eventually, request, serving
from support.resp import RespServer, command, serving_resp
from support.shards import write_generation
from support.two_kinds import KINDS, InProcessWorker

from lookupdb.process.admin import CounterTotals, collect_counters, render_metrics
from lookupdb.process.worker import REQUEST_BOUNDS, REQUEST_SECONDS, Counters, histogram_names, make_observer, observe
from lookupdb.router.clients import RECEIVING
from lookupdb.router.counters import DURATIONS, NAMES
from lookupdb.router.resp.connection import RedisClientConnection
from lookupdb.router.router import collect_router
from lookupdb.shard import limits
from lookupdb.shard import server as shard_server

VALUES = {"a": b"1", "b": b"2"}


def lookups() -> ScriptedLookups:
    return ScriptedLookups(values=dict(VALUES), unavailable={"lost"})


def counted(server: Server) -> dict[tuple[str, ...], int]:
    """The number of requests in each histogram that has any; each has a duration."""
    found: dict[tuple[str, ...], int] = {}
    for labels, (*buckets, nanoseconds) in DURATIONS.items():
        number = sum(map(server.count, buckets))
        assert (server.count(nanoseconds) > 0) is (number > 0), labels
        if number:
            found[labels[1:]] = number
    return found


class TestHttp:
    @pytest.fixture
    def server(self) -> Iterator[Server]:
        with serving(lookups()) as server:
            yield server

    def test_lookups(self, server: Server) -> None:
        with server.connect() as client:
            for target in ("a", "a", "b", "none", "lost"):
                client.get(f"/v1/lookup/{target}")
            client.get("/v1/lookup/a", "Accept: text/html")
            client.get("/v1/lookup/a", method="HEAD")
        assert counted(server) == {("lookup", "ok"): 5, ("lookup", "failed"): 1, ("lookup", "refused"): 1}

    def test_batches(self, server: Server) -> None:
        with server.connect() as client:
            client.post(b'{"keys":["a","none"]}')
            client.post(b'{"keys":["a","b"]}')
            client.post(b'{"keys":["a","lost"],"partial":true}')
            client.post(b'{"keys":["lost"]}')
            client.post(b"{")
        assert counted(server) == {("batch", "ok"): 2, ("batch", "failed"): 2, ("batch", "refused"): 1}

    def test_other_requests_and_no_probes(self, server: Server) -> None:
        with server.connect() as client:
            for target in ("/v1/dataset", "/nothing", "/healthz", "/readyz"):
                client.get(target)
        assert counted(server) == {("other", "ok"): 1, ("other", "refused"): 1}

    def test_a_pipeline_counts_each_request(self, server: Server) -> None:
        with server.connect() as client:
            client.send(request("/v1/lookup/a") * 3 + request("/v1/lookup/lost"))
            for _ in range(4):
                client.response()
        assert counted(server) == {("lookup", "ok"): 3, ("lookup", "failed"): 1}

    def test_what_is_no_http_is_refused(self, server: Server) -> None:
        with server.connect() as client:
            client.send(b"no such thing\r\n\r\n").response()
        assert counted(server) == {("other", "refused"): 1}

    def test_a_request_lasts_from_its_first_byte(self, server: Server) -> None:
        """The client takes longer than any lookup."""
        with server.connect() as client:
            whole = request("/v1/lookup/a")
            client.send(whole[:20])
            eventually(lambda: server.call(lambda: any(it.phase is RECEIVING for it in server.front._connections)))
            began = monotonic_ns()
            while monotonic_ns() - began < 30_000_000:
                client.silent(0.03)
            client.send(whole[20:]).response()
        assert server.count(DURATIONS["http", "lookup", "ok"][-1]) > 30_000_000


class TestResp:
    @pytest.fixture
    def server(self) -> Iterator[RespServer]:
        with serving_resp(lookups()) as server:
            yield server

    def test_each_command(self, server: RespServer) -> None:
        with server.connect() as client:
            for words in (
                *(("GET", "a"), ("GET", "none"), ("STRLEN", "a"), ("GET", "lost"), ("GET",)),
                *(("MGET", "a", "none"), ("EXISTS", "a", "b"), ("MGET", "a", "lost")),
                *(("PING",), ("SET", "a", "b"), ("DBSIZE",)),
            ):
                client.ask(*words)
        assert counted(server) == {
            ("lookup", "ok"): 3,
            ("lookup", "failed"): 1,
            ("lookup", "refused"): 1,
            ("batch", "ok"): 2,
            ("batch", "failed"): 1,
            ("other", "ok"): 2,
            ("other", "refused"): 1,
        }

    def test_gets_that_arrive_together_end_one_by_one(self, server: RespServer) -> None:
        with server.connect() as client:
            client.send(b"".join(command("GET", key) for key in ("a", "lost", "none", "b")))
            client.replies(4)
        assert counted(server) == {("lookup", "ok"): 3, ("lookup", "failed"): 1}

    @pytest.mark.parametrize(("behind", "is_long"), [(0, True), (9, False)])
    def test_gets_behind_the_rest_of_an_earlier_one_arrive_with_it(
        self, server: RespServer, behind: int, is_long: bool
    ) -> None:
        get, long = command("GET", "a"), 10_000_000_000

        def wait() -> bool:
            (connection,) = server.front._connections
            if connection.phase is not RECEIVING:
                return False
            assert isinstance(connection, RedisClientConnection)
            connection.arrived -= long
            return True

        with server.connect() as client:
            client.send(get[:9])
            eventually(lambda: server.call(wait))
            client.send(get[9:] + behind * get).replies(1 + behind)
        assert (server.count(DURATIONS["resp", "lookup", "ok"][-1]) > long) is is_long

    def test_a_transaction_is_one_command(self, server: RespServer) -> None:
        with server.connect() as client:
            for words in (("MULTI",), ("GET", "a"), ("GET", "lost"), ("EXEC",)):
                client.ask(*words)
        assert counted(server) == {("other", "ok"): 3, ("batch", "failed"): 1}

    def test_what_is_no_resp_is_refused(self, server: RespServer) -> None:
        with server.connect() as client:
            client.send(b"*1\r\n!\r\n").reply()
        assert counted(server) == {("other", "refused"): 1}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_generation(tmp_path_factory.mktemp("store"), {f"k{n}": b"v" * n for n in range(500)}, shards=1)
    return next(folder.glob("shard-*"))


@pytest.mark.parametrize("kernels", KINDS)
class TestShard:
    def count(self, worker: InProcessWorker) -> dict[tuple[str, str], int]:
        places = {name: place for place, name in enumerate(limits.NAMES)}
        found = {
            labels: sum(worker.slot[places[name]] for name in buckets)
            for labels, (*buckets, _) in limits.DURATIONS.items()
        }
        return {labels: number for labels, number in found.items() if number}

    def test_each_command_alone_and_in_a_pipeline(self, path: Path, kernels: str) -> None:
        commands = [
            *(command("GET", "k1"), command("GET", "none"), command("MGET", "k1", "none"), command("EXISTS", "k1")),
            *(command("PING"), command("FOO")),
        ]
        with InProcessWorker(path, kernels) as worker:
            client = worker.connect()
            for data in (*commands, b"".join(commands)):
                worker.send(client, data)
                worker.replies(client)
            expected = {("get", "ok"): 4, ("mget", "ok"): 2, ("exists", "ok"): 2, ("other", "ok"): 2}
            assert self.count(worker) == {**expected, ("other", "failed"): 2}

    def test_replies_that_a_client_takes_slowly(self, path: Path, kernels: str) -> None:
        keys = [f"k{n}" for n in range(500)]
        with InProcessWorker(path, kernels) as worker:
            client = worker.connect(sent_bytes=4096)
            worker.send(client, command("MGET", *keys) + b"".join(command("GET", key) for key in keys))
            assert worker.replies(client).count(b"$499\r\n") == 2
            assert self.count(worker) == {("mget", "ok"): 1, ("get", "ok"): 500}


def test_buckets_include_their_upper_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10**12
    monkeypatch.setattr("lookupdb.process.worker.monotonic_ns", lambda: now)
    slot = memoryview(bytearray(8 * len(histogram_names("x")))).cast("Q")
    for nanoseconds in (0, *REQUEST_BOUNDS, REQUEST_BOUNDS[-1] + 1):
        observe(slot, 0, now - nanoseconds)
    observe(slot, 0, now - REQUEST_BOUNDS[3] - 1, 5)
    *buckets, total = slot
    assert buckets == [2, 1, 1, 1, 6, *[1] * (len(buckets) - 5)]
    assert total == sum(REQUEST_BOUNDS) + REQUEST_BOUNDS[-1] + 1 + 5 * (REQUEST_BOUNDS[3] + 1)


def test_the_native_kernel_counts_in_the_same_places() -> None:
    for seconds in (0.0, 0.02, 0.4, 20.0):
        counted = []
        for make in (make_observer, lambda counters: partial(observe, counters)):
            slot = memoryview(bytearray(8 * (5 + len(histogram_names("x"))))).cast("Q")
            make(slot)(5, monotonic_ns() - round(seconds * 1.2e9), 3)
            counted.append(list(slot[:-1]))
            assert slot[-1] >= 3 * seconds * 1e9
            assert sum(slot[5:-1]) == 3
        assert seconds == 0.0 or counted[0] == counted[1]


def test_workers_and_datasets_are_told_apart() -> None:
    """A router of several datasets: workers are summed, datasets are not. Those without requests are left out."""
    counters = Counters(NAMES, 2, 3)
    names = DURATIONS["http", "lookup", "ok"]
    for worker, block in ((0, 1), (1, 1), (1, 0)):
        observe(counters.slot(worker, block), counters.index[names[0]], monotonic_ns())
    labels = [{"namespace": "", "dataset": ""}, {"namespace": "n", "dataset": "x"}, {"namespace": "n", "dataset": "y"}]
    totals = CounterTotals(counters, lambda: labels)
    text = render_metrics([lambda: collect_router(totals, has_resp=False)]).decode()
    of_lookups = 'protocol="http",endpoint="lookup",outcome="ok"'
    name = "lookupdb_router_request_duration_seconds_count"
    assert f'{name}{{namespace="n",dataset="x",{of_lookups}}} 2.0' in text
    assert f'{name}{{namespace="",dataset="",{of_lookups}}} 1.0' in text
    assert f'{name}{{namespace="n",dataset="y"' not in text
    assert f'le="{REQUEST_SECONDS[0]}"' in text
    assert [counters.value(names[0], 0, 1) + sum(counters.value(it, 0, 1) for it in names[1:-1])] == [1]


def test_no_counter_of_a_shard_server_falls(path: Path) -> None:
    """Keys are counted before it is known which of them are missing, and a scrape may come in between."""
    counters = Counters(limits.NAMES, 1)
    totals = CounterTotals(counters, lambda: ({},))
    served = shard_server.locate_shard(path, None)
    before: dict[str, float] = {}
    for counted in (limits.LOOKUPS, limits.MISSES):
        counters.slot(0)[counted] += 5
        families = [
            *collect_counters(shard_server.PREFIX, totals, limits.COUNTERS, limits.GAUGES),
            *shard_server.collect_shard(served, totals),
        ]
        after = {it.name: sum(value for _, value in it.samples) for it in families if it.kind == "counter"}
        assert {name for name in before if after[name] < before[name]} == set()
        before = after
