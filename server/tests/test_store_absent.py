"""A store that is not there: commands wait while it may still come, and then say what is wrong."""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.buckets import create_bucket, s3_server, use_server
from support.faults import Fault, Proxy, faulty_proxy
from support.generations import publish
from support.ports import free_port
from support.waiting import until

from lookupdb import store
from lookupdb.cli.build import command as build
from lookupdb.cli.fetch import command as fetch
from lookupdb.errors import StoreDenied, StoreError, StoreUnreachable
from lookupdb.manifest import FILE_NAME
from lookupdb.store import StoreAddress
from lookupdb.store.bucket import Bucket
from lookupdb.store.bucket_dataset import BucketDataset

ADDRESS = StoreAddress("local", "default", "airports", "local")
AIRPORTS = """
apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {name: airports}
spec:
  source: {url: airports.csv}
  key: {columns: [icao]}
"""


@pytest.fixture(scope="module")
def shared_server() -> Iterator[tuple[str, Proxy]]:
    with s3_server() as url, faulty_proxy(url) as (front, proxy):
        yield front, proxy


@pytest.fixture
def server(shared_server: tuple[str, Proxy]) -> tuple[str, Proxy]:
    """The URL of a proxy in front of an S3 server, and the proxy, which lets nothing go wrong yet."""
    shared_server[1].reset()
    return shared_server


def test_a_build_waits_for_a_store_that_is_being_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    use_server(f"http://127.0.0.1:{port}", monkeypatch)
    (tmp_path / "airports.yaml").write_text(AIRPORTS)
    (tmp_path / "airports.csv").write_text("icao,name\nKJFK,Kennedy\n")
    server = ExitStack()
    started: list[float] = []

    def start() -> None:
        until(lambda: "waiting for the store" in caplog.text, "it is waited for")
        time.sleep(1.2)
        server.enter_context(s3_server(port=port))
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/lookups", method="PUT")).close()
        started.append(time.monotonic())

    thread = threading.Thread(target=start)
    thread.start()
    try:
        with caplog.at_level(logging.WARNING):
            Bucket("s3://lookups").wait(240)
        waited = time.monotonic()
        thread.join()
        assert waited - started[0] < 60, "it is looked for twice a second, of 240"
        words = ["-f", str(tmp_path / "airports.yaml"), "--store", "s3://lookups", "--progress", "none"]
        result = CliRunner().invoke(build, words, standalone_mode=False)
        assert result.exception is None, result.exception
        (said,) = [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()]
        assert said == (
            f"waiting for the store: cannot reach s3://lookups at http://127.0.0.1:{port}: "
            f"127.0.0.1:{port} refuses connections: nothing listens there, or not yet"
        )
    finally:
        thread.join()
        server.close()


def test_a_fetch_waits_for_a_store_that_is_not_ready(
    server: tuple[str, Proxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front, proxy = server
    use_server(front, monkeypatch)
    url = create_bucket(front)
    (tmp_path / "scratch").mkdir()
    publish(BucketDataset(Bucket(url), ADDRESS), "g1", {"a": b"1"}, tmp_path / "scratch", shards=1)
    proxy.reset()
    began = time.monotonic()
    proxy.fail(Fault.DROP, lambda number, _request: number < 3)
    words = ["--store", url, "--dataset", "airports", "--generation", "g1", "--shard", "0", "--patience", "0"]
    result = CliRunner().invoke(fetch, [*words, str(tmp_path / "data")], standalone_mode=False)
    assert result.exception is None, result.exception
    assert 1 < time.monotonic() - began < 60
    assert (tmp_path / "data" / FILE_NAME).exists()
    assert "waiting for the store: cannot reach" in result.output, "and not asked request by request"


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("http://store.invalid:9000", "the host store.invalid:9000 does not resolve"),
        ("http://user:secret@127.0.0.1:1", "127.0.0.1:1 refuses connections"),
    ],
)
def test_one_that_does_not_come_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str, said: str
) -> None:
    use_server(endpoint, monkeypatch)
    (tmp_path / "airports.yaml").write_text(AIRPORTS)
    words = ["-f", str(tmp_path / "airports.yaml"), "--store", "s3://lookups", "--store-wait", "0.6"]
    result = CliRunner().invoke(build, [*words, "--progress", "none", "--json"], standalone_mode=False)
    assert isinstance(result.exception, StoreUnreachable)
    assert said in result.exception.message
    assert "cannot reach s3://lookups at http://" in result.exception.message
    assert result.exception.hint == "check that the store runs, its address, and the network in between"
    told = json.loads(result.stdout.splitlines()[-1])
    assert (told["reason"], told["exitCode"]) == ("StoreUnavailable", 5)
    assert "secret" not in result.output + str(result.exception)


@pytest.mark.parametrize("status", [403, 404])
def test_one_that_answers_is_not_waited_for(
    server: tuple[str, Proxy], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    front, proxy = server
    use_server(front, monkeypatch)
    proxy.answer(status)
    began = time.monotonic()
    Bucket("s3://lookups").wait(60)
    assert time.monotonic() - began < 30
    with pytest.raises(StoreDenied if status == 403 else StoreError):
        store.open_store("s3://lookups").dataset_at(ADDRESS).generations()
