"""CSV: nothing is guessed, and every error names the file and row."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import os
import random
import re
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest
import zstandard
from support.sources import MEMORY, dataset, read, read_file, small_rows

from lookupdb import native
from lookupdb.builder.options import MIN_MEMORY_LIMIT
from lookupdb.errors import BadSource, NotEnoughRoom

__all__ = ["small_rows"]

TRUE: Final = ("true", "True", "TRUE", "t", "T", "yes", "Yes", "y", "Y", "1")
FALSE: Final = ("false", "False", "FALSE", "f", "F", "no", "NO", "n", "N", "0")
BOOLEANS: Final = "true, t, yes, y, 1, false, f, no, n, 0"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("k,v\na,007\n", '{"v":"007"}', id="leading zeros"),
        pytest.param("k,v\na,12345678901234567890.10\n", '{"v":"12345678901234567890.10"}', id="long numbers"),
        pytest.param("k,v\na,NA\n", '{"v":"NA"}', id="words that some take for null"),
        pytest.param("k,v\na,\n", '{"v":""}', id="an empty field"),
        pytest.param('k,v\na,""\n', '{"v":""}', id="an empty quoted field"),
        pytest.param("k,v\na, x \n", '{"v":" x "}', id="spaces"),
        pytest.param('k,v\na,"x,""y""\nz"\n', '{"v":"x,\\"y\\"\\nz"}', id="quotes, delimiters, line breaks"),
        pytest.param("k,v\na,2020-01-01\n", '{"v":"2020-01-01"}', id="dates"),
        pytest.param("k,v\r\na,1\r\n", '{"v":"1"}', id="CRLF"),
        pytest.param("\ufeffk,v\na,1\n", '{"v":"1"}', id="a byte order mark"),
        pytest.param("k,v\n\na,1\n\n", '{"v":"1"}', id="blank lines"),
        pytest.param("k,v\na,1", '{"v":"1"}', id="no last line break"),
        pytest.param("k,v\na,true\n", '{"v":"true"}', id="booleans"),
        pytest.param("v,k\n1,a\n", '{"v":"1"}', id="the key last"),
        pytest.param("k,v\na,\x01\x02\n", '{"v":"\\u0001\\u0002"}', id="control characters"),
        pytest.param("k,v,ü\na,1,é🙂\n", '{"v":"1","ü":"é🙂"}', id="any UTF-8"),
    ],
)
def test_text_stays_as_it_stands(tmp_path: Path, text: str, value: str) -> None:
    assert read_file(tmp_path, "f.csv", text).values == {"a": value}


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        pytest.param("f.tsv", {}, "k\tv\na\t1\n", id="a tab for .tsv"),
        pytest.param("f.csv", {"delimiter": ";"}, "k;v\na;1\n", id="any delimiter"),
        pytest.param("f.csv", {"quote": "'"}, "k,v\n'a','1'\n", id="any quote"),
        pytest.param("f.csv", {"header": False, "columns": [{"name": "k"}, {"name": "v"}]}, "a,1\n", id="no header"),
    ],
)
def test_dialects(tmp_path: Path, name: str, options: dict[str, Any], text: str) -> None:
    assert read_file(tmp_path, name, text, source={"csv": options}).values == {"a": '{"v":"1"}'}


def test_without_a_quote_quotes_are_text(tmp_path: Path) -> None:
    found = read_file(tmp_path, "f.csv", 'k,v\na,"1\n', source={"csv": {"quote": ""}})
    assert found.values == {"a": '{"v":"\\"1"}'}


@pytest.mark.parametrize(
    ("column", "field", "value"),
    [
        ({"type": "integer"}, "-12345678901234567890", "-12345678901234567890"),
        ({"type": "number"}, "1.10", "1.10"),
        ({"type": "number"}, "1E5", "1E5"),
        *(({"type": "boolean"}, field, "true") for field in TRUE),
        *(({"type": "boolean"}, field, "false") for field in FALSE),
        ({"type": "json"}, '"{""a"": [1.0,\n2]}"', '{"a": [1.0, 2]}'),
        ({"type": "integer", "empty": "null"}, "", "null"),
        ({"type": "text", "empty": "null"}, "", "null"),
    ],
)
def test_typed_columns(tmp_path: Path, column: dict[str, str], field: str, value: str) -> None:
    source = {"csv": {"columns": [{"name": "v", **column}]}}
    assert read_file(tmp_path, "f.csv", f"k,v\na,{field}\n", source=source).values == {"a": f'{{"v":{value}}}'}


@pytest.mark.parametrize(
    ("kind", "field", "reason"),
    [
        ("integer", "fe0000", "expected an integer, found text of 6 characters"),
        ("integer", "007", "expected an integer, found text of 3 characters (digits after a zero or a plus sign)"),
        ("integer", "1.0", "expected an integer, found text of 3 characters (a number)"),
        ("integer", " 1", "expected an integer, found text of 2 characters (with blanks around it)"),
        ("number", " ", "expected a number, found text of 1 character (blanks alone)"),
        ("number", "NaN", "expected a number, found text of 3 characters"),
        ("number", '"1,5"', "expected a number, found text of 3 characters (digits with separators)"),
        ("boolean", "on", f"expected a boolean ({BOOLEANS}), found text of 2 characters"),
        ("boolean", "2", f"expected a boolean ({BOOLEANS}), found text of 1 character (an integer)"),
        ("boolean", " t", f"expected a boolean ({BOOLEANS}), found text of 2 characters (with blanks around it)"),
        ("json", "{5", "text of 2 characters is not JSON: "),
        ("integer", "", 'expected an integer, found nothing (`empty: "null"` would make it null)'),
    ],
)
def test_a_field_that_is_not_of_its_type_rejects_its_row_and_is_not_shown(
    tmp_path: Path, kind: str, field: str, reason: str
) -> None:
    source = {"csv": {"columns": [{"name": "v", "type": kind}]}}
    found = read_file(tmp_path, "f.csv", f"k,v\nb,{field}\n", source=source)
    assert found.records == []
    assert (found.rows, found.rejected.count) == (1, 1)
    assert found.reasons[0][1].startswith(f"the column v: {reason}")
    if kind != "json":
        assert found.reasons[0][1] == f"the column v: {reason}"


def test_keys_that_no_shard_can_hold_are_rejected_rows(tmp_path: Path) -> None:
    found = read_file(tmp_path, "f.csv", f"k,v\n,1\na,2\n  ,3\n{'x' * 512},4\n", normalize=("strip",))
    assert list(found.values) == ["a"]
    assert found.reasons == [
        (1, "the key is empty"),
        (3, "the key is empty after normalisation"),
        (4, "the key is 512 bytes long, the limit is 511 bytes"),
    ]


def test_a_key_of_several_columns(tmp_path: Path) -> None:
    text = "a,b,v\nx,y:z,1\nx:y,z,2\n,z,3\n"
    found = read_file(tmp_path, "f.csv", text, key=["a", "b"])
    assert found.values == {"x:y:z": '{"v":"1"}'}
    assert found.reasons == [(2, "the key column a holds the separator ':'"), (3, "the key column a is empty")]


@pytest.mark.parametrize("separator", [":", "::", ":a:"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_two_keys_of_several_columns_are_never_one(tmp_path: Path, kind: str, separator: str) -> None:
    parts = ["".join(letters) for length in (1, 2, 3) for letters in itertools.product(":a", repeat=length)]
    pairs = [(a, b) for a in parts for b in parts]
    rows = {"csv": "a,b\n" + "".join(f"{a},{b}\n" for a, b in pairs)}
    rows["jsonl"] = "".join(f'{{"a":"{a}","b":"{b}"}}\n' for a, b in pairs)
    found = read_file(tmp_path, f"f.{kind}", rows[kind], key=["a", "b"], separator=separator)
    assert len(found.values) + found.rejected.count == len(pairs)
    for a, b in pairs:
        assert (f"{a}{separator}{b}" in found.values) or f"{a}{separator}".index(separator) < len(a)
    if separator == "::":
        assert (1, "the key column a holds the separator '::'") not in found.reasons
        assert "the key column a ends with the beginning of the separator '::'" in dict(found.reasons).values()


def test_steps_are_applied_to_the_joined_text_of_a_key(tmp_path: Path) -> None:
    found = read_file(tmp_path, "f.csv", "a,b,v\n X , Y ,1\n", key=["a", "b"], normalize=("strip", "lowercase"))
    assert found.values == {"x : y": '{"v":"1"}'}


def test_only_the_first_rejected_rows_are_sampled_and_all_are_counted(tmp_path: Path) -> None:
    found = read_file(tmp_path, "f.csv", "k,v\n" + ",1\n" * 50)
    assert found.rejected.count == 50
    assert [row for row, _ in found.reasons] == list(range(1, 11))


def test_choosing_the_value(tmp_path: Path) -> None:
    text = 'k,a,b\nx,1,"[1.0]"\n'
    assert read_file(tmp_path, "f.csv", text, value={"columns": ["b", "k"]}).values == {"x": '{"b":"[1.0]","k":"x"}'}
    assert read_file(tmp_path, "f.csv", text, value={"column": "b"}).values == {"x": "[1.0]"}
    assert read_file(tmp_path, "f.csv", text, value={"column": "a", "format": "raw"}).values == {"x": "1"}
    rejected = read_file(tmp_path, "f.csv", "k,b\nx,nope\n", value={"column": "b"})
    reason = rejected.reasons[0][1]
    assert reason.startswith("the column b is not JSON")
    assert "value.format: raw" in reason
    assert "value.columns: [b]" in reason
    assert "line 1" not in reason, "it is no line of the file"


def test_a_raw_value_may_hold_anything(tmp_path: Path) -> None:
    found = read_file(tmp_path, "f.csv", 'k,v\na,"1\r\n\x01,@#\x00"\nb,\n', value={"column": "v", "format": "raw"})
    assert found.values == {"a": "1\r\n\x01,@#\x00", "b": ""}


def test_a_value_over_the_limit_is_a_rejected_row(tmp_path: Path) -> None:
    found = read_file(tmp_path, "f.csv", f"k,v\na,{'x' * 100}\nb,1\n", value={"maxBytes": 50})
    assert list(found.values) == ["b"]
    assert found.reasons == [(1, "its value is 108 bytes long, value.maxBytes is 50")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(
            'k,v\na,"1\nb,2\n', "f.csv row 1 (up to line 3): a quote is opened and never closed", id="open quote"
        ),
        pytest.param('k,v\na,1\nb,"2"3\n', "f.csv row 2 (up to line 3): ',' expected after '\"'", id="broken quote"),
        pytest.param("k,v\na,1\nb,2,3\n", "f.csv row 2 (line 3): expected 2 fields, found 3", id="too many fields"),
        pytest.param("k\na,1\n", "f.csv row 1 (line 2): expected 1 field, found 2", id="one field"),
        pytest.param('k,v\n"a\n",1\nb\n', "f.csv row 2 (line 4): expected 2 fields, found 1", id="too few fields"),
        pytest.param(b"k,v\na,1\nb,\xff\n", "f.csv line 3 is not valid UTF-8", id="invalid UTF-8"),
        pytest.param(b"k,v\n" + b"a,1\n" * 200_000 + b"b,\xe9\n", "f.csv line 200002 is not", id="late in the file"),
        pytest.param(b"k,\xff\na,1\n", "f.csv line 1 is not valid UTF-8", id="invalid UTF-8 in the header"),
        pytest.param("", "f.csv is empty, expected a header", id="empty"),
        pytest.param("\ufeff", "f.csv is empty, expected a header", id="a byte order mark alone"),
        pytest.param("\nk,v\na,1\n", "f.csv begins with an empty line, expected a header", id="an empty line first"),
        pytest.param("k,v,v\na,1,2\n", "f.csv: its header names 'v' more than once", id="one name twice"),
        pytest.param(
            "key,v\na,1\n", "f.csv: key.columns names the column 'k', which is not there", id="no such column"
        ),
    ],
)
def test_a_bad_file_is_reported_with_its_row(tmp_path: Path, content: bytes | str, message: str) -> None:
    with pytest.raises(BadSource, match=re.escape(message)):
        read_file(tmp_path, "f.csv", content)


def test_a_header_that_is_a_whole_file_without_line_ends_is_reported_at_once_and_in_short(tmp_path: Path) -> None:
    """Comparing every pair of names would take an hour."""
    header = ",".join(f"k{number // 2:06}" for number in range(400_000))
    with pytest.raises(BadSource, match="its header names 'k000000', 'k000001', ") as caught:
        read_file(tmp_path, "f.csv", header)
    assert caught.value.message.endswith("'k000049', … more than once")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{name},{name}", "its header names 'xxx.*' more than once"),
        ("{name}", "the column 'k', which is not there"),
        ("{name};", "the header is one column, 'xxx"),
        ("{name}.l,x", "did you mean 'xxx"),
    ],
)
def test_a_header_whose_names_are_a_whole_file_is_reported_briefly(tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(BadSource, match=message) as caught:
        read_file(tmp_path, "f.csv", header.format(name="x" * 1_000_000), key="l" if ".l" in header else "k")
    assert len(str(caught.value)) < 500


def test_of_an_empty_file_nothing_is_said_of_headers_that_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(BadSource) as caught:
        read_file(tmp_path, "f.csv", "")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("check the program that writes it")
    assert "header: false" not in caught.value.hint


@pytest.mark.parametrize("name", ["f.csv", "f.jsonl", "f.json"])
@pytest.mark.parametrize(
    ("content", "kind", "hint"),
    [
        pytest.param(gzip.compress(b"k,v\na,1\n"), "gzip", "source.compression: gzip", id="gzip"),
        pytest.param(zstandard.compress(b"k,v\na,1\n"), "zstd", "source.compression: zstd", id="zstd"),
        pytest.param(bz2.compress(b"k,v\na,1\n"), "bzip2", "source.compression: bzip2", id="bzip2"),
        pytest.param(lzma.compress(b"k,v\na,1\n"), "xz", "source.compression: xz", id="xz"),
        pytest.param(b"PAR1\x15\xff\xff", "Parquet", "source.format: parquet", id="Parquet"),
        pytest.param("k,v\na,1\n".encode("utf-16"), "UTF-16", "iconv -f UTF-16", id="UTF-16"),
        pytest.param(b"\xfe\xff" + "k,v\na,1\n".encode("utf-16-be"), "UTF-16", "iconv", id="UTF-16, big endian"),
        pytest.param("k,v\na,1\n".encode("utf-16-le"), "UTF-16", "iconv", id="UTF-16, no byte order mark"),
    ],
)
def test_a_file_that_is_no_text_is_named_by_its_first_bytes(
    tmp_path: Path, name: str, content: bytes, kind: str, hint: str
) -> None:
    with pytest.raises(BadSource, match=rf"{name} is {kind}.* by its first bytes, not text in UTF-8") as raised:
        read_file(tmp_path, name, content)
    assert hint in str(raised.value.hint)


@pytest.mark.parametrize(
    "mark", ["ORC", "PAR1", "PARE", "BZh9", "BZh91AY&SY", "FEA1", "ARROW1", "Obj", "Rar!", "7z", "PK", "Salted__"]
)
def test_text_that_begins_as_another_format_is_text(tmp_path: Path, mark: str) -> None:
    assert read_file(tmp_path, "f.csv", f"{mark},v\na,1\n", key=mark).values == {"a": '{"v":"1"}'}
    source = {"csv": {"delimiter": "\x01"}}
    assert read_file(tmp_path, "f.csv", f"{mark}\x01v\na\x011\n", key=mark, source=source).values == {"a": '{"v":"1"}'}
    with pytest.raises(BadSource, match=r"f\.csv line 2 is not valid UTF-8"):
        read_file(tmp_path, "f.csv", f"{mark},v\na,".encode() + b"\xe9\n", key=mark)


def test_a_wrong_column_name_gets_the_near_one_and_the_list(tmp_path: Path) -> None:
    with pytest.raises(BadSource) as raised:
        read_file(tmp_path, "f.csv", "Code,name\na,1\n", key="Name")
    assert "did you mean 'name'?" in raised.value.message
    assert raised.value.hint == "its columns are Code, name"
    with pytest.raises(BadSource, match=r"value\.columns names the column 'nam'"):
        read_file(tmp_path, "f.csv", "k,name\na,1\n", value={"columns": ["nam"]})
    with pytest.raises(BadSource, match=r"source\.csv\.columns names the column 'x'"):
        read_file(tmp_path, "f.csv", "k,name\na,1\n", source={"csv": {"columns": [{"name": "x"}]}})
    with pytest.raises(BadSource, match=r"value\.field is for JSON"):
        read_file(tmp_path, "f.csv", "k,name\na,1\n", value={"field": "name"})


def test_a_header_of_one_column_that_holds_another_delimiter_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadSource) as raised:
        read_file(tmp_path, "f.csv", "code;name\nKJFK;Kennedy\n", key="code")
    assert raised.value.hint == "if its delimiter is ';', say so: source.csv.delimiter"


def test_each_file_has_its_own_header(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("k,v\na,1\n")
    (tmp_path / "2.csv").write_text("v,k\n2,b\n")
    found = read(dataset(tmp_path, "*.csv"), tmp_path / "scratch")
    assert found.records == [(b"a", b'{"v":"1"}', 0, 1), (b"b", b'{"v":"2"}', 1, 1)]


def test_files_of_other_columns_are_refused(tmp_path: Path) -> None:
    for name, text in (("1.csv", "k,v,w\na,1,2\n"), ("2.csv", "w,k,u,x\n2,b,3,4\n")):
        (tmp_path / name).write_text(text)
    with pytest.raises(BadSource) as raised:
        read(dataset(tmp_path, "*.csv"), tmp_path / "scratch")
    assert raised.value.message == "2.csv has other columns than 1.csv: it lacks 'v' and adds 'u', 'x'"
    assert "those to store in value.columns" in str(raised.value.hint)


@pytest.mark.parametrize("value", [{"columns": ["w"]}, {"column": "w", "format": "raw"}])
def test_of_other_columns_may_be_what_a_value_of_named_columns_does_not_take(
    tmp_path: Path, value: dict[str, Any]
) -> None:
    for name, text in (("1.csv", "k,v,w\na,1,2\n"), ("2.csv", "w,k\n2,b\n")):
        (tmp_path / name).write_text(text)
    found = read(dataset(tmp_path, "*.csv", value=value), tmp_path / "scratch")
    assert found.values["a"] == found.values["b"]


def test_a_difference_of_many_columns_is_cut(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("k," + ",".join(f"{number:03}" + "x" * 200 for number in range(300)) + "\n")
    (tmp_path / "2.csv").write_text("k\n")
    with pytest.raises(BadSource, match=r"it lacks '000xxx.*, …") as raised:
        read(dataset(tmp_path, "*.csv"), tmp_path / "scratch")
    assert len(raised.value.message) < 1500


@pytest.mark.usefixtures("small_rows")
def test_a_line_that_does_not_fit_the_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(b"k,v\na," + b"x" * (3 << 20))
    with pytest.raises(NotEnoughRoom, match=r"f\.csv: a line is longer than .*"):
        read(dataset(tmp_path, "f.csv"), tmp_path / "scratch", MEMORY)


@pytest.mark.usefixtures("small_rows")
@pytest.mark.parametrize("content", ['a","b\n', "a,b\n"], ids=["short fields", "one field"])
def test_a_row_that_does_not_fit_the_memory_is_refused_whatever_its_fields_and_lines(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "f.csv").write_text('k,v\nz,"open\n' + content * 350_000)
    with pytest.raises(
        BadSource, match=r"f\.csv row 1 \(up to line \d+\): it is longer than .* or a quote in it is never"
    ):
        read(dataset(tmp_path, "f.csv"), tmp_path / "scratch", MIN_MEMORY_LIMIT)


@pytest.mark.usefixtures("small_rows")
def test_a_header_that_does_not_fit_the_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text('k,"v\n' + 'a","b\n' * 350_000)
    with pytest.raises(BadSource, match=r"f\.csv: its header is not CSV: it is longer than "):
        read(dataset(tmp_path, "f.csv"), tmp_path / "scratch", MIN_MEMORY_LIMIT)


@pytest.mark.usefixtures("small_rows")
def test_rows_that_fit_the_memory_each_need_not_fit_it_together(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("k,v\n" + f'a,"{"x" * 1000}\n"\n' * 2600)
    spec = dataset(tmp_path, "f.csv", duplicates="last")
    with patch.dict(os.environ, {native.VARIABLE: "0"}):
        assert read(spec, tmp_path / "scratch", MIN_MEMORY_LIMIT).rows == 2600


def test_a_field_of_csv_says_how_a_column_becomes_the_value(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match=r"value\.column and `value\.format: raw`; .* `value\.columns: \[v\]`"):
        read_file(tmp_path, "f.csv", "k,v\nx,1\n", value={"field": "v"})


@pytest.mark.usefixtures("small_rows")
def test_bytes_that_are_not_utf8_are_reported_in_a_row_of_half_of_what_memory_allows(tmp_path: Path) -> None:
    columns = {"header": False, "columns": [{"name": "k"}, {"name": "v"}]}
    spec = dataset(tmp_path, "f.csv", source={"csv": columns})
    (tmp_path / "f.csv").write_bytes(b'a,"' + (b"x" * 99 + b"\n") * 5600 + b'\xff\n"\n')
    with pytest.raises(BadSource, match=r"line 5601 is not valid UTF-8"):
        read(spec, tmp_path / "scratch", MIN_MEMORY_LIMIT)


ESCAPE: Final[dict[str, Any]] = {"source": {"csv": {"escape": "\\"}}}
NO_QUOTES: Final[dict[str, Any]] = {"source": {"csv": {"escape": "\\", "quote": "", "nullValues": ["\\N"]}}}


@pytest.mark.parametrize(
    ("options", "field", "text"),
    [
        pytest.param(ESCAPE, r'"say \"hi\""', 'say "hi"', id="a quote"),
        pytest.param(ESCAPE, r'"C:\\dir\\"', "C:\\dir\\", id="itself"),
        pytest.param(ESCAPE, r'"\\\""', '\\"', id="itself and a quote"),
        pytest.param(ESCAPE, r'"a\,b"', "a,b", id="the delimiter"),
        pytest.param(ESCAPE, '"a\\\nb"', "a\nb", id="a line break"),
        pytest.param(ESCAPE, '"a\\\r\nb\\\r"', "a\r\nb\r", id="other line breaks"),
        pytest.param(ESCAPE, r'"a ""b"" \"c\""', 'a "b" "c"', id="doubled quotes, too"),
        pytest.param(ESCAPE, r'"\"\""', '""', id="escaped quotes alone"),
        pytest.param(ESCAPE, r"C:\dir\new", r"C:\dir\new", id="without quotes backslashes are text"),
        pytest.param(ESCAPE, r"\\server\x", r"\\server\x", id="without quotes two backslashes are two"),
        pytest.param({"source": {"csv": {"escape": "^"}}}, r'"^"\n"', r'"\n', id="another character"),
        pytest.param(NO_QUOTES, r"a\,b\\", "a,b\\", id="no quotes: in every field"),
        pytest.param(NO_QUOTES, "a\\\nb", "a\nb", id="no quotes: a line break"),
        pytest.param(NO_QUOTES, "a\\\r\nb", "a\r\nb", id="no quotes: another line break"),
        pytest.param(NO_QUOTES, 'say "hi"', 'say "hi"', id="no quotes: quotes are text"),
        pytest.param(NO_QUOTES, r"\\N", r"\N", id="no quotes: an escaped marker"),
        pytest.param(NO_QUOTES, r"\N", None, id="no quotes: a marker is as it stands"),
    ],
)
def test_an_escape_makes_the_next_character_text(
    tmp_path: Path, options: dict[str, Any], field: str, text: str | None
) -> None:
    found = read_file(tmp_path, "f.csv", f"k,v\na,{field}\nb,x", **options)
    assert {key: json.loads(value) for key, value in found.values.items()} == {"a": {"v": text}, "b": {"v": "x"}}


def test_a_header_and_a_key_may_have_escapes(tmp_path: Path) -> None:
    found = read_file(tmp_path, "f.csv", '"k\\"",v\n"a\\"b",1\n', 'k"', **ESCAPE)
    assert found.values == {'a"b': '{"v":"1"}'}


@pytest.mark.parametrize(
    ("options", "content", "message"),
    [
        pytest.param(
            ESCAPE, r'k,v@a,"C:\new"@', r"row 1 (up to line 2): \ precedes 'n', expected a quote", id="a letter"
        ),
        pytest.param(
            NO_QUOTES, r"k,v@a,\t@", r"row 1 (up to line 2): \ precedes 't', expected a quote", id="no quotes"
        ),
        pytest.param(ESCAPE, r"k,v@a,say \"hi\"@", r"row 1 (up to line 2): an unquoted field has \"", id="\\"),
        pytest.param(ESCAPE, r'k,v@a,"1\"@b,2@', "row 1 (up to line 3): a quote is opened and never closed", id="open"),
        pytest.param(
            NO_QUOTES, "k,v@a,1\\@", "row 1 (up to line 2): the file ends after an escape", id="a break at the end"
        ),
        pytest.param(
            NO_QUOTES, "k,v@a,1\\", "row 1 (up to line 2): the file ends after an escape", id="nothing behind it"
        ),
        pytest.param(
            ESCAPE, r'k,v@a,"1\""2@', "row 1 (up to line 2): ',' expected after '\"'", id="text behind quotes"
        ),
    ],
)
def test_an_escape_that_tools_read_in_several_ways_is_refused(
    tmp_path: Path, options: dict[str, Any], content: str, message: str
) -> None:
    with pytest.raises(BadSource, match=re.escape(message)) as raised:
        read_file(tmp_path, "f.csv", content.replace("@", "\n"), **options)
    assert "escape '\\'" in str(raised.value.hint)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param('k,v\na,"say \\"hi\\""\n', id="a broken row"),
        pytest.param('k,v\na,"say \\", \\", hi"\n', id="too many fields"),
        pytest.param('k,v\na,"\\""\nb,1\n', id="a quote that is never closed"),
        pytest.param('k,v\na,"C:\\"\nb,"1"2\n', id="another row is broken"),
    ],
)
def test_rows_that_do_not_fit_and_a_quote_behind_a_backslash_suggest_an_escape(tmp_path: Path, content: str) -> None:
    with pytest.raises(BadSource) as raised:
        read_file(tmp_path, "f.csv", content)
    assert "has \\\": if quotes are escaped, set source.csv.escape: '\\'" in str(raised.value.hint)
    assert 'option("escape", "\\"")' in str(raised.value.hint)


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ('k,v\nC:\\dir,"say ""hi"""\nb,"1"2\n', {}),
        ('k,v\na,"say \\"hi\\""\n', {"source": {"csv": {"escape": ""}}}),
    ],
    ids=["no quote behind a backslash", "it was said that there are none"],
)
def test_no_escape_is_suggested_without_need(tmp_path: Path, content: str, options: dict[str, Any]) -> None:
    with pytest.raises(BadSource) as raised:
        read_file(tmp_path, "f.csv", content, **options)
    assert "escape" not in str(raised.value.hint)


