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
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from support.registry import ENDLESS, PASSWORD, USER, Fault, Registry, serve_registry
from support.shards import write_generation
from support.tls import authority, make_identity

from lookupdb.cli.image import command
from lookupdb.errors import CorruptFile, GateClosed, RegistryDenied, RegistryError, UsageError
from lookupdb.image import push as push_module
from lookupdb.image import registry as client
from lookupdb.image.challenge import Challenge, parse_challenge, token_url
from lookupdb.image.docker_config import Credentials, read_credentials
from lookupdb.image.layer import TarFile
from lookupdb.image.layout import ImageLayout
from lookupdb.image.push import PushedImage, push_shard
from lookupdb.manifest import FILE_NAME, Refusal
from lookupdb.store.stored_generation import find_in_folder

pytest_plugins = ["support.registry_fixtures"]
pytestmark = pytest.mark.usefixtures("impatient")

RECORDS = {f"key {number}": os.urandom(500) for number in range(2000)}


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generation(tmp_path_factory.mktemp("generation"), RECORDS, shards=2, uid="3f2b9c1e")


def push(
    generation: Path, to: Registry, shard: int = 1, credentials: Credentials | None = None, patience: float = 1
) -> PushedImage:
    repository = client.parse_repository(f"{to.host}/lookups")
    target = client.Registry(repository, credentials, plain_http=True, patience=patience)
    try:
        return push_shard(find_in_folder(generation), shard, target, 0)
    finally:
        target.close()


def check_whole(registry: Registry, image: PushedImage, generation: Path, folder: Path) -> None:
    """What the registry holds is what `image write` writes, blob by blob."""
    (written,) = ImageLayout(folder).write(find_in_folder(generation), [1], 0)
    assert (image.tag, image.digest) == (written.tag, written.digest)
    held = registry.blobs | {digest: text for digest, text in registry.manifests.items() if ":" in digest}
    files = {f"sha256:{path.name}": path.read_bytes() for path in (folder / "blobs" / "sha256").iterdir()}
    assert held == files
    assert registry.manifests[image.tag] == files[image.digest]


def test_what_is_pushed_is_what_is_written(registry: Registry, generation: Path, tmp_path: Path) -> None:
    image = push(generation, registry)
    assert image.outcome == "pushed"
    assert image.sent_bytes == sum(map(len, registry.blobs.values()))
    check_whole(registry, image, generation, tmp_path)


def test_the_tag_comes_last(registry: Registry, generation: Path) -> None:
    image = push(generation, registry)
    assert registry.asked[-1] == f"PUT /v2/lookups/manifests/{image.tag}"
    assert registry.asked[0] == f"GET /v2/lookups/manifests/{image.tag}"


def test_what_is_there_is_neither_read_nor_sent_again(registry: Registry, generation: Path, tmp_path: Path) -> None:
    first = push(generation, registry)
    registry.asked.clear()
    unreadable = shutil.copytree(generation, tmp_path / "copy", ignore=shutil.ignore_patterns("*.lmdb"))
    again = push(unreadable, registry)
    assert (again.outcome, again.sent_bytes, again.digest) == ("present", 0, first.digest)
    assert {asked.split(" ")[0] for asked in registry.asked} == {"GET", "HEAD"}
    assert len(registry.asked) == 7, "an index, two manifests, their configurations, two layers"


@pytest.mark.parametrize("kept", ["nothing", "manifests", "all but the shard"])
def test_what_a_retention_took_from_under_a_tag_is_pushed_again(
    registry: Registry, generation: Path, tmp_path: Path, kept: str
) -> None:
    image = push(generation, registry)
    if kept == "nothing":
        registry.manifests = {image.tag: registry.manifests[image.tag]}
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
    registry: Registry, generation: Path, tmp_path: Path, members: dict[str, Any]
) -> None:
    image = push(generation, registry)
    annotations = json.loads(registry.manifests[image.tag])["annotations"]
    registry.manifests[image.tag] = orjson.dumps({"annotations": annotations, **members})
    assert push(generation, registry).outcome == "pushed"
    check_whole(registry, image, generation, tmp_path)


def test_an_answer_without_an_end_keeps_nobody(registry: Registry, generation: Path) -> None:
    registry.faults["GET manifests/"] = [ENDLESS]
    with pytest.raises(UsageError, match="of other content"):
        push(generation, registry)


def test_a_layer_that_another_generation_has_is_not_sent_again(registry: Registry, generation: Path) -> None:
    image = push(generation, registry)
    del registry.manifests[image.tag]
    again = push(generation, registry)
    assert (again.outcome, again.sent_bytes) == ("pushed", 0)


