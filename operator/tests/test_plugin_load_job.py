"""The Job that loads routers: rendered from the operator's manifests, bounded and restricted, with arguments that the
command line accepts, and output that the plugin reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from manifest_samples import GATEWAY_CONFIG, everything, rendered
from plugin_samples import dataset

from lookupdb.cli.load import command as load_command
from lookupdb.cli.load import make_plan, render_words
from lookupdb.errors import UsageError
from lookupdb.load.plan import LoadPlan
from lookupdb_operator import names
from lookupdb_operator.console.dataset import NotPossible
from lookupdb_operator.plugin.cluster_verbs import JobFailed, count_bytes, fit_keys, read_result
from lookupdb_operator.plugin.jobs import (
    KEYS_ANNOTATION,
    LOAD_LABELS,
    MAX_KEY_BYTES,
    LoadJobOptions,
    ObjectKey,
    render_load_job,
)

TLS = {"router": {"tls": {"secretName": "airports-tls"}}}


def _shard_set(*config: Any) -> dict[str, Any]:
    shards = rendered(everything(), *config)["shards"]
    return next(manifest for manifest in shards if manifest["kind"] == "StatefulSet")


def _parsed(*words: str) -> tuple[LoadPlan, dict[str, Any]]:
    context = load_command.make_context("load", ["http://a", *words])
    return make_plan(context, context.params), context.params


def _job(*words: str, spec: Any = None, shard_set: Any = None, keys: list[str] | None = None, **more: Any) -> Any:
    plan, params = _parsed(*words)
    members: dict[str, Any] = {
        "words": render_words(params),
        "processes": plan.processes,
        "keys": keys,
        "largest_shard_bytes": 6_000_000,
        "deadline_seconds": 90,
    }
    return render_load_job(dataset(spec), shard_set or _shard_set(), LoadJobOptions(**members | more))


def _pod(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def _container(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = _pod(job)["containers"]
    found: dict[str, Any] = container
    return found


def test_what_is_given_comes_as_it_is_and_names_no_variable() -> None:
    words = _container(_job("--header", "X-Team: $(LOOKUPDB_TOKEN) costs $$5", keys=["a"]))["args"]
    assert any("X-Team: $$(LOOKUPDB_TOKEN) costs $$$$5" in word for word in words), "Kubernetes makes $ of each $$"


def test_its_pod_is_restricted_and_has_no_token_of_the_api_server() -> None:
    template, pod = _shard_set()["spec"]["template"]["spec"], _pod(_job(keys=["a"]))
    (fetcher,) = template["initContainers"]
    container = _container(_job(keys=["a"]))
    assert (container["image"], container["securityContext"]) == (fetcher["image"], fetcher["securityContext"])
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert (pod["securityContext"], pod["automountServiceAccountToken"]) == (template["securityContext"], False)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_it_is_bounded_and_goes_with_its_dataset() -> None:
    job = _job(keys=["a"])
    spec = job["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (0, 90, 600)
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == (names.KIND, "airports", "uid-of-airports")
    assert job["metadata"]["name"].startswith("airports-load-")
    assert job["metadata"]["name"] != _job(keys=["a"])["metadata"]["name"]
    labels = spec["template"]["metadata"]["labels"]
    assert labels == job["metadata"]["labels"] == LOAD_LABELS == {names.APP: "lookupdb", names.COMPONENT: "load"}
    assert names.DATASET not in labels, "the operator ignores it"
    resources = _container(_job("--processes", "3", keys=["a"]))["resources"]
    assert resources["limits"].keys() == resources["requests"].keys() == {"cpu", "memory", "ephemeral-storage"}
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("2000m", "4")
    assert resources["limits"]["memory"] == resources["requests"]["memory"] == "1024Mi"


def test_it_asks_the_routers_service_what_the_command_line_says() -> None:
    words = ["--ramp=1:5:2", "--arrivals=uniform", "--duration=7", "--warmup=0", "--batch=3", "--partial", "--seed=9"]
    words += ["--hit-ratio=0.5", "--distribution=zipf:1.1", "--max-in-flight=8", "--processes=2", "--timeout=1.5"]
    words += ["--at=g13", "--beyond-default-bounds"]
    words += ["--header", "X-A: -b c", "--fail-if", "p99>20ms", "--fail-if", "errors>0"]
    arguments = _container(_job(*words, keys=["a", "b", "c"]))["args"]
    assert arguments[:2] == ["load", "http://airports-router.shop.svc"]
    context = load_command.make_context("load", arguments[1:])
    assert make_plan(context, context.params) == _parsed(*words)[0]
    assert context.params["headers"] == ("X-A: -b c",)
    assert context.params["conditions"] == ("p99>20ms", "errors>0")
    assert context.params["generation"] == "g13"
    assert context.params["as_json"]
    assert context.params["keys"] == "/etc/lookupdb/load/keys"


def test_keys_that_are_given_come_as_an_annotation_and_the_store_is_not_reached() -> None:
    job = _job(keys=["KJFK", "ä b"], shard_set=_shard_set(GATEWAY_CONFIG))
    assert job["spec"]["template"]["metadata"]["annotations"] == {KEYS_ANNOTATION: "KJFK\nä b\n"}
    (volume,) = [volume for volume in _pod(job)["volumes"] if "downwardAPI" in volume]
    (item,) = volume["downwardAPI"]["items"]
    assert item == {"path": "keys", "fieldRef": {"fieldPath": f"metadata.annotations['{KEYS_ANNOTATION}']"}}
    container = _container(job)
    assert {"name": volume["name"], "mountPath": "/etc/lookupdb/load", "readOnly": True} in container["volumeMounts"]
    assert "--store" not in container["args"]
    assert "envFrom" not in container
    assert names.STORE_TOKEN_VOLUME not in {volume["name"] for volume in _pod(job)["volumes"]}


def test_keys_are_sampled_as_the_fetcher_reads_the_store() -> None:
    shard_set = _shard_set(GATEWAY_CONFIG)
    (fetcher,) = shard_set["spec"]["template"]["spec"]["initContainers"]
    job = _job(shard_set=shard_set)
    container = _container(job)
    assert container["args"][container["args"].index("--store") + 1] == GATEWAY_CONFIG.gateway
    assert [variable for variable in fetcher["env"] if variable not in container["env"]] == []
    assert names.STORE_TOKEN_PATH in {mount["mountPath"] for mount in container["volumeMounts"]}
    context = load_command.make_context("load", container["args"][1:])
    assert (context.params["keys"], context.params["dataset"]) == ("sample", "shop/airports")
    assert int(container["resources"]["limits"]["ephemeral-storage"]) == 6_000_000 + (64 << 20)
    assert _container(_job())["envFrom"] == _shard_set()["spec"]["template"]["spec"]["initContainers"][0]["envFrom"]


def test_a_token_comes_by_reference() -> None:
    job = _job(keys=["a"], token=ObjectKey("airports-load", "token"))
    reference = {"secretKeyRef": {"name": "airports-load", "key": "token"}}
    assert {"name": "LOOKUPDB_TOKEN", "valueFrom": reference} in _container(job)["env"]


@pytest.mark.parametrize(
    ("more", "volume"),
    [
        ({}, {"secret": {"secretName": "airports-tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}),
        (
            {"ca_secret": ObjectKey("pki", "root.pem")},
            {"secret": {"secretName": "pki", "items": [{"key": "root.pem", "path": "ca.crt"}]}},
        ),
        (
            {"ca_config_map": ObjectKey("trust", "bundle.pem")},
            {"configMap": {"name": "trust", "items": [{"key": "bundle.pem", "path": "ca.crt"}]}},
        ),
    ],
    ids=["beside the certificate", "a Secret", "a ConfigMap"],
)
def test_of_routers_that_speak_tls_the_authority_alone_is_mounted(more: Any, volume: Any) -> None:
    job = _job(keys=["a"], spec=TLS, **more)
    assert {"name": "load-ca", **volume} in _pod(job)["volumes"]
    assert "--ca-file=/etc/lookupdb/load-ca/ca.crt" in _container(job)["args"]
    plain = _job(keys=["a"])
    assert not [word for word in _container(plain)["args"] if "--ca-file" in word]


def test_routers_that_want_certificates_of_clients_or_are_not_there_are_not_asked() -> None:
    client_ca = {"router": {"tls": {"secretName": "t", "clientCA": {"configMapName": "c", "key": "ca.crt"}}}}
    with pytest.raises(NotPossible, match="require a certificate of clients"):
        _job(keys=["a"], spec=client_ca)
    options = LoadJobOptions([], 1, ["a"], 0)
    with pytest.raises(NotPossible, match="has no routers yet"):
        render_load_job(dataset(endpoint=None), _shard_set(), options)


def test_more_keys_than_a_job_holds_are_a_sample(capsys: pytest.CaptureFixture[str]) -> None:
    plan, _ = _parsed("--batch", "10")
    keys = [f"key number {number:>20}" for number in range(50_000)]
    kept = fit_keys(keys, plan)
    assert MAX_KEY_BYTES * 0.9 < count_bytes(kept) <= MAX_KEY_BYTES
    assert set(kept) < set(keys)
    assert sum(key > keys[25_000] for key in kept) == pytest.approx(len(kept) / 2, rel=0.1), "not the first ones"
    assert f"{len(kept):,} of 50,000 are used" in capsys.readouterr().err
    assert fit_keys(keys[:100], plan) == keys[:100]
    with pytest.raises(UsageError, match="a batch needs 10 keys"):
        fit_keys(keys[:9], plan)


RESULT = '{"formatVersion":1,"kind":"LoadResult","seconds":10.0}'


def test_the_result_is_found_among_what_is_logged() -> None:
    log = ["5 of 10 s: 100/s answered of 100/s", RESULT, "error: --fail-if 'p50>1us' holds: it is 5 ms"]
    assert read_result(log, "") == json.loads(RESULT)


@pytest.mark.parametrize(
    ("log", "why", "told"),
    [
        ([], "", "it has logged nothing"),
        (["5 of 10 s", "error: the router answered 401: no", "  give a token"], "", "answered 401: no give a token"),
        (["5 of 10 s", RESULT[:30]], "", RESULT[:30]),
        (["whatever"], "pod x was evicted", "pod x was evicted"),
    ],
)
def test_a_log_without_a_result_is_reported(log: list[str], why: str, told: str) -> None:
    with pytest.raises(JobFailed) as caught:
        read_result(log, why)
    assert str(caught.value).endswith(told)


def test_the_words_of_the_job_fit_the_command_line_that_the_image_has(tmp_path: Path) -> None:
    """All options that a Job may get are options of `lookupdb load`."""
    (tmp_path / "ca.crt").touch()
    arguments = _container(_job(keys=["a"], spec=TLS))["args"]
    known = {name for parameter in load_command.params for name in parameter.opts}
    used = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    assert used <= known
    assert isinstance(load_command, click.Command)
