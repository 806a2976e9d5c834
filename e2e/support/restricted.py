"""Namespaces that enforce the restricted pod security standard, and what they refused."""

from __future__ import annotations

from typing import Final

from e2e.support.kubectl import find

LABELS: Final = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
"""Of a namespace that enforces it."""


def refused(namespace: str) -> list[str]:
    """What pods could not be made for, in the API server's words."""
    return [event["message"] for event in find("events", namespace) if "PodSecurity" in event.get("message", "")]
