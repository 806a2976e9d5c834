"""A small synchronous client of the router's HTTP API, for `lookupdb get`."""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from http.client import HTTPException, IncompleteRead
from ipaddress import IPv6Address
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import quote, urlsplit

import orjson

from lookupdb.errors import (
    REDIS_HINT,
    KeyMissing,
    LookupFailed,
    Unavailable,
    UsageError,
    find_certificate_refusal,
    find_trust_hint,
)
from lookupdb.manifest import GENERATION
from lookupdb.network import describe_socket_failure, is_redis_reply, proxy_handlers
from lookupdb.process.launch import call_interruptibly
from lookupdb.router import budget
from lookupdb.wording import strip_secrets

# The certificates of routers that `lookupdb get` and `load` trust, and the hints for those that they do not.


_BY_FILE: Final = "give the certificate of the authority that signed it with --ca-file or in LOOKUPDB_CA_FILE"
_SHOWN_BY_OTHERS: Final = (
    "this command has no client certificate: use lookupdb.client with cert_file and key_file, or curl"
)


@dataclass(frozen=True)
class Trust:
    """The trusted certificate authorities: those of this machine, or only those in ``file`` (PEM) if that is given."""

    file: Path | None = None
    context: ssl.SSLContext = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Load the authorities. Raises UsageError if ``file`` cannot be used."""
        try:
            context = ssl.create_default_context(cafile=None if self.file is None else str(self.file))
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"--ca-file names {self.file}, which cannot be used: {error.strerror or error}",
                hint="give a file with a certificate in PEM: -----BEGIN CERTIFICATE-----",
            ) from error
        object.__setattr__(self, "context", context)

    def hint_for(self, error: BaseException) -> str | None:
        """Return a hint for a request that failed with ``error``; None if the error has nothing to do with trust."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return find_trust_hint(error) or self._missing_authority
        if not isinstance(error, ssl.SSLError):
            return None
        if find_certificate_refusal(error, has_shown_one=False):
            return _SHOWN_BY_OTHERS
        return "give its URL with http: if the router has no TLS"

    @cached_property
    def _missing_authority(self) -> str:
        return _BY_FILE if self.file is None else f"{self.file} does not have the authority that signed it"


TIMEOUT_SECONDS: Final = 30.0
"""Longest wait for the next byte of an answer."""
ANSWER_SECONDS: Final = 120.0
"""Longest wait for a complete answer."""
MAX_ANSWER_BYTES: Final = 2 * budget.MAX_ANSWER_BYTES
"""Limit for values, keys and JSON together. A router sends half as much in values, and raw ones grow by a third."""
_MAX_REASON_CHARACTERS: Final = 80
_MAX_PROBLEM_CHARACTERS: Final = 1000
_NO_GENERATION: Final = (
    "leave --generation out to query the active generation; the router's /v1/dataset lists the candidates"
)
_UNAUTHENTICATED: Final = "give this client's token with --token-file or in LOOKUPDB_TOKEN"
GENERATION_FIELD: Final = "Lookupdb-Generation"
"""Header field. In a request: the generation to query. In an answer: the generation that it comes from."""
_MAX_REFUSAL_BYTES: Final = 1 << 16
_AUTHORITY: Final = re.compile(r"(?:[^/?#]*://)?([^/?#]*).*", re.DOTALL)
"""Finds the authority even in a URL that ``urlsplit`` rejects."""
_URL_EXAMPLES: Final = "give one like http://127.0.0.1:8080, http://[::1]:8080 or https://lookups.example.com/people"
_UNPRINTED: Final = re.compile(r"[\x00-\x20\x7f]")
"""Characters that must be escaped in a URL. http.client rejects them too, but with an error like that for a bad
answer."""
BATCH_KEYS: Final = 500
"""Number of keys in the first batch."""


class ShardUnavailable(Unavailable):
    """The router serves the dataset, but cannot reach a shard that it needs. Keys of other shards may be found."""


class BatchTooLarge(LookupFailed):
    """A batch has more keys than the router allows, or its request or answer has more bytes."""

    reason = "TooLarge"


class FoundValue(NamedTuple):
    """The router's answer to a lookup of one key."""

    value: bytes
    is_json: bool
    """True if the value is JSON; False if it is raw bytes."""


class _Answer(NamedTuple):
    body: bytes
    media_type: str
    """In lower case, without parameters."""


