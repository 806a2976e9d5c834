"""Access to parts of the store, by path segments.

A namespace owns ``<cluster id>/<namespace>/…``. Announcements there (``active.json`` of a dataset) say what the
cluster's routers confirmed, so the namespace only reads them. The announcer, the operator's service account, may write
them in all namespaces, and access nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lookupdb.account_tokens import Caller
from lookupdb.store.announcement import ANNOUNCEMENT_NOTE
from lookupdb.store.gateway_wire import is_object_path
from lookupdb.store.layout import StoreAddress

_ANNOUNCEMENT_SEGMENTS: Final = 4


@dataclass(frozen=True, slots=True)
class Access:
    """The permissions of callers in ``cluster``'s part of the store."""

    cluster: str
    announcer: Caller | None = None

    def may_read(self, path: str, caller: Caller) -> bool:
        """Return whether ``caller`` may read the object ``path``."""
        if caller == self.announcer:
            return self.is_announcement(path)
        return owns_object(path, self.cluster, caller.namespace)

    def may_write(self, path: str, caller: Caller) -> bool:
        """Return whether ``caller`` may put, replace or delete the object ``path``."""
        if caller == self.announcer:
            return self.is_announcement(path)
        return owns_object(path, self.cluster, caller.namespace) and not self.is_announcement(path)

    def may_list(self, path: str, caller: Caller, *, folders_only: bool) -> bool:
        """Return whether ``caller`` may list the folder ``path``; of the cluster's folder it sees only its own
        namespace."""
        if caller == self.announcer:
            return False
        return (folders_only and path == self.cluster) or owns_folder(path, self.cluster, caller.namespace)

    def explain_refusal(self, path: str, caller: Caller) -> str:
        """Return why ``caller`` may not access ``path``."""
        if caller == self.announcer:
            return f"{path} is not what is announced of a dataset, and nothing else is the announcer's"
        if owns_folder(path, self.cluster, caller.namespace) and self.is_announcement(path):
            return f"{path} says what routers have confirmed: the operator alone writes it"
        return f"{path} is not in {self.cluster}/{caller.namespace}/"

    def is_announcement(self, path: str) -> bool:
        """Return whether ``path`` is the announcement of a dataset of this cluster."""
        segments = path.split("/")
        if not is_object_path(path) or len(segments) != _ANNOUNCEMENT_SEGMENTS:
            return False
        cluster, namespace, folder, name = segments
        is_named = cluster == self.cluster and name == ANNOUNCEMENT_NOTE
        return is_named and StoreAddress.parse(cluster, namespace, folder) is not None


def owns_object(path: str, cluster: str, namespace: str) -> bool:
    """Return whether ``path`` is an object in the folder of ``namespace``."""
    segments = path.split("/")
    return is_object_path(path) and len(segments) > 2 and segments[:2] == [cluster, namespace]


def owns_folder(path: str, cluster: str, namespace: str) -> bool:
    """Return whether ``path`` is the folder of ``namespace``, or inside it."""
    return is_object_path(path) and path.split("/")[:2] == [cluster, namespace]
