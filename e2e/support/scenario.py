"""A scenario's own namespace, the datasets in it, and lookups from inside the cluster."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from e2e.support import pods, wrong_answers
from e2e.support.kubectl import Manifest, apply, delete, kubectl, patch, raw, run_in, until
from e2e.support.load import Load

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
API_VERSION: Final = "lookupdb.dev/v1alpha1"
REFRESH: Final = "lookupdb.dev/refresh"
OVERRIDE_GATES: Final = "lookupdb.dev/override-gates"
LDS: Final = "lookupdatasets.lookupdb.dev"
USUAL: Final = {"deadlineMilliseconds": 3_000}
"""The router of a scenario that names no deadline: on a busy machine, the default of 1 s is at times too short."""
PATIENT: Final = {"deadlineMilliseconds": 10_000}
"""A router for scenarios under load. A late answer is not a failure on a busy machine. Clients wait this long, and old
servers stay this long after each rollout, so more would only take time."""
BRISK: Final = {"drainSeconds": 1}
"""A rollout for scenarios that do not test the drain. PATIENT's deadline comes on top."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one key."""

    status: int
    """200, 404 or 503; 412 if the requested generation is not served."""
    generation: str
    value: Any
    """The value with status 200, None with 404, the router's message with others."""


class Scenario:
    """One namespace, ``e2e-<scenario>-<4 hex digits>``, created at once and removed at the end."""

    def __init__(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.namespace = f"e2e-{name}-{secrets.token_hex(2)}"
        self._labels = dict(labels or {})
        self.make_namespace()

    def make_namespace(self) -> None:
        """Create the namespace with its common objects; again, if the scenario has deleted it."""
        apply(pods.namespace(self.namespace, self._labels))
        apply(pods.code(), pods.client(), namespace=self.namespace)

    def delete_namespace(self) -> None:
        """Delete the namespace, and wait until it is gone."""
        kubectl("delete", "namespace", self.namespace, "--timeout=240s", timeout=250)

    def close(self) -> None:
        """Delete the namespace without waiting."""
        delete("namespace", self.namespace, None, "--wait=false")

    # Objects

    def apply(self, *manifests: Manifest) -> None:
        """``kubectl apply`` in the scenario's namespace."""
        apply(*manifests, namespace=self.namespace)

    def apply_example(self, name: str) -> str:
        """Apply ``examples/<name>.yaml`` unchanged, and return the dataset's name."""
        manifest = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
        self.apply(manifest)
        return str(manifest["metadata"]["name"])

    def source(self, name: str, *, version: str, records: int) -> list[str]:
        """Apply a ConfigMap with ``records.csv`` (columns id, version, text), all of one version. Return the keys."""
        keys = [f"key-{number:05}" for number in range(records)]
        lines = ["id,version,text", *(f"{key},{version},{version} of {key}" for key in keys)]
        self.apply(pods.config_map(name, {"records.csv": "\n".join(lines) + "\n"}))
        return keys

    def dataset(self, name: str, source_name: str, **spec: Any) -> Manifest:
        """Return a LookupDataset of what ``source()`` applied under that name, with further members of the spec."""
        origin = {"url": "volume://records.csv", "volume": {"configMapName": source_name}}
        whole: Manifest = {
            "source": origin,
            "key": {"columns": ["id"]},
            "value": {"columns": ["id", "version", "text"]},
        } | spec
        whole["router"] = USUAL | spec.get("router", {})
        return {"apiVersion": API_VERSION, "kind": "LookupDataset", "metadata": {"name": name}, "spec": whole}

    def resource(self, dataset: str) -> Manifest:
        """Return the LookupDataset from the API server."""
        found: Manifest = json.loads(raw(f"/apis/{API_VERSION}/namespaces/{self.namespace}/lookupdatasets/{dataset}"))
        found["metadata"].pop("managedFields", None)
        return found

    def status(self, dataset: str) -> Manifest:
        """Return its status; empty while there is none."""
        status: Manifest = self.resource(dataset).get("status", {})
        return status

    def condition(self, dataset: str, kind: str) -> Manifest:
        """Return one of its conditions, with ``current``: whether it is about the current spec."""
        return _condition(self.resource(dataset), kind)

    # Changes

    def change(self, dataset: str, **spec: Any) -> None:
        """Merge members into the dataset's spec; None removes one."""
        patch(LDS, dataset, {"spec": spec}, self.namespace)

    def refresh(self, dataset: str) -> str:
        """Ask for a build from the current source, and return the annotation's value."""
        token = secrets.token_hex(4)
        self.annotate(dataset, REFRESH, token)
        return token

    def override_gates(self, dataset: str, generation: str) -> None:
        """Override the gate that rejected ``generation``."""
        self.annotate(dataset, OVERRIDE_GATES, generation)

    def annotate(self, dataset: str, annotation: str, value: str) -> None:
        """Set an annotation of the dataset."""
        patch(LDS, dataset, {"metadata": {"annotations": {annotation: value}}}, self.namespace)

    def delete(self, kind: str, name: str, *flags: str) -> None:
        """``kubectl delete`` in the scenario's namespace; waits unless a flag says otherwise."""
        delete(kind, name, self.namespace, *flags)

    # Waiting

    def wait_ready(self, dataset: str, *, seconds: float = 360) -> float:
        """Wait, like ``kubectl wait``, until the dataset is Ready for its current spec. Return the seconds."""
        began = time.monotonic()
        self.wait_condition(dataset, "Ready", "True", seconds=seconds)
        return time.monotonic() - began

    def wait_condition(
        self,
        dataset: str,
        kind: str,
        status: str,
        *,
        reason: str | None = None,
        message_pattern: str = "",
        seconds: float = 300,
    ) -> Manifest:
        """Wait until a condition has this status for the current spec, and a message that matches ``message_pattern``.
        Return the condition."""

        def look() -> Manifest | None:
            found = self.condition(dataset, kind)
            seen = f"{found['status']} {found['reason']}: {found['message']}"
            assert found["current"], f"not yet about this spec ({seen})"
            assert found["status"] == status, seen
            assert reason in (None, found["reason"]), seen
            assert re.search(message_pattern, found["message"]), f"{seen}, not {message_pattern!r}"
            return found

        return until(look, seconds=seconds, what=f"{self.namespace}/{dataset} {kind}={status} {reason or ''}")

    def wait_settled(
        self, dataset: str, *, generation: str | None = None, rollouts: int = 1, seconds: float = 480
    ) -> Manifest:
        """Wait until the dataset has settled, and return its status: Ready, Built and RolledOut, not Degraded, the last
        refresh answered, the routing table confirmed, and one rollout, or as many as are kept."""

        def look() -> Manifest | None:
            resource = self.resource(dataset)
            for kind, wanted in {"Ready": "True", "Built": "True", "RolledOut": "True", "Degraded": "False"}.items():
                found = _condition(resource, kind)
                assert (found["current"], found["status"]) == (True, wanted), f"{kind}: {found}"
            status: Manifest = resource["status"]
            asked = resource["metadata"].get("annotations", {}).get(REFRESH, "")
            assert status.get("refreshed", "") == asked, f"refreshed: {status.get('refreshed')}, asked: {asked}"
            assert status["table"].get("confirmedAt"), f"table: {status['table']}"
            assert len(status["rollouts"]) == rollouts, f"rollouts: {status['rollouts']}"
            assert generation in (None, status["generation"]), f"generation: {status['generation']}"
            return status

        return until(look, seconds=seconds, what=f"{self.namespace}/{dataset} settled")

    # Lookups

    def url(self, dataset: str) -> str:
        """Return the URL of the dataset's router Service, from inside the cluster."""
        return f"http://{dataset}-router.{self.namespace}.svc"

    def lookup(self, dataset: str, keys: Sequence[str], *, batch: int = 0, generation: str = "") -> list[Answer]:
        """Look up keys from inside the cluster, one by one or ``batch`` at a time. Return the answers in order.
        ``generation`` insists on that one."""
        self.wait_client()
        asked = json.dumps({"keys": list(keys), "batch": batch, "generation": generation})
        command = ["python", "/inside/ask.py", self.url(dataset)]
        answers = json.loads(run_in(pods.CLIENT, self.namespace, *command, stdin=asked))["answers"]
        return [Answer(*answer) for answer in answers]

    def check_version(self, dataset: str, keys: Sequence[str], version: str) -> None:
        """Assert that every key has this version and no other, if ``source()`` made the dataset's source."""
        found = self.lookup(dataset, keys, batch=100)
        late = {(answer.status, answer.value) for answer in found if answer.status not in (200, 404)}
        versions = {
            answer.value["version"] if answer.value else "404" for answer in found if answer.status in (200, 404)
        }
        where = f"{self.namespace}/{dataset}"
        wrong_answers.check(versions <= {version}, where, f"answered {versions}, expected {version}")
        assert not late, f"{where}: some keys are answered {late}"

    def load(self, dataset: str, keys: list[str], *, name: str = "e2e-load", **settings: float) -> Load:
        """Return load on the dataset's router, for ``with``. See ``load.Load``."""
        return Load(self.namespace, self.url(dataset), keys, name=name, **settings)

    def gentle_load(self, dataset: str, keys: list[str]) -> Load:
        """Return load for scenarios that run side by side: enough to see every change of answers."""
        return self.load(dataset, keys, singles=3, batches=1, per_second=20)

    def wait_client(self) -> None:
        """Wait until the client pod is ready."""
        kubectl(
            "wait",
            f"pod/{pods.CLIENT}",
            "--namespace",
            self.namespace,
            "--for=condition=Ready",
            "--timeout=60s",
            timeout=70,
        )

    def client_run(self, *command: str, stdin: str | None = None) -> str:
        """Return the standard output of a command in the client pod, which has Python."""
        self.wait_client()
        return run_in(pods.CLIENT, self.namespace, *command, stdin=stdin)


def _condition(resource: Manifest, kind: str) -> Manifest:
    conditions = resource.get("status", {}).get("conditions", [])
    found = [condition for condition in conditions if condition["type"] == kind]
    assert found, f"no condition {kind}: status is {str(resource.get('status'))[:300]}"
    current = found[0].get("observedGeneration", 0) == resource["metadata"]["generation"]
    return {**found[0], "current": current}
