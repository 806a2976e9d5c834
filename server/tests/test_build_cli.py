"""`lookupdb build`: what it prints, writes and returns."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.build_project import Project
from support.terminals import run_at_terminal

from lookupdb.builder import build
from lookupdb.builder import options as progress_display
from lookupdb.builder.options import BuildReport
from lookupdb.cli.build import command
from lookupdb.errors import (
    BadSource,
    CorruptFile,
    GateClosed,
    GenerationExists,
    GenerationMissing,
    InvalidManifest,
    NotEnoughRoom,
    StoreDenied,
    StoreError,
)
from lookupdb.store.directory import DirectoryDataset


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


class TestResult:
    def test_is_one_line_of_json(self, project: Project) -> None:
        result = project.built()
        manifest = project.dataset.manifest("g1")
        assert result["outcome"] == "built"
        assert result["dataset"] == "default/people"
        assert result["generation"] == "g1"
        assert result["fingerprint"] == manifest.fingerprint
        assert (result["records"], result["rejected"], result["duplicates"]) == (1000, 0, 0)
        assert result["fileBytes"] == manifest.totals.file_bytes
        assert result["recordBytes"] == manifest.totals.key_bytes + manifest.totals.value_bytes
        assert result["peakMemoryBytes"] > 1 << 20
        assert result["largestShardBytes"] == max(shard.bytes for shard in manifest.shards)
        assert result["builtAt"] == manifest.built_at
        assert (result["exitCode"], result["reason"]) == (0, "Built")
        assert "built g1: 1,000 records in 2 shards" in result["message"]

    def test_the_next_build_is_the_next_generation(self, project: Project) -> None:
        assert [project.built()["generation"] for _ in range(3)] == ["g1", "g2", "g3"]
        assert project.built("--generation", "g7")["generation"] == "g7"
        assert project.built()["generation"] == "g8"

    def test_an_unchanged_source_is_not_built_again(self, project: Project) -> None:
        fingerprint = project.built()["fingerprint"]
        result = project.built("--unless-fingerprint", fingerprint)
        assert (result["outcome"], result["generation"], result["reason"]) == ("unchanged", None, "Unchanged")
        assert project.dataset.generations() == ("g1",)

    def test_a_store_that_was_lost_is_filled_again_though_the_source_is_unchanged(self, project: Project) -> None:
        fingerprint = project.built()["fingerprint"]
        project.dataset.remove("g1")
        assert project.built("--unless-fingerprint", fingerprint)["outcome"] == "built"

    def test_so_is_one_whose_generations_are_of_another_spec(self, project: Project) -> None:
        fingerprint = project.built()["fingerprint"]
        project.describe(shards=3)
        assert project.built("--unless-fingerprint", fingerprint)["generation"] == "g2"
        assert project.built("--unless-fingerprint", fingerprint)["outcome"] == "unchanged"

    def test_an_older_generation_of_the_source_will_do_when_newer_ones_cannot_be_read(self, project: Project) -> None:
        fingerprint = project.built()["fingerprint"]
        project.built()
        project.damage("g2")
        assert project.built("--unless-fingerprint", fingerprint)["outcome"] == "unchanged"
        project.damage("g1")
        project.describe(gates={"maxShrinkPercent": 100})
        assert project.built("--unless-fingerprint", fingerprint)["generation"] == "g3"

    def test_a_source_written_again_as_it_was_is_unchanged(self, project: Project) -> None:
        """For example, a ConfigMap that the kubelet mounts again."""
        fingerprint = project.built()["fingerprint"]
        project.rows(1000)
        os.utime(project.folder / "people.csv", (1, 1))
        assert project.built("--unless-fingerprint", fingerprint)["outcome"] == "unchanged"

    def test_a_build_that_nobody_heard_of_is_adopted_by_the_next(self, project: Project) -> None:
        first = project.built("--generation", "g1")
        (project.folder / "people.csv").unlink()  # even when its source has gone meanwhile
        again = project.built("--generation", "g1", "--unless-fingerprint", first["fingerprint"])
        assert (again["outcome"], again["reason"], again["exitCode"]) == ("adopted", "Adopted", 0)
        same = ("generation", "fingerprint", "records", "fileBytes", "largestShardBytes", "builtAt", "recordBytes")
        assert {name: again[name] for name in same} == {name: first[name] for name in same}

    def test_a_generation_published_while_its_claim_was_waited_for_is_adopted(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project.built("--generation", "g1")
        monkeypatch.setattr(DirectoryDataset, "generations", lambda _: ())
        assert project.built("--generation", "g1")["outcome"] == "adopted"

    def test_a_changed_source_is(self, project: Project) -> None:
        fingerprint = project.built()["fingerprint"]
        project.rows(1001)
        assert project.built("--unless-fingerprint", fingerprint)["outcome"] == "built"

    def test_its_message_is_shortened_to_what_a_termination_message_may_be(self) -> None:
        long = BuildReport(outcome="failed", dataset="a/b", message="\n é" * 5000)
        assert 1000 < len(long.to_json(4096)) <= 4096
        assert json.loads(long.to_json(4096))["message"].endswith("…")
        assert json.loads(long.to_json())["message"] == long.message


class TestTerminationLog:
    def test_holds_the_result(self, project: Project, tmp_path: Path) -> None:
        printed = project.build("--termination-log", str(tmp_path / "log")).stdout
        assert json.loads((tmp_path / "log").read_bytes()) == json.loads(printed)

    def test_holds_why_a_build_failed(self, project: Project, tmp_path: Path) -> None:
        project.describe(gates={"minRecords": 5000})
        error = project.build(LOOKUPDB_TERMINATION_LOG=str(tmp_path / "log")).exception
        assert isinstance(error, GateClosed)
        told = json.loads((tmp_path / "log").read_bytes())
        assert (told["outcome"], told["reason"], told["exitCode"]) == ("failed", "GateClosed", 4)
        assert "minRecords: expected at least 5,000 records, found 1,000" in told["message"]

    def test_holds_that_the_manifest_was_bad(self, project: Project, tmp_path: Path) -> None:
        project.describe(shards=0)
        assert isinstance(project.build("--termination-log", str(tmp_path / "log")).exception, InvalidManifest)
        told = json.loads((tmp_path / "log").read_bytes())
        assert (told["reason"], told["exitCode"], told["dataset"]) == ("InvalidManifest", 2, "")

    def test_that_cannot_be_written_changes_nothing(self, project: Project, tmp_path: Path) -> None:
        assert project.built("--termination-log", str(tmp_path / "no such folder" / "log"))["outcome"] == "built"


def test_a_failure_is_reported_in_a_line_that_up_takes(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BadSource("why " + "\x01" * 2_000_000)

    monkeypatch.setattr(build, "build_generation", fail)
    (line,) = project.build().stdout.splitlines()
    assert len(line) <= 64 << 10
    assert json.loads(line)["message"].startswith("why \x01")


class TestRefusals:
    """Nothing is published, nothing is left, and what was there before is as it was."""

    def test_a_duplicate_key_names_both_rows(self, project: Project) -> None:
        project.built()
        project.rows(1000, extra="p17,again,\n")
        error = project.refused()
        assert isinstance(error, BadSource)
        assert "'p17' occurs twice: row 18 of people.csv and row 1001 of people.csv" in error.message
        assert [path.name for path in Path(project.dataset.url).iterdir()] == ["g1"]

    @pytest.mark.parametrize(("policy", "name"), [("first", "name 17"), ("last", "again")])
    def test_unless_one_of_them_is_to_be_kept(self, project: Project, policy: str, name: str) -> None:
        project.rows(1000, extra="p17,again,\n")
        project.describe(duplicates=policy, gates={"requiredKeys": ["p17"]}, shards=1)
        assert project.built()["duplicates"] == 1
        manifest = project.dataset.manifest("g1")
        assert manifest.duplicates.count == len(manifest.duplicates.samples) == 1

        from lookupdb.shardfile import ShardReader

        folder = project.dataset.local_path("g1")
        assert folder
        with ShardReader(folder / manifest.shards[0].file) as shard:
            assert name.encode() in (shard.find(b"p17") or b"")

    def test_rejected_rows_close_a_gate_that_names_them(self, project: Project) -> None:
        project.rows(1000, extra=f",empty key,\n{'x' * 600},long key,\n")
        error = project.refused()
        assert isinstance(error, GateClosed)
        assert "row 1001 of people.csv: the key is empty" in error.message
        assert "row 1002 of people.csv: the key is 600 bytes long" in error.message
        project.describe(gates={"maxRejectedRows": 2})
        assert project.built()["rejected"] == 2

    def test_gates_compare_with_the_active_generation(self, project: Project) -> None:
        project.built()
        project.rows(500)
        project.describe(gates={"maxShrinkPercent": 100})
        project.built()
        project.describe(gates={"maxShrinkPercent": 10})
        assert project.built("--active", "g2")["records"] == 500
        error = project.refused("--active", "g1")
        assert isinstance(error, GateClosed)
        assert "found 500 where g1 has 1,000 (-50.0 %)" in error.message
        assert project.dataset.generations() == ("g1", "g2", "g3")

    def test_required_keys_are_looked_up_as_a_client_would(self, project: Project) -> None:
        project.describe(
            key={"columns": ["id"], "normalize": ["strip", "lowercase"]}, gates={"requiredKeys": [" P17 "]}
        )
        assert project.built()["outcome"] == "built"
        project.describe(gates={"requiredKeys": ["P17", " "]})
        message = project.refused().message
        assert "requiredKeys: expected 2 keys to be there, found 2 missing" in message
        assert "missing: 'P17'\n  missing: ' '" in message

    def test_a_generation_that_is_there_of_another_spec(self, project: Project) -> None:
        project.built()
        project.describe(shards=3)
        error = project.refused("--generation", "g1")
        assert isinstance(error, GenerationExists)
        assert (error.exit_code, error.reason) == (5, "GenerationExists")
        assert len(project.dataset.manifest("g1").shards) == 2

    @pytest.mark.parametrize("url", ["people.csv", "/etc/passwd", "file:///etc/passwd"])
    def test_files_of_the_machine_when_they_are_not_to_be_read(self, project: Project, url: str) -> None:
        project.describe(source={"url": url, "format": "csv"})
        error = project.refused("--no-local-files")
        assert isinstance(error, BadSource)
        assert url in error.message
        assert "volume:// with source.volume" in str(error)

    def test_a_volume_and_an_example_are_not_such_files(self, project: Project) -> None:
        project.describe(source={"url": "volume://people.csv", "volume": {"claimName": "people"}})
        assert project.built("--no-local-files", "--volume", str(project.folder))["records"] == 1000
        project.describe(source={"url": "example://airports.csv.gz"}, key={"columns": ["icao"]})
        assert project.build("--no-local-files", "--explain").exit_code == 0

    def test_a_store_that_cannot_be_written_for_want_of_rights(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def denied(*_: object, **__: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied", "the store")

        monkeypatch.setattr(Path, "mkdir", denied)
        with pytest.raises(StoreDenied) as caught:
            project.dataset.claim("g1", project.folder / "scratch")
        assert (caught.value.exit_code, caught.value.reason) == (5, "StoreDenied")

    def test_too_small_a_memory_limit_says_what_is_needed(self, project: Project) -> None:
        error = project.refused("--memory-limit", "64MiB")
        assert isinstance(error, NotEnoughRoom)
        assert "a memory limit of 64 MiB is too small, a build of 2 shards needs 256 MiB or more" in error.message

    def test_scratch_that_cannot_be_used(self, project: Project) -> None:
        (project.folder / "file").write_text("")
        error = project.build("--scratch", str(project.folder / "file" / "x")).exception
        assert isinstance(error, NotEnoughRoom)
        assert "choose another one with --scratch" in str(error)


class TestActiveGenerationThatIsLost:
    """No damage to the store may block builds for ever, and no gate may be skipped silently."""

    @pytest.fixture
    def project(self, project: Project) -> Project:
        """g1 of 1,000 records, and g2, which serves and is damaged; a source of 500 now."""
        project.built()
        project.built()
        project.damage("g2")
        project.rows(500)
        return project

    @pytest.mark.parametrize("active", [("--active", "g2"), ("--active", "g9"), ()])
    def test_gates_compare_with_the_newest_that_can_be_read(self, project: Project, active: tuple[str, ...]) -> None:
        project.describe(gates={"maxShrinkPercent": 10})
        result = project.build(*active)
        assert isinstance(result.exception, GateClosed)
        assert "found 500 where g1 has 1,000" in result.exception.message
        (warning,) = _warnings(result)
        assert "the active generation cannot be read from the store" in warning
        assert "comparedWith=g1" in warning
        project.describe(gates={"maxShrinkPercent": 50})
        assert project.built(*active)["generation"] == "g4"

    def test_without_a_gate_that_compares_it_is_built_though_nothing_can_be_read(self, project: Project) -> None:
        project.damage("g1")
        project.describe(gates={"maxShrinkPercent": 100})
        result = project.build("--active", "g2")
        assert project.dataset.published_generations() == ("g1", "g2", "g3")
        assert "generation=g2 comparedWith=none" in _warnings(result)[0]

    @pytest.mark.parametrize(
        ("active", "kind"),
        [(("--active", "g9"), GenerationMissing), (("--active", "g2"), CorruptFile), ((), CorruptFile)],
    )
    @pytest.mark.parametrize(
        ("gates", "hint"),
        [
            ({}, "set spec.gates.maxShrinkPercent to 100 until"),
            ({"maxShrinkPercent": 100, "maxGrowthPercent": 10}, "remove spec.gates.maxGrowthPercent until"),
        ],
    )
    def test_with_one_it_is_refused_and_says_what_to_do(
        self, project: Project, active: tuple[str, ...], kind: type[StoreError], gates: dict[str, int], hint: str
    ) -> None:
        project.damage("g1")
        project.describe(gates=gates)
        error = project.refused(*active)
        assert type(error) is kind
        assert error.hint
        assert hint in error.hint
        assert project.dataset.published_generations() == ("g1", "g2")

    def test_who_knows_its_number_of_records_has_it_compared_all_the_same(self, project: Project) -> None:
        project.damage("g1")
        known = ("--active", "g2", "--active-records", "1000")
        assert "found 500 where g2 has 1,000" in project.refused(*known).message
        project.rows(900)
        assert project.built(*known)["records"] == 900

    def test_the_first_generation_of_all_has_nothing_to_compare_with(self, project: Project) -> None:
        for generation in ("g1", "g2"):
            project.dataset.remove(generation)
        project.describe(gates={"maxShrinkPercent": 10})
        assert _warnings(project.build()) == []
        assert project.dataset.generations() == ("g1",)


def _warnings(result: Any) -> list[str]:
    return [line for line in result.stderr.splitlines() if " WARNING " in line]


def test_same_source_and_spec_give_the_same_files(project: Project) -> None:
    project.rows(20_000)
    project.built("--memory-limit", "256MiB", "--threads", "1")
    project.built("--memory-limit", "1GiB", "--threads", "2", "--generation", "g12")
    assert project.dataset.manifest("g1").shards == project.dataset.manifest("g12").shards


class TestTerminal:
    """A person reads a failure once, a program as JSON."""

    def end(self, project: Project, *words: str) -> tuple[bytes, bytes]:
        """Build without a manifest; return the output, on a terminal, and standard error."""
        code, out, error = run_at_terminal("build", "-f", str(project.folder / "none.yaml"), *words)
        assert code == 2
        return out, error

    def test_gets_the_message_of_a_failure_and_no_json(self, project: Project, tmp_path: Path) -> None:
        out, error = self.end(project, "--termination-log", str(tmp_path / "log"))
        assert out == b""
        assert error.count(b"none.yaml cannot be read") == 1
        assert json.loads((tmp_path / "log").read_bytes())["reason"] == "InvalidManifest"

    def test_gets_json_when_it_is_asked_for(self, project: Project) -> None:
        out, error = self.end(project, "--json")
        assert json.loads(out)["reason"] == "InvalidManifest"
        assert b"none.yaml cannot be read" in error


@pytest.mark.parametrize("words", [[], ["--explain"]])
def test_a_name_of_the_source_does_not_control_the_terminal(project: Project, words: list[str]) -> None:
    (project.folder / "people.jsonl").write_text('{"i\\u001b[2J\\u0007d": 1}\n' * 2000)
    project.describe(source={"url": "people.jsonl"})
    words = ["build", "-f", str(project.manifest), "--store", str(project.store), "--progress", "none", *words]
    _, output, message = run_at_terminal(*words)
    assert b"its columns are i\\x1b[2J\\x07d" in output + message
    assert b"\x1b" not in output + message


def test_help_teaches_with_an_example() -> None:
    text = CliRunner().invoke(command, ["--help"]).stdout
    assert "lookupdb build -f examples/airports.yaml" in text
    assert "LOOKUPDB_MEMORY_LIMIT" in text


class TestProgress:
    def test_plain_lines_tell_every_few_seconds_and_at_the_end(self) -> None:
        now = 0.0
        out = io.StringIO()
        lines = progress_display.ProgressLines(out, "people", clock=lambda: now)
        lines.begin_phase("read", 4096, "bytes")
        for _ in range(4):
            now += 1.6
            lines.advance(1024, rows=1000)
        lines.end_phase()
        lines.begin_phase("sort", None, "rows")
        lines.end_phase()
        assert out.getvalue().splitlines() == [
            "people: read: 2.0 KiB of 4.0 KiB, 2,000 rows, 625 rows/s, 3.2 s",
            "people: read: 4.0 KiB of 4.0 KiB, 4,000 rows, 625 rows/s, 6.4 s",
            "people: read, done: 4.0 KiB, 4,000 rows, 625 rows/s, 6.4 s",
            "people: sort, done: 0.0 s",
        ]

    def test_bars_on_a_terminal(self, capfd: pytest.CaptureFixture[str]) -> None:
        with progress_display.open_progress("rich") as progress:
            progress.begin_phase("write", 2000, "rows")
            progress.advance(2000)
            progress.end_phase()
            progress.begin_phase("publish", None, "bytes")
            progress.end_phase()
        shown = capfd.readouterr().err
        assert "write" in shown
        assert "2,000 rows" in shown

    def test_lines_where_there_is_no_terminal_and_nothing_when_not_wanted(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        for style in ("auto", "none"):
            with progress_display.open_progress(style) as progress:
                progress.begin_phase(style, 1, "rows")
                progress.advance(1)
                progress.end_phase()
        captured = capfd.readouterr()
        assert captured.err.startswith("auto, done: 1 row,")
        assert "none" not in captured.err
        assert captured.out == ""