def test_escaped_quotes_that_make_one_row_of_several_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSource) as raised:
        read_file(tmp_path, "f.csv", 'k,v\na,"\\"\n\n,b"\n', duplicates="last")
    assert raised.value.message == (
        "f.csv: row 1 has a quote after a backslash in a quoted field, and row 2 has a quote in an unquoted field: "
        "if the file escapes quotes, its rows were read wrongly"
    )
    assert "set source.csv.escape: '\\'" in str(raised.value.hint)
    assert "if backslashes are text, set source.csv.escape: ''" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("content", "options"),
    [
        pytest.param('k,v\na,"{""v"": ""\\""x\\""""}"\nb,"C:\\dir\\"\n', {}, id="doubled quotes, JSON and paths"),
        pytest.param('k,v\na,5" nail\nb,"x\\y"\n', {}, id="quotes in fields without quotes"),
        pytest.param('k,v\na,5" nail\nb,C:\\"x\n', {}, id="a backslash without quotes"),
        pytest.param('k,v\na,5" nail\nb,"C:\\dir\\"\n', {"source": {"csv": {"escape": ""}}}, id="both, as was said"),
        pytest.param('k,v\na,"5\' nail"\nb,"C:\\dir\\"\n', {}, id="another quote"),
    ],
)
def test_backslashes_of_other_files_are_text(tmp_path: Path, content: str, options: dict[str, Any]) -> None:
    expected = {key: value for key, value in csv.reader(io.StringIO(content)) if key != "k"}
    found = read_file(tmp_path, "f.csv", content, **options)
    assert {key: json.loads(value)["v"] for key, value in found.values.items()} == expected


