"""Generations that are pushed: whoever pushes claims and publishes as a build does, and a builder takes only what it
has verified."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
import yaml
from click.testing import CliRunner
from support.buckets import new_bucket

from lookupdb import store
from lookupdb.cli import cli
from lookupdb.errors import GateClosed, InvalidManifest, LookupdbError, PushRejected
from lookupdb.manifest import FILE_NAME, ExcludedRows, Manifest, Refusal, RowSample
from lookupdb.shardfile import ShardReader
from lookupdb.store import Store, StoreAddress, StoredDataset
from lookupdb.store.bucket import Bucket

pytest_plugins = ["support.s3_fixtures"]

UID = "3f2b9c1e-0000-4000-8000-00000000000a"


class Project:
    """A dataset whose source is pushed, and rows to push."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self.manifest = folder, url, folder / "people.yaml"
        (folder / "scratch").mkdir()
        self.describe()

    def describe(self, name: str = "people", **spec: Any) -> None:
        self.address = StoreAddress("local", "team", name, UID)
        metadata = {"name": name, "namespace": "team", "uid": UID}
        full = {"source": {"pushed": True}, "key": {"columns": ["id"]}, "shards": 2} | spec
        resource = {"apiVersion": "lookupdb.dev/v1alpha1", "kind": "LookupDataset", "metadata": metadata, "spec": full}
        self.manifest.write_text(yaml.safe_dump(resource))

    def run(self, verb: str, *arguments: str) -> dict[str, Any]:
        fixed = ("-f", str(self.manifest), "--store", self.url, "--scratch", str(self.folder / "scratch"))
        words = [verb, *fixed, "--progress", "none", "--json", *arguments]
        result = CliRunner().invoke(cli, words, standalone_mode=False)
        assert list((self.folder / "scratch").iterdir()) == []
        report: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
        report["error"] = result.exception
        return report

    def push(self, rows: int = 10, *arguments: str, text: str = "") -> dict[str, Any]:
        text = text or "".join(f"p{n},name {n}\n" for n in range(rows))
        (self.folder / "rows.csv").write_text("id,name\n" + text)
        return self.run("push", str(self.folder / "rows.csv"), *arguments)

    def take(self, *arguments: str) -> dict[str, Any]:
        return self.run("build", *arguments)

    def rejected(self, *arguments: str) -> str:
        report = self.take(*arguments)
        assert isinstance(report["error"], PushRejected), report
        assert (report["reason"], report["exitCode"], report["mayPass"]) == ("PushRejected", 5, False)
        return str(report["error"])

    @property
    def store(self) -> Store:
        return store.open_store(self.url)

    @property
    def dataset(self) -> StoredDataset:
        return self.store.dataset_at(self.address)

    @property
    def inbox(self) -> StoredDataset:
        return self.store.dataset_at(replace(self.address, is_inbox=True))

    def put(self, name: str, content: bytes) -> None:
        """Put a file beside the pushes, as anybody with write access can."""
        path = f"{self.inbox.address.path}/{name}"
        if "://" in self.url:
            Bucket(self.url).objects.put(path, content)
            return
        target = Path(self.url) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        (replacement := target.with_name("replacement")).write_bytes(content)
        replacement.replace(target)

    def forge(self, change: Callable[[Manifest], Manifest], generation: str = "g1") -> None:
        self.put(f"{generation}/{FILE_NAME}", change(self.inbox.manifest(generation)).to_json())


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    if getattr(request, "param", "directory") == "directory":
        return Project(tmp_path, str(tmp_path / "store"))
    return Project(tmp_path, new_bucket(request.getfixturevalue("server"), monkeypatch).url)


