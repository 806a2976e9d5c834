"""Errors of an unreadable source: they name the problem and the host, and contain no secret."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import http.server
import socket
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.client import BadStatusLine, RemoteDisconnected
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError, UnauthenticatedError

from lookupdb.builder import listing, remote
from lookupdb.errors import BadSource, StoreError
from lookupdb.network import (
    ClientPanicked,
    describe_failure,
    describe_socket_failure,
    is_redis_reply,
    is_unreachable,
    panics_as_errors,
)
from lookupdb.store.bucket import ObstoreObjects


@pytest.fixture(autouse=True)
def _without_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_RETRIES", {"max_retries": 0})


def refusal(url: str) -> BadSource:
    with pytest.raises(BadSource) as caught:
        listing.find_files(url, base=None, volume=None)
    return caught.value


def shake_hands(connection: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Do the server's side. Raises SSLError only after the client has seen why: with unread bytes, the kernel would
    reset the connection, and the alert would be lost."""
    tls = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
    tls.settimeout(10)
    try:
        tls.do_handshake()
    except ssl.SSLError:
        with socket.socket(fileno=tls.detach()) as plain, contextlib.suppress(OSError):
            plain.settimeout(10)
            plain.shutdown(socket.SHUT_WR)
            while plain.recv(1 << 16):
                pass
        raise
    return tls


@contextlib.contextmanager
def https_server(certificate: Path | None, status: int = 200, client_ca: Path | None = None) -> Iterator[int]:
    """Yield a server's port. Without a certificate it speaks plain http; ``client_ca`` requires client certificates."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    class Server(http.server.ThreadingHTTPServer):
        def get_request(self) -> tuple[socket.socket, Any]:
            connection, address = super().get_request()
            return (shake_hands(connection, context) if context else connection), address

        def handle_error(self, *_: object) -> None: ...

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if certificate else None
    if context and certificate:
        context.load_cert_chain(certificate)
        if client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(client_ca)
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of localhost."""
    from cryptography import x509  # takes a while, and few tests need it
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority that nobody knows")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