def test_what_spark_writes_is_read_with_an_escape_and_loses_no_row_without(tmp_path: Path) -> None:
    """Random files, dense in quotes: if a file is valid without an escape, none of its rows were joined into one."""
    chance = random.Random(7)
    refused = 0
    for _ in range(60):
        texts = ["".join(chance.choices('",\n\\a', k=chance.randrange(6))) for _ in range(chance.randrange(1, 6))]
        lines = ["k,v\n"]
        for number, text in enumerate(texts):
            escaped = text.replace("\\", "\\\\").replace('"', '\\"')
            quotes = '"' if not text or any(one in text for one in '",\n') else ""
            lines.append(f"{number},{quotes}{escaped if quotes else text}{quotes}\n")
        content = "".join(lines)
        found = read_file(tmp_path, "f.csv", content, **ESCAPE).values
        assert {key: json.loads(value)["v"] for key, value in found.items()} == dict(
            zip(map(str, range(len(texts))), texts, strict=True)
        )
        try:
            assert read_file(tmp_path, "f.csv", content).rows == len(texts)
        except BadSource:
            refused += 1
    assert 20 < refused < 60


NULLS: Final[dict[str, Any]] = {"nullValues": ["\\N", "NULL", ""]}


@pytest.mark.parametrize(
    ("column", "field", "value"),
    [
        ({}, "\\N", "null"),
        ({}, "NULL", "null"),
        ({}, "", "null"),
        ({}, '"\\N"', '"\\\\N"'),
        ({}, '""', '""'),
        ({}, "null", '"null"'),
        ({}, " NULL", '" NULL"'),
        ({"type": "integer"}, "\\N", "null"),
        ({"type": "number"}, "", "null"),
        ({"type": "boolean"}, "NULL", "null"),
        ({"type": "json"}, "", "null"),
        ({"empty": "null"}, '""', "null"),
        ({"type": "integer", "empty": "null"}, '""', "null"),
    ],
)
def test_a_field_without_quotes_that_is_a_null_marker_is_null(
    tmp_path: Path, column: dict[str, str], field: str, value: str
) -> None:
    source = {"csv": {**NULLS, "columns": [{"name": "v", **column}]}}
    found = read_file(tmp_path, "f.csv", f"k,v\na,{field}\n", source=source)
    assert found.values == {"a": f'{{"v":{value}}}'}


