"""JSON lines and JSON arrays: the same records from either, numbers digit for digit, and errors with their row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from support.sources import Read, dataset, read, read_file, small_rows

from lookupdb.builder import json_rows
from lookupdb.builder.options import MIN_MEMORY_LIMIT
from lookupdb.errors import BadSource, NotEnoughRoom

__all__ = ["small_rows"]

FORMATS = ["json", "jsonl"]


def read_rows(folder: Path, kind: str, rows: list[str], **options: Any) -> Read:
    text = "\n".join(rows) if kind == "jsonl" else f"[{','.join(rows)}]"
    return read_file(folder, f"f.{kind}", text, **options)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "value",
    [
        "1", "-1", "9223372036854775807", "18446744073709551616", "123456789012345678901234567890",
        "1.10", "12345678901234567890.10", "1e5", "1E+5", "0.0", "-0", "-0.0",
        "true", "null", '"1.10"', '"é\\n"', "[]", "{}", "[1.0,[2.50]]", '{"a":{"b":0.10}}', '["-0",0]',
    ],
)  # fmt: skip
def test_values_keep_their_text(tmp_path: Path, kind: str, value: str) -> None:
    row = f'{{"k":"a","v":{value}}}'
    assert read_rows(tmp_path, kind, [row]).values == {"a": f'{{"v":{value}}}'}
    assert read_rows(tmp_path, kind, [row], value={"field": "v"}).values == {"a": value}


@pytest.mark.parametrize("kind", FORMATS)
def test_white_space_goes_and_content_stays(tmp_path: Path, kind: str) -> None:
    row = ' { "v" : [ 1 , 2.0 ] , "k" : "a" , "w" : "\\u00e9 x" } \r'
    assert read_rows(tmp_path, kind, [row, ""] if kind == "jsonl" else [row]).values == {"a": '{"v":[1,2.0],"w":"é x"}'}


@pytest.mark.parametrize("kind", FORMATS)
def test_a_byte_order_mark_is_none_of_the_data(tmp_path: Path, kind: str) -> None:
    row = '{"k":"a","v":1.0}'
    text = row + "\r\n" if kind == "jsonl" else f"[{row}]"
    assert read_file(tmp_path, f"f.{kind}", "\ufeff" + text).values == {"a": '{"v":1.0}'}


@pytest.mark.parametrize("kind", FORMATS)
def test_keys_are_text_always(tmp_path: Path, kind: str) -> None:
    rows = ['{"k":"a"}', '{"k":12}', '{"k":-5}', '{"k":123456789012345678901234567890}']
    found = read_rows(tmp_path, kind, rows)
    assert list(found.values) == ["-5", "12", "123456789012345678901234567890", "a"]


@pytest.mark.parametrize("kind", FORMATS)
def test_keys_that_are_none_reject_their_rows(tmp_path: Path, kind: str) -> None:
    rows = ['{"k":""}', '{"k":null}', '{"v":1}', '{"k":1.5}', '{"k":true}', '{"k":[]}', '{"k":"ok"}', '{"k":{"a":1}}']
    found = read_rows(tmp_path, kind, rows)
    assert list(found.values) == ["ok"]
    assert found.reasons == [
        (1, "the key is empty"),
        (2, "the key column k is null"),
        (3, "it has no key column k"),
        (4, f"the key column k is {'1.5'}; a key is text or an integer"),
        (5, "the key column k is a boolean; a key is text or an integer"),
        (6, "the key column k is an array; a key is text or an integer"),
        (8, "the key column k is an object; a key is text or an integer"),
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_dot_reaches_into_nested_objects(tmp_path: Path, kind: str) -> None:
    row = '{"user":{"id":7,"name":"x"},"a.b":1,"deep":{"er":{"est":2.50}}}'
    assert read_rows(tmp_path, kind, [row], key="user.id").values == {
        "7": '{"user":{"name":"x"},"a.b":1,"deep":{"er":{"est":2.50}}}'
    }
    columns = {"columns": ["deep.er.est", "a.b", "user.name"]}
    assert read_rows(tmp_path, kind, [row], key="user.id", value=columns).values == {
        "7": '{"deep.er.est":2.50,"a.b":1,"user.name":"x"}'
    }
    assert read_rows(tmp_path, kind, [row], key="user.id", value={"field": "deep.er"}).values == {"7": '{"est":2.50}'}


def test_a_column_that_a_row_has_not_is_left_out(tmp_path: Path) -> None:
    rows = ['{"k":"a","v":1}', '{"k":"b","w":2}', '{"k":"c","v":null}']
    found = read_rows(tmp_path, "jsonl", rows, value={"columns": ["v"]})
    assert found.values == {"a": '{"v":1}', "b": "{}", "c": '{"v":null}'}
    found = read_rows(tmp_path, "jsonl", rows, value={"field": "v"})
    assert found.values == {"a": "1", "c": "null"}
    assert found.reasons == [(2, "it has no v")]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_column_that_no_row_has_is_a_mistake(tmp_path: Path, kind: str) -> None:
    rows = ['{"k":"a","products":1}', '{"k":"b","products":2}']
    with pytest.raises(BadSource, match=r"'product', which none of its 2 rows has; did you mean 'products'\?"):
        read_rows(tmp_path, kind, rows, value={"columns": ["product"]})
    with pytest.raises(BadSource, match=r"key.columns names the column 'K'.*did you mean 'k'\?"):
        read_rows(tmp_path, kind, rows, key="K")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_nested_column_that_no_row_has_is_a_mistake(tmp_path: Path, kind: str) -> None:
    rows = ['{"user":{"mail":"a","name":{"first":"A"}},"score":1}', '{"user":7,"score":1}']
    with pytest.raises(BadSource) as caught:
        read_rows(tmp_path, kind, rows, key="user.email")
    message, hint = str(caught.value).splitlines()
    assert ": key.columns names the column 'user.email', which none of its 2 rows has" in message
    assert hint == "  its columns are user, score"


def test_a_column_that_holds_json_or_raw_text(tmp_path: Path) -> None:
    row = '{"k":"a","v":"{\\"x\\": 1.10}"}'
    assert read_rows(tmp_path, "jsonl", [row], value={"column": "v"}).values == {"a": '{"x": 1.10}'}
    raw = {"column": "v", "format": "raw"}
    assert read_rows(tmp_path, "jsonl", [row], value=raw).values == {"a": '{"x": 1.10}'}
    assert read_rows(tmp_path, "jsonl", ['{"k":"a","v":1}'], value=raw).reasons == [
        (1, "the column v is not text or binary")
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        pytest.param("f.jsonl", '{"k":"a"}\n\n{"k":\n', "f.jsonl row 2 (line 3) is not JSON", id="malformed"),
        pytest.param("f.jsonl", b'{"k":"\xff"}\n', "f.jsonl row 1 (line 1) is not valid UTF-8", id="invalid UTF-8"),
        pytest.param(
            "f.jsonl", '{"k":"a"}\n["b"]\n', "f.jsonl row 2 (line 2) is an array, expected an object", id="array"
        ),
        pytest.param("f.jsonl", '"a"\n', "f.jsonl row 1 (line 1) is text, expected an object", id="text"),
        pytest.param("f.jsonl", "1\n", "f.jsonl row 1 (line 1) is a number, expected an object", id="number"),
        pytest.param(
            "f.jsonl", '[\n{"k":"a"}\n]\n', "source.format: json is for a file that is one array", id="an array"
        ),
        pytest.param(
            "f.jsonl",
            '{\n  "k": "a"\n}\n',
            "row 1 (line 1) is not JSON: unexpected end of data, at its character",
            id="lines",
        ),
        pytest.param("f.jsonl", '{\n  "k": "a"\n}\n', "jsonl is whole objects in lines", id="pretty-printed"),
        pytest.param(
            "f.json", '{"n":{"a":[1]}, "data" : [{"k":"a"}]}', "whose member 'data' holds an array", id="wrapped"
        ),
        pytest.param(
            "f.json",
            '{"columns":["k"],"index":[0],"data":[["a"]]}',
            "f.json is not a JSON array: it begins with '{'",
            id="names and rows apart",
        ),
        pytest.param("f.json", '{"ids":[1],"data":[{"k":"a"}]}', "whose member 'data' holds", id="the second array"),
        pytest.param("f.json", '[["a",1]]', "write objects, as pandas does with orient='records'", id="rows of values"),
        pytest.param("f.json", '{"a":[' + '{"k":"a"},' * 99999, "unwrap that first, as `jq '.\"a\"'`", id="long"),
        pytest.param("f.json", '{"k":"a"}', "f.json is not a JSON array: it begins with '{'", id="no array"),
        pytest.param("f.json", "", "f.json is empty, expected a JSON array", id="empty"),
        pytest.param(
            "f.json",
            '[{"k":"a"} {"k":"b"}]',
            "after row 1: expected ',' or ']', found '{', at line 1, column 12",
            id="no comma",
        ),
        pytest.param("f.json", '[{"k":"a"},]', "f.json row 2 is not JSON", id="a comma too many"),
        pytest.param(
            "f.json", '[{"k":"a"}', "after row 1: expected ',' or ']', found the end of the file", id="cut short"
        ),
        pytest.param("f.json", '[{"k":"a"},{"k":', "f.json row 2 is not JSON", id="cut short in a row"),
        pytest.param("f.json", '[{"k":"a"}] x', "after row 1: expected nothing after the array, found 'x'", id="more"),
        pytest.param("f.json", '[{"k":"a"},1]', "f.json row 2 is a number, expected an object", id="a number in it"),
        pytest.param("f.json", b'[{"k":"\xff"}]', "f.json is not valid UTF-8 near its byte 7", id="array, UTF-8"),
        pytest.param(
            "f.json",
            '[{"k":' + "[" * 100_000,
            "row 1 is nested more than 250 deep",
            id="deep",
        ),
    ],
)
def test_a_bad_file_is_reported_with_its_row(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    with pytest.raises(BadSource) as raised:
        read_file(tmp_path, name, text)
    assert message in str(raised.value)


@pytest.mark.parametrize("rows", [1, 20_000], ids=["within the first window", "behind many"])
@pytest.mark.parametrize("line_break", ["\n", ""], ids=["lines", "one line"])
def test_a_bad_document_is_reported_with_line_and_column(tmp_path: Path, rows: int, line_break: str) -> None:
    before = "[" + "".join(f'{{"k":"é{row}","v":[1,2,3,4,5,6,7]}},{line_break}' for row in range(rows))
    line, column = (rows + 1, 10) if line_break else (1, len(before) + 10)
    with pytest.raises(BadSource) as raised:
        read_file(tmp_path, "f.json", before + '{"k":"b" "v":1}]')
    assert raised.value.message == (
        f"f.json row {rows + 1} is not JSON: Expecting ',' delimiter, at line {line}, column {column}"
    )
    with pytest.raises(BadSource) as raised:
        read_file(tmp_path, "f.json", before + '{"k":"b"} x')
    assert raised.value.message.endswith(f"found 'x', at line {line}, column {column + 1}")
    assert raised.value.hint


@pytest.mark.parametrize("kind", FORMATS)
def test_of_a_member_that_stands_twice_the_last_counts(tmp_path: Path, kind: str) -> None:
    row = '{"k":"a","v":1,"k":"b","v":{"x":1,"x":2},"w":3}'
    assert read_rows(tmp_path, kind, [row]).values == {"b": '{"v":{"x":2},"w":3}'}


def test_an_empty_array_and_an_empty_file_of_lines_hold_no_rows(tmp_path: Path) -> None:
    assert read_file(tmp_path, "f.json", " [ ] ").rows == 0
    assert read_file(tmp_path, "f.jsonl", "").rows == 0


WRITINGS = {
    "lines": ("f.jsonl", "{0}\n{1}\n"),
    "one line": ("f.jsonl", "{0}{1}"),
    "array": ("f.json", "[{0},\n{1}]"),
}


@pytest.mark.parametrize("form", WRITINGS)
@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (r'{"k":"\ud800"}', "not valid Unicode text"),
        (r'{"k":"a","v":["\ud83d"]}', "its value is not valid Unicode text (a lone surrogate)"),
        (r'{"k":"a","\udc00":1}', "its value is not valid Unicode text (a lone surrogate)"),
        ('{"k":"a","v":NaN}', "its value holds NaN or an infinity, for which JSON has no number"),
        ('{"k":"a","v":{"w":[1.5,-Infinity]}}', "its value holds NaN or an infinity, for which JSON has no number"),
        ('{"k":Infinity}', "the key column k is NaN or an infinity; a key is text or an integer"),
    ],
)
def test_what_other_programs_write_rejects_its_row_alone(tmp_path: Path, form: str, row: str, reason: str) -> None:
    name, text = WRITINGS[form]
    found = read_file(tmp_path, name, text.format(row, '{"k":"b","v":"NaN"}'))
    assert found.values == {"b": '{"v":"NaN"}'}
    ((number, why),) = found.reasons
    assert number == 1
    assert reason in why


@pytest.mark.parametrize("form", WRITINGS)
def test_what_no_value_takes_of_a_row_does_not_reject_it(tmp_path: Path, form: str) -> None:
    name, text = WRITINGS[form]
    rows = text.format('{"k":"a","v":1,"w":NaN}', r'{"k":"b","v":2,"w":"\ud800"}')
    assert read_file(tmp_path, name, rows, value={"columns": ["v"]}).values == {"a": '{"v":1}', "b": '{"v":2}'}


@pytest.mark.parametrize("word", ["nan", "NAN", "+Infinity", "Infinit", "--Infinity", "N"])
def test_what_is_no_number_of_any_program_is_no_json(tmp_path: Path, word: str) -> None:
    for name, text in (("f.jsonl", '{{"k":"a","v":{}}}'), ("f.json", '[{{"k":"a","v":{}}}]')):
        with pytest.raises(BadSource, match=r"row 1 .*is not JSON"):
            read_file(tmp_path, name, text.format(word))


def test_objects_may_stand_one_behind_the_other(tmp_path: Path) -> None:
    text = '{"k":"a","v":"}{"}{"k":"b","v":1.50} \t{"k":"c"}\n\n{"k":"d"}{"k":7.5}{"k":"e"}'
    found = read_file(tmp_path, "f.jsonl", "\ufeff" + text)
    assert found.values == {"a": '{"v":"}{"}', "b": '{"v":1.50}', "c": "{}", "d": "{}", "e": "{}"}
    assert [row for row, _ in found.reasons] == [5]
    assert [row for *_, row in found.records] == [1, 2, 3, 4, 6]


@pytest.mark.parametrize("text", ['{"k":"a"},{"k":"b"}', '{"k":"a"} x', '{"k":"a"}[1]', '{"k":"a"}{"k":', '{"k":"a"}}'])
def test_what_stands_behind_an_object_is_another_object(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadSource, match=r"f\.jsonl row 1 \(line 2\) is not JSON"):
        read_file(tmp_path, "f.jsonl", "\n" + text)


def test_one_of_several_objects_in_a_line_that_is_no_json_is_reported_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match=r"f\.jsonl row 3 \(line 2\) is not JSON"):
        read_file(tmp_path, "f.jsonl", '{"k":"a"}\n{"k":"b"}{"k":tru}')


def test_an_array_is_read_through_a_window(tmp_path: Path) -> None:
    rows = [{"k": f"{number:05d}", "v": "é" * (number * 37 % 5000)} for number in range(1500)]
    found = read_file(tmp_path, "f.json", orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    assert found.values == {row["k"]: orjson.dumps({"v": row["v"]}).decode() for row in rows}


@pytest.mark.usefixtures("small_rows")
@pytest.mark.parametrize(
    ("row", "column"),
    [
        ('{"k":"a","v":tru}', 15),
        ('{"k":"a","v":[1,,2]}', 18),
        ('{"k":"a" "v":1}', 11),
        ('{"k":"a","v":"\\x"}', 16),
        ('{"k":"a\n"}', 9),
    ],
)
def test_what_is_wrong_in_an_array_is_reported_where_it_is_however_much_follows(
    tmp_path: Path, row: str, column: int
) -> None:
    """Reading on until memory does not suffice would give an error without a place."""
    (tmp_path / "f.json").write_text(f"[{row},\n" + '{"k":"b","v":1},\n' * 100_000)
    with pytest.raises(BadSource, match=rf"f\.json row 1 is not JSON: (?!.* at,).*, at line 1, column {column}\n"):
        read(dataset(tmp_path, "f.json"), tmp_path / "scratch", MIN_MEMORY_LIMIT)


def test_a_row_may_end_behind_what_is_read_at_once_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = r'{"a":[true,false,null,-1.5e-7,"\\","\"","\u00e9\ud83d\ude00"],"b":{}}'
    text = f'[{{"k":"a","v":{value}}} , {{"k":"b","v":{value}}}]'
    for window in range(1, 90):
        monkeypatch.setattr(json_rows, "_WINDOW", window)
        found = read_file(tmp_path, "f.json", text, value={"field": "v"})
        assert orjson.loads(found.values["a"]) == orjson.loads(found.values["b"]) == orjson.loads(value), window


@pytest.mark.usefixtures("small_rows")
@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_that_does_not_fit_the_memory_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"f.{kind}").write_bytes(b'[{"k":"'[kind == "jsonl" :] + b"x" * (2 << 20) + b'"}]')
    with pytest.raises(NotEnoughRoom, match=rf"f\.{kind} (line 1, with )?row 1.*memory limit allows"):
        read(dataset(tmp_path, f"f.{kind}"), tmp_path / "scratch", MIN_MEMORY_LIMIT)


DEEP = "[" * 1000 + "]" * 1000
JUST = "[" * 249 + "1.50" + "]" * 249
"""A value just as deep as one may be in its row."""


@pytest.mark.parametrize(
    "deep", [DEEP, "[" * 100_000 + "]" * 100_000, '{"a":[' * 500 + '"]"' + "]}" * 500, "[" + JUST + "]"]
)
def test_rows_nested_too_deeply_are_rejected(tmp_path: Path, deep: str) -> None:
    """The deep value may be anywhere in the row, for example after a number that is parsed again."""
    rows = ['{"k":"a","x":1}', f'{{"k":"b","v":{deep}}}', f'{{"x":1.5,"k":"c","v":{deep}}}', '{"k":"d"}']
    found = read_rows(tmp_path, "jsonl", rows, value={"columns": ["x"]})
    assert list(found.values) == ["a", "d"]
    assert found.reasons == [(2, "it is nested more than 250 deep"), (3, "it is nested more than 250 deep")]
    with pytest.raises(BadSource, match=r"f\.json row 2 is nested more than 250 deep"):
        read_rows(tmp_path, "json", rows, value={"columns": ["x"]})


@pytest.mark.parametrize("kind", ["jsonl", "json"])
def test_what_is_not_too_deep_is_kept(tmp_path: Path, kind: str) -> None:
    many = "[" + ",".join(["[]", '"[[{{"'] * 400) + "]"
    found = read_rows(tmp_path, kind, [f'{{"k":"a","v":{JUST}}}', f'{{"k":"b","v":{many}}}'])
    assert found.values == {"a": f'{{"v":{JUST}}}', "b": f'{{"v":{many}}}'}


@pytest.mark.parametrize("kind", ["jsonl", "json"])
@pytest.mark.parametrize("number", ["9" * 5000, "-1e999", "1" + "0" * 400, "0." + "3" * 5000])
def test_numbers_beyond_all_floats_keep_their_text(tmp_path: Path, kind: str, number: str) -> None:
    assert read_rows(tmp_path, kind, [f'{{"k":"a","v":{number}}}']).values == {"a": f'{{"v":{number}}}'}


@pytest.mark.parametrize("value", ['"nope"', "1", '{"a":1}'])
def test_a_column_that_holds_no_json_text_hints_at_value_field(tmp_path: Path, value: str) -> None:
    found = read_file(tmp_path, "f.jsonl", f'{{"k":"a","v":{value}}}\n', value={"column": "v"})
    assert "value.field: v" in found.reasons[0][1]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_long_number_that_is_no_key_is_reported_briefly(tmp_path: Path, kind: str) -> None:
    (reason,) = read_rows(tmp_path, kind, [f'{{"k":1.{"0" * 100_000}}}']).reasons
    assert reason == (1, f"the key column k is 1.{'0' * 78}…; a key is text or an integer")


def test_a_row_is_searched_once_for_a_negative_zero() -> None:
    """One search for each nested value would take time that grows with the square of the row's size."""

    class Text(bytes):
        searches = 0

        def __contains__(self, part: Any) -> bool:
            self.searches += 1
            return super().__contains__(part)

    text = Text(orjson.dumps({"items": [{"quantity": number} for number in range(100)]}))
    assert json_rows.is_exact(orjson.loads(bytes(text)), text)
    assert text.searches == 1
    nested = b'{"items":[{"quantity":1},{"quantity":-0}]}'
    assert not json_rows.is_exact(orjson.loads(nested), nested)
