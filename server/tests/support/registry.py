"""A registry of images, as far as a push needs one, over real sockets: the OCI distribution specification's uploads,
blobs and manifests, tokens, and every fault at a chosen moment."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from lookupdb.image.artifact import INDEX_TYPE
from support.web import QuietHandler

Fault = Literal["lost", "dropped", "cut", "early"] | tuple[bytes, bytes, float] | int
"""A fault of a request. Lost: the response is lost after its effect; dropped: nothing is done and the connection
closes; cut: a body breaks off; early: a body is refused with 413 in its middle. A tuple holds the bytes with which a
response begins, those that follow again and again, and the seconds between them. A number is the status."""
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS: Fault = CHUNKED, b"10000\r\n" + b"x" * 65_536 + b"\r\n", 0.0
TRICKLES: dict[str, Fault] = {
    "status": (b"HTTP/1.1 200 ", b"x", 0.02),
    "fields": (b"HTTP/1.1 200 OK\r\nA: ", b"x", 0.02),
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"x", 0.02),
    "chunks": (CHUNKED, b"1\r\nx\r\n", 0.02),
    "size of a chunk": (CHUNKED, b"0", 0.02),
    "trailer": (CHUNKED + b"0\r\n", b"A: b\r\n", 0.02),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.02),
    "silence": (b"", b"", 0.02),
}
"""Endless answers, by the part that does not end."""
USER, PASSWORD = "pusher", "a password: with colons"
_CODES = {400: "MANIFEST_INVALID", 401: "UNAUTHORIZED", 403: "DENIED", 405: "UNSUPPORTED", 429: "TOOMANYREQUESTS"}
_SMALL_BYTES = 1 << 20
_MANIFEST = re.compile(r"/v2/(?P<name>[a-z0-9/-]+)/manifests/(?P<reference>[^/]+)")
_BLOB = re.compile(r"/v2/(?P<name>[a-z0-9/-]+)/blobs/(?P<digest>sha256:[0-9a-f]{64})")
_UPLOADS = re.compile(r"/v2/(?P<name>[a-z0-9/-]+)/blobs/uploads/")
_UPLOAD = re.compile(r"/v2/(?P<name>[a-z0-9/-]+)/blobs/uploads/(?P<upload>[0-9]+)")


@dataclass
class Registry:
    """The content of the registry, and the requests it received."""

    host: str = ""
    auth: Literal["none", "basic", "bearer"] = "none"
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    """By tag, and by digest."""
    asked: list[str] = field(default_factory=list)
    """Method and path of each request, in order; of tokens too."""
    shown: list[str] = field(default_factory=list)
    """Each header Authorization."""
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    """The next faults, by method and beginning of the path."""
    keeps_blobs: bool = True
    """Keep large blobs that are put; if false, only count them."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The sizes of the blobs that are only counted."""
    received_bytes: int = 0
    uploads: int = 0
    location: Callable[[str], str] = lambda path: path
    """The location returned for an upload."""
    tokens: int = 0
    challenge: str = ""
    """A challenge for credentials that breaks the rules."""
    redirect: str = ""
    """The prefix to which readers are redirected."""
    redirects: str = "/"
    """The beginning of the paths for which that holds."""
    size: Callable[[int], str] = str
    """The text of a blob's size in a response to HEAD."""

    def take_fault(self, method: str, path: str) -> Fault | None:
        for key, faults in self.faults.items():
            wished, _, beginning = key.partition(" ")
            if method == wished and path.split("/v2/lookups/")[-1].startswith(beginning) and faults:
                return faults.pop(0)
        return None


