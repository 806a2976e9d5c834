"""Partition columns: those that Spark and Hive write into the names of folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sources import dataset, read
from test_build_parquet import parquet

from lookupdb.builder.rows import read_partitions
from lookupdb.errors import BadSource


def content(folder: Path, form: str, key: str) -> bytes:
    if form == "parquet":
        return parquet(folder, f"SELECT '{key}' AS k, 1 AS v")
    return {"csv": f"k,v\n{key},1\n", "jsonl": f'{{"k":"{key}","v":1}}\n', "json": f'[{{"k":"{key}","v":1}}]'}[
        form
    ].encode()


def write(folder: Path, form: str, *places: str) -> None:
    for place in places:
        (folder / place).mkdir(parents=True)
        (folder / place / f"part-0.{form}").write_bytes(content(folder, form, "a"))


@pytest.mark.parametrize("form", ["csv", "jsonl", "json", "parquet"])
def test_a_column_of_the_path_is_read_if_the_spec_names_it(tmp_path: Path, form: str) -> None:
    write(tmp_path, form, "t/country=DE/year=2026", "t/country=a%2Fb/year=__HIVE_DEFAULT_PARTITION__")
    one = '"1"' if form == "csv" else "1"
    url = f"t/**/*.{form}"
    found = read(dataset(tmp_path, url, ["country", "k"]), tmp_path / "scratch")
    assert found.values == {"DE:a": f'{{"v":{one}}}', "a/b:a": f'{{"v":{one}}}'}
    spec = dataset(tmp_path, url, ["country", "k"], value={"columns": ["year", "v"]})
    assert read(spec, tmp_path / "scratch").values == {
        "DE:a": f'{{"year":"2026","v":{one}}}',
        "a/b:a": f'{{"year":null,"v":{one}}}',
    }
    null_key = read(dataset(tmp_path, url, ["year", "k"]), tmp_path / "scratch")
    assert list(null_key.values) == ["2026:a"]
    assert [reason for _, reason in null_key.reasons] == ["the key column year is null"]
    assert read(dataset(tmp_path, f"t/country=DE/*/*.{form}"), tmp_path / "scratch").values == {"a": f'{{"v":{one}}}'}


def test_the_files_own_column_comes_first(tmp_path: Path) -> None:
    for form in ("csv", "jsonl", "json", "parquet"):
        write(tmp_path, form, f"{form}/k=b")
        assert list(read(dataset(tmp_path, f"{form}/*/*.{form}"), tmp_path / "scratch").values) == ["a"]


def test_types_of_csv_hold_for_columns_of_the_path(tmp_path: Path) -> None:
    write(tmp_path, "csv", "year=2026")
    csv = {"columns": [{"name": "year", "type": "integer"}]}
    spec = dataset(tmp_path, "*/*.csv", source={"csv": csv})
    assert read(spec, tmp_path / "scratch").values == {"a": '{"v":"1","year":2026}'}


def test_without_a_header_the_folder_has_the_column(tmp_path: Path) -> None:
    (tmp_path / "year=2026").mkdir()
    (tmp_path / "year=2026" / "1.csv").write_text("a,x\n")
    columns = [{"name": "k"}, {"name": "t"}, {"name": "year", "type": "integer"}]
    spec = dataset(tmp_path, "*/*.csv", source={"csv": {"header": False, "columns": columns}})
    assert read(spec, tmp_path / "scratch").values == {"a": '{"t":"x","year":2026}'}


def test_a_misspelt_column_of_the_path_gets_the_near_one(tmp_path: Path) -> None:
    write(tmp_path, "csv", "country=DE")
    with pytest.raises(BadSource, match=r"did you mean 'country'\?\n.* and those of its path country"):
        read(dataset(tmp_path, "*/*.csv", ["contry", "k"]), tmp_path / "scratch")


def test_a_file_outside_of_such_a_folder_lacks_the_column(tmp_path: Path) -> None:
    write(tmp_path, "csv", "t/country=DE", "t/rest")
    with pytest.raises(BadSource, match="names the column 'country', which is not there"):
        read(dataset(tmp_path, "t/*/*.csv", ["country", "k"]), tmp_path / "scratch")


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("s3://bucket/a=1/b%3Dc=%20x/f=g.csv", {"a": "1", "b=c": " x"}),
        ("file:///t/a=x%2520y/f.csv", {"a": "x y"}),
        ("a=b=c/=d/e/f.csv", {"a": "b=c"}),
        ("a=%E9/f.csv", {"a": "%E9"}),
        ("https://host/a=1/f.csv?b=2/", {"a": "1"}),
    ],
)
def test_names_and_values_are_escaped_in_paths(url: str, found: dict[str, str]) -> None:
    assert read_partitions(url) == found
