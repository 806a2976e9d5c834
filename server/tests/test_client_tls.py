"""lookupdb.client and a router that speaks TLS, and asks for a token or a certificate."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.clients import Kind, blocking
from support.faulty_router import answer
from support.http import Server, raw_lookups, serving, serving_encrypted
from support.tls import authority, make_identity

from lookupdb.client import AsyncClient, Client, InvalidAnswer, RequestRefused, Unavailable
from lookupdb.client.settings import TlsContexts
from lookupdb.errors import UsageError

TOKEN = "the-token-of-the-web-client"
VALUES = {"a": b"value of a", "large": b"x" * 3_000_000}


pytest_plugins = ["support.client_fixtures"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving_encrypted(VALUES, tmp_path_factory.mktemp("router"), token=TOKEN) as running:
        yield running


@pytest.fixture(scope="module")
def ca_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("authority") / "ca.crt"
    path.write_bytes(authority().certificate_pem)
    return path


@pytest.fixture(scope="module")
def mutual_url(ca_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a router that wants certificates of its clients."""
    with serving_encrypted(VALUES, tmp_path_factory.mktemp("mutual"), client_ca=ca_file) as running:
        yield running


@pytest.fixture(scope="module")
def plain_router() -> Iterator[Server]:
    with serving(raw_lookups(VALUES)) as running:
        yield running


def test_lookups_over_tls_with_a_token(url: str, ca_file: Path, kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    for credentials in ({"token": TOKEN}, {"token_file": tmp_path / "token"}):
        with blocking(kind, url, ca_file=ca_file, timeout=30, **credentials) as client:
            assert client.get("a") == b"value of a"
            assert len(client.get("large")) == 3_000_000
            results = client.get_many(["a", "nowhere"])
            assert (results.found, results.missing) == ({"a": b"value of a"}, ["nowhere"])
            assert client.dataset().name == "airports"


@pytest.mark.parametrize("credentials", [{}, {"token": "another-token-of-a-client"}], ids=["none", "another"])
def test_without_a_token_that_is_accepted_nothing_is_answered(
    url: str, ca_file: Path, kind: Kind, credentials: dict[str, str]
) -> None:
    with blocking(kind, url, ca_file=ca_file, timeout=30, **credentials) as client:
        for call in (lambda: client.get("a"), lambda: client.get_many(["a", "b"]), client.dataset):
            with pytest.raises(RequestRefused, match="answered 401 unauthenticated") as refused:
                call()
            assert "token= or token_file=" in str(refused.value)
            assert refused.value.status == 401


@contextmanager
def closing(folder: Path, size: int) -> Iterator[tuple[str, threading.Event, threading.Event]]:
    """A server that answers one request of each connection with ``size`` bytes, and closes. Yield its URL, an event for
    the request, and one for the close."""
    certificate, key = make_identity("localhost", by=authority()).write(folder / "closing")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))
    asked, closed = threading.Event(), threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with context.wrap_socket(connection, server_side=True) as encrypted:
                    encrypted.recv(65536)
                    asked.set()
                    encrypted.sendall(answer(b'"%b"' % (b"x" * size), Connection="close"))
                closed.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"https://localhost:{listener.getsockname()[1]}", asked, closed
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.mark.parametrize(("run", "size"), [(asyncio.run, 1_000_000), (uvloop.run, 400_000)], ids=["asyncio", "uvloop"])
def test_an_answer_is_whole_where_the_connection_ends_behind_it(
    tmp_path: Path, ca_file: Path, run: Callable[[Coroutine[Any, Any, None]], None], size: int
) -> None:
    """The test blocks the loop until the data and the end are there, so one turn reads both."""

    async def look_up(url: str, asked: threading.Event, closed: threading.Event) -> None:
        async with AsyncClient(url, ca_file=ca_file, timeout=30, retries=0) as client:
            for _ in range(4):
                asked.clear()
                closed.clear()
                lookup = asyncio.ensure_future(client.get("a"))
                while not asked.is_set():  # noqa: ASYNC110 - a thread sets it
                    await asyncio.sleep(0)
                closed.wait(1)  # unless sockets here take less at once: then the loop is needed
                assert len(await lookup) == size

    with closing(tmp_path, size) as (url, asked, closed):
        run(look_up(url, asked, closed))


def test_a_router_that_is_not_trusted_is_refused_until_somebody_changes_that(
    url: str, kind: Kind, tmp_path: Path
) -> None:
    another = tmp_path / "another.crt"
    another.write_bytes(make_identity("another", is_authority=True).certificate_pem)
    for options, hint in (
        ({}, "give the client the certificate of the CA that signed it, by ca_file="),
        ({"ca_file": another}, f"the ca_file {another} does not have the CA that signed it"),
    ):
        with blocking(kind, url, timeout=30, token=TOKEN, **options) as client:
            for call in (lambda: client.get("a"), lambda: client.get_many(["a", "b"], partial=True), client.dataset):
                with pytest.raises(RequestRefused, match=r"the certificate of localhost:\d+ is not trusted") as told:
                    call()
                assert (told.value.hint, told.value.status, told.value.problem) == (hint, 0, "")


def test_a_certificate_of_another_host_is_refused(url: str, kind: Kind, ca_file: Path) -> None:
    url = url.replace("localhost", "127.0.0.1")
    with blocking(kind, url, timeout=30, ca_file=ca_file) as client:
        with pytest.raises(RequestRefused, match="is not trusted: IP address mismatch") as told:
            client.get("a")
        assert told.value.hint == "use a name that is in the certificate"


