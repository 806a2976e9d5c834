"""Frames: the layout, byte for byte; what was put in comes out; what is not the answer to its question is refused."""

from __future__ import annotations

import random
import struct

import pytest

from lookupdb.records import MISSING, UNAVAILABLE, InvalidFrames, decode_frames, encode_start

KEYS = ["a", "bé", "c", "d"]
BODY = (
    b"\4\0\0\0"  # four keys
    b"\1\0\0\0" + b"\3\0\0\0" + b"\1\0\0\0" + b"\1\0\0\0"  # bytes of each
    b"\2\0\0\0"
    + b"\xff\xff\xff\xff"
    + b"\0\0\0\0"
    + b"\xfe\xff\xff\xff"  # bytes of each value; -1 missing, -2 unavailable
    b"ab\xc3\xa9cd"
    b"\0\xff"
)


def test_the_layout() -> None:
    assert encode_start(KEYS, [2, MISSING, 0, UNAVAILABLE]) + b"\0\xff" == BODY


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_each_key_is_found_missing_or_unavailable(kind: type[bytes | bytearray]) -> None:
    told = decode_frames(kind(BODY), KEYS)
    assert told == ({"a": b"\0\xff", "c": b""}, ["bé"], ["d"])
    assert {type(value) for value in told.found.values()} == {bytes}


def test_no_keys() -> None:
    assert decode_frames(encode_start([], []), []) == ({}, [], [])


def test_random_records_are_decoded_as_they_were_encoded() -> None:
    chance = random.Random(1)
    for _ in range(300):
        values: list[bytes | int] = [MISSING, UNAVAILABLE, b"", chance.randbytes(chance.randrange(20))]
        records: dict[str, bytes | int] = {
            "".join(chance.choices("ab\0é€\U0001f600", k=chance.randrange(5))): chance.choice(values)
            for _ in range(chance.randrange(9))
        }
        found = {key: value for key, value in records.items() if isinstance(value, bytes)}
        sizes = [len(value) if isinstance(value, bytes) else value for value in records.values()]
        decoded = decode_frames(encode_start(records, sizes) + b"".join(found.values()), [*records])
        assert decoded.found == found
        assert decoded.missing == [key for key, value in records.items() if value == MISSING]
        assert decoded.unavailable == [key for key, value in records.items() if value == UNAVAILABLE]


@pytest.mark.parametrize("body", [*(BODY[:end] for end in range(len(BODY))), BODY + b"x", BODY + BODY])
def test_no_part_of_an_answer_is_one_nor_one_that_goes_on(body: bytes) -> None:
    with pytest.raises(InvalidFrames):
        decode_frames(body, KEYS)


@pytest.mark.parametrize(
    "keys",
    [[], ["a"], [*KEYS, "e"], [*KEYS[1:], "a"], ["x", *KEYS[1:]], ["ab", "é", "c", "d"], ["a", "b\u0301", "c", "d"]],
    ids=["none", "fewer", "more", "another order", "another", "other bounds", "another normal form"],
)
def test_an_answer_to_another_question_is_refused(keys: list[str]) -> None:
    with pytest.raises(InvalidFrames, match="not the requested ones"):
        decode_frames(BODY, keys)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ((3, 0), r"its values end at byte 25 of 24"),
        ((1, 0), r"its values end at byte 23 of 24"),
        ((2, -3), "a value has the size -3"),
        ((2, -(2**31)), "a value has the size -2147483648"),
        ((2**31 - 1, 2**31 - 1), "its values end at byte"),
        ((MISSING, UNAVAILABLE), r"its values end at byte 22 of 24"),
    ],
)
def test_values_that_are_not_of_their_sizes_are_refused(sizes: tuple[int, int], told: str) -> None:
    body = struct.pack("<5i", 2, 1, 1, *sizes) + b"ab" + b"xy"
    with pytest.raises(InvalidFrames, match=told):
        decode_frames(body, ["a", "b"])
