"""A refresh keeps the dictionary of the active generation, so that values that have not changed keep their stored
bytes. If it cannot, the build trains one and says why."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.buckets import create_bucket, use_server
from support.build_project import Project
from support.gateways import fake_gateway, use_token

from lookupdb.builder import dictionary
from lookupdb.builder.dictionary import ROUNDS, read_dictionary
from lookupdb.builder.gates import ActiveGeneration
from lookupdb.cli.inspect import command as inspect
from lookupdb.errors import StoreError
from lookupdb.manifest import FILE_NAME, Manifest
from lookupdb.shardfile import FRAMED
from lookupdb.store.generations import find_in_store

pytest_plugins = ["support.s3_fixtures"]

RECORDS = 4_000
KEPT = "by the sample, g1's makes files "


class People(Project):
    """Rows with a team and a manager out of a few, whose values a dictionary makes smaller."""

    def rows(self, count: int = RECORDS, extra: str = "", *, changed: int = 0, seed: int = 1) -> None:
        chance = random.Random(seed)
        managers = [f"{chance.getrandbits(128):032x}" for _ in range(50)]
        lines = [
            f"p{number},{chance.choice(managers)},{'moved' if number % 1000 < changed else 'here'} {number}\n"
            for number in range(count)
        ]
        (self.folder / "people.csv").write_text("id,manager,place\n" + "".join(lines) + extra)

    def records(self, generation: str) -> dict[bytes, tuple[bytes, bytes]]:
        """Key → stored bytes and value."""
        with find_in_store(self.dataset, generation).shards(self.folder) as shards:
            return {key: (stored, shard.expand(stored)) for shard in shards for key, stored in shard.items()}

    def inspected(self, generation: str) -> str:
        words = [generation, "--store", str(self.store), "--dataset", "people"]
        return str(CliRunner().invoke(inspect, words, catch_exceptions=False).stdout)

    def explained(self) -> str:
        (line,) = (line for line in self.build("--explain").stdout.splitlines() if line.startswith("dictionary "))
        return str(line.removeprefix("dictionary").strip())

    def rewrite(self, generation: str, **members: Any) -> None:
        """Publish the manifest with other members, as another builder might have."""
        path = Path(self.dataset.url) / generation / FILE_NAME
        path.chmod(0o644)
        path.write_bytes(replace(self.dataset.manifest(generation), **members).to_json())


@pytest.fixture
def people(tmp_path: Path) -> People:
    people = People(tmp_path)
    people.rows()
    return people


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of people with g1."""
    people = People(tmp_path_factory.mktemp("trained"))
    people.rows()
    assert people.built()["dictionary"]["outcome"] == "trained"
    return people.store


@pytest.fixture
def built_people(people: People, trained: Path) -> People:
    """People with g1."""
    shutil.copytree(trained, people.store)
    return people


