"""The Job that compares two generations: rendered from the operator's manifests, with arguments that the command line
accepts, and output that the plugin reads."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from manifest_samples import CONFIG, GATEWAY_CONFIG, everything, from_volume, rendered, with_own_store
from manifest_samples import generation as built_generation
from plugin_samples import dataset, generation

from lookupdb.cli.stores import diff as diff_command
from lookupdb.cli.stores import render_difference
from lookupdb_operator import names
from lookupdb_operator.console.dataset import NotPossible
from lookupdb_operator.plugin.cluster_verbs import JobFailed, choose_generations, read_document
from lookupdb_operator.plugin.jobs import render_difference_job

GENERATIONS = [generation("g11"), generation("g12"), generation("g13", shards=3)]
CANDIDATE = {"generation": "g13", "rollout": "r35", "since": "2026-01-02T11:00:00Z"}
DOCUMENT: dict[str, Any] = {
    "before": {"generation": "g12", "records": 3000, "where": "s3://b/g12", "normalize": []},
    "after": {"generation": "g13", "records": 3001, "where": "s3://b/g13", "normalize": []},
    "added": 1,
    "removed": 0,
    "changed": 2,
    "same": 998,
    "isWhole": False,
    "samples": {"added": [{"key": "new\x1b[2J", "before": None, "after": None}], "removed": [], "changed": []},
}


def _shard_set() -> dict[str, Any]:
    return next(manifest for manifest in rendered(everything())["shards"] if manifest["kind"] == "StatefulSet")


def _job(*, sampled: bool = True, **after: Any) -> dict[str, Any]:
    of = everything()
    both = built_generation(of, "g12"), built_generation(of, "g13", **after)
    return render_difference_job(dataset(), _shard_set(), both, sampled=sampled, samples=5, deadline_seconds=90)


def _pod(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def test_its_pod_is_as_restricted_as_the_fetchers_and_has_the_stores_credentials_by_reference() -> None:
    template, pod = _shard_set()["spec"]["template"]["spec"], _pod(_job())
    (container,) = pod["containers"]
    (fetcher,) = template["initContainers"]
    for member in ("image", "securityContext", "envFrom"):
        assert container[member] == fetcher[member]
    assert (pod["securityContext"], pod["automountServiceAccountToken"]) == (template["securityContext"], False)
    assert {"name": "TMPDIR", "value": "/scratch"} in container["env"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/scratch", "/tmp"}


def test_behind_a_gateway_its_pod_has_a_token_as_the_fetcher_does() -> None:
    shards = rendered(everything(), GATEWAY_CONFIG)["shards"]
    shard_set = next(manifest for manifest in shards if manifest["kind"] == "StatefulSet")
    both = built_generation(everything(), "g12"), built_generation(everything(), "g13")
    pod = _pod(render_difference_job(dataset(), shard_set, both, sampled=True, samples=5, deadline_seconds=90))
    (fetcher,), (container,) = shard_set["spec"]["template"]["spec"]["initContainers"], pod["containers"]
    assert container["args"][container["args"].index("--store") + 1] == GATEWAY_CONFIG.gateway
    assert [variable for variable in fetcher["env"] if variable not in container["env"]] == []
    assert names.STORE_TOKEN_PATH in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert pod["automountServiceAccountToken"] is False
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes.keys() == {mount["name"] for mount in container["volumeMounts"]}
    (token,) = volumes[names.STORE_TOKEN_VOLUME]["projected"]["sources"]
    assert token["serviceAccountToken"]["path"] == names.STORE_TOKEN_FILE


def test_where_servers_map_a_volume_it_reads_the_store_there() -> None:
    shards = rendered(from_volume(), GATEWAY_CONFIG)["shards"]
    shard_set = next(manifest for manifest in shards if manifest["kind"] == "StatefulSet")
    both = built_generation(from_volume(), "g12"), built_generation(from_volume(), "g13")
    pod = _pod(render_difference_job(dataset(), shard_set, both, sampled=True, samples=5, deadline_seconds=90))
    (container,) = pod["containers"]
    words = container["args"]
    assert words[words.index("--store") + 1] == "/data/lookups/eu"
    assert words[words.index("--cluster-id") + 1] == "c1"
    assert {"name": "data", "mountPath": "/data", "readOnly": True} in container["volumeMounts"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes.keys() == {mount["name"] for mount in container["volumeMounts"]}
    assert volumes["data"] == {"name": "data", "persistentVolumeClaim": {"claimName": "lookups", "readOnly": True}}


def test_a_store_of_the_datasets_own_is_read_as_the_fetcher_reads_it() -> None:
    shards = rendered(with_own_store(), GATEWAY_CONFIG)["shards"]
    shard_set = next(manifest for manifest in shards if manifest["kind"] == "StatefulSet")
    both = built_generation(with_own_store(), "g12"), built_generation(with_own_store(), "g13")
    (container,) = _pod(
        render_difference_job(dataset(), shard_set, both, sampled=True, samples=5, deadline_seconds=90)
    )["containers"]
    assert container["args"][container["args"].index("--store") + 1] == "s3://team-lookups/airports"
    assert container["envFrom"] == [{"prefix": "LOOKUPDB_STORE_", "secretRef": {"name": "airports-store"}}]


def test_it_is_not_taken_for_the_operators_and_goes_with_its_dataset() -> None:
    job = _job()
    for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
        assert not {names.DATASET, names.DATASET_UID, names.MANAGED_BY} & labels.keys()
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner.get("controller")) == ("LookupDataset", "uid-of-airports", None)


def test_it_ends_by_itself_and_is_collected_when_nobody_deletes_it() -> None:
    spec = _job()["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (0, 90, 600)
    assert _job()["metadata"]["name"] != _job()["metadata"]["name"], "two may compare at a time"


@pytest.mark.parametrize(
    ("sampled", "shards", "mebibytes"),
    [(True, 4, 300 + 300), (False, 4, 300 + 300), (True, 5, 300 + 300), (False, 5, 1024 + 1024)],
)
def test_it_has_room_for_the_files_that_are_compared_at_a_time(sampled: bool, shards: int, mebibytes: int) -> None:
    present = everything().spec["shards"]
    job = _job(sampled=sampled, shards=present if shards == 4 else present + 1)
    (volume,) = _pod(job)["volumes"]
    assert volume["emptyDir"]["sizeLimit"] == str((mebibytes + 64) << 20)


@pytest.mark.parametrize("limits", [{}, {"ephemeral-storage": "364Mi"}])
def test_it_asks_for_the_disk_that_it_may_fill_and_else_for_what_the_fetcher_does(limits: dict[str, str]) -> None:
    """Beyond its limit of the node's disk it would be evicted, and beyond its request as soon as the disk is full."""
    shard_set = copy.deepcopy(_shard_set())
    (fetcher,) = shard_set["spec"]["template"]["spec"]["initContainers"]
    fetcher["resources"]["limits"] = {"memory": "256Mi", **limits}
    both = built_generation(everything(), "g12"), built_generation(everything(), "g13")
    job = render_difference_job(dataset(), shard_set, both, sampled=True, samples=5, deadline_seconds=90)
    (container,) = _pod(job)["containers"]
    storage = {"ephemeral-storage": str((300 + 300 + 64 + 64) << 20)}
    assert container["resources"]["requests"] == fetcher["resources"]["requests"] | storage
    assert container["resources"]["limits"] == fetcher["resources"]["limits"] | (storage if limits else {})


