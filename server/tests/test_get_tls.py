"""`lookupdb get` of a router that speaks TLS: whom it trusts, and what it says when it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from support.command_line import run_here
from support.http import raw_lookups, serving, serving_encrypted
from support.ports import free_port
from support.tls import authority, make_identity

TOKEN = "the-token-of-the-web-client"
Serve = Callable[..., str]


VALUES = {"a": b"value of a"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving_encrypted(VALUES, tmp_path_factory.mktemp("router")) as running:
        yield running


@pytest.fixture
def ca_file(tmp_path: Path) -> str:
    (tmp_path / "ca.crt").write_bytes(authority().certificate_pem)
    return str(tmp_path / "ca.crt")


def said(*words: str) -> str:
    """Return standard error of a `get` that fails."""
    ended = run_here("get", *words)
    assert (ended.returncode, ended.stdout) == (1, b""), ended
    return ended.stderr.decode()


def test_the_authority_of_a_file_is_trusted(url: str, ca_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_here("get", url, "a", "--ca-file", ca_file).stdout == b"value of a"
    ended = run_here("get", url, "a", "b", "--ca-file", ca_file)
    assert [orjson.loads(line)["key"] for line in ended.stdout.splitlines()] == ["a", "b"], ended
    monkeypatch.setenv("LOOKUPDB_CA_FILE", ca_file)
    assert run_here("get", url, "a").stdout == b"value of a"


def test_a_token_is_shown_over_tls(tmp_path: Path, ca_file: str) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with serving_encrypted(VALUES, tmp_path, token=TOKEN) as url:
        assert b"answered 401" in run_here("get", url, "a", "--ca-file", ca_file).stderr
        words = ("--ca-file", ca_file, "--token-file", str(tmp_path / "token"))
        assert run_here("get", url, "a", *words).stdout == b"value of a"


@pytest.mark.parametrize("keys", [["a"], ["a", "b"]], ids=len)
def test_without_the_file_the_certificate_is_not_trusted_and_the_option_is_named(url: str, keys: list[str]) -> None:
    told = said(url, *keys)
    assert f"the certificate of {url.removeprefix('https://')} is not trusted: unable to get local issuer" in told
    assert "the certificate of the CA that signed it, with --ca-file or in LOOKUPDB_CA_FILE" in told


def test_another_authority_is_named_as_the_one_that_does_not_do(url: str, tmp_path: Path) -> None:
    another = tmp_path / "another.crt"
    another.write_bytes(make_identity("another", is_authority=True).certificate_pem)
    told = said(url, "a", "--ca-file", str(another))
    assert "is not trusted" in told
    assert f"{another} does not have the CA that signed it" in told


def test_a_router_that_wants_a_certificate_of_its_clients_is_reported(tmp_path: Path, ca_file: str) -> None:
    with serving_encrypted(VALUES, tmp_path, client_ca=Path(ca_file)) as url:
        told = said(url, "a", "--ca-file", ca_file)
    assert f"{url.removeprefix('https://')} wants its clients to have a certificate\n" in told
    assert "use lookupdb.client or curl" in told
    assert "does not speak TLS" not in told


def test_a_router_without_tls_is_reported(ca_file: str) -> None:
    with serving(raw_lookups(VALUES)) as router:
        told = said(f"https://localhost:{router.port}", "a", "--ca-file", ca_file)
    assert "does not speak TLS" in told


@pytest.mark.parametrize("text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"])
def test_a_file_without_a_certificate_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text(text)
    ended = run_here("get", f"https://localhost:{free_port()}", "a", "--ca-file", str(tmp_path / "ca.crt"))
    assert ended.returncode == 2
    assert f"no TLS with the files {tmp_path / 'ca.crt'}: ".encode() in ended.stderr


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    ended = run_here("get", "https://localhost:1", "a", "--ca-file", str(tmp_path / "ca.crt"))
    assert ended.returncode == 2
    assert b"does not exist" in ended.stderr
