"""Whatever clients send, in whatever pieces: both kinds of turn give the same bytes and count the same."""

from __future__ import annotations

import os
import random
import select
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import SAME
from support.shards import write_generation
from support.two_kinds import KINDS, InProcessWorker
from support.waiting import until
from test_resp import ODD_KEYS, request

from lookupdb import native
from lookupdb.keys import file_name
from lookupdb.resp.requests import RequestParser
from lookupdb.shard import connection
from lookupdb.shard import worker as worker_module
from lookupdb.shard.limits import CHUNK_BYTES, DURATIONS, READ_BYTES, ServerLimits
from lookupdb.shardfile import ShardReader, frame

VALUES = {f"key {number}": b"value %d of the sample " % number * (number % 60) for number in range(500)}
VALUES |= {f"large {number}": bytes([65 + number]) * 70_000 for number in range(5)}
DAMAGED_KEYS = ("key 59", "key 118", "large 3")

Script = Sequence[tuple[int, bytes, bool]]
"""Which client sends what, and whether it then reads what it was sent."""


@pytest.fixture(scope="module", params=["none", "zstd"])
def shard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shard file of VALUES in which those of DAMAGED_KEYS are damaged, each in its own way."""
    directory = tmp_path_factory.mktemp(request.param)
    path = write_generation(directory, VALUES, compression=request.param) / file_name(0, 1)
    with ShardReader(path) as reader:
        stored_values = [reader.txn.get(key.encode()) or b"" for key in DAMAGED_KEYS]
    content = path.read_bytes()
    for stored, damage in zip(stored_values, (bytes(8), b"$9\r\n", b"\xa0\xff\xff\xff\xff"), strict=True):
        assert content.count(stored) == 1
        content = content.replace(stored, damage + stored[len(damage) :])
    path.chmod(0o644)
    path.write_bytes(content)
    return path


def play(path: Path, kernels: str, script: Script, limits: ServerLimits | None = None) -> tuple[list[bytes], object]:
    """Return the bytes sent to each of three clients, and the counters; of durations, how many there are."""
    with pytest.MonkeyPatch.context() as patch, InProcessWorker(path, kernels, limits) as worker:
        # On a slow machine, a time slice may end between a reply and its count.
        patch.setattr(connection, "TIME_SLICE_SECONDS", 60.0)
        clients = [worker.connect(1 << 14) for _ in range(3)]
        for number, data, reads in script:
            worker.send(clients[number], data)
            worker.take_turns()
            if reads:
                worker.replies(clients[number])
        replies = [worker.replies(client) for client in clients]
        assert worker.errors == []
        assert worker.worker.budget.total == sum(held.held_bytes for held in worker.worker.connections.values())
        counters = worker.counters()
        for *buckets, nanoseconds in DURATIONS.values():
            counters[buckets[0]] = sum(map(counters.pop, buckets[1:]), counters[buckets[0]])
            del counters[nanoseconds]
        return replies, counters


KEYS = st.one_of(
    st.sampled_from([key.encode() for key in VALUES]),
    st.sampled_from([*ODD_KEYS, b"", b"k" * 512, *(key.encode() for key in DAMAGED_KEYS)]),
    st.binary(max_size=20),
)
LOOKUPS = st.one_of(
    KEYS.map(lambda key: request(b"GET", key)),
    st.tuples(st.sampled_from([b"GET", b"get", b"Mget", b"MGET"]), st.lists(KEYS, max_size=40)).map(
        lambda words: request(words[0], *words[1])
    ),
    st.lists(KEYS, min_size=1, max_size=30).map(lambda keys: b"".join(request(b"GET", key) for key in keys)),
)
OTHERS = st.one_of(
    st.sampled_from(
        [
            request(b"PING"),
            b"PING\r\n",
            b"get 'key 1'\r\n",
            b"\r\n",
            b"*0\r\n",
            request(b"HELLO", b"3"),
            request(b"HELLO", b"2"),
            request(b"RESET"),
            request(b"EXISTS", b"key 1", b"none", b"key 2"),
            request(b"DEL", b"key 1"),
            request(b"FOO"),
            request(b"QUIT"),
            b"*2\r\n$3\r\nGET\r\n$05\r\nkey 1\r\n",
            b"*2\n$3\nGET\r\n$5\nkey 1\r\n",
            b"*2\r\n$3\r\nGET\r\n$-1\r\n",
            b"*99999999\r\n",
            b"*20000\r\n$4\r\nMGET\r\n",
            b"*2\r\n$3\r\nGET\r\n:5\r\n",
        ]
    ),
    st.binary(max_size=30),
)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Requests of three clients, cut anywhere, in any order between the clients."""
    script = []
    for _ in range(draw(st.integers(1, 4))):
        number = draw(st.integers(0, 2))
        data = b"".join(draw(st.lists(st.one_of(LOOKUPS, LOOKUPS, LOOKUPS, OTHERS), min_size=1, max_size=6)))
        if draw(st.integers(0, 5)) == 0:
            data = data[: draw(st.integers(0, len(data)))]
        cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            script.append((number, data[start:end], draw(st.booleans())))
    return script


