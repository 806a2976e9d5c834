"""Passwords of shard servers: a new one for each rollout. They may come, change or go without disturbing what
serves."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
import pytest
from operator_support.password_lives import KEYS, PasswordLives
from operator_support.plan_passwords import can_open, refusing_servers
from operator_support.plan_samples import applied, condition, says
from operator_support.plan_world import CONFIG, NEVER, World

from lookupdb import credentials
from lookupdb_operator import manifests, names
from lookupdb_operator.manifests import is_made_once
from lookupdb_operator.model import Manifest
from lookupdb_operator.plan import objects as secrets
from lookupdb_operator.status import DatasetStatus

_, KEY, NEWER_KEY, _ = KEYS
UID = "uid-1"


def mark_of(release_key: bytes) -> str:
    return credentials.fingerprint_key(credentials.derive_dataset_key(release_key, UID))


MARK, NEWER_MARK = mark_of(KEY), mark_of(NEWER_KEY)
SECRET = names.password_key_secret("airports", MARK)


def use_key(world: World, key: bytes) -> World:
    world.config = replace(world.config, shard_key=key)
    return world


def serving(key: bytes = KEY, **spec: Any) -> World:
    world = use_key(World(), key)
    world.edit(**spec)
    world.settle()
    return world


def table_of(world: World) -> dict[str, Any]:
    text = world.things["ConfigMap", "airports-routing-table"].manifest["data"][names.TABLE_FILE]
    content: dict[str, Any] = orjson.loads(text)
    return content


def routers(world: World) -> list[Manifest]:
    return [thing.manifest for key, thing in world.things.items() if key[0] == "Deployment"]


def mounted_keys(world: World) -> list[str]:
    (deployment,) = routers(world)
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    sources = [source["secret"] for volume in volumes for source in volume.get("projected", {}).get("sources", ())]
    return [item["path"] for source in sources for item in source["items"]]


def flags(world: World, rollout: str) -> set[str | None]:
    """Return the password hashes of the servers of ``rollout``."""
    sets = [name for kind, name in world.things if kind == "StatefulSet" and names.read_rollout(name) == rollout]
    return {world.password_of(name) for name in sets}


def made_secrets(world: World) -> Iterator[str]:
    return (manifest["metadata"]["name"] for manifest in world.look().apply if is_made_once(manifest))


class TestWhereThereIsAKey:
    def test_each_shard_of_a_rollout_has_a_password_of_its_own(self) -> None:
        world = serving()
        first = flags(world, "r1")
        key = credentials.derive_dataset_key(KEY, UID)
        passwords = [credentials.derive_password(key, "r1", shard) for shard in range(len(first))]
        assert first == {credentials.hash_password(password.encode()) for password in passwords}
        assert len(first) == len(table_of(world)["generations"][0]["shards"]) > 1
        world.edit(serving={"workers": 2})
        world.settle(until=lambda: world.status.last_rollout == 2)
        assert flags(world, "r2")
        assert not flags(world, "r2") & first
        world.settle()
        assert table_of(world)["generations"][0]["passwordKey"] == MARK

    def test_routers_have_the_key_and_servers_have_nothing_secret(self) -> None:
        world = serving()
        key = credentials.derive_dataset_key(KEY, UID)
        (secret,) = world.keys.values()
        assert secret["metadata"]["name"] == SECRET
        assert base64.b64decode(secret["data"]["key"]) == key
        assert secret["immutable"] is True
        assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [UID]
        assert mounted_keys(world) == [MARK]
        password = credentials.derive_password(key, "r1", 0)
        everything = orjson.dumps([thing.manifest for thing in world.things.values()]).decode()
        everything += orjson.dumps(world.status.to_json()).decode() + repr(world.config)
        for hidden in (password, key.hex(), base64.b64encode(key).decode(), KEY.hex(), repr(KEY)):
            assert hidden not in everything

    def test_nothing_more_is_written_once_all_is_there(self) -> None:
        world = serving()
        assert world.look().apply == ()
        world.now += timedelta(days=1)
        assert world.look().apply == ()

    def test_two_datasets_have_two_keys(self) -> None:
        dataset = serving().dataset
        another = replace(dataset, uid="uid-2", renderings={})
        config = replace(CONFIG, shard_key=KEY)
        assert manifests.password_key(dataset, config) != manifests.password_key(another, config)

    def test_a_candidate_that_waits_can_be_asked(self) -> None:
        world = serving(rollout={"promotion": "Manual", "drainSeconds": 5})
        use_key(world, NEWER_KEY)
        world.content_of_source = lambda source: f"{source} newer"
        world.annotate("newer")
        world.settle(until=lambda: world.status.table is not None and world.status.table.candidate is not None)
        world.settle(until=lambda: bool(world.status.table and world.status.table.confirmed_at))
        active, candidate = table_of(world)["generations"]
        assert (active["passwordKey"], candidate["passwordKey"]) in ((MARK, NEWER_MARK), (NEWER_MARK, NEWER_MARK))
        for pod in world.pods.values():
            if pod.component == names.ROUTER:
                assert refusing_servers(world, pod, table_of(world)) == []


class TestWhenPasswordsComeChangeOrGo:
    @pytest.mark.parametrize(("before", "after"), [(b"", KEY), (KEY, b""), (KEY, NEWER_KEY), (NEWER_KEY, KEY)])
    @pytest.mark.parametrize("strategy", ["Atomic", "PerShard"])
    def test_every_dataset_is_rolled_out_again_and_routers_are_always_let_in(
        self, before: bytes, after: bytes, strategy: str
    ) -> None:
        """``plan_passwords.check_lets_in`` checks that at each step."""
        world = serving(before, rollout={"drainSeconds": 5, "strategy": strategy}, shards=3)
        world.proves_servers = True
        use_key(world, after)
        world.settle()
        assert world.status.rollouts[-1].rollout == "r2"
        assert len(world.status.rollouts) == 1
        assert mounted_keys(world) == ([mark_of(after)] if after else [])
        expected = mark_of(after) if after else None
        assert table_of(world)["generations"][0].get("passwordKey") == expected
        assert all(can_open(world, pod, table_of(world)) for pod in world.pods.values() if pod.table)

    def test_routers_have_the_key_of_what_serves_until_that_is_gone(self) -> None:
        world = serving()
        world.takes.start = NEVER
        use_key(world, NEWER_KEY)
        world.settle(until=lambda: world.status.last_rollout == 2)
        world.live(20)
        assert sorted(mounted_keys(world)) == sorted([MARK, NEWER_MARK])
        assert table_of(world)["generations"][0]["passwordKey"] == MARK
        assert says(world.look())["Ready"] == "True Serving"

    def test_a_shard_of_the_rollout_before_says_whose_password_it_asks_for(self) -> None:
        world = serving(b"", rollout={"drainSeconds": 5, "strategy": "PerShard"}, shards=3)
        use_key(world, KEY)
        world.settle(until=lambda: world.status.table is not None and bool(world.status.table.parts))
        world.reconcile()
        (entry,) = table_of(world)["generations"]
        assert (entry["rollout"], entry["passwordKey"]) == ("r2", MARK)
        assert [shard.get("rollout") for shard in entry["shards"]].count("r1") == 2
        assert not any("passwordKey" in shard for shard in entry["shards"])

    def test_a_table_of_no_passwords_is_as_it_was_before_there_were_any(self) -> None:
        world = serving(b"", rollout={"drainSeconds": 5, "strategy": "PerShard"}, shards=3)
        world.edit(serving={"workers": 2})
        world.settle(until=lambda: world.status.table is not None and bool(world.status.table.parts))
        world.reconcile()
        (entry,) = table_of(world)["generations"]
        assert "passwordKey" not in entry
        assert {name for shard in entry["shards"] for name in shard} == {"endpoints"}

    @pytest.mark.parametrize("seed", range(3))
    def test_whatever_else_fails(self, seed: int) -> None:
        PasswordLives(seed).live(60)


class TestTheSecretOfAKey:
    def test_is_there_before_the_routers(self) -> None:
        world = use_key(World(), KEY)
        written = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in world.look().apply]
        assert written.index(("Secret", SECRET)) < written.index(("Deployment", "airports-router"))

    def test_is_made_again_for_a_rollout(self) -> None:
        world = serving()
        assert SECRET not in list(made_secrets(world))
        world.edit(serving={"workers": 2})
        assert SECRET in list(made_secrets(world))

    def test_that_was_lost_is_made_again_when_a_router_lacks_it_and_not_at_each_look(self) -> None:
        """The operator ended between its two writes, or somebody deleted it."""
        world = serving()
        world.keys.clear()
        world.asked = True
        assert SECRET not in list(made_secrets(world)), "it may not be mounted yet"
        world.now += timedelta(seconds=secrets.MAKE_AGAIN_AFTER)
        assert SECRET in list(made_secrets(world))
        world.reconcile()
        assert SECRET in world.keys
        world.keys.clear()
        world.asked = True
        assert world.look().next_look_in == pytest.approx(secrets.MAKE_AGAIN_AFTER, abs=1)

    def test_that_was_lost_before_it_was_there_keeps_nothing_from_being_served(self) -> None:
        world = use_key(World(), KEY)
        planned = world.look()
        world.carry_out(planned, world.dataset, steps=0)
        assert (world.status.password_key, world.keys) == (MARK, {})
        world.settle()
        assert says(world.look())["Ready"] == "True Serving"

    def test_that_is_refused_shows_and_is_tried_again(self) -> None:
        world = serving()
        world.refuses = lambda manifest: "exceeded quota" if is_made_once(manifest) else ""
        use_key(world, NEWER_KEY)
        world.reconcile()
        assert "exceeded quota" in condition(world.look(), "Degraded").message
        name = names.password_key_secret("airports", NEWER_MARK)
        assert name in list(made_secrets(world)), "or the refusal would be forgotten"
        world.refuses = lambda manifest: ""
        world.reconcile()
        assert name in world.keys
        assert name not in list(made_secrets(world))
        assert "quota" not in condition(world.look(), "Degraded").message

    def test_of_a_key_that_somebody_else_has_made_leaves_what_serves_in_peace(self) -> None:
        world = serving()
        name = names.password_key_secret("airports", NEWER_MARK)
        world.keys[name] = {"data": {"key": base64.b64encode(b"x" * 32).decode()}}
        use_key(world, NEWER_KEY)
        world.settle(until=lambda: world.status.table is not None and world.status.table.rollout == "r2")
        world.live(20)
        assert not (world.status.table and world.status.table.confirmed_at)
        assert says(world.look())["Ready"] == "True Serving"
        assert "r1" in [rollout.rollout for rollout in world.status.rollouts]

    def test_is_forgotten_where_there_are_no_passwords(self) -> None:
        world = serving()
        use_key(world, b"").settle()
        assert (world.status.password_key, world.status.password_key_written_at) == ("", "")
        assert not any("Secret/airports-router" in name for name in applied(world.look()))


class TestAStatusThatWasLost:
    def test_leaves_the_routers_the_keys_of_all_servers_that_are_there(self) -> None:
        world = serving()
        world.takes.start = NEVER
        use_key(world, NEWER_KEY)
        world.status = DatasetStatus()
        world.version += 1
        world.reconcile()
        assert [(one.rollout, one.password_key) for one in world.status.rollouts] == [("r1", MARK)]
        assert sorted(mounted_keys(world)) == sorted([MARK, NEWER_MARK])

    def test_in_part_has_the_key_of_a_rollout_again(self) -> None:
        world = serving()
        without = tuple(replace(rollout, password_key="") for rollout in world.status.rollouts)
        world.status = replace(world.status, rollouts=without)
        world.version += 1
        world.reconcile()
        assert [rollout.password_key for rollout in world.status.rollouts] == [MARK]
        assert world.look().apply == ()
