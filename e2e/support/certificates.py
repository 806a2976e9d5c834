"""Certificates of scenarios: an authority, and what it signs."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID: Final = datetime.timedelta(days=1)
CLOCKS_APART: Final = datetime.timedelta(hours=1)
"""The clock of this machine may be ahead of that of a node."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def serial(self) -> int:
        """The certificate's number."""
        return self.certificate.serial_number

    @property
    def certificate_pem(self) -> str:
        """The certificate as in a Secret's tls.crt."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        """The key as in a Secret's tls.key."""
        form = serialization.PrivateFormat.PKCS8
        return self.key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def make_authority() -> Identity:
    """Make an authority that clients trust."""
    return _make("authority", None)


def make_identity(host: str, by: Identity) -> Identity:
    """Make a server's certificate, signed ``by`` an authority."""
    return _make(host, by)


def _make(name: str, by: Identity | None) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signer = by.key if by else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_APART)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(_allow(signs_certificates=by is None), critical=True)
    )
    if by:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return Identity(builder.sign(signer, hashes.SHA256()), key)


def _allow(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
