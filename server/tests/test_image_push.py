"""A push to a registry over real sockets: what it sends and to whom, what it does not send twice, and every answer that
is lost on the way."""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import shutil
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from support.registry import ENDLESS, PASSWORD, USER, Fault, Registry, serve_registry
from support.shards import write_generation
from support.tls import authority, make_identity

from lookupdb.cli.copy import image as command
from lookupdb.errors import CorruptFile, GateClosed, RegistryDenied, RegistryError, UsageError
from lookupdb.image import push as client
from lookupdb.image import push as push_module
from lookupdb.image.artifact import describe_blob, plain_manifest
from lookupdb.image.push import ImageLayout, PushedImage, push_shard
from lookupdb.manifest import FILE_NAME, Manifest, Refusal
from lookupdb.store.generations import find_in_folder

pytest_plugins = ["support.registry_fixtures"]
pytestmark = pytest.mark.usefixtures("oras", "impatient")

RECORDS = {f"key {number}": os.urandom(500) for number in range(400)}


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generation(tmp_path_factory.mktemp("generation"), RECORDS, shards=2, uid="3f2b9c1e")


def push(
    generation: Path, to: Registry, shard: int = 1, *, user: str = "", password: str = "", patience: float = 1
) -> PushedImage:
    config = {"auths": {to.host: _auth(user, password)}} if user else {}
    return push_to(to.host, generation, config, shard=shard, plain_http=True, patience=patience)


def push_to(host: str, generation: Path, config: Any = None, *, shard: int = 0, **options: Any) -> PushedImage:
    with closing(client.Registry(client.parse_repository(f"{host}/lookups"), config or {}, **options)) as target:
        return push_shard(find_in_folder(generation), shard, target, 0, lambda _: None)


@pytest.fixture(scope="module")
def content(oras: None, generation: Path) -> tuple[PushedImage, dict[str, bytes], dict[str, bytes]]:
    """A pushed image, and the blobs and manifests that its registry has then."""
    with serve_registry() as registry:
        return push(generation, registry), registry.blobs, registry.manifests


@pytest.fixture
def pushed(registry: Registry, content: tuple[PushedImage, dict[str, bytes], dict[str, bytes]]) -> PushedImage:
    """The image that the registry has."""
    image, blobs, manifests = content
    registry.blobs, registry.manifests = {**blobs}, {**manifests}
    return image


def check_whole(registry: Registry, image: PushedImage, generation: Path, folder: Path) -> None:
    """Check that the registry holds the blobs that `image write` writes."""
    (written,) = ImageLayout(folder).write(find_in_folder(generation), [1], 0)
    assert (image.tag, image.digest) == (written.tag, written.digest)
    held = registry.blobs | {digest: text for digest, text in registry.manifests.items() if ":" in digest}
    files = {f"sha256:{path.name}": path.read_bytes() for path in (folder / "blobs" / "sha256").iterdir()}
    assert held == files
    assert registry.manifests[image.tag] == files[image.digest]


def test_what_is_pushed_is_what_is_written_and_the_tag_comes_last(
    registry: Registry, generation: Path, tmp_path: Path
) -> None:
    image = push(generation, registry)
    assert image.outcome == "pushed"
    assert image.sent_bytes == sum(map(len, registry.blobs.values()))
    check_whole(registry, image, generation, tmp_path)
    assert registry.asked[-1] == f"PUT /v2/lookups/manifests/{image.tag}"
    assert registry.asked[0] == f"GET /v2/lookups/manifests/{image.tag}"


def test_what_is_there_is_neither_read_nor_sent_again(
    registry: Registry, pushed: PushedImage, generation: Path, tmp_path: Path
) -> None:
    unreadable = shutil.copytree(generation, tmp_path / "copy", ignore=shutil.ignore_patterns("*.lmdb"))
    again = push(unreadable, registry)
    assert (again.outcome, again.sent_bytes, again.digest) == ("present", 0, pushed.digest)
    assert {asked.split(" ")[0] for asked in registry.asked} == {"GET", "HEAD"}
    assert len(registry.asked) == 7, "an index, two manifests, their configurations, two layers"


@pytest.mark.parametrize("kept", ["nothing", "manifests", "all but the shard"])
def test_what_a_retention_took_from_under_a_tag_is_pushed_again(
    registry: Registry, pushed: PushedImage, generation: Path, tmp_path: Path, kept: str
) -> None:
    if kept == "nothing":
        registry.manifests = {name: registry.manifests[name] for name in (pushed.tag, pushed.digest)}
        registry.blobs.clear()
    elif kept == "manifests":
        registry.blobs.clear()
    else:
        del registry.blobs[max(registry.blobs, key=lambda digest: len(registry.blobs[digest]))]
    again = push(generation, registry)
    assert again.outcome == "pushed"
    check_whole(registry, again, generation, tmp_path)


