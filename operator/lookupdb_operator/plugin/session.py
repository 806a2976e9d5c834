"""Requests to one API server in a person's name: the only I/O of the plugin."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from kubernetes.aio import config

from lookupdb.errors import LookupdbError
from lookupdb_operator import kinds, names
from lookupdb_operator.api.client import MERGE_PATCH, Answer, Api, NotFound, Refused, Unreachable
from lookupdb_operator.parse import parse_pod
from lookupdb_operator.plugin import port_forward
from lookupdb_operator.plugin.dataset import Dataset, DatasetPods

_IN_CLUSTER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT_KUBECONFIG: Final = "~/.kube/config"
_SHOWN_CONTEXTS: Final = 20
_A_PAGE: Final = 500
_LOG_SILENCE: Final = 600.0
"""Seconds after which a log that is followed is given up."""
_PROXY_PATIENCE: Final = 4.0
"""Seconds. A packet that a NetworkPolicy drops is not answered, and the API server waits for half a minute."""


Ask = Callable[[str, str | None], Awaitable[Answer]]
"""What a router answers to a key, of a generation."""


def _insist(generation: str | None) -> dict[str, str]:
    return {"Lookupdb-Generation": generation} if generation else {}


class NoSuchDataset(LookupdbError):
    """There is no dataset of that name."""


class NoCredentials(LookupdbError):
    """There is no kubeconfig, or it has no such context."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster, and which namespace of it."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    """That of the context when None."""

    def render_kubectl(self, namespace: str) -> list[str]:
        """kubectl, with the options that name this cluster and ``namespace``."""
        options = {"--kubeconfig": self.kubeconfig, "--context": self.context, "--namespace": namespace}
        return ["kubectl", *(word for name, value in options.items() if value is not None for word in (name, value))]


@asynccontextmanager
async def open_session(target: Target) -> AsyncIterator[ClusterSession]:
    """A session with the API server of ``target``. Raises Unreachable when there are no credentials for it,
    NoCredentials when its kubeconfig is not there or has no such context."""
    _check_kubeconfig(target)
    api = await Api.connect(target.kubeconfig, target.context)
    try:
        yield ClusterSession(api, target.namespace or find_namespace(target), target)
    finally:
        await api.close()


def _check_kubeconfig(target: Target) -> None:
    """Raises NoCredentials for a missing file, and a missing context, of which the library speaks in its own words."""
    if target.kubeconfig is None and target.context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return  # in a pod, with its service account
    paths = target.kubeconfig or os.environ.get("KUBECONFIG") or _DEFAULT_KUBECONFIG
    if not any(Path(path).expanduser().exists() for path in paths.split(os.pathsep) if path):
        raise NoCredentials(f"there is no kubeconfig {paths}", hint="name one with --kubeconfig or KUBECONFIG")
    if target.context is None:
        return
    try:
        contexts, _ = config.list_kube_config_contexts(target.kubeconfig)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError):
        return  # connecting says what is wrong with it
    found = [str(context["name"]) for context in contexts]
    if target.context not in found:
        raise NoCredentials(
            f"the kubeconfig {paths} has no context {target.context}",
            hint=f"it has {', '.join(found[:_SHOWN_CONTEXTS])}{' …' if len(found) > _SHOWN_CONTEXTS else ''}",
        )


def find_namespace(target: Target) -> str:
    """The namespace of the context, or of the pod that this runs in; ``default`` when neither says."""
    try:
        contexts, active = config.list_kube_config_contexts(target.kubeconfig)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError):
        return _IN_CLUSTER.read_text(encoding="utf-8").strip() if _IN_CLUSTER.exists() else "default"
    if target.context is not None:
        active = next((context for context in contexts if context["name"] == target.context), {})
    return str((active.get("context") or {}).get("namespace") or "default")


