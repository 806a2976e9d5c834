"""A gateway as its clients see it: the wire contract over objects in memory, and faults that a test asks for.

``support.faults`` gives the faults of a network: put its proxy before this server.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from lookupdb.store.bucket import Bucket
from lookupdb.store.objects import (
    COPY_PATH,
    CREATE,
    DELETE_PATH,
    LIST_PATH,
    LISTING_TYPE,
    MAX_CONDITIONAL_BYTES,
    MAX_DELETED_PATHS,
    MODE_HEADER,
    OBJECT_PATH,
    REDIRECTED_SUFFIX,
    STREAM_HEADER,
    TOKEN_FILE_VARIABLE,
    VERSION_HEADER,
    is_object_path,
)
from support.web import QuietHandler, web_server

TOKEN = "header.payload.signature"
CLUSTER, NAMESPACE = "local", "default"


@dataclass
class Object:
    """An object; its ETag is its content's, as that of S3."""

    body: bytes
    changed: datetime.datetime

    @property
    def version(self) -> dict[str, str]:
        return {"e_tag": f'"{hashlib.md5(self.body, usedforsecurity=False).hexdigest()}"'}


@dataclass
class Refusal:
    """An error as the answer to any request. Without ``kind`` it does not look like a gateway's."""

    status: int
    kind: str | None = None
    detail: str = "the reason"
    headers: dict[str, str] = field(default_factory=dict)
    is_early: bool = False
    """The server does not read the request's body."""


@dataclass
class FakeGateway:
    """The state and the settings of the server, for a test."""

    url: str = ""
    objects: dict[str, Object] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=lambda: {TOKEN: NAMESPACE})
    """Token → its namespace."""
    cluster: str = CLUSTER
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Method, path and headers of each request that came."""
    refusals: list[Refusal] = field(default_factory=list)
    """The refusals of the next requests, one each."""
    redirect: str | None = None
    """The URL before the path to which readers of shard files are sent."""
    always_redirects: bool = False
    """Redirect readers even if they ask the gateway for the bytes."""
    listing_end: bytes = b'{"end":true}\n'
    copies: bool = True
    """The gateway copies objects; older ones do not."""
    cuts_listings: int = 0
    """The number of listings that break off with their connection."""
    cuts_answers: int = 0
    """The number of other responses that break off in the middle of their body."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self) -> None:
        """Cause no faults, and hold nothing."""
        fresh = FakeGateway()
        for name in {one.name for one in fields(self)} - {"url", "lock"}:
            setattr(self, name, getattr(fresh, name))

    def put(self, path: str, body: bytes) -> Object:
        self.objects[path] = Object(body, datetime.datetime.now(datetime.UTC))
        return self.objects[path]

    def methods(self) -> list[str]:
        return [method for method, _path, _headers in self.requests]