@pytest.mark.parametrize("members", [{}, {"manifests": 1}, {"manifests": []}, {"manifests": [{"digest": "../x"}] * 2}])
def test_an_index_that_refers_to_nothing_is_pushed_again(
    registry: Registry, pushed: PushedImage, generation: Path, tmp_path: Path, members: dict[str, Any]
) -> None:
    annotations = json.loads(registry.manifests[pushed.tag])["annotations"]
    registry.manifests[pushed.tag] = orjson.dumps({"annotations": annotations, **members})
    assert push(generation, registry).outcome == "pushed"
    check_whole(registry, pushed, generation, tmp_path)


@pytest.mark.usefixtures("pushed")
def test_an_answer_without_an_end_keeps_nobody(registry: Registry, generation: Path) -> None:
    registry.faults["GET manifests/"] = [ENDLESS] * 100
    with pytest.raises(RegistryError, match="cannot look for"):
        push(generation, registry, patience=0.1)


def test_a_layer_that_another_generation_has_is_not_sent_again(
    registry: Registry, pushed: PushedImage, generation: Path
) -> None:
    del registry.manifests[pushed.tag]
    again = push(generation, registry)
    assert (again.outcome, again.sent_bytes) == ("pushed", 0)


def test_a_tag_of_other_content_is_left_alone(registry: Registry, pushed: PushedImage, generation: Path) -> None:
    other = json.loads(registry.manifests[pushed.tag])
    other["annotations"]["dev.lookupdb.shard.sha256"] = "0" * 64
    registry.manifests[pushed.tag] = before = orjson.dumps(other)
    with pytest.raises(UsageError, match="already exists with other content"):
        push(generation, registry)
    assert registry.manifests[pushed.tag] == before


REQUESTS = ("GET manifests/", "HEAD blobs/", "POST blobs/uploads/", "PUT blobs/uploads/", "PUT manifests/sha256:")
FAULTS: list[dict[str, list[Fault]]] = [
    {
        **{where: ["lost"] for where in (*REQUESTS, "PUT manifests/people")},
        **{where: ["lost", "dropped", "dropped"] for where in ("GET manifests/", "PUT blobs/uploads/")},
    },
    {
        **{where: [503, 429] for where in REQUESTS},
        "POST blobs/uploads/": [500, 503, 429],
        "PUT blobs/uploads/": [503, 429, "cut", "cut", "cut"],
        "PUT manifests/people": [502],
    },
]


@pytest.mark.parametrize("faults", FAULTS, ids=["lost", "refused"])
def test_whatever_fails_for_a_while_the_image_is_whole_in_the_end(
    registry: Registry, generation: Path, tmp_path: Path, faults: dict[str, list[Fault]]
) -> None:
    name = find_in_folder(generation).manifest.name
    registry.faults |= {where.replace("people", name): [*given] for where, given in faults.items()}
    check_whole(registry, push(generation, registry), generation, tmp_path)
    assert not any(registry.faults.values())


def test_a_tag_is_missing_in_a_repository_of_a_long_name_too(registry: Registry) -> None:
    """oras names it twice in its message for a missing tag."""
    repository = client.parse_repository(f"{registry.host}/{'x' * 200}")
    with closing(client.Registry(repository, {}, plain_http=True, patience=0)) as target:
        assert target.get_index("a-tag") is None


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_in_the_registrys_own_words_is_reported_at_once(
    registry: Registry, generation: Path, status: int
) -> None:
    registry.faults["POST blobs/uploads/"] = [status]
    with pytest.raises(RegistryDenied, match=r"denied: wished|unauthorized: wished"):
        push(generation, registry, patience=60)


def test_an_upload_whose_answer_was_lost_is_not_sent_again(registry: Registry) -> None:
    registry.faults["PUT blobs/uploads/"] = ["lost"]
    content = b"content"
    with closing(
        client.Registry(client.parse_repository(f"{registry.host}/lookups"), {}, plain_http=True, patience=1)
    ) as target:
        assert target.put_blob(describe_blob("application/octet-stream", content), lambda: [content])
    assert [asked.split(" ")[0] for asked in registry.asked].count("PUT") == 1
    assert [*registry.blobs.values()] == [content]


