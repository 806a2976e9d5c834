"""A team keeps a dataset's generations in its own bucket, with its own Secret. Its builders remove old generations
there."""

from __future__ import annotations

import copy
import json
import secrets
from typing import Final

import pytest
from e2e.support import store
from e2e.support.command import CommandFailed
from e2e.support.kubectl import Manifest, find, kubectl
from e2e.support.scenario import BRISK, Scenario

pytestmark = pytest.mark.side_by_side

TEAM_STORE: Final = "team-store"
BUCKET: Final = "team"
URL: Final = f"s3://{BUCKET}/lookups"
PORT: Final = 7070
DATA: Final = "/data/buckets/"
SECRET: Final = "records-bucket"
OWN: Final = {"store": {"url": URL, "secretName": SECRET}, "keepGenerations": 1}


def test_a_dataset_with_a_store_of_its_own_is_built_served_and_refreshed_there(scenario: Scenario) -> None:
    own = TeamStore(scenario)
    keys = scenario.source("records", version="v1", records=300)
    scenario.apply(scenario.dataset("records", "records", shards=2, rollout=BRISK, router={"drainSeconds": 0}, **OWN))
    scenario.wait_condition("records", "Built", "False", reason="SecretMissing")
    scenario.apply(own.secret(SECRET))
    scenario.wait_settled("records", generation="g1")
    scenario.check_version("records", keys, "v1")
    for version in ("v2", "v3"):
        scenario.source("records", version=version, records=300)
        scenario.refresh("records")
        scenario.wait_settled("records")
        scenario.check_version("records", keys, version)

    assert _generations(scenario, own.paths()) == {"g2", "g3"}, "what is kept, and what was built last"
    assert not [path for path in store.paths(f"e2e-own-{secrets.token_hex(2)}") if f"/{scenario.namespace}/" in path]
    for pod in find("pods", scenario.namespace, "lookupdb.dev/dataset=records"):
        assert not [volume for volume in pod["spec"]["volumes"] if volume["name"] == "store-token"]

    scenario.change("records", replicas=2)  # new servers fetch from there
    scenario.wait_settled("records", generation="g3")
    scenario.check_version("records", keys, "v3")
    with pytest.raises(CommandFailed, match="copy the generations with `lookupdb copy`"):
        scenario.change("records", store={"url": "s3://elsewhere/lookups"})


def _generations(scenario: Scenario, paths: list[str]) -> set[str]:
    """Return the complete generations of the scenario's one dataset."""
    manifests = [path for path in paths if path.endswith("/manifest.json")]
    assert all(f"/{scenario.namespace}/records-" in path for path in manifests), manifests
    return {path.split("/")[-2] for path in manifests}


class TeamStore:
    """The team's S3 server, beside its dataset: the release's embedded store with another key and bucket.
    ``environment`` is what its users need, as in a Secret."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.environment: dict[str, str] = {
            "AWS_ACCESS_KEY_ID": secrets.token_hex(10),
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
            "AWS_ENDPOINT_URL": f"http://{TEAM_STORE}.{scenario.namespace}.svc:{PORT}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }
        scenario.apply(self.secret(TEAM_STORE), _service(), _pod())
        kubectl(
            "wait",
            "--for=condition=Ready",
            f"pod/{TEAM_STORE}",
            "-n",
            scenario.namespace,
            "--timeout=120s",
            timeout=130,
        )

    def secret(self, name: str) -> Manifest:
        """Return a Secret with the server's address and key."""
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": self.environment}

    def paths(self) -> list[str]:
        """List every object below URL."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        found: list[str] = json.loads(self._scenario.client_run("env", *variables, "python", "-c", store.LIST, URL))
        return found


def _service() -> Manifest:
    spec = {"selector": {"app": TEAM_STORE}, "ports": [{"name": "s3", "port": PORT, "targetPort": "s3"}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": TEAM_STORE}, "spec": spec}


def _pod() -> Manifest:
    """Return the pod of the release's store, with a temporary volume."""
    deployment = store.deployment()
    spec = copy.deepcopy(deployment["spec"]["template"]["spec"])
    (data,) = (volume for volume in spec["volumes"] if volume["name"] == "data")
    data.pop("persistentVolumeClaim")
    data["emptyDir"] = {"sizeLimit": "1Gi"}
    (maker,), (server,) = spec["initContainers"], spec["containers"]
    maker["command"] = [f"{DATA}{BUCKET}" if word.startswith(DATA) else word for word in maker["command"]]
    for variable in server["env"]:
        if "secretKeyRef" in variable.get("valueFrom", {}):
            variable["valueFrom"]["secretKeyRef"]["name"] = TEAM_STORE
    metadata = {"name": TEAM_STORE, "labels": {"app": TEAM_STORE}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
