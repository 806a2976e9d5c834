"""Cuts requests out of a client's bytes, and decodes their Accept fields, targets and batches. Does no I/O.

llhttp, the parser in httptools, rejects by itself: two lengths, a length beside chunks, lengths and chunk sizes that
are not plain numbers or overflow, white space before a colon, folded lines, bare CR and LF, NUL and other control
characters.

This module also rejects: transfer codings other than ``chunked``, chunks in HTTP/1.0, HTTP/0.9 and 2.0, CONNECT, a
missing or repeated Host, and endless heads and chunk extensions. It does not mistake trailers for header fields, and
ignores upgrade requests but reads their bodies.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import httptools
import orjson

from lookupdb.records import FRAMES
from lookupdb.router.batch_keys import BatchKeys
from lookupdb.router.http import problems
from lookupdb.router.http.problems import CLOSE, JSON, MAX_TARGET_BYTES, OCTETS, PERSISTENT, HttpProblem, ProblemType

# The Accept header field (RFC 9110, 12.5.1).


_MAX_CACHED_BYTES: Final = 256


class AcceptField:
    """The media types that a client accepts for values and for the answer to a batch."""

    __slots__ = ("_accepted", "_names_frames")

    def __init__(self, field: bytes) -> None:
        parts = field.decode("latin-1").lower().split(",")
        qualities = dict(_parse_range(part) for part in parts if part.strip())
        accepted = set()
        for media_type in (JSON, OCTETS):
            ranges = (media_type, media_type.split("/")[0] + "/*", "*/*")  # the most specific one decides
            if next((qualities[media_range] for media_range in ranges if media_range in qualities), 0) > 0:
                accepted.add(media_type)
        self._accepted = frozenset(accepted)
        self._names_frames = qualities.get(FRAMES, 0) > 0

    def allows(self, media_type: str) -> bool:
        """Return whether the client accepts ``media_type``, JSON or OCTETS."""
        return media_type in self._accepted

    def allows_batch(self) -> bool:
        """Return whether the client accepts a media type of batch answers."""
        return self._names_frames or JSON in self._accepted

    def prefers_frames(self, value_format: str) -> bool:
        """Return whether to answer a batch as frames: Accept names them, and values are raw or it excludes JSON."""
        return self._names_frames and (value_format == "raw" or JSON not in self._accepted)


def parse_accept(field: bytes | None) -> AcceptField | None:
    """Return the parsed field, or None if the client accepts anything."""
    if field is None or field == b"*/*" or not field.strip():
        return None
    return _parse_cached(field) if len(field) <= _MAX_CACHED_BYTES else AcceptField(field)


_parse_cached: Final = lru_cache(maxsize=256)(AcceptField)


def _parse_range(part: str) -> tuple[str, float]:
    """Return a media range and its quality. An unreadable quality counts as 1, so that no client is refused for it."""
    media_range, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return media_range, float(value)
            except ValueError:
                return media_range, 1.0
    return media_range, 1.0


# The request target, which names a resource and perhaps a key, percent-decoded exactly once.
#
# In a path, everything after ``/v1/lookup/`` is the key: ``/`` and ``+`` are literal. In a query, ``?key=…`` is decoded
# as an HTML form: ``+`` is a space. Ambiguous targets are refused, because a wrong answer is worse than none. Other
# parameters, which proxies and tracers add, are ignored. A part of the query without ``=`` is refused if the target has
# a key, because it may be the rest of that key.


LOOKUP: Final = b"/v1/lookup"
LOOKUP_KEY: Final = b"/v1/lookup/"
DATASET: Final = b"/v1/dataset"
DATASETS: Final = b"/v1/datasets/"
HEALTHZ: Final = b"/healthz"
READYZ: Final = b"/readyz"
PROBES: Final = (HEALTHZ, READYZ)
SERVER: Final = b"*"
"""``OPTIONS *`` is about the whole server."""

_MAX_SHOWN: Final = 40
_PERCENT, _QUESTION, _HASH = b"%?#"
_ABSOLUTE: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_BROKEN_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def to_origin_form(target: bytes) -> bytes:
    """Return ``target`` without scheme and authority, which servers must accept too."""
    absolute = _ABSOLUTE.match(target)
    if not absolute:
        return target
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def decode_key_in_path(raw: bytes) -> str:
    """Return the key in ``raw``, the path after ``/v1/lookup/``. Raises HttpProblem.

    ``raw`` is ASCII, because the parser refuses other bytes in a target.
    """
    # Searching for an integer takes a quarter of the time of searching for a bytes object.
    if _QUESTION in raw or _HASH in raw:
        raw, _, query = raw.partition(b"?")
        refuse_fragment(raw)
        if _read_keys(query, "? or &, write it as %3F or %26"):
            raise HttpProblem(
                problems.INVALID_TARGET,
                "the path holds a key and the query another one; leave one of them out, or write ? as %3F if it "
                "belongs to the key",
            )
    return _decode(raw) if _PERCENT in raw else raw.decode()


def decode_key_in_query(query: bytes) -> str:
    """Return the key in ``query``, the part after ``/v1/lookup?``. Raises HttpProblem."""
    if not query:
        raise HttpProblem(
            problems.INVALID_TARGET, "expected a key, as /v1/lookup/{key} or /v1/lookup?key=…; the target holds none"
        )
    keys = _read_keys(query, "&, write it as %26")
    if len(keys) > 1:
        raise HttpProblem(
            problems.INVALID_TARGET, f"the query holds {len(keys)} keys, expected one; POST looks several up"
        )
    if not keys:
        found = ", ".join(repr(name.decode("latin-1")) for name, _, _ in _split(query))[:_MAX_SHOWN]
        raise HttpProblem(problems.INVALID_TARGET, f"expected the parameter key, as /v1/lookup?key=…, found {found}")
    return _decode(keys[0].replace(b"+", b" "))


def refuse_key_in_query(query: bytes, why: str) -> None:
    """Raise HttpProblem if ``query`` has a key that does not belong there; ``why`` says where it belongs."""
    if any(name == b"key" for name, _, _ in _split(query)):
        raise HttpProblem(problems.INVALID_TARGET, f"the query holds a key, and {why}")


def split_dataset(target: bytes) -> tuple[str, bytes]:
    """Return the dataset that ``target`` names after ``/v1/datasets/``, and the target without that name. So
    ``/v1/datasets/{name}`` serves as the URL of a router of this dataset alone: ``/v1`` may follow it again."""
    name, _, rest = target[len(DATASETS) :].partition(b"/")
    return name.decode("latin-1"), b"/v1/" + (rest.removeprefix(b"v1/") or b"dataset")


def refuse_fragment(target: bytes) -> None:
    """Raise HttpProblem if ``target`` has a ``#``, which clients send only as an unescaped part of a key."""
    if _HASH in target:
        raise HttpProblem(problems.INVALID_TARGET, "the target holds #; if it belongs to the key, write it as %23")


