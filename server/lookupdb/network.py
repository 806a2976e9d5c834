"""Connections to web servers and object stores: explain failures to users, trust certificates, and bypass proxies for
this machine.

obstore's errors nest those of its libraries; only their text has the cause.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import BadStatusLine, HTTPException
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from lookupdb.errors import UsageError, begins_redis_reply, describe_tls_error, find_certificate_refusal, speaks_no_tls
from lookupdb.wording import strip_secrets

_PANICS: Final = ("PanicException", "RustPanic")
_URL: Final = re.compile(r"https?://[^\s,\"'<>]+")
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")
_UNREACHABLE: Final = (
    (re.compile(r"dns error|failed to lookup address"), "the host {host} does not resolve"),
    (re.compile(r"ConnectionRefused"), "{host} refuses connections: nothing listens there, or not yet"),
    (re.compile(r"HostUnreachable|NetworkUnreachable"), "there is no route to {host}"),
    (re.compile(r"kind: Timeout|TimedOut"), "{host} did not answer in time"),
    (re.compile(r"IncompleteMessage|ConnectionReset|BrokenPipe"), "{host} closed the connection without an answer"),
)
"""The libraries' words for a server that is not there, and their meaning."""
_IDENTITY_SERVICES: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "metadata")
"""Hosts that give a machine in a cloud its credentials; libraries ask them if they have no others."""
_REFUSAL: Final = re.compile(r"<Code>([^<]{1,80})</Code>(?:\s*<Message>([^<]{1,400})</Message>)?")
"""An object store's reason to refuse a request. The rest of its answer may hold access keys and signatures."""
_STATUS: Final = re.compile(r"status(?: code)?: 50[0234]")


class ClientPanicked(OSError):
    """The native client of a store crashed during a request. The outcome of that request is unknown."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise ClientPanicked for a panic of native code in the block; all other exceptions pass, interruptions too.

    The class of a panic is derived from BaseException, and cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ not in _PANICS:
            raise
        raise ClientPanicked(
            f"its client crashed ({error}), because of a defect or a setting that it cannot read"
        ) from error


def describe_failure(error: BaseException) -> str:
    """Return one sentence for ``error``, without the secrets that URLs may hold."""
    text = str(error)
    host = _find_host(text)
    if lacks_credentials(error):
        return f"there are no credentials: the environment has none, and {host} gives this machine none"
    if fault := _CERTIFICATE.search(text):
        return f"the certificate of {host} is not trusted: {fault[1]}"
    if "InvalidContentType" in text:
        return f"{host} does not speak TLS, though the URL begins with https"
    if "BadScheme" in text:
        return f"plain http to {host} is not allowed"
    for pattern, sentence in _UNREACHABLE:
        if pattern.search(text):
            return sentence.format(host=host)
    if refusal := _REFUSAL.search(text):
        return ": ".join(filter(None, refusal.groups()))
    return _URL.sub(lambda url: strip_secrets(url[0]), text.split("Debug source:")[0]).strip()


def describe_socket_failure(error: BaseException, host: str) -> str:
    """Return one sentence for an error of Python's own client on a request to ``host``."""
    match error:
        case socket.gaierror():
            return f"the host {host} does not resolve"
        case ConnectionRefusedError():
            return f"{host} refuses connections: nothing listens there, or not yet"
        case TimeoutError():
            return f"{host} did not answer in time"
        case ConnectionError() | ssl.SSLEOFError():
            return f"{host} closed the connection without an answer"
        case ssl.SSLCertVerificationError():
            return f"the certificate of {host} is not trusted: {error.verify_message}"
        case ssl.SSLError() if speaks_no_tls(error):
            return f"{host} does not speak TLS, though the URL begins with https"
        case ssl.SSLError() if wants := find_certificate_refusal(error, has_shown_one=False):
            return f"{host} {wants}"
        case ssl.SSLError():
            return f"TLS with {host} has failed: {describe_tls_error(error)}"
        case OSError(errno=errno.EHOSTUNREACH | errno.ENETUNREACH):
            return f"there is no route to {host}"
        case HTTPException():
            said = str(error).strip()
            return f"{host} does not answer as a web server does: {said}"
    return getattr(error, "strerror", None) or str(error)


def is_redis_reply(error: BaseException) -> bool:
    """Return whether a Redis server answered an HTTP request."""
    return isinstance(error, BadStatusLine) and begins_redis_reply(str(error).encode())


def lacks_credentials(error: BaseException) -> bool:
    """Return whether neither the environment nor the machine has credentials."""
    return _find_host(str(error)) in _IDENTITY_SERVICES


def is_unreachable(error: BaseException) -> bool:
    """Return whether the server is absent or not ready yet, so that a retry may help."""
    text = str(error)
    if _CERTIFICATE.search(text) or lacks_credentials(error):
        return False
    return bool(_STATUS.search(text)) or any(pattern.search(text) for pattern, _ in _UNREACHABLE)


def _find_host(text: str) -> str:
    url = _URL.search(text)
    return urlsplit(url[0]).netloc.rpartition("@")[2] if url else "the server"


# Trusted certificates: those of this machine's CAs, and those of CAs in a file.


def trust_also(ca_file: str | os.PathLike[str] | None, named_by: str) -> ssl.SSLContext:
    """Return a client's TLS context that trusts this machine's CAs, and those in ``ca_file`` (PEM), if any. If the file
    cannot be used, raises UsageError, which says what it was ``named_by``."""
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"{named_by} names {os.fspath(ca_file)}, which cannot be used: {error.strerror or error}",
                hint="use a file with a certificate in PEM: -----BEGIN CERTIFICATE-----",
            ) from error
    return context


# Requests to this machine, which must bypass the environment's proxy.


_NO_PROXY: Final = urllib.request.ProxyHandler({})


def is_loopback(url: str) -> bool:
    """Return whether the host of ``url`` is this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def proxy_handlers(url: str) -> list[urllib.request.BaseHandler]:
    """Return urllib's handlers that bypass the environment's proxy if ``url`` is on this machine: a proxy's 127.0.0.1
    is another machine."""
    return [_NO_PROXY] if is_loopback(url) else []


def proxy_options(url: str) -> dict[str, str]:
    """Return obstore's options that bypass the environment's proxy if ``url`` is on this machine.

    If obstore follows a redirect to another host, it uses the environment's proxy for http only, because this option
    disables the environment's other proxy settings.
    """
    proxies = urllib.request.getproxies()
    proxy = proxies.get("http") or proxies.get("all")
    if not proxy or not is_loopback(url):
        return {}
    excluded = [urlsplit(url).hostname or "", *proxies.get("no", "").split(",")]
    return {"proxy_url": proxy, "proxy_excludes": ",".join(filter(None, excluded))}
