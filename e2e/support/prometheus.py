"""A real Prometheus on this machine, for scenarios.

It finds and reads the pods through the API server (``kubectl proxy``), so it needs no image and no rights in the
cluster. What it reads and which rules it evaluates comes from the chart: PodMonitors and PrometheusRule are read as the
Prometheus operator reads them, although the cluster need not know these kinds. If NetworkPolicies are enforced, the API
server must reach admin ports (networkPolicies.monitoring).
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import yaml
from e2e.support import release
from e2e.support.helm import CHART, ROOT, helm, values
from e2e.support.kubectl import Manifest, proxy_address, until

BINARY: Final = ROOT / ".tools" / "bin" / "prometheus"
INTERVAL: Final = "2s"
"""The time between two reads of metrics, and between two evaluations of rules."""
FASTER: Final = 30
"""Every duration of the rules is divided by this: an hour passes in two minutes."""
Labels = Mapping[str, str]
EVERY: Final[Labels] = {}
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_START_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class Series:
    """One element of an instant vector."""

    labels: dict[str, str]
    value: float


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[Series]:
        """Return the instant vector that ``expression`` has now. Raises AssertionError if it is malformed."""
        asked = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                data = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        assert data["resultType"] == "vector", f"{expression} is a {data['resultType']}"
        return [Series(found["metric"], float(found["value"][1])) for found in data["result"]]

    def firing(self, alert: str, labels: Labels) -> list[Series]:
        """Return the alerts of this name that fire, with these labels."""
        chosen = {"alertname": alert, "alertstate": "firing", **labels}
        return self.query("ALERTS{" + ",".join(f'{name}="{value}"' for name, value in chosen.items()) + "}")

    def wait_firing(self, alert: str, labels: Labels = EVERY, *, seconds: float = 180) -> float:
        """Wait until the alert fires, and return the seconds that it took."""
        began = time.monotonic()
        until(lambda: self.firing(alert, labels), seconds=seconds, what=f"{alert} fires for {labels}")
        return time.monotonic() - began

    def wait_cleared(self, alert: str, labels: Labels = EVERY, *, seconds: float = 240) -> None:
        """Wait until the alert no longer fires."""
        until(lambda: not self.firing(alert, labels), seconds=seconds, what=f"{alert} for {labels} cleared")


@contextlib.contextmanager
def running() -> Iterator[Prometheus]:
    """Run Prometheus while the block runs."""
    assert BINARY.exists(), f"{BINARY} is missing: run `make prometheus`"
    monitoring = _render()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        groups = [group for item in monitoring if item["kind"] == "PrometheusRule" for group in item["spec"]["groups"]]
        (home / "rules.yaml").write_text(json.dumps({"groups": shorten(groups, FASTER)}))
        (home / "prometheus.yaml").write_text(json.dumps(configuration(monitoring, proxy_address())))
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        command = [
            str(BINARY),
            f"--config.file={home}/prometheus.yaml",
            f"--storage.tsdb.path={home}/data",
            f"--web.listen-address={address}",
        ]
        with (home / "log").open("w") as log, _process(command, log):
            prometheus = Prometheus(f"http://{address}")
            _wait_scraped(prometheus, home / "log")
            yield prometheus


def shorten(groups: list[Manifest], faster: int) -> list[Manifest]:
    """Return the groups of rules with all their durations divided by ``faster``: ranges in expressions, and ``for``."""

    def shorter(duration: str) -> str:
        parts = re.findall(r"(\d+)([smhd])", duration)
        assert "".join(map("".join, parts)) == duration, duration
        return f"{sum(int(number) * 1000 * _UNITS[unit] for number, unit in parts) // faster}ms"

    def rule(given: Manifest) -> Manifest:
        expression = re.sub(r"\[(\w+)\]", lambda found: f"[{shorter(found[1])}]", given["expr"])
        waits = {"for": shorter(given["for"])} if "for" in given else {}
        return {**given, "expr": expression, **waits}

    return [{**group, "rules": [rule(given) for given in group["rules"]]} for group in groups]


def configuration(monitoring: list[Manifest], proxy: str) -> Manifest:
    """Return Prometheus' configuration that reads what the PodMonitors select, through the API server at ``proxy``
    (host:port)."""
    monitors = [item for item in monitoring if item["kind"] == "PodMonitor"]
    return {
        "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [_scrape(monitor, proxy) for monitor in monitors],
    }


def _scrape(monitor: Manifest, proxy: str) -> Manifest:
    meta, spec = monitor["metadata"], monitor["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    chosen = spec.get("namespaceSelector", {"matchNames": [meta["namespace"]]})
    job = f"{meta['namespace']}/{meta['name']}"
    return {
        "job_name": job,
        "metrics_path": endpoint["path"],
        "honor_labels": endpoint.get("honorLabels", False),
        "kubernetes_sd_configs": [
            {
                "role": "pod",
                "api_server": f"http://{proxy}",
                "namespaces": {"names": chosen.get("matchNames", [])},
                "selectors": [{"role": "pod", "label": _selector(spec["selector"])}],
            }
        ],
        "relabel_configs": [
            {
                "source_labels": ["__meta_kubernetes_pod_container_port_name"],
                "regex": endpoint["port"],
                "action": "keep",
            },
            {"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Failed|Succeeded", "action": "drop"},
            _label("namespace", "__meta_kubernetes_namespace"),
            _label("pod", "__meta_kubernetes_pod_name"),
            _label("container", "__meta_kubernetes_pod_container_name"),
            *(
                _label(name, f"__meta_kubernetes_pod_label_{name}")
                for name in (re.sub(r"\W", "_", label) for label in spec.get("podTargetLabels", []))
            ),
            {
                "source_labels": ["namespace", "pod", "__meta_kubernetes_pod_container_port_number"],
                "regex": "(.+);(.+);(.+)",
                "replacement": f"/api/v1/namespaces/$1/pods/$2:$3/proxy{endpoint['path']}",
                "target_label": "__metrics_path__",
            },
            _label("instance", "pod"),
            {"replacement": proxy, "target_label": "__address__"},
        ],
    }


def _label(name: str, source: str) -> Manifest:
    return {"source_labels": [source], "target_label": name}


def _selector(selector: Manifest) -> str:
    """Return a label selector as ``kubectl --selector`` takes it."""
    parts = [f"{name}={value}" for name, value in selector.get("matchLabels", {}).items()]
    for each in selector.get("matchExpressions", []):
        assert each["operator"] == "In", each
        parts.append(f"{each['key']} in ({','.join(each['values'])})")
    return ",".join(parts)


def _render() -> list[Manifest]:
    """Return PodMonitors and PrometheusRule of the chart, with the values of the release under test."""
    wanted = values() | {"podMonitor": {"enabled": True, "interval": INTERVAL}, "prometheusRule": {"enabled": True}}
    shown = [f"--show-only=templates/monitoring/{name}.yaml" for name in ("podmonitor", "prometheusrule")]
    text = helm("template", release.RELEASE, str(CHART), "--values", "-", *shown, stdin=json.dumps(wanted))
    return [item for item in yaml.safe_load_all(text) if item]


@contextlib.contextmanager
def _process(command: list[str], output: IO[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, text=True)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_scraped(prometheus: Prometheus, log: Path) -> None:
    """Wait until the operator's metrics were read."""

    def look() -> Any:
        try:
            return prometheus.query("lookupdb_operator_info")
        except OSError as error:
            raise AssertionError(f"{error}: {log.read_text()[-2000:]}") from error

    until(look, seconds=_START_SECONDS, what="Prometheus reads the operator's metrics")