@pytest.fixture(params=["directory", "bucket", "gateway"])
def stored_people(
    people: People, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[People]:
    """The same in each kind of store."""
    if request.param == "bucket":
        url = request.getfixturevalue("server")
        use_server(url, monkeypatch)
        people.store = create_bucket(url)  # type: ignore[assignment]
    if request.param != "gateway":
        yield people
        return
    use_token(tmp_path, monkeypatch)
    with fake_gateway() as gateway:
        people.store = gateway.url  # type: ignore[assignment]
        yield people


def test_records_that_have_not_changed_keep_their_stored_bytes(stored_people: People) -> None:
    people = stored_people
    first = people.built()
    assert first["dictionary"]["outcome"] == "trained"
    people.rows(RECORDS + 5, changed=1)
    second = people.built()
    assert second["dictionary"]["outcome"] == "kept"
    assert second["dictionary"]["reason"].startswith(KEPT)
    assert second["dictionary"]["sha256"] == first["dictionary"]["sha256"]
    before, after = people.records("g1"), people.records("g2")
    same = {key for key in before if before[key][1] == after[key][1]}
    assert len(same) == RECORDS - RECORDS // 1000
    assert [key for key in same if before[key][0] != after[key][0]] == []
    assert sum(after[key][0][0] != FRAMED for key in same) > RECORDS // 2, "they are compressed, with the dictionary"


def test_every_shards_file_says_where_its_copy_is(people: People) -> None:
    people.describe(shards=5)
    people.built()
    manifest = people.dataset.manifest("g1")
    assert manifest.dictionary is not None
    for shard in manifest.shards:
        content = (Path(people.dataset.url) / "g1" / shard.file).read_bytes()[shard.dictionary_offset :]
        assert hashlib.sha256(content[: manifest.dictionary_bytes]).hexdigest() == manifest.dictionary.sha256


def test_why_is_said_before_the_build_by_the_result_and_of_the_generation(people: People) -> None:
    assert people.explained() == "trained: there is no earlier generation"
    assert people.built()["dictionary"]["reason"] == "there is no earlier generation"
    assert "\ndictionary     trained: there is no earlier generation\n" in people.inspected("g1")
    assert people.explained().startswith("kept: g1's, ")
    people.rows(changed=1)
    result = people.built()
    assert f"\ndictionary     kept: {result['dictionary']['reason']}\n" in people.inspected("g2")
    people.rows(seed=2)
    result = people.built()
    assert result["dictionary"]["outcome"] == "trained"
    assert result["dictionary"]["reason"].endswith(" % larger than a newly trained one")
    assert "g2's makes files " in people.inspected("g3")


def test_the_same_build_again_gives_the_same_files(built_people: People) -> None:
    """A build is repeated after a crash. It keeps the dictionary of the active generation, not of the newest."""
    people = built_people
    people.rows(changed=1)
    people.built()
    shards = people.dataset.manifest("g2").shards
    people.rows(seed=2)
    people.built()
    people.rows(changed=1)
    assert people.built("--active", "g1")["dictionary"]["outcome"] == "kept"
    assert people.dataset.manifest("g4").shards == shards
    people.dataset.remove("g4")
    people.dataset.remove("g2")
    assert people.built("--active", "g1", "--generation", "g2")["generation"] == "g2"
    assert people.dataset.manifest("g2").shards == shards


def test_an_unchanged_source_builds_nothing(people: People) -> None:
    first = people.built()
    assert people.built("--unless-fingerprint", first["fingerprint"])["outcome"] == "unchanged"
    again = people.built()
    assert again["dictionary"]["reason"] == f"{KEPT}0.00 % larger than a newly trained one"
    assert people.dataset.manifest("g1").shards == people.dataset.manifest("g2").shards


def test_other_shards_and_other_keys_keep_it(built_people: People) -> None:
    people = built_people
    first = people.dataset.manifest("g1").dictionary
    assert first is not None
    people.describe(shards=3, key={"columns": ["id"], "normalize": ["lowercase"]})
    second = people.built()
    assert second["dictionary"]["outcome"] == "kept"
    assert second["dictionary"]["sha256"] == first.sha256


def test_without_compression_there_is_nothing_to_choose(people: People) -> None:
    people.describe(value={"compression": "none"})
    assert people.built()["dictionary"] is None
    assert "\ndictionary " not in people.inspected("g1")
    assert "\ndictionary " not in people.build("--explain").stdout
    people.describe()
    reason = people.built()["dictionary"]["reason"]
    assert reason == "g1's cannot be used: its values are not compressed"


def test_a_generation_without_a_dictionary_is_followed_by_the_same_rule(people: People) -> None:
    (people.folder / "people.csv").write_text("id,name\n" + "".join(f"p{n},{n}\n" for n in range(100)))
    assert people.built()["dictionary"]["outcome"] == "trained"
    assert people.dataset.manifest("g1").dictionary_bytes == 0
    assert people.built()["dictionary"]["outcome"] == "kept"
    people.rows()
    assert people.built("--active", "g2")["dictionary"]["outcome"] == "trained"
    assert people.dataset.manifest("g3").dictionary_bytes > 0


def break_file(people: People, manifest: Manifest) -> None:
    path = Path(people.dataset.url) / "g1" / manifest.shards[0].file
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(manifest.shards[0].dictionary_offset + 100)
        file.write(bytes(100))


def remove_file(people: People, manifest: Manifest) -> None:
    (Path(people.dataset.url) / "g1" / manifest.shards[0].file).unlink()


def point(offset: int) -> Any:
    def rewrite(people: People, manifest: Manifest) -> None:
        shards = (replace(manifest.shards[0], dictionary_offset=offset), *manifest.shards[1:])
        people.rewrite("g1", shards=shards)

    return rewrite


def grow(people: People, manifest: Manifest) -> None:
    people.rewrite("g1", dictionary_bytes=max(map(max, ROUNDS)) + 1)


def forget(people: People, manifest: Manifest) -> None:
    people.rewrite("g1", dictionary=None)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        pytest.param(break_file, "shard-00000-of-00002.lmdb of g1 has a damaged copy of it", id="corrupt"),
        pytest.param(remove_file, "shard-00000-of-00002.lmdb", id="missing"),
        pytest.param(point(1), "has a damaged copy of it", id="elsewhere"),
        pytest.param(point(1 << 63), "its builder did not record where it is", id="behind the end"),
        pytest.param(point(-1), "its builder did not record where it is", id="nowhere"),
        pytest.param(grow, "bytes, expected at most", id="too large"),
        pytest.param(forget, "its builder did not record where it is", id="older builder"),
    ],
)
def test_why_a_dictionary_cannot_be_read(built_people: People, damage: Any, why: str) -> None:
    people = built_people
    damage(people, people.dataset.manifest("g1"))
    found = read_dictionary(people.dataset, ActiveGeneration("g1", 1, people.dataset.manifest("g1")))
    assert found.content == b""
    assert found.obstacle.startswith("g1's cannot be used: ")
    assert why in found.obstacle


