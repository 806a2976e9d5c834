"""TLS on the public port: a transport between a client's socket and its connection.

Received bytes are decrypted and handed on at once, whether the connection reads or not. Answers are encrypted and
written at once; unsent bytes wait in the socket's transport, and are counted there as without TLS. All connections of a
worker share two buffers, because a buffer never shrinks; every call leaves them empty.

A handshake counts as an incomplete request: the connection is counted from its first packet, and the front's sweep ends
it after ``header_timeout_seconds``.

Either end may close its half of the stream (close_notify); answers to earlier requests are still sent. A stream that
ends without close_notify is treated the same, because each request says its length.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from lookupdb.process.watched_files import Content, WatchedFiles, read_file
from lookupdb.router.clients import READING, TLS_PIECE_BYTES, ConnectionLife
from lookupdb.router.counters import CERTIFICATE_EXPIRY, INDEX

# The plain-text part of a handshake. OpenSSL allocates as much memory as a message announces, and forty bytes can
# announce 128 KiB. A record has a type, a version and a length (RFC 8446, section 5.1); a handshake message has a type
# and a length of three bytes (section 4).


MAX_HELLO_BYTES: Final = 16 << 10
"""Limit of a client's first message, which takes 2 KiB with several key shares."""
HANDSHAKE: Final = 0x16
"""The type of a plain-text handshake record: the first byte that a TLS client sends."""
_RECORD: Final = 5
_MESSAGE: Final = 4


class PlainRecords:
    """Reads the heads of records and messages until the handshake is done."""

    __slots__ = ("_head", "_message_left", "_record_left")

    def __init__(self) -> None:
        self._head = b""
        """The incomplete head of a record, and of the message at its start."""
        self._record_left = 0
        self._message_left = 0

    def are_small(self, data: bytes) -> bool:
        """Return whether no message in ``data`` announces more than ``MAX_HELLO_BYTES``, and none shares a record with
        another.
        """
        data, self._head = self._head + data, b""
        at = 0
        while at < len(data):
            passed = min(self._record_left, len(data) - at)
            self._record_left -= passed
            at += passed
            if at == len(data):
                break
            begins = data[at] == HANDSHAKE and not self._message_left
            head_bytes = _RECORD + (_MESSAGE if begins else 0)
            if len(data) - at < head_bytes:
                self._head = data[at:]
                break
            self._record_left = int.from_bytes(data[at + 3 : at + 5], "big")
            if data[at] == HANDSHAKE:
                if begins:
                    self._message_left = _MESSAGE + int.from_bytes(data[at + 6 : at + 9], "big")
                is_alone = (_MESSAGE if begins else 1) <= self._record_left <= self._message_left
                if self._message_left > _MESSAGE + MAX_HELLO_BYTES or not is_alone:
                    return False
                self._message_left -= self._record_left
            at += _RECORD
        return True


log = logging.getLogger(__name__)

_HANDSHAKES_FAILED: Final = INDEX["tls_handshakes_failed"]
_RECORD_BYTES: Final = 16 << 10
"""Limit of a TLS record, and so of a read."""
_MAX_EMPTY_BYTES: Final = 32 << 10
"""Limit of received bytes that bring no data: two incomplete records, and TLS's own messages."""
_OVERHEAD: Final = 64
"""Bytes without data that are allowed for each byte of data."""