class _Handler(QuietHandler):
    disable_nagle_algorithm = True
    gateway: FakeGateway

    def do_any(self) -> None:
        gateway = self.gateway
        with gateway.lock:
            gateway.requests.append((self.command, self.path, dict(self.headers.items())))
            refusal = gateway.refusals.pop(0) if gateway.refusals else None
        if refusal is not None and refusal.is_early:
            self.close_connection = True
            self.refuse(refusal)
            return
        length = self.headers.get("Content-Length")
        self.body = self.rfile.read(int(length or 0))
        if len(self.body) < int(length or 0):
            self.close_connection = True  # a body that ends early puts nothing
            return
        if refusal is not None:
            self.refuse(refusal)
            return
        namespace = gateway.tokens.get((self.headers.get("Authorization") or "").removeprefix("Bearer "))
        if namespace is None:
            self.problem(401, "unauthenticated", "the token is none of ours")
            return
        self.own = f"{gateway.cluster}/{namespace}/"
        with gateway.lock:
            self.serve()

    do_GET = do_HEAD = do_PUT = do_POST = do_any  # noqa: N815 - http.server calls them so

    def serve(self) -> None:
        parts = urlsplit(self.path)
        if parts.path.startswith(OBJECT_PATH):
            path = unquote(parts.path.removeprefix(OBJECT_PATH))
            if not is_object_path(path):
                self.problem(400, "invalid", f"{path!r} is no path")
            elif not path.startswith(self.own):
                self.problem(403, "forbidden", f"{path} is another's")
            elif self.command == "PUT":
                self.put(path)
            else:
                self.get(path)
        elif (self.command, parts.path) == ("POST", COPY_PATH) and self.gateway.copies:
            self.copy()
        elif (self.command, parts.path) == ("POST", DELETE_PATH):
            self.delete()
        elif (self.command, parts.path) == ("GET", LIST_PATH):
            self.list(parse_qs(parts.query))
        else:
            self.problem(400, "invalid", "no such request")

    def get(self, path: str) -> None:
        found = self.gateway.objects.get(path)
        if found is None:
            self.problem(404, "missing", f"there is no {path}")
            return
        redirects = self.gateway.redirect and (self.gateway.always_redirects or STREAM_HEADER not in self.headers)
        if self.command == "GET" and redirects and path.endswith(REDIRECTED_SUFFIX):
            self.answer(307, b"", {"Location": f"{self.gateway.redirect}/{path}?X-Amz-Signature=secret"})
            return
        headers = {
            "ETag": found.version["e_tag"],
            VERSION_HEADER: json.dumps(found.version),
            "Last-Modified": format_datetime(found.changed, usegmt=True),
        }
        if self.gateway.cuts_answers:
            self.answer(200, found.body, headers)
        else:
            send_ranged(self, found.body, headers)

    def put(self, path: str) -> None:
        mode = self.headers.get(MODE_HEADER)
        standing = self.gateway.objects.get(path)
        if self.headers.get("Content-Length") is None:
            self.problem(411, "invalid", "the body has no length")
        elif mode is not None and len(self.body) > MAX_CONDITIONAL_BYTES:
            self.problem(413, "too-large", "a conditional put is small")
        elif mode == CREATE and standing is not None:
            self.problem(412, "precondition", f"{path} is there")
        elif mode not in (None, CREATE) and (standing is None or standing.version != json.loads(mode or "")):
            self.problem(412, "precondition", f"{path} has another version")
        else:
            self.answer(200, json.dumps(self.gateway.put(path, self.body).version).encode())

    def copy(self) -> None:
        members = json.loads(self.body)
        source, target = members["from"], members["to"]
        if not (source.startswith(self.own) and target.startswith(self.own)):
            self.problem(403, "forbidden", "another's path")
        elif source not in self.gateway.objects:
            self.problem(404, "missing", f"there is no {source}")
        elif target in self.gateway.objects:
            self.problem(412, "precondition", f"{target} is there")
        else:
            self.gateway.put(target, self.gateway.objects[source].body)
            self.answer(200, b"{}")

    def delete(self) -> None:
        paths = json.loads(self.body)["paths"]
        if len(paths) > MAX_DELETED_PATHS:
            self.problem(413, "too-large", "too many paths")
        elif not all(path.startswith(self.own) for path in paths):
            self.problem(403, "forbidden", "another's path")
        else:
            for path in paths:
                self.gateway.objects.pop(path, None)
            self.answer(200, b"{}")

    def list(self, query: dict[str, list[str]]) -> None:
        (folder,) = query["prefix"]
        paths = sorted(path for path in self.gateway.objects if path.startswith(self.own))
        if not f"{folder}/".startswith(self.own) and (folder != self.gateway.cluster or "delimiter" not in query):
            self.problem(403, "forbidden", f"{folder} is another's")
            return
        below = [path for path in paths if path.startswith(f"{folder}/")]
        if "delimiter" in query:
            names = dict.fromkeys(path.removeprefix(f"{folder}/").partition("/")[0] for path in below)
            lines: list[dict[str, Any]] = [{"prefix": f"{folder}/{name}/"} for name in names]
        else:
            lines = [self.entry(path) for path in below]
        text = b"".join(json.dumps(line).encode() + b"\n" for line in lines) + self.gateway.listing_end
        self.send_response(200)
        self.send_header("Content-Type", LISTING_TYPE)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in filter(None, (text[:50], text[50:])):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if self.gateway.cuts_listings:
            self.gateway.cuts_listings -= 1
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")

    def entry(self, path: str) -> dict[str, Any]:
        found = self.gateway.objects[path]
        version = {"e_tag": None, "version": None, **found.version}
        # As obstore lists it: the marker of a folder without its slash.
        return {
            "path": path.rstrip("/"),
            "size": len(found.body),
            "last_modified": found.changed.isoformat(),
            **version,
        }

    def refuse(self, refusal: Refusal) -> None:
        if refusal.kind is None:
            self.answer(refusal.status, b"<html>somebody else</html>", {"Content-Type": "text/html", **refusal.headers})
        else:
            self.problem(refusal.status, refusal.kind, refusal.detail, refusal.headers)

    def problem(self, status: int, kind: str, detail: str, headers: dict[str, str] | None = None) -> None:
        body = json.dumps({"title": kind, "status": status, "detail": detail, "kind": kind}).encode()
        self.answer(status, body, {"Content-Type": "application/problem+json", **(headers or {})})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.gateway.cuts_answers:
            self.gateway.cuts_answers -= 1
            body, self.close_connection = body[: len(body) // 2], True
        if self.command != "HEAD":
            self.wfile.write(body)


def send_ranged(handler: QuietHandler, body: bytes, headers: dict[str, str]) -> None:
    """All of ``body``, or what follows the byte that the request names."""
    asked = re.fullmatch(r"bytes=([0-9]+)-", handler.headers.get("Range") or "")
    start = int(asked[1]) if asked else 0
    handler.send_response(206 if asked else 200)
    if asked:
        handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
    for name, value in {"Content-Length": str(len(body) - start), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        with contextlib.suppress(ConnectionError):  # a client that has seen the length may leave
            handler.wfile.write(body[start:])


@contextlib.contextmanager
def fake_gateway() -> Iterator[FakeGateway]:
    """A running one."""
    gateway = FakeGateway()
    with web_server(type("Handler", (_Handler,), {"gateway": gateway})) as gateway.url:
        yield gateway


@dataclass
class PresignedStore:
    """The store to which a gateway redirects readers: its requests and its response."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    """Path → content."""
    url: str = ""
    status: int = 200
    headers: list[dict[str, str]] = field(default_factory=list)
    ignores_ranges: bool = False


@contextlib.contextmanager
def presigned_store() -> Iterator[PresignedStore]:
    """A running one."""
    place = PresignedStore()

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - http.server calls it so
            place.headers.append(dict(self.headers.items()))
            if place.status != 200:
                self.send_response(place.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if place.ignores_ranges:
                del self.headers["Range"]
            send_ranged(self, place.bodies[urlsplit(self.path).path.lstrip("/")], {})

    with web_server(Handler) as place.url:
        yield place


def use_token(folder: Path, monkeypatch: pytest.MonkeyPatch, token: str = TOKEN) -> Path:
    """Let this process's environment lead to a file with ``token``."""
    file = folder / "token"
    file.write_text(token)
    monkeypatch.setenv(TOKEN_FILE_VARIABLE, str(file))
    return file


def gateway_bucket(url: str, **choice: Any) -> Bucket:
    """Its objects, with a lease short enough to wait for; Call ``use_token`` first."""
    return Bucket(url, **{"heartbeat": 0.05, "lease": 0.5, **choice})