def test_a_tag_of_other_content_is_left_alone(registry: Registry, generation: Path) -> None:
    image = push(generation, registry)
    other = json.loads(registry.manifests[image.tag])
    other["annotations"]["dev.lookupdb.shard.sha256"] = "0" * 64
    registry.manifests[image.tag] = before = orjson.dumps(other)
    with pytest.raises(UsageError, match="there already, and of other content"):
        push(generation, registry)
    assert registry.manifests[image.tag] == before


PASSING: list[list[Fault]] = [["lost"], ["dropped", "dropped"], [503, 429], [500]]
FAULTS: list[tuple[str, list[Fault]]] = [
    (where, list(faults))
    for where in ("GET manifests/", "HEAD blobs/", "POST blobs/uploads/", "PUT blobs/uploads/", "PUT manifests/sha256:")
    for faults in PASSING
]
FAULTS += [("PUT blobs/uploads/", ["cut", "cut", "cut"]), ("PUT manifests/people", ["lost", 502])]


@pytest.mark.parametrize(("where", "faults"), FAULTS, ids=str)
def test_whatever_fails_for_a_while_the_image_is_whole_in_the_end(
    registry: Registry, generation: Path, tmp_path: Path, where: str, faults: list[Fault]
) -> None:
    registry.faults[where.replace("people", find_in_folder(generation).manifest.name)] = faults
    check_whole(registry, push(generation, registry), generation, tmp_path)
    assert not faults


def test_an_upload_whose_answer_was_lost_is_not_sent_again(registry: Registry, generation: Path) -> None:
    registry.faults["PUT blobs/uploads/"] = ["lost"]
    push(generation, registry)
    uploads = [asked for asked in registry.asked if asked.startswith("PUT /v2/lookups/blobs/uploads/")]
    assert len(uploads) == len(registry.blobs) == 4, "two layers, two configurations"


def test_what_fails_for_good_is_told_with_the_registrys_own_words(registry: Registry, generation: Path) -> None:
    registry.faults["POST blobs/uploads/"] = [405]
    with pytest.raises(RegistryError, match=r"it answers 405 \(UNKNOWN wished \[2J for\)") as caught:
        push(generation, registry)
    assert "\x1b" not in str(caught.value)
    assert not [tag for tag in registry.manifests if "shard" in tag], "no tag names what is not whole"


def test_a_registry_that_never_answers_is_given_up(registry: Registry, generation: Path) -> None:
    registry.faults["GET manifests/"] = ["dropped"] * 100
    sentence = f"^the registry {registry.host} closed the connection without an answer\n"
    with pytest.raises(RegistryError, match=sentence) as caught:
        push(generation, registry, patience=0.1)
    assert caught.value.hint == "what fails is tried again for 0.1 seconds, and longer by --registry-patience"


def test_a_registry_where_nothing_listens_is_named(generation: Path) -> None:
    target = client.Registry(client.parse_repository("127.0.0.1:1/lookups"), None, plain_http=False, patience=0)
    with pytest.raises(RegistryError) as caught:
        push_shard(find_in_folder(generation), 0, target, 0)
    target.close()
    assert caught.value.message == "the registry 127.0.0.1:1 refuses connections: nothing listens there, or not yet"
    assert "--registry-patience" in str(caught.value)


def test_a_host_that_does_not_resolve_is_named(generation: Path) -> None:
    target = client.Registry(client.parse_repository("registry.invalid/lookups"), None, plain_http=True, patience=0)
    with pytest.raises(RegistryError) as caught:
        push_shard(find_in_folder(generation), 0, target, 0)
    target.close()
    assert caught.value.message == "the host registry.invalid does not resolve"


def test_a_registry_without_tls_is_told_at_once(registry: Registry, generation: Path) -> None:
    target = client.Registry(client.parse_repository(f"{registry.host}/lookups"), None, plain_http=False, patience=60)
    with pytest.raises(RegistryError, match=f"^{registry.host} does not speak TLS") as caught:
        push_shard(find_in_folder(generation), 0, target, 0)
    target.close()
    assert caught.value.hint == "--plain-http speaks to a registry that has none"


