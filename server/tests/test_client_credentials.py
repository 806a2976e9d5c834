"""The token that a client sends, while its file is replaced and several callers notice that."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from support.faulty_router import Asked, found_all, problem, scripted
from support.waiting import until

from lookupdb.client import Client
from lookupdb.client.settings import TokenSource
from lookupdb.errors import UsageError


def test_who_learns_late_that_a_token_is_not_accepted_uses_the_one_that_another_caller_has_read(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    is_new = threading.Event()

    def judge(connection: socket.socket, asked: Asked) -> bytes:
        if asked.fields["authorization"] == "Bearer new":
            return found_all(connection, asked)
        if asked.keys == ["late"]:
            assert is_new.wait(60)
        return problem("401 Unauthorized", "unauthenticated")

    with scripted(otherwise=judge) as router, Client(router.url, token_file=file, timeout=60) as client:
        found: list[dict[str, Any]] = []
        late = threading.Thread(target=lambda: found.append(client.get_many(["late"]).found))
        late.start()
        until(lambda: router.asked, "it has shown the old token")
        file.write_text("new")
        assert client.get_many(["soon"]).found == {"soon": "soon"}
        is_new.set()
        late.join(60)
        assert found == [{"late": "late"}]


@pytest.mark.parametrize("content", [b"", b"half a tok", b"\xff"])
def test_a_file_that_is_half_written_leaves_the_token_before_in_use(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookupdb.client.settings._LOOK_SECONDS", 0.0)
    file = tmp_path / "token"
    file.write_text("first")
    source = TokenSource(None, file)
    line = source.line()
    file.write_bytes(content)
    assert source.line() == line
    file.write_text("second")
    assert source.line() == b"Authorization: Bearer second\r\n"
    file.write_bytes(content)
    with pytest.raises(UsageError, match="token"):
        TokenSource(None, file).line()


def test_a_token_that_is_not_accepted_is_read_again_even_if_its_file_looks_as_before(tmp_path: Path) -> None:
    """Rewritten with the same length and, as far as its file system can tell, at the same moment."""
    file = tmp_path / "token"
    file.write_text("token-1")
    source = TokenSource(None, file)
    line = source.line()
    found = file.stat()
    file.write_text("token-2")
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert source.refresh(line)
    assert source.line() == b"Authorization: Bearer token-2\r\n"
    assert not source.refresh(source.line()), "there is no other"
