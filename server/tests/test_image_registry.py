"""Bad answers of a registry: each ends in time, in an error that says what was sent."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from support.registry import TRICKLES, Registry, serve_registry

from lookupdb.errors import RegistryError, UsageError
from lookupdb.image import push as client
from lookupdb.image.artifact import INDEX_TYPE, Blob, describe_blob

pytest_plugins = ["support.registry_fixtures"]
pytestmark = pytest.mark.usefixtures("oras", "impatient")

CONTENT = b"content"
BLOB = describe_blob("application/octet-stream", CONTENT)
INDEX = b'{"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}'


def opened(to: Registry, seconds: float = 60, patience: float = 0) -> closing[client.Registry]:
    repository = client.parse_repository(f"{to.host}/lookups")
    return closing(client.Registry(repository, {}, plain_http=True, patience=patience, answer_seconds=seconds))


def ask(registry: client.Registry, where: str) -> None:
    """Call a function that sends a request like ``where``."""
    if where.startswith("GET"):
        registry.get_index("a")
    elif where == "PUT manifests/":
        registry.put_manifest("b", describe_blob(INDEX_TYPE, INDEX), INDEX)
    else:
        registry.put_blob(BLOB, lambda: [CONTENT])


class TestTime:
    @pytest.mark.parametrize(
        ("where", "what"),
        [
            *(("GET manifests/", what) for what in TRICKLES if what != "length"),  # it is read as far as the index goes
            *(("PUT blobs/uploads/", what) for what in ("status", "fields", "silence", "continue")),
            *((where, "silence") for where in ("HEAD blobs/", "POST blobs/uploads/", "PUT manifests/")),
        ],
    )
    def test_ends_an_answer_that_does_not(self, registry: Registry, what: str, where: str) -> None:
        with opened(registry, seconds=0.5) as asking:
            registry.manifests["a"] = INDEX
            registry.faults[where] = [TRICKLES[what]] * 20
            begun = time.monotonic()
            with pytest.raises(RegistryError):
                ask(asking, where)
        assert time.monotonic() - begun < 10

    def test_that_is_over_is_reported(self, registry: Registry) -> None:
        registry.faults["HEAD blobs/"] = [TRICKLES["silence"]]
        told = rf"^{registry.host} has not answered completely within 0\.5 seconds"
        with opened(registry, seconds=0.5) as asking, pytest.raises(RegistryError, match=told):
            asking.has_blob(BLOB)

    def test_does_not_count_while_an_upload_is_sent(self, registry: Registry) -> None:
        def slowly() -> Iterator[bytes]:
            for byte in CONTENT:
                time.sleep(0.3)
                yield bytes([byte])

        with opened(registry, seconds=1.5) as asking:
            assert asking.put_blob(BLOB, slowly)
        assert registry.blobs == {BLOB.digest: CONTENT}

    def test_ends_an_upload_that_is_not_read(self, registry: Registry) -> None:
        registry.faults["POST blobs/uploads/"] = [TRICKLES["silence"]]
        large = Blob(BLOB.media_type, BLOB.digest, 64 << 20)
        with opened(registry, seconds=1) as asking, pytest.raises(RegistryError, match="within 1 seconds"):
            asking.put_blob(large, lambda: (bytes(1 << 20) for _ in range(64)))


def test_an_upload_that_is_refused_in_its_middle_is_reported_and_not_sent_again(registry: Registry) -> None:
    registry.faults["PUT blobs/uploads/"] = ["early"] * 5
    large = Blob(BLOB.media_type, BLOB.digest, 64 << 20)
    sent = 0

    def content() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 1
            yield bytes(1 << 20)

    with opened(registry, patience=60) as asking, pytest.raises(RegistryError, match="size invalid: at most 1 GB"):
        asking.put_blob(large, content)
    assert sent < 64
    assert registry.uploads == 1


def test_a_size_that_is_another_is_reported(registry: Registry) -> None:
    registry.blobs[BLOB.digest] = CONTENT
    registry.size = lambda size: str(size + 1)
    with (
        opened(registry) as asking,
        pytest.raises(RegistryError, match=f"says that {BLOB.digest} has 8 bytes, it has 7"),
    ):
        asking.has_blob(BLOB)


def test_what_a_url_hides_is_not_shown(registry: Registry) -> None:
    registry.location = lambda _: "http://user:secret@127.0.0.1:1/x?secret"
    with opened(registry) as asking, pytest.raises(RegistryError) as caught:
        asking.put_blob(BLOB, lambda: [CONTENT])
    assert "secret" not in str(caught.value)


def test_a_blob_that_came_meanwhile_is_not_read(registry: Registry) -> None:
    with opened(registry) as asking:
        assert asking.put_blob(BLOB, lambda: [CONTENT])
        assert not asking.put_blob(BLOB, lambda: pytest.fail("it is there"))


@pytest.mark.parametrize("leads", ["/v2/lookups/manifests/", "ftp://a.example/", "http://a b/", ":"])
def test_a_redirect_that_leads_nowhere_ends(registry: Registry, leads: str) -> None:
    registry.redirect = leads
    with opened(registry) as asking, pytest.raises(RegistryError):
        asking.get_index("a")
    assert len(registry.asked) < 25


def test_a_program_that_is_missing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UsageError, match="oras, which lookupdb uses for registries, is not on PATH"):
        client.Registry(client.parse_repository("r.example/x"), {}, plain_http=False, patience=0)


def test_a_token_that_is_none_is_reported() -> None:
    with serve_registry("bearer") as registry:
        registry.challenge = f'Bearer realm="http://{registry.host}/v2/"'
        with opened(registry) as asking, pytest.raises(RegistryError):
            asking.get_index("a")
