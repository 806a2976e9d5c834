"""Lookups of RESP natively and in Python: the same keys out of any bytes, the same replies out of any values."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.examples import SAME
from support.resp import command

from lookupdb import native
from lookupdb.keys import make_key_encoder
from lookupdb.resp.requests import CommandLimits, ProtocolError
from lookupdb.router.batch_keys import GETS, UNAVAILABLE, BatchKeys
from lookupdb.router.resp.reader import CommandReader, LookupCommands


def _kernels() -> ModuleType:
    module = native.kernels()
    assert module is not None, "this module is not collected without kernels"
    return module


KINDS: tuple[type[BatchKeys], type[BatchKeys]] = (BatchKeys, _kernels().PackedKeys)

keys = st.one_of(
    st.sampled_from([b"", b"a", b"\r\n", b"\xff\xfe", b"x" * 511, b"x" * 512, "é".encode(), b'"', b"\\", b"a b"]),
    st.binary(max_size=8),
)
commands = st.one_of(
    st.tuples(st.sampled_from([b"GET", b"get", b"gEt"]), keys).map(lambda words: command(*words)),
    st.tuples(st.sampled_from([b"MGET", b"mget"]), st.lists(keys, max_size=4)).map(
        lambda words: command(words[0], *words[1])
    ),
    st.sampled_from(
        [command("PING"), b"PING\r\n", b"*0\r\n", b"*2\r\n$3\r\nGET\r\n$01\r\na\r\n", b"*16385\r\n", b"*99"]
    ),
    st.lists(st.sampled_from([b"*", b"$", b"\r", b"\n", b"\r\n", b"1", b"0", b"3", b"GET", b"a"])).map(b"".join),
)
streams = st.lists(commands, max_size=5).map(b"".join)


LIMITS = CommandLimits(max_arguments=100_001, max_request_bytes=1 << 20, max_inline_bytes=1 << 16)
NARROW = CommandLimits(max_arguments=3, max_request_bytes=64, max_inline_bytes=16)


def read(keys_type: type[BatchKeys], pieces: list[bytes], limits: CommandLimits) -> list[Any]:
    """Return the commands in ``pieces``, each GET by itself; then why the rest is refused, or if it is incomplete."""
    found: list[Any] = []
    reader = CommandReader(keys_type, limits)
    try:
        for piece in pieces:
            reader.feed(piece)
            reader.begin_turn()
            while (request := reader.next()) is not None or reader.has_more:
                reader.begin_turn()
                if isinstance(request, LookupCommands):
                    words = request.keys.to_list()
                    found += [("GET", word) for word in words] if request.kind == GETS else [("MGET", *words)]
                elif request is not None:
                    found.append(tuple(request))
    except ProtocolError as problem:
        return [*found, str(problem)]
    return [*found, reader.is_partial, reader.is_empty]


def in_two(data: bytes, at: int) -> list[bytes]:
    return [piece for piece in (data[:at], data[at:]) if piece]


@SAME
@given(streams, st.integers(0, 400), st.integers(0, 400), st.sampled_from([LIMITS, NARROW]))
@example(command("MGET", *["k"] * 16_383), 0, 100_000, LIMITS)
@example(command("MGET", *["k"] * 16_384), 0, 100_000, LIMITS)
@example(command("GET", "k") * 600, 0, 5_000, LIMITS)
def test_the_same_commands_are_read_from_the_same_bytes(
    data: bytes, removed: int, at: int, limits: CommandLimits
) -> None:
    for part in (data, data[: len(data) - removed]):
        native_reads, python_reads = (read(kind, in_two(part, at), limits) for kind in KINDS)
        assert native_reads == python_reads


def test_damaged_streams() -> None:
    chance = random.Random(7)
    whole = command("GET", "a") * 2 + command("MGET", "abc", "é") + command("PING")
    for _ in range(5_000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 3)):
            data[chance.randrange(len(data))] = chance.choice(b"*$\r\n0123456789GETMgx\xff")
        pieces = in_two(bytes(data), chance.randrange(len(data)))
        assert read(KINDS[0], pieces, LIMITS) == read(KINDS[1], pieces, LIMITS), pieces


@SAME
@given(st.lists(keys, min_size=1, max_size=6), st.sampled_from([(), ("strip", "lowercase")]), st.integers(1, 5))
def test_keys_are_grouped_alike(words: list[bytes], normalize: tuple[str, ...], shards: int) -> None:
    encode = make_key_encoder(normalize)
    groups = [
        [
            (group.shard, group.packed, group.positions)
            for group in keys_type.from_bytes(words).group(encode, normalize, shards)
        ]
        for keys_type in KINDS
    ]
    assert groups[0] == groups[1]


def test_what_is_no_utf_8_is_a_key_that_no_record_has() -> None:
    for keys_type in KINDS:
        made = keys_type.from_bytes([b"\xff", b"a", b"\xc3"])
        assert len(made) == 3
        assert [group.positions for group in made.group(make_key_encoder(()), (), 1)] == [[1]]


def fill(keys_type: type[BatchKeys], found: list[Any]) -> Any:
    """Values for keys that are all of one shard."""
    made = keys_type.from_bytes([b"k%d" % number for number in range(len(found))])
    values = made.make_values()
    for group in made.group(make_key_encoder(()), (), 1):
        own = [found[position] for position in group.positions]
        are_known = [value is not UNAVAILABLE for value in own]
        values.place(group.select(are_known), [value for value in own if value is not UNAVAILABLE], 0)
        values.mark_unavailable(group.select([not is_known for is_known in are_known]))
    return values


def expected(found: list[Any], nil: bytes, error: bytes, *, is_list: bool) -> bytes:
    """The definition."""
    replies = [
        nil if value is None else error if value is UNAVAILABLE else b"$%d\r\n%b\r\n" % (len(value), value)
        for value in found
    ]
    return (b"*%d\r\n" % len(found) if is_list else b"") + b"".join(replies)


@pytest.mark.parametrize("is_list", [True, False])
@SAME
@given(
    st.lists(
        st.one_of(
            st.none(),
            st.just(UNAVAILABLE),
            st.binary(max_size=20),
            st.sampled_from([b"v" * 4095, b"v" * 4096, b"v" * 70_000]),
        ),
        max_size=8,
    )
)
def test_replies_are_the_same_in_one_piece_and_in_several(is_list: bool, found: list[Any]) -> None:
    for nil in (b"$-1\r\n", b"_\r\n"):
        wanted = expected(found, nil, b"-UNAVAILABLE x\r\n", is_list=is_list)
        for keys_type in KINDS:
            values = fill(keys_type, found)
            assert values.found_count == sum(isinstance(value, bytes) for value in found)
            assert fill(keys_type, found).encode_replies(is_list, nil, b"-UNAVAILABLE x\r\n") == wanted
            pieces = values.encode_replies_in_pieces(is_list, nil, b"-UNAVAILABLE x\r\n")
            assert b"".join(pieces) == wanted
            if any(found):
                assert max(map(len, pieces)) <= max(70_000, 1 << 17)
