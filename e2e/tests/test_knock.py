"""A pod reports the replies of a shard server. Needs no cluster."""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "inside" / "knock.py"
REPLIES = {
    b"*2\r\n$4\r\nAUTH\r\n$2\r\nno\r\n": b"-WRONGPASS invalid\r\n",
    b"*2\r\n$4\r\nAUTH\r\n$3\r\nyes\r\n": b"+OK\r\n",
    b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n": b"$4\r\nx\r\ny\r\n",
    b"*2\r\n$3\r\nGET\r\n$1\r\nb\r\n": b"$-1\r\n",
    b"*1\r\n$4\r\nQUIT\r\n": b"",
}


class _Server(socketserver.BaseRequestHandler):
    """Answers the commands of REPLIES, and closes after one that has no reply."""

    def handle(self) -> None:
        while reply := REPLIES.get(self.request.recv(4096), b""):
            self.request.sendall(reply)


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a fake shard server."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Server) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server.server_address[1]
        server.shutdown()


def knock(port: int, *commands: list[str]) -> dict[str, Any]:
    asked = json.dumps({"host": "127.0.0.1", "port": port, "commands": commands})
    done = subprocess.run([sys.executable, str(SCRIPT)], input=asked, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_replies_are_told_as_they_are(port: int) -> None:
    result = knock(port, ["AUTH", "no"], ["AUTH", "yes"], ["GET", "a"], ["GET", "b"])
    assert result == {"replies": ["-WRONGPASS invalid", "+OK", "x\r\ny", "$-1"], "why": ""}


def test_a_connection_that_ends_is_told(port: int) -> None:
    result = knock(port, ["AUTH", "no"], ["QUIT"], ["GET", "a"])
    assert (result["replies"], result["why"]) == (["-WRONGPASS invalid"], "EOFError: the connection ended")


def test_where_nobody_listens_nothing_is_answered(port: int) -> None:
    result = knock(1, ["GET", "a"])
    assert (result["replies"], "ConnectionRefusedError" in result["why"]) == ([], True)
