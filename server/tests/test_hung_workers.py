"""A worker that hangs, in both roles, as users start them: after the real times it is not ready, then replaced."""

from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

import orjson
import pytest
import redis
from support.fleets import fleet, fleet_entry
from support.metrics import without_dataset
from support.routers import routing
from support.routing import table_file
from support.shards import write_generation
from support.waiting import until

from lookupdb.process.supervisor import LivenessLimits

pytestmark = pytest.mark.long


def admin(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(port: int, prefix: str) -> dict[str, float]:
    lines = without_dataset(admin(port, "/metrics")[1]).splitlines()
    figures = (line.rpartition(" ") for line in lines if line.startswith(prefix))
    return {name.removeprefix(prefix): float(value) for name, _, value in figures}


def worker_pid(port: int) -> int:
    return int(orjson.loads(admin(port, "/status")[1])["workers"][0]["pid"])


def test_the_limits_where_no_test_sets_others() -> None:
    assert LivenessLimits() == LivenessLimits(stale_seconds=5.0, hung_seconds=15.0, start_seconds=120.0)


def test_a_worker_that_hangs_is_not_ready_then_replaced_and_metrics_answer_meanwhile(tmp_path: Path) -> None:
    generation = write_generation(tmp_path, {"key 1": b"value 1"})
    with fleet(generation) as shards:
        (tmp_path / "table.json").write_bytes(table_file(fleet_entry(generation, shards)))
        with routing(tmp_path / "table.json") as router:
            server = shards[0][0]
            roles = {server.admin: "lookupdb_shard_", router.admin: "lookupdb_router_"}
            pids = {port: worker_pid(port) for port in roles}
            for pid in pids.values():
                os.kill(pid, signal.SIGSTOP)
            for port, prefix in roles.items():
                until(lambda port=port: admin(port, "/readyz")[0] == 503, "not ready")  # type: ignore[misc]
                assert admin(port, "/readyz")[1] == "not ready: worker 0: its event loop does not run\n"
                assert metrics(port, prefix)["ready"] == 0
            for port, prefix in roles.items():
                until(lambda port=port: admin(port, "/readyz")[0] == 200, "ready again")  # type: ignore[misc]
                assert worker_pid(port) != pids[port]
                counted = metrics(port, prefix)
                assert counted["workers_killed_total"] == counted["worker_restarts_total"] == 1
            with redis.Redis(port=server.ports[0]) as client:
                assert client.get("key 1") == b"value 1"
            assert router.get("/v1/lookup/key%201") == (200, b"value 1")
