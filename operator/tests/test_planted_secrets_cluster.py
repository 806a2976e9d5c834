"""Secrets that are planted where the operator reads them show in none of its writes, except in their own Secrets: no
event, status, ConfigMap, argument or variable of a pod, metric or line of its log."""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

import pytest
from operator_support.kube import Kube, Object, Refusal, Write
from operator_support.kube_story import all_steps, condition, dataset, respecified, seen, step_to_build
from operator_support.kubelet import Kubelet
from operator_support.planted import find_account_tokens, find_planted, list_forms
from operator_support.running import operating, options, until
from support.signers import ec_signer

from lookupdb.credentials import derive_dataset_key, derive_password

pytest_plugins = ["operator_support.cluster_fixtures"]
pytestmark = pytest.mark.timeout(240)

RELEASE_KEY = bytes(range(100, 132))
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDACCESSKEY",
    "AWS_SECRET_ACCESS_KEY": "planted/secret+key-of-the-store-xyz",
}
SOURCE_PASSWORD = "planted-password-of-the-source"
TOKEN_HASH = "planted" + "0f" * 28 + "a"
SPEC: dict[str, Any] = {
    "source": {"url": "s3://people/people.csv", "secretName": "source"},
    "router": {
        "tls": {"secretName": "people-tls"},
        "auth": {
            "tokens": {"secretName": "people-clients"},
            "serviceAccounts": {"audience": "lookupdb:people", "subjects": ["shop/web"]},
        },
    },
}


def secret(namespace: str, name: str, **data: str | bytes) -> Object:
    coded = {
        key: base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
        for key, value in data.items()
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": namespace, "name": name, "labels": {}},
        "data": coded,
    }


def list_planted(kube: Kube) -> dict[str, str | bytes]:
    """Return what must not show, by its name, with everything derived from the release's key."""
    uid = str((kube.get("LookupDataset", "shop", "airports") or {})["metadata"]["uid"])
    key = derive_dataset_key(RELEASE_KEY, uid)
    passwords = {
        f"the password of {rollout}-s{shard}": derive_password(key, rollout, shard)
        for rollout in ("r1", "r2", "r3")
        for shard in range(2)
    }
    held = {"the source's password": SOURCE_PASSWORD, "a token's hash": TOKEN_HASH}
    return {"the release's key": RELEASE_KEY, "the dataset's key": key, **passwords, **held, **CREDENTIALS}


def find_in_objects(kube: Kube) -> dict[str, list[str]]:
    """Return the objects other than Secrets that show a secret: LookupDatasets with their statuses, events, ConfigMaps,
    Jobs, pods, …"""
    planted = list_planted(kube)
    shown = {
        " ".join(key): find_planted(text, planted) + find_account_tokens(text)
        for key, held in kube.objects.items()
        if key[0] != "Secret" and (text := json.dumps(held))
    }
    return {name: found for name, found in shown.items() if found}


async def test_a_dataset_that_lives_and_fails_shows_no_secret(
    kube: Kube, kubelet: Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    kube.put(secret("lookupdb", "store", **CREDENTIALS))
    kube.put(secret("lookupdb", "shard-key", key=RELEASE_KEY))
    kube.put(secret("shop", "source", AWS_SECRET_ACCESS_KEY=SOURCE_PASSWORD))
    kube.put(secret("shop", "people-clients", web=f"sha256:{TOKEN_HASH}"))
    kube.jwks = {"keys": [ec_signer().public()]}
    kube.put(dataset(**SPEC))
    chosen = options(
        admin_port=kubelet.admin_port, store_secret="store", shard_key_secret="shard-key", resync_seconds=1
    )
    async with operating(chosen) as operator:
        await all_steps(kube, kubelet)
        await until(lambda: condition(kube, "RolledOut")["reason"] == "UpToDate", "the end", lambda: seen(kube))
        assert find_in_objects(kube) == {}

        kube.before_write = refuse_jobs
        kube.put(respecified(kube, shards=3, **SPEC))
        await until(lambda: condition(kube, "Degraded")["status"] == "True", "a refusal", lambda: seen(kube))
        kube.before_write = lambda write: None
        await step_to_build(kube)
        told = [(await operator.ask(path))[1] for path in ("/metrics", "/healthz", "/readyz", "/nowhere")]
    assert find_in_objects(kube) == {}
    planted = list_planted(kube)
    kinds = {kind for kind, _, _ in kube.objects}
    assert kinds >= {"Event", "LookupDataset", "ConfigMap", "Job", "StatefulSet", "Deployment", "Pod", "NetworkPolicy"}
    assert any(told), "nothing was seen of the operator's port"
    assert caplog.text, "nothing was seen of its log"
    assert find_planted("".join(told), planted) == []
    assert find_planted(caplog.text, planted) == []
    held = {
        name: find_planted(json.dumps(kube.objects[key]), planted)
        for key in kube.objects
        if key[0] == "Secret" and (name := "/".join(key[1:])) not in ("lookupdb/store", "lookupdb/shard-key")
    }
    assert held.pop("shop/source") == ["the source's password"]
    assert held.pop("shop/people-clients") == ["a token's hash"]
    assert sorted(found for names in held.values() for found in names) == sorted([*CREDENTIALS, "the dataset's key"])


def refuse_jobs(write: Write) -> None:
    """Refuse Jobs, as an API server with a full quota does."""
    if write.kind == "Job":
        raise Refusal(403, "exceeded quota", "Forbidden")


@pytest.mark.parametrize("text", ["user:%s", "x%s", "xy%s", "%s", '{"a": "%s"}'])
def test_what_is_looked_for_is_found_within_base64(text: str) -> None:
    value = "planted/secret+key"
    shown = base64.b64encode((text % value).encode()).decode()
    assert find_planted(f"Authorization: Basic {shown}", {"it": value}) == ["it"]


@pytest.mark.parametrize("value", ["planted/secret+key", bytes(range(100, 132))], ids=["text", "bytes"])
def test_what_is_looked_for_is_found_however_it_is_written(value: str | bytes) -> None:
    for form in list_forms(value):
        assert find_planted(f"--flag={form} more", {"it": value}) == ["it"]
    assert find_planted("--flag=planted/secret", {"it": value}) == []


def test_a_token_of_a_service_account_is_found_whosever_it_is() -> None:
    assert find_account_tokens(f'"args": ["--token={ec_signer().token()}"]')
    assert find_account_tokens("eyJhbGciOiJSUzI1NiJ9 is the head of one") == []
