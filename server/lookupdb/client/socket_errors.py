"""What an error of a socket to the router means: a sentence, whether asking again may help, and what to do if not."""

from __future__ import annotations

import os
import socket
from typing import Final

from lookupdb.client.attempts import CONNECTION_LOST, UNREACHABLE, ConnectionFailure, deadline_failure
from lookupdb.client.settings import ClientSettings
from lookupdb.errors import InvalidAnswer
from lookupdb.tls_failures import (
    describe_tls_error,
    find_certificate_refusal,
    find_trust_hint,
    has_ended_early,
    is_not_valid_now,
    speaks_no_tls,
)

_SHOW_ONE: Final = "give the certificate that this client was given, by cert_file= and key_file="
_BY_FILE: Final = "give the certificate of the authority that signed it, by ca_file="


def connecting_error(error: OSError, settings: ClientSettings, *, is_late: bool) -> ConnectionFailure | InvalidAnswer:
    """The error of a connection that could not be made. Who answers, and not in TLS, will never. ``is_late``: the time
    of the call is over, and not only ``connect_timeout``. The resolution of a name, which nobody can end, says why it
    failed all the same."""
    if is_late and not isinstance(error, socket.gaierror):
        return deadline_failure(settings.timeout)
    if speaks_no_tls(error):
        plain = settings.address.url.replace("https:", "http:", 1)
        return InvalidAnswer(
            f"{settings.address.authority} does not speak TLS",
            hint=f"a router without a certificate of its own is {plain}",
        )
    return _refusal(error, settings) or ConnectionFailure(UNREACHABLE, describe_socket_error(error, settings))


def lost_connection(error: BaseException, settings: ClientSettings, *, is_stale: bool) -> ConnectionFailure:
    """The failure of a request whose connection has ended in ``error``. A router that wants a client's certificate says
    so here: by TLS 1.3 the handshake is over before it has looked."""
    return _refusal(error, settings) or ConnectionFailure(
        CONNECTION_LOST, describe_socket_error(error, settings), is_stale=is_stale
    )


def _refusal(error: BaseException, settings: ClientSettings) -> ConnectionFailure | None:
    """The failure if it comes again until somebody changes a certificate, or whom the client trusts."""
    has_shown_one = settings.cert_file is not None
    if wants := find_certificate_refusal(error, has_shown_one=has_shown_one):
        hint = "do cert_file and key_file hold what the router's clients are to show?" if has_shown_one else _SHOW_ONE
        return ConnectionFailure(UNREACHABLE, f"{settings.address.authority} {wants}", refusal_hint=hint)
    if not getattr(error, "verify_message", None) or is_not_valid_now(error):
        return None
    unknown = _BY_FILE
    if settings.ca_file is not None:
        unknown = f"the ca_file {os.fspath(settings.ca_file)} does not have the authority that signed it"
    hint = find_trust_hint(error) or unknown
    return ConnectionFailure(UNREACHABLE, describe_socket_error(error, settings), refusal_hint=hint)


def describe_socket_error(error: BaseException, settings: ClientSettings) -> str:
    """One sentence for an error of a socket to the router."""
    where = settings.address.authority
    match error:
        case socket.gaierror():
            return f"the host {settings.address.host} does not resolve: {error.strerror}"
        case ConnectionRefusedError():
            return f"{where} refuses connections: nothing listens there, or not yet"
        case TimeoutError():
            return f"{where} did not let us connect in time"
        case ConnectionError():
            return f"{where} closed the connection"
    if has_ended_early(error):
        return f"{where} closed the connection"
    verdict = getattr(error, "verify_message", None)
    if verdict:
        return f"the certificate of {where} is not trusted: {verdict}"
    if hasattr(error, "library"):  # of ssl alone
        return f"{where}: {describe_tls_error(error)}"
    return f"{where}: {getattr(error, 'strerror', None) or error}"
