"""Memory limits of a router, with the worst clients at the same time.

Real routers and shard servers; the tests measure the peak resident memory of the router's processes.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from support.fleets import fleet, fleet_entry
from support.http import Client, request
from support.routers import Router, routing
from support.routing import table_file
from support.shards import write_generation
from support.waiting import until

from lookupdb import disk
from lookupdb.process.memory import private_bytes
from lookupdb.router import budget

pytestmark = pytest.mark.long

MIB = 1 << 20
POD_LIMIT = 256 * MIB
"""Half of the default memory of a router's pod, with a quarter of its budget, so that the budget is used up sooner."""
LARGE = [f"large{number}" for number in range(40)]
BODY_BYTES = 1 << 20
MOST_IS_ANSWERED, MOST_IS_GIVEN_UP = "5000", "300"
"""Milliseconds that a lookup may take."""


def value(name: str) -> bytes:
    return f'"{name}'.encode().ljust(1_000_000, b".") + b'"'


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("memory")
    disk.raise_limit()
    records = {name: value(name) for name in LARGE} | {f"small{number}": b"%d" % number for number in range(100)}
    generation = write_generation(home, records, shards=2, value_format="json")
    with fleet(generation) as shards:
        (home / "table.json").write_bytes(table_file(fleet_entry(generation, shards)))
        yield home / "table.json"


def limited_router(table: Path, deadline: str) -> AbstractContextManager[Router]:
    return routing(table, "--memory-limit", str(POD_LIMIT), "--write-timeout", "10", "--deadline-ms", deadline)


@pytest.fixture(scope="module")
def router(table: Path, request: pytest.FixtureRequest) -> Iterator[Router]:
    """One router for all attacks. It must free what one attack used before the next."""
    with limited_router(table, request.param) as router:
        yield router


@pytest.fixture
def fresh_router(table: Path) -> Iterator[Router]:
    with limited_router(table, MOST_IS_ANSWERED) as router:
        yield router


def peak(router: Router) -> int:
    """The most that the router's processes had resident, summed up."""
    pids = [router.process.pid, *(worker["pid"] for worker in router.status()["workers"])]
    return sum(_peak(pid) for pid in pids)


def _peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def worker_pid(router: Router) -> int:
    return int(router.status()["workers"][0]["pid"])


def metric(router: Router, name: str) -> float:
    lines = router.metrics().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"lookupdb_router_{name} "))


def connect(router: Router, *, receive_buffer: int | None = None) -> Client:
    raw = socket.socket()
    if receive_buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.settimeout(90)
    raw.connect(("127.0.0.1", router.port))
    return Client(raw)


def post(keys: list[str]) -> bytes:
    body = json.dumps({"keys": keys}).encode()
    return request("/v1/lookup", f"Content-Length: {len(body)}", method="POST") + body


def send_what_is_taken(client: Client, data: bytes) -> None:
    """As much of ``data`` as the router reads within a moment, and no further."""
    client.raw.settimeout(0.1)
    with contextlib.suppress(OSError):
        client.raw.sendall(data)


Attack = Callable[[Router, ExitStack], None]


def batches_unread(router: Router, stack: ExitStack) -> None:
    """Ten pipelined batches on each of thirty connections, and no answer is read."""
    for _ in range(30):
        client = stack.enter_context(connect(router, receive_buffer=4096))
        client.send(post(LARGE[:20]) * 10)


def lookups_unread(router: Router, stack: ExitStack) -> None:
    """Pipelined lookups of large values, and no answer is read."""
    lookups = b"".join(request(f"/v1/lookup/{name}") for name in LARGE)
    for _ in range(25):
        stack.enter_context(connect(router, receive_buffer=4096)).send(lookups)


def too_large_batches(router: Router, stack: ExitStack) -> None:
    """Batches whose values are together more than an answer may have."""
    for _ in range(20):
        stack.enter_context(connect(router)).send(post(LARGE) * 2)


def bodies_without_end(router: Router, stack: ExitStack) -> None:
    """Bodies of the largest size whose last byte does not come."""
    head = request("/v1/lookup", f"Content-Length: {BODY_BYTES}", method="POST")
    for _ in range(200):
        send_what_is_taken(stack.enter_context(connect(router)), head + b" " * (BODY_BYTES - 1))


def heads_without_end(router: Router, stack: ExitStack) -> None:
    """Heads of almost the largest size that do not end."""
    head = request("/v1/lookup/small1")[:-2] + b"Accept: " + b"a" * 28_000
    for _ in range(2500):
        send_what_is_taken(stack.enter_context(connect(router)), head)


def small_requests_unread(router: Router, stack: ExitStack) -> None:
    """As many small requests as fit, and no answer is read."""
    small = b"GET /v1/lookup/small1 HTTP/1.1\r\nHost: r\r\n\r\n" * 8_000
    for _ in range(20):
        send_what_is_taken(stack.enter_context(connect(router, receive_buffer=4096)), small)


