"""TLS on the public port: handshakes are bounded, certificates are reloaded, and nothing is served without one.

That requests are read and answered as without TLS is seen by the other tests of the front, which run with both.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import socket
import ssl
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.fleets import fleet, fleet_entry
from support.http import Client, ScriptedLookups, Server, eventually, request, serving
from support.routers import routing
from support.routing import table_file
from support.shards import write_generation
from support.tls import Identity, TlsSocket, authority, client_context, make_identity, server_identity

from lookupdb.process.memory import private_bytes
from lookupdb.router import tls as certificates
from lookupdb.router.tls import TlsFiles, find_period
from support import tls

LOOKUP = request("/v1/lookup/a")


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(*server_identity().write(tmp_path / "tls"), None)


@pytest.fixture
def server(files: TlsFiles) -> Iterator[Server]:
    large = b'"%b"' % (b"v" * (1 << 20))
    with serving(ScriptedLookups(values={"a": b"1", "large": large}), files) as server:
        yield server


def connect(server: Server, context: ssl.SSLContext | None = None) -> TlsSocket:
    return TlsSocket(socket.create_connection(("127.0.0.1", server.port), timeout=30), context)


def ask(server: Server, context: ssl.SSLContext | None = None) -> bytes:
    """The answer to one lookup."""
    client = connect(server, context)
    try:
        client.handshake().sendall(LOOKUP)
        return client.recv(1 << 16)
    finally:
        client.raw.close()


def shown(server: Server, *trusted: Identity) -> int:
    """The serial number of the certificate that the server shows."""
    context = client_context(trusted=trusted[0] if trusted else None)
    client = connect(server, context)
    try:
        client.handshake()
        certificate = client.tls.getpeercert()
        assert certificate is not None
        return int(str(certificate["serialNumber"]), 16)
    finally:
        client.raw.close()


def _await_renewal(server: Server, change: Callable[[], object]) -> None:
    """Make a change, and wait until the server has taken another certificate: no handshake for each look."""
    assert server.certificates is not None
    before = server.certificates.context
    change()
    eventually(lambda: server.certificates and server.certificates.context is not before)


class TestProtocol:
    def test_version_and_protocol(self, server: Server) -> None:
        context = client_context()
        context.set_alpn_protocols(["h2", "http/1.1"])
        client = connect(server, context).handshake()
        assert (client.tls.version(), client.tls.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
        client.raw.close()

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2])
    def test_versions_before_1_3_are_refused(self, server: Server, version: ssl.TLSVersion) -> None:
        context = client_context()
        context.set_ciphers("DEFAULT@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore"):  # Python's: that these are old
            context.minimum_version = context.maximum_version = version
        with pytest.raises((ssl.SSLError, EOFError)):
            ask(server, context)

    def test_handshake_and_requests_in_single_bytes(self, server: Server) -> None:
        client = connect(server)
        send, client.raw = client.raw, _Dripping(client.raw)  # type: ignore[assignment]
        client.handshake().sendall(LOOKUP)
        assert client.recv(1 << 16).endswith(b"\r\n1")
        send.close()

    def test_plain_http_is_told_to_speak_tls(self, server: Server) -> None:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
            client = Client(raw)
            response = client.send(LOOKUP).response()
            assert (response.status, b"https" in response.body) == (400, True)
            assert client.ended()

    def test_plain_bytes_reach_no_other_client(self, server: Server) -> None:
        standing = [connect(server).handshake() for _ in range(3)]
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
                assert Client(raw).send(LOOKUP).response().status == 400
        for client in standing:
            client.sendall(LOOKUP)
            assert client.recv(1 << 16).endswith(b"\r\n1")
            client.raw.close()
        assert ask(server).endswith(b"\r\n1")

    @pytest.mark.parametrize("size", [1, 5, 9, 1 << 16])
    def test_a_hello_that_announces_much_ends_it(self, server: Server, size: int) -> None:
        hello = b"\x16\x03\x01\x00\x40" + b"\x01" + (100_000).to_bytes(3, "big") + bytes(60)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw, contextlib.suppress(OSError):
            for start in range(0, len(hello), size):
                raw.sendall(hello[start : start + size])
            assert raw.recv(1) == b""
        eventually(lambda: server.count("connections") == 0)
        assert ask(server).endswith(b"\r\n1")

    def test_garbage_in_a_handshake_ends_it(self, server: Server) -> None:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
            raw.sendall(b"\x16\x03\x01" + b"\xff" * 100)
            while raw.recv(1 << 16):
                pass
        eventually(lambda: server.count("tls_handshakes_failed") == 1)
        assert ask(server).endswith(b"\r\n1")

    def test_garbage_in_the_stream_ends_it(self, server: Server) -> None:
        client = connect(server).handshake()
        client.raw.sendall(b"\x17\x03\x03\x00\x20" + b"\xff" * 32)
        with contextlib.suppress(ssl.SSLError, ConnectionResetError):
            assert client.recv(1) == b""
        client.raw.close()
        eventually(lambda: server.count("connections") == 0)

    def test_end_of_the_stream_is_said(self, server: Server) -> None:
        client = connect(server).handshake()
        client.sendall(request("/v1/lookup/a", "Connection: close"))
        while client.recv(1 << 16):
            pass
        assert client.was_told_of_the_end
        client.raw.close()

    def test_stream_that_ends_without_being_said_to_gets_its_answers(self, server: Server) -> None:
        client = connect(server).handshake()
        client.sendall(LOOKUP * 3)
        client.raw.shutdown(socket.SHUT_WR)
        answers = b""
        while piece := client.recv(1 << 16):
            answers += piece
        assert answers.count(b"200 OK") == 3
        client.raw.close()

    def test_client_may_send_while_it_receives(self, server: Server) -> None:
        client = connect(server).handshake()
        http = Client(client)  # type: ignore[arg-type]
        with ThreadPoolExecutor(1) as pool:
            receiving = pool.submit(lambda: [http.response().status for _ in range(2000)])
            for _ in range(2000):
                client.sendall(LOOKUP)
            assert receiving.result(60) == [200] * 2000
        client.raw.close()

    def test_large_values_come_whole(self, server: Server) -> None:
        client = Client(connect(server).handshake())  # type: ignore[arg-type]
        for _ in range(3):
            assert len(client.get("/v1/lookup/large").body) == (1 << 20) + 2
        client.close()


class _Dripping:
    """A socket that sends byte by byte."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def sendall(self, data: bytes) -> None:
        for byte in data:
            self._raw.sendall(bytes((byte,)))

    def __getattr__(self, name: str) -> object:
        return getattr(self._raw, name)


