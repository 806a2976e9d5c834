"""Spark on Kubernetes: the rights that a driver needs, and the process of an executor's pod.

Spark creates executor pods from a template, and passes the rest in environment variables. Spark's own image reads
them in a shell script; ours runs this module. It imports nothing of the builder.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from lookupdb.errors import EngineMissing, ExecutorsRefused, RightsMissing

KUBERNETES: Final = "k8s://"
"""Prefix of a Spark master on Kubernetes."""
_TEMPLATE: Final = "spark.kubernetes.executor.podTemplateFile"
_REQUEST: Final = "spark.kubernetes.executor.request.cores"
VERBS: Final = ("get", "list", "watch", "create", "delete", "deletecollection")
"""The verbs that a driver needs for pods of its namespace."""
_BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION: Final = "SPARK_JAVA_OPT_"
_FLAGS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""Maps each flag of Spark's executor to the environment variable in which Spark passes it."""
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_FAILED: Final = 400


def check_pods(master: str, conf: Mapping[str, str], cores: int, memory: int, account: Path = _ACCOUNT) -> None:
    """Check that executors can be created at ``master``, because Spark would wait for them forever.

    Raises RightsMissing if the pod's ServiceAccount may not create them; ExecutorsRefused if the API server refuses an
    executor from the template in ``conf`` with ``cores`` and ``memory`` bytes; EngineMissing if the API server does not
    answer. Without a token, outside of a pod, nothing is checked."""
    if not master.startswith(KUBERNETES) or not (account / "token").exists():
        return
    namespace = (account / "namespace").read_text(encoding="utf-8")
    api = _Api(master.removeprefix(KUBERNETES), account)
    try:
        missing = [verb for verb in VERBS if not api.allows(verb, namespace)]
        if missing:
            raise RightsMissing(
                f"the ServiceAccount of Spark's driver may not {', '.join(missing)} pods in namespace {namespace}",
                hint="list the namespace in the chart's spark.namespaces, or bind a Role with these verbs",
            )
        template, request = conf.get(_TEMPLATE), conf.get(_REQUEST, str(cores))
        refusal = api.try_pod(_make_executor(Path(template), request, memory), namespace) if template else ""
    except (OSError, ValueError, KeyError) as error:
        raise EngineMissing(f"Spark's executors cannot be checked with Kubernetes: {error}") from error
    if refusal:
        raise ExecutorsRefused(f"Kubernetes rejects executors: {refusal}")


def _make_executor(template: Path, cores: str, memory: int) -> dict[str, Any]:
    """Return a pod like those that Spark makes from ``template``."""
    pod: dict[str, Any] = json.loads(template.read_text(encoding="utf-8"))
    (container,) = pod["spec"]["containers"]
    sizes = container.setdefault("resources", {})
    sizes["requests"] = sizes.get("requests", {}) | {"cpu": cores, "memory": str(memory)}
    sizes["limits"] = sizes.get("limits", {}) | {"memory": str(memory)}
    pod["metadata"]["generateName"] = "executor-"
    return pod


class _Api:
    """The API server, as the pod's ServiceAccount reaches it."""

    def __init__(self, url: str, account: Path) -> None:
        self._url = url
        self._context = ssl.create_default_context(cafile=account / "ca.crt") if url.startswith("https:") else None
        token = (account / "token").read_text(encoding="utf-8").strip()
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def allows(self, verb: str, namespace: str) -> bool:
        """Return whether the account may use ``verb`` on pods."""
        attributes = {"namespace": namespace, "verb": verb, "resource": "pods"}
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        status, answer = self._post(_REVIEWS, {**kind, "spec": {"resourceAttributes": attributes}})
        if status >= _FAILED:
            raise ValueError(f"{status} {answer.get('message', '')}")
        return bool(answer["status"]["allowed"])

    def try_pod(self, pod: Mapping[str, Any], namespace: str) -> str:
        """Return why the API server would refuse ``pod``; empty if it would not."""
        status, answer = self._post(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
        return str(answer.get("message") or status) if status >= _FAILED else ""

    def _post(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), self._headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._context) as answer:  # noqa: S310
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


def java_command(variables: Mapping[str, str], jars: str) -> list[str]:
    """Return an executor's command, from the ``variables`` of its pod. ``jars`` is Spark's folder of JARs."""
    numbers = sorted(int(name.removeprefix(_OPTION)) for name in variables if name.startswith(_OPTION))
    options = [variables[f"{_OPTION}{number}"] for number in numbers]
    flags = [word for flag, name in _FLAGS.items() for word in (flag, variables[name])]
    return ["java", *options, f"-Xmx{variables['SPARK_EXECUTOR_MEMORY']}", "-cp", f"{jars}/*", _BACKEND, *flags]


def main() -> None:
    """Become the executor. The argument that Spark adds is not needed."""
    found = find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        sys.exit("this image has no Spark: in spec.build.spark.image, name one that `make image-spark` builds")
    command = java_command(os.environ, f"{found.submodule_search_locations[0]}/jars")
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
