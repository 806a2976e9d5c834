"""The request target: which resource it names, and which key, percent-decoded exactly once.

In a path everything after ``/v1/lookup/`` is the key: a ``/`` or a ``+`` is itself, escaped or not. In a query
``?key=…`` is read as HTML forms write it: ``+`` is a space. What could be read two ways is refused, never guessed:
a wrong answer is worse than no answer. Other parameters, which proxies and tracers add, are ignored. A part of the
query that is no ``name=value`` is refused where the target has a key, because it may be the rest of that key.
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
PROBES: Final = (HEALTHZ, READYZ)
SERVER: Final = b"*"
"""``OPTIONS *`` asks about the server as a whole."""

_MAX_SHOWN: Final = 40
"""Characters of a parameter in a message."""
_PERCENT, _QUESTION, _HASH = b"%?#"
_ABSOLUTE: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_BROKEN_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def to_origin_form(target: bytes) -> bytes:
    """``target`` without scheme and authority, which clients send to proxies and servers have to take."""
    absolute = _ABSOLUTE.match(target)
    if not absolute:
        return target
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def names_probe(target: bytes) -> bool:
    """Return whether ``target`` is ``/healthz`` or ``/readyz``."""
    return to_origin_form(target).partition(b"?")[0] in PROBES


def decode_key_in_path(raw: bytes) -> str:
    """The key that ``raw``, what follows ``/v1/lookup/``, stands for. Raises HttpProblem.

    ``raw`` is ASCII: the parser refuses a target with any other byte.
    """
    # A byte is sought in a quarter of the time that a bytes object of length one is.
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
    """The key that ``query``, what follows ``/v1/lookup?``, stands for. Raises HttpProblem."""
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
    """Raise HttpProblem if ``query`` holds a key where none belongs. ``why`` says where one does."""
    if any(name == b"key" for name, _, _ in _split(query)):
        raise HttpProblem(problems.INVALID_TARGET, f"the query holds a key, and {why}")


def refuse_fragment(target: bytes) -> None:
    """Raise HttpProblem if ``target`` holds a ``#``, which no client sends unless it belongs to a key."""
    if _HASH in target:
        raise HttpProblem(problems.INVALID_TARGET, "the target holds #; if it belongs to the key, write it as %23")


def _read_keys(query: bytes, escape: str) -> list[bytes]:
    """Return the values of the parameters ``key``, as they are written. Other parameters are ignored.

    What may be a part of a key that was not escaped is refused, and ``escape`` says what to do about it. Raises
    HttpProblem.
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
    """Return the name, decoded, of each parameter, its ``=`` if it has one, and its value, as it is written."""
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
