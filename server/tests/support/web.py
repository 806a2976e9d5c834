"""Web servers for sources: one file whose headers a test sets, or a handler of the test's own."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


class QuietHandler(http.server.BaseHTTPRequestHandler):
    """Keeps connections open and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def web_server(handler: type[QuietHandler]) -> Iterator[str]:
    """The URL of a server on this machine that answers with ``handler``, without a slash at its end."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@dataclass
class File:
    """The current content of every path."""

    content: bytes
    headers: dict[str, str] = field(default_factory=dict)
    url: str = ""
    """Without a slash at its end."""


@contextlib.contextmanager
def web_file(content: bytes, **headers: str) -> Iterator[File]:
    """A file on a server of this machine; ``headers`` have _ for -. It has no ETag and no Last-Modified but those."""
    file = File(content, {name.replace("_", "-"): value for name, value in headers.items()})

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in {"Content-Length": str(len(file.content)), **file.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(file.content)

    with web_server(Handler) as file.url:
        yield file
