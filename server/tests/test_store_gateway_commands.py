"""Commands whose store is a gateway: build, fetch, inspect, diff and sweep; waiting for the gateway, and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import run_here
from support.gateways import FakeGateway, Refusal, fake_gateway, gateway_bucket, use_token
from support.ports import free_port
from support.waiting import until

from lookupdb.errors import StoreUnreachable
from lookupdb.manifest import FILE_NAME
from lookupdb.store import StoreAddress, open_store
from lookupdb.store.bucket_dataset import CLAIM, BucketDataset
from lookupdb.store.sweep import prune

PEOPLE = """
apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {name: people}
spec:
  source: {url: people.csv}
  key: {columns: [id]}
  shards: 2
"""


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    use_token(tmp_path, monkeypatch)
    (tmp_path / "people.yaml").write_text(PEOPLE)
    (tmp_path / "people.csv").write_text("id,name\n1,one\n2,two\n3,three\n")
    with fake_gateway() as gateway:
        yield gateway


def build_words(folder: Path, url: str) -> list[str]:
    return ["build", "-f", str(folder / "people.yaml"), "--store", url, "--scratch", str(folder), "--progress", "none"]


def test_what_a_process_builds_another_fetches(gateway: FakeGateway, tmp_path: Path) -> None:
    run = [sys.executable, "-m", "lookupdb"]
    subprocess.run([*run, *build_words(tmp_path, gateway.url)], check=True, timeout=200)
    names = {path.rpartition("/")[2] for path in gateway.objects}
    assert FILE_NAME in names
    assert len(names) == 3, "the manifest, two shards, no claim"
    words = ["fetch", "--store", gateway.url, "--dataset", "people", "--generation", "g1", "--shard", "1"]
    subprocess.run([*run, *words, str(tmp_path / "data")], check=True, timeout=200)
    (shard,) = (path for path in (tmp_path / "data").iterdir() if path.name != FILE_NAME)
    assert gateway.objects[f"local/default/people-local/g1/{shard.name}"].body == shard.read_bytes()


def test_what_is_built_is_inspected_compared_and_swept(gateway: FakeGateway, tmp_path: Path) -> None:
    assert run_here(*build_words(tmp_path, gateway.url)).returncode == 0
    (tmp_path / "people.csv").write_text("id,name\n1,one\n2,zwei\n4,four\n3,three\n")
    assert run_here(*build_words(tmp_path, gateway.url)).returncode == 0
    store = ("--store", gateway.url)
    inspected = run_here("inspect", "g2", *store, "--json", "--verify")
    assert (inspected.returncode, json.loads(inspected.stdout)["figures"]["records"]) == (0, 4)
    compared = json.loads(run_here("diff", "g1", "g2", *store, "--json").stdout)
    assert (compared["added"], compared["removed"], compared["changed"]) == (1, 0, 1)
    place = open_store(gateway.url)
    (address,) = place.addresses()
    assert prune(place.dataset_at(address), 1) == ["g1"]
    assert not [path for path in gateway.objects if "/g1/" in path]


def test_a_denial_ends_a_build_with_the_code_of_the_store(gateway: FakeGateway, tmp_path: Path) -> None:
    gateway.tokens = {}
    ended = run_here(*build_words(tmp_path, gateway.url), "--json")
    told = json.loads(ended.stdout.splitlines()[-1])
    assert (ended.returncode, told["exitCode"], told["reason"]) == (5, 5, "StoreDenied")
    assert "the token is none of ours" in told["message"]
    assert b"payload" not in ended.stdout + ended.stderr


class TestWait:
    @pytest.mark.parametrize("kind", ["unauthenticated", "forbidden", "store-denied", "store-failed"])
    def test_any_answer_proves_that_it_is_there(self, gateway: FakeGateway, kind: str) -> None:
        gateway.refusals = [Refusal(502 if kind.startswith("store") else 403, kind)]
        open_store(gateway.url).wait(60)
        assert len(gateway.requests) == 1

    def test_one_whose_store_does_not_answer_yet_is_waited_for(self, gateway: FakeGateway) -> None:
        gateway.refusals = [Refusal(503, "store-unreachable"), Refusal(503, "busy"), Refusal(503)]
        open_store(gateway.url).wait(60)
        assert len(gateway.requests) == 4
        gateway.refusals = [Refusal(503, "store-unreachable", "the bucket is away")] * 9
        with pytest.raises(StoreUnreachable, match=r"cannot reach http://\S+: the bucket is away"):
            open_store(gateway.url).wait(0.6)

    def test_one_that_does_not_come(self, gateway: FakeGateway) -> None:
        with pytest.raises(StoreUnreachable, match="refuses connections"):
            gateway_bucket(f"http://127.0.0.1:{free_port()}").wait(0.1)


def test_a_claim_is_kept_while_the_gateway_is_busy(gateway: FakeGateway, tmp_path: Path) -> None:
    bucket = gateway_bucket(gateway.url, heartbeat=0.05, lease=30.0)
    dataset = BucketDataset(bucket, StoreAddress("local", "default", "people", "local"))
    with dataset.claim("g1", tmp_path):
        path = f"{dataset.address.path}/g1/{CLAIM}"
        first = gateway.objects[path].body
        gateway.refusals = [Refusal(503, "busy")] * 3
        until(lambda: not gateway.refusals and gateway.objects[path].body != first, "it is renewed")
    assert path not in gateway.objects
