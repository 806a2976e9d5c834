"""A scenario's own S3 server, beside its datasets: the release's embedded store with another key and bucket."""

from __future__ import annotations

import copy
import json
import secrets
from typing import Final

from e2e.support import store
from e2e.support.kubectl import Manifest, kubectl
from e2e.support.scenario import Scenario

NAME: Final = "team-store"
BUCKET: Final = "team"
URL: Final = f"s3://{BUCKET}/lookups"
_PORT: Final = 7070
_DATA: Final = "/data/buckets/"


class TeamStore:
    """The running server, and ``environment``: what its users need, as in a Secret."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.environment: dict[str, str] = {
            "AWS_ACCESS_KEY_ID": secrets.token_hex(10),
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
            "AWS_ENDPOINT_URL": f"http://{NAME}.{scenario.namespace}.svc:{_PORT}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }
        scenario.apply(self.secret(NAME), _service(), _pod())
        kubectl("wait", "--for=condition=Ready", f"pod/{NAME}", "-n", scenario.namespace, "--timeout=120s", timeout=130)

    def secret(self, name: str) -> Manifest:
        """Return a Secret with the server's address and key."""
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": self.environment}

    def paths(self) -> list[str]:
        """List every object below URL."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        found: list[str] = json.loads(self._scenario.client_run("env", *variables, "python", "-c", store.LIST, URL))
        return found


def _service() -> Manifest:
    spec = {"selector": {"app": NAME}, "ports": [{"name": "s3", "port": _PORT, "targetPort": "s3"}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": spec}


def _pod() -> Manifest:
    """Return the pod of the release's store, with a temporary volume."""
    deployment = store.deployment()
    spec = copy.deepcopy(deployment["spec"]["template"]["spec"])
    (data,) = (volume for volume in spec["volumes"] if volume["name"] == "data")
    data.pop("persistentVolumeClaim")
    data["emptyDir"] = {"sizeLimit": "1Gi"}
    (maker,), (server,) = spec["initContainers"], spec["containers"]
    maker["command"] = [f"{_DATA}{BUCKET}" if word.startswith(_DATA) else word for word in maker["command"]]
    for variable in server["env"]:
        if "secretKeyRef" in variable.get("valueFrom", {}):
            variable["valueFrom"]["secretKeyRef"]["name"] = NAME
    metadata = {"name": NAME, "labels": {"app": NAME}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
