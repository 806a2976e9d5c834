"""Requests to a cluster's API server as the user, and port forwarding."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote

import aiohttp
from kubernetes.aio import config

from lookupdb.errors import LookupdbError
from lookupdb.wording import format_some
from lookupdb_operator import names
from lookupdb_operator.cluster.api import Answer, NotFound, Refused, Requests, Unreachable
from lookupdb_operator.cluster.client import Api
from lookupdb_operator.cluster.workloads import parse_pod
from lookupdb_operator.console.dataset import GENERATION_HEADER, Dataset
from lookupdb_operator.plugin.session import BuildLog, DatasetSession, Target, list_pages

# Access to a pod's port through ``kubectl port-forward``, which ends at the pod's loopback. NetworkPolicies may block
# the API server's proxy, but not this.


_ADDRESS: Final = re.compile(rb"Forwarding from (127\.0\.0\.1:\d+) ")
_PATIENCE: Final = 10.0
_MESSAGE_AT_MOST: Final = 2000


async def read_through(kubectl: Sequence[str], pod: str, port: int, path: str) -> str:
    """Return the answer of ``pod`` to GET ``path`` on ``port``. ``kubectl`` is the program with its options for cluster
    and namespace. Raises Unreachable."""
    async with open_port(kubectl, pod, port) as get:
        answer = await get(path, {}, {})
    if answer.status != 200:
        raise Unreachable(f"port {port} of pod {pod}", f"it answers {answer.status}")
    return answer.body.decode(errors="replace")


PortGet = Callable[[str, Mapping[str, str], Mapping[str, str]], Awaitable[Answer]]
"""Sends GET with a path, a query and headers to a pod, and returns its answer. Raises Unreachable."""


@asynccontextmanager
async def open_port(
    kubectl: Sequence[str], pod: str, port: int, *, is_encrypted: bool = False
) -> AsyncIterator[PortGet]:
    """Open ``port`` of ``pod`` until the block ends. Raises Unreachable. With ``is_encrypted`` it uses TLS without
    verifying the certificate: the API server vouches for the pod."""
    subject = f"port {port} of pod {pod}"
    forwarding = _forward([*kubectl, "port-forward", f"pod/{pod}", f":{port}"])
    async with contextlib.AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(_PATIENCE):
                address = await stack.enter_async_context(forwarding)
        except (OSError, TimeoutError) as error:
            raise Unreachable(subject, f"kubectl port-forward: {str(error) or type(error).__name__}") from error
        http = await stack.enter_async_context(aiohttp.ClientSession())
        url = f"{'https' if is_encrypted else 'http'}://{address}"

        async def get(path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Answer:
            asking = http.get(f"{url}{path}", params=query, headers=headers, allow_redirects=False, ssl=False)
            try:
                async with asyncio.timeout(_PATIENCE), asking as response:
                    return Answer(response.status, response.headers, await response.read())
            except (OSError, TimeoutError, aiohttp.ClientError) as error:
                raise Unreachable(subject, str(error) or type(error).__name__) from error

        yield get


@asynccontextmanager
async def _forward(words: Sequence[str]) -> AsyncIterator[str]:
    """Run the program ``words`` until the block ends, and yield the address on which it listens."""
    process = await asyncio.create_subprocess_exec(*words, "--address", "127.0.0.1", stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async for line in process.stdout:
            if found := _ADDRESS.match(line):
                break
        else:
            said = (await process.stderr.read(_MESSAGE_AT_MOST)).decode(errors="replace")
            raise OSError(said.strip() or "it has ended without a message")
        yield found[1].decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


_IN_CLUSTER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT_KUBECONFIG: Final = "~/.kube/config"
_SHOWN_CONTEXTS: Final = 20
_LOG_SILENCE: Final = 600.0
"""Seconds of silence after which following a log stops."""
_PROXY_PATIENCE: Final = 4.0
"""Seconds. NetworkPolicies drop packets silently, and the API server would wait for half a minute."""


Ask = Callable[[str], Awaitable[Answer]]
"""Asks a router for a key."""


def render_kubectl(target: Target, namespace: str) -> list[str]:
    """Return the kubectl command with options for this cluster and ``namespace``."""
    options = {"--kubeconfig": target.kubeconfig, "--context": target.context, "--namespace": namespace}
    return ["kubectl", *(word for name, value in options.items() if value is not None for word in (name, value))]


@asynccontextmanager
async def open_cluster_session(target: Target) -> AsyncIterator[ClusterSession]:
    """Open a session with the API server of ``target``. Raises Unreachable if there are no credentials for it,
    LookupdbError if its kubeconfig is missing or lacks the context."""
    namespace = _find_namespace(target)
    api = await Api.connect(target.kubeconfig, target.context)
    try:
        yield ClusterSession(api, target.namespace or namespace, target)
    finally:
        await api.close()


def _find_namespace(target: Target) -> str:
    """Return the namespace of the context, or of the pod that this runs in; else ``default``. Raises LookupdbError for
    a missing file or context, with a clearer message than the library's."""
    is_in_pod = target.kubeconfig is None and target.context is None and "KUBERNETES_SERVICE_HOST" in os.environ
    paths = target.kubeconfig or os.environ.get("KUBECONFIG") or _DEFAULT_KUBECONFIG
    if not is_in_pod and not any(Path(path).expanduser().exists() for path in paths.split(os.pathsep) if path):
        raise LookupdbError(f"there is no kubeconfig {paths}", hint="name one with --kubeconfig or KUBECONFIG")
    try:
        contexts, active = config.list_kube_config_contexts(target.kubeconfig)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError):  # connecting will report the problem, unless this runs in a pod
        return _IN_CLUSTER.read_text(encoding="utf-8").strip() if _IN_CLUSTER.exists() else "default"
    if target.context is not None:
        found = {str(context["name"]): context for context in contexts}
        if target.context not in found:
            raise LookupdbError(
                f"the kubeconfig {paths} has no context {target.context}",
                hint=f"it has {format_some(list(found), _SHOWN_CONTEXTS)}",
            )
        active = found[target.context]
    return str((active.get("context") or {}).get("namespace") or "default")


