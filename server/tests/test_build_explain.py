"""`lookupdb build --explain`: what a build would do, and which columns it finds, without a build."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import duckdb
import pytest
from support.build_project import Project

from lookupdb import native
from lookupdb.errors import (
    BadSource,
    InvalidManifest,
    SourceMissing,
    StoreError,
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


class TestExplain:
    def test_says_what_would_be_done_and_does_nothing(self, project: Project) -> None:
        project.built()
        before = sorted(project.folder.rglob("*"))
        gates = {
            "maxShrinkPercent": 10,
            "maxChangedPercent": 30,
            "maxValueBytes": 4096,
            "requiredKeys": ["p1"],
            "expectedValues": [{"key": "p2", "value": "{}"}],
        }
        project.describe(gates=gates, duplicates="last")
        text = project.build("--explain").stdout
        for part in (
            "default/people",
            "people.csv",
            "KiB",
            "shard-00000-of-00002.lmdb … shard-00001-of-00002.lmdb",
            "at most 10 % fewer records than the active generation (g1 with 1,000 records)",
            "at most 30 % of the keys differ from it",
            "values of at most 4,096 bytes",
            "these keys are found: 'p1'",
            "these keys have the expected values: 'p2'",
            "its last row is kept",
            "1.0 GiB at most",
            f"{project.dataset.url}/g2",
            "free",
        ):
            assert part in text
        assert sorted(project.folder.rglob("*")) == before

    @pytest.mark.parametrize("words", [[], ["--json"]], ids=str)
    def test_ends_with_the_error_alone(self, project: Project, words: list[str]) -> None:
        (project.folder / "people.csv").unlink()
        ended = project.build("--explain", *words)
        assert (type(ended.exception), ended.stdout) == (SourceMissing, "")
        project.manifest.write_text("kind: Nothing\n")
        ended = project.build("--explain", *words)
        assert (type(ended.exception), ended.stdout) == (InvalidManifest, "")

    def test_says_whether_anything_would_be_built(self, project: Project) -> None:
        fingerprint = project.built()["fingerprint"]
        words, option = ("--explain", "--unless-fingerprint"), "in --unless-fingerprint"
        same = f"{fingerprint} is the one {option}"
        assert f"{same}: nothing would be built" in project.build(*words, fingerprint).stdout
        assert f"{fingerprint} is not the one {option}" in project.build(*words, "f" * 32).stdout
        project.dataset.remove("g1")
        assert f"{same}, but the store has no whole generation of it" in project.build(*words, fingerprint).stdout

    def test_says_when_a_cluster_looks_at_the_source(self, project: Project) -> None:
        assert "\nrefresh      no schedule: " in project.build("--explain").stdout
        project.describe(refresh={"schedule": "0 2 * * *", "timeZone": "Europe/Berlin"})
        assert "\nrefresh      '0 2 * * *' in Europe/Berlin: " in project.build("--explain").stdout
        project.describe(refresh={"schedule": "0 2 * * *"}, suspend=True)
        assert "\nrefresh      '0 2 * * *' in UTC, suspended\n" in project.build("--explain").stdout

    def test_says_that_steps_run_on_the_joined_text_of_a_key(self, project: Project) -> None:
        project.describe(key={"columns": ["id"], "normalize": ["strip"]})
        assert "id, then strip\n" in project.build("--explain").stdout
        project.describe(key={"columns": ["id", "name"], "separator": "/", "normalize": ["strip", "lowercase"]})
        text = project.build("--explain").stdout
        assert "id, name joined by '/', then, on the joined text, strip, lowercase\n" in text

    def test_says_what_is_left_out_where_there_is_no_cluster(self, project: Project) -> None:
        assert "left out" not in project.build("--explain").stdout
        project.describe(store={"url": "s3://team/lookups"}, adopt={"uid": "3f2b9c1e"})
        text = project.build("--explain").stdout
        assert "\nleft out     spec.store applies only in a cluster: " in text
        assert "\n             spec.adopt applies only in a cluster: " in text
        assert "spec.adopt" not in project.build("--explain", "--adopt", "3f2b9c1e").stdout, "it is not left out then"
        manifest = project.manifest.read_text()
        project.manifest.write_text(manifest.replace("  name: people", "  name: people\n  uid: 8d1c0a2e", 1))
        assert "left out" not in project.build("--explain").stdout, "a cluster has given it a uid"

    def test_fails_as_the_build_would(self, project: Project) -> None:
        (project.folder / "people.csv").unlink()
        assert isinstance(project.build("--explain").exception, BadSource)

    def test_says_that_the_store_cannot_be_written(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        project.store = project.folder / "people.csv" / "store"
        said = f"the build would fail: {project.folder / 'people.csv'} is not a folder"
        assert said in project.build("--explain").stdout
        assert isinstance(project.build().exception, StoreError)
        project.store = project.folder / "store"
        monkeypatch.setattr(os, "access", lambda path, _: Path(path) != project.folder)
        assert f"the build would fail: {project.folder} cannot be written to" in project.build("--explain").stdout

    def test_says_how_csv_is_read(self, project: Project) -> None:
        csv = {"escape": "\\", "nullValues": ["\\N", ""], "columns": [{"name": "score", "type": "integer"}]}
        project.describe(source={"url": "people.csv", "csv": csv})
        (project.folder / "people.csv").write_text("id,score\np1,1\n")
        lines = [line.strip() for line in project.build("--explain").stdout.splitlines()]
        at = lines.index("delimiter ',', quote '\"', escape '\\', the first row names the columns")
        assert lines[at + 1 : at + 3] == ["unquoted '\\N' or '' is null", "score: integer"]

    def test_says_of_a_header_what_a_build_would(self, project: Project) -> None:
        (project.folder / "people.csv").write_text('id,"the \\"name\\""\n')
        explained = project.build("--explain").exception
        assert "set source.csv.escape: '\\'" in str(explained)
        assert str(explained) == str(project.refused())

    def test_reads_the_header_of_a_file_that_is_here(self, project: Project) -> None:
        project.describe(key={"columns": ["idd"]})
        assert "'idd', which is not there; did you mean 'id'?" in str(project.build("--explain").exception)


FILES = {
    "e.csv": 'id,note,age,rate,tags,none\na,"two\nlines",007,1,[],\nb,x,8,1.5,{},\n',
    "e.jsonl": '{"id":"a","age":1,"rate":1,"on":true,"tags":["x"],"none":null}\n{"id":7,"rate":1.5}\n',
}
TABLES = {
    "e.csv": [
        "column  type     sample",
        "id      text     a",
        "note    text     two lines",
        "age     text     007",
        "rate    number   1",
        "tags    json     []",
        "none    unknown",
        'these look typed, but will be stored as text (in Python, the text "false" is true); to store types, write',
        "source.csv.columns:",
        "- {name: rate, type: number, empty: 'null'}",
        "- {name: tags, type: json, empty: 'null'}",
    ],
    "e.jsonl": [
        "column  type             sample",
        "id      integer or text  a",
        "age     integer          1",
        "rate    number           1",
        "on      boolean          true",
        'tags    json             ["x"]',
        "none    unknown",
    ],
    "e.parquet": [
        "column  type     sample",
        "id      integer  7",
        "day     text     2026-11-28",
        "score   number   1.50",
        "other   unknown",
    ],
}


class TestFirstRows:
    """``--explain`` shows the columns of a local file, with types and values from its first rows."""

    @pytest.mark.parametrize("file", TABLES)
    def test_are_shown_as_a_table(self, project: Project, file: str) -> None:
        path = project.folder / file
        if file in FILES:
            path.write_text(FILES[file])
        else:
            row = "7 AS id, DATE '2026-11-28' AS day, 1.50::DECIMAL(5, 2) AS score, 'x' AS other"
            duckdb.execute(f"COPY (SELECT {row}) TO '{path}' (FORMAT parquet)")
        value = {"columns": ["day", "score"]} if file == "e.parquet" else {}
        project.describe(source={"url": file}, value=value)
        text = project.build("--explain").stdout
        shown = text[text.index("\nfirst rows") : text.index("\ncolumns  ")].strip().splitlines()
        assert shown[0].startswith(f"first rows   {file} (types are a guess")
        assert [line.strip() for line in shown[1:]] == TABLES[file]

    def warned(self, project: Project) -> list[str]:
        text = project.build("--explain").stdout
        return re.findall(r"^ +- \{name: (\w+, type: \w+), empty: 'null'\}$", text, re.MULTILINE)

    def test_warn_of_fields_that_look_typed_and_would_be_text(self, project: Project) -> None:
        (project.folder / "people.csv").write_text("id,active,age,half\n1,True,3,t\n2,False,,f\n")
        assert self.warned(project) == ["active, type: boolean", "age, type: integer", "half, type: boolean"]
        columns = [{"name": "active", "type": "boolean"}]
        project.describe(source={"url": "people.csv", "csv": {"columns": columns}})
        assert self.warned(project) == ["age, type: integer", "half, type: boolean"]
        project.describe(value={"columns": ["half"]})
        assert self.warned(project) == ["half, type: boolean"]
        project.describe(value={"column": "active"})
        assert self.warned(project) == []

    @pytest.mark.parametrize("words", ["1,0", "no,no", "t,", "yes,maybe", "True,1"])
    def test_guess_booleans_only_from_words_for_both(self, project: Project, words: str) -> None:
        fields = words.split(",")
        (project.folder / "people.csv").write_text(f"id,v\n1,{fields[0]}\n2,{fields[1]}\n")
        assert "v       boolean" not in project.build("--explain").stdout

    @pytest.mark.parametrize("name", ["e.csv.gz", "e.json"])
    def test_of_compressed_files_and_documents_are_shown(self, project: Project, name: str) -> None:
        content = b'[{"id":"a","n":5}]' if name == "e.json" else gzip.compress(b"id,n\na,5\n")
        (project.folder / name).write_bytes(content)
        project.describe(source={"url": name})
        assert "  n       integer  5\n" in project.build("--explain").stdout

    def test_a_name_with_a_line_break_stays_on_its_line(self, project: Project) -> None:
        (project.folder / "people.csv").write_text('id,"a\nb"\n1,2\n')
        project.describe(source={"url": "people.csv"}, key={"columns": ["id"]})
        assert "\n               a\\nb    integer  2\n" in project.build("--explain").stdout

    def test_end_at_a_row_that_cannot_be_read(self, project: Project) -> None:
        (project.folder / "people.csv").write_text('id,name\n1,a\n2,"never closed\n')
        assert "  id      integer  1\n" in project.build("--explain").stdout


class TestExplainedColumns:
    """``--explain`` checks the spec's columns against those that files name."""

    def lines(self, project: Project, file: str, key: str) -> list[str]:
        project.describe(source={"url": file}, key={"columns": [key]})
        result = project.build("--explain")
        if result.exception is not None:
            return str(result.exception).splitlines()
        text = result.stdout
        return [line.strip() for line in text[text.index("\ncolumns") : text.index("\nkey  ")].splitlines() if line]

    def test_those_of_parquet_are_in_its_footer(self, project: Project) -> None:
        path = project.folder / "e.parquet"
        duckdb.execute(f"COPY (SELECT {{'mail': 'a'}} AS user, 1 AS score) TO '{path}' (FORMAT parquet)")
        columns, reader = self.lines(project, "e.parquet", "user.mail")
        assert columns.split(maxsplit=1) == [
            "columns",
            "all that the manifest names are in the footer of 1 parquet file",
        ]
        assert reader == "read by      parquet: DuckDB"
        for wrong in ("user.email", "mail"):
            assert "did you mean 'user.mail'?" in self.lines(project, "e.parquet", wrong)[0]

    @pytest.mark.parametrize("files", [("1.csv", "2.csv"), ("1.parquet", "2.parquet")])
    def test_those_of_all_files_are_the_same(self, project: Project, files: tuple[str, str]) -> None:
        for file, column in zip(files, ("n", "m"), strict=True):
            duckdb.execute(f"COPY (SELECT 1 AS id, 2 AS {column}) TO '{project.folder / file}'")
        project.describe(source={"urls": list(files)})
        explained, built = project.build("--explain").exception, project.refused()
        assert str(explained) == str(built)
        assert f"{files[1]} has other columns than" in str(built)
        assert "it lacks 'n' and adds 'm'" in str(built)
        project.describe(source={"urls": list(files)}, value={"columns": ["id"]})
        assert "all that the manifest names are in the " in project.build("--explain").stdout

    def test_those_of_json_lines_are_in_its_rows(self, project: Project) -> None:
        path = project.folder / "e.jsonl"
        path.write_text('{"user":{"mail":"a"},"score":1}\n' * 10)
        columns, reader = self.lines(project, "e.jsonl", "user.mail")
        assert columns.endswith("all that the manifest names are in the first rows of 1 jsonl file")
        assert reader.startswith("read by      jsonl: Python")
        assert "which none of its 10 rows has" in self.lines(project, "e.jsonl", "user.email")[0]
        path.write_text('{"user":{"mail":"a"},"score":1}\n' * 5000 + '{"user":{"email":"b"}}\n')
        doubt, hint, _ = self.lines(project, "e.jsonl", "user.email")
        assert "the beginning of " in doubt
        assert "'user.email', which none of its 1,000 rows has" in doubt
        assert hint == "its columns are user, score"

    def test_of_others_it_says_that_they_were_not_looked_at(self, project: Project) -> None:
        (project.folder / "e.csv.gz").write_bytes(gzip.compress(b"id,name\n1,a\n"))
        columns, _ = self.lines(project, "e.csv.gz", "nothing")
        assert columns == "columns      not looked at in 1 file: compressed"
        (project.folder / "e.json").write_text("[]")
        (columns, reader) = self.lines(project, "e.json", "id")
        assert columns == "columns      not looked at in 1 file: one JSON document"
        assert reader == "read by      json: Python"
        for number in range(22):
            (project.folder / f"many-{number}.csv").write_text("id,v\n")
        assert self.lines(project, "many-*.csv", "id")[:2] == [
            "columns      all that the manifest names are in the header of 20 csv files",
            "not looked at in 2 files: after the first 20",
        ]

    def test_a_file_without_rows_has_none(self, project: Project) -> None:
        (project.folder / "e.jsonl").write_text("\n")
        (columns, _) = self.lines(project, "e.jsonl", "id")
        assert columns.endswith("e.jsonl has no rows")
        assert "all that the manifest names are in" not in columns

    @pytest.mark.parametrize("value", ["0", ""])
    def test_which_kernels_read(self, project: Project, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        monkeypatch.setenv("LOOKUPDB_NATIVE", value)
        expected = "native kernels" if native.kernels() else native.describe()
        assert self.lines(project, "people.csv", "id")[-1] == f"read by      csv: {expected}"