class _Handler(QuietHandler):
    registry: Registry

    def _serve(self) -> None:
        registry, path = self.registry, urlsplit(self.path).path
        registry.asked.append(f"{self.command} {path}")
        if authorization := self.headers.get("Authorization"):
            registry.shown.append(authorization)
        fault = registry.take_fault(self.command, path)
        if fault == "cut":
            self.rfile.read(int(self.headers["Content-Length"]) // 2)
        if fault in ("cut", "dropped"):
            self._close()
            return
        if fault == "early":
            self._answer_early()
            return
        if isinstance(fault, tuple):
            self._answer_on_and_on(*fault)
            return
        if registry.redirect and self.command in ("GET", "HEAD") and path.startswith(registry.redirects):
            self._answer(307, b"", {"Location": f"{registry.redirect}{self.path}"})
            return
        if path == "/token":
            self._answer_token()
            return
        body = self._read()
        if isinstance(fault, int):
            code = _CODES.get(fault, "UNKNOWN")
            self._answer(fault, json.dumps({"errors": [{"code": code, "message": "wished\x1b[2J for"}]}).encode())
        elif not self._is_allowed():
            self._ask_for_credentials()
        else:
            answer = getattr(self, f"_{self.command.lower()}")(path, body)
            if fault == "lost":
                self._close()
            else:
                self._answer(*answer)

    do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815 - as http.server calls them

    def _read(self) -> bytes:
        remaining, parts = int(self.headers.get("Content-Length") or 0), []
        is_kept = self.registry.keeps_blobs or remaining < _SMALL_BYTES
        while remaining:
            part = self.rfile.read1(min(remaining, 1 << 20))
            if not part:
                break
            self.registry.received_bytes += len(part)
            if is_kept:
                parts.append(part)
            remaining -= len(part)
        return b"".join(parts)

    def _answer_on_and_on(self, beginning: bytes, piece: bytes, pause: float) -> None:
        """Answer until the client leaves."""
        self.close_connection = True
        self._read()
        with contextlib.suppress(OSError):
            self.wfile.write(beginning)
            while not self._is_left(pause):
                self.wfile.write(piece)

    def _answer_early(self) -> None:
        """Refuse a blob by its size, before its bytes have come."""
        self.rfile.read1(1 << 16)
        self._answer(413, b'{"errors":[{"code":"SIZE_INVALID","message":"at most 1 GB"}]}')
        self.close_connection = True
        while self.rfile.read1(1 << 20):
            pass

    def _is_left(self, seconds: float) -> bool:
        readable, _, _ = select.select([self.connection], [], [], seconds)
        return bool(readable) and not self.connection.recv(1)

    def _close(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _is_allowed(self) -> bool:
        shown = self.headers.get("Authorization", "")
        basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        expected = {"none": shown, "basic": basic, "bearer": f"Bearer token-{self.registry.tokens}"}
        return shown == expected[self.registry.auth]

    def _ask_for_credentials(self) -> None:
        host = self.registry.host
        challenge = {
            "basic": 'Basic realm="lookups"',
            "bearer": f'Bearer realm="http://{host}/token",service="{host}",scope="repository:lookups:pull"',
        }[self.registry.auth]
        self._answer(401, b"{}", {"WWW-Authenticate": self.registry.challenge or challenge})

    def _answer_token(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        assert query["scope"][0].startswith("repository:lookups:pull"), query
        basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != basic:
            self._answer(401, b"{}")
            return
        self.registry.tokens += 1
        self._answer(200, json.dumps({"token": f"token-{self.registry.tokens}"}).encode())

    def _head(self, path: str, _: bytes) -> tuple[int, bytes, dict[str, str]]:
        match = _BLOB.fullmatch(path)
        if not match:
            return self._get(path, _)
        content = self.registry.blobs.get(match["digest"])
        if content is None:
            return 404, b"", {}
        size = self.registry.sizes.get(match["digest"], len(content))
        return 200, b"", {"Content-Length": self.registry.size(size)}

    def _get(self, path: str, _: bytes) -> tuple[int, bytes, dict[str, str]]:
        match = _MANIFEST.fullmatch(path)
        content = self.registry.manifests.get(match["reference"]) if match else None
        if content is None:
            return 404, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}', {}
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        kind = json.loads(content).get("mediaType", INDEX_TYPE)
        return 200, content, {"Content-Type": kind, "Docker-Content-Digest": digest}

    def _post(self, path: str, _: bytes) -> tuple[int, bytes, dict[str, str]]:
        assert _UPLOADS.fullmatch(path), path
        self.registry.uploads += 1
        return 202, b"", {"Location": self.registry.location(f"{path}{self.registry.uploads}?state=x")}

    def _put(self, path: str, body: bytes) -> tuple[int, bytes]:
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if _UPLOAD.fullmatch(path):
            query = parse_qs(urlsplit(self.path).query)
            assert query["state"] == ["x"]
            if not body:
                self.registry.blobs[query["digest"][0]] = b""
                self.registry.sizes[query["digest"][0]] = int(self.headers["Content-Length"])
                return 201, b""
            if query["digest"] != [digest]:
                return 400, b'{"errors":[{"code":"DIGEST_INVALID"}]}'
            self.registry.blobs[digest] = body
            return 201, b""
        match = _MANIFEST.fullmatch(path)
        assert match, path
        document = json.loads(body)
        assert document["mediaType"] == self.headers["Content-Type"]
        parts = document.get("manifests") or [document["config"], *document["layers"]]
        known = self.registry.manifests if "manifests" in document else self.registry.blobs
        missing = [part["digest"] for part in parts if part["digest"] not in known]
        if missing or any(len(known[part["digest"]]) != part["size"] for part in parts if known[part["digest"]]):
            return 404, b'{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN"}]}'
        self.registry.manifests[match["reference"]] = self.registry.manifests[digest] = body
        return 201, b""

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serve_registry(
    auth: Literal["none", "basic", "bearer"] = "none", tls: ssl.SSLContext | None = None
) -> Iterator[Registry]:
    """A registry on a free port of loopback, while the block runs."""
    registry = Registry(auth=auth)
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    registry.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
