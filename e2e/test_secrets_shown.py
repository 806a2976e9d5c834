"""Of a dataset that has every kind of Secret, and of one that fails, nothing shows what the Secrets hold: no object,
event or status, no log, no process listing, no admin port."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final

import pytest
from e2e.support import access, pods, release, shown
from e2e.support.certificates import make_authority, make_identity
from e2e.support.kubectl import kubectl, until
from e2e.support.story import BRISK, PATIENT, Story
from operator_support.planted import find_account_tokens, find_planted

from lookupdb.shard_passwords import derive_password

pytestmark = pytest.mark.side_by_side

DATASET: Final = "records"
FAILING: Final = "failing"
SHARDS: Final = 2
AUDIENCE: Final = "lookupdb:records"
SEEN: Final = (
    "LookupDataset ",
    "Event ",
    "ConfigMap ",
    "Pod ",
    "log ",
    "router ",
    "shard ",
    "gateway ",
    "operator ",
)
"""How places begin of which something must have been seen, or the story says nothing."""
STATUSES: Final = {"a token": 200, "a service account": 200, "another one": 403, "a wrong token": 401, "no token": 401}


def test_nothing_shows_what_secrets_hold(story: Story) -> None:
    token, wrong = (secrets.token_urlsafe(32) for _ in range(2))
    _apply(story, token)
    story.wait_settled(DATASET)
    story.wait_condition(FAILING, "Degraded", "True")
    accounts = [access.account_token(story.namespace, account, AUDIENCE) for account in ("web", "other")]
    _ask(story, dict(zip(STATUSES, (token, *accounts, wrong, ""), strict=True)))

    planted = dict(_list_planted(story)) | {"a token": token, "a wrong token": wrong}
    planted |= {f"the signature of token {number}": text.rpartition(".")[2] for number, text in enumerate(accounts)}
    assert {"source/AWS_SECRET_ACCESS_KEY", "records-tls/tls.key", "records-clients/web"} <= planted.keys()
    seen = dict(_look(story))
    assert [place for place in SEEN if not any(name.startswith(place) for name in seen)] == []
    found = {place: find_planted(text, planted) + find_account_tokens(text) for place, text in seen.items()}
    assert {place: names for place, names in found.items() if names} == {}


def _apply(story: Story, token: str) -> None:
    """The two datasets, with all that they name."""
    authority = make_authority()
    identity = make_identity(_host(story), by=authority)
    source = {
        "AWS_ACCESS_KEY_ID": "AKIAPLANTED",
        "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(30),
        "AWS_SESSION_TOKEN": secrets.token_urlsafe(60),
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_REGION": "eu-west-1",
        "AWS_ALLOW_HTTP": "true",
    }
    story.apply(
        pods.authority(authority.certificate_pem),
        access.certificate("records-tls", identity),
        access.clients("records-clients", token),
        access.secret("source", source),
    )
    auth: dict[str, Any] = {
        "tokens": {"secretName": "records-clients"},
        "serviceAccounts": {"audience": AUDIENCE, "subjects": [f"{story.namespace}/web"]},
    }
    router = PATIENT | {"tls": {"secretName": "records-tls"}, "auth": auth, "service": {"port": 443}, "drainSeconds": 0}
    for account in ("web", "other"):
        kubectl("create", "serviceaccount", account, "--namespace", story.namespace)
    key, *_ = story.source(DATASET, version="v1", records=300)
    serving = story.dataset(DATASET, DATASET, shards=SHARDS, router=router, rollout=BRISK)
    serving["spec"]["source"]["secretName"] = "source"
    failing = story.dataset(FAILING, DATASET)
    failing["spec"]["source"] = {"url": "s3://absent/records.csv", "secretName": "source"}
    story.apply(serving, failing, pods.keeper(f"https://{_host(story)}", key, {}))


def _ask(story: Story, tokens: dict[str, str]) -> None:
    """Have the routers judge every kind of token, of which they may tell."""

    def look() -> bool:
        answers = access.ask(story.namespace, f"https://{_host(story)}/v1/lookup/key-00000", list(tokens.values()))
        assert [status for status, _ in answers] == list(STATUSES.values()), answers
        return True

    # The operator writes the keys of service accounts within a minute, and the kubelet hands them on.
    until(look, seconds=180, what="everybody answered as is said of them")


def _list_planted(story: Story) -> Iterator[tuple[str, str | bytes]]:
    """What the Secrets of both namespaces hold, and what is derived of it."""
    for namespace in (story.namespace, release.NAMESPACE):
        yield from shown.list_secrets(namespace).items()
    (rollout,) = story.status(DATASET)["rollouts"]
    key = shown.list_secrets(story.namespace)[f"{DATASET}-router-{rollout['passwordKey']}/key"]
    raw = key.encode() if isinstance(key, str) else key
    for shard in range(SHARDS):
        yield f"the password of shard {shard}", derive_password(raw, rollout["rollout"], shard)


def _look(story: Story) -> Iterator[tuple[str, str]]:
    """All that can be seen, by where."""
    yield from shown.list_objects()
    for namespace in (story.namespace, release.NAMESPACE):
        yield from shown.list_logs(namespace)
        yield from shown.list_processes(namespace)


def _host(story: Story) -> str:
    return f"{DATASET}-router.{story.namespace}.svc"
