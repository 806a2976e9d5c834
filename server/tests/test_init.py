"""`lookupdb init`: the manifest that it guesses from the first rows of a source, and what it says of each guess."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner, Result
from deltalake import write_deltalake
from support.tables import make_catalog
from support.web import web_file

from lookupdb import store
from lookupdb.builder.build import build_generation
from lookupdb.builder.options import BuildOptions, SilentProgress
from lookupdb.cli.manifests import init as command
from lookupdb.dataset.spec import read_manifest
from lookupdb.errors import BadSource, InvalidManifest, UsageError
from lookupdb.wording import escape_controls

PEOPLE = "email,name,age,active,zip\nAda@x.org,Ada,36,True,80331\nalan@x.org,Alan,,False,10115\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*words: str) -> Result:
    return CliRunner().invoke(command, list(words), standalone_mode=False)


def guess(*words: str) -> dict[str, Any]:
    """Return the spec that is printed."""
    result = init(*words, "-o", "-")
    assert result.exception is None, result.exception
    spec: dict[str, Any] = yaml.load(result.stdout, yaml.CSafeLoader)["spec"]  # a thousand columns take a while
    return spec


def write(name: str, content: str | bytes) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def text(name: str) -> dict[str, str]:
    return {"name": name}


def integer(name: str) -> dict[str, str]:
    return {"name": name, "type": "integer", "empty": "null"}


def number(name: str) -> dict[str, str]:
    return {"name": name, "type": "number", "empty": "null"}


def records(manifest: Path) -> int:
    """Build the manifest, and return the number of its records."""
    result = build_generation(
        read_manifest(manifest), store.open_store("store"), BuildOptions(scratch=Path("scratch")), SilentProgress()
    )
    assert result.records is not None
    return result.records


class TestManifest:
    def test_is_written_beside_the_file_and_builds(self) -> None:
        write("people.csv", PEOPLE)
        result = init("people.csv")
        assert result.exception is None
        assert yaml.safe_load(Path("people.yaml").read_text()) == {
            "apiVersion": "lookupdb.dev/v1alpha1",
            "kind": "LookupDataset",
            "metadata": {"name": "people"},
            "spec": {
                "source": {
                    "url": "people.csv",
                    "csv": {
                        "columns": [
                            {"name": "age", "type": "integer", "empty": "null"},
                            {"name": "active", "type": "boolean", "empty": "null"},
                        ]
                    },
                },
                "key": {"columns": ["email"]},
                "shards": 1,
            },
        }
        assert result.stdout.splitlines()[-1].endswith("lookupdb up -f people.yaml")
        assert records(Path("people.yaml")) == 2

    def test_and_the_terminal_give_the_reason_of_each_guess(self) -> None:
        write("people.csv", PEOPLE.replace(",", ";"))
        said, text = init("people.csv").stdout, Path("people.yaml").read_text()
        for reason in (
            "email: unique in all 2 rows and named like a key; other unique columns: name, zip",
            "';': it divides the first 3 rows into 5 fields each",
            "age integer, active boolean: as in all 2 rows",
            "zip stays text: its name says that the digits are not a number",
            f"1: one for each GiB; the source has 1 file, {len(PEOPLE)} bytes in all",
        ):
            assert reason in said
            assert reason in text
        assert "  email   text     Ada@x.org" in said
        assert "Ada@x.org" not in text, "values of the source stay out of a file that is committed"

    def test_of_several_columns_of_digits_that_stay_text(self) -> None:
        write("people.csv", PEOPLE.replace("age", "phone"))
        assert (
            "text         phone, zip stay text: their names say that the digits are not a number\n"
            in init("people.csv").stdout
        )

    def test_shows_what_is_no_number_as_one(self) -> None:
        write("a.jsonl", '{"id": 1, "x": NaN, "y": [Infinity]}\n{"id": 2, "x": 5, "y": []}\n')
        said = init("a.jsonl").stdout
        assert re.search(r"  x +number +NaN$", said, re.MULTILINE)
        assert re.search(r'  y +json +\["NaN"\]$', said, re.MULTILINE)

    def test_that_exists_is_kept_without_force(self) -> None:
        write("people.csv", PEOPLE)
        write("people.yaml", "precious")
        assert isinstance(init("people.csv").exception, UsageError)
        assert Path("people.yaml").read_text() == "precious"
        write("people.csv", b"\xff")
        assert "people.yaml exists" in str(init("people.csv").exception), "before it looks at the source"
        write("people.csv", PEOPLE)
        assert init("people.csv", "--force").exception is None
        assert read_manifest(Path("people.yaml")).name == "people"

    def test_names_the_source_from_its_own_folder(self) -> None:
        write("data/people.csv", PEOPLE)
        Path("manifests").mkdir()
        assert init("data/people.csv", "-o", "manifests/p.yaml").exception is None
        assert yaml.safe_load(Path("manifests/p.yaml").read_text())["spec"]["source"]["url"] == "../data/people.csv"
        assert records(Path("manifests/p.yaml")) == 2
        assert isinstance(init("data/people.csv", "-o", "missing/p.yaml").exception, UsageError)

    @pytest.mark.parametrize(
        ("file", "name"),
        [("2024 My_People.v2.csv", "my-people"), ("ü.csv", "dataset"), (f"{'a' * 60}.csv", "a" * 40)],
    )
    def test_is_named_after_the_file(self, file: str, name: str) -> None:
        write(file, PEOPLE)
        assert yaml.safe_load(init(file, "-o", "-").stdout)["metadata"]["name"] == name

    def test_takes_the_name_that_is_given(self) -> None:
        write("people.csv", PEOPLE)
        init("people.csv", "--name", "persons")
        assert read_manifest(Path("persons.yaml")).name == "persons"
        assert isinstance(init("people.csv", "--name", "My_People").exception, InvalidManifest)

    def test_takes_any_names_and_values(self) -> None:
        write("odd.csv", '"id: #1","a\nb",\'x\',"{y}",- z,\n1,1,2,3,4,\x1b[31m\n2,2,3,4,5,\n')
        result = init("odd.csv")
        assert result.exception is None
        assert "\x1b" not in result.stdout
        assert records(Path("odd.yaml")) == 2

    @pytest.mark.parametrize("character", ["\0", "\x1b", "\x7f", "\x84", "\x85", "\u2028", "\ufeff", "\uffff"])
    def test_takes_a_name_with_a_character_that_yaml_escapes(self, character: str) -> None:
        write("odd.csv", f"a{character}a,b{character}b\nx,1\n")
        result = init("odd.csv")
        assert result.exception is None
        assert escape_controls(f"a{character}a: unique") in result.stdout
        spec = yaml.safe_load(Path("odd.yaml").read_text())["spec"]
        assert spec["key"]["columns"] == [f"a{character}a"]
        assert [column["name"] for column in spec["source"]["csv"]["columns"]] == [f"b{character}b"]


@pytest.mark.parametrize(
    ("name", "content", "source"),
    [
        ("a.csv", "id;n\n1;x\n2;y\n", {"csv": {"delimiter": ";"}}),
        ("a.csv", "id|n\n1|x, y\n2|y, z\n", {"csv": {"delimiter": "|"}}),
        ("a.tsv", "id\tn\n1\tx\n2\ty\n", {}),
        ("a.txt", "id\tn\n1\tx\n2\ty\n", {"format": "csv", "csv": {"delimiter": "\t"}}),
        ("a.csv", "\ufeffid,n\r\n1,x\r\n2,y\r\n", {}),
        ("a.csv", 'id,n\n1,"two\nlines; and; more"\n2,y\n', {}),
        ("a.csv", "id\n1\n2\n", {}),
        ("a.csv", "id,n\n1,x\u2028y\n2,\x0c\n", {}),
        ("a.csv", "id,n\n1,\\N\n2,NULL\n", {"csv": {"nullValues": ["\\N", "NULL"]}}),
        ("a.csv", 'id,n\n1,"say \\"hi\\", now"\n2,y\n', {"csv": {"escape": "\\"}}),
        ("a.csv", "1,x\n2,y\n", {"csv": {"header": False, "columns": [{"name": "column1"}, {"name": "column2"}]}}),
        ("a.csv", "id,2019,2020\n1,5,6\n2,6,7\n", {"csv": {"columns": ["2019", "2020"]}}),
        ("a.csv", "land,2019,2020\nDE,5,6\nFR,6,7\n", {"csv": {"columns": ["2019", "2020"]}}),
        ("a.csv", "land,2024-01-01,v\nDE,5,x\nFR,6,y\n", {"csv": {"columns": [integer("2024-01-01")]}}),
        ("a.csv", "1950,2.5\n17,3.5\n", {"csv": {"header": False, "columns": [text("column1"), number("column2")]}}),
        ("a.csv", "x,1815\ny,1912\n", {"csv": {"header": False, "columns": [text("column1"), integer("column2")]}}),
        (
            "a.tsv",
            "x\t\\N\ny\t5\n",
            {"csv": {"nullValues": ["\\N"], "header": False, "columns": [text("column1"), integer("column2")]}},
        ),
        ("a.jsonl", '{"id":1,"n":"x"}\n{"id":2,"n":"y"}\n', {}),
        ("a.json", '{"id":1,"n":"x"}\n{"id":2,"n":"y"}\n', {"format": "jsonl"}),
        ("a.json", '[{"id":1,"n":"x"},{"id":2,"n":"y"}]', {}),
        (
            "a",
            gzip.compress(b'[{"id":1,"n":"x"},{"id":2,"n":"y"}]', mtime=0),
            {"format": "json", "compression": "gzip"},
        ),
        ("a.csv.gz", gzip.compress(b"id,n\n1,x\n2,y\n", mtime=0), {}),
    ],
)
def test_the_dialect_of_a_file_is_found(name: str, content: str | bytes, source: dict[str, Any]) -> None:
    write(name, content)
    found = guess(name)["source"]
    typed = found.get("csv", {}).get("columns", [])
    if source.get("csv", {}).get("columns", [""])[0] == "2019":
        found["csv"]["columns"] = [column["name"] for column in typed]
    assert found == {"url": name, **source}
    assert init(name, "-o", "m.yaml").exception is None
    assert records(Path("m.yaml")) == 2


def test_a_header_that_may_be_data_is_said() -> None:
    write("a.csv", "land,2019,2020\nDE,1999,5\nFR,6,7\n")
    assert guess("a.csv")["key"] == {"columns": ["land"]}
    assert (
        "# Guess: the first row, land, 2019, 2020: its years and dates may be names." in init("a.csv", "-o", "-").stdout
    )


def test_digits_that_are_no_numbers_stay_text() -> None:
    names = ["ZIP", "Phone", "version", "product_code"]
    write("a.csv", f"id,{','.join(names)},n\n1,80331,49891,1.10,12E4,1\n2,10115,49301,1.9,1305,2\n")
    assert guess("a.csv")["source"]["csv"]["columns"] == [integer("n")]


@pytest.mark.parametrize(
    ("rows", "key"),
    [
        ("name,id\na,1\nb,2\n", ["id"]),
        ("name,email,person_id\na,x,1\nb,y,2\n", ["person_id"]),
        ("b_id,iata\n1,1\n2,2\n", ["iata"]),
        ("b_id,a_id,sku\n1,1,1\n2,2,2\n", ["a_id"]),
        ("title,paid,orderId\na,1,1\nb,2,2\n", ["orderId"]),
        ("title,order_id\na,1\nb,2\n", ["order_id"]),
        ("name,store id\na,5\nb,6\n", ["store id"]),
        ("title,postal code\na,1\nb,2\n", ["postal code"]),
        ("id,email\n1,a\n1,b\n", ["email"]),
        ("id,sku\n,a\n2,b\n", ["sku"]),
        ("rate,word\n1.5,a\n2.5,b\n", ["word"]),
        ("from,to,rate\na,b,1\na,c,1\nb,c,1\n", ["from", "to"]),
        ("kind,id\na,1\na,1\n", ["id"]),
        ("name,id\n", ["id"]),
    ],
)
def test_the_key_is_a_column_of_different_values(rows: str, key: list[str]) -> None:
    write("a.csv", rows)
    assert guess("a.csv")["key"] == {"columns": key}


class TestKey:
    def test_that_is_not_unique_is_said(self) -> None:
        write("a.csv", "kind,id\na,1\na,1\nb,\n")
        said = init("a.csv", "-o", "-").stderr
        assert "kind" not in guess("a.csv")["key"]["columns"]
        assert (
            "id, by its name, but no column is unique: rows that repeat an earlier key: 1 of 3; rows that have no"
            in said
        )
        assert "the build will fail: choose columns with --key, or set duplicates" in said

    @pytest.mark.parametrize(
        ("file", "content", "said"),
        [
            ("a.csv", "zeta,beta\nx,1\nx,1\n", "zeta, the first that can be a key, but no column is unique"),
            ("a.csv", "zeta,beta\n", "zeta, the first that can be a key: the file has no rows"),
            (
                "a.jsonl",
                '{"customer":{"id":"A1"},"total":3}\n',
                "customer holds objects: a dot reaches into them, as in --key customer.id\n",
            ),
        ],
    )
    def test_that_is_not_named_like_one_is_said(self, file: str, content: str, said: str) -> None:
        write(file, content)
        assert said in init(file).stdout

    @pytest.mark.parametrize(
        ("emails", "reason"),
        [
            ({3: ""}, "it is empty in row 3"),
            ({3: "", 4: ""}, "it is empty in row 3 (the first of 2)"),
            ({5: "p2"}, "rows 2 and 5 have the same email"),
            ({4: "p1", 5: "p2", 3: ""}, "it is empty in row 3; rows 1 and 4 have the same email (the first of 2)"),
        ],
    )
    def test_says_why_a_better_name_was_passed_over(self, emails: dict[int, str], reason: str) -> None:
        write("a.csv", "name,email\n" + "".join(f"n{row},{emails.get(row, f'p{row}')}\n" for row in range(1, 6)))
        said, comment = init("a.csv").stdout, " ".join(Path("a.yaml").read_text().split())
        advice = "To look up by email, correct these rows and run init again, or give --key email."
        assert re.sub("^ +", "", said, flags=re.MULTILINE).count(f"\nemail is no key: {reason}.\n{advice}\n") == 1, said
        assert "key          name: unique in all 5 rows.\n" in said
        assert f"name: unique in all 5 rows. email is no key: {reason}. {advice}" in comment.replace(" # ", " ")

    def test_of_two_columns_says_so_too_but_never_of_a_name_that_is_no_better(self) -> None:
        write("a.csv", "name,city,email\na,b,x@x.org\na,c,y@x.org\nb,c,\n")
        said = init("a.csv").stdout
        assert "name and city: together they are unique in all 3 rows" in said
        assert "email is no key: it is empty in row 3." in said
        write("c.csv", "city,user email\na,x@x.org\nb,x@x.org\n")
        assert "or give --key 'user email'." in init("c.csv").stdout
        write("b.csv", "id,email,city\n1,x@x.org,b\n2,x@x.org,b\n")
        assert "no key" not in init("b.csv").stdout

    def test_is_the_one_that_is_given(self) -> None:
        write("a.jsonl", '{"user":{"id":7},"kind":"a","id":1}\n{"user":{"id":8},"kind":"a","id":2}\n')
        assert guess("a.jsonl", "--key", "user.id")["key"] == {"columns": ["user.id"]}
        assert guess("a.jsonl", "--key", "kind", "--key", "id")["key"] == {"columns": ["kind", "id"]}
        assert "as --key says, but rows that repeat an earlier key: 1 of 2" in init("a.jsonl", "--key", "kind").stdout
        missing = init("a.jsonl", "--key", "kid", "-o", "-").exception
        assert isinstance(missing, BadSource)
        assert "--key names the column 'kid', which is not there; did you mean" in missing.message
        joined = init("a.jsonl", "--key", "kind, id", "-o", "-").exception
        assert isinstance(joined, BadSource)
        assert joined.hint == "repeat --key for each: --key kind --key id"

    def test_of_an_object_is_the_names_of_its_members(self) -> None:
        write("features.json", '{"checkout.express": {"enabled": true}, "search.pageSize": 50}')
        assert guess("features.json") == {"source": {"url": "features.json"}, "key": {"memberNames": True}, "shards": 1}
        write("wrapped.json", '{"data": [{"id": 1}], "total": 1}')
        assert "If the member 'data' holds the records, make a file" in init("wrapped.json").stdout

    def test_is_missing_in_a_file_that_has_none(self) -> None:
        write("a.jsonl", '{"at":{"x":1}}\n{"at":{"x":2}}\n')
        assert "name the columns of the key with --key" in str(init("a.jsonl").exception)


class TestSources:
    def test_of_a_folder_are_its_files(self) -> None:
        for country in ("DE", "FR"):
            write(f"people/country={country}/1.csv", f"id,n\n{country}1,5\n")
        write("people/_SUCCESS", "")
        assert guess("people")["source"]["url"] == "people/**/*.csv"
        said = init("people", "-o", "p.yaml").stdout
        assert "their names hold country" in said
        assert "id: unique in the first row" in said
        assert records(Path("p.yaml")) == 2
        write("flat/1.jsonl.gz", gzip.compress(b'{"id":1}\n'))
        assert guess("flat")["source"] == {"url": "flat/*.jsonl.gz"}
        write("flat/2.csv", "id\n1\n")
        assert "files of several kinds: *.csv, *.jsonl.gz" in str(init("flat").exception)
        Path("empty").mkdir()
        assert "no file whose name ends in .csv" in str(init("empty").exception)

    @pytest.mark.parametrize("name", ["export [2026]", "a*b", "what?"])
    def test_of_a_folder_whose_name_looks_like_a_pattern(self, name: str) -> None:
        write(f"{name}/1.csv", "id,n\n1,x\n")
        write("axb/1.csv", "id,n\n2,y\n")
        init(name, "-o", "p.yaml")
        assert records(Path("p.yaml")) == 1

    def test_may_be_several_or_a_pattern(self) -> None:
        write("a/1.csv", "id,n\n1,x\n")
        write("a/2.csv", "id,n\n2,y\n")
        assert guess("a/1.csv", "a/2.csv")["source"] == {"urls": ["a/1.csv", "a/2.csv"]}
        assert guess("a/*.csv")["source"] == {"url": "a/*.csv"}

    def test_of_parquet_need_no_types(self) -> None:
        duckdb.execute("COPY (SELECT 'n' || range AS name, range AS id FROM range(20000)) TO 'p.parquet'")
        assert guess("p.parquet") == {"source": {"url": "p.parquet"}, "key": {"columns": ["id"]}, "shards": 1}
        Path("p.parquet").rename("p")
        assert guess("p")["source"] == {"url": "p", "format": "parquet"}

    def test_of_a_table_are_its_data_files(self, folder: Path) -> None:
        rows = pa.table({"name": ["a", "a", "b"], "id": [1, 2, 3]})
        write_deltalake(folder / "lake", rows)
        table = make_catalog(folder / "warehouse").create_table("db.people", rows.schema)
        table.append(rows)
        assert guess("lake") == {"source": {"url": "lake", "format": "delta"}, "key": {"columns": ["id"]}, "shards": 1}
        place = Path(table.location().removeprefix("file://"))
        spec = guess(str(place))
        assert (spec["source"]["format"], spec["key"]) == ("iceberg", {"columns": ["id"]})
        assert spec["source"]["url"].endswith(Path(table.metadata_location).name)
        for source in (str(folder / "lake"), str(place)):
            assert init(source, "-o", "m.yaml", "--force").exception is None
            assert records(Path("m.yaml")) == 3
        assert guess(f"file://{folder}/lake", "--format", "delta")["key"] == {"columns": ["id"]}

    def test_are_urls_too(self) -> None:
        duckdb.execute("COPY (SELECT 1 AS id) TO 'p.parquet'")
        write("people.csv", PEOPLE)
        for file, key in (("people.csv", "email"), ("p.parquet", "id")):
            with web_file(Path(file).read_bytes(), ETag='"1"') as web:
                result = init(f"{web.url}/{file}?signature=secret", "-o", "-")
                assert result.exception is None
                spec = yaml.safe_load(result.stdout)["spec"]
                assert spec["source"]["url"] == f"{web.url}/{file}?signature=secret"
                assert spec["key"] == {"columns": [key]}
                assert "secret" not in result.stderr

    def test_that_ship_with_the_program_build(self) -> None:
        assert init("example://airports.csv.gz").exception is None
        assert records(Path("airports.yaml")) == 28298

    def test_of_a_long_file_are_looked_at_in_part(self) -> None:
        lines = "".join(f"{number},{'x' * 100}\n" for number in range(20_000))
        write("long.csv.gz", gzip.compress(f"id,text\n{lines}".encode(), 1))
        said = init("long.csv.gz").stdout
        assert "id: unique in the first 10,000 rows" in said
        assert "the source has 1 file, about" in said, "a compressed file does not say how long it is"
        write(
            "wide.csv.gz",
            gzip.compress(
                b"id,text\n" + b"".join(b'%d,"%s"\n' % (n, (b"x" * 99 + b"\n") * 6_000) for n in range(20)), 1
            ),
        )
        assert "id: unique in the first 13 rows" in init("wide.csv.gz").stdout

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "a.csv is empty"),
            (b"id,name\n1,Jos\xe9\n", "a.csv is not UTF-8: byte 14"),
            ("id,n\n1,x\n".encode("utf-16"), "is UTF-16 by its first bytes"),
            (b"id,id\n1,2\n", "names 'id' more than once"),
            (b"PK\x03\x04 and so on", "is a zip archive"),
            (b"PAR1\0\0\0", "is Parquet by its first bytes"),
            (b'"id"x,n\n1,2\n', "its header is not CSV"),
            (b'"id,n\n1,2\n', "its header is not CSV"),
            (b"id,n\n1,2,3\n", "row 1 (line 2): expected 2 fields, found 3"),
            (b"id,n\n1,2\n2,3,4\n", "a.csv row 2 (line 3): expected 2 fields, found 3"),
        ],
    )
    def test_that_cannot_be_read_are_errors(self, content: bytes, said: str) -> None:
        write("a.csv", content)
        result = init("a.csv")
        assert isinstance(result.exception, BadSource)
        assert said in result.exception.message
        assert not Path("a.yaml").exists()

    def test_in_a_volume_need_a_manifest_by_hand(self) -> None:
        assert isinstance(init("volume://people.csv").exception, UsageError)

    def test_with_more_columns_than_types_are_typed_in_part(self) -> None:
        write("a.csv", ",".join(f"c{n}" for n in range(1100)) + "\n" + ",".join(["1"] * 1100) + "\n")
        assert len(guess("a.csv")["source"]["csv"]["columns"]) == 1024


@pytest.mark.long
def test_two_commands_serve_an_own_file(folder: Path) -> None:
    """The first prints the second."""
    write("people.csv", PEOPLE)
    program = [sys.executable, "-m", "lookupdb"]
    run = subprocess.run([*program, "init", "people.csv"], capture_output=True, text=True, check=True, timeout=60)
    assert run.stderr == ""
    words = run.stdout.splitlines()[-1].split()
    assert words[-3:] == ["up", "-f", "people.yaml"]
    with subprocess.Popen(
        [*program, *words[-3:], "--port", "0", "--log-format", "json"], stdout=subprocess.PIPE, text=True, cwd=folder
    ) as up:
        assert up.stdout is not None
        found = next((match for line in up.stdout if (match := re.search(r"http://127\.0\.0\.1:\d+", line))), None)
        try:
            assert found
            with urllib.request.urlopen(f"{found[0]}/v1/lookup/Ada@x.org", timeout=60) as answer:
                assert json.load(answer) == {"name": "Ada", "age": 36, "active": True, "zip": "80331"}
        finally:
            up.terminate()
