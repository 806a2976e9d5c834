"""A large source is cut into slices that several processes read: the result is that of one process alone."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.crews import thread_crew
from support.process_table import children, is_running
from support.sources import Read, dataset, read
from support.waiting import until

from lookupdb.builder.build import SortedRecords
from lookupdb.builder.core import plan_source
from lookupdb.builder.crew import MAX_CREW_SLICES, NUMBER
from lookupdb.builder.files import Slice
from lookupdb.builder.listing import fetch_files, resolve_source
from lookupdb.builder.options import SilentProgress
from lookupdb.dataset.spec import Csv, DatasetSpec
from lookupdb.errors import LookupdbError

__all__ = ["thread_crew"]

MEMORY = 512 << 20
ALONE = 1 << 62
PARALLEL = 2000
"""Bytes from which the tests' sources are read by a crew; slices are an eighth of it or more."""


def both(spec: DatasetSpec, folder: Path) -> tuple[Read | str, Read | str]:
    """Read alone and with a crew; return the records, or the error's message, of each."""
    found: list[Read | str] = []
    for parallel_from in (ALONE, PARALLEL):
        scratch = folder / f"scratch-{parallel_from}"
        try:
            found.append(read(spec, scratch, MEMORY, parallel_from=parallel_from))
        except LookupdbError as error:
            found.append(f"{type(error).__name__}: {error}")
        assert list(scratch.iterdir()) == []
    return found[0], found[1]


def cuts(spec: DatasetSpec, folder: Path) -> list[Slice]:
    files = fetch_files(resolve_source(spec, volume=None), folder, SilentProgress())
    return plan_source(files, 2, PARALLEL, Csv())