def test_what_fails_for_good_is_reported_with_the_registrys_own_words(registry: Registry, generation: Path) -> None:
    registry.faults["POST blobs/uploads/"] = [405]
    with pytest.raises(RegistryError, match=r"^cannot put sha256:.* in .*: unsupported: wished \[2J for\n") as caught:
        push(generation, registry)
    assert "\x1b" not in str(caught.value)
    assert not [tag for tag in registry.manifests if "shard" in tag], "no tag names what is not whole"


def test_a_registry_that_never_answers_is_given_up(registry: Registry, generation: Path) -> None:
    registry.faults["GET manifests/"] = ["dropped"] * 100
    with pytest.raises(RegistryError, match=f"^cannot look for .* in {registry.host}/.*: EOF\n") as caught:
        push(generation, registry, patience=0.1)
    assert caught.value.hint == "requests are retried for 0.1 seconds: --registry-patience allows more"


def test_a_registry_where_nothing_listens_is_named(generation: Path) -> None:
    with pytest.raises(RegistryError) as caught:
        push_to("127.0.0.1:1", generation, plain_http=False, patience=0)
    assert caught.value.message.endswith("dial tcp 127.0.0.1:1: connect: connection refused")
    assert "--registry-patience" in str(caught.value)


def test_a_host_that_does_not_resolve_is_named(generation: Path) -> None:
    with pytest.raises(RegistryError) as caught:
        push_to("registry.invalid", generation, plain_http=True, patience=0)
    assert "lookup registry.invalid" in caught.value.message


def test_a_registry_without_tls_is_reported_at_once(registry: Registry, generation: Path) -> None:
    with pytest.raises(RegistryError, match=r"look like a TLS handshake|HTTP response to HTTPS") as caught:
        push_to(registry.host, generation, plain_http=False, patience=60)
    assert caught.value.hint == "--plain-http speaks to a registry that has no TLS"


