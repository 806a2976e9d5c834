"""A client connection: timeouts, clients that do not read, draining, and what is kept of answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.http import Client, ScriptedLookups, Server, eventually, request, serving

from lookupdb.router import clients
from lookupdb.router.clients import HIGH_WATER_BYTES, ClientPhase
from lookupdb.router.http.connection import HttpConnection
from lookupdb.router.http.problems import MAX_PIPELINE
from lookupdb.router.lookups import Waiter

BIG = b'"' + b"x" * 500_000 + b'"'


@pytest.fixture(autouse=True, scope="module")
def _frequent_sweeps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "SWEEP_SECONDS", 0.02)
        patch.setattr(clients, "LINGER_SECONDS", 0.3)
        yield


@pytest.fixture
def server() -> Iterator[Server]:
    limits = {"header_timeout_seconds": 0.3, "idle_timeout_seconds": 0.6, "write_timeout_seconds": 0.5}
    with serving(ScriptedLookups(values={"a": b"1", "big": BIG}), **limits) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.connect() as client:
        yield client


@pytest.fixture
def patient_server() -> Iterator[Server]:
    """A server whose requests, and everything else, may take a minute."""
    with serving(ScriptedLookups(values={"a": b"1", "big": BIG}), header_timeout_seconds=60) as server:
        yield server


@pytest.fixture
def patient_client(patient_server: Server) -> Iterator[Client]:
    with patient_server.connect() as client:
        yield client


@contextlib.contextmanager
def not_before(server: Server, deadline: str) -> Iterator[None]:
    """Check that the block sees nothing before this deadline of the front."""
    end = server.call(lambda: getattr(server.service, deadline))
    yield
    assert server.call(lambda: asyncio.get_running_loop().time()) >= end


def answered_client(server: Server, stack: contextlib.ExitStack) -> Client:
    """A client that has had an answer. On a busy machine one may be idle for too long before it comes to ask."""
    while True:
        client = stack.enter_context(server.connect())
        with contextlib.suppress(EOFError, ConnectionError):
            assert client.get("/v1/lookup/a").status == 200
            return client


def end_of_request(server: Server) -> float:
    """Return the deadline of the request that the only client has begun. A later request has a later one."""

    def ends() -> list[float]:
        return [it.deadline for it in server.front._connections if it.phase is ClientPhase.RECEIVING]

    eventually(lambda: server.call(ends))
    (end,) = server.call(ends)
    eventually(lambda: server.service.header_deadline > end)
    return float(end)


def post(*fields: str) -> bytes:
    return request("/v1/lookup", *fields, method="POST")


class TestSlowSenders:
    @pytest.mark.parametrize(
        "part",
        [
            b"G",
            b"GET /v1/look",
            request("/v1/lookup/a")[:-1],
            post("Content-Length: 15") + b'{"keys"',
            post("Transfer-Encoding: chunked") + b"5\r\nhel",
        ],
        ids=["a byte", "half a line", "a head but its end", "half a body", "half a chunk"],
    )
    def test_a_request_that_does_not_come_whole_in_time_is_408(
        self, server: Server, client: Client, part: bytes
    ) -> None:
        with not_before(server, "header_deadline"):
            response = client.send(part).response()
        assert (response.status, response.fields["connection"]) == (408, "close")
        assert json.loads(response.body)["type"].endswith("/request-timeout")
        assert client.ended()
        assert server.count("clients_timed_out") == 1

    def test_bytes_now_and_then_do_not_help(self, client: Client) -> None:
        statuses: list[int] = []
        reading = threading.Thread(target=lambda: statuses.append(client.response().status))
        reading.start()
        for byte in request("/v1/lookup/a", "X: " + "y" * 100):
            if statuses:
                break
            with contextlib.suppress(ConnectionError):  # it was closed meanwhile
                client.send(bytes([byte]))
            time.sleep(0.05)
        reading.join()
        assert statuses == [408]

    def test_the_clock_starts_again_with_each_request(self, patient_server: Server) -> None:
        whole = request("/v1/lookup/a")
        with patient_server.connect() as client:
            ends = []
            for _ in range(3):
                client.send(whole[:20])
                ends.append(end_of_request(patient_server))
                assert client.send(whole[20:]).response().body == b"1"
        assert ends == sorted(set(ends))

    def test_it_does_so_too_where_each_read_ends_in_the_middle_of_a_request(self, patient_server: Server) -> None:
        whole = request("/v1/lookup/a")
        with patient_server.connect() as client:
            client.send(whole[:20])
            ends = [end_of_request(patient_server)]
            for _ in range(9):
                assert client.send(whole[20:] + whole[:20]).response().body == b"1"
                ends.append(end_of_request(patient_server))
        assert ends == sorted(set(ends))

    def test_what_came_and_is_not_read_yet_is_not_late(self, server: Server, client: Client) -> None:
        server.lookups.delays["a"] = 0.5
        client.send(request("/v1/lookup/a", "X: " + "y" * 150) * 200)
        assert [client.response().status for _ in range(200)] == [200] * 200

    def test_a_part_of_a_request_leaves_a_slow_reader_its_time(self) -> None:
        huge = b" " * 8_000_000
        lookups = ScriptedLookups(values={"a": b"1", "huge": huge})
        limits = {"header_timeout_seconds": 0.3, "write_timeout_seconds": 30}
        with serving(lookups, **limits) as server, server.connect(receive_buffer=4096) as client:
            client.send(request("/v1/lookup/huge") + request("/v1/lookup/a")[:20])
            time.sleep(0.6)
            assert client.response().body == huge

    @pytest.mark.parametrize("part", [b"G", b"GET", b"GET /v1"])
    def test_answers_due_come_before_the_408(self, server: Server, client: Client, part: bytes) -> None:
        server.lookups.delays["a"] = 0.5
        client.send(request("/v1/lookup/a") + part)
        assert client.response().body == b"1"
        assert client.response().status == 408


def test_a_request_that_came_in_pieces_is_counted_until_it_is_whole(
    patient_server: Server, patient_client: Client
) -> None:
    budget = patient_server.lookups.budget
    patient_client.send(post("Content-Length: 10000"), b" " * 5000)
    eventually(lambda: budget.used >= 5000)
    assert patient_client.send(b'{"keys": ["a"]}'.rjust(5000)).response().status == 200
    assert budget.used == 0


def test_a_batch_is_counted_until_it_is_answered(patient_server: Server, patient_client: Client) -> None:
    lookups = patient_server.lookups
    lookups.held.add("a")
    patient_client.send(post("Content-Length: 5000"), b'{"keys": ["a"]}'.rjust(5000))
    eventually(lambda: lookups.batches)
    assert lookups.budget.used >= 5000
    patient_server.call(lookups.release)
    assert patient_client.response().status == 200
    assert lookups.budget.used == 0


class TestIdle:
    def test_a_connection_without_requests_ends(self, server: Server) -> None:
        with not_before(server, "idle_deadline"), server.connect() as client:
            assert client.ended()

    def test_so_does_one_that_has_had_its_answer(self, server: Server) -> None:
        with contextlib.ExitStack() as stack:
            assert answered_client(server, stack).ended()

    def test_empty_lines_are_no_request(self, server: Server) -> None:
        with contextlib.ExitStack() as stack:
            client = answered_client(server, stack)
            client.send(b"\r\n")
            assert client.ended(), "without a 408"

    def test_a_slow_lookup_is_not_idle(self, server: Server, client: Client) -> None:
        server.lookups.delays["a"] = 0.9
        assert client.get("/v1/lookup/a").body == b"1"


class TestSlowReaders:
    def test_one_that_reads_in_time_gets_everything(self) -> None:
        lookups = ScriptedLookups(values={"a": b"1", "big": BIG})
        with serving(lookups, write_timeout_seconds=5) as server, server.connect(receive_buffer=4096) as client:
            client.send(request("/v1/lookup/big") * 20 + request("/v1/lookup/a"))
            time.sleep(0.1)
            assert all(client.response().body == BIG for _ in range(20))
            assert client.response().body == b"1"

    def test_one_that_does_not_is_cut_off_and_no_more_is_looked_up_for_it(self, server: Server) -> None:
        with server.connect(receive_buffer=4096) as client:
            client.send(request("/v1/lookup/big") * 1000)
            eventually(lambda: server.count("clients_timed_out") == 1)
            eventually(lambda: server.count("connections") == 0)
            assert len(server.lookups.asked) <= MAX_PIPELINE + 8_000_000 // len(BIG)

    def test_what_waits_for_it_is_bounded(self, patient_server: Server) -> None:
        server = patient_server
        with server.connect(receive_buffer=4096) as client:
            client.send(request("/v1/lookup/big") * 1000)
            eventually(lambda: server.lookups.asked)
            time.sleep(0.1)
            (connection,) = server.call(lambda: tuple(server.front._connections))
            size = server.call(connection._transport.get_write_buffer_size)
            assert size <= HIGH_WATER_BYTES + MAX_PIPELINE * (len(BIG) + 1000)

    def test_beyond_half_of_the_budget_it_has_one_lookup_at_a_time(self, patient_server: Server) -> None:
        lookups, budget = patient_server.lookups, patient_server.lookups.budget
        lookups.held.add("a")
        patient_server.call(lambda: budget.take(budget.batch_mark))
        with patient_server.connect() as client:
            client.send(request("/v1/lookup/a") + request("/v1/lookup/b") * 9)
            eventually(lambda: lookups.asked)
            time.sleep(0.05)
            assert lookups.asked == ["a"]
            patient_server.call(lookups.release)
            assert [client.response().status for _ in range(10)] == [200] + [404] * 9

    def test_its_last_answer_may_take_as_long_as_any(self) -> None:
        huge = b" " * 8_000_000
        lookups = ScriptedLookups(values={"huge": huge})
        with serving(lookups, write_timeout_seconds=30) as server, server.connect(receive_buffer=4096) as client:
            client.send(request("/v1/lookup/huge", "Connection: close"))
            time.sleep(1.2)  # four times what the front lingers
            assert client.response().body == huge

    def test_one_that_never_reads_its_last_answer_is_cut_off_too(self, server: Server) -> None:
        with server.connect(receive_buffer=4096) as client:
            server.lookups.values["huge"] = b" " * 8_000_000
            client.send(request("/v1/lookup/huge", "Connection: close"))
            eventually(lambda: server.count("connections_accepted") == 1)
            eventually(lambda: server.count("connections") == 0)
            with pytest.raises((ConnectionResetError, EOFError)):
                client.response()

    def test_a_closed_connection_is_not_kept_open_by_its_client(
        self, patient_server: Server, patient_client: Client
    ) -> None:
        assert patient_client.get("/v1/lookup/a", "Connection: close").status == 200
        eventually(lambda: patient_server.count("connections") == 0)


class TestDraining:
    @pytest.fixture(name="server")
    def _server(self, patient_server: Server) -> Server:
        """No deadline passes on a busy machine."""
        return patient_server

    @pytest.fixture(name="client")
    def _client(self, patient_client: Client) -> Client:
        return patient_client

    def test_answers_close_their_connections(self, server: Server, client: Client) -> None:
        client.get("/v1/lookup/a")
        server.call(server.front.drain)
        assert client.get("/v1/lookup/a").fields["connection"] == "close"
        assert client.ended()

    def test_new_connections_are_still_served(self, server: Server) -> None:
        server.call(server.front.drain)
        for target in ("/v1/lookup/a", "/v1/lookup/none", "/v1/dataset", "/nothing"):
            with server.connect() as client:
                assert client.get(target).fields["connection"] == "close"
                assert client.ended()

    def test_pipelined_requests_are_all_answered_and_the_last_one_closes(self, server: Server, client: Client) -> None:
        server.lookups.delays["a"] = 0.05
        client.send(request("/v1/lookup/a") * 100)
        server.call(server.front.drain)
        responses = [client.response() for _ in range(100)]
        assert [response.body for response in responses] == [b"1"] * 100
        assert ["connection" in response.fields for response in responses] == [False] * 99 + [True]
        assert client.ended()

    def test_so_are_those_that_need_no_lookup(self, server: Server, client: Client) -> None:
        server.call(server.front.drain)
        client.send(request("/v1/dataset") * 3 + request("/nothing") + request("/v1/lookup/a"))
        responses = [client.response() for _ in range(5)]
        assert [response.status for response in responses] == [200, 200, 200, 404, 200]
        assert ["connection" in response.fields for response in responses] == [False] * 4 + [True]
        assert client.ended()

    def test_damaged_requests_are_still_refused(self, server: Server, client: Client) -> None:
        server.call(server.front.drain)
        client.send(request("/v1/dataset") + b"nonsense\r\n")
        assert [client.response().status, client.response().status] == [200, 400]
        assert client.ended()

    def test_closing_waits_for_what_is_in_flight_and_not_for_who_is_idle(self, server: Server) -> None:
        server.lookups.delays["a"] = 0.2
        with server.connect() as busy, server.connect() as idle:
            busy.send(request("/v1/lookup/a"))
            eventually(lambda: server.lookups.asked)
            closing = threading.Thread(target=lambda: server.call(lambda: server.front.close(60)))
            closing.start()
            assert idle.ended()
            assert busy.response().body == b"1"
            assert busy.ended()
            busy.close()
            closing.join(20)
            assert not closing.is_alive()
            with pytest.raises(ConnectionRefusedError):
                server.connect()

    def test_no_request_fails_while_clients_come_and_go(self) -> None:
        with serving(ScriptedLookups(values={"a": b"1"}, delays={"a": 0.002})) as server:
            stop = threading.Event()
            failures: list[Exception] = []

            def ask() -> None:
                client = server.connect()
                while not stop.is_set():
                    try:
                        if client.get("/v1/lookup/a").fields.get("connection") == "close":
                            client.close()
                            client = server.connect()
                    except Exception as error:
                        failures.append(error)
                client.close()

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(0.1)
            server.call(server.front.drain)
            time.sleep(0.1)
            stop.set()
            for thread in threads:
                thread.join(30)
            assert failures == []


class TestHeldAnswers:
    """The lookup core may hold a waiter until its deadline, but not bytes that are no longer counted."""

    @pytest.mark.parametrize("leaves", [False, True])
    def test_an_answer_that_was_sent_or_will_not_be_is_kept_by_nobody(self, leaves: bool) -> None:
        lookups = RecordingLookups(values={"a": b"1", "big": BIG}, held={"a"})
        with serving(lookups) as server, server.connect() as client:
            client.send(request("/v1/lookup/a") + request("/v1/lookup/big"))
            eventually(lambda: len(lookups.waiters) == 2 and lookups.waiters[1].answer is not None)
            if leaves:
                client.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.raw.close()
                eventually(lambda: server.count("connections") == 0)
            else:
                server.call(lookups.release)
                assert [client.response().body for _ in range(2)] == [b"1", BIG]
            assert lookups.waiters[1].answer is None


class RecordingLookups(ScriptedLookups):
    """Keeps every waiter, as deadlines do."""

    def __init__(self, **script: Any) -> None:
        super().__init__(**script)
        self.waiters: list[Any] = []

    def find(self, key: str, waiter: Waiter, generation: str | None = None, **options: Any) -> None:
        self.waiters.append(waiter)
        super().find(key, waiter, generation, **options)


@pytest.mark.parametrize("method", ["OPTIONS", "PATCH"])
def test_what_is_answered_at_once_leaves_the_others_their_turn(server: Server, client: Client, method: str) -> None:
    assert client.get("/v1/lookup/a").status == 200
    flood = request("/v1/lookup/a", method=method) * 1000

    def receive() -> tuple[int, bool, bool]:
        (connection,) = server.front._connections
        assert isinstance(connection, HttpConnection)
        connection.data_received(flood)
        return connection._answered_at_once, bool(connection._waiting), bool(connection._unread)

    assert server.call(receive) == (MAX_PIPELINE, True, True)
    statuses = {client.response().status for _ in range(1000)}
    assert len(statuses) == 1
    assert client.get("/v1/lookup/a").body == b"1"
