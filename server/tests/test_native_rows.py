"""The native row kernels and Python's parsers make the same of any bytes: records, sample, rejected rows, or error."""

from __future__ import annotations

import ast
import os
import time
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.crews import thread_crew
from support.examples import SAME
from support.sources import Read, dataset, read

from lookupdb import native
from lookupdb.builder import csv_rows, json_rows
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import LookupdbError

__all__ = ["thread_crew"]

WINDOWS: Final = st.sampled_from([1, 7, 64, 1 << 20])
"""The number of bytes read at once: rows begin in one window and end in another."""
SLOW: Final = settings(
    SAME,
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of sources and scratch files."""
    return tmp_path_factory.mktemp("rows")


def outcomes(folder: Path, spec: DatasetSpec, window: int, parallel_from: int = 1 << 62) -> list[Read | str]:
    """Read natively and by Python: return records, or an error with its hint."""
    found: list[Read | str] = []
    for kind in ("1", "0"):
        with (
            patch.dict(os.environ, {native.VARIABLE: kind}),
            patch.object(json_rows, "_NATIVE_WINDOW", window),
            patch.object(csv_rows, "_WINDOW", window),
            patch.object(csv_rows, "_ROW_END_WINDOW", window),
        ):
            try:
                found.append(read(spec, folder / "scratch", parallel_from=parallel_from))
            except LookupdbError as error:
                found.append(f"{type(error).__name__}: {error}")
    return found


@cache
def spec_of(folder: Path, name: str, options: str) -> DatasetSpec:
    """The spec with ``options``, a literal."""
    return dataset(folder, name, **ast.literal_eval(options))


def assert_equal(folder: Path, name: str, options: dict[str, Any], content: bytes, window: int) -> None:
    (folder / name).write_bytes(content)
    by_kernel, by_python = outcomes(folder, spec_of(folder, name, repr(options)), window)
    assert by_kernel == by_python


CHARACTERS: Final = [
    *"aBk /\x7fé🙂İ\u0085\x1f\x01",
    *("\\n", "\\t", "\\b", "\\f", "\\r", "\\/", '\\"', "\\\\", "\\u0041", "\\u00e9", "\\u001f", "\\u0000"),
    *("\\ud83d\\ude00", "\\ud800", "\\udc00\\ud800", "\\x", "\\u12", "\x1c"),
]
STRINGS: Final = st.lists(st.sampled_from(CHARACTERS), max_size=6).map(lambda parts: f'"{"".join(parts)}"')
NUMBERS: Final = st.sampled_from(
    ["0", "-0", "7", "-1", "1.50", "1E5", "1e+9", "0.0", "-0.0", "1e400", "18446744073709551616", "9" * 40]
    + ["01", "-", "1.", ".5", "1e", "+1", "NaN", "Infinity", "0x1"]
)
SPACE: Final = st.sampled_from(["", "", "", " ", "\t", "\r", " \t "])
NAMES: Final = st.sampled_from(['"k"', '"v"', '"w"', '"k"', '"v"', '"\\u006b"', '"x.y"', '"é"', '""', '"\\n"'])


def in_brackets(parts: list[str], brackets: str, space: str) -> str:
    return brackets[0] + space + f"{space},".join(parts) + space + brackets[1]


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.builds(lambda name, space, value: f"{name}{space}:{space}{value}", NAMES, SPACE, values)
    return st.builds(in_brackets, st.lists(members, max_size=4), st.just("{}"), SPACE)


def arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(in_brackets, st.lists(values, max_size=3), st.just("[]"), SPACE)


VALUES: Final = st.recursive(
    st.one_of(STRINGS, NUMBERS, st.sampled_from(["true", "false", "null", "nul"])),
    lambda values: st.one_of(objects(values), arrays(values)),
    max_leaves=6,
)
ROWS: Final = st.builds(
    lambda key, rest, space: f'{{"k"{space}:{key}{"," if rest else ""}{",".join(rest)}{space}}}',
    st.one_of(STRINGS, STRINGS, NUMBERS, VALUES),
    st.lists(
        st.builds(lambda name, value: f"{name}:{value}", st.sampled_from(['"v"', '"w"', '"é"']), VALUES), max_size=3
    ),
    SPACE,
)
"""Objects that have a key, most often."""
LINES: Final = st.one_of(
    ROWS, ROWS, ROWS, ROWS, objects(VALUES), VALUES, st.sampled_from(["", " ", "\r", "\x0b\x0c", "\ufeff", "\x00", "{"])
)
JSON: Final = st.builds(
    lambda start, lines, end, last: (start + end.join(lines) + last).encode("utf-8", "surrogatepass"),
    st.sampled_from(["", "", "", "\ufeff"]),
    st.lists(LINES, max_size=8),
    st.sampled_from(["\n", "\n", "\r\n"]),
    st.sampled_from(["", "\n", "\n\n"]),
)
JSON_OPTIONS: Final[list[dict[str, Any]]] = [
    {},
    {"value": {"columns": ["w", "v"]}},
    {"value": {"field": "v"}},
    {"value": {"column": "v"}},
    {"value": {"column": "v", "format": "raw"}},
    {"key": ["k", "v"]},
    {"key": "x.y"},
    {"normalize": ("strip", "lowercase"), "value": {"maxBytes": 12}},
    {"normalize": ("nfc", "casefold"), "value": {"columns": ["v", "k"]}},
]


@pytest.mark.parametrize("options", JSON_OPTIONS, ids=str)
@SLOW
@given(content=JSON, window=WINDOWS)
@example(content=b'{"k":"a"}\n{"k":"b","v":1}\n{"k":"c","v":2,"w":3}', window=1)
@example(content=b'{"k":"a","v":"\\ud83d\\ude00"}', window=7)
@example(content=b'{"k":"a","k":"b"}', window=7)
@example(content=b'{"k":"a","v":{"x":1,"\\u0078":2}}', window=7)
@example(content=b'{"k":"\xed\xa0\x80"}\n', window=64)
@example(content=b'\xef\xbb\xbf{"k":"a"}\n\xef\xbb\xbf{"k":"a"}\n', window=64)
@example(content=b'{"k":" \xc3\x84b\x1f"}\n{"k":"\\u001fA\\u001c"}\n{"k":"\xc2\x85x\xe3\x80\x80"}', window=64)
def test_json_lines(folder: Path, options: dict[str, Any], content: bytes, window: int) -> None:
    assert_equal(folder, "f.jsonl", options, content, window)


def test_objects_with_many_members(folder: Path) -> None:
    for twice in (False, True):
        for members in (20, 23, 24, 25, 26, 60, 300):
            names = [f"m{number}" for number in range(members)]
            inner = ",".join(f'"{name}":{number}' for number, name in enumerate([*names, *(["m1"] if twice else [])]))
            assert_equal(folder, "f.jsonl", {}, f'{{"k":"a","v":{{{inner}}},{inner}}}\n'.encode(), 1 << 20)


def test_nesting(folder: Path) -> None:
    for depth in (60, 63, 64, 65, 66, 249, 250, 251, 252, 5000):
        rows = f'{{"k":"a","v":{"[" * depth}{"]" * depth}}}\n{{"k":"b","v":{"[" * depth}1.50{"]" * depth}}}\n'
        assert_equal(folder, "f.jsonl", {}, rows.encode(), 1 << 20)


@pytest.mark.parametrize("size", [32_700, 32_768, 32_769, 70_000])
def test_large_values(folder: Path, size: int) -> None:
    rows = b"".join(b'{"k":"%d","v":"%b"}\n' % (number % 3, b"x" * (size - number)) for number in range(6))
    assert_equal(folder, "f.jsonl", {"value": {"column": "v", "format": "raw"}}, rows, 1 << 12)


def test_columns_that_come_late_or_never(folder: Path) -> None:
    rows = "".join(f'{{"k":"{number}","n{number % 40}":1}}\n' for number in range(1000))
    for end in ("", '{"k":"x","late":1}\n'):
        assert_equal(folder, "f.jsonl", {"value": {"columns": ["late"]}}, (rows + end).encode(), 1 << 20)
    many = "".join(f'{{"k":"{number}","name{number}":1}}\n' for number in range(1500))
    assert_equal(folder, "f.jsonl", {"value": {"columns": ["name9999"]}}, many.encode(), 1 << 20)


@pytest.mark.parametrize("number", ["1e400", "-1e309", "9" * 400, "1e308", "1e-400", "9" * 300])
def test_text_that_holds_json_holds_numbers_that_a_double_can_hold(folder: Path, number: str) -> None:
    column = {"value": {"column": "v"}}
    rows = f'{{"k":"a","v":"1"}}\n{{"k":"b","v":"[{number}]"}}\n'  # the first row shows Python its columns
    assert_equal(folder, "f.jsonl", column, rows.encode(), 1 << 20)
    assert_equal(folder, "f.csv", column, f"k,v\na,{number}\n".encode(), 1 << 20)
    typed = {"source": {"csv": {"columns": [{"name": "v", "type": "json"}]}}}
    assert_equal(folder, "f.csv", typed, f"k,v\na,{number}\n".encode(), 1 << 20)


def test_columns_that_are_named_twice(folder: Path) -> None:
    twice = {"value": {"columns": ["v", "w", "v"]}}
    assert_equal(folder, "f.jsonl", twice, b'{"k":"a","v":1}\n{"k":"b","w":1,"v":2}\n{"k":"c","v":3}\n', 1 << 20)
    assert_equal(folder, "f.csv", twice, b"k,v,w\na,1,2\n", 1 << 20)


@pytest.mark.usefixtures("thread_crew")
@pytest.mark.parametrize("parallel_from", [1 << 62, 64], ids=["one process", "a crew"])
def test_a_name_that_is_no_text_while_columns_are_missing(folder: Path, parallel_from: int) -> None:
    """A row with a number that no double can hold is read by a parser that accepts lone surrogates."""
    rows = b'{"k":"a","v":1e400,"\\ud800":1}\n{"k":"b","v":1}\n{"k":"c","late":1}\n' + b'{"k":"d","v":1}\n' * 9
    (folder / "f.jsonl").write_bytes(rows)
    spec = spec_of(folder, "f.jsonl", repr({"value": {"columns": ["v", "late"]}, "duplicates": "last"}))
    by_kernel, by_python = outcomes(folder, spec, 1 << 20, parallel_from=parallel_from)
    assert isinstance(by_python, Read)
    assert by_kernel == by_python


def test_columns_beyond_number_cost_as_much_as_in_python(folder: Path) -> None:
    """A search for each among all took half a minute for 100,000."""
    header = ",".join(["k", *(f"column{number}" for number in range(20_000))])
    (folder / "f.csv").write_text(f"{header}\na{',1' * 20_000}\n")
    spec = spec_of(folder, "f.csv", "{}")

    def cost(kernels: str) -> float:
        with patch.dict(os.environ, {native.VARIABLE: kernels}):
            started = time.process_time()
            assert len(read(spec, folder / "scratch").records) == 1
            return time.process_time() - started

    assert min(cost("1") for _ in range(2)) < 5 * min(cost("0") for _ in range(2))


def test_a_thousand_columns_cost_one_look_at_each_member(folder: Path) -> None:
    """A spec may name this many. A search for each of them once cost ten times as much as keeping them all."""
    names = [f"column{number}" for number in range(1024)]
    rows = [{"k": str(row)} | {name: row * number for number, name in enumerate(names)} for row in range(100)]
    (folder / "f.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))

    def cost(options: dict[str, Any]) -> float:
        spec = spec_of(folder, "f.jsonl", repr(options))
        times = []
        for _ in range(3):
            started = time.process_time()
            found = read(spec, folder / "scratch")
            times.append(time.process_time() - started)
            assert len(found.records) == len(rows)
        return min(times)

    with patch.dict(os.environ, {native.VARIABLE: "1"}):
        assert cost({"value": {"columns": names[::-1]}}) < 4 * cost({})
    assert_equal(folder, "f.jsonl", {"value": {"columns": names[::-1]}}, (folder / "f.jsonl").read_bytes(), 1 << 20)


FIELDS: Final = st.one_of(
    st.sampled_from(["", "a", "B ", " x", "é", "🙂", "1", "-1.50", "007", "true", "null", "[1.0,\n2]", '{"a":"\tb"}'])
    | st.sampled_from(["\x1f", "\x00", "\x01\x7f", "\\", "İ", "a\u0085", "NaN", "1e5"])
    | st.sampled_from(["True", "FALSE", "t", "F", "0", "Yes", "nO", "y", "N", "ye", "on", "\u017f", "2"]),
    st.text(max_size=5),
)


def as_field(text: str, quoted: bool) -> str:
    return '"' + text.replace('"', '""') + '"' if quoted or any(one in text for one in ',;"\n\r') else text


FRAGMENTS: Final = st.lists(
    st.sampled_from(
        [b"a", b"b,c", b",", b",,", b'"', b'""', b'","', b"\n", b"\r", b"\r\n", b"'", b";", b"\xc3\xa9", b"\xff", b"\0"]
        + [b"a,b,c\n", b'"x","y\nz",w\r\n', b"\xef\xbb\xbf", b" "]
        + [b"\\", b"\\\\", b'\\"', b'"\\""', b"\\\n", b"\\\r\n", b"\\,", b"\\N", b"NULL", b",\\N,", b"\\x"]
    ),
    max_size=24,
).map(b"".join)
"""Bytes that may be CSV."""
HEADERS: Final = st.sampled_from([b"k,v,w\n"] * 6 + [b'\xef\xbb\xbfk,"v",w\r\n', b"k,v\n", b""])


def as_escaped_field(text: str, quoted: bool) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\\n")
    if quoted or any(one in text for one in ',;"\n\r\\'):
        return f'"{escaped}"'
    return text or "\\N"


def tables(fields: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda rows, end, last: end.join(",".join(row) for row in rows) + last,
        st.lists(st.lists(fields, min_size=3, max_size=3), max_size=8),
        st.sampled_from(["\n", "\n", "\r\n", "\r", "\n\n"]),
        st.sampled_from(["", "\n", "\r"]),
    ).map(lambda text: text.encode("utf-8", "surrogatepass"))


TABLES: Final = tables(st.builds(as_field, FIELDS, st.booleans()))
ESCAPED_TABLES: Final = tables(st.builds(as_escaped_field, FIELDS, st.booleans()))
CSV: Final = st.builds(lambda header, rows: header + rows, HEADERS, TABLES | ESCAPED_TABLES | FRAGMENTS)
THREE_COLUMNS: Final = {"columns": [{"name": "k"}, {"name": "v", "type": "integer", "empty": "null"}, {"name": "w"}]}
CSV_OPTIONS: Final[list[dict[str, Any]]] = [
    {},
    {"value": {"columns": ["w", "k"]}, "normalize": ("strip", "lowercase")},
    {"value": {"column": "v"}},
    {"value": {"column": "v", "format": "raw", "maxBytes": 4}},
    {"key": ["k", "v"]},
    {
        "source": {
            "csv": {"columns": [{"name": "v", "type": "integer", "empty": "null"}, {"name": "w", "type": "json"}]}
        }
    },
    {"source": {"csv": {"columns": [{"name": "v", "type": "number"}, {"name": "w", "empty": "null"}]}}},
    {"source": {"csv": {"columns": [{"name": "v", "type": "boolean"}]}}, "normalize": ("nfc",)},
    {"source": {"csv": {"quote": ""}}},
    {"source": {"csv": {"quote": "'"}}},
    {"source": {"csv": {"delimiter": ";", "header": False, "columns": [{"name": "k"}, {"name": "v"}]}}},
    {"source": {"csv": {"escape": "\\"}}},
    {"source": {"csv": {"escape": "\\", "nullValues": ["\\N", "a"]}}, "key": ["k", "v"]},
    {"source": {"csv": {"escape": ""}}},
    {"source": {"csv": {"quote": "", "escape": "\\", "nullValues": ["\\N", "NULL", "v", "a\\"]}}},
    {"source": {"csv": {"quote": "'", "escape": "\\", "nullValues": [""], "header": False, **THREE_COLUMNS}}},
    {"source": {"csv": {"nullValues": ["", "a"]}}, "value": {"column": "v", "format": "raw"}},
    {"source": {"csv": {"nullValues": ["", "1", "k"]}}, "value": {"column": "v"}},
    {"source": {"csv": {"quote": "", "nullValues": ["NULL"], "columns": [{"name": "v", "type": "json"}]}}},
]


@pytest.mark.parametrize("options", CSV_OPTIONS, ids=str)
@SLOW
@given(content=CSV, window=WINDOWS)
@example(content=b'k,v,w\na,"x""y\r\n""",1\n', window=1)
@example(content=b"k,v,w\na,b,c\r\n\r\r\nd,e,f\r", window=1)
@example(content=b'k,v,w\na,b,"c', window=7)
@example(content=b'k,v,w\na,b,"c\xff', window=7)
@example(content=b"k,v,w\na,b,c\nd,e\ng,\xff,i\n", window=64)
@example(content=b'k,v,w\na,b,"c"x\n', window=64)
@example(content=b"k,v,w\na,b,\n", window=64)
@example(content=b"\nk,v,w\n", window=64)
@example(content=b"\xef\xbb\xbfk,v,w\na;b,c,d\n", window=1)
@example(content=b"\xef\xbb", window=1)
@example(content=b'k,v,w\na,"\\""\nb,",x"\n', window=1)
@example(content=b'k,v,w\na,"x\\\r\n\\"",\\N\nb,c,"\\', window=1)
@example(content=b"k,v,w\na,x\\\r\n,\\N\nb,c,\\\n", window=1)
@example(content=b"k,v,w\na,\\\xc3\xa9,1\n", window=7)
@example(content=b'k,v,w\na,"\\\xff",1\n', window=7)
def test_csv(folder: Path, options: dict[str, Any], content: bytes, window: int) -> None:
    assert_equal(folder, "f.csv", options, content, window)


@pytest.mark.usefixtures("thread_crew")
@pytest.mark.parametrize("name", ["f.csv", "f.jsonl"])
@SLOW
@given(data=st.data(), window=WINDOWS)
def test_slices(folder: Path, name: str, data: st.DataObject, window: int) -> None:
    """Slices may be cut anywhere, even within quotes."""
    tables = data.draw(st.sampled_from([TABLES, ESCAPED_TABLES]))
    parts = data.draw(st.lists(tables if name == "f.csv" else JSON, min_size=1, max_size=6))
    content = (b"k,v,w\n" if name == "f.csv" else b"") + b"\n".join(parts)
    (folder / name).write_bytes(content)
    options = data.draw(st.sampled_from([{}, {"source": {"csv": {"escape": "\\", "nullValues": ["\\N"]}}}]))
    by_kernel, by_python = outcomes(
        folder, spec_of(folder, name, repr(options)), window, parallel_from=max(16, len(content) // 2)
    )
    assert by_kernel == by_python
