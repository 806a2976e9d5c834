"""Nothing shows the content of Secrets: no object, event, status, log, process list or admin port.

One dataset uses every kind of Secret; another one fails.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator
from typing import Any, Final

import pytest
from e2e.support import access, pods, release
from e2e.support.certificates import make_authority, make_identity
from e2e.support.command import CommandFailed
from e2e.support.kubectl import Manifest, find, find_everywhere, kubectl, run_in, until
from e2e.support.scenario import BRISK, PATIENT, Scenario
from operator_support.planted import find_account_tokens, find_planted

from lookupdb.credentials import derive_password

pytestmark = pytest.mark.side_by_side

DATASET: Final = "records"
FAILING: Final = "failing"
SHARDS: Final = 2
AUDIENCE: Final = "lookupdb:records"
SEEN: Final = ("LookupDataset ", "Event ", "ConfigMap ", "Pod ", "log ", "router ", "shard ", "gateway ", "operator ")
"""Prefixes of places that must have been read, or the scenario proves nothing."""
KINDS: Final = (
    "lookupdatasets.lookupdb.dev",
    "events",
    "configmaps",
    "pods,jobs,cronjobs,statefulsets,deployments,replicasets",
    "services,networkpolicies,poddisruptionbudgets,controllerrevisions,serviceaccounts,leases",
)
ADMIN_PORTS: Final = {"router": 9090, "shard": 9090, "gateway": 9090, "operator": 8081}
"""The selector of each component whose pods have Python."""
LEAST_BYTES: Final = 12
"""The least length of a searched value; shorter ones occur by chance."""
PUBLIC: Final = (".crt", "AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL")
"""Endings of members of Secrets that are not secret. The id of a key is in S3's requests, and may be in its log."""
_PROCESSES: Final = (pods.INSIDE / "processes.py").read_text()
_COMPONENT: Final = "app.kubernetes.io/component"
_HELM: Final = "helm.sh/release.v1"
STATUSES: Final = {"a token": 200, "a service account": 200, "another one": 403, "a wrong token": 401, "no token": 401}


def test_nothing_shows_what_secrets_hold(scenario: Scenario) -> None:
    token, wrong = (secrets.token_urlsafe(32) for _ in range(2))
    _apply(scenario, token)
    scenario.wait_settled(DATASET)
    scenario.wait_condition(FAILING, "Degraded", "True")
    accounts = [access.account_token(scenario.namespace, account, AUDIENCE) for account in ("web", "other")]
    _ask(scenario, dict(zip(STATUSES, (token, *accounts, wrong, ""), strict=True)))

    planted = dict(_list_planted(scenario)) | {"a token": token, "a wrong token": wrong}
    planted |= {f"the signature of token {number}": text.rpartition(".")[2] for number, text in enumerate(accounts)}
    assert {"source/AWS_SECRET_ACCESS_KEY", "records-tls/tls.key", "records-clients/web"} <= planted.keys()
    seen = dict(_look(scenario))
    assert [place for place in SEEN if not any(name.startswith(place) for name in seen)] == []
    found = {place: find_planted(text, planted) + find_account_tokens(text) for place, text in seen.items()}
    assert {place: names for place, names in found.items() if names} == {}


def _apply(scenario: Scenario, token: str) -> None:
    """Apply both datasets, and all that they name."""
    authority = make_authority()
    identity = make_identity(_host(scenario), by=authority)
    source = {
        "AWS_ACCESS_KEY_ID": "AKIAPLANTED",
        "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(30),
        "AWS_SESSION_TOKEN": secrets.token_urlsafe(60),
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_REGION": "eu-west-1",
        "AWS_ALLOW_HTTP": "true",
    }
    scenario.apply(
        pods.authority(authority.certificate_pem),
        access.certificate("records-tls", identity),
        access.clients("records-clients", token),
        access.secret("source", source),
    )
    auth: dict[str, Any] = {
        "tokens": {"secretName": "records-clients"},
        "serviceAccounts": {"audience": AUDIENCE, "subjects": [f"{scenario.namespace}/web"]},
    }
    router = PATIENT | {"tls": {"secretName": "records-tls"}, "auth": auth, "service": {"port": 443}, "drainSeconds": 0}
    for account in ("web", "other"):
        kubectl("create", "serviceaccount", account, "--namespace", scenario.namespace)
    key, *_ = scenario.source(DATASET, version="v1", records=300)
    serving = scenario.dataset(DATASET, DATASET, shards=SHARDS, router=router, rollout=BRISK)
    serving["spec"]["source"]["secretName"] = "source"
    failing = scenario.dataset(FAILING, DATASET)
    failing["spec"]["source"] = {"url": "s3://absent/records.csv", "secretName": "source"}
    scenario.apply(serving, failing, pods.keeper(f"https://{_host(scenario)}", key, {}))


