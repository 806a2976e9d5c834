"""One JSON object of key: value: the names of its members are the keys, and any JSON a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.sources import Read, dataset, read

from lookupdb.builder import json_rows
from lookupdb.builder.options import MIN_MEMORY_LIMIT
from lookupdb.dataset.spec import DatasetSpec, parse_resource
from lookupdb.errors import BadSource, InvalidManifest, NotEnoughRoom


def of_members(folder: Path, url: str = "f.json", normalize: tuple[str, ...] = (), **spec: Any) -> DatasetSpec:
    key = {"memberNames": True, "normalize": list(normalize)}
    resource = {
        "apiVersion": "lookupdb.dev/v1alpha1",
        "kind": "LookupDataset",
        "metadata": {"name": "test"},
        "spec": {**spec, "key": key, "source": {"url": url, **spec.get("source", {})}},
    }
    return parse_resource(resource, folder)


def read_members(folder: Path, text: str | bytes, **spec: Any) -> Read:
    (folder / "f.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(of_members(folder, **spec), folder / "scratch")


@pytest.mark.parametrize(
    "value",
    [
        '{"x":1.10,"y":[null]}',
        '[1,"two",{"three":3}]',
        '"text"',
        "12345678901234567890.50",
        "true",
        pytest.param("null", id="null, which is a value and not a missing key"),
        "{}",
        '""',
    ],
)
def test_any_json_is_a_value(tmp_path: Path, value: str) -> None:
    found = read_members(tmp_path, f'\ufeff {{ "a" : {value} ,\n"b":1}} \n')
    assert found.values == {"a": value, "b": "1"}
    assert found.rows == 2


@pytest.mark.parametrize("number", ["1.5", "-0.25", "1e5", "1E-5", "2.5e+17", "0", "12345"])
def test_a_number_may_stand_across_the_end_of_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setattr(json_rows, "_WINDOW", 4096)
    for before in range(len(number) + 2):
        padding = " " * (4096 - len('{"a":') - before)
        assert read_members(tmp_path, f'{padding}{{"a":{number},"b":1}}').values == {"a": number, "b": "1"}
        assert read_members(tmp_path, f'{padding}{{"a":{number}}}').values == {"a": number}


def test_names_are_keys_as_any_other(tmp_path: Path) -> None:
    found = read_members(
        tmp_path, '{" A\\u00e9 ": 1, "": 2, "\\ud800": 3, "b\\"": 4}', normalize=("strip", "lowercase")
    )
    assert found.values == {"a\u00e9": "1", 'b"': "4"}
    assert [row for row, _ in found.reasons] == [2, 3]
    assert found.reasons[0][1] == "the key is empty"


def test_an_empty_object_holds_no_rows(tmp_path: Path) -> None:
    assert read_members(tmp_path, " {} ").rows == 0


def test_of_objects_a_part_may_be_the_value(tmp_path: Path) -> None:
    text = '{"a":{"x":1,"y":{"z":[2]},"raw":"t"},"b":[1],"c":null,"d":{"y":{"z":3},"raw":"u"}}'
    columns = read_members(tmp_path, text, value={"columns": ["x", "y.z"]})
    assert columns.values == {"a": '{"x":1,"y.z":[2]}', "d": '{"y.z":3}'}
    assert columns.reasons == [
        (2, "its value is an array, but value.columns selects from objects"),
        (3, "its value is null, but value.columns selects from objects"),
    ]
    assert read_members(tmp_path, text, value={"field": "y.z"}).values == {"a": "[2]", "d": "3"}
    assert read_members(tmp_path, text, value={"column": "raw", "format": "raw"}).values == {"a": "t", "d": "u"}
    with pytest.raises(BadSource, match="names the column 'nope'"):
        read_members(tmp_path, text, value={"columns": ["nope"]})


def test_names_that_stand_twice_are_duplicates(tmp_path: Path) -> None:
    text = '{"a":1,"b":2,"a":3}'
    # The policy is applied after sorting: both are records here, in the order in which they stand.
    assert [(key, value, row) for key, value, _, row in read_members(tmp_path, text).records] == [
        (b"a", b"1", 1),
        (b"a", b"3", 3),
        (b"b", b"2", 2),
    ]


def test_a_member_nested_too_deeply_fails_the_build(tmp_path: Path) -> None:
    deep = '[{"\\\\\\"]":' * 2000 + "1" + "}]" * 2000
    with pytest.raises(BadSource, match=r"f\.json row 1 is nested more than 250 deep"):
        read_members(tmp_path, f'{{"a":{deep},"b":2}}')


def test_it_is_read_through_a_window(tmp_path: Path) -> None:
    text = "{" + ",".join(f'"{number}":["{"x" * 5000}"]' for number in range(2000)) + "}"
    found = read_members(tmp_path, text)
    assert found.rows == 2000
    (tmp_path / "f.json").write_text('{"a":"' + "x" * (20 << 20) + '"}')
    with pytest.raises(NotEnoughRoom, match=r"f\.json row 1 is longer than"):
        read(of_members(tmp_path), tmp_path / "scratch", MIN_MEMORY_LIMIT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "f.json is not a JSON object: it begins with '[', expected '{'"),
        ("", "f.json is empty, expected a JSON object"),
        ('{"a":1', "after row 1: expected ',' or '}', found the end of the file"),
        ('{"a":1,}', "row 2 is not JSON: expected a member's name in quotes, found '}'"),
        ('{"a":1,', "row 2 is not JSON: expected a member's name in quotes, found the end of the file, at line 1"),
        ("{1:2}", "row 1 is not JSON: expected a member's name in quotes, found '1'"),
        ('{"a" 1}', "row 1 is not JSON: expected ':' after the member's name, found '1'"),
        ('{"a:SECRET"}', "row 1 is not JSON: expected ':' after the member's name, found '}', at line 1, column 12"),
        ('{"a":}', "row 1 is not JSON"),
        ('{"a":1} {', "expected nothing after the object, found '{'"),
        (b'{"\xff":1}', "f.json is not valid UTF-8"),
    ],
)
def test_a_bad_file_is_reported_with_its_row(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(BadSource) as raised:
        read_members(tmp_path, text)
    assert message in str(raised.value)
    assert "SECRET" not in str(raised.value)


def test_an_array_read_so_and_an_object_not_read_so_say_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match=r"key\.columns for an array"):
        read_members(tmp_path, "[]")
    (tmp_path / "f.json").write_text("{}")
    with pytest.raises(BadSource, match=r"key\.memberNames: true is for one object of key: value"):
        read(dataset(tmp_path, "f.json"), tmp_path / "scratch")


def test_other_formats_have_no_members(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("k\n")
    with pytest.raises(BadSource, match=r"f\.csv is csv by its name, but key.memberNames needs one JSON object"):
        read(of_members(tmp_path, "f.csv"), tmp_path / "scratch")
    with pytest.raises(InvalidManifest, match=r"key\.memberNames is for source.format json"):
        of_members(tmp_path, source={"format": "jsonl"})


def test_a_spec_without_it_keeps_its_digest(tmp_path: Path) -> None:
    """Generations that were built before there was this field are still of their specs."""
    assert dataset(None, "s3://b/f.csv").content_hash() == "f717976d2c90d1b77064d144e4927a9b"
    assert of_members(tmp_path).content_hash() != dataset(tmp_path, "f.json").content_hash()


def test_it_comes_through_to_another_process(tmp_path: Path) -> None:
    spec = of_members(tmp_path)
    assert DatasetSpec.from_json(spec.to_json()) == spec
