"""The request target: which resource it names, and which key, percent-decoded exactly once.

In a path everything after ``/v1/lookup/`` is the key: a ``/`` or a ``+`` is itself, escaped or not. In a query
``?key=…`` is read as HTML forms write it: ``+`` is a space. Other parameters are ignored, as proxies and tracers add
them. What could be read two ways is refused, never guessed: a wrong answer is worse than no answer.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from lookupdb.route.http import problems
from lookupdb.route.http.problems import HttpProblem

LOOKUP: Final = b"/v1/lookup"
LOOKUP_KEY: Final = b"/v1/lookup/"
DATASET: Final = b"/v1/dataset"
HEALTHZ: Final = b"/healthz"
READYZ: Final = b"/readyz"
PROBES: Final = frozenset((HEALTHZ, READYZ))
SERVER: Final = b"*"
"""``OPTIONS *`` asks about the server as a whole."""

_PERCENT, _QUESTION, _HASH = b"%?#"
_ABSOLUTE: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_PARAMETER: Final = re.compile(rb"[A-Za-z0-9_.~%\[\]-]+=[^#?]*")
"""What a client or a proxy adds to a query. What is not of this form may be part of a key that was not escaped."""
_BROKEN_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def to_origin_form(target: bytes) -> bytes:
    """``target`` without scheme and authority, which clients send to proxies and servers have to take."""
    absolute = _ABSOLUTE.match(target)
    if not absolute:
        return target
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def is_probe(target: bytes) -> bool:
    """Whether ``target`` is one that load balancers ask without a token."""
    return target.partition(b"?")[0] in PROBES


def decode_key_in_path(raw: bytes) -> str:
    """The key that ``raw``, what follows ``/v1/lookup/``, stands for. Raises HttpProblem.

    ``raw`` is ASCII: the parser refuses a target with any other byte.
    """
    # A byte is sought in a quarter of the time that a bytes object of length one is.
    if _QUESTION in raw or _HASH in raw:
        raw = _strip_query(raw)
    return _decode(raw) if _PERCENT in raw else raw.decode()


def _strip_query(raw: bytes) -> bytes:
    """The key without a query, which proxies and tracers add. Raises HttpProblem for what may belong to the key."""
    key, _, query = raw.partition(b"?")
    pairs = query.split(b"&")
    if _HASH in raw or not all(map(_PARAMETER.fullmatch, pairs)):
        raise HttpProblem(
            problems.INVALID_TARGET,
            "the path already holds a key, and what follows ? or # is no query of the form name=value; "
            "if it belongs to the key, write ? as %3F and # as %23",
        )
    if any(pair.startswith(b"key=") for pair in pairs):
        raise HttpProblem(problems.INVALID_TARGET, "the path holds a key and the query another one; leave one out")
    return key


def decode_key_in_query(query: bytes) -> str:
    """The key that ``query``, what follows ``/v1/lookup?``, stands for. Other parameters are ignored. Raises
    HttpProblem."""
    if b"#" in query:
        raise HttpProblem(problems.INVALID_TARGET, "the query holds #; if it belongs to the key, write it as %23")
    pairs = query.split(b"&")
    keys = [pair[4:] for pair in pairs if pair.startswith(b"key=")]
    if len(keys) > 1:
        raise HttpProblem(
            problems.INVALID_TARGET, f"the query holds {len(keys)} keys, expected one; POST looks several up"
        )
    if not keys:
        raise HttpProblem(problems.INVALID_TARGET, "expected ?key=… in the query, or /v1/lookup/{key}")
    if not all(pair.startswith(b"key=") or _PARAMETER.fullmatch(pair) for pair in pairs):
        raise HttpProblem(
            problems.INVALID_TARGET,
            "the query holds & and what follows is no parameter of the form name=value; if & belongs to the key, write "
            "it as %26",
        )
    return _decode(keys[0].replace(b"+", b" "))


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
