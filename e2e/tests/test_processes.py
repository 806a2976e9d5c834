"""A pod reports its processes and its admin port. Needs no cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "inside" / "processes.py"


class _Admin(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = self.path.encode()
        self.send_response(200 if self.path != "/readyz" else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a fake admin server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Admin) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server.server_port
        server.shutdown()


def test_every_process_but_its_own_and_every_answer_is_printed(port: int) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()", "an-argument-of-another"], stdin=subprocess.PIPE)
    try:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.read_text(), str(port)], capture_output=True, text=True, check=True
        )
    finally:
        other.communicate(b"\n", timeout=30)
    result = json.loads(done.stdout)
    assert "an-argument-of-another" in result[f"/proc/{other.pid}/cmdline"]
    assert not any(
        "Prints what ps and the admin port show" in text for name, text in result.items() if name.endswith("cmdline")
    )
    assert [result[f"admin /{path}"] for path in ("status", "readyz", "nowhere")] == ["/status", "/readyz", "/nowhere"]
    assert not any("environ" in name for name in result)
