"""lookupdb.client in processes that fork, under gevent, and what its import costs."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import os
import pickle
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.clients import Kind
from support.faulty_router import Asked, found_all, scripted

from lookupdb.client import AsyncClient, Client

pytest_plugins = ["support.client_fixtures"]

TESTS = str(Path(__file__).parent)
SERVER = str(Path(__file__).parents[1])
MAX_MILLISECONDS = 50.0
MAX_BYTES = 10 << 20


def run(program: str, *words: str, timeout: float = 120) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "PYTHONPATH": SERVER},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_child(action: Callable[[], bool]) -> None:
    """Runs ``action`` in a process that is forked off, which must end well."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = 0 if action() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("copying", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda function: function.__name__)
@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_a_client_is_made_in_each_process_and_neither_pickled_nor_copied(
    make: type[Client | AsyncClient], copying: Callable[[object], object]
) -> None:
    client = make("http://localhost:1", token="SECRET")
    for lookups in (client, client.at("g2")):
        with pytest.raises(TypeError, match="make one client in each process") as refused:
            copying(lookups)
        assert repr(lookups) in str(refused.value)
        assert "SECRET" not in str(refused.value)


def test_a_process_that_was_forked_off_has_connections_of_its_own() -> None:
    with scripted() as router, Client(router.url, cache_bytes=1000) as client:
        assert client.get("a") == "a"
        for _ in range(2):
            in_child(lambda: client.get("b") == "b" and client.get_many(["c"]).found == {"c": "c"})
        assert client.get("d") == "d"
        connections = {
            asked.target.rpartition("/")[2]: asked.connection for asked in router.asked if asked.method == "GET"
        }
        assert connections == {"a": 1, "b": 3, "d": 1}, "the parent goes on with its own"


