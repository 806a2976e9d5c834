"""The success file: the source is not read before that file exists, nor while it is unchanged since the last build."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
import yaml
from click.testing import CliRunner
from support.buckets import create_bucket, s3_server, use_server
from support.web import QuietHandler, web_file, web_server

from lookupdb import store
from lookupdb.builder import build as pipeline
from lookupdb.builder import listing
from lookupdb.builder.options import Progress
from lookupdb.cli.build import command
from lookupdb.dataset.spec import DatasetSpec, parse_resource, read_manifest
from lookupdb.errors import BadSource


class Project:
    """A folder with a source, of which a job writes _SUCCESS last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "people.csv"
        self.success = folder / "_SUCCESS"
        self.source.write_text("id,name\n1,one\n2,two\n")
        self.describe()
        self.time = 1_700_000_000

    def describe(self, **refresh: Any) -> None:
        resource = {
            "apiVersion": "lookupdb.dev/v1alpha1",
            "kind": "LookupDataset",
            "metadata": {"name": "people"},
            "spec": {
                "source": {"url": "people.csv"},
                "key": {"columns": ["id"]},
                "refresh": {"successFile": "_SUCCESS", **refresh},
            },
        }
        (self.folder / "people.yaml").write_text(yaml.safe_dump(resource))

    def finish(self) -> None:
        """The job is done: it writes the empty file, as it does every time."""
        self.success.write_bytes(b"")
        self.time += 60
        os.utime(self.success, (self.time, self.time))

    def run(self, *arguments: str) -> Any:
        fixed = ["-f", str(self.folder / "people.yaml"), "--store", str(self.folder / "store")]
        return CliRunner().invoke(
            command,
            [*fixed, "--scratch", str(self.folder), "--progress", "none", "--json", *arguments],
            standalone_mode=False,
        )

    def build(self, *arguments: str) -> dict[str, Any]:
        result = self.run(*arguments)
        assert result.exception is None, result.exception
        parsed: dict[str, Any] = json.loads(result.stdout)
        return parsed

    def build_again(self, last: dict[str, Any]) -> dict[str, Any]:
        return self.build("--unless-fingerprint", last["fingerprint"], "--unless-success-file", last["successFile"])

    @property
    def generations(self) -> list[str]:
        spec = read_manifest(self.folder / "people.yaml")
        return list(store.open_store(str(self.folder / "store")).dataset(spec).generations())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


