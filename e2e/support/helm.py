"""helm as functions, for the release under test and for others of the chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from e2e.support import release
from e2e.support.command import run
from e2e.support.kubectl import get

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "charts" / "lookupdb"
_TOOLS: Final = ROOT / ".tools" / "bin"


def helm(*arguments: str, stdin: str | None = None, timeout: float = 400, namespace: str = release.NAMESPACE) -> str:
    """Return the standard output of ``helm ARGUMENTS``. Raises CommandFailed."""
    own = _TOOLS / "helm"
    command = [str(own) if own.exists() else "helm", *arguments, "--namespace", namespace]
    return run(command, stdin=stdin, timeout=timeout)


def values() -> dict[str, Any]:
    """Return the values that the release was installed with, without defaults."""
    held: dict[str, Any] | None = json.loads(helm("get", "values", release.RELEASE, "--output", "json"))
    return held or {}


def cluster_id() -> str:
    """Return the name of the release's part of the store."""
    return str(values().get("clusterId") or get("namespace", "kube-system")["metadata"]["uid"])


def install(name: str, namespace: str, chosen: dict[str, Any]) -> None:
    """Install another release in an existing namespace, and wait until it runs."""
    flags = ("--values", "-", "--wait", "--timeout", "5m")
    helm("install", name, str(CHART), *flags, stdin=json.dumps(chosen), namespace=namespace)


def upgrade(chosen: dict[str, Any]) -> None:
    """Upgrade to the chart in this repository with these values, and wait until it runs."""
    document = json.dumps(chosen)
    flags = ("--reset-values", "--values", "-", "--wait", "--timeout", "5m")
    helm("upgrade", release.RELEASE, str(CHART), *flags, stdin=document)
