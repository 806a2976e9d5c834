"""Explain errors of TLS, for clients of routers and other servers. Reads errors, and does not import ssl."""

from __future__ import annotations

import re
from typing import Final

_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
"""OpenSSL's names, in any version, for an answer to its greeting that is not TLS."""
_SSL_ERROR_EOF: Final = 8
_NONE_SHOWN: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "wants its clients to have a certificate",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "refuses the handshake, as one does that wants its clients to have a certificate",
}
"""OpenSSL's name for the alert of a server that got no client certificate: in TLS 1.3, and before, when it was
ambiguous."""
_NOT_ACCEPTED: Final = re.compile(
    r"ALERT_(BAD_CERTIFICATE|UNKNOWN_CA|UNSUPPORTED_CERTIFICATE|CERTIFICATE_(?:EXPIRED|REVOKED|UNKNOWN))$"
)
"""OpenSSL's name for the alert about a certificate that the server does not accept."""
_DATES: Final = "renew it, or correct the clock of this machine"
_NAMES: Final = "use a name that is in the certificate"
_NOT_VALID_NOW: Final = (9, 10)
_ANOTHER_NAME: Final = (62, 64)
"""X509_V_ERR_… of OpenSSL: not valid yet, expired; another host's name, another address."""


def speaks_no_tls(error: BaseException) -> bool:
    """Return whether ``error``, of ssl, says that the server's answer was not TLS."""
    return getattr(error, "reason", None) in _NO_TLS


def has_ended_early(error: BaseException) -> bool:
    """Return whether ``error``, of ssl, says that the peer closed the connection without notice."""
    return hasattr(error, "library") and getattr(error, "errno", None) == _SSL_ERROR_EOF


def find_certificate_refusal(error: BaseException, *, has_shown_one: bool) -> str | None:
    """Return how a server refuses the client's certificate; None if ``error`` is another one."""
    reason = getattr(error, "reason", None) or ""
    if not isinstance(reason, str):
        return None
    if not has_shown_one and reason in _NONE_SHOWN:
        return _NONE_SHOWN[reason]
    if refused := _NOT_ACCEPTED.search(reason):
        return f"does not accept this client's certificate ({refused[1].replace('_', ' ').lower()})"
    return None


def is_not_valid_now(error: BaseException) -> bool:
    """Return whether a server's certificate was not trusted only because of its dates."""
    return getattr(error, "verify_code", None) in _NOT_VALID_NOW


def find_trust_hint(error: BaseException) -> str | None:
    """Return a hint about a server's certificate that was not trusted; None if its CA is unknown here."""
    code = getattr(error, "verify_code", None)
    if code in _NOT_VALID_NOW:
        return _DATES
    return _NAMES if code in _ANOTHER_NAME else None


def describe_tls_error(error: BaseException) -> str:
    """Return OpenSSL's words for any other error of TLS, without its module and source line."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str) and reason:
        return reason.replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)


# HTTP requests to a Redis port, recognized by their answer, for commands and clients.


_REPLY: Final = re.compile(rb"-[A-Z]+ |[+$:*]")

REDIS_HINT: Final = (
    "this looks like a Redis port, 6379 say. Lookups by HTTP have another one: 8080, or what --port of the router says,"
    " which `lookupdb up` shows in its line with curl; of a Service 80 or 443"
)


def begins_redis_reply(answer: bytes) -> bool:
    """Return whether ``answer``, at least its first line, is a Redis server's refusal of an HTTP request."""
    return _REPLY.match(answer) is not None