class TestBounds:
    def test_handshake_that_does_not_end_is_ended(self, files: TlsFiles) -> None:
        with serving(None, files, header_timeout_seconds=0.3) as server:
            silent = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            half = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            half.sendall(b"\x16\x03\x01")
            assert silent.recv(1) == b"" == half.recv(1)
            eventually(lambda: server.count("connections") == 0)
            assert server.count("tls_handshakes_failed") == 1
            silent.close()
            half.close()

    def test_connections_without_a_handshake_count(self, files: TlsFiles) -> None:
        with serving(None, files, max_connections=2) as server:
            silent = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(2)]
            eventually(lambda: server.count("connections") == 2)
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as third:
                assert third.recv(1) == b""
            eventually(lambda: server.count("connections_refused") == 1)
            for client in silent:
                client.close()
            eventually(lambda: server.count("connections") == 0)
            assert ask(server).startswith(b"HTTP/1.1 404")

    def test_client_that_does_not_read_is_held_back_and_then_cut_off(self, files: TlsFiles) -> None:
        large = b'"%b"' % (b"v" * (1 << 20))
        with serving(ScriptedLookups(values={"a": large}), files, write_timeout_seconds=1) as server:
            client = connect(server).handshake()
            client.sendall(LOOKUP * 60)
            eventually(lambda: server.service.budget.used > 0)
            assert server.service.budget.used < 8 << 20
            eventually(lambda: server.count("clients_timed_out") == 1)
            eventually(lambda: server.service.budget.used == 0)
            client.raw.close()

    def test_largest_answer_is_smaller_because_it_is_copied(self) -> None:
        from lookupdb.router.budget import RouterBudget

        assert RouterBudget(30 << 20, is_encrypted=True).answer_bytes == 10 << 20
        assert RouterBudget(30 << 20).answer_bytes == 15 << 20


