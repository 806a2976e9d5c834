"""The whole router, as a user starts it: workers, readiness, faults under load, and a stop that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docs_tools import reference
from support.fleets import Shards, fleet, fleet_entry
from support.http import request
from support.routers import Clients, Router, routing, starting
from support.routing import table_file
from support.shards import write_generation
from support.tls import TlsSocket, server_identity
from support.waiting import soon, until

from lookupdb.cli import route
from lookupdb.dataset import schema
from lookupdb.errors import UsageError

pytestmark = pytest.mark.long

KEYS = {f"k{i}": b"v%d" % i for i in range(200)}
ONE_FOUND = ('lookupdb_router_requests_total{code="200"} 1.0', "lookupdb_router_keys_found_total 1.0")
"""Lines of /metrics after one lookup."""


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generation(tmp_path_factory.mktemp("store"), KEYS, shards=2)


@pytest.fixture(scope="module")
def shards(generation: Path) -> Iterator[Shards]:
    """Two shards of two replicas each."""
    with fleet(generation, replicas=2) as shards:
        yield shards


@pytest.fixture
def table(tmp_path: Path, generation: Path, shards: Shards) -> Path:
    path = tmp_path / "table.json"
    path.write_bytes(table_file(fleet_entry(generation, shards)))
    return path


def metrics_of(router: Router) -> str:
    return router.metrics()


def restarted(router: Router) -> bool:
    worker = router.status()["workers"][0]
    return (worker["restarts"], worker["state"]) == (1, "ready")


def reasons(router: Router) -> list[str]:
    """Why endpoints are not usable, as far as that is known."""
    return [why for endpoint in router.reports("endpoints")[0] or () if (why := endpoint["why"])]


def rewrite(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(content)
    unfinished.rename(path)


async def test_workers_share_a_port_and_a_dead_one_comes_back_while_the_others_answer(table: Path) -> None:
    with routing(table, workers=2) as router:
        assert router.get("/readyz", admin=True) == (200, b"ready\n")
        pids = [worker["pid"] for worker in router.status()["workers"]]
        async with Clients(router.port, KEYS, count=16) as clients:
            await soon(lambda: clients.answered > 500, "requests are answered")
            os.kill(pids[0], signal.SIGKILL)
            before = clients.answered
            await soon(lambda: clients.answered > before + 500, "requests are answered all the time")
            await asyncio.to_thread(until, lambda: restarted(router), "the worker is back")
        assert router.status()["workers"][0]["pid"] not in pids
        # Only what the dead worker had read and not answered is lost: at most one request a connection.
        assert len(clients.failures) + clients.refused <= 16


async def test_a_stop_under_load_loses_no_request(table: Path) -> None:
    with routing(table, drain_seconds=6, workers=2) as router:
        async with Clients(router.port, KEYS, count=16) as clients:
            await soon(lambda: clients.answered > 500, "requests are answered")
            before = clients.answered
            router.process.terminate()
            await soon(lambda: b"draining" in router.get("/readyz", admin=True)[1], "it is draining")
            assert router.get("/readyz", admin=True)[0] == 503
            # As a load balancer does once the router is not ready: no new requests.
            await soon(lambda: clients.answered > before + 200, "it goes on answering while it drains")
            clients._going = False
        assert await asyncio.to_thread(router.process.wait, 60) == 0
    assert clients.failures == []
    assert clients.refused == 0


async def test_a_killed_shard_server_costs_no_request_when_there_is_a_replica(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    generation = write_generation(tmp_path, KEYS)
    with fleet(generation, replicas=2) as shards:
        path.write_bytes(table_file(fleet_entry(generation, shards)))
        with routing(path) as router:
            async with Clients(router.port, KEYS) as clients:
                for replicas in shards:
                    before = clients.answered
                    await soon(lambda b=before: clients.answered > b + 300, "requests are answered")  # type: ignore[misc]
                    replicas[0].kill()
                before = clients.answered
                await soon(lambda: clients.answered > before + 500, "requests are still answered")
            assert clients.failures == []
            metrics = router.metrics()
            assert "lookupdb_router_keys_unavailable_total 0.0" in metrics


async def test_no_request_fails_while_the_table_moves_to_a_new_generation(
    table: Path, shards: Shards, generation: Path, tmp_path: Path
) -> None:
    new = write_generation(tmp_path, KEYS, generation="g2")
    with fleet(new) as others, routing(table, workers=2) as router:
        async with Clients(router.port, KEYS) as clients:
            for version in range(2, 5):
                entry = fleet_entry(new, others) if version % 2 == 0 else fleet_entry(generation, shards)
                rewrite(table, table_file(entry, version=version))
                await soon(lambda v=version: router.reports("tableVersion") == [v, v], "all workers confirm")  # type: ignore[misc]
            before = clients.answered
            await soon(lambda: clients.answered > before + 100, "requests are answered")
        assert clients.failures == []
        assert clients.refused == 0
        assert "lookupdb_router_table_version 4.0" in router.metrics()
        assert router.get("/v1/dataset")[0] == 200


def test_a_router_says_which_table_it_waits_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = ""

    def has_said() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return f"lookups start when it arrives table={tmp_path / 'table.json'}" in said

    with starting(tmp_path / "table.json"):
        until(has_said, "it says what it waits for")


def test_a_router_is_not_ready_before_every_shard_was_reached(tmp_path: Path, generation: Path, shards: Shards) -> None:
    whole = fleet_entry(generation, shards)
    without: dict[str, Any] = {**whole, "shards": [whole["shards"][0], {"endpoints": ["127.0.0.1:1"]}]}
    path = tmp_path / "table.json"
    with contextlib.ExitStack() as stack:
        router = stack.enter_context(starting(path))
        waiting = b"not ready: worker 0: no routing table yet\n"
        until(lambda: router.get("/readyz", admin=True) == (503, waiting), "it says what it waits for")
        until(lambda: router.get("/readyz") == (503, b"not ready\n"), "load balancers see it, too")
        assert router.get("/healthz") == router.get("/healthz", admin=True) == (200, b"ok\n")
        assert (router.reports("tableVersion"), router.reports("error")) == ([None], ["no routing table yet"])
        until(lambda: router.get("/v1/lookup/k1")[0] == 503, "without a table all is unavailable")
        assert b"the router has no valid routing table yet" in router.get("/v1/lookup/k1")[1]
        assert router.get("/v1/dataset")[0] == 503
        assert "lookupdb_router_reloads_refused_total 0.0" in router.metrics()
        rewrite(path, table_file(without))
        until(lambda: router.reports("unreachedShards") == [[1]], "one shard is reached")
        assert (router.get("/readyz", admin=True)[0], router.get("/readyz")[0]) == (503, 503)
        assert {router.get(f"/v1/lookup/{key}")[0] for key in list(KEYS)[:20]} == {200, 503}
        rewrite(path, table_file(whole, version=2))
        until(lambda: router.get("/readyz", admin=True)[0] == 200, "it is ready")
        assert router.get("/readyz") == (200, b"ready\n")
        rewrite(path, b"{")
        until(lambda: router.reports("error") != [None], "it says what is wrong")
        assert "a routing table is JSON" in router.reports("error")[0]
        assert router.get("/readyz", admin=True)[0] == 200
        assert router.get("/v1/lookup/k1") == (200, b"v1")


def test_a_router_of_one_dataset_serves_no_other(table: Path) -> None:
    with starting(table, "--dataset-uid", "another") as router:
        sentence = "uid 'local', and this router serves the dataset with uid 'another'"
        until(lambda: sentence in (router.reports("error")[0] or ""), "the table is refused")
        assert router.reports("datasetUid") == [None]
        assert router.get("/v1/lookup/k1")[0] == 503
        assert "lookupdb_router_reloads_refused_total 1.0" in router.metrics()
    with routing(table, "--dataset-uid", "local") as router:
        assert router.get("/v1/lookup/k1") == (200, b"v1")
        assert router.reports("datasetUid") == ["local"]


def test_shard_servers_that_want_a_password_are_given_it(generation: Path, tmp_path: Path) -> None:
    password, path = tmp_path / "password", tmp_path / "table.json"
    password.write_text("open sesame\n")
    with fleet(generation, "--password-file", str(password)) as shards:
        path.write_bytes(table_file(fleet_entry(generation, shards)))
        with starting(path) as router:
            whys: list[str] = until(lambda: reasons(router), "unusable endpoints are reported with the reason")
            assert "NOAUTH" in whys[0]
        with routing(path, "--password-file", str(password)) as router:
            assert router.get("/v1/lookup/k1") == (200, b"v1")


def test_every_metric_is_documented_and_every_documented_one_is_there(table: Path) -> None:
    text = reference.pages()["reference/metrics.md"]
    documented = set(re.findall(r"^\| `(lookupdb_router_\w+)`", text, re.MULTILINE))
    with routing(table) as router:
        assert router.get("/v1/lookup/k1")[0] == 200
        # An answer is on its way before it is counted.
        until(lambda: all(line in metrics_of(router) for line in ONE_FOUND), "the lookup is counted")
        metrics = metrics_of(router)
    exposed = set(re.findall(r"^(lookupdb_router_\w+)", metrics, re.MULTILINE))
    depends_on_the_machine = {name for name in documented if "_container_" in name}
    assert exposed - documented == set()
    assert documented - exposed - depends_on_the_machine == set()


def test_a_worker_imports_nothing_it_does_not_need() -> None:
    """Memory is paid for in every worker: neither the command line nor builders nor admin ports belong there."""
    program = "from lookupdb.process import leave_out_tls; leave_out_tls(); import lookupdb.router.worker, sys; "
    program += "print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert {"hiredis", "httptools", "uvloop"} <= set(loaded)
    unwanted = {
        "aiohttp",
        "click",
        "rich",
        "duckdb",
        "obstore",
        "lmdb",
        "jsonschema",
        "yaml",
        "cel",
        "email",
        "opentelemetry",
        "prometheus_client",
        "_ssl",
    }
    assert unwanted & set(loaded) == set()


def test_the_defaults_of_the_command_line_are_the_resources() -> None:
    fields = dict(schema.resource_schema()["properties"]["spec"]["properties"]["router"]["properties"])
    elsewhere = ("replicas", "resources", "autoscaling", "pod", "service", "clients", "tls", "auth", "cacheControl")
    for name in elsewhere:
        del fields[name]
    units = {"deadline_ms": "deadlineMilliseconds", "hedge_ms": "hedgeMilliseconds"}
    units |= {f"{name}_timeout": f"{name}TimeoutSeconds" for name in ("header", "idle", "write")}
    options = {option.name or "": option.default for option in route.command.params}
    camel = {re.sub("_(.)", lambda m: m[1].upper(), name): default for name, default in options.items()}
    camel |= {field: options[name] for name, field in units.items()}
    assert {name: camel[name] for name in fields} == {name: field["default"] for name, field in fields.items()}


def test_tls_options_come_together(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="TLS needs a certificate and its key"):
        route.command.main(["--table", "t", "--tls-cert", str(tmp_path / "tls.crt")], standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "a router needs routing tables"),
        (["--table", "t", "--dataset", "people=t"], "a router needs routing tables"),
        (["--dataset", "people"], "--dataset takes different names, each with a file"),
        (["--dataset", "people=t", "--dataset", "people=u"], "--dataset takes different names, each with a file"),
        (["--dataset", "a=t", "--dataset", "b=u", "--resp-port", "0"], "--resp-port serves one dataset"),
    ],
)
def test_tables_are_given_one_way(words: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        route.command.main(words, standalone_mode=False)


def test_router_speaks_tls_once_there_is_a_certificate(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    words = ["--tls-cert", str(folder / "tls.crt"), "--tls-key", str(folder / "tls.key")]
    with starting(table, *words) as router:
        until(lambda: "there is no" in str(router.reports("error")), "it says that there is no certificate")
        assert router.get("/readyz", admin=True)[0] == 503
        server_identity().write(folder)
        until(lambda: router.get("/readyz", admin=True)[0] == 200, "the certificate is taken")
        assert router.reports("error") == [None]
        with socket.create_connection(("127.0.0.1", router.port), timeout=30) as raw:
            client = TlsSocket(raw).handshake()
            client.sendall(request("/v1/lookup/k1"))
            assert client.recv(1 << 16).endswith(b"\r\n\r\nv1")
        expiry = int(server_identity().certificate.not_valid_after_utc.timestamp())
        assert f"lookupdb_router_tls_certificate_expiry_timestamp_seconds {float(expiry)}" in metrics_of(router)