class _TlsConnection(asyncio.Protocol):
    """One client's TLS. ``connection`` gets the decrypted bytes; ``context`` has the current certificate.

    ``incoming`` and ``outgoing`` hold encrypted bytes of one connection at a time, and are empty between two calls.
    """

    __slots__ = (
        "_connection",
        "_empty_bytes",
        "_has_begun",
        "_incoming",
        "_is_ended",
        "_is_open",
        "_is_shut",
        "_object",
        "_outgoing",
        "_plain_records",
        "_transport",
    )
    _transport: asyncio.Transport

    def __init__(
        self, connection: ConnectionLife, context: ssl.SSLContext, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        self._connection = connection
        self._incoming = incoming
        self._outgoing = outgoing
        self._object = context.wrap_bio(incoming, outgoing, server_side=True)
        self._plain_records: PlainRecords | None = PlainRecords()
        self._has_begun = False
        self._empty_bytes = 0
        """Bytes received beyond ``_OVERHEAD`` for each byte of data that they brought."""
        self._is_open = False
        self._is_ended = False
        """True once the client's stream has ended; later bytes are dropped."""
        self._is_shut = False

    # Called by the socket's transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection. One beyond the limit is closed without an answer, which would need a handshake."""
        self._transport = cast("asyncio.Transport", transport)
        connection = self._connection
        connection.connection_made(cast("asyncio.Transport", self))
        if connection.phase is not READING:
            connection.abort()
            return
        connection.deadline = connection.service.header_deadline

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        if len(data) <= _RECORD_BYTES:
            self._receive(data)
            return
        for start in range(0, len(data), _RECORD_BYTES):  # the first slices may end the connection
            self._receive(data[start : start + _RECORD_BYTES])

    def _receive(self, data: bytes) -> None:
        if self._is_ended or self._is_shut:
            return
        if not self._is_open:
            if not self._has_begun:
                self._has_begun = True
                if data[0] != HANDSHAKE:  # the client does not use TLS, and is answered in its protocol
                    self._transport.write(self._connection.encode_tls_refusal())
                    self._leave()
                    return
            assert self._plain_records is not None, "the reader is there until the handshake is done"
            if not self._plain_records.are_small(data):  # OpenSSL gets none of it
                self._is_ended = self._is_shut = True
                self._connection.abort()
                return
            self._incoming.write(data)
            if not self._continue_handshake():
                return
        else:
            self._incoming.write(data)
        self._empty_bytes += len(data)
        self._read()
        if self._empty_bytes > _MAX_EMPTY_BYTES and not self._is_shut:
            self._break()

    def _read(self) -> None:
        """Hand on all received data."""
        tls, incoming, plain = self._object, self._incoming, b""
        try:
            plain = tls.read(_RECORD_BYTES)
            # A read with nothing to return raises an error, which costs as much as a read.
            if incoming.pending or tls.pending():
                plain = self._read_more(plain)
            elif not plain:
                self._is_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._break()
            return
        if incoming.pending:
            incoming.read()  # drops bytes after the end
        if self._outgoing.pending:  # TLS's own messages
            self._flush()
        if plain:
            self._empty_bytes = max(0, self._empty_bytes - _OVERHEAD * len(plain))
            self._connection.data_received(plain)
        if self._is_ended and not self._transport.is_closing() and not self._connection.eof_received():
            self.close()

    def _read_more(self, first: bytes) -> bytes:
        pieces, piece = [first], first
        with contextlib.suppress(ssl.SSLWantReadError):
            while piece:
                piece = self._object.read(_RECORD_BYTES)
                pieces.append(piece)
            self._is_ended = True
        return b"".join(pieces)

    def eof_received(self) -> bool:
        """Handle the end of the client's stream, with or without close_notify."""
        if not self._is_open:
            return False
        if self._is_ended:
            return self._connection.is_half_closed
        self._is_ended = True
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        """Pause, because the client has stopped reading."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Continue, because the client has read most of its data."""
        self._connection.resume_writing()
        if not self._is_open:
            self._connection.deadline = self._connection.service.header_deadline

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up after the connection has closed or broken."""
        if not self._is_open and self._has_begun:
            self._connection.counters[_HANDSHAKES_FAILED] += 1
        self._is_ended = self._is_shut = True
        connection = self._connection
        connection.connection_lost(error)
        # Break the reference cycle, so that nothing waits for the garbage collector.
        del self._connection, self._object

    def _continue_handshake(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            log.debug("a TLS handshake failed", extra={"reason": error.reason})
            self._incoming.read()
            self._flush()  # sends the alert
            self._leave()
            return False
        self._is_open = True
        self._plain_records = None
        self._flush()
        self._connection.deadline = self._connection.service.idle_deadline
        return True

    def _leave(self) -> None:
        """Close before the connection has begun."""
        self._is_ended = self._is_shut = True
        self._connection.finish()

    def _break(self) -> None:
        """Abort, because the bytes are invalid or carry no data."""
        self._is_ended = self._is_shut = True
        self._incoming.read()
        self._flush()
        self._connection.abort()

    # Called by the connection, as a transport.

    def write(self, data: bytes) -> None:
        """Send ``data``."""
        if self._is_shut or not self._is_open:
            return
        if len(data) > TLS_PIECE_BYTES:
            self._write_pieces(memoryview(data))
        elif data:
            try:
                self._object.write(data)  # writes everything: a memory buffer takes any number of records
            except ssl.SSLError:
                self._fail()
        self._flush()

    def writelines(self, pieces: Any) -> None:
        """Send ``pieces``, small ones together."""
        if self._is_shut or not self._is_open:
            return
        for piece in pieces:
            self._write_pieces(memoryview(piece))
        self._flush()

    def _write_pieces(self, data: memoryview) -> None:
        write, outgoing = self._object.write, self._outgoing
        try:
            while data:
                data = data[write(data[:TLS_PIECE_BYTES]) :]
                if outgoing.pending >= TLS_PIECE_BYTES:
                    self._flush()
        except ssl.SSLError:
            self._fail()

    def _fail(self) -> None:
        self._outgoing.read()
        self._transport.abort()

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._transport.write(data)

    def write_eof(self) -> None:
        """End our stream."""
        self._shut()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        """Close once everything is sent."""
        self._shut()
        self._transport.close()

    def _shut(self) -> None:
        if self._is_shut:
            return
        self._is_shut = True
        if self._is_open:
            with contextlib.suppress(ssl.SSLError):  # the client has not answered yet, or broke off
                self._object.unwrap()
            self._flush()

    def abort(self) -> None:
        """Abort the connection."""
        self._transport.abort()

    def pause_reading(self) -> None:
        """Pause reading from the client."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading from the client."""
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio's transports."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the number of unsent bytes."""
        return self._transport.get_write_buffer_size()


# The certificate of the public port and the CAs of clients, read from files and reloaded when they change.
#
# A file that cannot be used changes nothing: the last usable certificate stays, and ``problem`` says why. A certificate
# that is expired or not valid yet does not replace a valid one; a future one is taken when its time comes. Open
# connections keep theirs.


_NOT_AFTER: Final = INDEX[CERTIFICATE_EXPIRY]
_REFUSED: Final = INDEX["tls_certificates_refused"]
_MAX_WAIT_SECONDS: Final = 3600.0
"""Longest wait for a start of validity, because clocks may be adjusted."""


class TlsFiles(NamedTuple):
    """Paths of the PEM files."""

    certificate: Path
    """Certificate and chain."""
    key: Path
    client_ca: Path | None
    """CAs of client certificates, or None if clients need none."""


class Certificates:
    """Keeps ``context`` for handshakes: None until a certificate could be used."""

    def __init__(self, files: TlsFiles, counters: memoryview, on_change: Callable[[], None]) -> None:
        """``on_change`` is called when ``context`` or ``problem`` has changed."""
        self._files = files
        self._paths = [path for path in files if path]
        self._on_change = on_change
        self._counters = counters
        self._watch = WatchedFiles(lambda: self._paths, self._load)
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

    def encrypt(self, accept_plain: Callable[[], ConnectionLife]) -> Callable[[], _TlsConnection]:
        """Return a factory of TLS connections. Each connection gets the certificate in use when it begins."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

        def accept() -> _TlsConnection:
            assert self.context is not None, "nothing listens before there is a certificate"
            return _TlsConnection(accept_plain(), self.context, incoming, outgoing)

        return accept

    def _load(self, content: Content) -> None:
        self._stop_waiting()
        self._is_told = self._is_told and content == self._content
        self._content = content
        missing = [str(path) for path in self._paths if content.get(path) is None]
        if missing:
            self._refuse(f"there is no {' and no '.join(missing)}, or it cannot be read")
            return
        try:
            period = find_period(content[self._files.certificate] or b"")
            context = make_context(self._files)
        except Exception as error:  # files with any error are refused
            # Not the error's own text: it may quote a file, and the key is secret.
            reason = getattr(error, "reason", None) or type(error).__name__
            if isinstance(error, ValueError):
                reason = "expected PEM, and a key without a password"
            self._refuse(f"the certificate, its key or the clients' CAs cannot be used: {reason}")
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
        kept = "the previous one stays in use" if self.context else "nothing is served before there is one"
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
    from cryptography import x509  # here: a router without TLS saves the memory

    certificate = x509.load_pem_x509_certificates(certificates)[0]
    return Period(certificate.not_valid_before_utc, certificate.not_valid_after_utc)
