"""The router's batch kernels and their Python fallback give the same bytes for any request and reply."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import SAME

from lookupdb import native
from lookupdb.keys import NORMALIZATIONS, make_key_encoder
from lookupdb.records import decode_frames
from lookupdb.router.batch_keys import UNAVAILABLE, BatchKeys, BatchValues
from lookupdb.router.budget import RouterBudget
from lookupdb.router.http.problems import HttpProblem
from lookupdb.router.http.request import parse_batch
from lookupdb.router.lookups import ServedGeneration
from lookupdb.router.server_connection import ServerConnection

KERNELS = native.kernels()
assert KERNELS is not None, "conftest.py collects this module only where they are"
MAX_KEYS = 6
ENCODE = make_key_encoder(())

plain = st.text(st.sampled_from("abAB z~-/\x7f"), max_size=6)
texts = st.one_of(
    plain, st.text(max_size=5), st.sampled_from(["", " ", "ß", "ẞ ", "\x1ca\x1f", "\x85b", "é", "\u212b", "x" * 511])
)
steps = st.lists(st.sampled_from(NORMALIZATIONS), max_size=3).map(tuple)
values = st.one_of(st.none(), st.binary(max_size=12), st.sampled_from([b"", b'{"a": 1}', b"x" * 5000, b"\r\n$3\r\n"]))


def kinds() -> list[type[BatchKeys]]:
    assert KERNELS is not None
    return [BatchKeys, KERNELS.PackedKeys]


def keys_of_both(keys: list[str]) -> list[BatchKeys]:
    return [kind(keys) for kind in kinds()]


@contextmanager
def kernels_set(value: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.VARIABLE, value)
        yield


# Bodies


@pytest.mark.parametrize("count", [7, 9, 1500])
def test_more_keys_than_the_limit_are_never_counted_wrong(count: int) -> None:
    body = json.dumps({"keys": [str(number) for number in range(count)]}).encode()
    for kind in kinds():
        with pytest.raises(
            HttpProblem, match=f"^({count}|too many) keys, the limit is {MAX_KEYS}; send them in several"
        ):
            parse_batch(body, MAX_KEYS, kind)


def literal(text: str) -> st.SearchStrategy[str]:
    """``text`` as JSON may write it."""
    escaped = "".join(f"\\u{ord(character):04x}" if ord(character) < 0x10000 else character for character in text)
    return st.sampled_from([json.dumps(text), json.dumps(text, ensure_ascii=False), f'"{escaped}"'])


space = st.sampled_from(["", "", " ", "\n\t", "\r"])
elements = st.one_of(
    texts.flatmap(literal), plain.map(json.dumps), st.sampled_from(["1", "null", '"\\ud800"', '"', "NaN"])
)
members = st.one_of(
    st.lists(plain.map(json.dumps) | texts.flatmap(literal), max_size=MAX_KEYS).map(
        lambda keys: f'"keys": [{", ".join(keys)}]'
    ),
    st.lists(elements, max_size=MAX_KEYS + 2).map(lambda keys: f'"keys":[{",".join(keys)}]'),
    st.sampled_from(['"partial":true', '"partial" : false', '"partial":1', '"other":{}', '"keys":{}', '"partial":tru']),
)
bodies = st.one_of(
    st.tuples(space, st.lists(members, max_size=3), space).map(
        lambda body: f"{body[0]}{{{','.join(body[1])}}}{body[2]}".encode(errors="replace")
    ),
    st.binary(max_size=30),
    st.lists(st.sampled_from([b'{"keys":[', b'"', b"a", b",", b"]", b"}", b"\\", b":", b"\x00", b"\xff", b" "])).map(
        b"".join
    ),
)


def parse(kind: type[BatchKeys], body: bytes) -> Any:
    try:
        keys, partial = parse_batch(body, MAX_KEYS, kind)
    except HttpProblem as problem:
        return problem.body()
    return keys.to_list(), len(keys), partial


@given(bodies)
@example(b'{"keys":["a","\\u0061","b"],"partial":true} ')
@example(b'{"keys":["\\u0061","a"]}')
@example('{"keys":["ß","\\u00df","ss"]}'.encode())
@example(b'{"keys":["a"]}x')
@example(b'{"keys":["a",]}')
@example(b'{"keys":["\xff"]}')
@example(b'{"keys":["a"],"keys":["b"]}')
@example(b'{"keys":["1","2","3","4","5","6","7"]}')
@example(b'\xef\xbb\xbf{"keys":["a"]}')
@example(b'{"keys":["a\x7f"]}')
@example(b'{"keys":["\\ud83d\\ude00","\xf0\x9f\x98\x80","\\uD83D\\uDE00"]}')
@example(b'{"keys":["\\ud83d","a"]}')
@example(b'{"keys":["\\ude00\\ud83d"]}')
@example(b'{"keys":["\\ud83d\\u0061"]}')
@example(b'{"keys":["\\ud83d\\ud83d\\ude00"]}')
@example(b'{"keys":["\xed\xa0\xbd\xed\xb8\x80"]}')
@example(b'{"keys":["\xc3\\u00a9"]}')
@example(b'{"keys":["\xc0\xaf"]}')
@example(b'{"keys":["\xf4\x90\x80\x80"]}')
@example(b'{"keys":["\\u0000","\\b\\f\\n\\r\\t\\/\\\\\\""]}')
@example(b'{"keys":["\\x61"]}')
@example(b'{"keys":["\\\x06","a"]}')
@example(b'{"keys":["\\u00e"]}')
@example(b'{"keys":["\\u+0e9"]}')
@example(b'{"keys":["\\U00e9"]}')
@example(b'{"keys":["\\u00E9","\\u00e9","\xc3\xa9"]}')
@example(b'{"keys":["\\ufeff","\xef\xbb\xbf","\\uffff"]}')
@example(b'{"keys":["%b","%b"]}' % ("ж".encode() * 9000, b"\\u0436" * 9000))
@example(b'{"keys":["1",1,"\xc3\xa9"]}')
@example(b'{"\\u006beys":["a"]}')
@settings(SAME, max_examples=100)
def test_a_body_means_the_same(body: bytes) -> None:
    listed, packed = kinds()
    assert parse(packed, body) == parse(listed, body)


def test_a_plain_body_needs_no_other_parser() -> None:
    assert KERNELS is not None
    found = KERNELS.PackedKeys.parse(b' {"keys" : ["KJFK","a b", "KJFK"] , "partial":true}\n', 3)
    assert found is not None
    assert (found[0].to_list(), found[1]) == (["KJFK", "a b"], True)
    assert KERNELS.PackedKeys.parse(b'{"keys":["KJFK","a b","KJFK"]}', 2) is None


@pytest.mark.parametrize("write", [json.dumps, lambda text: json.dumps(text, ensure_ascii=False)])
def test_neither_does_one_in_another_script(write: Callable[[str], str]) -> None:
    assert KERNELS is not None
    texts = ["ключ", "\U0001f600", 'a"\\\n\x00', "é"]
    found = KERNELS.PackedKeys.parse(f'{{"keys": [{",".join(map(write, [*texts, "é"]))}]}}'.encode(), 5)
    assert found is not None
    assert found[0].to_list() == texts


# Keys by shard


def test_to_cut_many_keys_costs_no_more_than_to_group_them() -> None:
    keys = keys_of_both([f"{number}" for number in range(100_000)])[1]
    (of_shard,) = keys.group(ENCODE, (), 1)
    start = time.process_time()
    slices = [of_shard.cut(number, 1) for number in range(len(of_shard))]
    assert time.process_time() - start < 2  # one look at each key for each slice takes seven
    assert [one.positions for one in slices[-2:]] == [[99_998], [99_999]]
    assert [one.packed for one in slices[-2:]] == [b"$5\r\n99998\r\n", b"$5\r\n99999\r\n"]


def grouped(keys: BatchKeys, normalize: tuple[str, ...], shards: int) -> list[Any]:
    groups = keys.group(make_key_encoder(normalize), normalize, shards)
    found: list[Any] = []
    for group in groups:
        cut, chosen = group.cut(1, 2), group.select([index % 2 == 0 for index in range(len(group))])
        found += [(g.shard, len(g), g.packed, g.positions) for g in (group, cut, chosen)]
    return found


@given(st.lists(texts, max_size=20), steps, st.integers(1, 9))
@example(["x" * 511, "X" * 512, " " + "x" * 511, "ß" * 255 + "s", "ß" * 256], ("strip", "casefold"), 2)
@example(["\ud800", "a"], ("nfc",), 1)
@settings(SAME, max_examples=70)
def test_keys_find_the_same_shards(keys: list[str], normalize: tuple[str, ...], shards: int) -> None:
    listed, packed = (grouped(keys, normalize, shards) for keys in keys_of_both(keys))
    assert packed == listed


def test_keys_that_are_not_normalised_need_no_python() -> None:
    def encode(text: str) -> bytes:
        raise AssertionError(text)

    keys = keys_of_both(["ключ", "x" * 512, "ж" * 255, "ж" * 256, "", "a\n", "\ud800"])[1]
    [group] = keys.group(encode, (), 1)
    assert group.positions == [0, 2, 5]


# Replies


class Wire:
    """A server connection without a socket, which asked for ``expected`` keys."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.found: list[Any] = []
        self.budget = RouterBudget(1 << 20)
        self.connection = ServerConnection(self.found.append, self.found.append, self.budget)
        self.connection.use(self.found.append, self)

    def expected_keys(self) -> int:
        return self.expected

    def accept(self, index: int, size: int) -> bool:
        return True