def test_a_proxy_that_is_not_there_is_not_the_registry(generation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:SECRET@127.0.0.1:1")
    with pytest.raises(RegistryError) as caught:
        push_to("registry.invalid", generation, plain_http=False, patience=0)
    assert "proxyconnect" in caught.value.message
    assert caught.value.message.endswith("connection refused")
    assert "SECRET" not in str(caught.value)
    assert "https_proxy" in str(caught.value)


def test_damage_is_found_before_the_registry_has_a_layer(registry: Registry, generation: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(generation, tmp_path / "damaged")
    path = damaged / "shard-00001-of-00002.lmdb"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    with pytest.raises(CorruptFile):
        push(damaged, registry)
    assert not registry.blobs


def test_a_shard_passes_as_a_stream(generation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large it is: of a shard of 64 MiB, a few pieces are in memory at a time."""
    monkeypatch.setattr(push_module, "read_shard", lambda *_: (b"x" * (1 << 20) for _ in range(64)))

    def enlarge(manifest: Manifest) -> Manifest:
        plain = plain_manifest(manifest)
        return replace(plain, shards=tuple(replace(shard, bytes=64 << 20) for shard in plain.shards))

    monkeypatch.setattr(push_module, "plain_manifest", enlarge)
    with serve_registry() as registry:
        registry.keeps_blobs = False
        registry.faults["PUT manifests/"] = [400]
        before = resident_bytes()
        with pytest.raises(RegistryError, match="manifest invalid: wished"):
            push(generation, registry)
        assert registry.received_bytes > 64 << 20
        assert resident_bytes() - before < 32 << 20


def resident_bytes() -> int:
    """The most that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class TestCredentials:
    @pytest.mark.usefixtures("pushed")
    @pytest.mark.parametrize("auth", ["basic", "bearer"])
    def test_are_shown_when_they_are_asked_for_and_removed_when_the_push_is_done(
        self, registry: Registry, generation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auth: Any
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        registry.auth = auth
        assert push(generation, registry, user=USER, password=PASSWORD).outcome == "present"
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("auth", ["basic", "bearer"])
    @pytest.mark.parametrize("user", ["", USER])
    def test_that_do_not_suffice_are_reported_at_once(self, generation: Path, auth: Any, user: str) -> None:
        with serve_registry(auth) as registry:
            with pytest.raises(RegistryDenied) as caught:
                push(generation, registry, user=user, password="wrong", patience=60)
            assert "wrong" not in str(caught.value)
            assert "--docker-config" in str(caught.value)
            assert len(registry.asked) <= 3

    @pytest.mark.usefixtures("pushed")
    def test_do_not_follow_a_redirect_to_another_host(self, registry: Registry, generation: Path) -> None:
        with serve_registry("basic") as asking:
            asking.redirect = f"http://{registry.host}"
            assert push(generation, asking, user=USER, password=PASSWORD).outcome == "present"
            assert registry.asked
            assert not registry.shown

    @pytest.mark.parametrize("challenge", ['Basic realm="x"', 'Bearer realm="http://{host}/token"'])
    def test_are_not_for_another_host_that_asks_for_them(self, generation: Path, challenge: str) -> None:
        with serve_registry() as registry, serve_registry("basic") as other:
            other.challenge = challenge.format(host=other.host)
            registry.redirect = f"http://{other.host}"
            with pytest.raises(RegistryDenied):
                push(generation, registry, user=USER, password=PASSWORD)
            assert other.asked
            assert not other.shown
            assert "GET /token" not in other.asked

    def test_do_not_follow_an_upload_to_another_host(self, generation: Path) -> None:
        with serve_registry("basic") as registry, serve_registry() as other:
            registry.location = lambda path: f"http://{other.host}{path}"
            with pytest.raises(RegistryError, match="is on a different host"):
                push(generation, registry, user=USER, password=PASSWORD)
            assert not other.asked

    def test_are_not_sent_over_a_network_in_plain_text(self) -> None:
        repository = client.parse_repository("registry.example/lookups")
        config = {"auths": {"registry.example": _auth("u", "p")}}
        with pytest.raises(UsageError, match="not sent without TLS"):
            client.Registry(repository, config, plain_http=True, patience=0)

    def test_may_come_from_a_helper(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        helper = tmp_path / "docker-credential-ours"
        told = orjson.dumps({"ServerURL": "x", "Username": USER, "Secret": PASSWORD}).decode()
        helper.write_text(f"#!/bin/sh\necho '{told}'\n")
        helper.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        with serve_registry("basic") as registry:
            config = {"auths": {}, "credHelpers": {registry.host: "ours"}}
            repository = client.parse_repository(f"{registry.host}/lookups")
            with closing(client.Registry(repository, config, plain_http=True, patience=0)) as target:
                assert target.get_index("a-tag") is None
            assert registry.shown


def _config(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / ".dockerconfigjson"
    path.write_bytes(content if isinstance(content, bytes) else orjson.dumps(content))
    return path


def read_config(path: Path, repository: str) -> Any:
    return client.read_docker_config(path, client.parse_repository(repository), must_exist=True)


def _auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    ("auths", "found"),
    [
        ({"registry.example": _auth("u", "p:q")}, _auth("u", "p:q")),
        ({"https://registry.example/v1/": _auth("u", "p")}, _auth("u", "p")),
        ({"registry.example": {"username": "u", "password": "p"}}, {"username": "u", "password": "p"}),
        ({"registry.example": _auth("all", "p"), "registry.example/team": _auth("team", "p")}, _auth("team", "p")),
    ],
)
def test_the_credentials_of_the_longest_name_count(tmp_path: Path, auths: dict[str, Any], found: Any) -> None:
    read = read_config(_config(tmp_path, {"auths": auths, "credsStore": "x"}), "registry.example/team/lookups")
    assert read == {"auths": {"registry.example": found}}


@pytest.mark.parametrize(
    "auths",
    [{"registry.example/te": _auth("other", "p")}, {"other.example": _auth("u", "p")}, {"registry.example": {}}, {}],
)
def test_what_has_no_credentials_for_it_may_name_a_helper(tmp_path: Path, auths: dict[str, Any]) -> None:
    config = {"auths": auths, "credHelpers": {"registry.example": "x", "other.example": "z"}, "credsStore": "y"}
    repository = "registry.example/team/lookups"
    assert read_config(_config(tmp_path, config), repository) == {"credHelpers": {"registry.example": "x"}}
    del config["credHelpers"]
    assert read_config(_config(tmp_path, config), repository) == {"credHelpers": {"registry.example": "y"}}
    assert read_config(_config(tmp_path, {"auths": auths, "credHelpers": {"x": "y"}}), repository) == {}


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"auths": 1}', {"auths": {"r.example": {"auth": "!"}}}])
def test_what_is_no_docker_configuration_is_refused_and_not_shown(tmp_path: Path, content: Any) -> None:
    with pytest.raises(UsageError, match="is not a Docker configuration"):
        read_config(_config(tmp_path, content), "r.example/x")


def test_a_file_that_nobody_named_may_be_missing(tmp_path: Path) -> None:
    repository = client.parse_repository("r.example/x")
    assert client.read_docker_config(tmp_path / "none", repository, must_exist=False) == {}
    with pytest.raises(UsageError, match="cannot read"):
        client.read_docker_config(tmp_path / "none", repository, must_exist=True)


@pytest.mark.parametrize(
    "text",
    [
        *("lookups", "team/lookups", "registry.example", "registry.example/Team", "https://r.example/x", "r.example/"),
        *("host.example:123456/x", "host.example:/x", "[g::1]/x"),
    ],
)
def test_what_is_no_repository_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a repository"):
        client.parse_repository(text)


@pytest.mark.parametrize("text", ["localhost:5000/a", "r.example/a/b-c/d.e_f", "[::1]:5000/a", "127.0.0.1:1/a"])
def test_repositories(text: str) -> None:
    assert str(client.parse_repository(text)) == text


def test_the_command_pushes_all_shards_with_credentials_from_a_file(generation: Path, tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    with serve_registry("bearer") as registry:
        config = _config(tmp_path, {"auths": {registry.host: _auth(USER, PASSWORD)}})
        words = ["push", str(generation), "--repository", f"{registry.host}/lookups", "--plain-http"]
        words += ["--docker-config", str(config), "--termination-log", str(log), "--progress", "none"]
        for outcome, counts in (("pushed", (2, 0)), ("present", (0, 2))):
            done = CliRunner().invoke(command, [*words, "--json"], catch_exceptions=False)
            told = orjson.loads(done.output.splitlines()[-1])
            assert (told["outcome"], told["exitCode"], (told["pushed"], told["present"])) == (outcome, 0, counts)
            assert orjson.loads(log.read_bytes()) == told
            assert PASSWORD not in done.output
        config.unlink()
        CliRunner().invoke(command, words)
        assert orjson.loads(log.read_bytes())["reason"] == "InvalidUsage"


class TestAuthorities:
    """A registry whose certificate is of an authority of its own."""

    @pytest.fixture
    def secure(self, tmp_path: Path) -> Iterator[Registry]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*make_identity("localhost", by=authority()).write(tmp_path / "tls"))
        with serve_registry(tls=context) as running:
            yield running

    def words(self, registry: Registry, generation: Path, *more: str) -> list[str]:
        host = registry.host.replace("127.0.0.1", "localhost")
        words = ["push", str(generation), "--repository", f"{host}/lookups", "--progress", "none"]
        return [*words, "--registry-patience", "0", *more]

    def test_that_a_file_has_are_believed(self, secure: Registry, tmp_path: Path) -> None:
        ca_file = tmp_path / "ca.crt"
        ca_file.write_bytes(authority().certificate_pem)
        repository = client.parse_repository(f"{secure.host}/lookups".replace("127.0.0.1", "localhost"))
        with closing(client.Registry(repository, {}, plain_http=False, patience=0, ca_file=ca_file)) as target:
            assert target.get_index("a-tag") is None
        assert secure.asked

    def test_that_no_file_has_are_reported_and_nothing_is_sent(self, secure: Registry, generation: Path) -> None:
        ended = CliRunner().invoke(command, self.words(secure, generation)).exception
        assert isinstance(ended, RegistryError)
        assert re.search(r"localhost:\d+.*failed to verify certificate: .* signed by unknown authority", ended.message)
        assert "--ca-file" in (ended.hint or "")
        assert not secure.asked

    @pytest.mark.parametrize("content", [None, b"no certificate"])
    def test_that_cannot_be_read_are_a_mistake(self, generation: Path, tmp_path: Path, content: bytes | None) -> None:
        ca_file = tmp_path / "ca.crt"
        if content is not None:
            ca_file.write_bytes(content)
        words = self.words(Registry("localhost:1"), generation, "--ca-file", str(ca_file))
        ended = CliRunner().invoke(command, words).exception
        assert isinstance(ended, UsageError)
        assert str(ca_file) in ended.message


def test_what_a_gate_has_refused_is_pushed_only_if_it_is_named(generation: Path, tmp_path: Path) -> None:
    refused = tmp_path / "g1"
    shutil.copytree(generation, refused)
    why = Refusal(reasons=("1 record, less than minRecords 2",), gates="", active="")
    (refused / FILE_NAME).chmod(0o644)
    (refused / FILE_NAME).write_bytes(replace(find_in_folder(refused).manifest, refused=why).to_json())
    with serve_registry() as registry:
        words = ["push", str(refused), "--repository", f"{registry.host}/lookups", "--plain-http", "--progress", "none"]
        ended = CliRunner().invoke(command, words).exception
        assert isinstance(ended, GateClosed)
        assert not registry.asked
        done = CliRunner().invoke(command, [*words, "--override-gates", "g1", "--json"], catch_exceptions=False)
        assert orjson.loads(done.output.splitlines()[-1])["pushed"] == 2
