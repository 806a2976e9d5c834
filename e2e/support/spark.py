"""The image with Spark, and what the chart makes in a namespace for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import yaml
from e2e.support import helm, pods
from e2e.support.command import run
from e2e.support.kubectl import Manifest, find

IMAGE: Final = os.environ.get("E2E_SPARK_IMAGE", pods.IMAGE.replace("lookupdb:", "lookupdb-spark:"))
ACCOUNT: Final = "lookupdb-spark"
_CLUSTER: Final = os.environ.get("E2E_CLUSTER", "")
"""The name of kind's cluster; ``e2e/run`` sets the variable."""
_PLACE: Final[Manifest] = {
    "nodeSelector": {pods.CONTROL_PLANE: ""},
    "tolerations": [{"key": pods.CONTROL_PLANE, "operator": "Exists"}],
}
"""Where pods run on kind: only one node gets the large image."""
PLACE: Final = _PLACE if _CLUSTER else {}
_ROOT: Final = Path(__file__).parents[2]


def load_image() -> None:
    """Build the image and load it into one of kind's nodes. Other clusters pull it."""
    if _CLUSTER:
        run(["make", "--directory", str(_ROOT), "image-spark", f"IMAGE_SPARK={IMAGE}"], timeout=900)
        node = f"{_CLUSTER}-control-plane"
        run(["kind", "load", "docker-image", "--name", _CLUSTER, "--nodes", node, IMAGE], timeout=600)


def rights(namespace: str) -> list[Manifest]:
    """Return ServiceAccount, Role and RoleBinding, as the chart makes them in namespaces of ``spark.namespaces``."""
    text = helm.helm(
        "template", "lookupdb", str(helm.CHART), "--show-only", "templates/spark/rbac.yaml",
        "--set", f"spark.namespaces={{{namespace}}}",
    )  # fmt: skip
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def build(**spark: Any) -> Manifest:
    """Return ``spec.build`` of a build by two small executors."""
    conf = {"spark.kubernetes.executor.request.cores": "100m"}
    own = {"image": IMAGE, "executors": 2, "executorCores": 1, "executorMemory": "1Gi", "conf": conf}
    return {"engine": "Spark", "spark": own | spark, "pod": PLACE}


def executors(namespace: str) -> list[Manifest]:
    """Return the pods of executors."""
    return find("pods", namespace, "app.kubernetes.io/component=executor")


def false_executor(driver: str) -> Manifest:
    """Return a pod that asks the driver at an address for its settings, as an executor does at first, without its
    secret."""
    variables = {
        "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@{driver}:7078",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_MEMORY": "256m",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "false-executor",
        "SPARK_JAVA_OPT_0": "-Dspark.rpc.askTimeout=20s",
    }
    pod = pods.stranger("false-executor")
    (container,) = pod["spec"]["containers"]
    container |= {
        "image": IMAGE,
        "command": ["python", "-m", "lookupdb.spark.pods"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "workingDir": "/tmp",
    }
    container["resources"] = {"limits": {"memory": "768Mi"}}
    container["volumeMounts"].append({"name": "tmp", "mountPath": "/tmp"})
    pod["spec"] |= PLACE
    pod["spec"]["volumes"].append({"name": "tmp", "emptyDir": {}})
    return pod