class ClusterSession(DatasetSession):
    """A session with the API server of a cluster."""

    program: ClassVar = "kubectl lookupdb"

    def __init__(self, api: Api, namespace: str, target: Target) -> None:
        super().__init__(namespace)
        self._api = api
        self._target = target
        self._unproxied: set[str] = set()
        """Pods whose admin port the API server's proxy cannot reach."""

    def _find_api(self, namespace: str, name: str) -> Requests:
        return self._api

    async def list_datasets(self, *, everywhere: bool = False) -> tuple[Dataset, ...]:
        """Return the datasets of the namespace, or of all namespaces, sorted."""
        path = names.DATASET_KIND.path("" if everywhere else self.namespace)
        bodies = await list_pages(self._api, path, "LookupDatasets", {})
        return tuple(sorted(map(self._parse, bodies), key=lambda dataset: (dataset.namespace, dataset.name)))

    @asynccontextmanager
    async def open_router(self, dataset: Dataset, token: str | None, generation: str | None) -> AsyncIterator[Ask]:
        """Yield a function that asks a router of ``dataset`` for a key of ``generation``, or else of the active one.

        It uses the API server's proxy of the Service. The proxy drops tokens, so with ``token`` it uses ``kubectl
        port-forward`` to the first router that is ready. Raises Unreachable.
        """
        subject, headers = f"a router of {dataset.key}", {GENERATION_HEADER: generation} if generation else {}
        if token is None:
            service = quote(names.router(dataset.name), safe="")
            scheme = "https:" if dataset.speaks_tls else ""  # the API server's proxy does not verify the certificate
            path = f"{names.SERVICE.path(dataset.namespace)}/{scheme}{service}:http/proxy/v1/lookup"
            yield lambda key: self._api.fetch(path, subject=subject, query={"key": key}, headers=headers)
            return
        headers["Authorization"] = f"Bearer {token}"
        pods = [parse_pod(body) for body in await self.list_pods(dataset, **{names.COMPONENT: names.ROUTER})]
        ready = [pod.name for pod in pods if pod.ready and not pod.deleting]
        if not ready:
            raise Unreachable(subject, "none is ready")
        kubectl = render_kubectl(self._target, dataset.namespace)
        async with open_port(kubectl, ready[0], names.ROUTER_PORT, is_encrypted=dataset.speaks_tls) as get:
            yield lambda key: get("/v1/lookup", {"key": key}, headers)

    async def read_metrics(self, dataset: Dataset, pod: str) -> str:
        """Return the metrics of the admin port of a pod, through the API server's proxy, or else through kubectl
        port-forward."""
        path = f"{names.POD.path(dataset.namespace)}/{quote(pod, safe='')}:{names.ADMIN_PORT}/proxy/metrics"
        if pod not in self._unproxied:
            with contextlib.suppress(Unreachable, TimeoutError):
                async with asyncio.timeout(_PROXY_PATIENCE):
                    return await self._read_text(path, f"the admin port of pod {pod}", {})
            self._unproxied.add(pod)
        return await read_through(render_kubectl(self._target, dataset.namespace), pod, names.ADMIN_PORT, "/metrics")

    async def list_shard_sets(self, dataset: Dataset) -> list[Mapping[str, Any]]:
        """Return the StatefulSets of ``dataset``, oldest first."""
        selector = f"{names.DATASET}={dataset.name},{names.DATASET_UID}={dataset.uid}"
        path = names.STATEFUL_SET.path(dataset.namespace)
        bodies = await list_pages(self._api, path, f"the StatefulSets of {dataset.key}", {"labelSelector": selector})
        return sorted(bodies, key=lambda body: body["metadata"].get("creationTimestamp") or "")

    async def create_job(self, namespace: str, job: Mapping[str, Any]) -> None:
        """Create ``job``."""
        subject = f"Job {job['metadata']['name']}"
        await self._api.request("POST", names.JOB.path(namespace), subject=subject, body=job)

    async def get_job(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Return the Job as the API server has it; None if it is gone."""
        try:
            job: Mapping[str, Any] = await self._api.request(
                "GET", names.JOB.path(namespace, name), subject=f"Job {name}"
            )
        except NotFound:
            return None
        return job

    async def delete_job(self, namespace: str, name: str) -> None:
        """Delete the Job and its pod; no error if it is already gone."""
        with contextlib.suppress(NotFound):
            query = {"propagationPolicy": "Background"}
            await self._api.request("DELETE", names.JOB.path(namespace, name), subject=f"Job {name}", query=query)

    async def list_pods_of_job(self, namespace: str, name: str) -> list[Mapping[str, Any]]:
        """Return the pods of a Job."""
        query = {"labelSelector": f"batch.kubernetes.io/job-name={name}"}
        return await list_pages(self._api, names.POD.path(namespace), f"the pods of Job {name}", query)

    async def list_warnings(self, namespace: str, kind: str, name: str) -> list[Mapping[str, Any]]:
        """Return Warning events about an object; none if the user may not list events."""
        query = {"fieldSelector": f"type=Warning,involvedObject.kind={kind},involvedObject.name={name}"}
        with contextlib.suppress(Refused):
            return await list_pages(self._api, names.EVENT.path(namespace), f"events about {kind} {name}", query)
        return []

    async def read_build_log(self, dataset: Dataset, lines: int) -> BuildLog:
        """Return the last lines of the log of the newest build that has a pod. Raises LookupdbError."""
        builders = await self.list_pods(dataset, **{names.COMPONENT: names.BUILDER})
        if not builders:
            status = dataset.command("status")
            raise LookupdbError(
                f"{dataset.key} has no pod of a build",
                hint=f"the last build succeeded, or none has begun: {status} says which",
            )
        found = [
            (str((pod["metadata"].get("labels") or {}).get(names.GENERATION, "")), str(pod["metadata"]["name"]))
            for pod in reversed(builders)
        ]
        generation, pod = max(found, key=lambda build: names.read_number(build[0]))  # of several, the newest pod
        return BuildLog(pod, generation, await self.read_log(dataset.namespace, pod, "build", lines))

    async def read_log(self, namespace: str, pod: str, container: str, lines: int) -> str:
        """Return the last lines of a container's log."""
        query = {"container": container, "tailLines": str(lines)}
        return await self._read_text(names.POD.path(namespace, pod, "log"), f"the log of pod {pod}", query)

    async def follow_log(self, namespace: str, pod: str, container: str) -> AsyncIterator[str]:
        """Yield the lines of a container's log as they arrive, until it ends."""
        query = {"container": container, "follow": "true"}
        path = names.POD.path(namespace, pod, "log")
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
