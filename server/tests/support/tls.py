"""Certificates for tests, and a client's socket that speaks TLS as a test wants it."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "router"


@dataclass(frozen=True)
class Identity:
    """A certificate, its key and who signed it."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def write(self, folder: Path, name: str = "tls") -> tuple[Path, Path]:
        """The files of certificate and key, as a kubernetes.io/tls Secret calls them."""
        folder.mkdir(exist_ok=True)
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate_pem)
        key.write_bytes(self.key_pem)
        return certificate, key


def make_identity(
    name: str = HOST,
    by: Identity | None = None,
    *,
    is_authority: bool = False,
    days: float = 30,
    begins_in: datetime.timedelta = datetime.timedelta(days=-60),
) -> Identity:
    """A new certificate, signed ``by`` an authority or by itself. With negative ``days`` it has expired."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins_in)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    return Identity(builder.sign(by.key if by else key, hashes.SHA256()), key)


@cache
def authority() -> Identity:
    """The authority that clients trust."""
    return make_identity("authority", is_authority=True)


@cache
def server_identity() -> Identity:
    """A router's."""
    return make_identity(by=authority())


def client_context(client: tuple[Path, Path] | None = None, trusted: Identity | None = None) -> ssl.SSLContext:
    """The context of a client that trusts ``authority()``, or another, and may show a certificate."""
    context = ssl.create_default_context(cadata=(trusted or authority()).certificate_pem.decode())
    if client:
        context.load_cert_chain(*client)
    return context


class TlsSocket:
    """As a client's socket; ``shutdown`` says close_notify, and the stream's end. Pieces are sent as they are given.

    One thread may send while another receives, as with a socket: OpenSSL itself allows one at a time, and what it
    encrypts while it decrypts is a bad record to the server.
    """

    def __init__(self, raw: socket.socket, context: ssl.SSLContext | None = None) -> None:
        self.raw = raw
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = (context or client_context()).wrap_bio(self._incoming, self._outgoing, server_hostname=HOST)
        self._peeked = b""
        self._lock = threading.Lock()
        """Guards ``tls`` and its buffers; never held while waiting for bytes."""
        self.was_told_of_the_end = False
        """The server's stream ended with close_notify."""

    def handshake(self) -> TlsSocket:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                if not self._feed():
                    raise EOFError("the connection ended during the handshake") from None
            else:
                self._flush()
                return self

    def _flush(self) -> None:
        with self._lock:
            data = self._outgoing.read()
        if data:
            self.raw.sendall(data)

    def _feed(self) -> bool:
        data = self.raw.recv(1 << 18)
        with self._lock:
            self._incoming.write(data)
        return bool(data)

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            with self._lock:
                view = view[self.tls.write(view) :]
            self._flush()

    def send(self, data: bytes) -> int:
        self.sendall(data)
        return len(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        while not self._peeked:
            try:
                with self._lock:
                    self._peeked = self.tls.read(1 << 18)
                if not self._peeked:
                    self.was_told_of_the_end = True
                    return b""
            except ssl.SSLZeroReturnError:
                self.was_told_of_the_end = True
                return b""
            except ssl.SSLWantReadError:
                if not self._feed():
                    return b""
        data = self._peeked[:size]
        if not flags & socket.MSG_PEEK:
            self._peeked = self._peeked[size:]
        return data

    def shutdown(self, how: int) -> None:
        with contextlib.suppress(ssl.SSLError), self._lock:
            self.tls.unwrap()
        self._flush()
        self.raw.shutdown(how)

    def settimeout(self, seconds: float | None) -> None:
        self.raw.settimeout(seconds)

    def __getattr__(self, name: str) -> object:
        return getattr(self.raw, name)
