"""The certificate of the public port and the CAs of clients, read from files and reloaded when they change.

A file that cannot be used changes nothing: the last usable certificate stays, and ``problem`` says why. A certificate
that is expired or not valid yet does not replace a valid one; a future one is taken when its time comes. Open
connections keep theirs.
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
"""Longest wait for a start of validity, because clocks may be adjusted."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of the PEM files."""

    certificate: Path
    """Certificate and chain."""
    key: Path
    client_ca: Path | None
    """CAs of client certificates, or None if clients need none."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TlsFiles:
        """Return the paths in a router's settings, which are named like the fields."""
        client_ca = config["client_ca"]
        return cls(Path(config["certificate"]), Path(config["key"]), Path(client_ca) if client_ca else None)

    @property
    def paths(self) -> list[Path]:
        """All paths."""
        return [path for path in (self.certificate, self.key, self.client_ca) if path]


class Certificates:
    """Keeps ``context`` for handshakes, which is None until a certificate could be used."""

    def __init__(self, files: TlsFiles, counters: memoryview, on_change: Callable[[], None]) -> None:
        """``on_change`` is called when ``context`` or ``problem`` has changed."""
        self._files = files
        self._on_change = on_change
        self._counters = counters
        self._watch = WatchedFiles(lambda: files.paths, self._load)
        self._content: Content = {}
        self._is_told = False
        """True if the current files were refused before: they are tried again without a log line."""
        self._period: Period | None = None
        self._waiting: asyncio.TimerHandle | None = None
        """Timer for the start of the certificate's validity."""
        self.context: ssl.SSLContext | None = None
        self.is_loaded = asyncio.Event()
        """Set once there is a context."""
        self.problem: str | None = None
        """The reason why the current files are not used, or why clients will reject the certificate."""

    def start(self) -> None:
        """Read the files, now and after each change, until ``stop``."""
        self._watch.start()

    def stop(self) -> None:
        """Stop watching."""
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
        except Exception as error:  # files with any error are refused
            # Not the error's own text: it may quote a file, and the key is secret.
            reason = getattr(error, "reason", None) or type(error).__name__
            self._refuse(f"the certificate, its key or the clients' authorities cannot be used: {reason}")
            if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
                self._watch.tell_again()  # they were readable a moment ago: perhaps no descriptor was free
            return
        if any(read_file(path) != text for path, text in content.items()):
            self._watch.tell_again()  # replaced meanwhile: the next poll reads the complete files
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
        self._counters[_NOT_AFTER] = max(0, int(period.expires.timestamp()))
        self.is_loaded.set()
        self._on_change()
        log.info("the certificate is in use", extra={"expires": period.expires.isoformat()})
        if problem:
            log.warning("%s: clients that verify it will not connect", problem)

    def _refuse(self, problem: str) -> None:
        if self._is_told and self.problem == f"TLS: {problem}":
            return
        self._is_told = True
        self.problem = f"TLS: {problem}"
        self._counters[_REFUSED] += 1
        self._on_change()
        kept = "the one before stays in use" if self.context else "nothing is served before there is one"
        log.warning("the certificate is not used: %s; %s", problem, kept)

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting.cancel()


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context of a server's handshakes. Raises OSError, including SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Below 1.3, OpenSSL stores thousands of sessions, and admits clients by them.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(files.certificate, files.key, password=_no_password)
    if files.client_ca:
        context.load_verify_locations(files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session shows no certificate, and the client's may have expired since.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


def _no_password() -> str:
    """Raise, instead of asking a terminal."""
    raise ValueError("the key is encrypted")


@dataclass(frozen=True, slots=True)
class Period:
    """The validity of a certificate."""

    begins: datetime.datetime
    expires: datetime.datetime

    def find_problem(self, now: datetime.datetime) -> str | None:
        """Return why it is not valid ``now``, or None."""
        if self.expires <= now:
            return f"the certificate has expired: {self.expires:%Y-%m-%dT%H:%M:%SZ}"
        if now < self.begins:
            return f"the certificate is not valid before {self.begins:%Y-%m-%dT%H:%M:%SZ}"
        return None


def find_period(certificates: bytes) -> Period:
    """Return the validity of the first PEM certificate, the server's own. Raises ValueError, or x509's errors."""
    from cryptography import x509  # here, because a router without TLS saves its memory

    certificate = x509.load_pem_x509_certificates(certificates)[0]
    return Period(certificate.not_valid_before_utc, certificate.not_valid_after_utc)
