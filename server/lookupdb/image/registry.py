"""Requests to a registry: the part of the OCI distribution specification that a push needs.

Every request may be sent again: a blob that is there is not put, a manifest is the same under its name. So after an
answer that is lost, or an upload that breaks off, the same is done once more, and what had its effect is found.
"""

from __future__ import annotations

import logging
import re
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

import orjson
import urllib3

from lookupdb.errors import LookupdbError, RegistryDenied, RegistryError, UsageError
from lookupdb.image.artifact import INDEX_TYPE, MANIFEST_TYPE, Blob
from lookupdb.image.challenge import parse_challenge, token_url
from lookupdb.image.docker_config import Credentials
from lookupdb.loopback import is_loopback

log = logging.getLogger(__name__)

T = TypeVar("T")

_CONNECT_SECONDS: Final = 60
"""urllib3 sends bodies with this timeout, and a registry may take its time with a gigabyte."""
_SILENCE_SECONDS: Final = 300
"""A registry checks the digest of what it was sent before it answers."""
_FIRST_BACKOFF_SECONDS: Final = 0.25
_MAX_BACKOFF_SECONDS: Final = 10.0
_MIN_ATTEMPTS: Final = 4
_REDIRECTS: Final = urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=3)
"""Of a blob that is looked for: the registry's storage may be elsewhere. Authorization does not go there."""
_MAX_ANSWER_BYTES: Final = 4 << 20
"""Of a manifest or a token; what is longer is not ours."""
_PIECE_BYTES: Final = 64 << 10
_ANSWER_SECONDS: Final = 300.0
"""For the body of an answer, once it has begun: they are small, and a registry may send byte after byte."""
_SHOWN_CHARACTERS: Final = 300
_REPOSITORY: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_HOST: Final = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:]+\](:[0-9]{1,5})?")
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of a registry: ``host[:port]/path``."""

    host: str
    path: str

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"


def parse_repository(text: str) -> Repository:
    """The repository called ``text``. Raises UsageError; none is looked for on a registry that is not named."""
    host, _, path = text.partition("/")
    is_host = "." in host or ":" in host or host == "localhost"
    if not is_host or not _HOST.fullmatch(host) or not _REPOSITORY.fullmatch(path):
        raise UsageError(
            f"{text!r} is no repository", hint="give registry.example/path: the host, then lower case, digits, ., _, -"
        )
    return Repository(host, path)


class _Transient(Exception):
    """What may pass: ``error`` is raised when it does not."""

    def __init__(self, error: LookupdbError) -> None:
        super().__init__(str(error))
        self.error = error


class Registry:
    """The registry of ``repository``. What fails is tried again for ``patience`` seconds."""

    def __init__(
        self, repository: Repository, credentials: Credentials | None, *, plain_http: bool, patience: float
    ) -> None:
        """Raises UsageError for credentials that would cross a network in plain text."""
        if plain_http and credentials is not None and not is_loopback(f"http://{repository.host}"):
            raise UsageError(
                f"credentials for {repository.host} are not sent without TLS", hint="leave --plain-http out"
            )
        self.repository = repository
        self._scheme = "http" if plain_http else "https"
        self._credentials = credentials
        self._authorization = ""
        self._patience = patience
        self._pool = _open_pool(self._scheme, repository.host)

    def close(self) -> None:
        """Close its connections."""
        self._pool.clear()

    def has_blob(self, blob: Blob) -> bool:
        """Whether the repository holds the blob. Raises RegistryError."""
        return self._retried(lambda: self._has_blob(blob))

    def put_blob(self, blob: Blob, content: Callable[[], Iterable[bytes]]) -> bool:
        """Put the blob unless it is there; ``content()`` gives its bytes, at each attempt from the beginning on.
        Returns whether it was put. Raises RegistryError, and what ``content`` raises."""
        sent = False

        def put() -> None:
            nonlocal sent
            if not self._has_blob(blob):
                sent = True
                self._upload(blob, content())

        self._retried(put)
        return sent

    def get_index(self, tag: str) -> bytes | None:
        """The manifest or index that ``tag`` names; None if it names nothing. Raises RegistryError."""

        def get() -> bytes | None:
            headers = {"Accept": f"{INDEX_TYPE}, {MANIFEST_TYPE}"}
            status, _, body = self._send("GET", self._url(f"manifests/{tag}"), headers=headers)
            return body if self._check(f"look for {tag}", status, body, (200, 404)) == 200 else None

        return self._retried(get)

    def put_manifest(self, name: str, blob: Blob, content: bytes) -> None:
        """Put a manifest or an index under ``name``, a tag or its digest. Raises RegistryError."""

        def put() -> None:
            headers = {"Content-Type": blob.media_type}
            status, _, body = self._send("PUT", self._url(f"manifests/{name}"), headers=headers, body=content)
            self._check(f"put {name}", status, body, (201, 202))

        self._retried(put)

    def _has_blob(self, blob: Blob) -> bool:
        status, headers, body = self._send("HEAD", self._url(f"blobs/{blob.digest}"))
        found = self._check(f"look for {blob.digest}", status, body, (200, 404)) == 200
        size = headers.get("Content-Length")
        if found and size is not None and size != str(blob.size):
            raise RegistryError(
                f"{self.repository} says that {blob.digest} has {size} bytes, it has {blob.size}",
                hint="the registry's storage is damaged",
            )
        return found

    def _upload(self, blob: Blob, chunks: Iterable[bytes]) -> None:
        """In one request, which every registry takes, and not in parts, of which some demand sizes of their own."""
        status, headers, body = self._send("POST", self._url("blobs/uploads/"), body=b"")
        self._check(f"put {blob.digest}", status, body, (202,))
        location = headers.get("Location")
        if not location:
            raise RegistryError(f"{self.repository} says no place for an upload", hint="is it an OCI registry?")
        url = urljoin(self._url("blobs/uploads/"), location)
        self._check_scheme(url)
        url += ("&" if urlsplit(url).query else "?") + urlencode({"digest": blob.digest})
        fields = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
        status, _, body = self._send("PUT", url, headers=fields, body=chunks)
        self._check(f"put {blob.digest}", status, body, (201,))

    def _url(self, path: str) -> str:
        return f"{self._scheme}://{self.repository.host}/v2/{self.repository.path}/{path}"

    def _send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Iterable[bytes] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of the answer. Asked for credentials it shows them, and sends again what can be: of
        an upload the next attempt will."""
        answer = self._exchange(method, url, headers, body, self._authorization_for(url))
        if answer[0] != 401 or not self._authorize(answer[1].get("WWW-Authenticate", "")):
            return answer
        if body is not None and not isinstance(body, bytes):
            raise _Transient(RegistryDenied(f"{self.repository} asks for credentials in the middle of an upload"))
        return self._exchange(method, url, headers, body, self._authorization_for(url))

    def _exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        body: bytes | Iterable[bytes] | None,
        authorization: Mapping[str, str],
    ) -> tuple[int, Mapping[str, str], bytes]:
        fields = {**(headers or {}), **authorization}
        content: Any = body  # an iterable of bytes, too, which urllib3's types do not say
        retries = _REDIRECTS if method in ("GET", "HEAD") else False
        try:
            response = self._pool.urlopen(
                method, url, headers=fields, body=content, retries=retries, preload_content=False
            )
            try:
                return response.status, self._believed_headers(url, response), self._read(url, response)
            finally:
                response.close()  # nothing that is already read whole: that has given its connection back
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _Transient(self._unreachable(url, error)) from error

    def _believed_headers(self, url: str, response: urllib3.BaseHTTPResponse) -> Mapping[str, str]:
        """The headers of ``response``; without the wish for credentials of a host that the registry only leads to.
        Raises RegistryError if it led there without TLS."""
        for hop in response.retries.history if response.retries else ():
            url = urljoin(url, hop.redirect_location or "")
            self._check_scheme(url)
        if self._is_own(url):
            return response.headers
        return {name: value for name, value in response.headers.items() if name.lower() != "www-authenticate"}

    def _read(self, url: str, response: urllib3.BaseHTTPResponse) -> bytes:
        """The body, as far as it is to be read. Raises _Transient if it comes so slowly that it might never end."""
        deadline, body = time.monotonic() + _ANSWER_SECONDS, bytearray()
        while len(body) < _MAX_ANSWER_BYTES and (piece := response.read1(_PIECE_BYTES)):
            body += piece
            if time.monotonic() > deadline:
                late = f"{urlsplit(url).netloc} has not answered whole within {_ANSWER_SECONDS:g} seconds"
                raise _Transient(RegistryError(late))
        return bytes(body)

    def _unreachable(self, url: str, error: Exception) -> RegistryError:
        reason = getattr(error, "reason", None) or error
        return RegistryError(f"{urlsplit(url).netloc} does not answer: {str(reason)[:_SHOWN_CHARACTERS]}")

    def _authorization_for(self, url: str) -> Mapping[str, str]:
        """Nothing for another host than the registry's, to which an upload may lead."""
        return {"Authorization": self._authorization} if self._authorization and self._is_own(url) else {}

    def _is_own(self, url: str) -> bool:
        return urlsplit(url).netloc == self.repository.host

    def _authorize(self, header: str) -> bool:
        """Get what ``header`` asks for. Returns whether there is something new to show."""
        challenge, before = parse_challenge(header), self._authorization
        if challenge is None:
            return False
        if challenge.scheme == "Basic":
            self._authorization = "" if self._credentials is None else self._credentials.header
        else:
            self._authorization = f"Bearer {self._get_token(token_url(challenge, self.repository.path))}"
        return bool(self._authorization) and self._authorization != before

    def _get_token(self, url: str) -> str:
        self._check_scheme(url)
        if self._credentials is not None and urlsplit(url).scheme != "https" and not is_loopback(url):
            raise RegistryError(f"{self.repository.host} asks for credentials at {urlsplit(url).netloc} without TLS")
        fields = {} if self._credentials is None else {"Authorization": self._credentials.header}
        status, _, body = self._exchange("GET", url, None, None, fields)
        self._check("get a token to push", status, body, (200,))
        try:
            members = orjson.loads(body)
            token = members.get("token") or members["access_token"]
        except (ValueError, KeyError, AttributeError):
            token = None
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise RegistryError(f"{urlsplit(url).netloc} answers with no token for {self.repository}")
        return token

    def _check_scheme(self, url: str) -> None:
        """Raises RegistryError if a registry over TLS leads elsewhere without."""
        if urlsplit(url).scheme not in ("https", self._scheme):
            raise RegistryError(f"{self.repository.host} leads to {urlsplit(url).netloc} without TLS")

    def _check(self, action: str, status: int, body: bytes, expected: tuple[int, ...]) -> int:
        """Return ``status``, one of ``expected``. Raises _Transient, RegistryDenied, RegistryError."""
        if status in expected:
            return status
        message = f"cannot {action} in {self.repository}: it answers {status}{_explain(body)}"
        if status in (401, 403):
            raise RegistryDenied(message, hint="give credentials that may push to it: --docker-config")
        if status in _PASSING:
            raise _Transient(RegistryError(message))
        raise RegistryError(message, hint="does the repository exist, and may it hold images of this size?")

    def _retried(self, request: Callable[[], T]) -> T:
        """What ``request`` returns; it is called again while what it raises may pass: for ``patience`` seconds, and, as
        an upload may take longer than that, some times in any case."""
        failing_since, delay, attempts = 0.0, _FIRST_BACKOFF_SECONDS, 0
        while True:
            try:
                return request()
            except _Transient as failure:
                failing_since, attempts = failing_since or time.monotonic(), attempts + 1
                has_waited = time.monotonic() + delay > failing_since + self._patience
                if has_waited and attempts >= (_MIN_ATTEMPTS if self._patience else 1):
                    raise failure.error from failure
                reason = {"reason": failure.error.message, "delay": delay}
                log.warning("the registry failed, it is asked again", extra=reason)
            time.sleep(delay)
            delay = min(2 * delay, _MAX_BACKOFF_SECONDS)


def _open_pool(scheme: str, host: str) -> urllib3.PoolManager:
    """Through the proxy that the environment names, if it names one for this host."""
    settings: dict[str, Any] = {
        "num_pools": 4,
        "maxsize": 1,
        "blocksize": 1 << 20,
        "timeout": urllib3.Timeout(connect=_CONNECT_SECONDS, read=_SILENCE_SECONDS),
    }
    proxy = urllib.request.getproxies().get(scheme)
    if proxy and not is_loopback(f"{scheme}://{host}") and not urllib.request.proxy_bypass(host):
        return urllib3.ProxyManager(proxy, **settings)
    return urllib3.PoolManager(**settings)


def _explain(body: bytes) -> str:
    """What the registry says itself, on one line."""
    try:
        errors = orjson.loads(body)["errors"]
        text = "; ".join(f"{error.get('code', '')} {error.get('message', '')}".strip() for error in errors[:3])
    except (ValueError, KeyError, TypeError, AttributeError):
        text = body[:_SHOWN_CHARACTERS].decode(errors="replace")
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return f" ({line[:_SHOWN_CHARACTERS]})" if line else ""