def test_a_proxy_that_is_not_there_is_not_the_registry(generation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:SECRET@127.0.0.1:1")
    target = client.Registry(client.parse_repository("registry.invalid/lookups"), None, plain_http=False, patience=0)
    with pytest.raises(RegistryError) as caught:
        push_shard(find_in_folder(generation), 0, target, 0)
    target.close()
    assert caught.value.message.startswith(
        "the registry registry.invalid is asked through a proxy, and that proxy refuses connections"
    )
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
    """However large it is: of a shard of 256 MiB, a few pieces are in memory at a time."""
    monkeypatch.setattr(push_module, "read_shard", lambda *_: (b"x" * (1 << 20) for _ in range(256)))
    monkeypatch.setattr(push_module, "shard_file", lambda entry: TarFile(entry.file, 256 << 20))
    with serve_registry() as registry:
        registry.keeps_blobs = False
        registry.faults["PUT manifests/"] = [400]
        before = resident_bytes()
        with pytest.raises(RegistryError, match="it answers 400"):
            push(generation, registry)
        assert registry.received_bytes > 256 << 20
        assert resident_bytes() - before < 48 << 20


def resident_bytes() -> int:
    """The most that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class TestCredentials:
    @pytest.mark.parametrize("auth", ["basic", "bearer"])
    def test_are_shown_when_they_are_asked_for(self, generation: Path, tmp_path: Path, auth: Any) -> None:
        with serve_registry(auth) as registry:
            image = push(generation, registry, credentials=Credentials(USER, PASSWORD))
            check_whole(registry, image, generation, tmp_path)
            assert auth == "basic" or registry.tokens == 1, "one token for all requests"

    def test_a_token_that_expires_is_replaced(self, generation: Path, tmp_path: Path) -> None:
        with serve_registry("bearer") as registry:
            registry.location = lambda path: _expire(registry, path)
            image = push(generation, registry, credentials=Credentials(USER, PASSWORD))
            check_whole(registry, image, generation, tmp_path)

    @pytest.mark.parametrize("auth", ["basic", "bearer"])
    @pytest.mark.parametrize("credentials", [None, Credentials(USER, "wrong")])
    def test_that_do_not_suffice_are_told_at_once(
        self, generation: Path, auth: Any, credentials: Credentials | None
    ) -> None:
        with serve_registry(auth) as registry:
            with pytest.raises(RegistryDenied) as caught:
                push(generation, registry, credentials=credentials, patience=60)
            assert "wrong" not in str(caught.value)
            assert len(registry.asked) <= 3

    def test_do_not_follow_an_upload_to_another_host(self, generation: Path, tmp_path: Path) -> None:
        with serve_registry("basic") as registry, serve_registry() as storage:
            storage.blobs, storage.manifests = registry.blobs, registry.manifests
            registry.location = lambda path: f"http://{storage.host}{path}"
            image = push(generation, registry, credentials=Credentials(USER, PASSWORD))
            check_whole(registry, image, generation, tmp_path)
            assert storage.asked
            assert not storage.shown

    @pytest.mark.parametrize("challenge", ['Basic realm="x"', 'Bearer realm="http://{host}/token"'])
    @pytest.mark.parametrize("leads", ["redirect", "upload"])
    def test_are_not_for_another_host_that_asks_for_them(self, generation: Path, leads: str, challenge: str) -> None:
        with serve_registry() as registry, serve_registry("basic") as other:
            other.challenge = challenge.format(host=other.host)
            if leads == "redirect":
                registry.redirect = f"http://{other.host}"
            else:
                registry.location = lambda path: f"http://{other.host}{path}"
            with pytest.raises(RegistryDenied):
                push(generation, registry, credentials=Credentials(USER, PASSWORD))
            assert other.asked
            assert not other.shown
            assert "GET /token" not in other.asked

    def test_are_not_for_a_realm_without_tls(self, generation: Path) -> None:
        with serve_registry("basic") as registry:
            registry.challenge = 'Bearer realm="http://tokens.invalid/token"'
            with pytest.raises(RegistryError, match=r"asks for credentials at tokens\.invalid without TLS"):
                push(generation, registry, credentials=Credentials(USER, PASSWORD))

    def test_are_not_sent_over_a_network_in_plain_text(self) -> None:
        repository = client.parse_repository("registry.example/lookups")
        with pytest.raises(UsageError, match="not sent without TLS"):
            client.Registry(repository, Credentials("u", "p"), plain_http=True, patience=0)

    def test_are_not_shown_by_what_is_printed(self) -> None:
        assert "secret" not in repr(Credentials("u", "secret"))


def _expire(registry: Registry, path: str) -> str:
    if registry.uploads == 1:
        registry.tokens += 1  # the one that was given is not the newest any more
    return path


def _config(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / ".dockerconfigjson"
    path.write_bytes(content if isinstance(content, bytes) else orjson.dumps(content))
    return path


def _auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    ("auths", "found"),
    [
        ({"registry.example": _auth("u", "p:q")}, Credentials("u", "p:q")),
        ({"https://registry.example/v1/": _auth("u", "p")}, Credentials("u", "p")),
        ({"registry.example": {"username": "u", "password": "p"}}, Credentials("u", "p")),
        (
            {"registry.example": _auth("all", "p"), "registry.example/team": _auth("team", "p")},
            Credentials("team", "p"),
        ),
        ({"registry.example/te": _auth("other", "p")}, None),
        ({"other.example": _auth("u", "p")}, None),
        ({"registry.example": {}}, None),
        ({}, None),
    ],
)
def test_the_credentials_of_the_longest_name_count(
    tmp_path: Path, auths: dict[str, Any], found: Credentials | None
) -> None:
    path = _config(tmp_path, {"auths": auths})
    assert read_credentials(path, "registry.example/team/lookups", must_exist=True) == found


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"auths": 1}', {"auths": {"r.example": {"auth": "!"}}}, b" " * ((1 << 20) + 1)]
)
def test_what_is_no_docker_configuration_is_refused_and_not_shown(tmp_path: Path, content: Any) -> None:
    with pytest.raises(UsageError, match="is no Docker configuration"):
        read_credentials(_config(tmp_path, content), "r.example/x", must_exist=True)


def test_a_helper_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="to a helper, and none is run"):
        read_credentials(_config(tmp_path, {"credsStore": "rm"}), "r.example/x", must_exist=True)


def test_a_file_that_nobody_named_may_be_missing(tmp_path: Path) -> None:
    assert read_credentials(tmp_path / "none", "r.example/x", must_exist=False) is None
    with pytest.raises(UsageError, match="cannot read"):
        read_credentials(tmp_path / "none", "r.example/x", must_exist=True)


@pytest.mark.parametrize(
    "text",
    ["lookups", "team/lookups", "registry.example", "registry.example/Team", "https://r.example/x", "r.example/"],
)
def test_what_is_no_repository_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no repository"):
        client.parse_repository(text)


@pytest.mark.parametrize("text", ["localhost:5000/a", "r.example/a/b-c/d.e_f", "[::1]:5000/a", "127.0.0.1:1/a"])
def test_repositories(text: str) -> None:
    assert str(client.parse_repository(text)) == text


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        ('Basic realm="x"', Challenge("Basic", "x")),
        ('bearer realm="https://a.example/t",service="s",scope="y"', Challenge("Bearer", "https://a.example/t", "s")),
        ('Bearer service="s"', None),
        ("Negotiate", None),
        ("", None),
    ],
)
def test_challenges(header: str, challenge: Challenge | None) -> None:
    assert parse_challenge(header) == challenge


def test_a_token_is_asked_for_the_repository_and_for_pushing() -> None:
    url = token_url("https://a.example/t?x=1", Challenge("Bearer", "https://a.example/t?x=1", "s&"), "team/lookups")
    assert url == "https://a.example/t?x=1&service=s%26&scope=repository%3Ateam%2Flookups%3Apull%2Cpush"


def test_the_command_pushes_all_shards_with_credentials_from_a_file(generation: Path, tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    with serve_registry("bearer") as registry:
        config = _config(tmp_path, {"auths": {registry.host: _auth(USER, PASSWORD)}})
        words = ["push", str(generation), "--repository", f"{registry.host}/lookups", "--plain-http"]
        words += ["--docker-config", str(config), "--termination-log", str(log), "--progress", "none"]
        for outcome, counts in (("pushed", (2, 0)), ("present", (0, 2))):
            done = CliRunner().invoke(command, words, catch_exceptions=False)
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

    def test_that_a_file_has_are_believed(self, secure: Registry, generation: Path, tmp_path: Path) -> None:
        ca_file = tmp_path / "ca.crt"
        ca_file.write_bytes(authority().certificate_pem)
        words = self.words(secure, generation, "--ca-file", str(ca_file))
        done = CliRunner().invoke(command, words, catch_exceptions=False)
        assert orjson.loads(done.output.splitlines()[-1])["pushed"] == 2

    def test_that_no_file_has_are_told_and_nothing_is_sent(self, secure: Registry, generation: Path) -> None:
        ended = CliRunner().invoke(command, self.words(secure, generation)).exception
        assert isinstance(ended, RegistryError)
        assert re.fullmatch(
            r"the certificate of the registry localhost:\d+ is not trusted: unable to .*", ended.message
        )
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
        done = CliRunner().invoke(command, [*words, "--override-gates", "g1"], catch_exceptions=False)
        assert orjson.loads(done.output.splitlines()[-1])["pushed"] == 2