class TestSources:
    def test_a_host_that_does_not_resolve(self) -> None:
        error = refusal("https://data.invalid/people.csv?signature=SECRET")
        assert error.message == "https://data.invalid/people.csv cannot be read: the host data.invalid does not resolve"
        assert error.hint == "check source.url, and that its host can be reached from here"

    def test_a_refused_connection(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and does not listen
            host = f"127.0.0.1:{taken.getsockname()[1]}"
            error = refusal(f"http://{host}/people.csv?signature=SECRET")
        assert error.message.endswith(f"cannot be read: {host} refuses connections: nothing listens there, or not yet")

    def test_a_bad_certificate(self, certificate: Path) -> None:
        with https_server(certificate) as port:
            error = refusal(f"https://localhost:{port}/people.csv")
        assert error.message.endswith(
            f"cannot be read: the certificate of localhost:{port} is not trusted: UnknownIssuer"
        )
        assert error.hint

    def test_a_server_without_tls(self) -> None:
        with https_server(None) as port:
            error = refusal(f"https://localhost:{port}/people.csv")
        assert f"localhost:{port} does not speak TLS, though the URL begins with https" in error.message

    def test_a_signature_is_never_shown(self) -> None:
        with https_server(None, status=418) as port:
            error = refusal(f"http://user:SECRET@localhost:{port}/people.csv?signature=SECRET")
        assert "418" in error.message
        assert "SECRET" not in str(error)


def socket_failure(url: str, context: ssl.SSLContext | None = None) -> str:
    """Describe the failure of Python's own client at ``url``."""
    host = urllib.parse.urlsplit(url).netloc
    with pytest.raises((urllib.error.URLError, TimeoutError, ssl.SSLError)) as caught:
        urllib.request.urlopen(url, timeout=0.5, context=context)
    error = caught.value
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    assert isinstance(reason, BaseException)
    return describe_socket_failure(reason, host).replace(host, "HOST")


class TestPythonsOwnClient:
    def test_a_host_that_does_not_resolve(self) -> None:
        assert socket_failure("http://data.invalid/") == "the host HOST does not resolve"

    def test_a_refused_connection_and_one_that_nobody_answers(self) -> None:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{server.getsockname()[1]}/"
            assert socket_failure(url) == "HOST refuses connections: nothing listens there, or not yet"
            server.listen()
            assert socket_failure(url) == "HOST did not answer in time"

    def test_a_bad_certificate(self, certificate: Path) -> None:
        with https_server(certificate) as port:
            said = socket_failure(f"https://localhost:{port}/")
        assert said == "the certificate of HOST is not trusted: self-signed certificate"

    def test_a_server_without_tls(self) -> None:
        with https_server(None) as port:
            said = socket_failure(f"https://localhost:{port}/")
        assert said == "HOST does not speak TLS, though the URL begins with https"

    def test_a_server_that_wants_a_certificate(self, certificate: Path) -> None:
        context = ssl.create_default_context(cafile=str(certificate))
        with https_server(certificate, client_ca=certificate) as port:
            said = socket_failure(f"https://localhost:{port}/", context)
        assert said == "HOST wants its clients to have a certificate"

    @pytest.mark.parametrize(
        ("error", "sentence"),
        [
            (ConnectionResetError("[Errno 104]"), "HOST closed the connection without an answer"),
            (RemoteDisconnected("Remote end closed"), "HOST closed the connection without an answer"),
            (OSError(errno.ENETUNREACH, "Network is unreachable"), "there is no route to HOST"),
            (OSError(errno.EHOSTUNREACH, "No route to host"), "there is no route to HOST"),
            (BadStatusLine("SSH-2.0\r\n"), "HOST does not answer as a web server does: SSH-2.0"),
            (ssl.SSLEOFError(8, "EOF occurred in violation"), "HOST closed the connection without an answer"),
            (
                ssl.SSLError(1, "[SSL] tlsv1 alert protocol version"),
                "TLS with HOST has failed: [SSL] tlsv1 alert protocol version",
            ),
            (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        ],
    )
    def test_what_cannot_be_brought_about_here(self, error: Exception, sentence: str) -> None:
        assert describe_socket_failure(error, "HOST") == sentence


@pytest.mark.parametrize(
    ("said", "sentence", "may_come"),
    [
        ("kind: Timeout, source: TimedOut", "db:1 did not answer in time", True),
        ("hyper::Error(IncompleteMessage)", "db:1 closed the connection without an answer", True),
        ("Os { kind: HostUnreachable }", "there is no route to db:1", True),
        ("InvalidCertificate(\n  Expired", "the certificate of db:1 is not trusted: Expired", False),
        ("InvalidCertificate(NotValidForNameContext {", "is not trusted: NotValidForNameContext", False),
        ("kind: Builder, source: BadScheme", "plain http to db:1 is not allowed", False),
        ("Server returned non-2xx status code: 503", "503", True),
        ("Server returned non-2xx status code: 404", "404", False),
    ],
)
def test_what_the_libraries_say_is_translated(said: str, sentence: str, may_come: bool) -> None:
    error = ValueError(f"Error performing GET https://db:1/a?key=SECRET in 1ms, {said}")
    assert sentence in describe_failure(error)
    assert "SECRET" not in describe_failure(error)
    assert is_unreachable(error) is may_come


def test_a_machine_without_credentials_is_not_taken_for_an_absent_store() -> None:
    error = ValueError("Error performing PUT http://169.254.169.254/latest/api/token, ConnectionRefused")
    assert describe_failure(error).startswith("there are no credentials")
    assert not is_unreachable(error)


def test_a_refusal_is_told_by_its_code_and_sentence_without_keys_and_signatures() -> None:
    error = OSError(
        "Generic S3 error: Error performing GET http://store:7070/lookups in 7ms - Server returned a status code: "
        '403 Forbidden: <?xml version="1.0"?>\n<Error><Code>SignatureDoesNotMatch</Code><Message>The signature does '
        "not match.</Message><AWSAccessKeyId>AKIAPLANTED</AWSAccessKeyId><StringToSign>AWS4-HMAC-PLANTED</StringToSign>"
    )
    assert describe_failure(error) == "SignatureDoesNotMatch: The signature does not match."


@pytest.mark.parametrize(
    ("url", "hint"), [("s3://b/a.csv", "AWS_ACCESS_KEY_ID"), ("https://h/a.csv", "no credentials of its own")]
)
def test_a_denied_source_says_where_its_credentials_come_from(url: str, hint: str) -> None:
    with pytest.raises(BadSource, match=hint), remote.remote_errors(url):
        raise UnauthenticatedError("401")


def test_an_object_that_gcs_unpacks_on_the_way_says_what_to_clear() -> None:
    said = GenericError("Generic GCS error: Content-Length Header missing from response")
    with pytest.raises(BadSource, match="clear contentEncoding"), remote.remote_errors("gs://b/a.csv"):
        raise said


def test_no_credentials_at_all_says_which_variables() -> None:
    error = GenericError("Generic S3 error: error sending request for url (http://169.254.169.254/latest/api/token)")
    with (
        pytest.raises(BadSource, match=r"(?s)there are no credentials.*AWS_ACCESS_KEY_ID"),
        remote.remote_errors("s3://b"),
    ):
        raise error


class TestPanics:
    @pytest.fixture
    def panicking(self) -> object:
        """obstore takes an endpoint that is no URL, and panics at each request."""
        return obstore.store.S3Store(
            "bucket", endpoint="http://127.0.0.1:no port", access_key_id="a", secret_access_key="b", region="r"
        )

    def test_of_a_call_are_errors(self, panicking: Any) -> None:
        with pytest.raises(ClientPanicked, match="its client crashed"), panics_as_errors():
            obstore.head(panicking, "x")

    async def test_of_a_task_are_errors(self, panicking: Any) -> None:
        with pytest.raises(ClientPanicked, match="its client crashed"), panics_as_errors():
            await obstore.head_async(panicking, "x")

    @pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GenericError])
    def test_all_else_stays_what_it_is(self, end: type[BaseException]) -> None:
        with pytest.raises(end), panics_as_errors():
            raise end

    def test_of_a_bucket_are_errors_of_the_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        variables = {"ENDPOINT_URL": "http://127.0.0.1:no port", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
        for name, value in {**variables, "REGION": "r", "ALLOW_HTTP": "true"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        bucket = ObstoreObjects("s3://bucket", retries=0)
        for ask in (bucket.get, bucket.size, lambda path: list(bucket.list_objects(path))):
            with pytest.raises(StoreError, match="its client crashed"):
                ask("x")
        with pytest.raises(BadSource, match="its client crashed"):
            listing.find_files("s3://bucket/*.csv", base=None, volume=None)


@pytest.mark.parametrize(
    "line", ["-ERR unknown command 'GET'\r\n", "-NOAUTH Authentication required.\r\n", "+OK\r\n", "$-1\r\n"]
)
def test_a_reply_of_redis_is_told_from_other_nonsense(line: str) -> None:
    assert is_redis_reply(BadStatusLine(line))
    assert not is_redis_reply(BadStatusLine("SSH-2.0\r\n"))
    assert not is_redis_reply(ConnectionResetError(line))