def test_the_command_line_takes_its_words(tmp_path: Path) -> None:
    """The command gets as far as the store, which has no such dataset."""
    verb, *words = _pod(_job())["containers"][0]["args"]
    assert verb == "diff"
    assert words[words.index("--store") + 1] == CONFIG.store
    assert words[words.index("--cluster-id") + 1] == CONFIG.cluster
    words[words.index("--store") + 1] = str(tmp_path)
    result = CliRunner().invoke(diff_command, words, standalone_mode=False)
    assert "has no dataset shop/airports" in str(result.exception)


class TestWhatIsCompared:
    def test_is_what_serves_and_the_candidate(self) -> None:
        chosen = choose_generations(dataset(generations=GENERATIONS, candidate=CANDIDATE), None, None)
        assert [one.generation for one in chosen] == ["g12", "g13"]

    def test_is_what_serves_and_the_one_that_is_named(self) -> None:
        chosen = choose_generations(dataset(generations=GENERATIONS), "g11", None)
        assert [one.generation for one in chosen] == ["g12", "g11"]

    def test_is_what_is_named(self) -> None:
        chosen = choose_generations(dataset(generations=GENERATIONS), "g11", "g13")
        assert [one.generation for one in chosen] == ["g11", "g13"]

    @pytest.mark.parametrize(("before", "after"), [(None, None), ("g7", None), ("g11", "g77"), ("g11", "g11")])
    def test_has_to_be_there(self, before: str | None, after: str | None) -> None:
        with pytest.raises(NotPossible):
            choose_generations(dataset(generations=GENERATIONS), before, after)

    def test_may_be_one_that_a_gate_has_refused(self) -> None:
        refused = dataset(generations=GENERATIONS, refused=generation("g14", message="minRecords: closed"))
        assert [chosen.generation for chosen in choose_generations(refused, "g13", "g14")] == ["g13", "g14"]
        with pytest.raises(NotPossible, match=r"the store has .*g13, g14$"):
            choose_generations(refused, "g13", "g15")


class TestReading:
    def test_finds_the_document_behind_what_was_logged(self) -> None:
        text = json.dumps(DOCUMENT, indent=2)
        assert read_document(text, is_done=True) == DOCUMENT
        assert read_document(f'{{"level": "warning", "message": "slow"}}\n{text}', is_done=True) == DOCUMENT

    @pytest.mark.parametrize("log", ["", '{"level": "error"}\nthe store denies', '{\n"added": 1'])
    def test_of_a_job_that_failed_says_the_last_line(self, log: str) -> None:
        with pytest.raises(JobFailed) as failed:
            read_document(log, is_done=not log.endswith("denies"))
        assert (log.splitlines() or ["nothing"])[-1] in str(failed.value)

    def test_says_what_is_known_rather_than_what_was_logged_last(self) -> None:
        with pytest.raises(JobFailed, match="it was killed"):
            read_document("read shard 1", is_done=False, why="it was killed")

    def test_is_shown_with_its_samples_and_no_control_characters(self) -> None:
        shown = "\n".join(render_difference(DOCUMENT))
        assert "g13, 3,001 records" in shown
        assert "not all keys were compared" in shown
        assert "changed  2" in shown
        assert "\x1b" not in shown
