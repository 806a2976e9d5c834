"""The installation under test: its operator's pod and metrics, its gateway."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Final

from e2e.support.kubectl import Manifest, delete, find, get, kubectl, ready_pod, run_in, until

RELEASE: Final = os.environ.get("E2E_RELEASE", "lookupdb")
NAMESPACE: Final = os.environ.get("E2E_NAMESPACE", "lookupdb")
OPERATOR: Final = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=operator"
GATEWAY: Final = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=gateway"
CONSOLE: Final = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=console"
AUDIENCE: Final = f"lookupdb-store:{NAMESPACE}/{RELEASE}"
"""The audience of tokens for its gateway."""

_METRICS: Final = (
    "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8081/metrics', timeout=10).read().decode())"
)


def operator_deployment() -> str:
    """Return the name of the operator's Deployment."""
    (deployment,) = find("deployments", NAMESPACE, OPERATOR)
    return str(deployment["metadata"]["name"])


def operator_pod() -> Manifest:
    """Wait until the operator's only pod is ready, and return it."""
    return ready_pod(NAMESPACE, OPERATOR, "the operator")


def restart_operator() -> None:
    """Delete the operator's pod, and wait until the next one is ready."""
    old = operator_pod()["metadata"]["name"]
    kubectl("delete", "pod", old, "--namespace", NAMESPACE, timeout=180)
    assert operator_pod()["metadata"]["name"] != old


def scale_operator(replicas: int) -> None:
    """Scale the operator to 0 or 1, and wait for it."""
    name = operator_deployment()
    kubectl("scale", "deployment", name, "--namespace", NAMESPACE, f"--replicas={replicas}")
    if replicas:
        operator_pod()
    else:
        until(lambda: not find("pods", NAMESPACE, OPERATOR), seconds=120, what="the operator's pod gone")


def replace_shard_key() -> None:
    """Delete the key of all shard servers' passwords, and wait for another one. Restarting the operator avoids a wait
    for its next resync."""
    name = f"{operator_deployment()}-shard-key"
    before = get("secret", name, NAMESPACE)["metadata"]["uid"]
    delete("secret", name, NAMESPACE)
    restart_operator()
    until(lambda: get("secret", name, NAMESPACE)["metadata"]["uid"] != before, seconds=60, what="another key")


def gateway_url() -> str:
    """Return the URL of the store for pods."""
    (service,) = find("services", NAMESPACE, GATEWAY)
    (port,) = service["spec"]["ports"]
    return f"http://{service['metadata']['name']}.{NAMESPACE}.svc:{port['port']}"


def restart_gateway() -> None:
    """Replace the gateway's pods, and wait until the old ones are gone. New pods have the current Secret at once;
    running ones may get it a minute later."""
    (deployment,) = find("deployments", NAMESPACE, GATEWAY)
    name = f"deployment/{deployment['metadata']['name']}"
    before = {pod["metadata"]["uid"] for pod in find("pods", NAMESPACE, GATEWAY)}
    kubectl("rollout", "restart", name, "--namespace", NAMESPACE)
    kubectl("rollout", "status", name, "--namespace", NAMESPACE, "--timeout=180s", timeout=200)
    until(
        lambda: not before & {pod["metadata"]["uid"] for pod in find("pods", NAMESPACE, GATEWAY)},
        seconds=120,
        what="the gateway's pods of before gone",
    )


@contextlib.contextmanager
def stopped_gateway() -> Iterator[None]:
    """Stop the gateway while the block runs, and wait until it is ready again."""
    (deployment,) = find("deployments", NAMESPACE, GATEWAY)
    name, replicas = f"deployment/{deployment['metadata']['name']}", deployment["spec"]["replicas"]
    kubectl("scale", name, "--namespace", NAMESPACE, "--replicas=0")
    try:
        yield
    finally:
        kubectl("scale", name, "--namespace", NAMESPACE, f"--replicas={replicas}")
        kubectl("rollout", "status", name, "--namespace", NAMESPACE, "--timeout=180s", timeout=200)


def operator_total(name: str) -> float:
    """Return the sum of an operator's metric over all labels."""
    text = run_in(operator_pod()["metadata"]["name"], NAMESPACE, "python", "-c", _METRICS)
    samples: list[tuple[str, str]] = re.findall(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)", text, re.MULTILINE)
    return sum(float(value) for sample, value in samples if sample == name)
