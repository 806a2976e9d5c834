"""Which generation `lookupdb up` begins with when nothing is to be built."""

from pathlib import Path

import orjson
from support.shards import write_generation

from lookupdb import store
from lookupdb.local.builds import find_reusable_generation
from lookupdb.spec import parse_resource
from lookupdb.store import StoredDataset

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
    assert find_reusable_generation(dataset_of(tmp_path, g1=content, g2=content, g3="f" * 32), SPEC) == "g2"


def test_there_is_none_before_the_first_build_or_after_a_change_of_the_spec(tmp_path: Path) -> None:
    assert find_reusable_generation(store.open_store(str(tmp_path)).dataset(SPEC), SPEC) is None
    assert find_reusable_generation(dataset_of(tmp_path, g1="f" * 32), SPEC) is None


def test_a_manifest_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    content = SPEC.content_hash()
    dataset = dataset_of(tmp_path, g1=content, g2=content)
    (tmp_path / "local" / "default" / "sample-local" / "g2" / "manifest.json").write_text("{")
    assert find_reusable_generation(dataset, SPEC) == "g1"
