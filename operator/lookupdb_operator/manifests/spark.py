"""Builds by Spark: the Job's pod is the driver, in client mode, and makes executors from a template that is written
here. Executors are pods of the dataset's namespace, and Kubernetes removes them with the driver's pod, which owns
them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.manifests.objects import drop_empty
from lookupdb_operator.model import Config, ObservedDataset

SPARK: Final = "Spark"
MASTER: Final = "k8s://https://kubernetes.default.svc"
_POD_NAME: Final = "LOOKUPDB_POD_NAME"
_POD_IP: Final = "LOOKUPDB_POD_IP"
_LOCAL_DIRS: Final = "SPARK_LOCAL_DIRS"
_STORAGE: Final = "ephemeral-storage"
_SCRATCH: Final = "spark-local-dir-1"
"""Spark keeps an executor's rows in volumes whose names begin with this. Without one, it creates its own."""
_OF_DRIVER: Final = ("dataset", "scratch")
"""Volumes of a builder that executors lack, or have under another name."""


def uses_spark(spec: Mapping[str, Any]) -> bool:
    """Return whether Spark builds a completed spec; the builder itself copies pushes."""
    return bool(spec["build"]["engine"] == SPARK and not spec["source"].get("pushed"))


def find_image(dataset: ObservedDataset, config: Config) -> str:
    """Return the image of drivers and executors; empty if none is named."""
    return dataset.spec["build"]["spark"].get("image") or config.spark_image


def driver_flags(dataset: ObservedDataset, config: Config) -> list[str]:
    """Return a driver's flags, besides a builder's. They override the dataset's settings, which cannot name them anyway
    by the CRD. Spark itself replaces ``${env:…}``."""
    settings = {
        "spark.kubernetes.namespace": dataset.namespace,
        "spark.kubernetes.container.image": find_image(dataset, config),
        "spark.kubernetes.container.image.pullPolicy": config.image_pull_policy,
        "spark.kubernetes.driver.pod.name": f"${{env:{_POD_NAME}}}",  # the owner of executors
        "spark.kubernetes.executor.podNamePrefix": f"${{env:{_POD_NAME}}}",
        "spark.kubernetes.executor.podTemplateFile": f"{names.DATASET_PATH}/{names.EXECUTOR_FILE}",
        "spark.kubernetes.executor.podTemplateContainerName": names.EXECUTOR,
        # So it needs no right but to pods: no ConfigMaps, Services or claims.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.driver.host": f"${{env:{_POD_IP}}}",
        "spark.driver.bindAddress": f"${{env:{_POD_IP}}}",
        "spark.driver.port": str(names.DRIVER_PORT),
        "spark.driver.blockManager.port": str(names.BLOCKS_PORT),
        "spark.blockManager.port": str(names.BLOCKS_PORT),
        "spark.ui.enabled": "false",
        "spark.authenticate": "true",  # a secret for each build
        "spark.network.crypto.enabled": "true",
    }
    pairs = (f"{name}={value}" for name, value in settings.items())
    return ["--spark-master", MASTER, *(word for pair in pairs for word in ("--spark-conf", pair))]


def make_driver(template: Mapping[str, Any], dataset: ObservedDataset, config: Config) -> dict[str, Any]:
    """Return a builder's ``template`` for a driver: with an API token and its address."""
    (container,) = template["spec"]["containers"]
    fields = {_POD_NAME: "metadata.name", _POD_IP: "status.podIP"}
    variables = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    others = [variable for variable in container["env"] if variable["name"] != _LOCAL_DIRS]  # no name may occur twice
    driver = {
        **container,
        "image": find_image(dataset, config),
        "args": [*container["args"], *driver_flags(dataset, config)],
        "env": [*others, *variables, {"name": _LOCAL_DIRS, "value": names.SCRATCH_PATH}],
        "ports": [
            {"name": name, "containerPort": number, "protocol": "TCP"}
            for name, number in (("driver", names.DRIVER_PORT), ("blocks", names.BLOCKS_PORT))
        ],
    }
    account = dataset.spec["build"]["spark"].get("serviceAccountName") or config.spark_service_account
    pod = {"containers": [driver], "serviceAccountName": account, "automountServiceAccountToken": True}
    return {**template, "spec": {**template["spec"], **pod}}


def make_executor(template: Mapping[str, Any], dataset: ObservedDataset, config: Config) -> dict[str, Any]:
    """Return a builder's ``template``, with an executor's labels, as the pod from which Spark makes executors. Spark
    adds what it decides: name, owner, image, arguments, variables, memory and cpu."""
    (container,) = template["spec"]["containers"]
    scratch = {"name": _SCRATCH, "mountPath": names.SCRATCH_PATH}
    storage = {
        part: {name: size for name, size in sizes.items() if name == _STORAGE}
        for part, sizes in container["resources"].items()
    }
    executor = {
        **{name: member for name, member in container.items() if name != "args"},
        "name": names.EXECUTOR,
        "image": find_image(dataset, config),
        "command": ["python", "-m", "lookupdb.spark.pods"],
        "workingDir": names.SCRATCH_PATH,
        "resources": drop_empty(**storage),
        "volumeMounts": [scratch, *(mount for mount in container["volumeMounts"] if mount["name"] not in _OF_DRIVER)],
    }
    volumes = template["spec"]["volumes"]
    size = next(volume["emptyDir"] for volume in volumes if volume["name"] == "scratch")
    pod = {
        "containers": [executor],
        "volumes": [
            {"name": _SCRATCH, "emptyDir": size},
            *(volume for volume in volumes if volume["name"] not in _OF_DRIVER),
        ],
        # An executor ends when it loses its driver. If it hangs, the kubelet ends it.
        "activeDeadlineSeconds": dataset.spec["build"]["deadlineSeconds"],
    }
    metadata, spec = template["metadata"], {**template["spec"], **pod}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