def test_a_null_marker_in_quotes_is_text_of_no_type_but_text(tmp_path: Path) -> None:
    source = {"csv": {**NULLS, "columns": [{"name": "v", "type": "integer"}]}}
    found = read_file(tmp_path, "f.csv", 'k,v\na,"NULL"\nb,""\n', source=source)
    assert [reason for _, reason in found.reasons] == [
        "the column v: expected an integer, found text of 4 characters "
        "(perhaps a null marker: unquoted texts of source.csv.nullValues are null)",
        'the column v: expected an integer, found nothing (`empty: "null"` would make it null)',
    ]


def test_a_key_that_is_null_is_a_rejected_row(tmp_path: Path) -> None:
    found = read_file(tmp_path, "f.csv", 'k,v\n\\N,1\n,2\n"NULL",3\n"",4\n', source={"csv": NULLS})
    assert found.values == {"NULL": '{"v":"3"}'}
    assert found.reasons == [
        (1, "the key column k is null"),
        (2, "the key column k is null"),
        (4, "the key is empty"),
    ]
    joined = read_file(tmp_path, "f.csv", 'k,l,v\na,NULL,1\na,"NULL",2\n', ["k", "l"], source={"csv": NULLS})
    assert joined.values == {"a:NULL": '{"v":"2"}'}
    assert joined.reasons == [(1, "the key column l is null")]


def test_a_value_of_one_column_that_is_null(tmp_path: Path) -> None:
    text = 'k,v\na,NULL\nb,"1"\n'
    found = read_file(tmp_path, "f.csv", text, source={"csv": NULLS}, value={"column": "v"})
    assert found.values == {"a": "null", "b": "1"}
    raw = read_file(tmp_path, "f.csv", text, source={"csv": NULLS}, value={"column": "v", "format": "raw"})
    assert raw.values == {"b": "1"}
    assert raw.reasons == [(1, "the column v is null, and a raw value is text")]


@pytest.mark.parametrize("quote", ['"', ""])
def test_a_header_has_no_nulls(tmp_path: Path, quote: str) -> None:
    source = {"csv": {**NULLS, "quote": quote}}
    assert read_file(tmp_path, "f.csv", ",NULL,k\n1,2,a\n,,b\n", source=source).values == {
        "a": '{"":"1","NULL":"2"}',
        "b": '{"":null,"NULL":null}',
    }