@pytest.fixture(scope="module")
def pushed_once(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("pushed")
    project = Project(folder, str(folder / "store"))
    project.push()
    return project


@pytest.fixture
def pushed(pushed_once: Project) -> Iterator[Project]:
    """A project with a push, which many tests share. Its spec and its index are there again after each."""
    index = pushed_once.inbox.manifest("g1").to_json()
    yield pushed_once
    pushed_once.describe()
    pushed_once.put(f"g1/{FILE_NAME}", index)


in_each_store = pytest.mark.parametrize("project", ["directory", "s3"], indirect=True)
"""Use it for tests of what differs between kinds of stores. What only looks at an index needs one of them."""


@in_each_store
def test_the_newest_push_is_verified_and_copied(project: Project) -> None:
    assert (project.take()["outcome"], project.dataset.generations()) == ("waiting", ())
    pushed = project.push(10)
    assert (pushed["outcome"], pushed["message"].partition(",")[0]) == ("built", "pushed g1: 10 records in 2 shards")
    assert project.dataset.known_generations() == (), "a push serves nowhere"
    taken = project.take("--generation", "g7", "--build-id", "now")
    assert (taken["outcome"], taken["generation"], taken["records"]) == ("built", "g7", 10)
    assert (taken["builtAt"], taken["adoptedFrom"]) == (pushed["builtAt"], None)
    push, copy = project.inbox.manifest("g1"), project.dataset.manifest("g7")
    assert [shard.sha256 for shard in copy.shards] == [shard.sha256 for shard in push.shards]
    assert (copy.uid, copy.build, copy.adopted, [file.url for file in copy.source]) == (
        UID,
        "now",
        None,
        [f"{project.inbox.url}/g1"],
    )
    unchanged = project.take("--unless-fingerprint", taken["fingerprint"])
    assert (unchanged["outcome"], unchanged["fingerprint"]) == ("unchanged", taken["fingerprint"])
    project.push(11)
    again = project.take("--unless-fingerprint", taken["fingerprint"])
    assert (again["generation"], again["records"]) == ("g8", 11)
    repeated = project.take("--generation", "g8")
    assert repeated["outcome"] == "adopted"


def test_the_bytes_are_those_of_a_build(project: Project) -> None:
    project.push(1000)
    project.take()
    project.describe(source={"url": "rows.csv"})
    project.run("build")
    pushed, built = project.dataset.manifest("g1"), project.dataset.manifest("g2")
    assert (pushed.totals, pushed.key_columns) == (built.totals, built.key_columns)


def test_two_pushes_stay_and_numbers_are_not_given_twice(project: Project) -> None:
    for rows in (5, 5, 6, 6):
        project.push(rows)
    assert project.inbox.published_generations() == ("g3", "g4")


def test_whoever_pushes_gets_the_errors_of_a_build_and_publishes_nothing_then(project: Project) -> None:
    project.push(100)
    for text, found in (("a,1\nb,2\na,3\n", "key 'a' occurs twice"), ("a,1,2\n", "row 1")):
        assert found in str(project.push(text=text)["error"])
    closed = project.push(10)
    assert isinstance(closed["error"], GateClosed)
    assert "expected at most 20 % fewer records, found 10 where g1 has 100" in closed["message"]
    assert "nothing was pushed: correct the rows, or leave the gates to the dataset" in closed["message"]
    assert project.inbox.known_generations() == ("g1",)
    assert project.push(10, "--no-gates")["generation"] == "g2"


def test_damaged_pushes_are_replaced_without_gates(tmp_path: Path) -> None:
    project = Project(tmp_path, str(tmp_path / "store"))
    project.push(10)
    index = next((tmp_path / "store").rglob(f"pushed/g1/{FILE_NAME}"))
    index.chmod(0o644)
    index.write_text("{")
    error = project.push(10)["error"]
    assert error.hint == "no push is left to compare with: leave the gates to the dataset with --no-gates"
    assert project.push(10, "--no-gates")["generation"] == "g2"
    assert project.take()["records"] == 10


def test_the_gates_of_the_dataset_judge_a_push_against_what_is_active(project: Project) -> None:
    gates = {"maxChangedPercent": 50, "requiredKeys": ["p1"]}
    project.describe(gates=gates)
    project.push(100)
    first = project.take()
    project.push(10, "--no-gates")
    closed = project.take("--active", "g1")
    assert isinstance(closed["error"], GateClosed)
    assert "maxShrinkPercent" in closed["message"]
    assert "maxChangedPercent: expected at most 50 % of the keys to differ from g1, found 90.0 %" in closed["message"]
    assert project.dataset.refused_generations() == ("g2",)
    same = project.take("--active", "g1", "--unless-refused", "g2", "--unless-fingerprint", first["fingerprint"])
    assert (same["generation"], project.dataset.known_generations()) == ("g2", ("g1", "g2")), "it is not copied again"
    assert project.take("--override-gates", "g2")["outcome"] == "adopted"
    assert project.take()["outcome"] == "built", "it is compared with its own copy"
    project.push(10, "--no-gates", text="".join(f"q{n},name\n" for n in range(100)))
    assert "requiredKeys: expected 1 key to be there, found 1 missing" in project.take()["message"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"key": {"columns": ["name"]}}, "key.columns was ['id'], the spec says ['name']"),
        ({"shards": 3}, "shards was 2, the spec says 3"),
        ({"value": {"format": "raw", "column": "name"}}, "value.format was json, the spec says raw"),
        ({"duplicates": "last"}, "differ in a part that the manifest does not record"),
    ],
)
def test_a_push_of_another_spec_is_rejected(pushed: Project, spec: dict[str, Any], message: str) -> None:
    pushed.describe(**spec)
    found = pushed.rejected()
    assert message in found
    assert found.startswith(f"push g1 in {pushed.inbox.url} was rejected: it was made for another spec")
    assert pushed.dataset.known_generations() == ()