def _ask(scenario: Scenario, tokens: dict[str, str]) -> None:
    """Send every kind of token to the routers, which may then mention it."""

    def look() -> bool:
        answers = access.ask(
            scenario.namespace, f"https://{_host(scenario)}/v1/lookup/key-00000", list(tokens.values())
        )
        assert [status for status, _ in answers] == list(STATUSES.values()), answers
        return True

    # The operator writes the keys of service accounts within a minute, then the kubelet passes them on.
    until(look, seconds=180, what="everybody answered as is said of them")


def _list_planted(scenario: Scenario) -> Iterator[tuple[str, str | bytes]]:
    """Yield what the Secrets of both namespaces hold, and what is derived from it."""
    for namespace in (scenario.namespace, release.NAMESPACE):
        yield from _list_secrets(namespace).items()
    (rollout,) = scenario.status(DATASET)["rollouts"]
    key = _list_secrets(scenario.namespace)[f"{DATASET}-router-{rollout['passwordKey']}/key"]
    raw = key.encode() if isinstance(key, str) else key
    for shard in range(SHARDS):
        yield f"the password of shard {shard}", derive_password(raw, rollout["rollout"], shard)


def _look(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield all that can be read, by place."""
    yield from _list_objects()
    for namespace in (scenario.namespace, release.NAMESPACE):
        yield from _list_logs(namespace)
        yield from _list_processes(namespace)


def _host(scenario: Scenario) -> str:
    return f"{DATASET}-router.{scenario.namespace}.svc"


# Everything visible to people who may not read Secrets, as texts by place. Also the Secrets' values, to search for.


def _list_secrets(namespace: str) -> dict[str, str | bytes]:
    """Return the values of all Secrets of a namespace, by ``secret/key``. One line represents a private key, because
    line breaks vary."""
    found = {
        f"{secret['metadata']['name']}/{key}": base64.b64decode(coded)
        for secret in find("secrets", namespace)
        if secret["type"] != _HELM
        for key, coded in secret.get("data", {}).items()
        if not key.endswith(PUBLIC)
    }
    return {name: _as_text(value) for name, value in found.items() if len(value) >= LEAST_BYTES}


def _list_objects() -> Iterator[tuple[str, str]]:
    """Yield every object of the cluster that may concern a dataset, except Secrets."""
    for kinds in KINDS:
        for item in find_everywhere(kinds):
            metadata = item["metadata"]
            yield f"{item['kind']} {metadata.get('namespace', '')}/{metadata['name']}", json.dumps(item)


def _list_logs(namespace: str) -> Iterator[tuple[str, str]]:
    """Yield the logs of every container of a namespace, also from before a restart."""
    for pod in find("pods", namespace):
        name = pod["metadata"]["name"]
        for container in _containers(pod):
            for flags in ([], ["--previous"]):
                try:
                    text = kubectl("logs", name, "--namespace", namespace, "--container", container, *flags)
                except CommandFailed:  # it has none, or has just gone
                    continue
                yield f"log {namespace}/{name}/{container} {' '.join(flags)}", text


def _list_processes(namespace: str) -> Iterator[tuple[str, str]]:
    """Yield processes and admin port of every ready pod that has Python."""
    for pod in find("pods", namespace):
        name, component = pod["metadata"]["name"], pod["metadata"].get("labels", {}).get(_COMPONENT, "")
        if component not in ADMIN_PORTS or not _is_ready(pod):
            continue
        try:
            result = json.loads(run_in(name, namespace, "python", "-c", _PROCESSES, str(ADMIN_PORTS[component])))
        except CommandFailed:
            if not any(_is_ready(left) for left in find("pods", namespace) if left["metadata"]["name"] == name):
                continue  # a dataset of another scenario has gone
            raise
        for place, text in result.items():
            yield f"{component} {namespace}/{name} {place}", text


def _is_ready(pod: Manifest) -> bool:
    conditions = {condition["type"]: condition["status"] for condition in pod["status"].get("conditions", [])}
    return "deletionTimestamp" not in pod["metadata"] and conditions.get("Ready") == "True"


def _containers(pod: Manifest) -> list[str]:
    spec = pod["spec"]
    return [container["name"] for container in (*spec.get("initContainers", []), *spec["containers"])]


def _as_text(value: bytes) -> str | bytes:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value
    return max(text.split(), key=len) if "\n" in text.strip() else text.strip()
