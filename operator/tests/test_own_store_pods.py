"""The commands of a dataset's pods, run as a kubelet runs them, with a store of the dataset's own. A generation is
built, fetched, and removed when it is no longer kept, all in that bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from manifest_samples import BUILD, GATEWAY_CONFIG, airports, generation, rollout
from obstore.store import S3Store
from support.buckets import create_bucket, s3_server, variables

from lookupdb_operator import manifests, names
from lookupdb_operator.model import ObservedDataset
from lookupdb_operator.status import BuildStatus

pytestmark = pytest.mark.long


class Kubelet:
    """Runs containers in folders of ``folder``. Every Secret holds the credentials of the S3 server at ``url``."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.variables = variables(url)
        self.store = create_bucket(url)

    def build(self, of: ObservedDataset, build: BuildStatus) -> None:
        config_map, job = manifests.render_builder(of, build, GATEWAY_CONFIG)
        (self.folder / names.DATASET_FILE).write_text(config_map["data"][names.DATASET_FILE])
        (container,) = job["spec"]["template"]["spec"]["containers"]
        self._run(container)

    def fetch(self, of: ObservedDataset, name: str) -> Path:
        """Return the folder with the fetched shard."""
        shards = manifests.render_shards(
            of, rollout(generation=name), generation(of, name), of.spec["replicas"], GATEWAY_CONFIG
        )
        (shard_set,) = (manifest for manifest in shards if manifest["kind"] == "StatefulSet")
        (container,) = shard_set["spec"]["template"]["spec"]["initContainers"]
        self._run(container)
        return self.folder / "data"

    def list_generations(self) -> set[str]:
        config: Any = {name.lower(): value for name, value in self.variables.items() if name != "AWS_ALLOW_HTTP"}
        store = S3Store.from_url(self.store, config=config, client_options={"allow_http": True})
        paths = [found["path"] for page in obstore.list(store) for found in page]
        assert all(path.startswith("c1/default/airports-8d3f6b1a/") for path in paths), paths
        return {path.split("/")[-2] for path in paths if path.endswith("/manifest.json")}

    def _run(self, container: dict[str, Any]) -> None:
        places = {
            names.DATASET_PATH: self.folder,
            names.SCRATCH_PATH: self.folder / "scratch",
            names.DATA_PATH: self.folder / "data",
            "/dev/termination-log": self.folder / "termination-log",
        }
        for name in ("scratch", "data"):
            (self.folder / name).mkdir(exist_ok=True)
        words = [self._place(word, places) for word in container["args"]]
        # Variables of the source, which must not be used for the store.
        environment = {"PATH": os.environ["PATH"], "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true"}
        for source in container["envFrom"]:
            environment |= {source.get("prefix", "") + name: value for name, value in self.variables.items()}
        ended = subprocess.run(
            [sys.executable, "-m", "lookupdb", *words],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr

    def _place(self, word: str, places: dict[str, Path]) -> str:
        known = (word.replace(path, str(place), 1) for path, place in places.items() if word.startswith(path))
        return next(known, word)


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    with s3_server() as url:
        yield Kubelet(tmp_path, url)


def test_a_generation_is_built_fetched_and_removed_in_the_bucket_of_the_dataset(kubelet: Kubelet) -> None:
    of = airports(shards=1, keepGenerations=1, store={"url": kubelet.store, "secretName": "airports-store"})
    kubelet.build(of, BUILD)
    assert len(list(kubelet.fetch(of, "g12").glob("shard-00000-of-00001*.lmdb"))) == 1
    kubelet.build(of, replace(BUILD, generation="g13", active="g12", protect=("g12",)))
    assert kubelet.list_generations() == {"g12", "g13"}
    kubelet.build(of, replace(BUILD, generation="g14", active="g13", protect=("g13",)))
    assert kubelet.list_generations() == {"g13", "g14"}
