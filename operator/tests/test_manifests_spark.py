"""Builds by Spark: the Job's pod is a driver with an API token, and makes executors from a template that is as
restricted as every other pod."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import orjson
import pytest
from manifest_samples import (
    BUILD,
    CONFIG,
    GATEWAY_CONFIG,
    SPARK_CONFIG,
    airports,
    everything,
    rendered,
    with_own_store,
    with_spark,
)
from test_manifests_pods import violations

from lookupdb.cli.build import command
from lookupdb.dataset.spec import parse_resource
from lookupdb.errors import InvalidManifest
from lookupdb.store.objects import TOKEN_FILE_VARIABLE
from lookupdb_operator import manifests, names
from lookupdb_operator.model import Config, ObservedDataset

Json = Any
PLAIN = dataclasses.replace(CONFIG, spark_image="lookupdb-spark:1.0.0")


def _parts(of: ObservedDataset, config: Config = SPARK_CONFIG) -> tuple[dict[str, str], Json, Json]:
    """Return the operator's settings for the driver, its pod, and the pod of an executor."""
    config_map, job = manifests.render_builder(of, BUILD, config)
    files = {name: orjson.loads(text) for name, text in config_map["data"].items()}
    words = job["spec"]["template"]["spec"]["containers"][0]["args"]
    settings = dict(word.split("=", 1) for flag, word in itertools.pairwise(words) if flag == "--spark-conf")
    return settings, job["spec"]["template"], files[names.EXECUTOR_FILE]


def test_both_pods_are_restricted_and_only_the_driver_has_a_token() -> None:
    _, driver, executor = _parts(with_spark())
    assert list(violations(driver["spec"])) == ["a token, or others' addresses"]
    assert driver["spec"]["automountServiceAccountToken"] is True
    assert list(violations(executor["spec"])) == []
    assert executor["spec"]["restartPolicy"] == "Never"
    assert executor["spec"]["activeDeadlineSeconds"] == 3600