class TestABuild:
    def test_waits_for_it_and_does_not_fail(self, project: Project, tmp_path: Path) -> None:
        project.source.unlink()  # what is not read need not be there
        log = tmp_path / "log"
        result = project.build("--termination-log", str(log))
        assert (result["outcome"], result["reason"], result["exitCode"]) == ("waiting", "WaitingForSource", 0)
        assert "waiting for the success file _SUCCESS" in result["message"]
        assert json.loads(log.read_text()) == result
        assert project.generations == []

    def test_reads_the_source_when_it_is_there(self, project: Project) -> None:
        project.finish()
        result = project.build()
        assert (result["outcome"], result["records"]) == ("built", 2)
        assert len(result["successFile"]) == 32

    def test_leaves_the_source_alone_while_it_is_still_the_same(self, project: Project) -> None:
        project.finish()
        first = project.build()
        project.source.write_text("half a ro")
        again = project.build_again(first)
        assert (again["outcome"], again["fingerprint"]) == ("unchanged", first["fingerprint"])
        assert again["successFile"] == first["successFile"]

    def test_reads_the_source_when_it_was_written_again_though_it_is_as_empty_as_before(self, project: Project) -> None:
        project.finish()
        first = project.build()
        project.source.write_text("id,name\n1,one\n2,two\n3,three\n")
        project.finish()
        second = project.build_again(first)
        assert (second["outcome"], second["records"]) == ("built", 3)
        assert second["successFile"] != first["successFile"]

    def test_of_an_unchanged_source_tells_the_new_one(self, project: Project) -> None:
        project.finish()
        first = project.build()
        project.finish()
        second = project.build_again(first)
        assert second["outcome"] == "unchanged"
        assert second["successFile"] != first["successFile"]

    def test_builds_though_it_is_the_same_when_the_store_holds_no_generation_of_it(self, project: Project) -> None:
        project.finish()
        first = project.build()
        first["fingerprint"] = "0" * 32
        assert project.build_again(first)["outcome"] == "built"

    def test_adopts_with_it_what_an_earlier_builder_published(self, project: Project) -> None:
        project.finish()
        first = project.build("--generation", "g1")
        project.success.unlink()
        again = project.build("--generation", "g1")
        assert (again["outcome"], again["successFile"]) == ("adopted", first["successFile"])

    def test_publishes_nothing_when_the_source_is_begun_again_while_it_is_read(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Jobs that replace a folder take the file away first."""
        project.finish()

        def fetch_files_meanwhile(objects: Any, scratch: Path, progress: Progress) -> Any:
            files = listing.fetch_files(objects, scratch, progress)
            project.success.unlink()
            return files

        monkeypatch.setattr(pipeline, "fetch_files", fetch_files_meanwhile)
        error = project.run().exception
        assert isinstance(error, BadSource)
        assert "the success file _SUCCESS changed while the source was read" in error.message
        assert project.generations == []

    def test_reads_it_before_anything_of_the_source(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        project.finish()
        looked: list[str] = []

        def note(name: str, function: Callable[..., Any]) -> None:
            def noted(*arguments: Any, **options: Any) -> Any:
                looked.append(name)
                return function(*arguments, **options)

            monkeypatch.setattr(pipeline, function.__name__, noted)

        note("success file", listing.read_success_file)
        note("source", listing.open_source)
        project.build()
        assert looked == ["success file", "source", "success file"]

    def test_explains_what_it_would_do(self, project: Project) -> None:
        assert "_SUCCESS does not exist: the build would wait for it" in project.run("--explain").stdout
        project.finish()
        result = project.build()
        identity = result["successFile"]
        assert f"success file {identity}" in project.run("--explain").stdout
        assert "nothing would be read" in project.run("--explain", "--unless-success-file", identity).stdout


def spec_of(url: str) -> DatasetSpec:
    return parse_resource(
        {
            "apiVersion": "lookupdb.dev/v1alpha1",
            "kind": "LookupDataset",
            "metadata": {"name": "people"},
            "spec": {
                "source": {"url": "s3://data/people.csv", "volume": {"claimName": "data"}},
                "key": {"columns": ["id"]},
                "refresh": {"successFile": url},
            },
        }
    )


def identity(url: str, volume: Path | None = None) -> str | None:
    return listing.read_success_file(spec_of(url), volume=volume, local_files=False)


class TestItsIdentity:
    def test_of_an_object_changes_with_each_write(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with s3_server() as url:
            use_server(url, monkeypatch)
            folder = create_bucket(url)
            bucket = obstore.store.S3Store.from_url(folder, client_options={"allow_http": True})
            assert identity(f"{folder}/_SUCCESS") is None
            obstore.put(bucket, "_SUCCESS", b"1")
            first = identity(f"{folder}/_SUCCESS")
            assert first is not None
            assert identity(f"{folder}/_SUCCESS") == first
            obstore.put(bucket, "_SUCCESS", b"2")
            assert identity(f"{folder}/_SUCCESS") not in (None, first)

    def test_of_an_object_holds_its_time_beside_its_etag(self) -> None:
        """The ETag of an empty object is always the same."""
        with web_file(b"", ETag='"empty"', Last_Modified="Thu, 01 Jan 2026 02:00:00 GMT") as file:
            first = identity(f"{file.url}/done")
            file.headers["Last-Modified"] = "Fri, 02 Jan 2026 02:00:00 GMT"
            assert identity(f"{file.url}/done") not in (None, first)

    def test_of_a_file_of_the_volume(self, tmp_path: Path) -> None:
        assert identity("volume://done", tmp_path) is None
        assert identity("volume://none/done", tmp_path) is None
        (tmp_path / "done").touch()
        assert identity("volume://done", tmp_path) is not None

    def test_behind_a_url_is_its_etag_or_time_else_its_content(self) -> None:
        with web_file(b"1", ETag='"a"') as file:
            first = identity(f"{file.url}/done")
            file.headers["ETag"] = '"b"'
            assert identity(f"{file.url}/done") not in (None, first)
        with web_file(b"1") as file:
            first = identity(f"{file.url}/done")
            assert identity(f"{file.url}/done") == first
            file.content = b"2"
            assert identity(f"{file.url}/done") not in (None, first)

    @pytest.mark.parametrize(("status", "is_missing"), [(404, True), (403, False), (401, False)])
    def test_is_none_only_when_the_server_says_that_there_is_no_such_file(self, status: int, is_missing: bool) -> None:
        class Handler(QuietHandler):
            def do_GET(self) -> None:  # noqa: N802 - http.server's name
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        with web_server(Handler) as url:
            if is_missing:
                assert identity(f"{url}/done") is None
            else:
                with pytest.raises(BadSource, match="access denied"):
                    identity(f"{url}/done")

    def test_of_a_file_of_the_builders_machine_is_not_read_in_a_cluster(self) -> None:
        with pytest.raises(BadSource, match="this build may not read local files"):
            identity("file:///etc/passwd")
