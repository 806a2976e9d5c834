"""Requests to a registry: the part of the OCI distribution specification that a push needs.

Every request may be sent again: a blob that is there is not put, a manifest is the same under its name. So after an
answer that is lost, or an upload that breaks off, the same is done once more, and what had its effect is found.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import orjson

from lookupdb.authorities import trust_also
from lookupdb.errors import RegistryDenied, RegistryError, UsageError
from lookupdb.image.address import add_query, find_origin, is_host_and_port, show_origin
from lookupdb.image.artifact import INDEX_TYPE, MANIFEST_TYPE, Blob
from lookupdb.image.challenge import parse_challenge, token_url
from lookupdb.image.docker_config import Credentials
from lookupdb.image.exchange import ANSWER_SECONDS, Exchanges, RegistryAnswer, Transient
from lookupdb.image.words import show_line
from lookupdb.loopback import is_loopback

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_BACKOFF_SECONDS: Final = 0.25
_MAX_BACKOFF_SECONDS: Final = 10.0
_MIN_ATTEMPTS: Final = 4
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
    if not is_host or not _HOST.fullmatch(host) or not is_host_and_port(host) or not _REPOSITORY.fullmatch(path):
        raise UsageError(
            f"{text!r} is no repository", hint="give registry.example/path: the host, then lower case, digits, ., _, -"
        )
    return Repository(host, path)


class Registry:
    """The registry of ``repository``. What fails is tried again for ``patience`` seconds."""

    def __init__(
        self,
        repository: Repository,
        credentials: Credentials | None,
        *,
        plain_http: bool,
        patience: float,
        ca_file: Path | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """``ca_file`` has authorities (PEM) that are believed besides this machine's. Raises UsageError if it cannot be
        used, and for credentials that would cross a network in plain text."""
        if plain_http and credentials is not None and not is_loopback(f"http://{repository.host}"):
            raise UsageError(
                f"credentials for {repository.host} are not sent without TLS", hint="leave --plain-http out"
            )
        self.repository = repository
        self._scheme = "http" if plain_http else "https"
        self._credentials = credentials
        self._authorization = ""
        self._patience = patience
        self._exchanges = Exchanges(self._scheme, repository.host, trust_also(ca_file, "--ca-file"), answer_seconds)

    def close(self) -> None:
        """Close its connections."""
        self._exchanges.close()

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
            answer = self._send("GET", self._url(f"manifests/{tag}"), headers=headers)
            return answer.body if self._check(f"look for {tag}", answer, (200, 404)) == 200 else None

        return self._retried(get)

    def put_manifest(self, name: str, blob: Blob, content: bytes) -> None:
        """Put a manifest or an index under ``name``, a tag or its digest. Raises RegistryError."""

        def put() -> None:
            headers = {"Content-Type": blob.media_type}
            answer = self._send("PUT", self._url(f"manifests/{name}"), headers=headers, body=content)
            self._check(f"put {name}", answer, (201, 202))

        self._retried(put)

    def _has_blob(self, blob: Blob) -> bool:
        answer = self._send("HEAD", self._url(f"blobs/{blob.digest}"))
        found = self._check(f"look for {blob.digest}", answer, (200, 404)) == 200
        length = answer.headers.get("Content-Length")
        if found and length is not None and not _is_size(length, blob.size):
            raise RegistryError(
                f"{self.repository} says that {blob.digest} has {show_line(length, _SHOWN_CHARACTERS)} bytes, it has"
                f" {blob.size}",
                hint="the registry's storage is damaged",
            )
        return found

    def _upload(self, blob: Blob, chunks: Iterable[bytes]) -> None:
        """In one request, which every registry takes, and not in parts, of which some demand sizes of their own."""
        answer = self._send("POST", self._url("blobs/uploads/"), body=b"")
        self._check(f"put {blob.digest}", answer, (202,))
        location = answer.headers.get("Location")
        if not location:
            raise RegistryError(f"{self.repository} says no place for an upload", hint="is it an OCI registry?")
        place = self._exchanges.follow(answer.url, location, "the place of an upload")
        fields = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
        answer = self._send("PUT", add_query(place, {"digest": blob.digest}), headers=fields, body=chunks)
        self._check(f"put {blob.digest}", answer, (201,))

    def _url(self, path: str) -> str:
        return f"{self._scheme}://{self.repository.host}/v2/{self.repository.path}/{path}"

    def _send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Iterable[bytes] | None = None,
    ) -> RegistryAnswer:
        """The answer. Asked for credentials it shows them, and sends again what can be: of an upload the next attempt
        will. A host that the registry only leads to gets none, whatever it asks for."""
        answer = self._exchanges.ask(method, url, {**(headers or {}), **self._authorization_for(url)}, body)
        if answer.status != 401 or not self._is_own(answer.url) or not self._authorize(answer):
            return answer
        if body is not None and not isinstance(body, bytes):
            raise Transient(RegistryDenied(f"{self.repository} asks for credentials in the middle of an upload"))
        return self._exchanges.ask(method, url, {**(headers or {}), **self._authorization_for(url)}, body)

    def _authorization_for(self, url: str) -> Mapping[str, str]:
        """Nothing for another host than the registry's, to which an upload may lead."""
        return {"Authorization": self._authorization} if self._authorization and self._is_own(url) else {}

    def _is_own(self, url: str) -> bool:
        return find_origin(url) == find_origin(self._url(""))

    def _authorize(self, answer: RegistryAnswer) -> bool:
        """Get what the registry's ``answer`` asks for. Returns whether there is something new to show."""
        challenge, before = parse_challenge(answer.headers.get("WWW-Authenticate", "")), self._authorization
        if challenge is None:
            return False
        if challenge.scheme == "Basic":
            self._authorization = "" if self._credentials is None else self._credentials.header
        else:
            realm = self._exchanges.follow("", challenge.realm, f"the realm of tokens for {self.repository}")
            self._authorization = f"Bearer {self._get_token(token_url(realm, challenge, self.repository.path))}"
        return bool(self._authorization) and self._authorization != before

    def _get_token(self, url: str) -> str:
        if self._credentials is not None and not url.startswith("https:") and not is_loopback(url):
            raise RegistryError(f"{self.repository.host} asks for credentials at {show_origin(url)} without TLS")
        answer = self._exchanges.ask(
            "GET", url, {} if self._credentials is None else {"Authorization": self._credentials.header}
        )
        self._check("get a token to push", answer, (200,))
        try:
            members = orjson.loads(answer.body)
            token = members.get("token") or members["access_token"]
        except (ValueError, KeyError, AttributeError):
            token = None
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise RegistryError(f"{show_origin(url)} answers with no token for {self.repository}")
        return token

    def _check(self, action: str, answer: RegistryAnswer, expected: tuple[int, ...]) -> int:
        """Return the status, one of ``expected``. Raises Transient, RegistryDenied, RegistryError."""
        status = answer.status
        if status in expected:
            return status
        message = f"cannot {action} in {self.repository}: it answers {status}{_explain(answer.body)}"
        if status in (401, 403):
            raise RegistryDenied(message, hint="give credentials that may push to it: --docker-config")
        if status in _PASSING:
            raise Transient(RegistryError(message))
        raise RegistryError(message, hint="does the repository exist, and may it hold images of this size?")

    def _retried(self, request: Callable[[], T]) -> T:
        """What ``request`` returns; it is called again while what it raises may pass: for ``patience`` seconds, and, as
        an upload may take longer than that, some times in any case."""
        failing_since, delay, attempts = 0.0, _FIRST_BACKOFF_SECONDS, 0
        while True:
            try:
                return request()
            except Transient as failure:
                failing_since, attempts = failing_since or time.monotonic(), attempts + 1
                has_waited = time.monotonic() + delay > failing_since + self._patience
                if has_waited and attempts >= (_MIN_ATTEMPTS if self._patience else 1):
                    failure.error.hint = failure.error.hint or (
                        f"what fails is tried again for {self._patience:g} seconds, and longer by --registry-patience"
                    )
                    raise failure.error from failure
                reason = {"reason": failure.error.message, "delay": delay}
                log.warning("the registry failed, it is asked again", extra=reason)
            time.sleep(delay)
            delay = min(2 * delay, _MAX_BACKOFF_SECONDS)


def _is_size(length: str, size: int) -> bool:
    """Whether a Content-Length says ``size``: it may be repeated, and have zeros before it."""
    numbers = [number.strip(" \t") for number in length.split(",")]
    return all(re.fullmatch("[0-9]{1,32}", number) and int(number) == size for number in numbers)


def _explain(body: bytes) -> str:
    """What the registry says itself, on one line."""
    try:
        errors = orjson.loads(body)["errors"]
        text = "; ".join(f"{error.get('code', '')} {error.get('message', '')}".strip() for error in errors[:3])
    except (ValueError, KeyError, TypeError, AttributeError):
        text = body[:_SHOWN_CHARACTERS].decode(errors="replace")
    line = show_line(text, _SHOWN_CHARACTERS)
    return f" ({line})" if line else ""