def json_lines(rows: list[Any]) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def as_csv(rows: list[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


ROWS = [{"k": str(number * 7919 % 501), "v": "x" * (number % 60)} for number in range(600)]


def test_json_lines_are_cut_at_line_ends(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_bytes(content := json_lines(ROWS))
    pieces = cuts(dataset(tmp_path, "f.jsonl"), tmp_path)
    assert len(pieces) >= 4
    assert [piece.start for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end is None
    assert all(content[piece.start - 1 : piece.start] in (b"", b"\n") for piece in pieces)


def test_small_sources_and_few_cores_mean_whole_files(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_bytes(json_lines(ROWS))
    files = fetch_files(resolve_source(dataset(tmp_path, "f.jsonl"), volume=None), tmp_path, SilentProgress())
    assert plan_source(files, 1, PARALLEL, Csv()) == plan_source(files, 2, ALONE, Csv()) == [Slice(0)]


def test_a_small_source_of_several_files_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number}.jsonl" for number in range(4)]
    for name in names:
        (tmp_path / name).write_text('{"k": "' + name + '"}')
    monkeypatch.setattr("lookupdb.builder.crew.Crew", None)
    assert read(dataset(tmp_path, names), tmp_path / "scratch", MEMORY).rows == 4


def test_more_files_than_a_crew_can_be_given_are_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here twenty: sixteen thousand take seconds."""
    assert MAX_CREW_SLICES * NUMBER.size <= 1 << 16, "all slice numbers fit into a pipe"
    monkeypatch.setattr("lookupdb.builder.crew.MAX_CREW_SLICES", 20)
    monkeypatch.setattr("lookupdb.builder.crew.Crew", None)
    (tmp_path / "f.jsonl").write_bytes(b'{"k": "a"}\n' * 300)
    spec = dataset(tmp_path, "f.jsonl")
    files = fetch_files(resolve_source(spec, volume=None), tmp_path, SilentProgress()) * 21
    with SortedRecords(spec, files, tmp_path, MEMORY, 2, SilentProgress(), parallel_from=PARALLEL) as records:
        assert records.rows == 300 * len(files)


@pytest.mark.parametrize("name", ["f.jsonl", "f.csv", "f.json"])
def test_records_samples_and_places_are_the_same(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    if name != "f.jsonl":  # one format shows that processes do as threads
        request.getfixturevalue("thread_crew")
    names = [name, f"g{name}"]
    for number, one in enumerate(names):
        rows = [{"k": row["k"], "v": f"{row['v']}-{number}"} for row in ROWS]
        if name.endswith("csv"):
            (tmp_path / one).write_text(as_csv([["k", "v"], *([row["k"], row["v"]] for row in rows)]))
        else:
            (tmp_path / one).write_bytes(orjson.dumps(rows) if name.endswith("json") else json_lines(rows))
    alone, together = both(dataset(tmp_path, names), tmp_path)
    assert alone == together
    assert isinstance(alone, Read)
    assert alone.rows == len(alone.records) == 1200


def test_a_crew_has_the_kernels_of_its_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of sorted records differ between native kernels and Python."""
    monkeypatch.setattr("lookupdb.native.kernels", lambda: None)
    (tmp_path / "f.jsonl").write_bytes(json_lines(ROWS))
    alone, together = both(dataset(tmp_path, "f.jsonl"), tmp_path)
    assert isinstance(alone, Read)
    assert alone == together


@pytest.mark.usefixtures("thread_crew")
def test_rejected_rows_keep_their_numbers(tmp_path: Path) -> None:
    rows: list[Any] = [dict(row) for row in ROWS]
    for number in (150, 151, 300, *range(500, 600)):
        rows[number]["k"] = None
    (tmp_path / "f.jsonl").write_bytes(json_lines(rows))
    alone, together = both(dataset(tmp_path, "f.jsonl"), tmp_path)
    assert alone == together
    assert isinstance(alone, Read)
    assert alone.rejected.count == 103
    assert [row for row, _ in alone.reasons][:4] == [151, 152, 301, 501]


@pytest.mark.usefixtures("thread_crew")
def test_a_file_of_other_columns_is_reported_however_many_slices_it_has(tmp_path: Path) -> None:
    for name, columns in (("1.csv", ["k", "v"]), ("2.csv", ["k", "u"])):
        (tmp_path / name).write_text(as_csv([columns, *([row["k"], row["v"]] for row in ROWS)]))
    alone, together = both(dataset(tmp_path, "*.csv"), tmp_path)
    assert alone == together
    assert isinstance(alone, str)
    assert "it lacks 'v' and adds 'u'" in alone


@pytest.mark.usefixtures("thread_crew")
def test_large_values_are_found_in_the_files_of_their_slice(tmp_path: Path) -> None:
    rows = [{"k": str(number), "v": f"{number}" * 20_000} for number in range(40)]
    (tmp_path / "f.jsonl").write_bytes(json_lines(rows))
    alone, together = both(dataset(tmp_path, "f.jsonl", value={"column": "v", "format": "raw"}), tmp_path)
    assert alone == together
    assert isinstance(together, Read)
    assert together.values == {row["k"]: row["v"] for row in rows}


@pytest.mark.usefixtures("thread_crew")
@pytest.mark.parametrize(
    "column", [pytest.param("rare", id="in one slice only"), pytest.param("never", id="in none, which is an error")]
)
def test_a_column_may_be_missing_in_slices_but_not_in_all(tmp_path: Path, column: str) -> None:
    rows: list[Any] = [dict(row) for row in ROWS]
    rows[450]["rare"] = 1
    (tmp_path / "f.jsonl").write_bytes(json_lines(rows))
    alone, together = both(dataset(tmp_path, "f.jsonl", value={"columns": ["v", column]}), tmp_path)
    assert alone == together
    assert isinstance(alone, str) == (column == "never")


@pytest.mark.usefixtures("thread_crew")
class TestCsv:
    """Quoted fields hold line breaks: a cut may be in the middle of a row."""

    @pytest.mark.parametrize("seed", range(4))
    def test_wherever_line_breaks_and_quotes_stand(self, tmp_path: Path, seed: int) -> None:
        chance = random.Random(seed)
        pieces = ["a", "\n", "\r\n", '"', ",", '\n1,"x', "é", "long text " * chance.choice([1, 20])]
        rows = [
            [str(number), *("".join(chance.choices(pieces, k=chance.randrange(9))) for _ in range(2))]
            for number in range(150)
        ]
        (tmp_path / "f.csv").write_bytes(as_csv([["k", "a", "b"], *rows]).encode())
        spec = dataset(tmp_path, "f.csv")
        assert len(cuts(spec, tmp_path)) > 3
        alone, together = both(spec, tmp_path)
        assert alone == together
        assert isinstance(alone, Read)
        assert alone.rows == 150

    def test_one_field_may_be_longer_than_slices(self, tmp_path: Path) -> None:
        rows = [["1", "x"], ["2", '1,y\n"' * 2000], *([str(number), "z"] for number in range(3, 500))]
        (tmp_path / "f.csv").write_bytes(as_csv([["k", "a"], *rows]).encode())
        alone, together = both(dataset(tmp_path, "f.csv"), tmp_path)
        assert alone == together
        assert isinstance(alone, Read)
        assert alone.rows == 499

    def test_without_header_or_quotes(self, tmp_path: Path) -> None:
        lines = [f'{number};5" pipe {number}' for number in range(500)]
        (tmp_path / "f.csv").write_text("\n".join(lines))
        options = {"delimiter": ";", "quote": "", "header": False, "columns": [{"name": "k"}, {"name": "v"}]}
        alone, together = both(dataset(tmp_path, "f.csv", source={"csv": options}), tmp_path)
        assert alone == together
        assert isinstance(alone, Read)
        assert alone.rows == 500


LINES = json_lines(ROWS).decode()
TABLE = as_csv([["k", "v"], *([row["k"], row["v"]] for row in ROWS)])


@pytest.mark.usefixtures("thread_crew")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("f.jsonl", (LINES + "\n\n{\n" + LINES + "[]\n").encode(), id="broken JSON"),
        pytest.param("f.jsonl", (LINES + "\n[1]\n" + LINES).encode(), id="no object"),
        pytest.param("f.jsonl", LINES.encode() + b'{"k":"\xff"}\n' + LINES.encode(), id="JSON that is not UTF-8"),
        pytest.param("f.csv", (TABLE + "\n\n1,2,3\n" + TABLE).encode(), id="too many fields"),
        pytest.param("f.csv", (TABLE + '1,"x\n' + TABLE).encode(), id="a quote that is never closed"),
        pytest.param("f.csv", (TABLE + '1,"x"y\n' + TABLE).encode(), id="a quote in the middle"),
        pytest.param("f.csv", TABLE.encode() + b"1,\xff\n" + TABLE.encode(), id="CSV that is not UTF-8"),
        pytest.param("f.csv", ("k,other\n" + TABLE).encode(), id="no such column"),
    ],
)
def test_the_first_error_is_reported_as_if_one_had_read_alone(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    alone, together = both(dataset(tmp_path, name, value={"columns": ["v"]}), tmp_path)
    assert alone == together
    assert isinstance(alone, str)
    assert alone.startswith(("BadSource: f.", "UnfinishedSlice: f."))


def test_a_spec_comes_through_to_another_process(tmp_path: Path) -> None:
    csv_options = {"columns": [{"name": "v", "type": "integer", "empty": "null"}]}
    spec = dataset(tmp_path, ["a.csv", "b.csv"], ["k", "l"], source={"csv": csv_options}, value={"columns": ["v"]})
    assert DatasetSpec.from_json(spec.to_json()) == spec


CREW = """
import sys
from pathlib import Path
from support.sources import dataset, read

folder = Path(sys.argv[1])
read(dataset(folder, "f.jsonl"), folder / "scratch", parallel_from=2000)
"""


class TestProcesses:
    def test_a_member_imports_nothing_that_fetches_or_stores(self) -> None:
        """It takes a third of the time in which one starts."""
        program = "import sys, lookupdb.builder.crew; print(*sys.modules)"
        imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        assert not {"obstore", "ssl", "lookupdb.store", "lookupdb.builder.listing"} & set(imported.split())

    def start(self, folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
        """A build, and the two processes that read its source. On a busy machine it may end before they are seen: then
        there is another.
        """
        (folder / "f.jsonl").write_bytes(json_lines(ROWS) * 400)
        here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}

        def started() -> tuple[subprocess.Popen[str], list[int]] | None:
            build = subprocess.Popen(
                [sys.executable, "-c", CREW, str(folder)], env=here, stderr=subprocess.PIPE, text=True
            )
            until(lambda: len(children(build.pid)) == 2 or build.poll() is not None, "two processes that read")
            if len(readers := children(build.pid)) == 2:
                return build, readers
            build.communicate()
            return None

        reading = until(started, "a build that reads")
        assert reading is not None
        return reading

    def test_they_end_when_the_build_is_killed(self, tmp_path: Path) -> None:
        build, readers = self.start(tmp_path)
        with build:
            build.kill()
            build.communicate()
        until(lambda: not any(map(is_running, readers)), "the end of both")

    def test_one_that_is_killed_is_reported(self, tmp_path: Path) -> None:
        def kill_one() -> str:
            """Return the build's message; empty if a busy machine let it read everything first."""
            build, readers = self.start(tmp_path)
            with build:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(readers[0], signal.SIGKILL)
                return build.communicate()[1]

        errors = until(kill_one, "one is killed while it reads")
        assert "NotEnoughRoom: a process that read the source was killed" in errors
        assert list((tmp_path / "scratch").iterdir()) == []
