"""A source whose server sends neither ETag nor time: only its content says whether it has changed."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from support.sources import dataset
from support.web import File, web_file

from lookupdb import store
from lookupdb.builder.listing import fetch_files, resolve_source, source_fingerprint
from lookupdb.builder.options import SilentProgress
from lookupdb.cli.build import command
from lookupdb.dataset.spec import read_manifest
from lookupdb.errors import BadSource
from lookupdb.store import StoredDataset

OLD, NEW, LONGER = b"k,v\na,1\n", b"k,v\na,2\n", b"k,v\na,1\nb,2\n"


@pytest.fixture
def file() -> Iterator[File]:
    with web_file(OLD) as file:
        yield file


def listed(url: str) -> str | None:
    """The fingerprint before anything is read."""
    return source_fingerprint(resolve_source(dataset(None, url), volume=None))


def fetched(url: str, scratch: Path) -> str | None:
    return source_fingerprint(fetch_files(resolve_source(dataset(None, url), volume=None), scratch, SilentProgress()))


class TestFingerprint:
    def test_is_not_known_before_the_source_is_read(self, file: File) -> None:
        assert listed(f"{file.url}/a.csv") is None

    @pytest.mark.parametrize(
        "headers", [{"ETag": '"1"'}, {"Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}], ids=["ETag", "Last-Modified"]
    )
    def test_of_what_a_server_identifies_is(self, file: File, headers: dict[str, str], tmp_path: Path) -> None:
        file.headers = headers
        known = listed(f"{file.url}/a.csv")
        assert known is not None
        assert known == fetched(f"{file.url}/a.csv", tmp_path)

    def test_the_beginning_of_time_is_no_time(self, file: File) -> None:
        file.headers = {"Last-Modified": "Thu, 01 Jan 1970 00:00:00 GMT"}
        assert listed(f"{file.url}/a.csv") is None

    def test_one_such_file_makes_it_unknown_for_all(self, file: File, tmp_path: Path) -> None:
        (tmp_path / "b.csv").write_bytes(OLD)
        urls = [str(tmp_path / "b.csv"), f"{file.url}/a.csv"]
        assert source_fingerprint(resolve_source(dataset(None, urls), volume=None)) is None

    def test_changes_with_the_content_once_it_is_read(self, file: File, tmp_path: Path) -> None:
        first = fetched(f"{file.url}/a.csv", tmp_path)
        assert first == fetched(f"{file.url}/a.csv", tmp_path)
        file.content = NEW
        assert len({first, fetched(f"{file.url}/a.csv", tmp_path), None}) == 3

    def test_is_of_the_file_as_it_was_sent(self, file: File, tmp_path: Path) -> None:
        file.content = gzip.compress(OLD)
        (one,) = fetch_files(
            resolve_source(dataset(None, f"{file.url}/a.csv.gz"), volume=None), tmp_path, SilentProgress()
        )
        assert (one.path.read_bytes(), one.description.etag) == (OLD, hashlib.sha256(file.content).hexdigest())


def test_one_whose_size_changes_while_it_is_read_is_refused(file: File, tmp_path: Path) -> None:
    objects = resolve_source(dataset(None, f"{file.url}/a.csv"), volume=None)
    file.content = LONGER
    with pytest.raises(BadSource, match=r"a\.csv changed while it was read"):
        fetch_files(objects, tmp_path, SilentProgress())


class TestBuild:
    def run(self, folder: Path, file: File, *more: str) -> Any:
        resource = {
            "apiVersion": "lookupdb.dev/v1alpha1",
            "kind": "LookupDataset",
            "metadata": {"name": "people"},
            "spec": {"source": {"url": f"{file.url}/a.csv"}, "key": {"columns": ["k"]}},
        }
        manifest = folder / "people.yaml"
        manifest.write_text(yaml.safe_dump(resource))
        words = [
            "-f",
            str(manifest),
            "--store",
            str(folder / "store"),
            "--scratch",
            str(folder),
            "--progress",
            "none",
            "--json",
        ]
        result = CliRunner().invoke(command, [*words, *more], standalone_mode=False)
        assert result.exception is None, result.exception
        return result.stdout if "--explain" in more else json.loads(result.stdout)

    def dataset(self, folder: Path) -> StoredDataset:
        return store.open_store(str(folder / "store")).dataset(read_manifest(folder / "people.yaml"))

    def test_a_change_that_keeps_the_size_is_never_missed(self, file: File, tmp_path: Path) -> None:
        first = self.run(tmp_path, file)
        assert first["fingerprint"] == self.dataset(tmp_path).manifest("g1").fingerprint
        file.content = NEW
        again = self.run(tmp_path, file, "--unless-fingerprint", first["fingerprint"])
        assert (again["outcome"], again["generation"]) == ("built", "g2")

    def test_it_is_unchanged_when_its_content_is_and_nothing_is_left_of_the_attempt(
        self, file: File, tmp_path: Path
    ) -> None:
        first = self.run(tmp_path, file)
        again = self.run(tmp_path, file, "--unless-fingerprint", first["fingerprint"])
        assert (again["outcome"], again["fingerprint"]) == ("unchanged", first["fingerprint"])
        assert self.dataset(tmp_path).generations() == ("g1",)
        assert self.dataset(tmp_path).unfinished_generations() == {}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["people.yaml", "store"]

    def test_explain_says_that_it_is_not_known_yet(self, file: File, tmp_path: Path) -> None:
        assert "known once the source is read" in self.run(tmp_path, file, "--explain")