def test_a_build_on_this_pod_alone_gets_nothing_of_it() -> None:
    config_map, job = manifests.render_builder(airports(), BUILD, SPARK_CONFIG)
    assert list(config_map["data"]) == [names.DATASET_FILE]
    assert "build" not in orjson.loads(config_map["data"][names.DATASET_FILE])["spec"]
    pod = job["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod


def test_no_variable_of_the_driver_occurs_twice() -> None:
    of = with_spark(pod={"extraEnv": [{"name": "SPARK_LOCAL_DIRS", "value": "/disk"}]})
    variables = [variable["name"] for variable in _parts(of)[1]["spec"]["containers"][0]["env"]]
    assert len(variables) == len(set(variables)), "server-side apply refuses the Job"


def test_a_builder_that_copies_pushes_is_no_driver() -> None:
    dataset = with_spark(of=airports(source={"pushed": True}))
    assert list(manifests.render_builder(dataset, BUILD, PLAIN)[0]["data"]) == [names.DATASET_FILE]
    assert manifests.has_builder_image(dataset, dataclasses.replace(PLAIN, spark_image=""))
    assert rendered(airports(), SPARK_CONFIG)["build"] == rendered(airports(), GATEWAY_CONFIG)["build"]


def test_the_driver_acts_as_the_account_that_the_dataset_or_the_release_names() -> None:
    pod = {"serviceAccountName": "reader-of-the-bucket"}
    for spark, account in (({}, "lookupdb-spark"), ({"serviceAccountName": "mine"}, "mine")):
        _, driver, executor = _parts(with_spark(spark, pod=pod))
        assert driver["spec"]["serviceAccountName"] == account
        assert executor["spec"]["serviceAccountName"] == "reader-of-the-bucket", "an executor makes no pods"


def test_its_image_is_the_datasets_or_the_releases() -> None:
    for spark, image in (({}, "lookupdb-spark:1.0.0"), ({"image": "mine:2"}, "mine:2")):
        settings, driver, executor = _parts(with_spark(spark))
        images = [pod["spec"]["containers"][0]["image"] for pod in (driver, executor)]
        assert [*images, settings["spark.kubernetes.container.image"]] == [image] * 3
    assert not manifests.has_builder_image(with_spark(), CONFIG)
    assert manifests.has_builder_image(with_spark({"image": "mine:2"}), CONFIG)
    assert manifests.has_builder_image(airports(), CONFIG)


def test_the_driver_reads_the_users_settings_and_its_flags_override_them() -> None:
    of = with_spark({"executors": 7, "conf": {"spark.task.cpus": "1"}, "master": "local[2]"})
    config_map, job = manifests.render_builder(of, BUILD, SPARK_CONFIG)
    resource = orjson.loads(config_map["data"][names.DATASET_FILE])
    spec = parse_resource(resource)
    assert (spec.engine, spec.spark.executors, dict(spec.spark.conf)) == ("Spark", 7, {"spark.task.cpus": "1"})
    words = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert words[words.index("--spark-master") + 1] == "k8s://https://kubernetes.default.svc"
    flags = {name for name in words if name.startswith("--")}
    assert flags <= {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    settings, _, _ = _parts(of)
    assert settings["spark.kubernetes.namespace"] == "default"
    assert (settings["spark.authenticate"], settings["spark.driver.port"]) == ("true", "7078")


@pytest.mark.parametrize(
    ("of", "config"),
    [
        pytest.param(with_spark(), SPARK_CONFIG, id="behind a gateway"),
        pytest.param(with_spark(), PLAIN, id="without a gateway"),
        pytest.param(with_spark(of=with_own_store()), SPARK_CONFIG, id="own store"),
        pytest.param(with_spark(of=everything()), SPARK_CONFIG, id="everything"),
    ],
)
def test_executors_reach_source_and_store_as_the_driver_does(of: ObservedDataset, config: Config) -> None:
    _, driver, executor = _parts(of, config)
    (one,), (other,) = (pod["spec"]["containers"] for pod in (driver, executor))
    assert one.get("envFrom") == other.get("envFrom")
    of_driver = {"LOOKUPDB_POD_NAME", "LOOKUPDB_POD_IP", "SPARK_LOCAL_DIRS"}
    assert other["env"] == [variable for variable in one["env"] if variable["name"] not in of_driver]
    mounts = {mount["mountPath"] for mount in one["volumeMounts"]} - {names.DATASET_PATH}
    assert {mount["mountPath"] for mount in other["volumeMounts"]} == mounts
    volumes = {volume["name"]: volume for volume in executor["spec"]["volumes"]}
    assert {mount["name"] for mount in other["volumeMounts"]} == set(volumes)
    has_token = any(variable["name"] == TOKEN_FILE_VARIABLE for variable in other["env"])
    assert has_token == (names.STORE_TOKEN_VOLUME in volumes)


def test_executors_carry_labels_and_placement_and_leave_memory_and_cpu_to_spark() -> None:
    placed = {"nodeSelector": {"pool": "batch"}, "tolerations": [{"operator": "Exists"}], "priorityClassName": "low"}
    near = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
    of = with_spark(pod={**placed, "affinity": {"podAffinity": near}, "labels": {"team": "data"}})
    _, driver, executor = _parts(of)
    expected = names.labels(of.name, of.uid, names.EXECUTOR) | {names.GENERATION: "g12", "team": "data"}
    assert executor["metadata"]["labels"] == expected
    assert driver["metadata"]["labels"] == expected | {names.COMPONENT: names.BUILDER}
    assert placed.items() <= executor["spec"].items()
    (term,) = executor["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == names.selector(of.name, of.uid, names.EXECUTOR)
    (container,) = executor["spec"]["containers"]
    assert container["resources"] == {"requests": {"ephemeral-storage": "10Gi"}}
    assert container["name"] == names.EXECUTOR
    assert "args" not in container, "Spark adds its own"


def test_a_stuck_build_is_superseded_when_its_executors_would_differ() -> None:
    of, more = with_spark(), with_spark({"executors": 5})
    assert manifests.build_digest(of, SPARK_CONFIG) != manifests.build_digest(more, SPARK_CONFIG)
    assert manifests.build_digest(of, SPARK_CONFIG) != manifests.build_digest(airports(), SPARK_CONFIG)


def test_the_crd_refuses_every_setting_that_is_the_operators_by_name() -> None:
    settings, _, _ = _parts(with_spark())
    for name in (*settings, "spark.master"):
        with pytest.raises(InvalidManifest, match="lookupdb sets addresses"):
            with_spark({"conf": {name: "mine"}})


def test_settings_about_pods_that_cannot_reach_further_are_the_users() -> None:
    own = ("executor.request.cores", "executor.limit.cores", "allocation.batch.size")
    conf = {f"spark.kubernetes.{name}": "2" for name in own}
    settings, _, _ = _parts(with_spark({"conf": conf}))
    assert not conf.keys() & settings.keys()
