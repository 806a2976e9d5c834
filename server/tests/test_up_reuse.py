"""Which generation `lookupdb up` begins with when nothing is to be built."""

from pathlib import Path

import orjson
import pytest
from support.shards import write_generation

from lookupdb import store
from lookupdb.builder.listing import SourceNotWhole
from lookupdb.dataset.spec import parse_resource
from lookupdb.errors import (
    BadSource,
    CorruptFile,
    GateClosed,
    InvalidManifest,
    LookupdbError,
    SourceMissing,
    SourceUnreadable,
    StoreUnreachable,
)
from lookupdb.store import StoredDataset
from lookupdb.up.builds import BuilderKilled, BuildFailed, SourceNotReady, find_reusable_generation
from lookupdb.up.child import ChildFailed
from lookupdb.up.rebuilds import SuccessFileAnswer
from lookupdb.up.run_state import NotWritten
from lookupdb.up.serving import CutoverFailed
from lookupdb.up.up import answer_failure

SPEC = parse_resource(
    {
        "apiVersion": "lookupdb.dev/v1alpha1",
        "kind": "LookupDataset",
        "metadata": {"name": "sample"},
        "spec": {"source": {"url": "a.csv"}, "key": {"columns": ["k"]}},
    }
)


def dataset_of(tmp_path: Path, **contents: str) -> StoredDataset:
    """A dataset with a generation for each of ``contents``, built to a spec with that content hash."""
    dataset = store.open_store(str(tmp_path)).dataset(SPEC)
    for generation, content in contents.items():
        path = write_generation(tmp_path / "local" / "default" / "sample-local", {"k": b"v"}, generation=generation)
        manifest = path / "manifest.json"
        manifest.chmod(0o644)
        manifest.write_bytes(orjson.dumps({**orjson.loads(manifest.read_bytes()), "content": content}))
    return dataset


def test_it_is_the_newest_that_was_built_to_this_very_spec(tmp_path: Path) -> None:
    content = SPEC.content_hash()
    found = find_reusable_generation(dataset_of(tmp_path, g1=content, g2=content, g3="f" * 32), SPEC)
    assert found is not None
    assert found.generation == "g2"


def test_of_a_source_it_is_the_newest_that_was_built_from_it(tmp_path: Path) -> None:
    content = SPEC.content_hash()
    dataset = dataset_of(tmp_path, g1=content, g2=content)
    fingerprint = dataset.manifest("g2").fingerprint
    found = find_reusable_generation(dataset, SPEC, fingerprint)
    assert found is not None
    assert found.generation == "g2"
    assert find_reusable_generation(dataset, SPEC, "another") is None


def test_there_is_none_before_the_first_build_or_after_a_change_of_the_spec(tmp_path: Path) -> None:
    assert find_reusable_generation(store.open_store(str(tmp_path)).dataset(SPEC), SPEC) is None
    assert find_reusable_generation(dataset_of(tmp_path, g1="f" * 32), SPEC) is None


def test_a_manifest_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    content = SPEC.content_hash()
    dataset = dataset_of(tmp_path, g1=content, g2=content)
    (tmp_path / "local" / "default" / "sample-local" / "g2" / "manifest.json").write_text("{")
    found = find_reusable_generation(dataset, SPEC)
    assert found is not None
    assert found.generation == "g1"


def test_what_may_pass_by_itself_is_worth_another_attempt() -> None:
    for error in (
        ChildFailed("ended before it was ready"),
        CorruptFile("damaged"),
        CutoverFailed("not confirmed"),
        NotWritten("cannot be written"),
        SourceMissing("not there"),
        SourceNotReady("no success file"),
        SourceUnreadable("its server is away"),
        StoreUnreachable("away"),
    ):
        assert error.may_pass


@pytest.mark.parametrize(
    "kind", [BadSource, GateClosed, InvalidManifest, SourceNotWhole], ids=lambda kind: kind.__name__
)
def test_what_manifest_and_source_have_again_is_not(kind: type[LookupdbError]) -> None:
    assert not kind("as it is").may_pass


@pytest.mark.parametrize(
    ("error", "fingerprint", "is_answered"),
    [
        (BuildFailed("bad", 1, may_pass=False), "day 2", True),
        (BuildFailed("bad", 1, may_pass=False), None, True),
        (BuilderKilled(9), "day 2", True),
        (BuilderKilled(9), None, False),
        (SourceNotReady("waiting"), "day 2", False),
        (SourceNotWhole("half of day 3"), "day 2", True),
    ],
    ids=["bad", "bad, not identified", "killed", "killed, not identified", "the success file is gone", "not whole"],
)
def test_a_build_that_fails_at_the_start_answers_the_success_file_unless_it_is_made_again_anyway(
    error: LookupdbError, fingerprint: str | None, is_answered: bool
) -> None:
    seen = SuccessFileAnswer("S2", fingerprint)
    assert answer_failure(seen, error) == (seen if is_answered else None)
    assert answer_failure(None, error) is None
