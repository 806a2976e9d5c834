"""Access to lookups: the objects that it needs, and the writes after a change."""

from __future__ import annotations

from typing import Any

from operator_support.plan_samples import applied, deleted, serving

KEYS = '{"keys":[{"kid":"one"}]}\n'
MAP = "ConfigMap/airports-router-keys"
TOKENS: dict[str, Any] = {"tokens": {"secretName": "clients"}}
ACCOUNTS: dict[str, Any] = {"serviceAccounts": {"audience": "lookupdb:airports", "subjects": ["shop/web"]}}


def test_a_change_of_who_may_look_up_rolls_out_routers_and_nothing_else() -> None:
    world = serving()
    for auth in (TOKENS, TOKENS | ACCOUNTS, {**TOKENS, "tokens": {"secretName": "others"}}, None):
        world.edit(router={"auth": auth} if auth else {})
        assert applied(world.reconcile()) == {"Deployment/airports-router"}
        world.settle()
    assert (world.status.last_generation, world.status.last_rollout) == (1, 1)


def test_keys_are_written_for_a_dataset_that_lets_service_accounts_in() -> None:
    world = serving()
    world.account_keys = KEYS
    assert applied(world.look()) == set()
    world.edit(router={"auth": TOKENS})
    assert MAP not in applied(world.reconcile())
    world.edit(router={"auth": ACCOUNTS})
    planned = world.reconcile()
    assert applied(planned) == {"Deployment/airports-router", MAP}
    (written,) = (manifest for manifest in planned.apply if manifest["kind"] == "ConfigMap")
    assert written["data"] == {"jwks.json": KEYS}
    (owner,) = written["metadata"]["ownerReferences"]
    assert owner["kind"] == "LookupDataset"


def test_new_keys_are_written_at_once_and_no_router_is_rolled_out() -> None:
    world = serving(router={"auth": ACCOUNTS})
    world.account_keys = KEYS
    assert applied(world.reconcile()) == {MAP}
    assert applied(world.look()) == set()
    world.account_keys = KEYS.replace("one", "two")
    assert applied(world.reconcile()) == {MAP}


def test_an_operator_that_cannot_read_the_keys_leaves_the_last_ones() -> None:
    world = serving(router={"auth": ACCOUNTS})
    world.account_keys = KEYS
    world.reconcile()
    world.account_keys = ""
    planned = world.reconcile()
    assert (applied(planned), deleted(planned)) == (set(), set())


def test_keys_that_nobody_reads_any_more_are_deleted() -> None:
    world = serving(router={"auth": ACCOUNTS})
    world.account_keys = KEYS
    world.reconcile()
    world.edit(router={})
    assert deleted(world.reconcile()) == {MAP}


def test_a_dataset_that_is_suspended_gets_new_keys() -> None:
    world = serving(router={"auth": ACCOUNTS})
    world.account_keys = KEYS
    world.reconcile()
    world.edit(suspend=True)
    world.settle()
    world.account_keys = KEYS.replace("one", "two")
    assert applied(world.reconcile()) == {MAP}