def shard(manifest: Manifest, **changes: Any) -> Manifest:
    return replace(manifest, shards=(replace(manifest.shards[0], **changes), *manifest.shards[1:]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: replace(m, name="places"), "it was made for 'team/places', expected 'team/people'"),
        (lambda m: replace(m, namespace="other\n" * 999), r"it was made for 'other\nother\n"),
        (lambda m: replace(m, key_columns=("name",)), "key.columns was ['name'], the spec says ['id']"),
        (lambda m: replace(m, content="0" * 32), "differ in a part"),
        (lambda m: replace(m, shards=m.shards[:1]), "names the file 'shard-00000-of-00002"),
        (lambda m: replace(m, refused=Refusal(("x",), "", "")), "it failed a gate where it was made"),
        (lambda m: replace(m, built_at="2999-01-01T00:00:00Z"), "in the past\n  correct the clock of the machine"),
        (lambda m: replace(m, dictionary_bytes=7), "has a dictionary of 0 bytes, its index says 7"),
        (lambda m: replace(m, built_at="yesterday"), "expected a time in the past"),
        (lambda m: replace(m, totals=replace(m.totals, records=10**9)), "which differs from its totals"),
        (lambda m: shard(m, sha256="0" * 64), "its index says 000000"),
        (lambda m: shard(m, bytes=7), "which differs from its totals"),
        (lambda m: shard(m, file="../../g1/manifest.json"), "names the file '../../g1/manifest.json'"),
        (lambda m: shard(m, file="/etc/passwd"), "names the file '/etc/passwd'"),
        (lambda m: shard(m, file=m.shards[1].file), "names the file"),
        (lambda m: replace(m, rejected=replace(m.rejected, count="1")), "count is '1', expected int"),
        (lambda m: replace(m, generation="g2"), "says it describes g2, expected g1"),
        (lambda m: replace(m, shards=m.shards[::-1]), "names the file"),
    ],
)
def test_a_lying_index_is_rejected(pushed: Project, change: Callable[[Manifest], Manifest], message: str) -> None:
    pushed.forge(change)
    assert message in pushed.rejected()
    assert pushed.dataset.known_generations() == ()


@pytest.mark.parametrize("content", [b"{", b"[" * 200_000, b'{"formatVersion": 9}'], ids=["half", "nested", "future"])
def test_what_is_no_index_is_rejected_and_the_one_before_stays(project: Project, content: bytes) -> None:
    project.push()
    project.take()
    project.put(f"g2/{FILE_NAME}", content)
    assert "push g2 in" in project.rejected("--active", "g1")
    assert project.dataset.generations() == ("g1",)


def test_an_index_that_is_too_large_is_not_read(project: Project) -> None:
    project.push()
    project.put(f"g2/{FILE_NAME}", b"")
    os.truncate(Path(project.inbox.url) / "g2" / FILE_NAME, 65 << 20)
    assert isinstance(project.take()["error"], LookupdbError)


@in_each_store
def test_a_push_that_is_not_whole_yet_is_not_seen(project: Project) -> None:
    project.push()
    project.put("g2/shard-00000-of-00002.lmdb", b"x")
    project.put("g2/claim.json", b"{}")
    assert project.take()["records"] == 10


@in_each_store
@pytest.mark.parametrize("content", [b"", b"x", None], ids=["empty", "cut", "of the same size"])
def test_a_file_that_is_not_what_the_index_says_is_rejected(project: Project, content: bytes | None) -> None:
    project.push()
    (first, _) = project.inbox.manifest("g1").shards
    project.put(f"g1/{first.file}", bytes(first.bytes) if content is None else content)
    assert first.file in project.rejected()


def test_a_link_is_rejected(project: Project) -> None:
    project.push()
    path = Path(project.inbox.url) / "g1" / project.inbox.manifest("g1").shards[0].file
    path.rename(project.folder / "elsewhere")
    path.symlink_to(project.folder / "elsewhere")
    assert "is a link, expected a file" in project.rejected()


def test_files_of_another_dataset_with_right_sums_are_rejected(project: Project) -> None:
    project.push()
    index = project.inbox.manifest("g1")
    project.describe("places")
    project.push(3)
    forged = project.inbox.manifest("g1")
    files = [b"".join(project.inbox.read("g1", entry)) for entry in forged.shards]
    project.describe()
    for entry, content in zip(forged.shards, files, strict=True):
        project.put(f"g1/{entry.file}", content)
    project.put(f"g1/{FILE_NAME}", replace(index, shards=forged.shards, totals=forged.totals).to_json())
    assert "has dataset 'team/places', expected 'team/people'" in project.rejected()


