"""RESP replies out of bytes, within bounds. No I/O.

hiredis reads what is small. It gives a reply out only once all of it is there, so a reply that turns out to be large is
read here instead, element by element: each is announced with its size before it is kept, and can be skipped.
"""

from __future__ import annotations

import io
import re
from typing import Any, Final, Protocol

import hiredis

LARGE_REPLY_BYTES: Final = 1 << 20
"""A reply of which so much has come, and which is not whole, is read element by element."""
_MAX_LINE_BYTES: Final = 4096
"""Of the line that begins an element, or is one: an error's sentence."""
_CRLF: Final = b"\r\n"
_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,8}")


class NotResp(Exception):
    """The bytes are not the reply that was asked for; the message says what is wrong, and quotes no value."""


class _Skipped:
    """The type of SKIPPED."""

    def __repr__(self) -> str:
        return "SKIPPED"


SKIPPED: Final = _Skipped()
"""Stands in a reply for a value that nobody waits for any longer."""


class ReplySink(Protocol):
    """Who waits for a large reply."""

    def expected_keys(self) -> int:
        """How many keys were asked for; 0: nothing was."""

    def accept(self, index: int, size: int) -> bool:
        """Whether the value of key ``index``, of ``size`` bytes, is to be kept."""


class ElementReader:
    """Reads one reply to a GET or MGET of ``sink``: feed it until ``is_whole``, then take ``reply``."""

    def __init__(self, sink: ReplySink) -> None:
        self._sink = sink
        self._line = b""
        self._remaining = 0
        """Bytes of the present value that have not come, its line end included."""
        self._value: io.BytesIO | None = None
        """The present value, unless it is skipped."""
        self._size = 0
        self._values: list[Any] = []
        self._expected = sink.expected_keys()
        self._is_array: bool | None = None
        self.is_whole = False

    @property
    def reply(self) -> Any:
        """As hiredis gives it, with SKIPPED where a value was not kept."""
        return self._values if self._is_array else self._values[0]

    def feed(self, data: bytes) -> int:
        """Read on; how many bytes of ``data`` belong to this reply. Raises NotResp."""
        offset, size = 0, len(data)
        view = memoryview(data)
        while offset < size and not self.is_whole:
            offset = self._read_value(view, offset) if self._remaining else self._read_line(data, offset)
        return offset

    def _read_value(self, view: memoryview, offset: int) -> int:
        piece = view[offset : offset + self._remaining]
        if self._value is not None:
            self._value.write(piece[: max(self._remaining - 2, 0)])
        self._remaining -= len(piece)
        if self._remaining < len(_CRLF):  # the line end has come, or half of it, or its other half
            line_end = _CRLF[: len(_CRLF) - self._remaining]
            if not line_end.endswith(piece[-len(line_end) :]):
                raise NotResp("a value is longer than it was said to be")
        if not self._remaining:
            self._add(SKIPPED if self._value is None else self._value.getvalue())
            self._value = None
        return offset + len(piece)

    def _read_line(self, data: bytes, offset: int) -> int:
        end = data.find(b"\n", offset)
        piece = data[offset:] if end < 0 else data[offset : end + 1]
        self._line += piece
        if len(self._line) > _MAX_LINE_BYTES:
            raise NotResp(f"a line of more than {_MAX_LINE_BYTES} bytes")
        if end >= 0:
            line, self._line = self._line, b""
            if line.find(b"\r") != len(line) - len(_CRLF):
                raise NotResp("a line that does not end")
            self._begin_element(line[:1], line[1:-2])
        return offset + len(piece)

    def _begin_element(self, kind: bytes, rest: bytes) -> None:
        if kind == b"*" and self._is_array is None:
            self._begin_array(_number(rest))
            return
        if self._is_array is None:
            self._is_array, expected = False, 1
            if self._expected != expected and kind != b"-":
                raise NotResp(f"{self._expected} keys were answered with one value")
            self._expected = expected
        if kind == b"$":
            self._begin_value(_number(rest))
        elif kind == b"-":
            self._add(hiredis.ReplyError(rest.decode(errors="replace")))
        elif kind == b"_" and not rest:
            self._add(None)
        else:
            raise NotResp("an element that is no value")

    def _begin_array(self, count: int) -> None:
        if count != self._expected:
            raise NotResp(f"answered {self._expected} keys with a list of {count}")
        self._is_array = True

    def _begin_value(self, size: int) -> None:
        if size == -1:
            self._add(None)
            return
        if size < 0:
            raise NotResp(f"a value of {size} bytes")
        self._value = io.BytesIO() if self._sink.accept(len(self._values), size) else None
        self._remaining = size + 2

    def _add(self, value: Any) -> None:
        self._values.append(value)
        self.is_whole = len(self._values) == self._expected


def _number(digits: bytes) -> int:
    """As hiredis reads it: without a sign or zeros that mean nothing."""
    if not _NUMBER.fullmatch(digits):
        raise NotResp("a size that is no number")
    return int(digits)