class TestClientCertificates:
    @pytest.fixture
    def server(self, files: TlsFiles, tmp_path: Path) -> Iterator[Server]:  # instead of the module's
        client_ca = tmp_path / "ca.crt"
        client_ca.write_bytes(authority().certificate_pem)
        values = {"a": b"1"}
        with serving(ScriptedLookups(values=values), TlsFiles(files.certificate, files.key, client_ca)) as server:
            yield server

    def test_one_by_the_authority_is_let_in(self, server: Server, tmp_path: Path) -> None:
        pair = make_identity("client", by=authority()).write(tmp_path, "client")
        assert ask(server, client_context(pair)).endswith(b"\r\n1")

    @pytest.mark.parametrize(
        "client",
        [
            pytest.param(None, id="none"),
            pytest.param(lambda: make_identity("client"), id="by itself"),
            pytest.param(lambda: make_identity("client", by=_another_authority()), id="by another"),
            pytest.param(lambda: make_identity("client", by=authority(), days=-1), id="expired"),
        ],
    )
    def test_others_are_not(self, server: Server, tmp_path: Path, client: object) -> None:
        pair = client().write(tmp_path, "client") if callable(client) else None
        assert not _is_let_in(server, client_context(pair))
        eventually(lambda: server.count("tls_handshakes_failed") == 1)
        assert server.lookups.asked == []

    def test_session_is_not_resumed(self, server: Server, tmp_path: Path) -> None:
        """A resumed session shows no certificate, and the client's may have expired since."""
        pair = make_identity("client", by=authority()).write(tmp_path, "client")
        context = client_context(pair)
        first = connect(server, context).handshake()
        first.sendall(LOOKUP)
        assert first.recv(1 << 16)
        assert first.tls.session is None or not first.tls.session.has_ticket
        first.raw.close()

    def test_authority_that_is_replaced_holds_for_the_next_handshake(self, server: Server, tmp_path: Path) -> None:
        pair = make_identity("client", by=authority()).write(tmp_path, "client")
        context = client_context(pair)
        standing = connect(server, context).handshake()
        (tmp_path / "ca.crt").write_bytes(make_identity("another", is_authority=True).certificate_pem)
        eventually(lambda: not _is_let_in(server, context))
        standing.sendall(LOOKUP)
        assert standing.recv(1 << 16).endswith(b"\r\n1")
        standing.raw.close()


def _another_authority() -> Identity:
    """Another authority with the name of the right one."""
    return make_identity("authority", is_authority=True)


def _is_let_in(server: Server, context: ssl.SSLContext) -> bool:
    try:
        return ask(server, context).endswith(b"\r\n1")
    except (ssl.SSLError, ConnectionResetError):
        return False


