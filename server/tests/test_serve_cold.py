"""Cold data: requests wait for their pages apart from the loop, and are answered as they would be otherwise."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import redis
from support.invariants import check_invariants
from support.lone_connection import LoneConnection, keep_turns_going
from support.shards import serving, write_generation
from support.waiting import until
from test_serve import request

from lookupdb import native
from lookupdb.process import listeners, memory
from lookupdb.shard import limits
from lookupdb.shard.commands import WorkerContext
from lookupdb.shard.connection import BUSY, CLOSED, DRAIN_READING, HALF_CLOSED, READ, READING, RespConnection
from lookupdb.shard.limits import ServerIdentity, ServerLimits
from lookupdb.shard.worker import WorkerLoop
from lookupdb.shardfile import ShardReader

pytestmark = pytest.mark.long

RECORDS = {f"key-{number}": b"%d" % number * 50 for number in range(5000)} | {"large": b"v" * 300_000}
GET, REPLY = request(b"GET", b"key-7"), b"$50\r\n%b\r\n" % (b"7" * 50)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> ShardReader:
    directory: Path = tmp_path_factory.mktemp("cold")
    return ShardReader(next(write_generation(directory, RECORDS).glob("*.lmdb")))


@pytest.fixture
def talk(shard: ShardReader, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoneConnection]:
    """A connection that parks the requests that it reads, until the test unparks it."""
    keep_turns_going(monkeypatch)
    with contextlib.closing(LoneConnection(shard, ServerLimits(idle_seconds=1000))) as talk:
        talk.poller.park = lambda *_: None
        talk.connection.choose_path()
        yield talk


class TestAParkedConnection:
    def test_answers_when_it_is_called_back(self, talk: LoneConnection) -> None:
        talk.send(GET)
        assert talk.take_rest() == b""
        talk.connection.unpark()
        check_invariants(talk.connection)
        assert talk.take_rest() == REPLY

    def test_reads_nothing_meanwhile(self, talk: LoneConnection) -> None:
        talk.send(GET)
        talk.client.sendall(request(b"GET", b"none"))
        assert talk.turn() == 0
        talk.connection.unpark()
        assert talk.turn() == READ
        talk.connection.unpark()
        assert talk.take_rest() == REPLY + b"$-1\r\n"

    def test_may_have_read_any_part_of_a_request(self, talk: LoneConnection) -> None:
        requests = request(b"MGET", b"key-7", b"key-8") + b"PING\r\n"
        for cut in range(1, len(requests)):
            for part in (requests[:cut], requests[cut:]):
                talk.send(part)
                if talk.connection.parked:  # the first bytes do not say yet that it is a lookup
                    talk.connection.unpark()
                check_invariants(talk.connection)
            assert talk.take_rest() == b"*2\r\n" + REPLY + REPLY.replace(b"7", b"8") + b"+PONG\r\n"

    def test_is_not_for_the_hot_path_before_it_has_answered(self, talk: LoneConnection) -> None:
        talk.send(GET)
        talk.poller.park = None
        talk.connection.choose_path()
        assert talk.poller.fast_path[talk.connection.fd] == BUSY
        talk.connection.unpark()
        assert talk.poller.fast_path[talk.connection.fd] != BUSY

    @pytest.mark.parametrize(
        "asked",
        [
            *(b"PING\r\n", request(b"PING"), request(b"INFO") + request(b"ECHO", b"target")),
            request(b"CLIENT", b"MAINT_NOTIFICATIONS", b"ON", b"moving-endpoint-type", b"none"),  # of redis-py
        ],
    )
    def test_of_a_client_that_looks_nothing_up_parks_nothing(self, talk: LoneConnection, asked: bytes) -> None:
        talk.poller.park = lambda *_: pytest.fail("it waits for no page")
        talk.send(asked)
        assert talk.take_rest()[:1] in (b"+", b"$", b"-")

    @pytest.mark.parametrize(
        "asked",
        [
            *(b"get key-7\r\n", request(b"EXISTS", b"key-7"), request(b"PING") + GET),
            *(
                request(b"touch", b"key-7"),
                b" 'exists' key-7\r\n",
                request(b"PING") + request(b"GETRANGE", b"key-7", b"0", b"-1"),
            ),
        ],
    )
    def test_of_any_that_may_look_something_up_parks_all(self, talk: LoneConnection, asked: bytes) -> None:
        talk.send(asked)
        assert talk.take_rest() == b""
        talk.connection.unpark()
        assert talk.take_rest().startswith((REPLY, b":1", b"+PONG\r\n" + REPLY))

    def test_of_a_transaction_waits_for_the_pages_of_what_is_queued(self, talk: LoneConnection) -> None:
        talk.send(request(b"MULTI"))
        assert talk.take_rest() == b"+OK\r\n"
        for asked in (GET, request(b"STRLEN", b"key-8")):
            talk.send(asked)
            assert talk.connection.list_lookups() == asked
            talk.connection.unpark()
            check_invariants(talk.connection)
        assert talk.take_rest() == b"+QUEUED\r\n" * 2
        talk.send(request(b"EXEC"))
        assert talk.connection.list_lookups() == request(b"EXEC") + b"$5\r\nkey-7\r\n$5\r\nkey-8\r\n"
        talk.connection.unpark()
        assert talk.take_rest() == b"*2\r\n" + REPLY + b":50\r\n"

    def test_answers_a_ping_behind_a_lookup_after_it(self, talk: LoneConnection) -> None:
        talk.send(GET)
        talk.client.sendall(b"PING\r\n")
        assert talk.turn() == 0
        talk.connection.unpark()
        talk.turn()
        assert talk.take_rest() == REPLY + b"+PONG\r\n"

    def test_counts_what_it_holds(self, talk: LoneConnection) -> None:
        talk.send(GET)
        assert talk.connection.held_bytes == len(GET)
        talk.connection.unpark()
        assert talk.connection.held_bytes == 0

    def test_is_answered_before_the_worker_ends(self, talk: LoneConnection) -> None:
        talk.send(GET)
        talk.connection.drain()
        talk.connection.end()
        assert talk.connection.state is DRAIN_READING
        talk.connection.unpark()
        assert talk.connection.state is HALF_CLOSED
        assert talk.take_rest() == REPLY

    def test_notices_that_its_client_is_gone(self, talk: LoneConnection) -> None:
        talk.send(GET)
        talk.client.close()
        talk.turn()
        assert talk.connection.state is CLOSED
        talk.connection.unpark()
        assert talk.connection.state is CLOSED

    def test_of_a_client_without_the_password_parks_nothing(self, shard: ShardReader) -> None:
        with contextlib.closing(LoneConnection(shard, ServerLimits(), b"secret")) as talk:
            talk.poller.park = lambda *_: pytest.fail("it may not ask")
            talk.send(GET)
            assert talk.take_rest().startswith(b"-NOAUTH")
            assert talk.connection.state is READING


class ServedShard:
    """A worker's loop in a thread of this process, whose data is cold or not as the test says."""

    def __init__(self, shard: ShardReader) -> None:
        self.slot = memoryview(bytearray(8 * len(limits.NAMES) + 8)).cast("Q")
        identity = ServerIdentity(1, "default/sample", "", "generation", 0, 1, 1, (), "raw")
        self.worker = WorkerContext(shard=shard, identity=identity, limits=ServerLimits(), slot=self.slot)
        self._listener = listeners.bind("127.0.0.1", 0)
        self._listener.listen()
        self.port = listeners.bound_port(self._listener)
        self.loop = WorkerLoop(self.worker, self._listener)
        self._orders: list[Callable[[], None]] = []
        self._is_running = True
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def use(self, is_cold: bool) -> None:
        """Let data be cold from now on, or warm, and return when it is."""
        cold_data = self.loop.cold_data
        assert cold_data is not None
        self._orders.append(lambda: cold_data.use(is_cold, self.worker.connections))
        until(lambda: not self._orders, "the loop has taken note")

    def close(self) -> None:
        """End the loop."""
        self._is_running = False
        self._thread.join()
        for connection in list(self.worker.connections.values()):
            connection.close()
        for end in (self._listener, self.loop._alarm, self.loop._bell, self.loop._poller.epoll):
            end.close()

    def _run(self) -> None:
        while self._is_running:
            self.loop.run(0.01)
            while self._orders:
                self._orders[0]()
                self._orders.pop(0)
            for connection in list(self.worker.connections.values()):
                check_invariants(connection)


