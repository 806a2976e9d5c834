"""From a whole request to its exchange: which resource, which method, which keys. Decides; touches no socket."""

from __future__ import annotations

import re
from typing import Final

from lookupdb.batch_frames import MEDIA_TYPE as FRAMES
from lookupdb.route.http import problems, target
from lookupdb.route.http.accept import parse_accept
from lookupdb.route.http.answers import JSON
from lookupdb.route.http.exchanges import (
    BatchExchange,
    ClientConnection,
    ConditionalLookupExchange,
    DatasetExchange,
    Exchange,
    LookupExchange,
    OptionsExchange,
    ProbeExchange,
    RefusalExchange,
)
from lookupdb.route.http.problems import HttpProblem
from lookupdb.route.http.request import (
    ACCEPT,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    DEADLINE,
    GENERATION,
    IF_NONE_MATCH,
    Request,
)

METHODS: Final = {
    target.LOOKUP_KEY: "GET, HEAD, OPTIONS",
    target.LOOKUP: "GET, HEAD, OPTIONS, POST",
    target.DATASET: "GET, HEAD, OPTIONS",
    target.HEALTHZ: "GET, HEAD, OPTIONS",
    target.READYZ: "GET, HEAD, OPTIONS",
    target.SERVER: "GET, HEAD, OPTIONS, POST",
}
"""Resource → the methods it knows. ``LOOKUP_KEY`` stands for every path below it."""

_KEY_AT: Final = len(target.LOOKUP_KEY)
_DEADLINE_MS: Final = re.compile(rb"[1-9][0-9]{0,5}")

_JSON_MEDIA_TYPES: Final = (JSON, "application/x-www-form-urlencoded")
"""The second is what ``curl -d`` says of whatever it sends."""


def make_exchange(request: Request, connection: ClientConnection) -> Exchange:
    """The exchange that answers ``request``. Never raises: a bad request's exchange is a refusal."""
    requested = request.target
    try:
        if request.is_plain and request.method == b"GET" and requested.startswith(target.LOOKUP_KEY):
            # Nearly all requests end here; everything below would come to the same.
            return LookupExchange(connection, request.connection_field, target.decode_key_in_path(requested[_KEY_AT:]))
        return _route(request, connection)
    except HttpProblem as problem:
        return RefusalExchange(connection, request.connection_field, problem, bodyless=request.method == b"HEAD")


def _route(request: Request, connection: ClientConnection) -> Exchange:
    if request.refusal is not None:
        raise request.refusal
    requested = request.target
    if not requested.startswith(b"/"):
        requested = target.to_origin_form(requested)
    if requested.startswith(target.LOOKUP_KEY):
        if request.method == b"GET" or request.method == b"HEAD":
            return _make_lookup(request, connection, target.decode_key_in_path(requested[_KEY_AT:]))
        return _make_options(request, connection, target.LOOKUP_KEY)
    path, _, query = requested.partition(b"?")
    if path not in METHODS:
        raise HttpProblem(
            problems.NO_SUCH_RESOURCE,
            "expected /v1/lookup/{key}, /v1/lookup?key=…, /v1/lookup, /v1/dataset, /healthz or /readyz",
        )
    target.refuse_fragment(query)
    if path in target.PROBES and request.method in (b"GET", b"HEAD"):
        asks_ready, bodyless = path == target.READYZ, request.method == b"HEAD"
        return ProbeExchange(connection, request.connection_field, asks_ready=asks_ready, bodyless=bodyless)
    if path == target.DATASET and request.method in (b"GET", b"HEAD"):
        target.refuse_key_in_query(query, "/v1/dataset is about all of them; ask /v1/lookup?key=… for one")
        return DatasetExchange(connection, request.connection_field, bodyless=request.method == b"HEAD")
    if path == target.LOOKUP and request.method in (b"GET", b"HEAD"):
        return _make_lookup(request, connection, target.decode_key_in_query(query))
    if path == target.LOOKUP and request.method == b"POST":
        target.refuse_key_in_query(query, "POST takes its keys in the body; GET looks up one in the query")
        return _make_batch(request, connection)
    return _make_options(request, connection, path)


def _make_options(request: Request, connection: ClientConnection, resource: bytes) -> Exchange:
    """OPTIONS, or a method that ``resource`` does not know."""
    if request.method == b"OPTIONS":
        return OptionsExchange(connection, request.connection_field, METHODS[resource])
    allowed = METHODS[resource]
    raise HttpProblem(
        problems.METHOD_NOT_ALLOWED,
        f"expected one of {allowed}, found {request.method.decode()}",
        fields={"Allow": allowed},
    )


def _make_lookup(request: Request, connection: ClientConnection, key: str) -> LookupExchange:
    fields = request.fields
    generation, accept = _requested_generation(fields), parse_accept(fields.get(ACCEPT))
    field, bodyless = request.connection_field, request.method == b"HEAD"
    deadline_ms, condition = _shorter_deadline(request, connection), fields.get(IF_NONE_MATCH)
    if deadline_ms is None and condition is None:
        return LookupExchange(connection, field, key, generation, accept, bodyless=bodyless)
    return ConditionalLookupExchange(
        *(connection, field, key, generation, accept), deadline_ms=deadline_ms, condition=condition, bodyless=bodyless
    )


def _requested_generation(fields: dict[str, bytes]) -> str | None:
    field = fields.get(GENERATION)
    return None if field is None else field.strip().decode("latin-1")


def _shorter_deadline(request: Request, connection: ClientConnection) -> int | None:
    """Milliseconds for which the client waits, if the router would take longer. What is no such number is ignored: the
    router's own deadline holds anyway, and no lookup is refused for a hint."""
    field = request.fields.get(DEADLINE)
    if field is None or not _DEADLINE_MS.fullmatch(field.strip()):
        return None
    milliseconds = int(field)
    return milliseconds if milliseconds < connection.limits.deadline_milliseconds else None


def _make_batch(request: Request, connection: ClientConnection) -> BatchExchange:
    _check_media_type(request.fields)
    accept = parse_accept(request.fields.get(ACCEPT))
    if accept is not None and not accept.allows_batch():
        raise HttpProblem(
            problems.NOT_ACCEPTABLE, f"a batch is answered as {JSON} or {FRAMES}, and Accept rules both out"
        )
    keys, partial = connection.service.batches.parse(request.body, connection.limits.max_keys)
    generation = _requested_generation(request.fields)
    return BatchExchange(
        connection,
        request.connection_field,
        keys,
        generation,
        accept,
        partial=partial,
        body_bytes=len(request.body),
        deadline_ms=_shorter_deadline(request, connection),
    )


def _check_media_type(fields: dict[str, bytes]) -> None:
    """A body without Content-Type is taken for JSON, and so is what ``curl -d`` sends; any other type is refused."""
    if fields.get(CONTENT_TYPE) == b"application/json" and CONTENT_ENCODING not in fields:
        return  # as below, for nearly all
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
