"""The certificate that the public port shows, and the authorities of clients: read from files, anew when they change.

What cannot be used changes nothing: the last usable certificate stays, and ``problem`` says why. So does one that has
expired, while the present one has not. Connections that stand keep theirs.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lookupdb.route.counters import CERTIFICATE_EXPIRY, INDEX
from lookupdb.runtime.watched_files import Content, WatchedFiles, read_file

log = logging.getLogger(__name__)

_NOT_AFTER: Final = INDEX[CERTIFICATE_EXPIRY]
_REFUSED: Final = INDEX["tls_certificates_refused"]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificates are, as PEM."""

    certificate: Path
    """With its chain."""
    key: Path
    client_ca: Path | None
    """The authorities of clients' certificates; None: clients need none."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TlsFiles:
        """Out of a router's settings: paths by the names of the fields."""
        client_ca = config["client_ca"]
        return cls(Path(config["certificate"]), Path(config["key"]), Path(client_ca) if client_ca else None)

    @property
    def paths(self) -> list[Path]:
        """All of them."""
        return [path for path in (self.certificate, self.key, self.client_ca) if path]


class Certificates:
    """``context`` is what a handshake begins with: None until a certificate could be used."""

    def __init__(self, files: TlsFiles, counts: memoryview, on_change: Callable[[], None]) -> None:
        """``on_change`` is called when ``context`` or ``problem`` has changed."""
        self._files = files
        self._on_change = on_change
        self._counts = counts
        self._watch = WatchedFiles(lambda: files.paths, self._load)
        self._expires = datetime.datetime.min.replace(tzinfo=datetime.UTC)
        self.context: ssl.SSLContext | None = None
        self.is_loaded = asyncio.Event()
        """Set once there is a context."""
        self.problem: str | None = None
        """Why what the files hold now is not used."""

    def start(self) -> None:
        """Read the files, and again whenever they change, until ``stop``."""
        self._watch.start()

    def stop(self) -> None:
        """Look no more."""
        self._watch.stop()

    def _load(self, content: Content) -> None:
        missing = [str(path) for path in self._files.paths if content.get(path) is None]
        if missing:
            self._refuse(f"there is no {' and no '.join(missing)}, or it cannot be read")
            return
        try:
            expires = find_expiry(content[self._files.certificate] or b"")
            context = make_context(self._files)
        except (OSError, ValueError) as error:
            # Not the error's own words: they may quote a file, and one of these is a secret.
            reason = getattr(error, "reason", None) or type(error).__name__
            self._refuse(f"the certificate, its key or the clients' authorities cannot be used: {reason}")
            return
        if any(read_file(path) != text for path, text in content.items()):
            return  # replaced in between: the next look finds the whole of it
        now = datetime.datetime.now(datetime.UTC)
        if expires <= now < self._expires:
            self._refuse(f"the certificate has expired: {expires:%Y-%m-%dT%H:%M:%SZ}")
            return
        self.context, self._expires, self.problem = context, expires, None
        self._counts[_NOT_AFTER] = max(0, int(expires.timestamp()))
        self.is_loaded.set()
        self._on_change()
        log.info("the certificate is in use", extra={"expires": expires.isoformat()})
        if expires <= now:
            log.warning("the certificate has expired: clients that verify it will not ask")

    def _refuse(self, problem: str) -> None:
        self.problem = f"TLS: {problem}"
        self._counts[_REFUSED] += 1
        self._on_change()
        kept = "the one before stays in use" if self.context else "nothing is served before there is one"
        log.warning("the certificate is not used: %s; %s", problem, kept)


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """What a server's handshake begins with. Raises OSError (SSLError is one)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Below it OpenSSL remembers sessions by itself, thousands of them, and lets clients in by these.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(files.certificate, files.key, password=_no_password)
    if files.client_ca:
        context.load_verify_locations(files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # A session that is resumed shows no certificate: the client's may have expired since.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


def _no_password() -> str:
    """Instead of asking a terminal."""
    raise ValueError("the key is encrypted")


def find_expiry(certificates: bytes) -> datetime.datetime:
    """When the first of the PEM ``certificates``, the server's own, expires. Raises ValueError."""
    from cryptography import x509  # here, because a router without TLS spares its memory

    return x509.load_pem_x509_certificates(certificates)[0].not_valid_after_utc
