"""Which part of the store is a namespace's: ``<cluster id>/<namespace>/…``, compared segment by segment."""

from __future__ import annotations

from lookupdb.store.gateway_wire import is_object_path


def owns_object(path: str, cluster: str, namespace: str) -> bool:
    """Whether ``path`` names an object of ``namespace``, below its folder."""
    segments = path.split("/")
    return is_object_path(path) and len(segments) > 2 and segments[:2] == [cluster, namespace]


def owns_folder(path: str, cluster: str, namespace: str) -> bool:
    """Whether ``path`` is the folder of ``namespace``, or lies in it."""
    return is_object_path(path) and path.split("/")[:2] == [cluster, namespace]
