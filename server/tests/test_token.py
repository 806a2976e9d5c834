"""`lookupdb token`, and `lookupdb get` with a token: what is printed, what is refused, and what no message shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import run_here
from support.http import Server, admitting, raw_lookups, serving

from lookupdb.router.access import hash_token, read_token_hashes


def test_a_token_is_made_with_its_hash_and_the_command_that_keeps_it() -> None:
    first, second = run_here("token"), run_here("token")
    assert first.returncode == 0
    token = first.stdout.strip()
    assert len(token) == 43
    assert token != second.stdout.strip()
    hashed = hash_token(token)
    assert hashed in first.stderr.decode()
    assert "kubectl create secret generic" in first.stderr.decode()
    assert "a file FOLDER/web that holds the hash" in first.stderr.decode()
    assert token not in first.stderr
    assert run_here("token", "--hash", asked=token + b"\n").stdout.decode() == hashed + "\n"
    assert not read_token_hashes({Path("web"): hashed.encode()}).problems


@pytest.mark.parametrize("text", [b"", b"too-short", b"two words-that-are-long-enough", b"x" * 20_000, b"\xff" * 30])
def test_what_no_router_would_take_is_not_hashed_and_not_shown(text: bytes) -> None:
    done = run_here("token", "--hash", asked=text)
    assert done.returncode == 2
    assert b"holds no token" in done.stderr
    assert not text or text not in done.stderr
    assert b"sha256:" not in done.stdout


@pytest.fixture(scope="module")
def router() -> Iterator[Server]:
    with serving(raw_lookups({"k1": b"v1"}), None, admitting("the-token-of-the-web-client")) as running:
        yield running


def test_get_shows_the_token_of_a_file_or_of_its_variable(
    router: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, file = f"http://127.0.0.1:{router.port}", tmp_path / "token"
    file.write_text("the-token-of-the-web-client\n")
    for keys in (("k1",), ("k1", "k2")):
        refused = run_here("get", url, *keys)
        assert refused.returncode == 1
        assert b"401" in refused.stderr
        assert b"--token-file" in refused.stderr
    assert run_here("get", url, "k1", "--token-file", str(file)).stdout == b"v1"
    assert run_here("get", url, "k1", "k2", "--token-file", str(file)).returncode == 3
    monkeypatch.setenv("LOOKUPDB_TOKEN", "the-token-of-the-web-client")
    assert run_here("get", url, "k1").stdout == b"v1"


@pytest.mark.parametrize("text", [b"", b"two words-of-a-secret", b"x" * 20_000, "secr\u00e9t".encode()])
def test_a_file_that_holds_no_token_is_refused_and_not_shown(router: Server, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "token").write_bytes(text)
    done = run_here("get", f"http://127.0.0.1:{router.port}", "k1", "--token-file", str(tmp_path / "token"))
    assert done.returncode == 2
    assert b"holds no token" in done.stderr
    assert not text or text not in done.stderr