@pytest.fixture
def served(shard: ShardReader) -> Iterator[ServedShard]:
    with contextlib.closing(ServedShard(shard)) as served:
        yield served


class FailingWarmer:
    """A warmer with a bug."""

    def warm(self, requests: list[bytes]) -> int:
        raise RuntimeError(requests)


if native.kernels() is not None:  # Python's kernels park nothing

    class TestAWorkerWhoseDataIsCold:
        def test_answers_many_clients_rightly_however_often_it_changes(self, served: ServedShard) -> None:
            keys = [*RECORDS, *(f"none-{number}" for number in range(200))]
            wrong: list[object] = []

            def ask(seed: int) -> None:
                chance, end = random.Random(seed), time.monotonic() + 1.0
                with redis.Redis(port=served.port) as client:
                    while time.monotonic() < end:
                        asked = chance.choices(keys, k=chance.choice((1, 3, 100, 1500)))
                        found = [client.get(asked[0])] if len(asked) == 1 else client.mget(asked)
                        wrong.extend(key for key, value in zip(asked, found, strict=True) if value != RECORDS.get(key))

            threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
            for thread in threads:
                thread.start()
            is_cold = False
            while any(thread.is_alive() for thread in threads):
                served.use(is_cold := not is_cold)
                time.sleep(0.02)
            assert wrong == []
            assert served.slot[limits.LOOKUPS] > 0

        def test_answers_others_while_one_waits_for_a_disk(
            self, served: ServedShard, monkeypatch: pytest.MonkeyPatch
        ) -> None:
            disk, waiting = threading.Event(), threading.Semaphore(0)

            class SlowWarmer:
                def warm(self, requests: list[bytes]) -> int:
                    if b"key-1\r\n" in requests[0]:
                        waiting.release()
                        disk.wait()
                    return 0

            monkeypatch.setattr(served.loop.cold_data, "_warmer", SlowWarmer())
            served.use(True)
            with redis.Redis(port=served.port) as slow, redis.Redis(port=served.port) as other:
                found: list[object] = []
                thread = threading.Thread(target=lambda: found.append(slow.get("key-1")))
                thread.start()
                assert waiting.acquire(timeout=30)
                assert [other.get(key) for key in ("key-2", "key-3")] == [RECORDS["key-2"], RECORDS["key-3"]]
                assert not found
                disk.set()
                thread.join()
                assert found == [RECORDS["key-1"]]

        def test_answers_what_is_no_lookup_while_every_thread_waits_for_a_disk(
            self, served: ServedShard, monkeypatch: pytest.MonkeyPatch
        ) -> None:
            disk, waiting = threading.Event(), threading.Semaphore(0)

            class StuckWarmer:
                def warm(self, requests: list[bytes]) -> int:
                    waiting.release()
                    disk.wait()
                    return 0

            monkeypatch.setattr(served.loop.cold_data, "_warmer", StuckWarmer())
            served.use(True)
            address = ("127.0.0.1", served.port)
            with contextlib.ExitStack() as exit_stack:
                clients = [exit_stack.enter_context(socket.create_connection(address)) for _ in range(4)]
                for client in clients:  # as many as there are threads
                    client.sendall(GET)
                    assert waiting.acquire(timeout=30)
                with redis.Redis(port=served.port, socket_timeout=30) as router:
                    assert router.ping()
                    assert router.info()["tcp_port"] == served.worker.port
                disk.set()
                assert [client.recv(100) for client in clients] == [REPLY] * 4

        def test_reads_nothing_for_a_client_that_was_closed_meanwhile(
            self, served: ServedShard, monkeypatch: pytest.MonkeyPatch
        ) -> None:
            disk, asked = threading.Event(), list[bytes]()

            def waits_for(threads: int) -> None:
                until(lambda: len(asked) == threads, "a thread waits")

            class StuckWarmer:
                def warm(self, requests: list[bytes]) -> int:
                    asked.extend(requests)
                    disk.wait()
                    return 0

            monkeypatch.setattr(served.loop.cold_data, "_warmer", StuckWarmer())
            served.use(True)
            address = ("127.0.0.1", served.port)
            with contextlib.ExitStack() as exit_stack:
                for number in range(4):  # as many as there are threads
                    client = exit_stack.enter_context(socket.create_connection(address))
                    client.sendall(request(b"GET", b"key-1"))
                    waits_for(number + 1)
                with socket.create_connection(address) as gone:
                    gone.sendall(request(b"GET", b"key-2"))
                    until(lambda: served.worker.budget.total > 4 * len(GET), "it is parked")
                    (parked,) = [each for each in served.worker.connections.values() if b"key-2" in each.parked]
                    served._orders.append(parked.cut)
                    until(lambda: not served._orders, "it is cut")
                disk.set()
                assert client.recv(100) == b"$50\r\n%b\r\n" % (b"1" * 50)
                until(lambda: len(asked) == 5, "the last thread has gone on")
                assert asked[4] == b""

        def test_answers_some_of_many_that_can_be_answered_and_then_others(
            self, shard: ShardReader, served: ServedShard, monkeypatch: pytest.MonkeyPatch
        ) -> None:
            monkeypatch.setattr("lookupdb.shard.worker.TIME_SLICE_SECONDS", 0.0)
            answered: list[int] = []

            class Parked:
                fd, parked = -1, b""

                def list_lookups(self) -> bytes:
                    raise AssertionError("nothing is read ahead")

                def unpark(self) -> None:
                    answered.append(len(answered))

                def choose_path(self) -> None:
                    raise AssertionError("nothing is switched")

            rung = []
            with monkeypatch.context() as patch:
                patch.setattr(served.loop, "_ring", lambda: rung.append(len(answered)))
                cold_data = served.loop.cold_data
                assert cold_data is not None

                def answer() -> None:
                    cold_data.warmed.extend([cast(RespConnection, Parked())] * 3)
                    served.loop._answer_warmed()

                served._orders.append(answer)
                until(lambda: not served._orders, "some are answered")
            assert (answered, rung) == ([0], [1])

        def test_answers_though_pages_cannot_be_read_ahead(
            self, served: ServedShard, monkeypatch: pytest.MonkeyPatch
        ) -> None:
            monkeypatch.setattr(served.loop.cold_data, "_warmer", FailingWarmer())
            served.use(True)
            with redis.Redis(port=served.port) as client:
                until(lambda: client.get("key-1") == RECORDS["key-1"], "it answers")
                assert client.mget(["key-2", "none", "large"]) == [RECORDS["key-2"], None, RECORDS["large"]]

        def test_goes_on_without_threads_where_none_can_be_started(
            self, served: ServedShard, monkeypatch: pytest.MonkeyPatch
        ) -> None:
            def refuse(_: threading.Thread) -> None:
                raise RuntimeError("can't start new thread")

            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refuse)
                served.use(True)
            with redis.Redis(port=served.port) as client:
                assert client.get("key-1") == RECORDS["key-1"]

        def test_goes_back_to_the_hot_path(self, served: ServedShard) -> None:
            with redis.Redis(port=served.port) as client:
                client.ping()
                (connection,) = served.worker.connections.values()
                served.use(True)
                until(lambda: served.loop._poller.fast_path[connection.fd] == BUSY, "it is off the hot path")
                assert client.get("key-1") == RECORDS["key-1"]
                served.use(False)
                until(lambda: served.loop._poller.fast_path[connection.fd] != BUSY, "it is on the hot path")
                assert client.get("key-1") == RECORDS["key-1"]

    @pytest.fixture(scope="module")
    def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A generation of some thousand pages."""
        return write_generation(tmp_path_factory.mktemp("large"), LARGE_RECORDS)

    class TestAWorker:
        def test_finds_data_cold_that_is_on_disk(self, generation: Path, capfd: pytest.CaptureFixture[str]) -> None:
            """A busy machine may compute for longer than it waits for its disk, and then data do not count as cold. So
            several workers try, and one must find data cold."""
            (file,) = generation.glob("*.lmdb")
            for _ in range(10):
                with serving(generation, "--warm", "never") as server, redis.Redis(port=server.ports[0]) as client:
                    # Where the file system is in memory alone, everything stays there.
                    is_on_disk = (memory.resident_bytes(file) or 0) < file.stat().st_size / 2
                    look_up_all(client)
                is_cold = "pages are read from disk" in capfd.readouterr().err
                if is_cold or not is_on_disk:
                    break
            assert is_cold is is_on_disk

        def test_finds_no_data_cold_that_is_in_memory_however_much_is_asked(
            self, generation: Path, capfd: pytest.CaptureFixture[str]
        ) -> None:
            with serving(generation, "--warm", "always") as server, redis.Redis(port=server.ports[0]) as client:
                end = time.monotonic() + 1.5
                while time.monotonic() < end:
                    look_up_all(client)
            assert "pages are read from disk" not in capfd.readouterr().err


LARGE_RECORDS = {f"key-{number}": b"%05d" % number * 180 for number in range(12_000)}


def look_up_all(client: redis.Redis) -> None:
    """Ask for a hundred keys at a time, which are nowhere near each other."""
    keys = random.Random(1).sample(list(LARGE_RECORDS), len(LARGE_RECORDS))
    for start in range(0, len(keys), 100):
        asked = keys[start : start + 100]
        assert client.mget(asked) == [LARGE_RECORDS[key] for key in asked]


def test_without_native_kernels_nothing_is_parked(shard: ShardReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKUPDB_NATIVE", "0")
    with contextlib.closing(ServedShard(shard)) as served:
        assert served.loop.cold_data is None
        with redis.Redis(port=served.port) as client:
            assert client.get("key-1") == RECORDS["key-1"]


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ECONNRESET])
def test_a_client_whose_node_is_lost_is_no_error_of_the_server(
    served: ServedShard, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    served.loop.close_broken(-1, OSError(number, os.strerror(number)))
    assert caplog.records == []
