"""The datasets of a cluster for the console: watched, with their pods; metrics and lookups by HTTP.

``ClusterSource`` has all of them, with the rights of the console's service account, which only reads. ``VisitorSource``
has what one visitor may see, and looks up with the visitor's own token.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.cluster.cache import Key
from lookupdb_operator.cluster.client import Api
from lookupdb_operator.cluster.informers import LISTS_AT_ONCE, Reflector
from lookupdb_operator.cluster.parse import Header, parse_header
from lookupdb_operator.cluster.workloads import parse_pod
from lookupdb_operator.console.access import Visitor, read_accounts
from lookupdb_operator.console.answers import Lookup, UnavailableKey
from lookupdb_operator.console.dataset import Dataset, DatasetPods
from lookupdb_operator.console.source import Difference, Elsewhere, PodClient, render_get
from lookupdb_operator.model import Pod
from lookupdb_operator.names import Kind

_KINDS: Final = (names.DATASET_KIND, names.POD)
_SHARED_TEXTS: Final = ("namespace", "dataset", "dataset_uid", "component", "rollout", "generation", "phase")

R = TypeVar("R", Header, Pod)


class ClusterSource:
    """All datasets that the console's service account may list, as the API server last reported them."""

    def __init__(self, api: Api, namespaces: tuple[str, ...] = (), ca_file: str | None = None) -> None:
        """Watch ``namespaces``, or all. ``ca_file`` has the authorities of routers' certificates. Raises OSError or
        ssl.SSLError if it cannot be read."""
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._client = PodClient(self._tls)
        self._datasets: dict[Key, Dataset] = {}
        self._pods: dict[Key, dict[str, tuple[Header, Pod]]] = {}
        """By dataset, and by uid."""
        self._headers: dict[str, dict[str, Header]] = {kind.name: {} for kind in _KINDS}
        """By kind and uid."""
        self._views: dict[Key, DatasetPods] = {}
        self._sorted: tuple[DatasetPods, ...] | None = None
        self._audiences: dict[str, set[str]] = {}
        turns = asyncio.Semaphore(LISTS_AT_ONCE)
        self._reflectors = [
            Reflector(api, kind, namespace, "" if kind == names.DATASET_KIND else names.DATASET, self, turns)
            for kind in _KINDS
            for namespace in namespaces or ("",)
        ]

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name=f"reflector of {reflector.kind.plural}")

    async def close(self) -> None:
        """Close the connections to pods."""
        await self._client.close()

    @property
    def is_synced(self) -> bool:
        """Whether everything was listed once."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    # Called by reflectors.

    def on_changed(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Keep what the console shows of ``body``."""
        header = _slim(parse_header(body), owner_kind="", owner_name="", owner_uid="", resource_version="")
        if kind == names.DATASET_KIND:
            metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
            key = (header.namespace, header.name)
            self._datasets[key] = Dataset.from_body({**body, "metadata": metadata})
        else:
            before = self._headers[kind.name].get(header.uid)
            if before is not None and before.dataset != header.dataset:
                self._drop(kind, before)
            key = (header.namespace, header.dataset)
            self._pods.setdefault(key, {})[header.uid] = (header, _slim(parse_pod(body)))
        self._headers[kind.name][header.uid] = header
        self._forget_view(key)

    def on_deleted(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Forget a deleted object."""
        if header := self._headers[kind.name].get(body["metadata"]["uid"]):
            self._drop(kind, header)

    def known_headers(self, kind: Kind, namespace: str) -> Mapping[str, Header]:
        """Return the headers of known objects of ``kind`` in ``namespace`` (empty: anywhere), by uid."""
        headers = self._headers[kind.name]
        return {uid: header for uid, header in headers.items() if namespace in ("", header.namespace)}

    def on_unlisted(self, kind: Kind, headers: Collection[Header]) -> None:
        """Forget known objects that a list no longer has."""
        for header in headers:
            self._drop(kind, header)

    def _drop(self, kind: Kind, header: Header) -> None:
        self._headers[kind.name].pop(header.uid, None)
        if kind == names.DATASET_KIND:
            key = (header.namespace, header.name)
            if (found := self._datasets.get(key)) is not None and found.uid == header.uid:
                del self._datasets[key]  # else another dataset has taken its name
        else:
            key = (header.namespace, header.dataset)
            pods = self._pods.get(key, {})
            pods.pop(header.uid, None)
            if not pods:
                self._pods.pop(key, None)
        self._forget_view(key)

    def _forget_view(self, key: Key) -> None:
        self._views.pop(key, None)
        self._sorted = None

    # The protocol of ``ConsoleSource``.

    def list_datasets(self) -> Sequence[DatasetPods]:
        """Return all datasets with their pods, by namespace and name."""
        if self._sorted is None:
            self._sorted = tuple(self._view(key) for key in sorted(self._datasets))
            self._audiences = {}
            for key, dataset in self._datasets.items():
                if audience := read_accounts(dataset.spec).get("audience"):
                    self._audiences.setdefault(audience, set()).add(key[0])
        return self._sorted

    def find_dataset(self, namespace: str, name: str) -> DatasetPods | None:
        """Return one dataset with its pods; None if there is none."""
        return self._view((namespace, name)) if (namespace, name) in self._datasets else None

    def _view(self, key: Key) -> DatasetPods:
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = DatasetPods(self._datasets[key], tuple(self._find_pods(key)))
        return view

    def _find_pods(self, key: Key) -> Iterator[Pod]:
        """Yield the pods of a dataset, oldest first, without those of an earlier one of its name."""
        uid = self._datasets[key].uid
        found = [both for both in self._pods.get(key, {}).values() if both[0].dataset_uid == uid]
        for _, pod in sorted(found, key=lambda both: (both[0].created, both[0].name)):
            yield pod

    @property
    def audiences(self) -> Mapping[str, Collection[str]]:
        """The audiences of lookups' tokens, with the namespaces of the datasets that have them."""
        self.list_datasets()
        return self._audiences

    async def read_metrics(self, dataset: Dataset, pod: Pod) -> str:
        """Return the metrics of the admin port of ``pod``. Raises LookupdbError."""
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        if not host:
            raise LookupdbError(f"pod {pod.name} has no address yet")
        return await self._client.read_metrics(f"{host}:{names.ADMIN_PORT}")

    async def look_up(self, dataset: Dataset, key: str, generation: str | None, token: str = "") -> Lookup | Elsewhere:
        """Return the answer of a router of ``dataset``, which is sent ``token`` unless that is empty."""
        router = dataset.spec.get("router") or {}
        port = (router.get("service") or {}).get("port", names.HTTP_PORT)
        url = names.endpoint(dataset.name, dataset.namespace, port, is_encrypted=dataset.speaks_tls)
        try:
            found = await self._client.look_up(f"{url}/v1/lookup", key, generation, token)
        except LookupdbError as error:
            return UnavailableKey(key, f"{error.message}. If spec.router.clients is set, it must list the console")
        return Elsewhere(found, render_get(dataset, key, generation)) if isinstance(found, str) else found

    async def compare(self, dataset: Dataset, before: str, after: str) -> Difference | Elsewhere:
        """Return the command, because the console may not create Jobs, nor read the store."""
        return Elsewhere("A Job compares generations in the cluster.", dataset.command("diff", before, after))


def _slim(record: R, **unused: str) -> R:
    """Return a header or pod without ``unused`` members. Thousands of pods share the texts of their labels."""
    texts = {name: sys.intern(getattr(record, name)) for name in _SHARED_TEXTS if hasattr(record, name)}
    members: dict[str, Any] = texts | unused
    return replace(record, **members)


class VisitorSource:
    """What a visitor may see of a cluster."""

    def __init__(self, source: ClusterSource, visitor: Visitor, audience: str) -> None:
        """``audience`` is that of the console's own tokens."""
        self._source = source
        self._visitor = visitor
        self._audience = audience

    def _sees(self, dataset: Dataset) -> bool:
        return self._visitor.sees(dataset.namespace, dataset.spec, self._audience)

    def list_datasets(self) -> Sequence[DatasetPods]:
        """Return the visible datasets with their pods, by namespace and name."""
        return [view for view in self._source.list_datasets() if self._sees(view.dataset)]

    def find_dataset(self, namespace: str, name: str) -> DatasetPods | None:
        """Return one dataset with its pods; None if there is none, or an invisible one."""
        view = self._source.find_dataset(namespace, name)
        return view if view is not None and self._sees(view.dataset) else None

    async def read_metrics(self, dataset: Dataset, pod: Pod) -> str:
        """Return the metrics of ``pod``. Raises LookupdbError."""
        return await self._source.read_metrics(dataset, pod)

    async def look_up(self, dataset: Dataset, key: str, generation: str | None) -> Lookup | Elsewhere:
        """Look ``key`` up, with the visitor's token if the routers ask for one, and if it is theirs."""
        if not dataset.asks_for_token:
            return await self._source.look_up(dataset, key, generation)
        if why := self._explain_no_token(dataset):
            return Elsewhere(why, render_get(dataset, key, generation))
        return await self._source.look_up(dataset, key, generation, self._visitor.token)

    def _explain_no_token(self, dataset: Dataset) -> str:
        """Return why the visitor's token must not be sent to routers of ``dataset``; empty if it may. Whoever creates
        pods beside a router can read what it receives, so the console's own tokens never leave it, and no other goes to
        a namespace that it may not be meant for."""
        wanted = read_accounts(dataset.spec).get("audience")
        if wanted is None:
            return "Lookups in this dataset need a token of its Secret, which the console cannot verify."
        if self._visitor.audience != wanted or wanted == self._audience:
            return f"Lookups in this dataset need a token for {wanted}. Log in with one to look up here."
        if set(self._source.audiences.get(wanted, ())) != {dataset.namespace}:
            return f"Datasets of several namespaces have the audience {wanted}, so no token for it is passed on."
        return ""

    async def compare(self, dataset: Dataset, before: str, after: str) -> Difference | Elsewhere:
        """Return the command that compares two generations."""
        return await self._source.compare(dataset, before, after)
