"""Routers with TLS and tokens give no record to strangers.

Tokens and the certificate are replaced while clients ask, without a restart, a fault or a broken connection.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Any, Final

import pytest
from e2e.support import access, pods, router_pods
from e2e.support.certificates import Identity, make_authority, make_identity
from e2e.support.figures import record
from e2e.support.kubectl import Manifest, kubectl, raw, until
from e2e.support.scenario import BRISK, PATIENT, Scenario

from lookupdb.router.access import hash_token

pytestmark = pytest.mark.side_by_side

DATASET: Final = "records"
CERTIFICATE: Final = "records-tls"
CLIENTS: Final = "records-clients"
AUDIENCE: Final = "lookupdb:records"
OLD: Final = "old"
NEW: Final = "new"
SYNC_SECONDS: Final = 180
"""A kubelet updates Secrets in pods within two minutes."""

Seen = dict[str, Any]
"""The document of e2e/inside/keep.py about one token."""


def test_tokens_and_the_certificate_are_replaced_while_clients_ask(scenario: Scenario) -> None:
    host = f"{DATASET}-router.{scenario.namespace}.svc"
    authority = make_authority()
    first, second = make_identity(host, by=authority), make_identity(host, by=authority)
    tokens = {name: secrets.token_urlsafe(32) for name in (OLD, NEW)}
    scenario.apply(
        pods.authority(authority.certificate_pem),
        access.certificate(CERTIFICATE, first),
        access.clients(CLIENTS, tokens[OLD]),
    )
    key, *_ = scenario.source(DATASET, version="v1", records=300)
    scenario.apply(_dataset(scenario))
    scenario.wait_settled(DATASET)
    before = router_pods.restarts(scenario.namespace)
    scenario.apply(pods.keeper(f"https://{host}", key, tokens))
    began = _wait_seen(scenario, lambda seen: _judge_latest(seen, first, {OLD: 200, NEW: 401}), seconds=120)

    _check_who_is_let_in(scenario, f"https://{host}/v1/lookup/{key}", tokens)

    scenario.apply(access.certificate(CERTIFICATE, second), access.clients(CLIENTS, tokens[OLD], tokens[NEW]))
    replaced = time.monotonic()
    _wait_seen(scenario, lambda seen: _judge_latest(seen, second, {OLD: 200, NEW: 200}), seconds=SYNC_SECONDS)
    _wait_seen(scenario, lambda seen: _judge_kept(seen, {OLD: [200], NEW: [401, 200]}), seconds=SYNC_SECONDS)
    record("encrypted-lookups", "certificate and token changed to in use", time.monotonic() - replaced, "s")

    scenario.apply(access.clients(CLIENTS, tokens[NEW]))
    _wait_seen(
        scenario,
        lambda seen: (
            _judge_latest(seen, second, {OLD: 401, NEW: 200}) and _judge_kept(seen, {OLD: [200, 401], NEW: [401, 200]})
        ),
        seconds=SYNC_SECONDS,
        nudged=True,
    )
    ended = _wait_seen(scenario, lambda seen: all(seen[name]["kept"]["answers"] > 100 for name in seen), seconds=60)
    for name, seen in ended.items():
        kept = seen["kept"]
        assert seen["faults"] == [], f"{name}: {seen}"
        assert kept["opened"] == 1, f"{name}: its connection was broken: {seen}"
        assert _numbers(kept["serials"]) == [first.serial], f"it keeps what it began with: {seen}"
        assert kept["answers"] > began[name]["kept"]["answers"]
        record("encrypted-lookups", f"answers on the kept connection of the {name} token", kept["answers"])
    assert router_pods.restarts(scenario.namespace) == before == dict.fromkeys(before, 0), (
        "no router was started for it"
    )


def _dataset(scenario: Scenario) -> Manifest:
    auth = {
        "tokens": {"secretName": CLIENTS},
        "serviceAccounts": {"audience": AUDIENCE, "subjects": [f"{scenario.namespace}/web"]},
    }
    router = PATIENT | {"tls": {"secretName": CERTIFICATE}, "auth": auth, "service": {"port": 443}, "drainSeconds": 0}
    return scenario.dataset(DATASET, DATASET, shards=2, router=router, rollout=BRISK)


def _check_who_is_let_in(scenario: Scenario, url: str, tokens: dict[str, str]) -> None:
    """Assert the answer to each kind of client."""
    for account in ("web", "other"):
        kubectl("create", "serviceaccount", account, "--namespace", scenario.namespace)
    accounts = {
        "the service account that is named": (200, access.account_token(scenario.namespace, "web", AUDIENCE)),
        "another service account": (403, access.account_token(scenario.namespace, "other", AUDIENCE)),
        "the named one, for another audience": (
            401,
            access.account_token(scenario.namespace, "web", "lookupdb:others"),
        ),
        "the named one, for the API server": (401, access.account_token(scenario.namespace, "web")),
    }
    clients = {
        "no token": (401, ""),
        "a wrong token": (401, secrets.token_urlsafe(32)),
        "a token that is not in the Secret yet": (401, tokens[NEW]),
        "the hash of a token": (401, hash_token(tokens[OLD].encode()).removeprefix("sha256:")),
        "a token of the Secret": (200, tokens[OLD]),
    }
    expected = {name: status for name, (status, _) in (clients | accounts).items()}
    shown = [token for _, token in (clients | accounts).values()]

    def look() -> bool:
        router_pods.nudge(scenario.namespace)
        answers = access.ask(scenario.namespace, url, shown)
        found = dict(zip(expected, (status for status, _ in answers), strict=True))
        assert found == expected, answers
        return True

    # The operator writes the keys of service accounts within a minute.
    until(look, seconds=SYNC_SECONDS, what="everybody got the expected answer")
    ((status, body),) = access.ask(
        scenario.namespace, url.replace("https://", "http://").replace(".svc/", ".svc:443/"), [tokens[OLD]]
    )
    assert (status, "use https" in body) == (400, True), body


def _wait_seen(scenario: Scenario, true: Any, *, seconds: float, nudged: bool = False) -> dict[str, Seen]:
    """Wait until ``true`` holds for the keeper's document, and return the document, by token. A fault ends the wait."""

    def look() -> dict[str, Seen] | None:
        if nudged:
            router_pods.nudge(scenario.namespace)
        seen: dict[str, Seen] = json.loads(
            raw(f"/api/v1/namespaces/{scenario.namespace}/pods/{pods.KEEPER}:8000/proxy/")
        )
        assert true(seen), seen
        return seen

    return until(look, seconds=seconds, what=f"what the keeper of {scenario.namespace} is to see")


def _judge_latest(seen: dict[str, Seen], identity: Identity, statuses: dict[str, int]) -> bool:
    """Return whether new connections are shown this certificate, and each token gets this status."""
    serial = identity.serial
    latest = {
        name: {(status, *_numbers([shown])) for status, shown in one["fresh"]["latest"]} for name, one in seen.items()
    }
    return latest == {name: {(status, serial)} for name, status in statuses.items()}


def _judge_kept(seen: dict[str, Seen], statuses: dict[str, list[int]]) -> bool:
    """Return whether each token got these statuses, in this order, on the kept connection."""
    return {name: one["kept"]["statuses"] for name, one in seen.items()} == statuses


def _numbers(serials: list[str]) -> list[int]:
    return [int(serial or "0", 16) for serial in serials]
