"""One request to a registry, or to where it leads, and its whole answer, within a time."""

from __future__ import annotations

import base64
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.connection import HTTPSConnection

from lookupdb.errors import LookupdbError, RegistryError, UsageError
from lookupdb.image.address import find_origin, follow, show_origin
from lookupdb.image.early_answer import EarlyAnswers
from lookupdb.image.words import show_line
from lookupdb.loopback import is_loopback
from lookupdb.network import describe_socket_failure
from lookupdb.tls_failures import find_trust_hint, speaks_no_tls

ANSWER_SECONDS: Final = 300.0
"""For an answer, from the request's last byte to its own, redirects and all. A registry checks the digest of what it
was sent before it answers."""
_CONNECT_SECONDS: Final = 60
"""urllib3 sends bodies with this timeout, and a registry may take its time with a gigabyte."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS: Final = 3
_MAX_ANSWER_BYTES: Final = 4 << 20
"""Of a manifest or a token; what is longer is not ours."""
_PIECE_BYTES: Final = 64 << 10
_SHOWN_CHARACTERS: Final = 300


class Transient(Exception):
    """What may pass: ``error`` is raised when it does not."""

    def __init__(self, error: LookupdbError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class RegistryAnswer:
    """What was answered, and by whom."""

    url: str
    """Of a request that was redirected, the last one."""
    status: int
    headers: Mapping[str, str]
    body: bytes
    """As far as it is to be read."""


class Exchanges:
    """Requests one after the other, over connections that are kept. ``seconds`` are for each answer."""

    def __init__(self, scheme: str, host: str, context: ssl.SSLContext, seconds: float = ANSWER_SECONDS) -> None:
        """``host`` is the registry's, which is asked with ``scheme``; ``context`` says who is believed. Raises
        UsageError for a proxy of the environment that is none."""
        self._scheme, self._host, self._seconds = scheme, host, seconds
        self._pool = _open_pool(scheme, host, context)

    def close(self) -> None:
        """Close its connections."""
        self._pool.clear()

    def ask(
        self, method: str, url: str, fields: Mapping[str, str], body: bytes | Iterable[bytes] | None = None
    ) -> RegistryAnswer:
        """The answer. Who looks for something is led to where that is, without the header Authorization if that is
        another host: the registry's storage may be elsewhere. Raises Transient, and RegistryError for being led where
        this client does not go."""
        ends_at = time.monotonic() + self._seconds
        answer = self._ask(method, url, fields, body, self._seconds)
        for _ in range(_MAX_REDIRECTS):
            location = answer.headers.get("Location")
            if method not in ("GET", "HEAD") or answer.status not in _REDIRECTS or not location:
                return answer
            following = self.follow(answer.url, location, "another place")
            if find_origin(following) != find_origin(answer.url):
                fields = {name: value for name, value in fields.items() if name != "Authorization"}
            answer = self._ask(method, following, fields, None, ends_at - time.monotonic())
        if answer.status in _REDIRECTS:
            raise RegistryError(f"{show_origin(url)} leads on more than {_MAX_REDIRECTS} times, now to another place")
        return answer

    def follow(self, base: str, reference: str, what: str) -> str:
        """The URL that ``reference``, sent as ``what``, means beside ``base``. Raises RegistryError if it is none, and
        if a registry over TLS leads elsewhere without."""
        url = follow(base, reference, what)
        if not url.startswith(("https:", f"{self._scheme}:")):
            raise RegistryError(f"{show_origin(base) or 'the registry'} leads to {show_origin(url)} without TLS")
        return url

    def _ask(
        self, method: str, url: str, fields: Mapping[str, str], body: bytes | Iterable[bytes] | None, seconds: float
    ) -> RegistryAnswer:
        content: Any = body  # an iterable of bytes, too, which urllib3's types do not say
        try:
            if seconds <= 0:
                raise TimeoutError
            response = self._pool.urlopen(
                method,
                url,
                headers=fields,
                body=content,
                retries=False,
                redirect=False,
                preload_content=False,
                timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=seconds),
            )
            try:
                if method == "GET" and response.status == 200:
                    _check_encoding(url, response.headers)
                return RegistryAnswer(url, response.status, response.headers, _read(response))
            finally:
                response.close()  # nothing that is already read whole: that has given its connection back
        except (urllib3.exceptions.ReadTimeoutError, TimeoutError) as error:
            late = f"{show_origin(url)} has not answered whole within {self._seconds:g} seconds"
            raise Transient(RegistryError(late)) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            origin = show_origin(url)
            if speaks_no_tls(_find_cause(error)):
                hint = "--plain-http speaks to a registry that has none"
                raise RegistryError(f"{origin} does not speak TLS", hint=hint) from error
            is_other = origin != self._host or isinstance(_find_cause(error), socket.gaierror)
            raise Transient(_explain_failure(origin if is_other else f"the registry {origin}", error)) from error


def _explain_failure(host: str, error: Exception) -> RegistryError:
    """What ``error`` says of ``host``, as sentences name it."""
    cause = _find_cause(error)
    if isinstance(error, urllib3.exceptions.ProxyError):
        return RegistryError(
            f"{host} is asked through a proxy, and {describe_socket_failure(cause, 'that proxy')}",
            hint="correct https_proxy or http_proxy of the environment, or name the host in no_proxy",
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        hint = "give the certificate of the authority that signed it: --ca-file"
        return RegistryError(describe_socket_failure(cause, host), hint=find_trust_hint(cause) or hint)
    if isinstance(cause, urllib3.exceptions.HTTPError):
        return RegistryError(f"{host} does not answer: {show_line(str(cause), _SHOWN_CHARACTERS)}")
    return RegistryError(show_line(describe_socket_failure(cause, host), _SHOWN_CHARACTERS))


def _find_cause(error: BaseException) -> BaseException:
    """What a library has met, beneath the layers of urllib3, whose texts show its objects."""
    while isinstance(error, urllib3.exceptions.HTTPError):
        within = [error.__cause__, getattr(error, "original_error", None), *error.args]
        cause = next((part for part in within if isinstance(part, BaseException)), None)
        if cause is None:
            break
        error = cause
    return error


def _check_encoding(url: str, headers: Mapping[str, str]) -> None:
    """Raises Transient for a body that is compressed: whether it has come whole would not be known."""
    encoding = headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        shown = show_line(encoding, _SHOWN_CHARACTERS)
        raise Transient(
            RegistryError(
                f"{show_origin(url)} answers with Content-Encoding {shown}, which was not asked for",
                hint="see what compresses answers between here and the registry",
            )
        )


def _read(response: urllib3.BaseHTTPResponse) -> bytes:
    """The body, as far as it is to be read, as it comes."""
    body = bytearray()
    while len(body) < _MAX_ANSWER_BYTES and (piece := response.read1(_PIECE_BYTES, decode_content=False)):
        body += piece
    return bytes(body)


class _Connection(EarlyAnswers):
    pass


class _TlsConnection(EarlyAnswers, HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def _open_pool(scheme: str, host: str, context: ssl.SSLContext) -> urllib3.PoolManager:
    """Through the proxy that the environment names, if it names one for this host."""
    settings: dict[str, Any] = {"num_pools": 4, "maxsize": 1, "blocksize": 1 << 20, "ssl_context": context}
    proxy = urllib.request.getproxies().get(scheme)
    if proxy and not is_loopback(f"{scheme}://{host}") and not urllib.request.proxy_bypass(host):
        try:
            pool: urllib3.PoolManager = urllib3.ProxyManager(proxy, proxy_headers=_show_itself(proxy), **settings)
        except (urllib3.exceptions.HTTPError, ValueError) as error:  # its text may show a password
            raise UsageError(
                f"the proxy that the environment names for {scheme} is no URL of http or https",
                hint=f"correct {scheme}_proxy, or name {host} in no_proxy",
            ) from error
    else:
        pool = urllib3.PoolManager(**settings)
    pool.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
    return pool


def _show_itself(proxy: str) -> dict[str, str]:
    """The headers for a proxy whose URL has a name and a password."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    shown = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(shown).decode()}"}
