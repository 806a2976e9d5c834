"""Namespaces that enforce the restricted pod security standard, and pods that they rejected."""

from __future__ import annotations

from typing import Final

from e2e.support.kubectl import find

LABELS: Final = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
"""The labels of a namespace that enforces it."""


def find_refusals(namespace: str) -> list[str]:
    """Return the API server's messages about rejected pods."""
    return [event["message"] for event in find("events", namespace) if "PodSecurity" in event.get("message", "")]