def _read_keys(query: bytes, escape: str) -> list[bytes]:
    """Return the raw values of the parameters ``key``, and ignore other parameters.

    Raises HttpProblem for what may be an unescaped part of a key; ``escape`` says what to do about it.
    """
    refuse_fragment(query)
    parameters = _split(query)
    for name, equals, _ in parameters:
        if not (name and equals):
            found = repr(name.decode("latin-1")[:_MAX_SHOWN]) if name else "an empty one"
            raise HttpProblem(
                problems.INVALID_TARGET,
                f"expected parameters name=value in the query, found {found}; if the key holds {escape}, "
                "else leave it out",
            )
    keys = [value for name, _, value in parameters if name == b"key"]
    if b";" in query and len(keys) != sum(name == b"key" for name, _, _ in _split(query.replace(b";", b"&"))):
        raise HttpProblem(
            problems.INVALID_TARGET,
            "the query holds another key behind a semicolon; write ; as %3B if it belongs to the key, or & if it "
            "separates parameters",
        )
    return keys


def _split(query: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Return the decoded name, the ``=`` if there is one, and the raw value of each parameter."""
    parameters = (parameter.partition(b"=") for parameter in query.split(b"&"))
    return [(unquote_to_bytes(name.replace(b"+", b" ")), equals, value) for name, equals, value in parameters]


def _decode(raw: bytes) -> str:
    broken = _BROKEN_ESCAPE.search(raw)
    if broken:
        raise HttpProblem(
            problems.INVALID_TARGET,
            f"% at byte {broken.start()} of the key is not followed by two hexadecimal digits; write % as %25",
        )
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise HttpProblem(
            problems.INVALID_TARGET, f"the key is not UTF-8: {error.reason} at byte {error.start}"
        ) from None


# The body of a batch.

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
"""A JSON string. Possessive, so that the matcher keeps nothing for backtracking."""


def parse_batch(body: bytes, max_keys: int, keys_type: type[BatchKeys]) -> tuple[BatchKeys, bool]:
    """Return the distinct keys in order of first appearance, and whether a partial answer is allowed. Raises
    HttpProblem."""
    parsed = keys_type.parse(body, max_keys)
    if parsed is not None:
        return parsed
    # Refuse too many elements before parsing: small ones are some twenty times larger as objects. Commas within keys do
    # not count.
    if body.count(b",") > max_keys + 1 and _STRING.sub(b"", body).count(b",") > max_keys + 1:
        raise _too_many_keys("too many", max_keys)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HttpProblem(problems.INVALID_BODY, f"the body is not JSON: {error}") from None
    unknown = document.keys() - {"keys", "partial"} if isinstance(document, dict) else ()
    if unknown:
        raise HttpProblem(
            problems.INVALID_BODY, f'expected only "keys" and "partial", found {sorted(unknown)[0][:40]!r}'
        )
    if not isinstance(document, dict) or "keys" not in document:
        raise HttpProblem(problems.INVALID_BODY, 'expected an object such as {"keys": ["KJFK", "EGLL"]}')
    partial = document.get("partial", False)
    if not isinstance(partial, bool):
        raise HttpProblem(problems.INVALID_BODY, f'"partial" must be true or false, found {_json_type(partial)}')
    keys = document["keys"]
    if not isinstance(keys, list):
        raise HttpProblem(problems.INVALID_BODY, f'"keys" must be an array of strings, found {_json_type(keys)}')
    if len(keys) > max_keys:
        raise _too_many_keys(len(keys), max_keys)
    for place, key in enumerate(keys):
        if not isinstance(key, str):
            raise HttpProblem(problems.INVALID_BODY, f"keys[{place}] is {_json_type(key)}, expected a string")
    return keys_type(list(dict.fromkeys(keys))), partial


def _too_many_keys(found: object, max_keys: int) -> HttpProblem:
    detail = f"{found} keys, the limit is {max_keys}; send them in several batches"
    return HttpProblem(problems.TOO_MANY_KEYS, detail, members={"limit": max_keys})


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


log = logging.getLogger(__name__)

HOST: Final = "host"
AUTHORIZATION: Final = "authorization"
ACCEPT: Final = "accept"
CONTENT_TYPE: Final = "content-type"
CONTENT_ENCODING: Final = "content-encoding"
CONTENT_LENGTH: Final = "content-length"
CONNECTION: Final = "connection"
GENERATION: Final = "lookupdb-generation"
DEADLINE: Final = "lookupdb-deadline-ms"
IF_NONE_MATCH: Final = "if-none-match"
TRACEPARENT: Final = "traceparent"
ORIGIN: Final = "origin"
FETCH_SITE: Final = "sec-fetch-site"
PLAIN_FIELDS: Final = frozenset(
    (HOST, ACCEPT, AUTHORIZATION, CONNECTION, GENERATION, DEADLINE, IF_NONE_MATCH, ORIGIN, FETCH_SITE)
)
"""Fields that announce no body, upgrade or expectation."""
_CODING: Final = "transfer-encoding"
_EXPECT: Final = "expect"
_UPGRADE: Final = "upgrade"

_LISTS: Final = frozenset((ACCEPT, CONNECTION, _UPGRADE, CONTENT_ENCODING, DEADLINE, IF_NONE_MATCH, TRACEPARENT))
"""Fields that may be repeated, which joins their values to a list. A list is not a valid deadline or traceparent, so it
is ignored."""

_LOWER: Final = {
    name.encode(): name
    for name in (
        *(HOST, ACCEPT, CONTENT_TYPE, CONTENT_ENCODING, GENERATION, DEADLINE, AUTHORIZATION, IF_NONE_MATCH),
        *(CONTENT_LENGTH, _CODING, _EXPECT, CONNECTION, _UPGRADE, "proxy-connection"),
        *(TRACEPARENT, ORIGIN, FETCH_SITE),
    )
}
_IGNORED: Final = (
    "User-Agent",
    "Accept-Encoding",
    "Accept-Language",
    "Cache-Control",
    "X-Request-Id",
    "X-Forwarded-For",
)
_FIELDS: Final = (
    _LOWER
    | {name.title().encode(): name for name in _LOWER.values()}
    | {spelling.encode(): "" for name in _IGNORED for spelling in (name, name.lower())}
)
"""The fields that matter here in their usual spellings, and common fields that do not matter ("")."""

_SLASH: Final = ord("/")
_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")


_DEADLINE_MS: Final = re.compile(rb"[1-9][0-9]{0,5}")
_JSON_MEDIA_TYPES: Final = (JSON, "application/x-www-form-urlencoded")
"""``curl -d`` sends the second type for any body."""


@dataclass(frozen=True, slots=True)
class LookupFields:
    """What the header fields of a request say about a lookup or a batch."""

    generation: str | None = None
    accept: AcceptField | None = None
    deadline_ms: int | None = None
    """The client's deadline, if it is shorter than the router's."""
    condition: bytes | None = None
    """If-None-Match."""


NO_FIELDS: Final = LookupFields()


def read_fields(fields: dict[str, bytes], most_milliseconds: int) -> LookupFields:
    """Return what ``fields`` say. Ignores deadlines that are invalid or not below ``most_milliseconds``, the router's
    own deadline, which holds anyway."""
    generation, deadline, deadline_ms = fields.get(GENERATION), fields.get(DEADLINE), None
    if deadline is not None and _DEADLINE_MS.fullmatch(deadline.strip()) and int(deadline) < most_milliseconds:
        deadline_ms = int(deadline)
    return LookupFields(
        None if generation is None else generation.strip().decode("latin-1"),
        parse_accept(fields.get(ACCEPT)),
        deadline_ms,
        fields.get(IF_NONE_MATCH),
    )


def check_media_type(fields: dict[str, bytes]) -> None:
    """Accept JSON, a body without Content-Type and what ``curl -d`` sends. Raises HttpProblem for any other type."""
    if fields.get(CONTENT_TYPE) == b"application/json" and CONTENT_ENCODING not in fields:
        return  # a shortcut for nearly all requests
    media_type, *parameters = (
        part.strip() for part in fields.get(CONTENT_TYPE, b"application/json").decode("latin-1").lower().split(";")
    )
    charsets = [part.partition("=")[2].strip('" ') for part in parameters if part.startswith("charset")]
    if media_type not in _JSON_MEDIA_TYPES or any(charset not in ("utf-8", "utf8", "us-ascii") for charset in charsets):
        raise HttpProblem(
            problems.UNSUPPORTED_MEDIA_TYPE,
            f"a batch is sent with Content-Type: {JSON}, in UTF-8",
            fields={"Accept-Post": JSON},
        )
    if fields.get(CONTENT_ENCODING, b"identity").strip().lower() not in (b"identity", b""):
        raise HttpProblem(
            problems.UNSUPPORTED_MEDIA_TYPE,
            "a batch is sent without Content-Encoding",
            fields={"Accept-Encoding": "identity"},
        )


class Request:
    """One request: the relevant parts of its head, and its body. ``connection_field`` belongs to its answer."""

    __slots__ = ("accepts_anything", "body", "connection_field", "fields", "is_plain", "method", "refusal", "target")

    def __init__(self, target: bytes) -> None:
        self.method = b""
        self.target = target
        self.fields: dict[str, bytes] = {}
        """Values by lower-case name, only for the fields above."""
        self.body = b""
        self.connection_field = PERSISTENT
        self.refusal: HttpProblem | None = None
        """The answer to a request without access, whatever it requests."""
        self.accepts_anything = False
        """True if the first Accept field is ``*/*``, which many clients send; it is not kept."""
        self.is_plain = True
        """True if it is HTTP/1.1, keeps the connection open, and has none of the fields above but Host."""


class RequestReader:
    """Cuts the bytes of one connection into requests.

    Calls ``on_request`` with each complete request, and ``on_continue`` when a client waits for permission to send a
    body. ``authorize``, if access is restricted, returns the problem of an Authorization field (None if absent); a
    refused body is not read. The callbacks must not raise. ``is_partial`` is true while a request is incomplete.
    ``is_traced``: read the callers' spans.
    """

    __slots__ = (
        "_authorize",
        "_body",
        "_body_bytes",
        "_ignored",
        "_is_body_skipped",
        "_is_ended",
        "_is_in_body",
        "_known_host",
        "_max_body_bytes",
        "_on_continue",
        "_on_request",
        "_parser",
        "_request",
        "held_bytes",
        "is_partial",
    )

    def __init__(
        self,
        max_body_bytes: int,
        on_request: Callable[[Request], None],
        on_continue: Callable[[], None],
        authorize: Callable[[bytes | None], HttpProblem | None] | None = None,
        *,
        is_traced: bool = False,
    ) -> None:
        self.is_partial = False
        self._authorize = authorize
        optional = {AUTHORIZATION: authorize is not None, TRACEPARENT: is_traced}
        self._ignored = frozenset(field for field, is_read in optional.items() if not is_read)
        self._max_body_bytes = max_body_bytes
        self._on_request = on_request
        self._on_continue = on_continue
        self._known_host: bytes | None = None
        """The last valid Host."""
        self._request: Request | None = None
        self._is_in_body = False
        """True if the head is complete: further header fields are trailers."""
        self._body = bytearray()
        self._body_bytes = 0
        self._is_body_skipped = False
        """True if the parser skipped the body of a request that asked for an upgrade."""
        self.held_bytes = 0
        """Bytes that are kept of the incomplete request, accurate to a slice."""
        self._is_ended = False
        self._parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        """Read ``data``, at most SLICE_BYTES. Raises HttpProblem if the bytes are no valid request: answer it and
        close.

        Bytes after a request that closes the connection are dropped.
        """
        self.is_partial = True
        size = len(data)
        while True:
            try:
                if self._is_body_skipped:
                    self._read_skipped_body()
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # Upgrades are declined by ignoring them. The rest is read after this handler: within it, an error would
                # have a context.
                data = data[upgrade.args[0] :]
                continue
            except httptools.HttpParserError as error:
                self._raise_failure(error)
            break
        if not self.is_partial:
            return
        self.held_bytes += size
        if self._is_in_body:
            if self.held_bytes - 17 * self._body_bytes > problems.MAX_CHUNK_OVERHEAD_BYTES + problems.MAX_HEAD_BYTES:
                raise self._refuse(problems.HEAD_TOO_LARGE, "chunk extensions or trailers are too large")
        elif self.held_bytes > problems.MAX_HEAD_BYTES:
            if self._request is not None and len(self._request.target) > MAX_TARGET_BYTES:
                raise self._target_too_long()
            raise self._refuse(
                problems.HEAD_TOO_LARGE,
                f"request line and header fields are larger than {problems.MAX_HEAD_BYTES} bytes",
            )

    def close(self) -> None:
        """Drop the parser and the callbacks, which refer back here, so that nothing waits for the garbage collector."""
        self.is_partial = False
        del self._parser, self._on_request, self._on_continue, self._authorize

    def _raise_failure(self, error: httptools.HttpParserError) -> None:
        """Raise the problem found by the parser or a callback, unless a request has ended the connection."""
        cause = error.__context__
        if isinstance(cause, HttpProblem):
            raise cause
        if self._is_ended:
            return
        self._is_ended = True
        if cause is not None:
            log.error("a request could not be read", exc_info=cause)
            raise HttpProblem(problems.INTERNAL, "the router failed to read the request")
        raise HttpProblem(problems.MALFORMED, str(error))

    def _read_skipped_body(self) -> None:
        """Read the body of a request that also asked for an upgrade.

        The parser takes the bytes after such a head for the new protocol. Java's HTTP client asks for an upgrade with
        every request. A new parser reads the head again, without the upgrade.
        """
        self._is_body_skipped = False
        request = self._present_request()
        target, request.target = request.target, b""
        coded = _CODING in request.fields
        framing = b"Transfer-Encoding: chunked" if coded else b"Content-Length: " + request.fields[CONTENT_LENGTH]
        method, version = request.method, self._parser.get_http_version().encode()
        self._parser = httptools.HttpRequestParser(self)
        head = b"%b %b HTTP/%b\r\n%b\r\n%b\r\n" % (method, target, version, framing, request.connection_field)
        self._parser.feed_data(head)

    def _refuse(self, kind: ProblemType, detail: str) -> HttpProblem:
        self._is_ended = True
        return HttpProblem(kind, detail)

    def _target_too_long(self) -> HttpProblem:
        return self._refuse(problems.TARGET_TOO_LONG, f"the request target is longer than {MAX_TARGET_BYTES} bytes")

    def _body_too_large(self) -> HttpProblem:
        return self._refuse(problems.BODY_TOO_LARGE, f"the request body is larger than {self._max_body_bytes} bytes")

    def _present_request(self) -> Request:
        assert self._request is not None
        return self._request

    def on_message_begin(self) -> None:
        """Begin a request, perhaps directly after an earlier one."""
        self.is_partial = True

    def on_url(self, target: bytes) -> None:
        """Add a piece of the request target."""
        request = self._request
        if request is None:
            self._request = Request(target)
        else:
            request.target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field. Trailers are ignored."""
        field = _FIELDS.get(name)
        if field is None:
            field = _LOWER.get(name.lower())
        if not field or self._is_in_body or field in self._ignored:
            return
        request = self._present_request()
        fields = request.fields
        if field not in fields:
            if field is ACCEPT:
                if request.accepts_anything:
                    request.fields[ACCEPT] = b"*/*, " + value
                elif value == b"*/*":
                    request.accepts_anything = True
                else:
                    request.fields[ACCEPT] = value
            else:
                fields[field] = value
        elif field in _LISTS:
            fields[field] += b", " + value
        else:
            raise self._refuse(problems.MALFORMED, f"the header field {field} is repeated")

    def on_headers_complete(self) -> None:
        """Check the complete head: version, access, and whether the connection stays open."""
        self._is_in_body = True
        request = self._present_request()
        request.method = self._parser.get_method()
        fields = request.fields
        target = request.target
        if len(target) > MAX_TARGET_BYTES:
            raise self._target_too_long()
        host = fields.get(HOST)
        if host is None:
            if self._parser.get_http_version() == "1.1":
                raise self._refuse(problems.MALFORMED, "the header field Host is missing")
        elif host != self._known_host:
            if not _HOST.fullmatch(host):
                raise self._refuse(problems.MALFORMED, "the header field Host is not a host and a port")
            if len(host) <= problems.MAX_REMEMBERED_HOST_BYTES:
                self._known_host = host
        if self._authorize is not None:
            is_probe = to_origin_form(target).partition(b"?")[0] in PROBES and request.method in (b"GET", b"HEAD")
            needs_no_access = is_probe and not _has_body(fields)
            problem = None if needs_no_access else self._authorize(fields.get(AUTHORIZATION))
            if problem is not None:
                if _has_body(fields):  # which is not read
                    self._is_ended = True
                    raise problem
                request.refusal = problem
                request.is_plain = False
        if request.method == b"CONNECT":
            raise self._refuse(problems.MALFORMED, "the router is not a proxy and does not support CONNECT")
        if len(fields) != 1 or host is None or target[0] != _SLASH or not self._parser.should_keep_alive():
            request.is_plain = False
            self._check_head(request)

    def _check_head(self, request: Request) -> None:
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise self._refuse(problems.VERSION, f"expected HTTP/1.1 or HTTP/1.0, found HTTP/{version}")
        if not self._parser.should_keep_alive():
            request.connection_field = CLOSE
        elif version == "1.0":
            request.connection_field = problems.KEEP_ALIVE
        fields = request.fields
        coding = fields.get(_CODING)
        if coding is not None and version == "1.0":
            raise self._refuse(problems.MALFORMED, "HTTP/1.0 has no Transfer-Encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            raise self._refuse(problems.MALFORMED, "the only supported transfer coding is chunked")
        if int(fields.get(CONTENT_LENGTH, b"0")) > self._max_body_bytes:
            raise self._body_too_large()
        expect = fields.get(_EXPECT)
        if expect is None or version == "1.0":
            return
        if expect.strip().lower() != b"100-continue":
            raise self._refuse(problems.EXPECTATION_FAILED, "the only supported expectation is 100-continue")
        if _has_body(fields) and not self._asks_for_upgrade(fields):
            self._on_continue()

    def _asks_for_upgrade(self, fields: dict[str, bytes]) -> bool:
        return _UPGRADE in fields and bool(self._parser.should_upgrade())

    def on_body(self, piece: bytes) -> None:
        """Add a piece of the body, without chunk framing."""
        self._body_bytes += len(piece)
        if self._body_bytes > self._max_body_bytes:
            raise self._body_too_large()
        self._body += piece

    def on_message_complete(self) -> None:
        """Hand the complete request on."""
        request = self._present_request()
        if not request.is_plain:
            if _has_body(request.fields) and self._asks_for_upgrade(request.fields):
                self._is_body_skipped = True
                return
            self._is_ended = request.connection_field is CLOSE
            request.body = bytes(self._body)
            self._body = bytearray()
            self._body_bytes = 0
        self.is_partial = self._is_in_body = False
        self._request = None
        self.held_bytes = 0
        self._on_request(request)


def _has_body(fields: dict[str, bytes]) -> bool:
    return _CODING in fields or int(fields.get(CONTENT_LENGTH, b"0")) > 0