class TestReload:
    def test_new_certificate_is_shown_and_standing_connections_go_on(self, server: Server, files: TlsFiles) -> None:
        standing = connect(server).handshake()
        first = shown(server)
        _await_renewal(server, lambda: make_identity(by=authority()).write(files.certificate.parent))
        assert shown(server) != first
        standing.sendall(LOOKUP)
        assert standing.recv(1 << 16).endswith(b"\r\n1")
        standing.raw.close()

    @pytest.mark.parametrize(
        "damage",
        ["key of another", "half a certificate", "odd version", "no certificate", "no key", "expired", "not valid yet"],
    )
    def test_what_cannot_be_used_changes_nothing(self, server: Server, files: TlsFiles, damage: str) -> None:
        first = shown(server)
        begins_in = datetime.timedelta(days=1 if damage == "not valid yet" else -60)
        other = make_identity(by=authority(), days=-1 if damage == "expired" else 30, begins_in=begins_in)
        match damage:
            case "key of another":
                files.key.write_bytes(other.key_pem)
            case "half a certificate":
                files.certificate.write_bytes(other.certificate_pem[:100])
            case "odd version":
                files.certificate.write_bytes(_with_odd_version(files.certificate.read_bytes()))
            case "no certificate":
                files.certificate.unlink()
            case "no key":
                files.key.unlink()
            case _:
                other.write(files.certificate.parent)
        assert server.certificates is not None
        eventually(lambda: server.count("tls_certificates_refused") > 0)
        assert server.certificates.problem is not None
        assert server.certificates.problem.startswith("TLS: ")
        assert shown(server) == first
        new = make_identity(by=authority())
        _await_renewal(server, lambda: new.write(files.certificate.parent))
        assert shown(server) == new.certificate.serial_number
        assert server.certificates.problem is None

    def test_certificate_is_used_when_its_time_has_come(self, server: Server, files: TlsFiles) -> None:
        new = make_identity(by=authority(), begins_in=datetime.timedelta(seconds=4))
        assert server.certificates is not None
        new.write(files.certificate.parent)
        before = server.certificates.context
        eventually(lambda: "is not valid before" in str(server.certificates and server.certificates.problem))
        assert server.certificates.context is before
        _await_renewal(server, lambda: None)
        assert shown(server) == new.certificate.serial_number
        assert server.certificates.problem is None

    def test_the_only_one_is_used_and_its_problem_told(self, files: TlsFiles) -> None:
        for identity, problem in (
            (make_identity(by=authority(), begins_in=datetime.timedelta(days=1)), "is not valid before"),
            (make_identity(by=authority(), days=-1), "has expired"),
        ):
            identity.write(files.certificate.parent)
            with serving(ScriptedLookups(values={"a": b"1"}), files) as server:
                assert server.certificates is not None
                assert problem in str(server.certificates.problem)
                assert server.certificates.context is not None
                assert server.count("tls_certificates_refused") == 0

    def test_what_could_not_be_read_for_a_moment_is_read_again(
        self, server: Server, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make = certificates.make_context
        failures: list[TlsFiles] = []

        def fail_twice(files: TlsFiles) -> ssl.SSLContext:
            if len(failures) < 2:
                failures.append(files)
                raise OSError(errno.EMFILE, "Too many open files")
            return make(files)

        monkeypatch.setattr(certificates, "make_context", fail_twice)
        new = make_identity(by=authority())

        def replace_files() -> None:
            new.write(files.certificate.parent)
            for path in filter(None, files):
                os.utime(path, (1e9, 1e9))  # it does not change again

        _await_renewal(server, replace_files)
        assert shown(server) == new.certificate.serial_number
        assert len(failures) == 2

    def test_each_change_that_cannot_be_used_is_counted(self, server: Server, files: TlsFiles) -> None:
        for count in (1, 2):
            files.certificate.write_bytes(b"nonsense" * count)
            eventually(lambda: server.count("tls_certificates_refused") == count)  # noqa: B023
            assert server.certificates is not None
            assert "cannot be used: expected PEM, and a key" in str(server.certificates.problem)

    def test_expiry_is_a_metric(self, server: Server, files: TlsFiles) -> None:
        expiry = find_period(files.certificate.read_bytes()).expires
        assert server.count("tls_certificate_expiry_timestamp_seconds") == int(expiry.timestamp())
        assert expiry.timestamp() > time.time()

    def test_key_stands_in_no_problem(self, server: Server, files: TlsFiles) -> None:
        files.key.write_bytes(b"-----BEGIN PRIVATE KEY-----\nplanted\n-----END PRIVATE KEY-----\n")
        eventually(lambda: server.count("tls_certificates_refused") > 0)
        assert server.certificates is not None
        assert "planted" not in str(server.certificates.problem)


def _with_odd_version(pem: bytes) -> bytes:
    """A certificate whose version no other has."""
    der = ssl.PEM_cert_to_DER_cert(pem.decode())
    assert der.count(b"\xa0\x03\x02\x01\x02") == 1
    return ssl.DER_cert_to_PEM_cert(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05")).encode()


def test_resumed_session_is_let_in(server: Server) -> None:
    context = client_context()
    first = connect(server, context).handshake()
    first.sendall(LOOKUP)
    assert first.recv(1 << 16)
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    second = TlsSocket(raw, context)
    second.tls = context.wrap_bio(
        second._incoming, second._outgoing, server_hostname=tls.HOST, session=first.tls.session
    )
    second.handshake().sendall(LOOKUP)
    assert second.recv(1 << 16).endswith(b"\r\n1")
    assert second.tls.session_reused
    first.raw.close()
    raw.close()


def test_connection_at_rest_holds_nothing_of_what_passed(tmp_path: Path) -> None:
    """A buffer never shrinks, so no connection has one of its own."""
    values = {"large": b'"%b"' % (b"v" * (1 << 20))}
    folder = write_generation(tmp_path / "store", values, shards=1)
    table = tmp_path / "table.json"
    certificate, key = server_identity().write(tmp_path / "tls")
    with fleet(folder) as shards:
        table.write_bytes(table_file(fleet_entry(folder, shards)))
        with routing(table, "--tls-cert", str(certificate), "--tls-key", str(key)) as router:
            worker = router.status()["workers"][0]["pid"]
            clients = [_ask_much(router.port) for _ in range(8)]
            before = private_bytes(worker) or 0
            clients += [_ask_much(router.port) for _ in range(16)]
            grown = ((private_bytes(worker) or 0) - before) / 16
            for client in clients:
                client.raw.close()
    assert grown < 100 << 10, f"{grown / 1024:.0f} KiB for each connection"


def _ask_much(port: int) -> TlsSocket:
    """A connection over which a large request and a large answer have passed."""
    client = TlsSocket(socket.create_connection(("127.0.0.1", port), timeout=30)).handshake()
    body = b'{"keys":["large"]%b}' % (b" " * 200_000)
    client.sendall(request("/v1/lookup", f"Content-Length: {len(body)}", method="POST") + body)
    received = 0
    while received < 1 << 20:
        received += len(client.recv(1 << 18))
    return client
