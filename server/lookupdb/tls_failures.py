"""What an error of TLS means, for the clients of routers and other servers. Reads errors, and does not import ssl."""

from __future__ import annotations

import re
from typing import Final

_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
"""What OpenSSL, of one version or another, calls an answer to its greeting that is no TLS."""
_SSL_ERROR_EOF: Final = 8
_NONE_SHOWN: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "wants its clients to have a certificate",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "refuses the handshake, as one does that wants its clients to have a certificate",
}
"""How OpenSSL names the alert of a server that got no certificate of a client's: by TLS 1.3, and before, when it could
also mean something else."""
_NOT_ACCEPTED: Final = re.compile(
    r"ALERT_(BAD_CERTIFICATE|UNKNOWN_CA|UNSUPPORTED_CERTIFICATE|CERTIFICATE_(?:EXPIRED|REVOKED|UNKNOWN))$"
)
"""The same of one that got another certificate than it accepts."""
_DATES: Final = "see to a valid one, or to the clock of this machine"
_NAMES: Final = "ask by a name that the certificate has"
_NOT_VALID_NOW: Final = (9, 10)
_ANOTHER_NAME: Final = (62, 64)
"""By X509_V_ERR_… of OpenSSL: not valid yet, expired; another host's name, another address."""


def speaks_no_tls(error: BaseException) -> bool:
    """Whether ``error``, of ssl, says that the server's answer was no TLS."""
    return getattr(error, "reason", None) in _NO_TLS


def has_ended_early(error: BaseException) -> bool:
    """Whether ``error``, of ssl, says that the connection was closed, by a peer that said nothing of it."""
    return hasattr(error, "library") and getattr(error, "errno", None) == _SSL_ERROR_EOF


def find_certificate_refusal(error: BaseException, *, has_shown_one: bool) -> str | None:
    """What a server does that refuses the connection for the client's certificate; None if ``error`` is another one."""
    reason = getattr(error, "reason", None) or ""
    if not isinstance(reason, str):
        return None
    if not has_shown_one and reason in _NONE_SHOWN:
        return _NONE_SHOWN[reason]
    if refused := _NOT_ACCEPTED.search(reason):
        return f"does not accept this client's certificate ({refused[1].replace('_', ' ').lower()})"
    return None


def is_not_valid_now(error: BaseException) -> bool:
    """Whether a server's certificate was not trusted for its dates alone, which another one, or a clock, mends."""
    return getattr(error, "verify_code", None) in _NOT_VALID_NOW


def find_trust_hint(error: BaseException) -> str | None:
    """What to do about a server's certificate that was not trusted; None if its authority is not known here."""
    code = getattr(error, "verify_code", None)
    if code in _NOT_VALID_NOW:
        return _DATES
    return _NAMES if code in _ANOTHER_NAME else None


def describe_tls_error(error: BaseException) -> str:
    """The words of OpenSSL for any other error of TLS, without its module and the line of its source."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str) and reason:
        return reason.replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