def test_threads_that_are_the_first_in_a_process_at_once_have_no_connection_of_the_parent() -> None:
    """Its answers would be read by the parent, as those to its own keys."""

    def delay(connection: socket.socket, asked: Asked) -> bytes:
        time.sleep(0.01)
        return found_all(connection, asked)

    def ask_together(client: Client, names: list[str]) -> bool:
        sys.setswitchinterval(1e-6)
        start, outcomes = threading.Barrier(len(names)), dict.fromkeys(names)

        def ask(name: str) -> None:
            start.wait()
            outcomes[name] = client.get_many([name]).found.get(name)

        threads = [threading.Thread(target=ask, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outcomes == {name: name for name in names}

    names = [f"child-{number}" for number in range(8)]
    interval = sys.getswitchinterval()
    with scripted(otherwise=delay) as router:
        for _ in range(5):
            with Client(router.url) as client:
                try:
                    assert ask_together(client, [f"parent-{number}" for number in range(16)])
                finally:
                    sys.setswitchinterval(interval)
                own = {asked.connection for asked in router.asked}
                count = len(router.asked)
                in_child(lambda client=client: ask_together(client, names))  # type: ignore[misc]
                assert not own & {asked.connection for asked in router.asked[count:]}
                assert client.get("a") == "a"


def test_so_has_one_with_an_event_loop() -> None:
    with scripted() as router, asyncio.Runner() as runner:
        client = AsyncClient(router.url)

        async def get(key: str) -> bool:
            return bool(await client.get(key) == key)

        assert runner.run(get("a"))
        in_child(lambda: asyncio.run(get("b")))
        assert runner.run(get("d"))
        assert [asked.connection for asked in router.asked] == [1, 2, 1]
        runner.run(client.close())


def test_a_fork_amid_lookups_of_other_threads_is_not_stuck() -> None:
    """A thread that holds a lock, or leads a batch, does not exist in the child."""
    import threading

    with scripted() as router, Client(router.url, cache_bytes=10_000, cache_seconds=0.001) as client:
        stopped = threading.Event()

        def ask() -> None:
            while not stopped.is_set():
                client.get("a")

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            in_child(lambda: client.get("b") == "b")
        stopped.set()
        for thread in threads:
            thread.join()


FOREIGN = (
    "aiohttp lmdb duckdb click uvloop httptools hiredis yaml kubernetes kopf jsonschema cronsim zstandard xxhash rich"
)


def test_the_import_loads_neither_builder_nor_server() -> None:
    program = """
        import sys
        import lookupdb.client
        assert lookupdb.client.Client and lookupdb.client.Unavailable
        print(*sorted(name for name in sys.modules))
    """
    modules = run(program).split()
    ours = {name for name in modules if name.startswith("lookupdb.")}
    assert {name for name in ours if not name.startswith("lookupdb.client")} == {"lookupdb.errors", "lookupdb.records"}
    assert not {name.partition(".")[0] for name in modules} & {
        *FOREIGN.split(),
        "asyncio",
        "ssl",
        "http",
        "urllib",
        "orjson",
    }


def test_plain_lookups_need_neither_ssl_nor_asyncio() -> None:
    program = """
        import sys
        from lookupdb.client import Client
        with Client(sys.argv[1]) as client:
            assert client.get("a") == "a"
            assert client.get_many(["a", "b"]).found == {"a": "a", "b": "b"}
        assert not {"ssl", "asyncio", "aiohttp", "http.client"} & set(sys.modules)
    """
    with scripted() as router:
        run(program, router.url)


def test_the_import_is_quick_and_small() -> None:
    """Processor time, as wall time tells more of the machine; the best of a few, as the first may have to compile."""
    program = """
        import time
        def resident():
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * 4096
        size, began = resident(), time.process_time()
        import lookupdb.client
        print((time.process_time() - began) * 1000, resident() - size)
    """
    costs = [[float(figure) for figure in run(program).split()] for _ in range(2)]
    assert min(cost[0] for cost in costs) <= MAX_MILLISECONDS
    assert min(cost[1] for cost in costs) <= MAX_BYTES


GEVENT = """
    import sys
    import gevent
    from gevent import monkey
    mode = sys.argv[2]
    if mode == "early":
        monkey.patch_all()
    from lookupdb.client import Client
    client = Client(sys.argv[1], timeout=20)
    assert client.get("before") == "before"
    if mode == "late":
        monkey.patch_all()

    def ask(number):
        return [client.get(f"k{number}-{turn}") for turn in range(3)] + [*client.get_many([f"m{number}"]).found]

    greenlets = [gevent.spawn(ask, number) for number in range(40)]
    if mode == "early":  # it runs once each of the others waits
        greenlets.append(gevent.spawn(Client(sys.argv[1]).get, "all wait"))
    with gevent.Timeout(60):
        gevent.joinall(greenlets, raise_error=True)
    del greenlets[40:]
    for number, greenlet in enumerate(greenlets):
        assert greenlet.value == [f"k{number}-{turn}" for turn in range(3)] + [f"m{number}"], greenlet.value
    if mode in ("early", "late"):
        killed = [gevent.spawn(ask, number) for number in range(40)]
        gevent.sleep(0)
        for greenlet in killed[::2]:
            greenlet.kill(block=False)
        with gevent.Timeout(60):
            gevent.joinall(killed)
        assert all(greenlet.value[-1] == f"m{number}" for number, greenlet in enumerate(killed) if number % 2)
    client.close()
"""


@pytest.mark.skipif(importlib.util.find_spec("gevent") is None, reason="gevent is not installed")
@pytest.mark.parametrize("mode", ["early", "late", "never"])
def test_greenlets_look_up_together_where_gevent_lets_them_and_are_never_stuck(mode: str) -> None:
    all_wait = threading.Event()

    def answer_when_all_wait(sock: socket.socket, asked: Asked) -> bytes:
        """Otherwise the first caller could have its answer before the others come, and nobody would wait."""
        if asked.target.endswith("all%20wait"):
            all_wait.set()
        elif mode == "early" and not asked.target.endswith("/before"):
            assert all_wait.wait(30), "some greenlet holds up the others"
        return found_all(sock, asked)

    with scripted(otherwise=answer_when_all_wait) as router:
        program = "import warnings; warnings.simplefilter('ignore')\n" + textwrap.dedent(GEVENT)
        done = subprocess.run(
            [sys.executable, "-c", program, router.url, mode],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            env={**os.environ, "PYTHONPATH": SERVER},
        )
        assert done.returncode == 0, done.stderr
        batches = [len(asked.keys) for asked in router.asked if asked.method == "POST"]
        together = sum(size for size in batches if size > 1)
        if mode == "early":
            assert together >= 39, f"lookups of greenlets leave together: {batches}"
        if mode == "never":
            assert together == 0


LOOKUPS = """
    import resource, sys
    sys.path.append(sys.argv[3])
    from support.clients import blocking

    def faults_of(lookups):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(lookups):
            client.get("a")
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with blocking(sys.argv[2], sys.argv[1]) as client:
        faults_of(20)
        print(faults_of(200))
"""


def test_no_memory_is_mapped_for_each_answer(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(128 << 10))  # glibc's own, which would rise in some processes
    with scripted() as router:
        assert int(run(LOOKUPS, router.url, kind, TESTS)) < 200