def bulk(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


def receive(kind: str, expected: int, chunks: list[bytes]) -> tuple[list[Any], int]:
    """Return the replies that a connection reports for ``chunks``, and the budget it used in the end."""
    with kernels_set(kind):
        wire = Wire(expected)
    for chunk in chunks:
        wire.connection.data_received(chunk)
    return wire.found, wire.budget.used


def as_told(replies: list[Any]) -> list[Any]:
    """Make the replies of both kinds comparable: an error's words depend on how much had arrived by then."""
    return [
        reply.partition(":")[0]
        if isinstance(reply, str)
        else reply
        if isinstance(reply, bytes | int | None)
        else [repr(value) for value in reply]
        for reply in replies
    ]


reply_elements = values.map(bulk) | st.sampled_from([b"-ERR damaged\r\n", b":1\r\n"])
noise = st.sampled_from([b"", b"", b"", b"x", b"*2\r\n", b"\r\n"])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = sorted({place % len(data) for place in places} | {0}) if data else []
    return [data[start:end] for start, end in zip(bounds, [*bounds[1:], len(data)], strict=True)]


@given(
    st.lists(reply_elements, max_size=5),
    st.lists(st.integers(0, 1 << 16), max_size=4),
    noise,
    st.integers(-1, 1),
)
@example([bulk(b"a"), bulk(None)], [], b"", 0)
@example([bulk(b"a"), b"$01\r\nb\r\n"], [], b"", 0)
@example([bulk(b"a"), b"$-2\r\n"], [], b"", 0)
@example([bulk(b"a"), b"$9999999999\r\n"], [], b"", 0)
@example([bulk(b"a"), b"$1\r\nbb\r\n"], [], b"", 0)
@example([bulk(b"a"), b"_\r\n"], [], b"", 0)
@example([bulk(None)], [1, 1226], b"", 1)
@settings(SAME, max_examples=100)
def test_a_reply_says_the_same_however_it_is_cut(
    elements: list[bytes], places: list[int], noise: bytes, more: int
) -> None:
    expected = max(len(elements) + more, 0)
    chunks = cut(b"*%d\r\n" % len(elements) + b"".join(elements) + noise, places)
    (listed, counted), (packed, packed_counted) = (receive(kind, expected, chunks) for kind in "01")
    assert as_told(packed) == as_told(listed)
    assert packed_counted == counted


def test_a_reply_is_like_a_list() -> None:
    data = b"*3\r\n" + bulk(b"a") + bulk(None) + bulk(b"ccc")
    [reply], _ = receive("1", 3, [data])
    assert type(reply) is not list
    assert (len(reply), reply.count(None), list(reply)) == (3, 1, [b"a", None, b"ccc"])
    assert (reply[1:], reply[::-1], reply[2]) == ([None, b"ccc"], [b"ccc", None, b"a"], b"ccc")
    with pytest.raises(IndexError):
        reply[3]


# From keys and replies to the answer


def gather(keys: BatchKeys, records: list[Any], slice_keys: int, in_one_reply: bool) -> tuple[BatchValues, int]:
    """The values of ``keys``, and how many bytes they have: slice by slice as a lookup core does, from replies that
    hold other keys' values too unless ``in_one_reply``."""
    values, size = keys.make_values(), 0
    for group in keys.group(ENCODE, (), 3):
        for start in range(0, len(group), slice_keys):
            part = group.cut(start, slice_keys)
            own = [records[position] for position in part.positions]
            known = part.select([value is not UNAVAILABLE for value in own])
            values.mark_unavailable(part.select([value is UNAVAILABLE for value in own]))
            found = [value for value in own if value is not UNAVAILABLE]
            others = [] if in_one_reply else [b"another's", None]
            size += values.place(known, reply_of(keys, [*others, *found, *others]), len(others))
    return values, size


def reply_of(keys: BatchKeys, values: list[bytes | None]) -> Any:
    if isinstance(keys, BatchKeys) or len(values) % 2:
        return values  # also the kernels get lists: of replies that come in several pieces
    assert KERNELS is not None
    data = b"*%d\r\n" % len(values) + b"".join(map(bulk, values))
    return KERNELS.ShardReply.read(data, len(values)) if values else values


def generation(is_raw: bool, *names: str) -> ServedGeneration:
    return ServedGeneration(names or ("g1",), "raw" if is_raw else "json", str.encode, ())


cases = st.lists(st.tuples(texts.filter(lambda text: text.isprintable()), values | st.just(UNAVAILABLE)), max_size=12)


@given(
    cases, st.integers(1, 5), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([("g1",), ("g12", "g13")])
)
@example([("a", b"1"), ("b", None), ("ü", b"2"), ('"', None), ("c", UNAVAILABLE)], 2, True, False, True, ("g1", "g2"))
@settings(SAME, max_examples=80)
def test_an_answer_is_the_same(
    cases: list[tuple[str, Any]],
    slice_keys: int,
    in_one_reply: bool,
    is_raw: bool,
    partial: bool,
    names: tuple[str, ...],
) -> None:
    records = dict(cases)
    served = generation(is_raw, *names)
    answers: list[Any] = []
    for keys in keys_of_both(list(records)):
        values, size = gather(keys, list(records.values()), slice_keys, in_one_reply)
        listed = list(values.to_list(UNAVAILABLE))
        encoded = encode(served, keys, values, partial=partial, framed=False)
        body = b"".join(values.encode_in_pieces(start(served), keys, is_raw, partial))
        assert encoded == answer_with(body)
        answers.append((encoded, size, listed, values.unavailable_count, len(values)))
    assert answers[0] == answers[1]
    said = b'"g1"' if len(names) == 1 else b'null,"generations":' + json.dumps(names, separators=(",", ":")).encode()
    assert body.startswith(b'{"generation":%b,"found":{' % said)


@given(cases, st.integers(1, 5), st.booleans())
@example([("a", b"1"), ("b", None), ("ü", b"2" * 5000), ("c", UNAVAILABLE), ("", b"")], 2, True)
@settings(SAME, max_examples=70)
def test_an_answer_as_frames_is_the_same(cases: list[tuple[str, Any]], slice_keys: int, in_one_reply: bool) -> None:
    records = dict(cases)
    answers: list[bytes] = []
    for keys in keys_of_both(list(records)):
        values, _ = gather(keys, list(records.values()), slice_keys, in_one_reply)
        listed = list(values.to_list(UNAVAILABLE))  # a key that no record can have is missing
        encoded = encode(generation(True), keys, values, partial=True, framed=True)
        body = b"".join(values.encode_frames_in_pieces(keys))
        assert encoded == answer_with(body)
        answers.append(body)
    assert answers[0] == answers[1]
    told = decode_frames(body, list(records))
    assert told.found == {key: value for key, value in zip(records, listed, strict=True) if isinstance(value, bytes)}
    assert told.missing == [key for key, value in zip(records, listed, strict=True) if value is None]
    assert told.unavailable == [key for key, value in zip(records, listed, strict=True) if value is UNAVAILABLE]


def encode(served: ServedGeneration, keys: Any, values: Any, *, partial: bool, framed: bool) -> bytes:
    head, fields = b"Content-Length: ", b"X: y\r\n"
    encoded: bytes
    if framed:
        encoded = values.encode_frames(head, fields, keys)
    else:
        encoded = values.encode(head, fields, start(served), keys, served.value_format == "raw", partial)
    return encoded


def start(served: ServedGeneration) -> bytes:
    return b'%b,"found":{' % orjson.dumps(served.members)[:-1]


def answer_with(body: bytes) -> bytes:
    return b"Content-Length: %d\r\nX: y\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize("framed", [False, True], ids=["json", "frames"])
def test_a_key_that_is_no_text_can_be_no_answer(framed: bool) -> None:
    for keys in keys_of_both(["\ud800"]):
        with pytest.raises((UnicodeEncodeError, TypeError)):
            encode(generation(True), keys, keys.make_values(), partial=False, framed=framed)


def test_values_of_another_batch_are_refused() -> None:
    assert KERNELS is not None
    values, keys = KERNELS.PackedValues(1), KERNELS.PackedKeys(["a", "b"])
    [group] = keys.group(ENCODE, (), 1)
    calls: list[Callable[[], object]] = [
        lambda: values.place(group, [b"1", b"2"], 0),
        lambda: values.place(group, [b"1"], 0),
        lambda: values.place(group, [b"1", 2], 0),
        lambda: values.mark_unavailable(group),
        lambda: values.encode(b"", b"", b"", keys, False, False),
        lambda: values.encode_in_pieces(b"", keys, False, False),
        lambda: values.encode_frames(b"", b"", keys),
        lambda: values.encode_frames_in_pieces(keys),
        lambda: group.select([True]),
    ]
    for call in calls:
        with pytest.raises((IndexError, TypeError, ValueError)):
            call()
