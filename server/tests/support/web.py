"""A web server for sources: one file, with the headers that the test gives it."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class File:
    """What every path answers, as it is now."""

    content: bytes
    headers: dict[str, str] = field(default_factory=dict)
    url: str = ""
    """Without a slash at its end."""


@contextlib.contextmanager
def web_file(content: bytes, **headers: str) -> Iterator[File]:
    """Served on this machine; ``headers`` with _ for -. Neither ETag nor Last-Modified stands there unless given."""
    file = File(content, {name.replace("_", "-"): value for name, value in headers.items()})

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in {"Content-Length": str(len(file.content)), **file.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(file.content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        file.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield file
        finally:
            server.shutdown()
