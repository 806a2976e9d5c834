"""Who may look up: what routers judge clients by, as ``spec.router.auth`` says."""

from __future__ import annotations

from typing import Any

from lookupdb_operator import names
from lookupdb_operator.manifests.metadata import render_metadata, stamp
from lookupdb_operator.model import Manifest, ObservedDataset


def uses_service_accounts(dataset: ObservedDataset) -> bool:
    """Whether routers need the cluster's keys."""
    return "serviceAccounts" in _read_auth(dataset)


def render_router_keys(dataset: ObservedDataset, keys: str) -> Manifest:
    """The cluster's public keys, a JWKS, where the dataset's routers read them."""
    return stamp(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": render_metadata(dataset, names.router_keys(dataset.name), names.ROUTER),
            "data": {names.KEYS_FILE: keys},
        }
    )


def render_auth_options(dataset: ObservedDataset) -> list[str]:
    """What routers are told on their command line."""
    auth = _read_auth(dataset)
    options: list[str] = []
    if "tokens" in auth:
        options += ["--auth-tokens", names.TOKENS_PATH]
    if accounts := auth.get("serviceAccounts"):
        options += ["--auth-keys", f"{names.KEYS_PATH}/{names.KEYS_FILE}", "--auth-audience", accounts["audience"]]
        options += [word for subject in accounts["subjects"] for word in ("--auth-subject", subject)]
    return options


def render_auth_volumes(dataset: ObservedDataset) -> list[dict[str, Any]]:
    """Mounted whole, because the kubelet does not update single files; optional, because a router that waits for them
    says so, and one that cannot start does not."""
    auth = _read_auth(dataset)
    volumes: list[dict[str, Any]] = []
    if tokens := auth.get("tokens"):
        volumes.append({"name": "tokens", "secret": {"secretName": tokens["secretName"], "optional": True}})
    if "serviceAccounts" in auth:
        keys = {"name": names.router_keys(dataset.name), "optional": True}
        volumes.append({"name": "keys", "configMap": keys})
    return volumes


def render_auth_mounts(dataset: ObservedDataset) -> list[dict[str, Any]]:
    """Where routers find them."""
    auth = _read_auth(dataset)
    mounts: list[dict[str, Any]] = []
    if "tokens" in auth:
        mounts.append({"name": "tokens", "mountPath": names.TOKENS_PATH, "readOnly": True})
    if "serviceAccounts" in auth:
        mounts.append({"name": "keys", "mountPath": names.KEYS_PATH, "readOnly": True})
    return mounts


def _read_auth(dataset: ObservedDataset) -> dict[str, Any]:
    auth: dict[str, Any] = dataset.spec["router"].get("auth") or {}
    return auth
