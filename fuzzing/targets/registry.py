"""What a registry of images, and what stands before one, answers a push."""

from __future__ import annotations

import logging
import socket
import ssl
from typing import Any, Final
from unittest import mock

from fuzzing.target import Target
from lookupdb.errors import RegistryError
from lookupdb.image import exchange
from lookupdb.image.artifact import Blob, list_parts, read_annotations
from lookupdb.image.docker_config import Credentials
from lookupdb.image.registry import Registry, parse_repository

_DIGEST: Final = f"sha256:{'0' * 64}"
_BLOB: Final = Blob("application/octet-stream", _DIGEST, 1)
_CONTEXT: Final = ssl.create_default_context()
"""For all: reading the system's authorities would take nine tenths of the time."""
_CREDENTIALS: Final = Credentials("user", "a password of ours")


def check_answers(data: bytes) -> None:
    """Each request is answered by the same bytes. They lead to a result or to a RegistryError, which shows
    nothing that a terminal obeys."""
    asked: list[str] = []

    def connect(connection: Any) -> None:
        asked.append(f"{connection.host}:{connection.port}")
        connection.is_verified = True
        connection.sock, other = socket.socketpair()
        with other:
            other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    with (
        mock.patch.object(logging.getLogger("urllib3.connection"), "disabled", True),
        mock.patch.object(exchange._Connection, "connect", connect),
        mock.patch.object(exchange._TlsConnection, "connect", connect),
        mock.patch.object(ssl, "create_default_context", lambda: _CONTEXT),
    ):
        for ask in (_look, _put, _name):
            registry = Registry(parse_repository("localhost:5000/a"), _CREDENTIALS, plain_http=True, patience=0)
            asked.clear()
            try:
                ask(registry)
            except RegistryError as error:
                assert error.message.isprintable(), error.message
                assert _CREDENTIALS.password not in str(error)
            finally:
                registry.close()
            assert len(asked) <= 20


def _look(registry: Registry) -> None:
    index = registry.get_index("tag")
    if index is not None:
        read_annotations(index)
        for part in list_parts(index):
            assert len(part.digest) == len(_DIGEST)


def _put(registry: Registry) -> None:
    registry.put_blob(_BLOB, lambda: [b"x"])


def _name(registry: Registry) -> None:
    registry.put_manifest("tag", _BLOB, b"x")


def _answer(status: bytes, fields: bytes = b"", body: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, fields, len(body), body)


_TOKEN: Final = b'{"token":"abc","access_token":"def"}'
TARGETS: Final = (
    Target(
        "registry-answers",
        check_answers,
        (
            _answer(b"200 OK", body=b'{"annotations":{"a":"b"},"manifests":[]}'),
            _answer(b"404 Not Found", body=b'{"errors":[{"code":"A","message":"b"}]}'),
            _answer(b"202 Accepted", b"Location: http://localhost:5000/v2/a/blobs/uploads/1?s=x\r\n"),
            _answer(b"307 x", b"Location: https://storage.example:443/x?secret=1\r\n"),
            _answer(b"401 x", b'WWW-Authenticate: Bearer realm="https://t.example/t",service="s"\r\n', _TOKEN),
            _answer(b"401 x", b'WWW-Authenticate: Basic realm="x"\r\n'),
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2;x\r\n{}\r\n0\r\nA: b\r\n\r\n",
        ),
        (
            b"[::1/x",
            b"http://user:secret@host/",
            b"host:99999/",
            b"\\",
            b"#",
            b"\x1b[2J",
            b"\x01",
            b"404 Not Found",
            b"202 Accepted",
            b"307 x",
            b"Content-Length: 05\r\n",
            b"Content-Length: 5, 5\r\n",
            b"Content-Length: -5\r\n",
            b"Content-Encoding: gzip\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Location: /\r\n",
            b'realm="x"',
            b"9" * 5000,
            b"\xe2\x80\xae",
            b'"\\ud800"',
            b"[" * 40,
            b"\r\n ",
        ),
    ),
)