def find_value(
    url: str, key: str, generation: str | None = None, token: str | None = None, trust: Trust | None = None
) -> FoundValue:
    """Return the unchanged bytes of the value of ``key``. ``token`` authenticates at the router.

    Raises KeyMissing, and the errors of ``find_values``.
    """
    answer = _request(f"{url.rstrip('/')}/v1/lookup?key={quote(key, safe='')}", None, generation, token, trust)
    return FoundValue(answer.body, answer.media_type == "application/json")


def check_url(url: str) -> None:
    """Raises UsageError unless ``url`` can be the URL of a router. No message shows a password."""
    if "@" in _AUTHORITY.sub(r"\1", url):  # first of all: the messages below show the URL
        raise UsageError(
            "a router's URL has no user and no password, found an @ before its host",
            hint="leave out all before the host, up to the @; give a token with --token-file",
        )
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"a router's URL begins with http:// or https://, found {url!r}")
    if not url.isascii():
        raise UsageError(f"a router's URL is ASCII, found {url!r}")
    try:
        parts = urlsplit(url)
        if "[" in parts.netloc:
            IPv6Address(parts.hostname or "")  # urlsplit takes any text there, before Python 3.11.4
        is_usable = bool(parts.hostname) and parts.port != 0 and not _UNPRINTED.search(url)
    except ValueError:
        is_usable = False
    if not is_usable:
        raise UsageError(f"a router's URL names a host, and may name a port, found {url!r}", hint=_URL_EXAMPLES)


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The router's answer to a batch of keys. Keys that are neither found nor unavailable are missing."""

    found: dict[str, Any]
    """The parsed values of the keys that exist; base64 text if the dataset's values are raw. Numbers keep all digits,
    as ``orjson.Fragment`` if Python or orjson would round them."""
    unavailable: frozenset[str]
    """Keys whose shard cannot be reached now."""


def find_values(
    url: str, keys: list[str], generation: str | None = None, token: str | None = None, trust: Trust | None = None
) -> BatchAnswer:
    """Look up ``keys`` in one request. Raises Unavailable if the router cannot be reached or serves nothing,
    LookupFailed for any other error."""
    request = orjson.dumps({"keys": keys, "partial": True})
    body = _request(f"{url.rstrip('/')}/v1/lookup", request, generation, token, trust).body
    try:
        answer = json.loads(body, parse_float=orjson.Fragment, parse_int=_digits, parse_constant=_refuse_constant)
        found, unavailable = answer["found"], frozenset(answer["unavailable"])
        is_whole = isinstance(found, dict) and unavailable.union(found, answer["missing"]).issuperset(keys)
    except RecursionError as error:
        raise LookupFailed("a value is nested too deeply to be shown", hint="look up its key alone") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _no_router(f"{strip_secrets(url)} answered 200 OK") from error
    if not is_whole:  # a key that the answer leaves out is not missing
        raise _no_router(f"{strip_secrets(url)} answered 200 OK")
    return BatchAnswer(found, unavailable)


def find_in_batches(
    url: str,
    keys: Iterable[str],
    generation: str | None = None,
    size: int = BATCH_KEYS,
    token: str | None = None,
    trust: Trust | None = None,
) -> Iterator[tuple[list[str], BatchAnswer]]:
    """Yield batches of ``keys``, in their order, with the result of ``find_values`` for each.

    If the router rejects a batch as too large, this and all later batches have half its size.
    """
    remaining = iter(keys)
    refused: list[str] = []
    while batch := refused[:size] or list(islice(remaining, size)):
        try:
            answer = find_values(url, batch, generation, token, trust)
        except BatchTooLarge:
            if len(batch) == 1:
                raise
            size = len(batch) // 2
            refused = refused or batch
            continue
        except ShardUnavailable:  # for all keys: if some were reachable, the answer would be partial
            answer = BatchAnswer({}, frozenset(batch))
        del refused[:size]
        yield batch, answer


