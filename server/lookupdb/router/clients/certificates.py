"""The certificate that the public port shows, and the authorities of clients: read from files, anew when they change.

What cannot be used changes nothing: the last usable certificate stays, and ``problem`` says why. So it does while the
present one is valid and the new one has expired, or is not valid yet: that is taken when its time has come. Connections
that stand keep theirs.
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

from lookupdb.process.watched_files import Content, WatchedFiles, read_file
from lookupdb.router.counters import CERTIFICATE_EXPIRY, INDEX

log = logging.getLogger(__name__)

_NOT_AFTER: Final = INDEX[CERTIFICATE_EXPIRY]
_REFUSED: Final = INDEX["tls_certificates_refused"]
_MAX_WAIT_SECONDS: Final = 3600.0
"""Clocks are set: a time that is to come is looked at again meanwhile."""


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
        self._content: Content = {}
        self._is_told = False
        """Whether what the files hold was refused before: it is tried again, in silence."""
        self._period: Period | None = None
        self._waiting: asyncio.TimerHandle | None = None
        """For the time from which what the files hold is valid."""
        self.context: ssl.SSLContext | None = None
        self.is_loaded = asyncio.Event()
        """Set once there is a context."""
        self.problem: str | None = None
        """Why what the files hold now is not used, or why clients will not take it."""

    def start(self) -> None:
        """Read the files, and again whenever they change, until ``stop``."""
        self._watch.start()

    def stop(self) -> None:
        """Look no more."""
        self._watch.stop()
        self._stop_waiting()

    def _load(self, content: Content) -> None:
        self._stop_waiting()
        self._is_told = self._is_told and content == self._content
        self._content = content
        missing = [str(path) for path in self._files.paths if content.get(path) is None]
        if missing:
            self._refuse(f"there is no {' and no '.join(missing)}, or it cannot be read")
            return
        try:
            period = find_period(content[self._files.certificate] or b"")
            context = make_context(self._files)
        except Exception as error:  # whatever is wrong with them, they are refused
            # Not the error's own words: they may quote a file, and one of these is a secret.
            reason = getattr(error, "reason", None) or type(error).__name__
            self._refuse(f"the certificate, its key or the clients' authorities cannot be used: {reason}")
            if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
                self._watch.tell_again()  # they were read a moment ago: no descriptor is free, say
            return
        if any(read_file(path) != text for path, text in content.items()):
            self._watch.tell_again()  # replaced in between: the next look finds the whole of it
            return
        self._judge(context, period, datetime.datetime.now(datetime.UTC))

    def _judge(self, context: ssl.SSLContext, period: Period, now: datetime.datetime) -> None:
        problem = period.find_problem(now)
        if now < period.begins:
            wait = (period.begins - now).total_seconds()
            self._waiting = asyncio.get_running_loop().call_later(min(wait, _MAX_WAIT_SECONDS), self._watch.tell_again)
        if problem and self._period and not self._period.find_problem(now):
            self._refuse(problem)
            return
        self.context, self._period, self.problem = context, period, problem and f"TLS: {problem}"
        self._counts[_NOT_AFTER] = max(0, int(period.expires.timestamp()))
        self.is_loaded.set()
        self._on_change()
        log.info("the certificate is in use", extra={"expires": period.expires.isoformat()})
        if problem:
            log.warning("%s: clients that verify it will not ask", problem)

    def _refuse(self, problem: str) -> None:
        if self._is_told and self.problem == f"TLS: {problem}":
            return
        self._is_told = True
        self.problem = f"TLS: {problem}"
        self._counts[_REFUSED] += 1
        self._on_change()
        kept = "the one before stays in use" if self.context else "nothing is served before there is one"
        log.warning("the certificate is not used: %s; %s", problem, kept)

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting.cancel()


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


@dataclass(frozen=True, slots=True)
class Period:
    """In which a certificate is valid."""

    begins: datetime.datetime
    expires: datetime.datetime

    def find_problem(self, now: datetime.datetime) -> str | None:
        """Why it is not valid ``now``."""
        if self.expires <= now:
            return f"the certificate has expired: {self.expires:%Y-%m-%dT%H:%M:%SZ}"
        if now < self.begins:
            return f"the certificate is not valid before {self.begins:%Y-%m-%dT%H:%M:%SZ}"
        return None


def find_period(certificates: bytes) -> Period:
    """When the first of the PEM ``certificates``, the server's own, is valid. Raises ValueError, or x509's errors."""
    from cryptography import x509  # here, because a router without TLS spares its memory

    certificate = x509.load_pem_x509_certificates(certificates)[0]
    return Period(certificate.not_valid_before_utc, certificate.not_valid_after_utc)
