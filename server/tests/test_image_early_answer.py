"""A registry that answers before it was sent all: what it says is told, and nothing is sent any more."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.registry import Early, Registry, serve_registry
from support.tls import authority, make_identity

from lookupdb.errors import RegistryDenied, RegistryError
from lookupdb.image import registry as client
from lookupdb.image.artifact import Blob
from lookupdb.image.early_answer import EarlyAnswers, is_answer, skip_interim

PIECE, PIECES = bytes(1 << 20), 256
LARGE = Blob("application/octet-stream", "sha256:" + "0" * 64, len(PIECE) * PIECES)
SMALL = Blob("application/octet-stream", "sha256:" + "0" * 64, len(PIECE))
MIDDLING = Blob("application/octet-stream", "sha256:" + "0" * 64, len(PIECE) * 16)
UNKNOWN = Blob("application/json", "sha256:" + "1" * 64, 1)
MANIFEST = b'{"mediaType": "application/json", "config": {"digest": "sha256:1", "size": 1}, "layers": []}'
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


class Sent:
    """A body, and how much of it was asked for."""

    def __init__(self, most: int = PIECES) -> None:
        self.most = most
        self.pieces = 0

    def __iter__(self) -> Iterator[bytes]:
        while self.pieces < self.most:
            self.pieces += 1
            yield PIECE


@pytest.fixture(params=["http", "https"])
def served(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Registry, client.Registry]]:
    """A registry that keeps no large blobs, and its client, who asks once."""
    with serve(request.param, tmp_path, monkeypatch) as served:
        yield served


@pytest.fixture(params=["http", "https"])
def far(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Registry, client.Registry]]:
    """The same with small segments and a small window."""
    with serve(request.param, tmp_path, monkeypatch, is_far=True) as served:
        yield served


@contextlib.contextmanager
def serve(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_far: bool = False
) -> Iterator[tuple[Registry, client.Registry]]:
    context = None
    if scheme == "https":
        authority().write(tmp_path, "authority")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.crt"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*make_identity("localhost", by=authority()).write(tmp_path))
    with serve_registry(tls=context, is_far=is_far) as registry:
        registry.keeps_blobs = False
        repository = client.parse_repository(f"localhost:{registry.host.rpartition(':')[2]}/lookups")
        asking = client.Registry(repository, None, plain_http=context is None, patience=0)
        with contextlib.closing(asking):
            yield registry, asking


@pytest.mark.parametrize("then", ["closes", "reads no further", "reads on"])
def test_a_refusal_in_the_middle_of_an_upload_is_told(served: tuple[Registry, client.Registry], then: Early) -> None:
    registry, asking = served
    registry.faults["PUT blobs/uploads/"] = [(413, then)]
    sent, begun = Sent(), time.monotonic()
    with pytest.raises(RegistryError, match=r"it answers 413 \(TOO_LARGE at most 1 GB\)"):
        asking.put_blob(LARGE, lambda: sent)
    assert time.monotonic() - begun < 20, "no timeout is waited for"
    assert sent.pieces < PIECES / 2, "nothing more is read for it"
    assert asking.put_blob(LARGE, Sent), "on another connection: that one is in the middle of a body"
    assert registry.received_bytes >= LARGE.size


def test_a_refusal_is_told_at_once_to_who_can_send_nothing_more(far: tuple[Registry, client.Registry]) -> None:
    """Over TLS the end of what can be sent is within a record, nearly always."""
    registry, asking = far
    registry.faults["PUT blobs/uploads/"] = [(413, "reads no further")]
    registry.early_after = 1.0
    begun = time.monotonic()
    with pytest.raises(RegistryError, match="it answers 413"):
        asking.put_blob(LARGE, Sent)
    assert time.monotonic() - begun < 20


def test_who_asks_for_credentials_in_the_middle_of_an_upload_is_heard(
    served: tuple[Registry, client.Registry],
) -> None:
    registry, asking = served
    registry.faults["PUT blobs/uploads/"] = [(401, "reads no further")]
    with pytest.raises(RegistryDenied, match="it answers 401"):
        asking.put_blob(LARGE, Sent)


@pytest.mark.parametrize(
    ("interim", "behind"),
    [(CONTINUE, b""), (HINTS, b""), (HINTS[:-2], HINTS[-2:]), (b"", PROCESSING * 3), (b"", CONTINUE + HINTS)],
    ids=["100", "103", "103 in two parts", "102 behind the body", "100 and 103 behind it"],
)
@pytest.mark.parametrize("size", [SMALL, MIDDLING], ids=["1 MB", "16 MB"])
def test_an_upload_goes_on_behind_interim_answers(
    served: tuple[Registry, client.Registry], size: Blob, interim: bytes, behind: bytes
) -> None:
    registry, asking = served
    registry.interim, registry.interim_behind = interim, behind
    assert asking.put_blob(size, lambda: Sent(size.size // len(PIECE)))
    assert registry.received_bytes >= size.size
    registry.interim = registry.interim_behind = b""
    with pytest.raises(RegistryError, match="MANIFEST_BLOB_UNKNOWN"):
        asking.put_manifest("latest", UNKNOWN, MANIFEST)


@pytest.mark.parametrize(
    ("prefix", "rest", "is_begun"),
    [
        (b"", b"", False),
        (b"HTTP/1.1 4", b"HTTP/1.1 4", True),
        (b"HTTP/1.1 ", b"HTTP/1.1 ", False),
        (b"no HTTP at all", b"no HTTP at all", True),
        (CONTINUE, b"", False),
        (CONTINUE[:-1], CONTINUE[:-1], False),
        (CONTINUE * 2 + b"HTTP/1.1 103 x\r\nA: b\r\nC: d\r\n\r\nHTTP/1.1 413 x", b"HTTP/1.1 413 x", True),
        (b"HTTP/1.1 103 x\r\nA: b\r\nHTTP/1.1 413 x\r\n", b"HTTP/1.1 103 x\r\nA: b\r\nHTTP/1.1 413 x\r\n", False),
        (b"HTTP/1.1 103 " + b"x" * 20_000, b"HTTP/1.1 103 " + b"x" * 20_000, True),
    ],
)
def test_what_has_come_is_an_answer_or_not_yet(prefix: bytes, rest: bytes, is_begun: bool) -> None:
    assert skip_interim(prefix) == rest
    assert is_answer(rest) is is_begun


class Renegotiating(socket.socket):
    """Wants to read before it sends, as TLS 1.2 does that is negotiated anew."""

    sends = 0

    def send(self, *_: object) -> int:
        self.sends += 1
        raise ssl.SSLWantReadError


def test_who_is_to_read_before_anything_can_be_sent_waits_for_that_and_no_longer_than_it_may() -> None:
    ours, theirs = socket.socketpair()
    with (
        Renegotiating(fileno=ours.detach()) as wanting,
        theirs,
        contextlib.closing(EarlyAnswers("localhost")) as sender,
    ):
        wanting.settimeout(0.3)
        sender.sock = wanting
        theirs.sendall(CONTINUE)
        with pytest.raises(TimeoutError):
            sender.send(PIECE)
        assert wanting.sends <= 3