def _digits(text: str) -> int | orjson.Fragment:
    return int(text) if len(text) < 19 else orjson.Fragment(text)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects: a router never sends one."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _request(url: str, body: bytes | None, generation: str | None, token: str | None, trust: Trust | None) -> _Answer:
    check_url(url)
    trust = trust or Trust()
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if generation:
        headers[GENERATION_FIELD] = generation
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310 - the scheme is checked above
    try:
        return call_interruptibly(_exchange, request, trust, seconds=ANSWER_SECONDS)
    except (OSError, ValueError, OverflowError, HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        description = describe_socket_failure(cause, request.host) if isinstance(cause, BaseException) else str(cause)
        hint = trust.hint_for(cause) if isinstance(cause, BaseException) else None
        if isinstance(cause, BaseException) and is_redis_reply(cause):
            hint = REDIS_HINT
        raise Unavailable(f"no answer from {strip_secrets(url)}: {description}", hint=hint) from error


def _exchange(request: urllib.request.Request, trust: Trust) -> _Answer:
    """Return the answer to ``request``. Raises the errors of ``find_values``, OSError, ValueError and HTTPException."""
    encrypted = urllib.request.HTTPSHandler(context=trust.context)
    opener = urllib.request.build_opener(_NoRedirects, encrypted, *proxy_handlers(request.full_url))
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            if GENERATION_FIELD not in response.headers:
                raise _no_router(_describe_answer(request.full_url, response.status, response.reason))
            body: bytes = response.read(MAX_ANSWER_BYTES + 1)
            if len(body) > MAX_ANSWER_BYTES:
                limit = f"{MAX_ANSWER_BYTES >> 20} MiB"
                raise _no_router(f"{strip_secrets(request.full_url)} answered with more than {limit}")
            if response.length:  # read(size) raises no error if the connection ends too early
                raise IncompleteRead(body, response.length)
            return _Answer(body, response.headers.get_content_type())
    except urllib.error.HTTPError as error:
        with error:
            body = error.read(_MAX_REFUSAL_BYTES)  # a router sends no more
            lacking = error.length if len(body) < _MAX_REFUSAL_BYTES else None
        if lacking:
            raise IncompleteRead(body, lacking) from error
        raise _refusal(error, body) from error


def _describe_answer(url: str, code: int, reason: str) -> str:
    return f"{strip_secrets(url)} answered {code} {_printable(reason, _MAX_REASON_CHARACTERS)}".rstrip()


def _printable(text: str, characters: int) -> str:
    """Return the first ``characters`` of ``text`` in one line, without terminal control characters."""
    shown = "".join(character if character.isprintable() else " " for character in text[:characters])
    return shown + "…" * (len(text) > characters)


def _no_router(answered: str) -> LookupFailed:
    hint = "is there a lookupdb router, and is this its public port?"
    return LookupFailed(f"{answered}, not as a router does", hint=hint)


def _refusal(error: urllib.error.HTTPError, body: bytes) -> LookupFailed:
    answered = _describe_answer(error.url, error.code, error.reason)
    if HTTPStatus.MULTIPLE_CHOICES <= error.code < HTTPStatus.BAD_REQUEST:  # the target may hold a password
        return LookupFailed(
            f"{answered}, a redirect, which a router never does", hint="give the URL of the router itself"
        )
    try:
        problem = orjson.loads(body)
        kind, detail, text = (
            problem["type"].rpartition("/")[2],
            problem["detail"],
            f"{problem['title']}: {problem['detail']}",
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return _no_router(answered)
    text = _printable(text, _MAX_PROBLEM_CHARACTERS)
    if kind == "missing":
        is_of_a_generation = error.code == HTTPStatus.NOT_FOUND and GENERATION_FIELD in error.headers
        return (
            KeyMissing(_printable(str(detail), _MAX_PROBLEM_CHARACTERS)) if is_of_a_generation else _no_router(answered)
        )
    if kind == "unknown-generation":
        refused = text.partition("; leave Lookupdb-Generation out")[0]  # the header is an option here
        match problem.get("active"):
            case [str(name)] if GENERATION.fullmatch(name):  # if there is exactly one
                refused = f"{refused}; {name} is active"
        return LookupFailed(f"the router answered {error.code}: {refused}", hint=_NO_GENERATION)
    if kind == "no-such-resource":
        parts = urlsplit(strip_secrets(error.url))
        hint = f"a router serves one dataset, and its paths begin with /v1: is its URL {parts.scheme}://{parts.netloc}?"
        return LookupFailed(f"the router answered {error.code}: {text}", hint=hint)
    if error.code == HTTPStatus.UNAUTHORIZED:
        return LookupFailed(f"the router answered {error.code}: {text}", hint=_UNAUTHENTICATED)
    if error.code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return BatchTooLarge(f"the router answered {error.code}: {text}")
    refusal: type[LookupFailed] = LookupFailed
    if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
        refusal = ShardUnavailable if problem.get("shard") is not None else Unavailable
    return refusal(f"the router answered {error.code}: {text}")
