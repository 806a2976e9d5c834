"""The key of all passwords is deleted under load: the operator replaces it and rolls the dataset out, and no answer is
lost.

Old passwords then open nothing. It runs alone, because every dataset is rolled out.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Final

from e2e.support import pods, release, router_pods
from e2e.support.figures import record
from e2e.support.kubectl import find, get, run_in, until
from e2e.support.scenario import BRISK, PATIENT, Scenario

from lookupdb import keys as lookup_keys
from lookupdb.credentials import derive_password

DATASET: Final = "records"
SHARDS: Final = 2
COMPONENT: Final = "app.kubernetes.io/component=shard"
KNOCK: Final = (pods.INSIDE / "knock.py").read_text()
REFUSALS: Final = ("-NOAUTH", "-WRONGPASS")


@dataclass(frozen=True, slots=True)
class Servers:
    """The shard servers of a rollout, and the source of their passwords."""

    rollout: str
    key: bytes
    addresses: dict[int, str]
    """Shard → address."""

    def password(self, shard: int) -> str:
        """Return the password of the servers of ``shard``."""
        return derive_password(self.key, self.rollout, shard)


def test_all_passwords_are_changed_by_a_rollout_that_nobody_notices(scenario: Scenario) -> None:
    keys = scenario.source("records", version="v1", records=2000)
    scenario.apply(scenario.dataset(DATASET, "records", shards=SHARDS, router=PATIENT, rollout=BRISK))
    scenario.wait_settled(DATASET)
    old = _find_servers(scenario)
    _check_strangers(scenario, old, keys)
    _check_routers(scenario, old, keys)

    with scenario.load(DATASET, keys, per_second=300) as load:
        release.replace_shard_key()
        until(
            lambda: _is_replaced(scenario, old), seconds=240, what="a rollout with another key, and nothing left to do"
        )
        load.wait_answers(load.report().answers + 1000, seconds=120)
        report = load.stop()

    lost = report.failed + report.mixed + report.wrong
    record("shard-passwords", "answers while all passwords change", report.answers)
    record("shard-passwords", "failed, wrong or mixed answers", lost, at_most=0)
    report.check(g1="v1")
    new = _find_servers(scenario)
    assert (new.key != old.key, new.rollout != old.rollout) == (True, True)
    _check_strangers(scenario, new, keys)
    _check_routers(scenario, new, keys)
    for shard, address in new.addresses.items():
        key = _key_of(shard, keys)
        # The old password, and one derived from the old key for the new rollout.
        for password in (old.password(shard), derive_password(old.key, new.rollout, shard), new.password(1 - shard)):
            result = _knock_as_router(scenario, address, ["AUTH", password], ["GET", key])
            assert [reply.split()[0] for reply in result["replies"]] == ["-WRONGPASS", "-NOAUTH"], result


def _find_servers(scenario: Scenario) -> Servers:
    """Return the shard servers of the only rollout."""
    (rollout,) = scenario.status(DATASET)["rollouts"]
    secret = get("secret", f"{DATASET}-router-{rollout['passwordKey']}", scenario.namespace)
    chosen = f"{COMPONENT},lookupdb.dev/rollout={rollout['rollout']}"
    addresses = {
        int(pod["metadata"]["labels"]["lookupdb.dev/shard"]): str(pod["status"]["podIP"])
        for pod in find("pods", scenario.namespace, chosen)
    }
    assert addresses.keys() == set(range(SHARDS)), addresses
    return Servers(rollout["rollout"], base64.b64decode(secret["data"]["key"]), addresses)


def _is_replaced(scenario: Scenario, old: Servers) -> bool:
    (rollout,) = scenario.wait_settled(DATASET, seconds=0)["rollouts"]
    assert rollout["rollout"] != old.rollout, rollout
    return True


def _check_strangers(scenario: Scenario, servers: Servers, keys: list[str]) -> None:
    """Assert that another pod of the namespace is rejected, or blocked by the network."""
    scenario.wait_client()
    for shard, address in servers.addresses.items():
        key = _key_of(shard, keys)
        commands = [["GET", key], ["MGET", key], ["AUTH", "0" * 64], ["GET", key], ["SCAN", "0"]]
        result = _knock(pods.CLIENT, scenario, address, *commands)
        assert all(reply.startswith(REFUSALS) for reply in result["replies"]), result
        assert result["why"] or len(result["replies"]) == len(commands), result


def _check_routers(scenario: Scenario, servers: Servers, keys: list[str]) -> None:
    """Assert that a router with the password is answered; otherwise a rejection proves nothing."""
    for shard, address in servers.addresses.items():
        key = _key_of(shard, keys)
        result = _knock_as_router(scenario, address, ["AUTH", servers.password(shard)], ["GET", key])
        accepted, value = result["replies"]
        assert (accepted, json.loads(value)["id"]) == ("+OK", key), result


def _knock_as_router(scenario: Scenario, address: str, *commands: list[str]) -> dict[str, Any]:
    """Return the replies to a router's pod, which every NetworkPolicy admits. Retry, because routers may be replaced
    meanwhile."""

    def look() -> dict[str, Any]:
        (name, *_) = (pod["metadata"]["name"] for pod in router_pods.pods(scenario.namespace) if _runs(pod))
        return _knock(name, scenario, address, *commands)

    return until(look, seconds=60, what="a command in a router's pod")


def _knock(pod: str, scenario: Scenario, address: str, *commands: list[str]) -> dict[str, Any]:
    """Return a shard server's replies to commands from ``pod``."""
    asked = json.dumps({"host": address, "port": 7000, "commands": commands})
    result: dict[str, Any] = json.loads(run_in(pod, scenario.namespace, "python", "-c", KNOCK, stdin=asked))
    return result


def _runs(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Running"


def _key_of(shard: int, keys: list[str]) -> str:
    """Return the first of the keys of this shard."""
    return next(key for key in keys if lookup_keys.shard_number(key.encode(), SHARDS) == shard)
