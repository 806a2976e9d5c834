"""The request target: which resource it names, and which key, percent-decoded exactly once.

In a path everything after ``/v1/lookup/`` is the key: a ``/`` or a ``+`` is itself, escaped or not. In a query
``?key=…`` is read as HTML forms write it: ``+`` is a space. What could be read two ways is refused, never guessed:
a wrong answer is worse than no answer.
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
SERVER: Final = b"*"
"""``OPTIONS *`` asks about the server as a whole."""

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


def decode_key_in_path(raw: bytes) -> str:
    """The key that ``raw``, what follows ``/v1/lookup/``, stands for. Raises HttpProblem.

    ``raw`` is ASCII: the parser refuses a target with any other byte.
    """
    # A byte is sought in a quarter of the time that a bytes object of length one is.
    if _QUESTION in raw or _HASH in raw:
        raise HttpProblem(
            problems.INVALID_TARGET,
            "the path already holds a key and ? or # follows; if that belongs to the key, write it as %3F or %23",
        )
    return _decode(raw) if _PERCENT in raw else raw.decode()


def decode_key_in_query(query: bytes) -> str:
    """The key that ``query``, what follows ``/v1/lookup?``, stands for. Raises HttpProblem."""
    if b"#" in query:
        raise HttpProblem(problems.INVALID_TARGET, "the query holds #; if it belongs to the key, write it as %23")
    pairs = [pair.partition(b"=") for pair in query.split(b"&")]
    keys = [value for name, equals, value in pairs if equals and name == b"key"]
    if len(keys) > 1:
        raise HttpProblem(
            problems.INVALID_TARGET, f"the query holds {len(keys)} keys, expected one; POST looks several up"
        )
    if not keys or len(pairs) > 1:
        raise HttpProblem(
            problems.INVALID_TARGET,
            "expected ?key=… and nothing else in the query; if & belongs to the key, write it as %26",
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
