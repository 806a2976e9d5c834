"""A recreated dataset adopts a generation of its predecessor, which it names by uid and whose spec is the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from lookupdb import store
from lookupdb.builder.options import EarlierDataset
from lookupdb.cli import cli
from lookupdb.errors import AdoptionFailed, CorruptFile, GateClosed, LookupdbError, UsageError
from lookupdb.keys import UNICODE_VERSION
from lookupdb.manifest import FILE_NAME, AdoptedGeneration, Manifest
from lookupdb.store import StoredDataset

OLD, NEW = "0f6b1c2d-0000-4000-8000-00000000000a", "5e7a9b3c-0000-4000-8000-00000000000b"
OTHER = "77777777-0000-4000-8000-00000000000c"


MAX_RECORDED = 256
"""Characters of a message in status.builds."""


class Project:
    """Two generations of a deleted dataset, g1 of 10 people and g2 of 12."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest, self.name = folder, folder / "people.yaml", ("team", "people")

    def prepare(self) -> None:
        (self.folder / "scratch").mkdir()
        for records in (10, 12):
            self.rows(records)
            assert self.build(OLD).exit_code == 0

    def rows(self, count: int) -> None:
        (self.folder / "people.csv").write_text("id,name\n" + "".join(f"p{n},name {n}\n" for n in range(count)))

    def build(self, uid: str, *arguments: str, name: str = "people", namespace: str = "team", **spec: Any) -> Any:
        full = {"source": {"url": "people.csv"}, "key": {"columns": ["id"]}, "shards": 2} | spec
        self.name = (namespace, name)
        metadata = {"name": name, "namespace": namespace, "uid": uid}
        resource = {"apiVersion": "lookupdb.dev/v1alpha1", "kind": "LookupDataset", "metadata": metadata, "spec": full}
        self.manifest.write_text(yaml.safe_dump(resource))
        fixed = ("-f", str(self.manifest), "--store", self.store, "--scratch", str(self.folder / "scratch"))
        return CliRunner().invoke(
            cli, ["build", *fixed, "--progress", "none", "--json", *arguments], standalone_mode=False
        )

    def adopt(self, uid: str = NEW, asked: str = OLD, *arguments: str, **spec: Any) -> dict[str, Any]:
        result = self.build(uid, "--adopt", asked, *arguments, **spec)
        report: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
        report["error"] = result.exception
        return report

    def dataset(self, uid: str = NEW) -> StoredDataset:
        return store.open_store(self.store).dataset_at(store.StoreAddress("local", *self.name, uid))

    def shards(self, uid: str) -> list[Path]:
        return sorted((self.folder / "store").glob(f"local/team/people-{uid[:8]}/*/*.lmdb"))

    @property
    def store(self) -> str:
        return str(self.folder / "store")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project that is copied for each test."""
    folder = tmp_path_factory.mktemp("prepared")
    Project(folder).prepare()
    return folder


@pytest.fixture
def project(prepared: Path, tmp_path: Path) -> Project:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    return Project(tmp_path)


class TestWhatIsAdopted:
    @pytest.mark.parametrize("asked", [OLD, OLD[:8]])
    def test_is_the_newest_generation_with_all_that_it_says(self, project: Project, asked: str) -> None:
        before = project.dataset(OLD).manifest("g2")
        (project.folder / "people.csv").unlink()  # the source is gone
        report = project.adopt(NEW, asked)
        assert (report["outcome"], report["generation"], report["records"]) == ("adopted", "g1", 12)
        assert (report["adoptedFrom"], report["builtAt"]) == (f"{OLD}/g2", before.built_at)
        assert report["message"].startswith(f"g1 is g2 of the dataset {OLD}, built at {before.built_at}: 12 records")
        after = project.dataset().manifest("g1")
        assert (after.uid, after.adopted) == (NEW, AdoptedGeneration(OLD, "g2"))
        kept = ("content", "fingerprint", "source", "built_at", "totals", "unicode", "shards")
        assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
        assert project.dataset(OLD).generations() == ("g1", "g2"), "what was there stays"

    def test_may_be_of_a_path_that_is_read_nowhere_else(self, project: Project) -> None:
        assert project.adopt(NEW, OLD, "--no-local-files")["outcome"] == "adopted"

    def test_is_the_one_that_is_named(self, project: Project) -> None:
        assert project.adopt(NEW, f"{OLD[:8]}/g1")["records"] == 10

    def test_outlives_the_folder_that_it_came_from(self, project: Project) -> None:
        project.adopt()
        for generation in ("g1", "g2"):
            project.dataset(OLD).remove(generation)
        manifest = project.dataset().manifest("g1")
        with project.dataset().verified_shard("g1", manifest.shards[1], project.folder / "scratch") as path:
            assert path.stat().st_size == manifest.shards[1].bytes

    def test_is_found_unchanged_by_a_refresh(self, project: Project) -> None:
        fingerprint = project.adopt()["fingerprint"]
        again = json.loads(project.build(NEW, "--unless-fingerprint", fingerprint).stdout)
        assert again["outcome"] == "unchanged"
        project.rows(13)
        again = json.loads(project.build(NEW, "--unless-fingerprint", fingerprint).stdout)
        assert (again["outcome"], again["generation"], again["records"]) == ("built", "g2", 13)

    @pytest.mark.parametrize("steps", [["lowercase"], ["strip"]])
    def test_says_when_its_keys_were_normalised_by_other_tables(self, project: Project, steps: list[str]) -> None:
        """``strip`` takes none of them."""
        key = {"columns": ["id"], "normalize": steps}
        assert project.build(OLD, key=key).exception is None
        path = Path(project.dataset(OLD).url) / "g3" / FILE_NAME
        path.chmod(0o644)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"unicode": "9.0.0"}))
        message = project.adopt(NEW, OLD, key=key)["message"]
        told = f"its keys were normalised with Unicode 9.0.0, not {UNICODE_VERSION}: " in message
        assert told == (steps == ["lowercase"])
        assert len(message) < MAX_RECORDED - 20, "a status keeps all of it, with longer numbers too"

    def test_can_be_adopted_in_turn(self, project: Project) -> None:
        project.adopt()
        assert project.adopt(OTHER, NEW)["adoptedFrom"] == f"{NEW}/g1"

    def test_is_none_that_a_gate_has_refused(self, project: Project) -> None:
        project.rows(2)
        assert isinstance(project.build(OLD).exception, GateClosed)
        assert project.dataset(OLD).refused_generations() == ("g3",)
        assert project.adopt()["adoptedFrom"] == f"{OLD}/g2"
        error = project.adopt(OTHER, f"{OLD}/g3")["error"]
        assert isinstance(error, AdoptionFailed)
        assert "it has g3 (rejected), g2, g1" in error.message

    def test_is_none_of_which_a_file_is_missing(self, project: Project) -> None:
        project.shards(OLD)[-1].unlink()
        assert project.adopt()["adoptedFrom"] == f"{OLD}/g1"


class TestAnAttemptThatIsRepeated:
    def test_finds_what_it_has_published_under_its_number(self, project: Project) -> None:
        first, again = (project.adopt(NEW, OLD, "--generation", "g4") for _ in range(2))
        assert (first["generation"], again["generation"], again["adoptedFrom"]) == ("g4", "g4", f"{OLD}/g2")
        assert project.dataset().generations() == ("g4",)

    def test_adopts_under_the_next_number_what_nobody_heard_of(self, project: Project) -> None:
        project.adopt(NEW, OLD, "--generation", "g1")
        assert project.adopt(NEW, OLD, "--generation", "g2")["adoptedFrom"] == f"{OLD}/g2"

    def test_builds_once_the_dataset_has_something_of_its_own(self, project: Project) -> None:
        assert json.loads(project.build(NEW).stdout)["outcome"] == "built"
        project.rows(13)
        report = project.adopt()
        assert (report["outcome"], report["generation"], report["records"]) == ("built", "g2", 13)

    def test_does_not_go_back_to_older_data_when_what_was_its_own_is_damaged(self, project: Project) -> None:
        project.build(NEW)
        project.shards(NEW)[0].unlink()
        assert project.adopt()["outcome"] == "built"


class TestWhoDoesNotKnowWhatTheDatasetHas:
    """An operator gives each build an id. It asks to adopt while it knows no generation, because it has missed g1."""

    def test_gets_a_copy_of_that_without_a_build(self, project: Project) -> None:
        built_at = json.loads(project.build(NEW).stdout)["builtAt"]
        (project.folder / "people.csv").unlink()
        for number in (2, 3):  # also for an attempt whose result was lost
            report = project.adopt(NEW, OLD, "--generation", f"g{number}", "--build-id", "monday")
            assert (report["outcome"], report["generation"]) == ("adopted", f"g{number}")
            found = (report["builtAt"], report["records"], report["adoptedFrom"])
            assert found == (built_at, 12, f"{NEW}/g{number - 1}")
        manifest = project.dataset().manifest("g3")
        with project.dataset().verified_shard("g3", manifest.shards[1], project.folder / "scratch") as path:
            assert path.stat().st_size == manifest.shards[1].bytes

    def test_never_goes_back_to_an_earlier_dataset_when_only_a_copy_of_its_own_is_left(self, project: Project) -> None:
        project.build(NEW)
        project.adopt(NEW, OLD, "--generation", "g2", "--build-id", "monday")
        project.dataset().remove("g1")
        report = project.adopt(NEW, OLD, "--generation", "g3", "--build-id", "tuesday")
        assert (report["generation"], report["adoptedFrom"]) == ("g3", f"{NEW}/g2")

    def test_gets_it_whatever_gates_say_now_for_they_have_judged_it(self, project: Project) -> None:
        project.build(NEW)
        report = project.adopt(NEW, OLD, "--generation", "g2", "--build-id", "monday", gates={"minRecords": 1000})
        assert (report["outcome"], report["adoptedFrom"]) == ("adopted", f"{NEW}/g1")

    def test_builds_when_that_cannot_be_copied(self, project: Project) -> None:
        project.build(NEW)
        damaged = project.shards(NEW)[0]
        damaged.write_bytes(bytes(damaged.stat().st_size))
        report = project.adopt(NEW, OLD, "--generation", "g2", "--build-id", "monday")
        assert (report["outcome"], report["generation"]) == ("built", "g2")

    def test_builds_when_that_is_of_another_spec(self, project: Project) -> None:
        project.build(NEW, shards=3)
        report = project.adopt(NEW, OLD, "--generation", "g2", "--build-id", "monday")
        assert (report["outcome"], report["generation"]) == ("built", "g2")

    def test_learns_what_to_do_when_there_is_no_volume_to_build_from(self, project: Project) -> None:
        project.build(NEW, shards=3)
        source = {"url": "volume:///people.csv", "volume": {"claimName": "people"}}
        error = project.adopt(NEW, OLD, "--generation", "g2", "--build-id", "monday", source=source)["error"]
        assert isinstance(error, AdoptionFailed)
        assert "already has g1, built from another spec\n  remove spec.adopt" in str(error)

    def test_adopts_though_it_has_a_copy_of_another(self, project: Project) -> None:
        project.adopt(OTHER, OLD, "--generation", "g1")
        assert project.adopt(NEW, OTHER, "--generation", "g1")["adoptedFrom"] == f"{OTHER}/g1"
        assert project.adopt(NEW, OLD, "--generation", "g2", "--build-id", "monday")["adoptedFrom"] == f"{OLD}/g2"


class TestNothingIsAdopted:
    def fail(self, project: Project, *arguments: Any, **spec: Any) -> AdoptionFailed:
        report = project.adopt(*arguments, **spec)
        error = report["error"]
        assert isinstance(error, AdoptionFailed)
        assert (report["reason"], report["exitCode"], report["outcome"]) == ("AdoptionFailed", 5, "failed")
        assert not project.dataset().published_generations()
        assert not project.dataset().unfinished_generations()
        return error

    def test_of_a_dataset_that_left_nothing_and_the_message_says_what_there_is(self, project: Project) -> None:
        message = self.fail(project, NEW, OTHER).message
        assert (
            f"people-{OTHER[:8]}: expected a whole generation that passed its gates, of team/people {OTHER}" in message
        )
        assert f"the store has team/people in cluster local only with the uids {OLD[:8]}" in message

    def test_where_there_is_nothing_at_all(self, project: Project) -> None:
        message = self.fail(project, NEW, OLD, name="persons").message
        assert "there is no other dataset of team/persons in cluster local" in message

    def test_of_another_dataset_with_the_same_first_characters(self, project: Project) -> None:
        other = f"{OLD[:-1]}f"
        message = self.fail(project, NEW, other).message
        assert message.endswith(f"of team/people {other}; g2 there belongs to team/people {OLD}")

    def test_of_itself(self, project: Project) -> None:
        assert "this dataset's own uid" in self.fail(project, NEW, NEW[:8]).message

    @pytest.mark.parametrize(
        ("spec", "expected"),
        [
            ({"shards": 3}, "shards was 2, the spec says 3"),
            ({"key": {"columns": ["name"]}}, "key.columns was ['id'], the spec says ['name']"),
            ({"key": {"columns": ["id"], "normalize": ["lowercase"]}}, "key.normalize was"),
            ({"duplicates": "last"}, "spec.source, key, value or duplicates differ"),
        ],
    )
    def test_of_another_spec_and_the_message_says_what_differs(
        self, project: Project, spec: Any, expected: str
    ) -> None:
        error = self.fail(project, **spec)
        assert expected in error.message
        assert error.message.startswith(f"g2 of team/people {OLD} was built from another spec")
        assert "restore the earlier spec" in str(error.hint)

    def test_of_a_laptops_path_where_the_spec_has_a_url_and_the_message_says_from_what_it_was_built(
        self, project: Project
    ) -> None:
        source = {"url": "s3://exports/people.csv"}
        error = self.fail(project, NEW, OLD, "--no-local-files", source=source)
        assert error.message.endswith("a part that the manifest does not record; the earlier source was people.csv")
        assert str(error.hint).startswith("specs with a local path and with a URL differ")

    def test_of_another_url_and_the_hint_is_another(self, project: Project) -> None:
        source, key = {"url": "example://airports.csv.gz"}, {"columns": ["icao"]}
        assert project.build(OTHER, source=source, key=key).exit_code == 0
        error = self.fail(project, NEW, OTHER, source={"url": "s3://exports/airports.csv.gz"}, key=key)
        assert "the earlier source was example://airports.csv.gz" in error.message
        assert "restore the earlier spec" in str(error.hint)

    def test_of_which_a_file_is_not_what_its_manifest_says(self, project: Project) -> None:
        path = project.shards(OLD)[-1]
        path.chmod(0o644)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        report = project.adopt()
        assert isinstance(report["error"], CorruptFile)
        assert not project.dataset().published_generations()
        assert not project.dataset().unfinished_generations()
        assert not any((project.folder / "scratch").iterdir())

    @pytest.mark.parametrize("text", ["", "a/b", "../x", OLD + "/", OLD + "/7", "012345678", OLD[:-1], "x" * 500])
    def test_of_what_is_no_uid(self, project: Project, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            EarlierDataset.parse(text)
        assert len(caught.value.message) < 300
        assert project.build(NEW, "--adopt", text).exception is not None


class TestGates:
    def test_judge_it_as_a_first_generation(self, project: Project) -> None:
        report = project.adopt(gates={"requiredKeys": ["p11"], "maxGrowthPercent": 0, "minRecords": 12})
        assert (report["outcome"], report["error"]) == ("adopted", None)

    @pytest.mark.parametrize("gates", [{"minRecords": 13}, {"requiredKeys": ["p12"]}])
    def test_that_are_closed_refuse_it_and_a_person_may_let_it_through(self, project: Project, gates: Any) -> None:
        report = project.adopt(gates=gates)
        assert isinstance(report["error"], GateClosed)
        assert (report["generation"], report["adoptedFrom"]) == ("g1", f"{OLD}/g2")
        assert project.dataset().refused_generations() == ("g1",)
        again = project.adopt(NEW, OLD, "--unless-refused", "g1", gates=gates)
        assert (again["generation"], project.dataset().refused_generations()) == ("g1", ("g1",)), "not copied again"
        opened = project.adopt(NEW, OLD, "--unless-refused", "g1")
        assert (opened["outcome"], opened["generation"]) == ("adopted", "g2")

    def test_that_were_overridden_once_judge_again(self, project: Project) -> None:
        gates = {"requiredKeys": ["p12"]}
        project.build(OTHER, gates=gates)
        assert project.build(OTHER, "--override-gates", "g1", gates=gates).exit_code == 0
        assert project.adopt(NEW, OTHER, gates=gates)["reason"] == "GateClosed"


def test_the_manifest_of_what_was_adopted_reads_as_it_was_written(project: Project) -> None:
    project.adopt()
    path = project.folder / "store/local/team" / f"people-{NEW[:8]}" / "g1" / FILE_NAME
    text = path.read_bytes()
    assert json.loads(text)["adopted"] == {"uid": OLD, "generation": "g2"}
    assert Manifest.from_json(text, "here").to_json() == text
    for adopted in ({}, {"uid": 1, "generation": "g1"}, "x"):
        with pytest.raises(LookupdbError):
            Manifest.from_json(json.dumps({**json.loads(text), "adopted": adopted}).encode(), "here")
    assert "adopted" not in json.loads((project.dataset(OLD).manifest("g2")).to_json())


def test_the_folder_of_another_dataset_is_not_adopted_though_its_name_fits(project: Project) -> None:
    folder = project.folder / "store/local/team"
    (folder / f"people-{OLD[:8]}").rename(folder / f"persons-{OLD[:8]}")
    error = project.adopt(name="persons")["error"]
    assert isinstance(error, AdoptionFailed)
    assert f"g2 there belongs to team/people {OLD}" in error.message
    assert not project.dataset().published_generations()