def test_files_in_another_order_are_rejected(project: Project) -> None:
    project.push(text="a,1\nb,2\nc,3\nd,4\n")
    index = project.inbox.manifest("g1")
    first, second = index.shards
    for entry, other in ((first, second), (second, first)):
        project.put(f"g1/{entry.file}.new", b"".join(project.inbox.read("g1", other)))
    swapped = (replace(second, file=first.file), replace(first, file=second.file))
    for entry in index.shards:
        content = b"".join(project.inbox.read("g1", replace(entry, file=f"{entry.file}.new")))
        project.put(f"g1/{entry.file}", content)
    project.put(f"g1/{FILE_NAME}", replace(index, shards=swapped).to_json())
    assert "has shard '1', expected '0'" in project.rejected()


@in_each_store
def test_a_file_that_is_replaced_after_the_check_is_never_served(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push may come at any time. Servers compare what they fetch with the checksum in the copied index."""
    project.push(10)
    first = project.inbox.manifest("g1").shards[0]
    from lookupdb.builder import build

    verify = build.verify_push

    def verify_and_replace(*arguments: Any) -> None:
        verify(*arguments)
        project.put(f"g1/{first.file}", bytes(first.bytes))

    monkeypatch.setattr(build, "verify_push", verify_and_replace)
    report = project.take()
    if report["error"] is not None:
        assert isinstance(report["error"], PushRejected), "a directory's copy is verified"
        assert project.dataset.known_generations() == ()
        return
    copied = project.dataset.manifest("g1").shards[0]
    with (
        pytest.raises(LookupdbError, match="its index says"),
        project.dataset.verified_shard("g1", copied, project.folder / "scratch"),
    ):
        pass


@in_each_store
def test_what_is_replaced_after_the_copy_changes_nothing(project: Project) -> None:
    project.push(10)
    project.take()
    for entry in project.inbox.manifest("g1").shards:
        project.put(f"g1/{entry.file}", b"x")
    project.forge(lambda found: replace(found, rejected=ExcludedRows(1, (RowSample("x", 1, "y"),))))
    manifest = project.dataset.manifest("g1")
    for entry in manifest.shards:
        with project.dataset.verified_shard("g1", entry, project.folder / "scratch") as path, ShardReader(path):
            pass
    assert project.dataset.generations() == ("g1",)


def test_a_push_of_other_unicode_tables_is_copied_once(project: Project) -> None:
    gates = {"maxGrowthPercent": 50}
    project.describe(key={"columns": ["id"], "normalize": ["lowercase"]}, gates=gates)
    project.push(10)
    project.forge(lambda m: replace(m, unicode="9.0.0"))
    taken = project.take()
    assert project.take("--unless-fingerprint", taken["fingerprint"])["outcome"] == "unchanged"
    project.push(100, "--no-gates")
    project.forge(lambda m: replace(m, unicode="9.0.0"), "g2")
    assert project.take("--active", "g1")["generation"] == "g2"
    again = project.take("--active", "g1", "--unless-refused", "g2")
    assert (again["reason"], project.dataset.refused_generations()) == ("GateClosed", ("g2",))


def test_a_dataset_with_a_source_takes_no_push(project: Project) -> None:
    project.describe(source={"url": "rows.csv"})
    error = project.push()["error"]
    assert isinstance(error, InvalidManifest)
    assert "so it takes no pushes" in str(error)


def test_a_push_to_a_cluster_needs_the_uid_of_its_dataset(tmp_path: Path) -> None:
    project = Project(tmp_path, str(tmp_path / "store"))
    project.manifest.write_text(project.manifest.read_text().replace(f"  uid: {UID}\n", ""))
    refused = project.push(10, "--cluster-id", "c1")
    assert isinstance(refused["error"], InvalidManifest)
    assert "team/people has no uid, so the cluster would not find the push" in str(refused["error"])
    assert "kubectl get lds people -n team -o yaml" in str(refused["error"])
    assert project.push(10)["outcome"] == "built", "on a laptop there is none"


def test_explain_says_what_would_be_taken(project: Project) -> None:
    def explain() -> str:
        words = ["build", "-f", str(project.manifest), "--store", project.url, "--explain"]
        return CliRunner().invoke(cli, words, standalone_mode=False, catch_exceptions=False).output

    assert "which has no push yet: the build would wait" in explain()
    project.push()
    assert f"push g1 in {project.inbox.url} (10 records, " in explain()
    assert "'*/5 * * * *' in UTC" in explain()
    project.take()
    assert "dictionary" not in explain(), "a copy has that of the push"
    project.describe(shards=3)
    assert "would reject it, because it was made for another spec: shards was 2, the spec says 3" in explain()


def test_avro_without_a_name_that_says_so_is_pushed(project: Project) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "int"}]}
    path = project.folder / "rows"
    with path.open("wb") as file:
        fastavro.writer(file, schema, [{"id": "a", "n": 1}])
    assert project.run("push", str(path), "--source-format", "avro")["records"] == 1
