"""A small S3 server: what a store asks of a bucket, at a fraction of what moto's takes for each request.

`test_small_s3.py` holds it to moto's. Conditions are judged and objects are put under one lock, as S3 does.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

MIN_PART_BYTES = 5 << 20
"""Of all parts of an upload but the last."""
MAX_LISTED = 1000

Fields = dict[str, str]


class Request(NamedTuple):
    """One request; the names of its headers are in lowercase."""

    method: str
    target: str
    headers: Fields
    body: bytes


class Response(NamedTuple):
    status: int
    body: bytes = b""
    headers: Fields = {}


class Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        self.response = Response(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())


@dataclass(frozen=True, slots=True)
class StoredObject:
    body: bytes
    etag: str
    modified: float

    @property
    def headers(self) -> Fields:
        return {"ETag": self.etag, "Last-Modified": formatdate(self.modified, usegmt=True)}


def stored(body: bytes, etag: str | None = None) -> StoredObject:
    return StoredObject(body, etag or f'"{hashlib.md5(body).hexdigest()}"', time.time())


@dataclass
class SmallS3:
    """The buckets, and an answer to each request."""

    buckets: dict[str, dict[str, StoredObject]] = field(default_factory=dict)
    uploads: dict[str, dict[int, StoredObject]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def answer(self, request: Request) -> Response:
        url = urlsplit(request.target)
        name, _, key = unquote(url.path).removeprefix("/").partition("/")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        with self._lock:
            try:
                if not key and request.method == "PUT":
                    self.buckets[name] = {}
                    return Response(200)
                if name not in self.buckets:
                    raise Refused(404, "NoSuchBucket")
                objects = self.buckets[name]
                return (
                    self._of_object(request, objects, key, query) if key else self._of_bucket(request, objects, query)
                )
            except Refused as refused:
                return refused.response

    def _of_bucket(self, request: Request, objects: dict[str, StoredObject], query: Fields) -> Response:
        if request.method == "POST" and "delete" in query:
            keys = [element.text or "" for element in ElementTree.fromstring(request.body).iter() if _is_key(element)]
            for key in keys:
                objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return _document("DeleteResult", deleted)
        if request.method == "GET" and query.get("list-type") == "2":
            return _list(objects, query)
        raise Refused(501, "NotImplemented")

    def _of_object(self, request: Request, objects: dict[str, StoredObject], key: str, query: Fields) -> Response:
        match request.method:
            case "POST" if "uploads" in query:
                upload = f"upload-{next(self._numbers)}"
                self.uploads[upload] = {}
                return _document("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
            case _ if "uploadId" in query:
                return self._of_upload(request, objects, key, query)
            case "PUT":
                _judge_put(request.headers, objects.get(key))
                objects[key] = stored(request.body)
                return Response(200, headers={"ETag": objects[key].etag})
            case "DELETE":
                objects.pop(key, None)
                return Response(204)
            case "GET" | "HEAD" if key in objects:
                return _read(request.headers, objects[key])
            case "GET" | "HEAD":
                raise Refused(404, "NoSuchKey")
        raise Refused(501, "NotImplemented")

    def _of_upload(self, request: Request, objects: dict[str, StoredObject], key: str, query: Fields) -> Response:
        parts = self.uploads.get(query["uploadId"])
        if parts is None:
            raise Refused(404, "NoSuchUpload")
        match request.method:
            case "PUT":
                part = stored(request.body)
                parts[int(query["partNumber"])] = part
                return Response(200, headers={"ETag": part.etag})
            case "DELETE":
                del self.uploads[query["uploadId"]]
                return Response(204)
            case "POST":
                chosen = _chosen_parts(parts, request.body)
                _judge_put(request.headers, objects.get(key))
                digest = hashlib.md5(b"".join(bytes.fromhex(part.etag.strip('"')) for part in chosen))
                whole = b"".join(part.body for part in chosen)
                objects[key] = stored(whole, f'"{digest.hexdigest()}-{len(chosen)}"')
                del self.uploads[query["uploadId"]]
                return _document("CompleteMultipartUploadResult", f"<ETag>{escape(objects[key].etag)}</ETag>")
        raise Refused(501, "NotImplemented")


def _judge_put(headers: Fields, standing: StoredObject | None) -> None:
    wanted = headers.get("if-match")
    if wanted is not None and standing is None:
        raise Refused(404, "NoSuchKey")
    is_refused = standing is not None and wanted is not None and wanted.strip('"') != standing.etag.strip('"')
    if is_refused or (headers.get("if-none-match") == "*" and standing is not None):
        raise Refused(412, "PreconditionFailed")


def _chosen_parts(parts: dict[int, StoredObject], body: bytes) -> list[StoredObject]:
    """Those that the completion of an upload names."""
    texts = [element.text or "" for element in ElementTree.fromstring(body).iter() if _is_part(element)]
    numbers, etags = [int(text) for text in texts if text.isdigit()], [text for text in texts if not text.isdigit()]
    chosen = [parts.get(number) for number in numbers]
    if not all(part and part.etag.strip('"') == etag.strip('"') for part, etag in zip(chosen, etags, strict=True)):
        raise Refused(400, "InvalidPart")
    found = [part for part in chosen if part]
    if any(len(part.body) < MIN_PART_BYTES for part in found[:-1]):
        raise Refused(400, "EntityTooSmall")
    return found


def _is_key(element: ElementTree.Element) -> bool:
    return element.tag.endswith("Key")


def _is_part(element: ElementTree.Element) -> bool:
    return element.tag.endswith(("PartNumber", "ETag"))


def _read(headers: Fields, standing: StoredObject) -> Response:
    if "if-match" in headers and headers["if-match"].strip('"') != standing.etag.strip('"'):
        raise Refused(412, "PreconditionFailed")
    if "range" not in headers:
        return Response(200, standing.body, standing.headers)
    size = len(standing.body)
    first, _, last = headers["range"].removeprefix("bytes=").partition("-")
    begin = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if begin >= size:
        raise Refused(416, "InvalidRange")
    told = standing.headers | {"Content-Range": f"bytes {begin}-{end - 1}/{size}"}
    return Response(206, standing.body[begin:end], told)


def _list(objects: dict[str, StoredObject], query: Fields) -> Response:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token") or query.get("start-after") or ""
    limit = int(query.get("max-keys", MAX_LISTED))
    found: dict[str, StoredObject | None] = {}
    """An object by its key, or None by a prefix that several share."""
    for key in sorted(key for key in objects if key.startswith(prefix)):
        folder, mark, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else ("", "", "")
        found[prefix + folder + mark if mark else key] = None if mark else objects[key]
    names = [name for name in found if name > after]
    parts = [_entry(name, found[name]) for name in names[:limit]]
    is_cut = len(names) > limit
    parts.append(f"<KeyCount>{len(parts)}</KeyCount><IsTruncated>{str(is_cut).lower()}</IsTruncated>")
    if is_cut:
        parts.append(f"<NextContinuationToken>{escape(names[limit - 1])}</NextContinuationToken>")
    return _document("ListBucketResult", "".join(parts))


def _entry(name: str, standing: StoredObject | None) -> str:
    if standing is None:
        return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
    modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(standing.modified))
    return (
        f"<Contents><Key>{escape(name)}</Key><LastModified>{modified}</LastModified><ETag>{escape(standing.etag)}</ETag>"
        f"<Size>{len(standing.body)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _document(name: str, content: str) -> Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{content}'
    return Response(200, f"{text}</{name}>".encode(), {"Content-Type": "application/xml"})


def _handler(s3: SmallS3) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):
                while (request := self._request()) is not None:
                    response = s3.answer(request)
                    told = {"Content-Length": str(len(response.body)), **response.headers}
                    head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
                    body = b"" if request.method == "HEAD" or response.status == 204 else response.body
                    self.wfile.write(f"HTTP/1.1 {response.status} -\r\n{head}\r\n".encode() + body)

        def _request(self) -> Request | None:
            line = self.rfile.readline()
            if not line:
                return None
            method, target, _ = line.decode().split(" ")
            headers: Fields = {}
            while line := self.rfile.readline().strip():
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            return Request(method, target, headers, self.rfile.read(int(headers.get("content-length", 0))))

    return Handler


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = socket.SOMAXCONN


@contextlib.contextmanager
def small_s3_server(port: int = 0) -> Iterator[str]:
    """The URL of one on a free port, or on ``port``."""
    with _Server(("127.0.0.1", port), _handler(SmallS3())) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
