"""Large replies are read element by element, each announced before it is kept; what is not asked for is never kept."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from lookupdb.router.server_connection import SKIPPED, ElementReader, NotResp


class Waiting:
    """A sink that asked for ``keys`` keys and takes all values but those in ``unwanted``."""

    def __init__(self, keys: int, unwanted: frozenset[int] = frozenset()) -> None:
        self.keys = keys
        self.unwanted = unwanted
        self.announced: list[tuple[int, int]] = []

    def expected_keys(self) -> int:
        return self.keys

    def accept(self, index: int, size: int) -> bool:
        self.announced.append((index, size))
        return index not in self.unwanted


REPLY = b"*5\r\n$3\r\nabc\r\n$-1\r\n-ERR damaged\r\n$0\r\n\r\n$6\r\nd\r\ne\r\n\r\n"


def read(data: bytes, step: int, sink: Waiting) -> Any:
    reader = ElementReader(sink)
    for start in range(0, len(data), step):
        assert not reader.is_whole
        piece = data[start : start + step]
        assert reader.feed(piece) == len(piece)
    assert reader.is_whole
    return reader.reply


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_a_reply_is_as_hiredis_reads_it_however_it_is_cut(step: int) -> None:
    sink = Waiting(5)
    abc, nil, error, empty, lines = read(REPLY, step, sink)
    assert (abc, nil, empty, lines) == (b"abc", None, b"", b"d\r\ne\r\n")
    assert isinstance(error, hiredis.ReplyError)
    assert str(error) == "ERR damaged"
    assert sink.announced == [(0, 3), (3, 0), (4, 6)]


@pytest.mark.parametrize("step", [1, 4, 1000])
def test_a_value_that_nobody_waits_for_is_skipped_and_the_next_is_not(step: int) -> None:
    values = read(REPLY, step, Waiting(5, frozenset((0, 4))))
    assert values[0] is values[4] is SKIPPED
    assert values[3] == b""


def test_one_value() -> None:
    assert read(b"$5\r\nhello\r\n", 3, Waiting(1)) == b"hello"
    assert str(read(b"-LOADING\r\n", 3, Waiting(7))) == "LOADING"


def test_what_follows_is_left() -> None:
    reader = ElementReader(Waiting(1))
    assert reader.feed(b"$1\r\nx\r\n+MORE\r\n") == 7
    assert reader.is_whole


def test_what_is_no_answer_to_what_was_asked_is_refused() -> None:
    for data in (
        b"*4\r\n",
        b"*6\r\n",
        b"*-1\r\n",
        b"$1\r\nx\r\n",
        b"*5\r\n:1\r\n",
        b"*5\r\n*1\r\n",
        b"*5\r\n$x\r\n",
        b"*5\r\n$-2\r\n",
        b"*5\r\n$99999999999\r\n",
        b"*5\r\n$1\r\nxyz",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"-" + b"x" * 5000,
        b"*5\n",
    ):
        with pytest.raises(NotResp):
            ElementReader(Waiting(5)).feed(data)
