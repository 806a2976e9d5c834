"""A StatefulSet with an image volume that nobody ever makes: whether an API server keeps such a volume shows in what it
answers to a dry run. Where the feature is off it takes the volume away without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.model import Manifest

_NAME: Final = "lookupdb-image-probe"
_IMAGE: Final = "registry.invalid/lookupdb:probe"


def render_image_probe(namespace: str) -> Manifest:
    """The StatefulSet, of no pods, in restricted pod security."""
    labels = {names.APP: _NAME}
    container = {
        "name": "probe",
        "image": _IMAGE,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": names.DATA_VOLUME, "mountPath": names.DATA_PATH, "readOnly": True}],
    }
    pod = {
        "containers": [container],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": names.DATA_VOLUME, "image": {"reference": _IMAGE, "pullPolicy": "IfNotPresent"}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"namespace": namespace, "name": _NAME, "labels": labels},
        "spec": {
            "replicas": 0,
            "serviceName": _NAME,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def has_image_volume(stateful_set: Mapping[str, Any]) -> bool:
    """Whether the pods of ``stateful_set`` would have an image volume."""
    template = ((stateful_set.get("spec") or {}).get("template") or {}).get("spec") or {}
    return any(volume.get("image") for volume in template.get("volumes") or ())
