"""The key of all passwords is deleted under load: the operator makes another one and rolls the dataset out again, no
answer is lost, and the old passwords open nothing. It runs alone: every dataset is rolled out."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Final

from e2e.support import pods, release, router_pods
from e2e.support.figures import record
from e2e.support.kubectl import find, get, run_in, until
from e2e.support.story import BRISK, PATIENT, Story

from lookupdb import keys as lookup_keys
from lookupdb.shard_passwords import derive_password

DATASET: Final = "records"
SHARDS: Final = 2
COMPONENT: Final = "app.kubernetes.io/component=shard"
KNOCK: Final = (pods.INSIDE / "knock.py").read_text()
REFUSALS: Final = ("-NOAUTH", "-WRONGPASS")


@dataclass(frozen=True, slots=True)
class Servers:
    """The shard servers of a rollout, and what their passwords are made of."""

    rollout: str
    key: bytes
    addresses: dict[int, str]
    """By shard."""

    def password(self, shard: int) -> str:
        """What the servers of ``shard`` are to be shown."""
        return derive_password(self.key, self.rollout, shard)


def test_all_passwords_are_changed_by_a_rollout_that_nobody_notices(story: Story) -> None:
    keys = story.source("records", version="v1", records=2000)
    story.apply(story.dataset(DATASET, "records", shards=SHARDS, router=PATIENT, rollout=BRISK))
    story.wait_settled(DATASET)
    old = _find_servers(story)
    _check_strangers(story, old, keys)
    _check_routers(story, old, keys)

    with story.load(DATASET, keys, per_second=300) as load:
        release.replace_shard_key()
        until(lambda: _is_replaced(story, old), seconds=240, what="a rollout with another key, and nothing left to do")
        load.wait_answers(load.report().answers + 1000, seconds=120)
        report = load.stop()

    lost = report.failed + report.mixed + report.wrong
    record("shard-passwords", "answers while all passwords change", report.answers)
    record("shard-passwords", "failed, wrong or mixed answers", lost, at_most=0)
    report.check(g1="v1")
    new = _find_servers(story)
    assert (new.key != old.key, new.rollout != old.rollout) == (True, True)
    _check_strangers(story, new, keys)
    _check_routers(story, new, keys)
    for shard, address in new.addresses.items():
        key = _key_of(shard, keys)
        # As it was, and as who has the old key would make one for the new rollout.
        for password in (old.password(shard), derive_password(old.key, new.rollout, shard), new.password(1 - shard)):
            told = _knock_as_router(story, address, ["AUTH", password], ["GET", key])
            assert [reply.split()[0] for reply in told["replies"]] == ["-WRONGPASS", "-NOAUTH"], told


def _find_servers(story: Story) -> Servers:
    """Those of the one rollout that there is."""
    (rollout,) = story.status(DATASET)["rollouts"]
    secret = get("secret", f"{DATASET}-router-{rollout['passwordKey']}", story.namespace)
    chosen = f"{COMPONENT},lookupdb.dev/rollout={rollout['rollout']}"
    addresses = {
        int(pod["metadata"]["labels"]["lookupdb.dev/shard"]): str(pod["status"]["podIP"])
        for pod in find("pods", story.namespace, chosen)
    }
    assert addresses.keys() == set(range(SHARDS)), addresses
    return Servers(rollout["rollout"], base64.b64decode(secret["data"]["key"]), addresses)


def _is_replaced(story: Story, old: Servers) -> bool:
    (rollout,) = story.wait_settled(DATASET, seconds=0)["rollouts"]
    assert rollout["rollout"] != old.rollout, rollout
    return True


def _check_strangers(story: Story, servers: Servers, keys: list[str]) -> None:
    """Assert that another pod of the namespace is refused, or not even let through by the network."""
    story.wait_client()
    for shard, address in servers.addresses.items():
        key = _key_of(shard, keys)
        commands = [["GET", key], ["MGET", key], ["AUTH", "0" * 64], ["GET", key], ["SCAN", "0"]]
        told = _knock(pods.CLIENT, story, address, *commands)
        assert all(reply.startswith(REFUSALS) for reply in told["replies"]), told
        assert told["why"] or len(told["replies"]) == len(commands), told


def _check_routers(story: Story, servers: Servers, keys: list[str]) -> None:
    """Assert that who may pass and shows the password is answered: or nothing that is refused means anything."""
    for shard, address in servers.addresses.items():
        key = _key_of(shard, keys)
        told = _knock_as_router(story, address, ["AUTH", servers.password(shard)], ["GET", key])
        accepted, value = told["replies"]
        assert (accepted, json.loads(value)["id"]) == ("+OK", key), told


def _knock_as_router(story: Story, address: str, *commands: list[str]) -> dict[str, Any]:
    """What it replies to a router's pod, which every NetworkPolicy lets through. Routers may be replaced meanwhile."""

    def look() -> dict[str, Any]:
        (name, *_) = (pod["metadata"]["name"] for pod in router_pods.pods(story.namespace) if _runs(pod))
        return _knock(name, story, address, *commands)

    return until(look, seconds=60, what="a command in a router's pod")


def _knock(pod: str, story: Story, address: str, *commands: list[str]) -> dict[str, Any]:
    """What a shard server replies to commands that come from ``pod``."""
    asked = json.dumps({"host": address, "port": 7000, "commands": commands})
    told: dict[str, Any] = json.loads(run_in(pod, story.namespace, "python", "-c", KNOCK, stdin=asked))
    return told


def _runs(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Running"


def _key_of(shard: int, keys: list[str]) -> str:
    """The first of the keys that this shard has."""
    return next(key for key in keys if lookup_keys.shard_number(key.encode(), SHARDS) == shard)