def bodies_in_small_chunks(router: Router, stack: ExitStack) -> None:
    """Bodies in chunks of two bytes, which do not end."""
    head = request("/v1/lookup", "Transfer-Encoding: chunked", method="POST")
    for _ in range(30):
        send_what_is_taken(stack.enter_context(connect(router)), head + b"2\r\n  \r\n" * 150_000)


ATTACKS: list[Attack] = [
    batches_unread,
    lookups_unread,
    too_large_batches,
    bodies_without_end,
    heads_without_end,
    small_requests_unread,
    bodies_in_small_chunks,
]


@pytest.mark.parametrize(
    ("router", "attack"),
    [*((MOST_IS_ANSWERED, attack) for attack in ATTACKS), (MOST_IS_GIVEN_UP, batches_unread)],
    ids=[*(attack.__name__ for attack in ATTACKS), "batches_given_up"],
    indirect=["router"],
    scope="module",
)
def test_no_kind_of_client_makes_a_router_hold_more_than_its_pod_may(router: Router, attack: Attack) -> None:
    with ExitStack() as stack:
        attack(router, stack)
        settle(router)
        print(attack.__name__, f"{peak(router) / MIB:.0f} MiB", metric(router, "budget_used_bytes") / MIB)
        assert peak(router) < POD_LIMIT, f"{peak(router) / MIB:.0f} MiB"
        assert_small_lookups_are_answered_or_refused(router)
    assert_recovers(router)


@pytest.mark.parametrize("router", [MOST_IS_ANSWERED], indirect=True)
def test_nor_do_all_of_them_together(router: Router) -> None:
    stop = threading.Event()
    failures: list[str] = []

    def ask() -> None:
        while not stop.is_set():
            try:
                assert_small_lookups_are_answered_or_refused(router)
            except AssertionError as error:
                failures.append(str(error))
            stop.wait(0.02)  # the processors are the attackers'

    stranger = threading.Thread(target=ask)
    stranger.start()
    with ExitStack() as stack:
        attackers = [threading.Thread(target=attack, args=(router, stack)) for attack in ATTACKS]
        for attacker in attackers:
            attacker.start()
        for attacker in attackers:
            attacker.join()
        settle(router)
        stop.set()
        stranger.join()
    assert failures == []
    print("all", f"{peak(router) / MIB:.0f} MiB", metric(router, "budget_bytes") / MIB)
    assert peak(router) < POD_LIMIT, f"{peak(router) / MIB:.0f} MiB"
    assert_recovers(router)


def settle(router: Router) -> None:
    """Wait until what is used of the budget no longer changes."""
    used = -1.0
    deadline = time.monotonic() + 20
    while (now := metric(router, "budget_used_bytes")) != used and time.monotonic() < deadline:
        used = now
        time.sleep(0.4)


def assert_small_lookups_are_answered_or_refused(router: Router) -> None:
    with connect(router) as client:
        response = client.get("/v1/lookup/small7")
    if response.status == 503:
        assert response.fields["retry-after"] == "1"
        assert json.loads(response.body)["reason"] in ("Overloaded", "Deadline"), response.body
    else:
        assert (response.status, response.body) == (200, b"7")


def assert_recovers(router: Router) -> None:
    """Nothing is held once the clients have gone, and everything is answered again."""
    until(lambda: metric(router, "connections") == 0, "the clients have gone")
    until(lambda: metric(router, "budget_used_bytes") == 0, "nothing is held")
    document = json.loads(until(lambda: answered_batch(router, LARGE[:10]), "a large batch is answered"))
    assert document["found"] == {name: json.loads(value(name)) for name in LARGE[:10]} | {"small1": 1}
    assert document["missing"] == ["none"]


def answered_batch(router: Router, names: list[str]) -> bytes:
    """Empty while the machine takes longer than a lookup may."""
    with connect(router) as client:
        client.send(post([*names, "small1", "none"]))
        response = client.response()
    assert response.status == 200 or json.loads(response.body)["reason"] == "Deadline", response.body[:200]
    return response.body if response.status == 200 else b""


def test_one_client_that_reads_nothing_gets_one_answer_and_no_more_is_begun(fresh_router: Router) -> None:
    router = fresh_router
    with connect(router, receive_buffer=4096) as client:
        client.send(post(LARGE[:15]) * 10)
        settle(router)
        assert metric(router, "budget_used_bytes") < 23 * MIB
        assert metric(router, "keys_found_total") < 31


def test_a_connection_costs_no_more_than_was_reckoned(fresh_router: Router) -> None:
    router = fresh_router
    count = 1000
    before = private_bytes(worker_pid(router)) or 0
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(router)) for _ in range(count)]
        padding = "X-Padding: " + "x" * 1800
        for client in clients:
            client.send(request("/v1/lookup/small1", padding))
        for client in clients:
            assert client.response().status == 200
        each = ((private_bytes(worker_pid(router)) or 0) - before) / count
    assert each < budget.CONNECTION_BYTES, each
