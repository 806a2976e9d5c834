"""Parquet: every type keeps its own value, exactly."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from support.sources import Read, dataset, read, read_file

from lookupdb.builder import parquet_rows
from lookupdb.errors import BadSource


@cache
def writer() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def parquet(folder: Path, select: str) -> bytes:
    path = folder / "made.parquet"
    writer().execute(f"COPY ({select}) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")
    return path.read_bytes()


def read_select(folder: Path, select: str, **options: Any) -> Read:
    return read_file(folder, "f.parquet", parquet(folder, select), **options)


TYPES: Final = [
    ("9223372036854775807::BIGINT", "9223372036854775807"),
    ("18446744073709551615::UBIGINT", "18446744073709551615"),
    ("1.10::DECIMAL(5, 2)", "1.10"),
    ("12345678901234567890.123456789::DECIMAL(38, 9)", "12345678901234567890.123456789"),
    ("0.50::DECIMAL(3, 3)", "0.500"),
    ("-0.05::DECIMAL(2, 2)", "-0.05"),
    ("[0.5::DECIMAL(2, 2)]", "[0.50]"),
    ("0.1::FLOAT", "0.1"),
    ("0.1::DOUBLE", "0.1"),
    ("1e300::DOUBLE", "1e+300"),
    ("true", "true"),
    ("'é'", '"é"'),
    ("NULL::INTEGER", "null"),
    ("DATE '2020-02-29'", '"2020-02-29"'),
    ("DATE '0001-12-30 (BC)'", '"0000-12-30"'),
    ("DATE '0222-09-04 (BC)'", '"-0221-09-04"'),
    ("TIME '01:02:03.5'", '"01:02:03.5"'),
    ("TIMESTAMP '2020-01-01 00:00:00.5'", '"2020-01-01T00:00:00.5"'),
    ("TIMESTAMP_NS '2020-01-01 00:00:00.123456789'", '"2020-01-01T00:00:00.123456789"'),
    ("TIMESTAMPTZ '2020-01-01 00:00:00+02'", '"2019-12-31T22:00:00Z"'),
    ("TIMESTAMPTZ '0001-12-30 (BC) 01:02:03.5+00'", '"0000-12-30T01:02:03.5Z"'),
    ("'2020-01-01 00:00:00.123456789+02'::TIMESTAMPTZ_NS", '"2019-12-31T22:00:00.123456789Z"'),
    ("'infinity'::TIMESTAMPTZ", '"infinity"'),
    ("UUID 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
    ("'\\x00\\xFF'::BLOB", '"AP8="'),
    ("[1.50::DECIMAL(3, 2), NULL]", "[1.50,null]"),
    ("{'a': 1, 'b': [{'c': 2.0::DECIMAL(3, 1)}]}", '{"a":1,"b":[{"c":2.0}]}'),
    ("MAP {'x': 1.0::DECIMAL(2, 1)}", '{"x":1.0}'),
]
"""Expressions of DuckDB, and their values as JSON."""


def test_types_keep_their_values(tmp_path: Path) -> None:
    columns = ", ".join(f"{expression} AS v{number}" for number, (expression, _) in enumerate(TYPES))
    file = parquet(tmp_path, f"SELECT 'a' AS k, {columns}")
    (row,) = read_file(tmp_path, "f.parquet", file).values.values()
    assert row[1:-1] == ",".join(f'"v{number}":{value}' for number, (_, value) in enumerate(TYPES))
    for number in (3, 11, 24, 26):
        assert read_file(tmp_path, "f.parquet", file, value={"field": f"v{number}"}).values == {"a": TYPES[number][1]}


@pytest.mark.parametrize("number", ["'nan'::DOUBLE", "'infinity'::FLOAT"])
def test_what_json_has_no_number_for_rejects_the_row(tmp_path: Path, number: str) -> None:
    found = read_select(tmp_path, f"SELECT 'a' AS k, {number} AS v UNION ALL SELECT 'b', 1")
    assert list(found.values) == ["b"]
    assert found.reasons == [(1, "its value holds NaN or an infinity, for which JSON has no number")]


def test_keys_are_text_integers_or_what_is_written_as_text(tmp_path: Path) -> None:
    assert list(read_select(tmp_path, "SELECT 12 AS k, 1 AS v").values) == ["12"]
    assert list(read_select(tmp_path, "SELECT 12345678901234567890::DECIMAL(20, 0) AS k").values) == [
        "12345678901234567890"
    ]
    assert list(read_select(tmp_path, "SELECT DATE '2020-01-01' AS k").values) == ["2020-01-01"]
    assert read_select(tmp_path, "SELECT NULL::VARCHAR AS k").reasons == [(1, "the key column k is null")]
    assert read_select(tmp_path, "SELECT 1.5::DOUBLE AS k").reasons == [
        (1, "the key column k is 1.5; a key is text or an integer")
    ]


def test_dots_reach_into_structs_and_whole_names_come_first(tmp_path: Path) -> None:
    select = "SELECT {'id': 7, 'n': 1} AS u, 2 AS \"a.b\""
    assert read_select(tmp_path, select, key="u.id").values == {"7": '{"u":{"n":1},"a.b":2}'}
    assert read_select(tmp_path, select, key="a.b", value={"field": "u.n"}).values == {"2": "1"}


def test_binary_may_be_a_raw_value(tmp_path: Path) -> None:
    found = read_select(
        tmp_path, "SELECT 'a' AS k, '\\x00\\x0A\\xFF'::BLOB AS v", value={"column": "v", "format": "raw"}
    )
    assert found.records == [(b"a", b"\x00\n\xff", 0, 1)]


def test_rows_are_numbered_in_the_files_order(tmp_path: Path) -> None:
    select = "SELECT 9999 - range AS k, range AS v FROM range(10000)"
    assert [(int(key), row) for key, _, _, row in read_select(tmp_path, select).records[:2]] == [(0, 10000), (1, 9999)]
    found = read_select(tmp_path, "SELECT if(range % 4000 = 3999, NULL, range) AS k FROM range(10000)")
    assert [row for row, _ in found.reasons] == [4000, 8000]


def test_a_wrong_column_name_gets_the_near_one(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match=r"key\.columns names the column 'code', .*did you mean 'codes'\?"):
        read_select(tmp_path, "SELECT 1 AS codes, {'a': 1} AS s", key="code")
    with pytest.raises(BadSource, match=r"value\.field names the column 's\.b'"):
        read_select(tmp_path, "SELECT 1 AS k, {'a': 1} AS s", value={"field": "s.b"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda good: b"k,v\na,1\n", "it is cut short, or of another format", id="another format"),
        pytest.param(lambda good: b"", "it is cut short, or of another format", id="empty"),
        pytest.param(lambda good: good[:-10], "it is cut short, or of another format", id="cut short"),
        pytest.param(lambda good: good[:-8] + bytes(4) + good[-4:], "cannot be read as Parquet", id="damaged"),
    ],
)
def test_a_bad_file_is_reported(tmp_path: Path, change: Any, message: str) -> None:
    good = parquet(tmp_path, "SELECT range AS k, 'x' AS v FROM range(100)")
    with pytest.raises(BadSource, match=re.escape(message)):
        read_file(tmp_path, "f.parquet", change(good))


def test_a_text_that_is_not_utf8_is_reported_and_not_shown(tmp_path: Path) -> None:
    """DuckDB quotes the value, which a status must not hold."""
    good = parquet(tmp_path, "SELECT 'a' AS k, 'PRIVATE-TEXT' AS v")
    assert b"PRIVATE-TEXT" in good
    with pytest.raises(BadSource, match=r"cannot be read as Parquet: a text that is not UTF-8$") as raised:
        read_file(tmp_path, "f.parquet", good.replace(b"PRIVATE-TEXT", b'PRIVATE\n\xffTE"'))
    assert "PRIVATE" not in str(raised.value)


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param("{}::JSON AS v", id="one"),
        pytest.param("[{}::JSON] AS v", id="within a list"),
        pytest.param("{{'a': {}::JSON, 'b': 1.5}} AS v", id="within a struct"),
        pytest.param("{}::JSON AS v, '1'::JSON AS w", id="two"),
    ],
)
@pytest.mark.parametrize("wrong", [b"xPRIVATE-TEXT", b"\xffPRIVATE-TEXT"], ids=["text", "not UTF-8"])
def test_a_json_column_that_holds_no_json_is_reported_and_not_shown(tmp_path: Path, columns: str, wrong: bytes) -> None:
    good = parquet(tmp_path, "SELECT 'a' AS k, " + columns.format("""'"PRIVATE-TEXT"'"""))
    with pytest.raises(BadSource) as raised:
        read_file(tmp_path, "f.parquet", good.replace(b'"PRIVATE-TEXT', wrong))
    why = "a value that is not JSON" if wrong[:1] == b"x" else "a text that is not UTF-8"
    assert str(raised.value).endswith(f"cannot be read as Parquet: {why}")
    assert "PRIVATE" not in str(raised.value)


@pytest.mark.parametrize("holds", ["[[1]]", "[]::INTEGER[2][]", "[1, 2]::INTEGER[2]", "{'a': MAP {'b': [1.5]}}"])
def test_a_nested_column_is_looked_through_for_json(tmp_path: Path, holds: str) -> None:
    assert list(read_select(tmp_path, f"SELECT 'a' AS k, {holds} AS v").values) == ["a"]


def test_names_that_differ_in_case_alone_stay_as_they_are(tmp_path: Path) -> None:
    """DuckDB calls the second one NAME_1."""
    file = parquet(tmp_path, "SELECT 'a' AS name1, 1 AS OTHER, [2.5::DECIMAL(2, 1)] AS third").replace(
        b"OTHER", b"NAME1"
    )
    assert read_file(tmp_path, "f.parquet", file, key="name1").values == {"a": '{"NAME1":1,"third":[2.5]}'}
    assert read_file(tmp_path, "f.parquet", file, key="NAME1").values == {"1": '{"name1":"a","third":[2.5]}'}


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    file = parquet(tmp_path, "SELECT 'a' AS name1, 1 AS OTHER").replace(b"OTHER", b"name1")
    with pytest.raises(BadSource, match=r"f\.parquet: its footer names 'name1' more than once"):
        read_file(tmp_path, "f.parquet", file, key="name1")


def test_members_that_differ_in_case_alone_are_refused_where_they_are_needed(tmp_path: Path) -> None:
    file = parquet(tmp_path, "SELECT 'a' AS k, 1 AS v, [{'name1': 1, 'OTHER': 2}] AS s").replace(b"OTHER", b"NAME1")
    with pytest.raises(BadSource, match=r"the column s has members called 'name1' and 'NAME1'") as raised:
        read_file(tmp_path, "f.parquet", file)
    assert "the columns to store in value.columns" in str(raised.value.hint)
    assert read_file(tmp_path, "f.parquet", file, value={"columns": ["v"]}).values == {"a": '{"v":1}'}


def test_decimals_that_duckdb_makes_doubles_of_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = parquet(tmp_path, "SELECT 'a' AS k, {'d': [1.5::DECIMAL(38, 9)]} AS v")
    assert read_file(tmp_path, "f.parquet", file).values == {"a": '{"v":{"d":[1.500000000]}}'}
    monkeypatch.setattr(parquet_rows, "MAX_DIGITS", 37)
    with pytest.raises(BadSource, match="the column v has decimals of 38 digits, but only 37 can be read exactly"):
        read_file(tmp_path, "f.parquet", file)


def test_of_columns_that_are_not_needed_none_is_read(tmp_path: Path) -> None:
    """Neither for its type, nor for the memory that many of them take."""
    wide = ", ".join(f"range AS c{number}" for number in range(3000))
    file = parquet(tmp_path, f"SELECT range AS k, MAP {{1: 2}} AS m, {{'a': range, 'b': 1}} AS s, {wide} FROM range(2)")
    found = read_file(tmp_path, "f.parquet", file, key="s.a", value={"columns": ["c7", "s.b"]})
    assert found.values == {"0": '{"c7":0,"s.b":1}', "1": '{"c7":1,"s.b":1}'}


def test_files_of_other_columns_are_refused_and_in_another_order_are_not(tmp_path: Path) -> None:
    spec = dataset(tmp_path, ["1.parquet", "2.parquet"])
    (tmp_path / "1.parquet").write_bytes(parquet(tmp_path, "SELECT 'a' AS k, 1 AS v"))
    (tmp_path / "2.parquet").write_bytes(parquet(tmp_path, "SELECT 1 AS v, 'b' AS k"))
    assert read(spec, tmp_path / "scratch").values == {"a": '{"v":1}', "b": '{"v":1}'}
    (tmp_path / "2.parquet").write_bytes(parquet(tmp_path, "SELECT 1 AS w, 'b' AS k"))
    with pytest.raises(BadSource, match=r"2\.parquet has other columns than .*1\.parquet: it lacks 'v' and adds 'w'"):
        read(spec, tmp_path / "scratch")


def test_a_folder_named_like_a_partition_changes_no_column(tmp_path: Path) -> None:
    (tmp_path / "v=9").mkdir()
    (tmp_path / "v=9/1.parquet").write_bytes(parquet(tmp_path, "SELECT 'a' AS k, 1 AS v"))
    assert read(dataset(tmp_path, ["v=9/1.parquet"]), tmp_path / "scratch").values == {"a": '{"v":1}'}


def test_a_map_whose_keys_are_no_text_has_no_json_form(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match=r"the column v is of type MAP\(INTEGER, INTEGER\), which cannot be written"):
        read_select(tmp_path, "SELECT 1 AS k, MAP {1: 2} AS v")


def test_a_type_that_has_no_json_form_is_reported_briefly(tmp_path: Path) -> None:
    members = ", ".join(f"'m{number}': MAP {{1: 2}}" for number in range(1000))
    with pytest.raises(BadSource, match=r"the column v is of type STRUCT.*…, which cannot be written") as raised:
        read_select(tmp_path, f"SELECT 1 AS k, {{{members}}} AS v")
    assert len(raised.value.message) < 200


def test_a_file_called_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    assert list(read_file(tmp_path, "f[1].parquet", parquet(tmp_path, "SELECT 1 AS k")).values) == ["1"]


def test_a_name_with_a_dot_needs_no_other_column(tmp_path: Path) -> None:
    file = parquet(tmp_path, "SELECT 'a' AS k, 7 AS \"v.x\", MAP {1: 2} AS v")
    found = read_file(tmp_path, "f.parquet", file, value={"columns": ["v.x"]})
    assert found.values == {"a": '{"v.x":7}'}