class ClusterSession:
    """One API server, and the namespace that names are of."""

    def __init__(self, api: Api, namespace: str, target: Target) -> None:
        self._api = api
        self.namespace = namespace
        self._target = target
        self._unproxied: set[str] = set()
        """Pods whose admin port the API server's proxy does not reach."""

    async def get_dataset(self, name: str) -> Dataset:
        """The dataset ``name``. Raises NoSuchDataset."""
        path = kinds.DATASET.path(self.namespace, name)
        try:
            return Dataset.from_body(await self._api.request("GET", path, subject=f"LookupDataset {name}"))
        except NotFound as error:
            raise NoSuchDataset(
                f"there is no LookupDataset {name} in namespace {self.namespace}",
                hint="kubectl lookupdb status -A lists all; -n names another namespace",
            ) from error

    async def list_datasets(self, *, everywhere: bool = False) -> tuple[Dataset, ...]:
        """The datasets of the namespace, or of all, by name."""
        path = kinds.DATASET.path("" if everywhere else self.namespace)
        bodies = await self._list(path, "LookupDatasets", {})
        return tuple(sorted(map(Dataset.from_body, bodies), key=lambda dataset: (dataset.namespace, dataset.name)))

    async def with_pods(self, dataset: Dataset) -> DatasetPods:
        """``dataset`` with its pods, or with why they cannot be listed: who may see datasets need not see pods."""
        try:
            return DatasetPods(dataset, tuple(parse_pod(body) for body in await self.list_pods(dataset)))
        except Refused as error:
            return DatasetPods(dataset, problem=error.message)

    async def list_pods(self, dataset: Dataset, **labels: str) -> list[Mapping[str, Any]]:
        """The pods of ``dataset`` as the API server has them, those that began first first."""
        selector = {names.DATASET: dataset.name, names.DATASET_UID: dataset.uid} | labels
        query = {"labelSelector": ",".join(f"{name}={value}" for name, value in selector.items())}
        bodies = await self._list(kinds.POD.path(dataset.namespace), f"the pods of {dataset.key}", query)
        return sorted(
            bodies, key=lambda body: (body["metadata"].get("creationTimestamp") or "", body["metadata"]["name"])
        )

    async def patch_dataset(self, dataset: Dataset, change: Mapping[str, Any]) -> Dataset:
        """``dataset`` after ``change``, a merge patch, in a write that fails when it is another one by now."""
        body = {**change, "metadata": {"uid": dataset.uid, **change.get("metadata", {})}}
        answer = await self._api.request(
            "PATCH",
            kinds.DATASET.path(dataset.namespace, dataset.name),
            subject=f"LookupDataset {dataset.name}",
            query={"fieldManager": "kubectl-lookupdb"},
            body=body,
            content_type=MERGE_PATCH,
        )
        return Dataset.from_body(answer)

    @asynccontextmanager
    async def open_router(self, dataset: Dataset, token: str | None) -> AsyncIterator[Ask]:
        """What asks a router of ``dataset`` for a key, of a generation or of the active one.

        Without ``token`` through the API server's proxy of their Service. That keeps the header with a token to itself,
        so with one it is ``kubectl port-forward`` to the first router that is ready. Raises Unreachable.
        """
        if token is None:
            yield lambda key, generation: self._look_up(dataset, key, generation)
            return
        pods = [parse_pod(body) for body in await self.list_pods(dataset, **{names.COMPONENT: names.ROUTER})]
        ready = [pod.name for pod in pods if pod.ready and not pod.deleting]
        if not ready:
            raise Unreachable(f"a router of {dataset.key}", "none is ready")
        kubectl = self._target.render_kubectl(dataset.namespace)
        opened = port_forward.open_port(kubectl, ready[0], names.ROUTER_PORT, is_encrypted=dataset.speaks_tls)
        async with opened as port:
            yield lambda key, generation: port.get(
                "/v1/lookup", {"key": key}, {**_insist(generation), "Authorization": f"Bearer {token}"}
            )

    async def _look_up(self, dataset: Dataset, key: str, generation: str | None) -> Answer:
        service = quote(names.router(dataset.name), safe="")
        scheme = "https:" if dataset.speaks_tls else ""  # the API server's proxy does not verify the certificate
        path = f"{kinds.SERVICE.path(dataset.namespace)}/{scheme}{service}:http/proxy/v1/lookup"
        subject = f"a router of {dataset.key}"
        return await self._api.fetch(path, subject=subject, query={"key": key}, headers=_insist(generation))

    async def read_metrics(self, namespace: str, pod: str) -> str:
        """The metrics of a pod's admin port, through the API server's proxy, or where that does not reach it through
        kubectl port-forward."""
        path = f"{kinds.POD.path(namespace)}/{quote(pod, safe='')}:{names.ADMIN_PORT}/proxy/metrics"
        if pod not in self._unproxied:
            with contextlib.suppress(Unreachable, TimeoutError):
                async with asyncio.timeout(_PROXY_PATIENCE):
                    return await self._read_text(path, f"the admin port of pod {pod}", {})
            self._unproxied.add(pod)
        return await port_forward.read_through(
            self._target.render_kubectl(namespace), pod, names.ADMIN_PORT, "/metrics"
        )

    async def list_shard_sets(self, dataset: Dataset) -> list[Mapping[str, Any]]:
        """The StatefulSets of ``dataset``, those that were made first first."""
        selector = f"{names.DATASET}={dataset.name},{names.DATASET_UID}={dataset.uid}"
        path = kinds.STATEFUL_SET.path(dataset.namespace)
        bodies = await self._list(path, f"the StatefulSets of {dataset.key}", {"labelSelector": selector})
        return sorted(bodies, key=lambda body: body["metadata"].get("creationTimestamp") or "")

    async def create_job(self, namespace: str, job: Mapping[str, Any]) -> None:
        """Create ``job``."""
        subject = f"Job {job['metadata']['name']}"
        await self._api.request("POST", kinds.JOB.path(namespace), subject=subject, body=job)

    async def get_job(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The Job as the API server has it; None when it is gone."""
        try:
            job: Mapping[str, Any] = await self._api.request(
                "GET", kinds.JOB.path(namespace, name), subject=f"Job {name}"
            )
        except NotFound:
            return None
        return job

    async def delete_job(self, namespace: str, name: str) -> None:
        """Delete the Job and its pod; one that is gone already is no error."""
        with contextlib.suppress(NotFound):
            query = {"propagationPolicy": "Background"}
            await self._api.request("DELETE", kinds.JOB.path(namespace, name), subject=f"Job {name}", query=query)

    async def list_pods_of_job(self, namespace: str, name: str) -> list[Mapping[str, Any]]:
        """The pods of a Job."""
        query = {"labelSelector": f"batch.kubernetes.io/job-name={name}"}
        return await self._list(kinds.POD.path(namespace), f"the pods of Job {name}", query)

    async def list_warnings(self, namespace: str, kind: str, name: str) -> list[Mapping[str, Any]]:
        """Warning events about an object; none for who may not list events."""
        query = {"fieldSelector": f"type=Warning,involvedObject.kind={kind},involvedObject.name={name}"}
        with contextlib.suppress(Refused):
            return await self._list(kinds.EVENT.path(namespace), f"events about {kind} {name}", query)
        return []

    async def read_log(self, namespace: str, pod: str, container: str, lines: int) -> str:
        """The last lines that a container has written."""
        query = {"container": container, "tailLines": str(lines)}
        return await self._read_text(kinds.POD.path(namespace, pod, "log"), f"the log of pod {pod}", query)

    async def follow_log(self, namespace: str, pod: str, container: str) -> AsyncIterator[str]:
        """The lines that a container writes, as they come, until it ends."""
        query = {"container": container, "follow": "true"}
        path = kinds.POD.path(namespace, pod, "log")
        lines = self._api.stream(
            path, subject=f"the log of pod {pod}", query=query, accept="*/*", silence_at_most=_LOG_SILENCE
        )
        async with contextlib.aclosing(lines):
            async for batch in lines:
                for line in batch:
                    yield line.decode(errors="replace")

    async def _read_text(self, path: str, subject: str, query: Mapping[str, str]) -> str:
        answer = await self._api.fetch(path, subject=subject, query=query)
        if answer.status >= 300:
            raise answer.make_error(subject)
        return answer.body.decode(errors="replace")

    async def _list(self, path: str, subject: str, query: Mapping[str, str]) -> list[Mapping[str, Any]]:
        bodies: list[Mapping[str, Any]] = []
        page: Mapping[str, Any] = {}
        while True:
            more = (page.get("metadata") or {}).get("continue")
            if page and not more:
                return bodies
            asked = {**query, "limit": str(_A_PAGE)} | ({"continue": more} if more else {})
            page = await self._api.request("GET", path, subject=subject, query=asked)
            bodies += page.get("items") or ()
