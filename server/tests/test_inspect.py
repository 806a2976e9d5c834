"""`lookupdb inspect` shows the contents of a shard file or a generation."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest
from click.testing import CliRunner
from support.generations import publish

from lookupdb import store
from lookupdb.cli.inspect import command
from lookupdb.errors import CorruptFile, StoreError, UsageError
from lookupdb.manifest import Manifest
from lookupdb.store import StoreAddress, StoredDataset

CONTENT = {f"key-{number:05d}": b'{"n":%d,"text":"some text that many have"}' % number for number in range(3000)}


@pytest.fixture
def dataset(tmp_path: Path) -> StoredDataset:
    (tmp_path / "scratch").mkdir()
    return store.open_store(str(tmp_path / "store")).dataset_at(StoreAddress("local", "default", "things", "local"))


@pytest.fixture
def manifest(dataset: StoredDataset, tmp_path: Path) -> Manifest:
    return publish(dataset, "g1", CONTENT, tmp_path / "scratch", shards=2, train=True)


def inspect(tmp_path: Path, *arguments: str) -> Any:
    return CliRunner().invoke(command, [*arguments, "--store", str(tmp_path / "store")], standalone_mode=False)


def document(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    result = inspect(tmp_path, *arguments, "--json")
    assert result.exception is None, result.exception
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_a_generation_in_a_store(manifest: Manifest, tmp_path: Path) -> None:
    contents = document(tmp_path, "g1")
    assert contents["manifest"]["generation"] == "g1"
    figures = contents["figures"]
    assert figures["records"] == 3000
    assert figures["key_bytes"] == manifest.totals.key_bytes
    assert figures["value_bytes"] == manifest.totals.value_bytes == sum(map(len, CONTENT.values()))
    assert figures["stored_bytes"] == manifest.totals.stored_bytes
    assert figures["file_bytes"] == manifest.totals.file_bytes
    assert figures["compression"] == round(manifest.totals.stored_bytes / manifest.totals.value_bytes, 4) < 0.8
    assert len(contents["sample"]) == 5
    for record in contents["sample"]:
        assert CONTENT[record["key"]].decode() == record["value"]


def test_its_folder_is_the_same(manifest: Manifest, dataset: StoredDataset, tmp_path: Path) -> None:
    assert document(tmp_path, str(dataset.local_path("g1"))) == document(tmp_path, "g1")


def test_one_file_describes_itself(manifest: Manifest, dataset: StoredDataset, tmp_path: Path) -> None:
    folder = dataset.local_path("g1")
    assert folder
    contents = document(tmp_path, str(folder / manifest.shards[1].file))
    assert contents["manifest"] is None
    assert contents["shards"][0]["shard"] == 1
    assert contents["figures"]["records"] == manifest.shards[1].records


def test_for_people(manifest: Manifest, tmp_path: Path) -> None:
    text = inspect(tmp_path, "g1", "--verify").stdout
    names = [line.split("  ")[0] for line in text.splitlines() if not line.startswith(" ")]
    expected = "dataset generation source_files key value rejected duplicates shards records bytes/record compression"
    assert names == [*(name.replace("_", " ") for name in expected.split()), "overflow pages 0", "sample"]
    assert "checksums verified" in text
    assert "key-00" in text


def test_overflow_pages_and_their_waste(dataset: StoredDataset, tmp_path: Path) -> None:
    lengths = [10, 2000, 2030, 3000, 5000, 9000]
    content = {f"{length:05d}": bytes(range(256)) * 40 for length in lengths}
    content = {key: value[: int(key)] for key, value in content.items()}
    publish(dataset, "g1", content, tmp_path / "scratch", shards=1)
    contents = document(tmp_path, "g1")
    folder = dataset.local_path("g1")
    assert folder
    with lmdb.open(
        str(folder / "shard-00000-of-00001.lmdb"), subdir=False, readonly=True, lock=False, max_dbs=2
    ) as env:
        database = env.open_db(b"records", create=False)
        with env.begin(db=database) as txn:
            pages = txn.stat(database)["overflow_pages"]
            long = [len(stored) for key, stored in txn.cursor() if len(key) + len(stored) + 8 > 2038]
    assert contents["figures"]["overflow_pages"] == pages
    assert contents["figures"]["overflow_waste_bytes"] == pages * 4096 - sum(long)


def test_verify_finds_a_changed_byte(manifest: Manifest, dataset: StoredDataset, tmp_path: Path) -> None:
    folder = dataset.local_path("g1")
    assert folder
    path = folder / manifest.shards[0].file
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert inspect(tmp_path, "g1").exception is None
    error = inspect(tmp_path, "g1", "--verify").exception
    assert isinstance(error, CorruptFile)
    assert "its index says" in str(error)


IN_ONE_PROCESS = """
import json, resource, sys
from support.command_line import run_here
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
runs = []
for words in json.loads(sys.argv[1]):
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    runs.append(run_here(*words))
print(json.dumps([[run.returncode, run.stderr.decode()] for run in runs]))
"""


def run_elsewhere(
    tmp_path: Path, *commands: list[str], open_files: tuple[int, int] = (1024, 4096)
) -> list[tuple[int, str]]:
    """Return exit code and standard error of each command. They run in another process, which a signal may end, with
    ``open_files`` as soft and hard limits."""
    words = json.dumps([[*command, "--store", str(tmp_path / "store")] for command in commands])
    ended = subprocess.run(
        [sys.executable, "-c", IN_ONE_PROCESS, words],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, open_files),
    )
    return [(code, errors) for code, errors in json.loads(ended.stdout)]


def test_a_file_that_is_cut_short_is_said_to_be_and_never_mapped(dataset: StoredDataset, tmp_path: Path) -> None:
    commands: list[list[str]] = []
    messages: list[str] = []
    for generation, keep in (("g1", 1), ("g2", 30_000)):
        shard = publish(dataset, generation, CONTENT, tmp_path / "scratch", shards=2, train=True).shards[1]
        folder = dataset.local_path(generation)
        assert folder
        path, alone = folder / shard.file, tmp_path / f"{generation}.lmdb"
        shutil.copy(path, alone)
        for file in (path, alone):
            file.chmod(0o644)
            os.truncate(file, keep)
        for target in (str(path), str(folder), generation):
            commands += [["inspect", target], ["inspect", target, "--verify"]]
            messages += [f"{path} is {keep} bytes long, its index says {shard.bytes}"] * 2
    commands.append(["inspect", str(alone)])
    messages.append(f"{alone} is cut short: it is 30000 bytes long, but its header says {shard.bytes}")
    for (code, errors), message in zip(run_elsewhere(tmp_path, *commands), messages, strict=True):
        assert code == 5, errors
        assert message in errors
        assert "the generation is damaged" in errors or "cut short" in message


def test_one_file_is_verified_by_the_manifest_beside_it(
    manifest: Manifest, dataset: StoredDataset, tmp_path: Path
) -> None:
    folder = dataset.local_path("g1")
    assert folder
    path = folder / manifest.shards[0].file
    assert "checksum verified" in inspect(tmp_path, str(path), "--verify").stdout
    assert "checksum verified" not in inspect(tmp_path, str(path)).stdout
    assert document(tmp_path, str(path), "--verify")["verified"] is True
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    error = inspect(tmp_path, str(path), "--verify").exception
    assert isinstance(error, CorruptFile)
    assert f"its index says {manifest.shards[0].sha256}" in str(error)


def test_a_file_without_a_manifest_cannot_be_verified(
    manifest: Manifest, dataset: StoredDataset, tmp_path: Path
) -> None:
    folder = dataset.local_path("g1")
    assert folder
    path = (folder / manifest.shards[0].file).rename(tmp_path / manifest.shards[0].file)
    assert inspect(tmp_path, str(path)).exception is None
    error = inspect(tmp_path, str(path), "--verify").exception
    assert isinstance(error, UsageError)
    assert f"nothing to compare {path} with" in str(error)
    (folder / manifest.shards[1].file).rename(folder / "other.lmdb")
    assert "names no other.lmdb" in str(inspect(tmp_path, str(folder / "other.lmdb"), "--verify").exception)


@pytest.mark.parametrize("content", [b"", b"not a shard", bytes(8192)], ids=["empty", "text", "zeros"])
def test_what_is_no_shard_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.lmdb").write_bytes(content)
    assert isinstance(inspect(tmp_path, str(tmp_path / "file.lmdb")).exception, CorruptFile)


def test_a_generation_that_lacks_a_file(manifest: Manifest, dataset: StoredDataset, tmp_path: Path) -> None:
    folder = dataset.local_path("g1")
    assert folder
    (folder / manifest.shards[0].file).unlink()
    assert isinstance(inspect(tmp_path, "g1").exception, StoreError)


def test_what_is_no_shard_and_no_generation_says_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("email\n")
    assert "shard files are called shard-" in str(inspect(tmp_path, str(tmp_path / "people.csv")).exception)
    assert "the folder that holds manifest.json" in str(inspect(tmp_path, str(tmp_path)).exception)
    missing = str(inspect(tmp_path, "nosuch.lmdb").exception)
    assert missing.startswith("nosuch.lmdb is neither a file, a folder nor a generation's name")


def test_one_is_counted_in_the_singular(dataset: StoredDataset, tmp_path: Path) -> None:
    publish(dataset, "g1", {"a": b"1"}, tmp_path / "scratch")
    assert "  1 record  " in inspect(tmp_path, "g1").output


def test_many_shards_are_opened_as_far_as_the_hard_limit_allows_and_none_is_called_damaged(
    dataset: StoredDataset, tmp_path: Path
) -> None:
    publish(dataset, "g1", CONTENT, tmp_path / "scratch", shards=101)
    publish(dataset, "g2", CONTENT, tmp_path / "scratch", shards=67)
    commands = [["inspect", "g1"], ["diff", "g1", "g2"]]
    assert [code for code, _ in run_elsewhere(tmp_path, *commands, open_files=(64, 400))] == [0, 0]
    for code, errors in run_elsewhere(tmp_path, *commands, open_files=(64, 64)):
        assert code == 6, errors
        assert "Too many open files" in errors
        assert "raise the hard limit" in errors


def test_long_values_are_cut_as_in_a_difference(dataset: StoredDataset, tmp_path: Path) -> None:
    large = {f"k{number}": "é".encode() * (4000 + number) for number in range(2)}
    publish(dataset, "g1", large, tmp_path / "scratch", shards=1)
    sample = document(tmp_path, "g1")["sample"]
    assert [record["value"] for record in sample] == ["é" * 4000, "é" * 4000 + "…"]
    assert len(inspect(tmp_path, "g1").stdout) < 4000


def test_what_is_not_text_is_shown_as_python_writes_bytes(dataset: StoredDataset, tmp_path: Path) -> None:
    publish(dataset, "g1", {"page": "Päge\n".encode(), "picture": b"\x89PNG\r\n"}, tmp_path / "scratch", shards=1)
    lines = inspect(tmp_path, "g1").stdout.splitlines()
    assert [line.split()[-2:] for line in lines[-2:]] == [["page", r"Päge\n"], ["picture", r"'\x89PNG\r\n'"]]
    assert [record["value"] for record in document(tmp_path, "g1")["sample"]] == ["Päge\n", r"'\x89PNG\r\n'"]