@settings(SAME, max_examples=25)
@given(script=scripts())
def test_both_kinds_answer_alike(shard: Path, script: Script) -> None:
    native, python = (play(shard, kernels, script) for kernels in KINDS)
    assert native == python


@pytest.mark.parametrize("pieces", [1000, CHUNK_BYTES // 2, 1 << 30])
def test_a_large_request_in_pieces_of_any_size(shard: Path, pieces: int) -> None:
    chance = random.Random(3)
    keys = [key.encode() for key in chance.choices([*VALUES, "none"], k=2000)]
    data = request(b"MGET", *keys) + b"".join(request(b"GET", key) for key in keys[:1000]) + request(b"PING")
    script = [(0, data[start : start + pieces], True) for start in range(0, len(data), pieces)]
    native, python = (play(shard, kernels, script) for kernels in KINDS)
    assert native == python
    assert native[0][0].endswith(b"+PONG\r\n")


def ask_for_missing_keys(path: Path, kernels: str, count: int) -> list[bytes]:
    """The reply to an MGET of so many keys of usual size, in pieces as one read brings them."""
    data = request(b"MGET", *[b"missing-%012d" % number for number in range(count)])
    replies, _ = play(path, kernels, [(0, data[at : at + READ_BYTES], True) for at in range(0, len(data), READ_BYTES)])
    return replies[:1]


def test_a_large_mget_is_read_natively(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestParser, "next", lambda *_: pytest.fail("it is read by Python"))
    assert ask_for_missing_keys(shard, "native", 16_000) == [b"*16000\r\n" + b"$-1\r\n" * 16_000]


@pytest.mark.parametrize("count", [16_383, 16_384, 20_000])
def test_a_larger_one_is_read_by_python_and_is_answered_alike(shard: Path, count: int) -> None:
    for kernels in KINDS:
        assert ask_for_missing_keys(shard, kernels, count) == [b"*%d\r\n" % count + b"$-1\r\n" * count]


def test_the_lookups_of_clients_that_ask_at_once_are_answered_each_to_its_own(shard: Path) -> None:
    keys = [key for key in VALUES if key not in DAMAGED_KEYS and key.startswith("key")][:400]
    for kernels in KINDS:
        with InProcessWorker(shard, kernels) as worker:
            clients = [worker.connect() for _ in keys]
            for number, (client, key) in enumerate(zip(clients, keys, strict=True)):
                sent = request(b"GET", key.encode())
                worker.send(client, sent[: -(number % 3)] if number % 3 else sent)
            worker.take_turns(10)
            for number, client in enumerate(clients):
                worker.send(client, b"\r\n"[2 - number % 3 :] if number % 3 else b"")
            worker.take_turns(10)
            for client, key in zip(clients, keys, strict=True):
                assert worker.replies(client) == frame(VALUES[key])
            assert worker.counters()["lookups"] == len(keys)


def test_clients_that_ask_at_once_and_read_nothing_hold_no_more_than_the_budget(tmp_path: Path) -> None:
    """Sixty clients ask for 4 MB each, and all of them are ready in one turn."""
    path = write_generation(tmp_path, {"big": os.urandom(4_000_000)}) / file_name(0, 1)
    with InProcessWorker(path, "native", ServerLimits(max_held_bytes=16 << 20)) as worker:
        clients = [worker.connect(1 << 14) for _ in range(60)]
        for client in clients:
            worker.send(client, request(b"GET", b"big"))
        before = peak_memory()
        worker.take_turns(20)
        assert peak_memory() - before < 100e6
        assert worker.worker.budget.total <= 16 << 20
        assert worker.counters()["connections_cut"] >= 50
        survivor = next(iter(worker.worker.connections))
        assert worker.worker.connections[survivor].held_bytes > 3_000_000


def test_a_client_is_answered_though_others_before_it_always_leave_more_than_a_turn_hands_over(tmp_path: Path) -> None:
    """Each poll begins with the same clients, and one client's unread replies are all that a turn hands over."""
    path = write_generation(tmp_path, {"big": os.urandom(4_000_000), "a": b"1"}) / file_name(0, 1)
    for kernels in KINDS:
        with InProcessWorker(path, kernels) as worker:
            clients = [worker.connect(1 << 20) for _ in range(7)]
            other = worker.connect()
            for client in clients:
                worker.send(client, request(b"MGET", b"big"))
            worker.send(other, request(b"GET", b"a"))
            turns = 0
            while not select.select([other], [], [], 0)[0]:
                worker.take_a_turn()
                for client in clients:  # they take what they are sent, and ask again
                    if worker.take(client).endswith(b"\r\n"):
                        client.send(request(b"MGET", b"big"))
                turns += 1
                assert turns < 50


def peak_memory() -> float:
    """The most that this process has had in memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _take_a_turn(worker: InProcessWorker) -> int:
    """The number of lookups answered so far."""
    worker.take_a_turn()
    return worker.counters()["lookups"]


@pytest.mark.parametrize("kernels", KINDS)
def test_large_values_of_many_clients_take_many_turns_and_reach_each_of_them_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    value, clients = bytes(2 << 20), 30
    path = write_generation(tmp_path, {"large": value}) / file_name(0, 1)
    monkeypatch.setattr(worker_module, "TIME_SLICE_SECONDS", -1.0)
    with InProcessWorker(path, kernels, ServerLimits(max_held_bytes=1 << 30)) as worker:
        sockets = [worker.connect() for _ in range(clients)]
        for client in sockets:
            client.sendall(request(b"GET", b"large"))
        # In the first turn there may be nothing yet: a busy machine delivers late.
        until(partial(_take_a_turn, worker), "some are answered")
        assert worker.counters()["lookups"] < clients, "one turn answered them all, with no heartbeat meanwhile"
        assert [worker.replies(client) for client in sockets] == [frame(value)] * clients
        assert worker.counters()["lookups"] == clients
        assert worker.errors == []


def test_a_client_that_may_not_ask_yet_reaches_no_kernel(shard: Path) -> None:
    for kernels in KINDS:
        with InProcessWorker(shard, kernels, password=b"secret") as worker:
            client = worker.connect()
            worker.send(client, request(b"GET", b"key 1"))
            assert worker.replies(client) == b"-NOAUTH Authentication required.\r\n"
            worker.send(client, request(b"AUTH", b"secret") + request(b"GET", b"key 1"))
            assert worker.replies(client).endswith(b"+OK\r\n" + frame(VALUES["key 1"]))
            assert worker.counters()["lookups"] == 1
            worker.send(client, request(b"RESET") + request(b"GET", b"key 1"))
            worker.send(client, request(b"GET", b"key 1"))
            assert worker.replies(client).endswith(b"+RESET\r\n" + b"-NOAUTH Authentication required.\r\n" * 2)


def test_a_client_that_is_gone_when_it_is_answered_ends_alone(shard: Path) -> None:
    for kernels in KINDS:
        with InProcessWorker(shard, kernels) as worker:
            gone, there = worker.connect(), worker.connect()
            for client in (gone, there):
                worker.send(client, request(b"GET", b"key 1"))
            gone.close()
            assert worker.replies(there) == frame(VALUES["key 1"])
            worker.take_turns(1)
            assert len(worker.worker.connections) == 1


def test_a_file_that_the_kernel_cannot_read_is_served_by_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing:
        def __init__(self, *_: object, **__: object) -> None:
            raise ValueError("expected pages of 4096 bytes, found 16384")

    path = write_generation(tmp_path, {"a": b"1"}) / file_name(0, 1)
    module = native.kernels()
    assert module is not None
    monkeypatch.setattr(module, "ShardKernel", Refusing)
    with InProcessWorker(path, "native") as worker:
        client = worker.connect()
        worker.send(client, request(b"GET", b"a"))
        assert worker.replies(client) == b"$1\r\n1\r\n"
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: served by Python, because the native kernel cannot read it: expected pages of 4096 bytes, found 16384"
    ]