def test_one_that_is_damaged_is_trained_again(built_people: People) -> None:
    people = built_people
    break_file(people, people.dataset.manifest("g1"))
    people.rows(changed=1)
    expected = people.explained()
    result = people.built("--active", "g1")
    assert f"{result['dictionary']['outcome']}: {result['dictionary']['reason']}" == expected
    assert "has a damaged copy of it" in expected
    assert len(people.records("g2")) == RECORDS


def test_what_the_store_has_lost_is_trained_again(built_people: People) -> None:
    people = built_people
    shutil.rmtree(Path(people.dataset.url) / "g1")
    result = people.built("--active", "g1", "--active-records", str(RECORDS))
    assert result["dictionary"]["reason"] == "g1's cannot be used: the store has lost it"
    assert people.built("--active", "g2")["dictionary"]["outcome"] == "kept", "what was trained again can be kept"
    assert read_dictionary(people.dataset, ActiveGeneration("g1", 1, None)).content == b""


@pytest.mark.parametrize(("failures", "outcome"), [(1, "kept"), (9, "trained")])
def test_a_store_that_fails_is_asked_again_for_a_while(
    built_people: People, monkeypatch: pytest.MonkeyPatch, failures: int, outcome: str
) -> None:
    """Another choice than before a crash would change every file."""
    people = built_people
    kind = type(people.dataset)
    read, left = kind.read, [failures]

    def fail_at_first(*arguments: Any) -> Iterator[bytes]:
        if left[0]:
            left[0] -= 1
            raise StoreError("the disk is busy")
        yield from read(*arguments)

    monkeypatch.setattr(kind, "read", fail_at_first)
    monkeypatch.setattr(dictionary, "_DICTIONARY_SECONDS", 1.0)
    choice = people.built()["dictionary"]
    assert choice["outcome"] == outcome
    assert outcome == "kept" or choice["reason"] == "g1's cannot be used: the disk is busy"
