"""Two teams share a store without its credentials. A pod in one team's namespace reaches nothing of the other's,
whatever it pretends to be."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import pytest
from e2e.support import pods, release, store
from e2e.support.kubectl import find, kubectl, run_in
from e2e.support.scenario import Scenario

pytestmark = pytest.mark.side_by_side

OWN: Final = "own"
OTHER: Final = "other"
AUDIENCES: Final = {OWN: release.AUDIENCE, OTHER: "lookupdb-store:somewhere/else"}
"""Audiences of the intruder's tokens: one like a builder's, and one for another installation."""
SECRETS_API: Final = "https://kubernetes.default.svc/api/v1/namespaces/{}/secrets"

Request = dict[str, Any]


def test_a_team_reaches_nothing_of_another_teams_in_the_store(new_scenario: Callable[..., Scenario]) -> None:
    victim, intruder = new_scenario("tenant-a"), new_scenario("tenant-b")
    keys = {}
    for team in (victim, intruder):
        keys[team.namespace] = team.source("records", version=team.name, records=300)
        team.apply(team.dataset("records", "records", shards=2, router={"drainSeconds": 0}))
    for team in (victim, intruder):
        team.wait_settled("records")
        assert _store_secrets(team) == [], "the store's credentials are not there"
    cluster, generation = _find_generation(victim)
    before = _list_paths(victim)
    assert f"{generation}/manifest.json" in before
    intruder.apply(pods.intruder(AUDIENCES))
    kubectl("wait", "--for=condition=Ready", f"pod/{pods.INTRUDER}", "-n", intruder.namespace, "--timeout=50s")

    answers = _send(intruder, _own_requests(cluster, intruder.namespace))
    assert [status for status, _ in answers] == [200] * len(answers), f"or nothing below means anything: {answers}"
    listed = [json.loads(line) for line in answers[-1][1].splitlines()]
    assert [line["prefix"].strip("/") for line in listed[:-1]] == [f"{cluster}/{intruder.namespace}"]
    assert listed[-1] == {"end": True}

    forbidden = _forbidden_requests(cluster, victim.namespace, generation)
    for request, (status, body) in zip(forbidden, _send(intruder, forbidden), strict=True):
        assert status == 403, (request, status, body)
    unauthenticated = _unauthenticated_requests(cluster, intruder.namespace)
    for request, (status, body) in zip(unauthenticated, _send(intruder, unauthenticated), strict=True):
        assert status == 401, (request, status, body)
    ((status, body),) = _send(intruder, [{"method": "GET", "url": _store_url()}])
    assert status in (0, 403), f"the store itself: {body}"

    assert _list_paths(victim) == before
    victim.check_version("records", keys[victim.namespace], victim.name)
    victim.refresh("records")
    victim.wait_settled("records")
    victim.check_version("records", keys[victim.namespace], victim.name)


def _send(scenario: Scenario, requests: list[Request]) -> list[tuple[int, str]]:
    """Return the answers to the intruder's requests, in order."""
    asked = json.dumps({"requests": requests})
    result = run_in(pods.INTRUDER, scenario.namespace, "python", "/inside/intrude.py", stdin=asked)
    return [(status, body) for status, body in json.loads(result)["answers"]]


def _own_requests(cluster: str, namespace: str) -> list[Request]:
    """Allowed requests: put, get, list and delete in the own part, then list the visible namespaces."""
    path = f"{cluster}/{namespace}/intruder-{secrets.token_hex(4)}/g1/note.json"
    return [
        _object("PUT", path, body="{}"),
        _object("GET", path),
        _list(f"{cluster}/{namespace}"),
        _delete(path),
        _list(cluster, delimiter=True),
    ]


def _forbidden_requests(cluster: str, namespace: str, generation: str) -> list[Request]:
    """Requests for the data of another team, of another cluster, and of everybody."""
    manifest, new = f"{generation}/manifest.json", f"{generation}/new.json"
    return [
        _list(f"{cluster}/{namespace}"),
        _list(f"{cluster}/{namespace}", delimiter=True),
        _list(generation),
        _list(cluster),
        _list(f"elsewhere/{namespace}"),
        _object("GET", manifest),
        _object("HEAD", manifest),
        _object("GET", f"elsewhere/{namespace}/records-00000000/g1/manifest.json"),
        _object("PUT", manifest, body="{}"),
        _object("PUT", new, body="{}", headers={"Lookupdb-Mode": "create"}),
        _delete(manifest),
    ]


def _unauthenticated_requests(cluster: str, namespace: str) -> list[Request]:
    """Requests for the own part without a valid token, and for the API server with the store's token."""
    own = _list(f"{cluster}/{namespace}")
    return [
        {**own, "token": OTHER},
        {**own, "token": ""},
        {**own, "token": "", "headers": {"Authorization": "Bearer e30.e30.e30"}},
        {"method": "GET", "url": SECRETS_API.format(namespace), "token": OWN},
    ]


def _object(method: str, path: str, **members: Any) -> Request:
    return {"method": method, "url": f"{release.gateway_url()}/v1/object/{quote(path)}", "token": OWN, **members}


def _list(prefix: str, *, delimiter: bool = False) -> Request:
    query = f"prefix={quote(prefix, safe='')}{'&delimiter=1' if delimiter else ''}"
    return {"method": "GET", "url": f"{release.gateway_url()}/v1/list?{query}", "token": OWN}


def _delete(path: str) -> Request:
    headers = {"Content-Type": "application/json"}
    body = json.dumps({"paths": [path]})
    url = f"{release.gateway_url()}/v1/delete"
    return {"method": "POST", "url": url, "token": OWN, "headers": headers, "body": body}


def _find_generation(scenario: Scenario) -> tuple[str, str]:
    """Return the cluster's id, and the folder that the dataset's fetchers read."""
    (shard_set, *_) = find("statefulsets", scenario.namespace)
    (fetcher,) = shard_set["spec"]["template"]["spec"]["initContainers"]
    words = fetcher["args"]
    cluster, uid, generation = (words[words.index(flag) + 1] for flag in ("--cluster-id", "--uid", "--generation"))
    assert words[words.index("--store") + 1] == release.gateway_url()
    return cluster, f"{cluster}/{scenario.namespace}/records-{uid[:8]}/{generation}"


def _list_paths(scenario: Scenario) -> set[str]:
    """Return the paths of a team's objects in the store."""
    held = store.paths(f"e2e-tenants-{secrets.token_hex(2)}")
    return {path for path in held if f"/{scenario.namespace}/" in path}


def _store_secrets(scenario: Scenario) -> list[str]:
    found = [secret["metadata"]["name"] for secret in find("secrets", scenario.namespace)]
    return [name for name in found if "-store-" in name]


def _store_url() -> str:
    """Return the URL that lists the store's bucket, without credentials."""
    return f"http://{store.deployment()['metadata']['name']}.{release.NAMESPACE}.svc:7070/lookupdb?list-type=2"