def test_a_router_whose_certificate_has_expired_is_unavailable(tmp_path: Path, kind: Kind, ca_file: Path) -> None:
    """The router's owners must renew it; clients have nothing to change."""
    expired = make_identity("localhost", by=authority(), days=-1).write(tmp_path / "expired")
    with greeting(expired) as url, blocking(kind, url, timeout=30, ca_file=ca_file) as client:
        with pytest.raises(Unavailable, match="is not trusted: certificate has expired") as told:
            client.get("a")
        assert told.value.reason == "RouterUnreachable"


@contextmanager
def greeting(identity: tuple[Path, Path], client_ca: Path | None = None) -> Iterator[str]:
    """The URL of a server that shakes hands, and answers nothing. With ``client_ca`` it wants certificates of its
    clients, and speaks TLS 1.2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*identity)
    if client_ca is not None:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as encrypted:
                encrypted.recv(65536)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"https://localhost:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_a_client_shows_its_certificate(mutual_url: str, tmp_path: Path, ca_file: Path, kind: Kind) -> None:
    cert_file, key_file = make_identity("web", by=authority()).write(tmp_path / "web")
    with blocking(kind, mutual_url, ca_file=ca_file, cert_file=cert_file, key_file=key_file, timeout=30) as client:
        assert client.get("a") == b"value of a"
        make_identity("web-2", by=authority()).write(tmp_path / "web")
        assert client.get("a") == b"value of a"


def test_a_router_that_wants_a_certificate_refuses_clients_without_one(
    mutual_url: str, tmp_path: Path, ca_file: Path, kind: Kind
) -> None:
    cert_file, key_file = make_identity("web", by=make_identity("another", is_authority=True)).write(tmp_path / "web")
    many = [f"{number:0250}" for number in range(800)]  # which it stops to read before all are sent
    with blocking(kind, mutual_url, ca_file=ca_file, timeout=30) as client:
        for call in (lambda: client.get("a"), lambda: client.get_many(many, partial=True), client.dataset):
            with pytest.raises(RequestRefused, match=r"^localhost:\d+ wants its clients to have a cert") as told:
                call()
            assert told.value.hint == "give the client a certificate, by cert_file= and key_file="
            assert (told.value.status, told.value.problem) == (0, "")
    with blocking(kind, mutual_url, ca_file=ca_file, cert_file=cert_file, key_file=key_file, timeout=30) as client:
        with pytest.raises(RequestRefused, match=r"does not accept this client's certificate \(unknown ca") as told:
            client.get("a")
        assert "check that cert_file and key_file hold" in str(told.value)


def test_a_proxy_that_wants_a_certificate_by_an_older_tls_refuses_too(
    tmp_path: Path, ca_file: Path, kind: Kind
) -> None:
    identity = make_identity("localhost", by=authority()).write(tmp_path / "proxy")
    with greeting(identity, ca_file) as url, blocking(kind, url, ca_file=ca_file, timeout=30) as client:
        with pytest.raises(RequestRefused, match="perhaps it wants its clients to have a certificate") as told:
            client.get("a")
        assert "cert_file= and key_file=" in str(told.value)


def test_a_certificate_that_is_replaced_meanwhile_is_shown_to_the_next_connection(
    mutual_url: str, tmp_path: Path, ca_file: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call does both: its first connection was refused with the old certificate."""
    files = make_identity("web", by=make_identity("another", is_authority=True)).write(tmp_path / "web")
    renew_context = TlsContexts.context
    contexts: list[ssl.SSLContext | None] = []

    def context(self: TlsContexts) -> ssl.SSLContext | None:
        if contexts:
            make_identity("web", by=authority()).write(tmp_path / "web")
        contexts.append(renew_context(self))
        return contexts[-1]

    monkeypatch.setattr(TlsContexts, "context", context)
    with blocking(kind, mutual_url, ca_file=ca_file, cert_file=files[0], key_file=files[1], timeout=30) as client:
        assert client.get("a") == b"value of a"
    assert len(contexts) == 2


def test_files_that_cannot_be_used_are_named(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for name in ("nothing", "empty"):
        told = pytest.raises(UsageError, match=rf"no TLS with the files {tmp_path}/{name}")
        with blocking(kind, "https://localhost:1", ca_file=tmp_path / name) as client, told:
            client.get("a")


def test_plain_http_and_tls_do_not_speak_to_each_other(
    url: str, plain_router: Server, ca_file: Path, kind: Kind
) -> None:
    refused = pytest.raises(RequestRefused, match="this port speaks TLS: use https")
    with blocking(kind, url.replace("https", "http"), token=TOKEN, timeout=30) as client, refused:
        client.get("a")
    address = f"localhost:{plain_router.port}"
    with blocking(kind, f"https://{address}", ca_file=ca_file, timeout=30) as client:
        with pytest.raises(InvalidAnswer, match="does not speak TLS") as told:
            client.get("a")
        assert f"http://{address}" in str(told.value)


async def test_a_thousand_coroutines_over_tls(url: str, ca_file: Path) -> None:
    async with AsyncClient(url, ca_file=ca_file, token=TOKEN, timeout=60) as client:
        assert await asyncio.gather(*(client.get("a") for _ in range(1000))) == [b"value of a"] * 1000


def test_connecting_and_the_handshake_share_one_time(ca_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def connect_slowly(self: socket.socket, place: tuple[str, int]) -> None:
        time.sleep(1.5)
        connect(self, place)

    monkeypatch.setattr(socket.socket, "connect", connect_slowly)
    began = time.monotonic()
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Client(f"https://127.0.0.1:{silent.getsockname()[1]}", ca_file=ca_file, timeout=2.0, retries=0) as client,
        pytest.raises(Unavailable),
    ):
        client.get("a")
    assert time.monotonic() - began < 3
