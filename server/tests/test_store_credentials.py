"""The credentials for a bucket; a store that refuses them is distinguished from an absent one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from support.web import QuietHandler, web_server

from lookupdb import store
from lookupdb.errors import StoreDenied, StoreError
from lookupdb.store import StoreAddress, objects

ADDRESS = StoreAddress("local", "default", "things", "local")


@dataclass
class Bouncer:
    """An S3 server that lets nobody in, and keeps what it was shown."""

    url: str = ""
    seen: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture
def bouncer() -> Iterator[Bouncer]:
    made = Bouncer()

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - http.server calls it so
            made.seen.append({name.lower(): value for name, value in self.headers.items()})
            body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with web_server(Handler) as made.url:
        yield made


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "LOOKUPDB_STORE_AWS_")):
            monkeypatch.delenv(name)


def give(monkeypatch: pytest.MonkeyPatch, prefix: str, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"{prefix}AWS_{name}", value)


def test_the_store_is_told_its_own_variables_and_nothing_of_the_source(
    bouncer: Bouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(
        monkeypatch,
        "",
        ACCESS_KEY_ID="source",
        SECRET_ACCESS_KEY="s",
        SESSION_TOKEN="of the source",
        ENDPOINT_URL="http://127.0.0.1:1",
    )
    give(
        monkeypatch,
        objects.PREFIX,
        ACCESS_KEY_ID="store",
        SECRET_ACCESS_KEY="t",
        ENDPOINT_URL=bouncer.url,
        ALLOW_HTTP="true",
        REGION="eu-west-3",
    )
    before = dict(os.environ)
    with pytest.raises(StoreDenied, match=r"cannot list s3://lookups at http://127.0.0.1:\d+: access denied"):
        store.open_store("s3://lookups").dataset_at(ADDRESS).generations()
    assert dict(os.environ) == before, "sources are read with what is plain"
    assert all("Credential=store/" in seen["authorization"] for seen in bouncer.seen)
    assert all("/eu-west-3/" in seen["authorization"] for seen in bouncer.seen)
    assert all("x-amz-security-token" not in seen for seen in bouncer.seen)


def test_without_own_variables_the_store_is_told_what_sources_are(
    bouncer: Bouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, "", ACCESS_KEY_ID="one", SECRET_ACCESS_KEY="s", ENDPOINT_URL=bouncer.url, ALLOW_HTTP="1")
    with pytest.raises(StoreDenied):
        store.open_store("s3://lookups").dataset_at(ADDRESS).generations()
    assert "Credential=one/" in bouncer.seen[0]["authorization"]


def test_plain_http_must_be_allowed_for_the_store_itself(bouncer: Bouncer, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, "", ALLOW_HTTP="true")
    give(monkeypatch, objects.PREFIX, ACCESS_KEY_ID="a", SECRET_ACCESS_KEY="b", ENDPOINT_URL=bouncer.url)
    with pytest.raises(StoreError) as caught:
        store.open_store("s3://lookups").dataset_at(ADDRESS).generations()
    assert not isinstance(caught.value, StoreDenied)
    assert bouncer.seen == []


@pytest.mark.parametrize(
    ("scheme", "environment", "told"),
    [
        ("s3", {"AWS_REGION": "a", "GOOGLE_BUCKET": "b"}, {"AWS_REGION": "a"}),
        ("s3", {"AWS_REGION": "a", "LOOKUPDB_STORE_AWS_REGION": "b"}, {"AWS_REGION": "b"}),
        ("s3", {"AWS_REGION": "a", "LOOKUPDB_STORE_AWS_REGION": ""}, {"AWS_REGION": "a"}),
        ("s3", {"AWS_REGION": "a", "AWS_ENDPOINT_URL": ""}, {"AWS_REGION": "a"}),
        ("gs", {"GOOGLE_A": "a", "LOOKUPDB_STORE_AWS_REGION": "b"}, {"GOOGLE_A": "a"}),
        ("az", {"AZURE_A": "a", "LOOKUPDB_STORE_AZURE_B": "b"}, {"AZURE_B": "b"}),
        ("s3", {"LOOKUPDB_STORE": "s3://lookups", "LOOKUPDB_STORE_SECRET": "x"}, {}),
    ],
)
def test_which_variables_are_the_stores(scheme: str, environment: dict[str, str], told: dict[str, str]) -> None:
    assert objects.store_variables(scheme, environment) == told


def test_what_the_secret_of_a_store_lacks_is_not_taken_from_the_source() -> None:
    source = {"AWS_ACCESS_KEY_ID": "of the source", "AWS_ENDPOINT_URL": "http://source"}
    named = {
        objects.SECRET_VARIABLE: "team-store",
        f"{objects.PREFIX}ACCESS_KEY_ID": "a name that no store knows",
    }
    assert objects.store_variables("s3", source | named) == {}
    assert objects.store_variables("s3", source) == source
