"""Requests as bytes: GET of one key, POST of a batch. What can be written beforehand is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import quote

import orjson

from lookupdb.load.key_choice import KeyChooser
from lookupdb.load.target import LoadTarget


class RequestMaker(Protocol):
    """Makes one request after another."""

    def make(self) -> tuple[bytes, int]:
        """A request, and how many keys it asks for."""


class SingleRequests:
    """GET /v1/lookup/{key}."""

    def __init__(self, target: LoadTarget, keys: Sequence[str], chooser: KeyChooser) -> None:
        self._choose = chooser.choose
        self._begin = f"GET {target.path}/v1/lookup".encode()
        self._end = b" HTTP/1.1\r\n" + target.head + b"\r\n"
        self._keys = [quote_key(key) for key in keys]

    def make(self) -> tuple[bytes, int]:
        """A request, and 1."""
        place = self._choose()
        key = self._keys[place] if isinstance(place, int) else quote_key(place)
        return b"%b%b%b" % (self._begin, key, self._end), 1


class BatchRequests:
    """POST /v1/lookup."""

    def __init__(
        self, target: LoadTarget, keys: Sequence[str], chooser: KeyChooser, size: int, *, partial: bool
    ) -> None:
        self._choose, self._size = chooser.choose_batch, size
        self._head = (
            f"POST {target.path}/v1/lookup HTTP/1.1\r\n".encode()
            + target.head
            + b"Content-Type: application/json\r\nContent-Length: "
        )
        self._end = b'],"partial":true}' if partial else b"]}"
        self._keys = [orjson.dumps(key) for key in keys]

    def make(self) -> tuple[bytes, int]:
        """A request, and how many keys it asks for."""
        places = self._choose(self._size)
        keys = [self._keys[place] if isinstance(place, int) else orjson.dumps(place) for place in places]
        body = b'{"keys":[' + b",".join(keys) + self._end
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body), len(keys)


def quote_key(key: str) -> bytes:
    """What follows ``/v1/lookup`` for ``key``. A key that clients or proxies might tidy away in a path is asked for in
    the query."""
    quoted = quote(key, safe="").encode()
    return b"?key=" + quoted if "/" in key or key in ("", ".", "..") else b"/" + quoted


def make_requests(
    target: LoadTarget, keys: Sequence[str], chooser: KeyChooser, batch: int, *, partial: bool
) -> RequestMaker:
    """What makes requests of ``batch`` keys."""
    if batch == 1:
        return SingleRequests(target, keys, chooser)
    return BatchRequests(target, keys, chooser, batch, partial=partial)


def seeded(name: str, seed: int, process: int) -> random.Random:
    """The random numbers that one sender draws for one purpose."""
    return random.Random(f"{name} {seed} {process}")  # noqa: S311 - not a secret
