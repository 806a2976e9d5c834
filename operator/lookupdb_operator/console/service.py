"""``lookupdb console``: the console of a cluster, with an admin port for health and metrics.

It watches datasets and their pods, and gets metrics and lookups over HTTP. ``ClusterSource`` has all datasets, with the
rights of the console's service account, which only reads. ``VisitorSource`` has what one visitor may see, and looks up
with the visitor's own token."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from aiohttp import web

from lookupdb import __version__
from lookupdb.cli.options import NameList, log_format, option
from lookupdb.credentials import is_subject
from lookupdb.errors import LookupdbError, UsageError
from lookupdb.process import listeners
from lookupdb.process.admin import AdminPort, MetricFamily, labelled_counter
from lookupdb_operator import names
from lookupdb_operator.cluster.cache import Key
from lookupdb_operator.cluster.client import Api, Keys, run_service
from lookupdb_operator.cluster.informers import LISTS_AT_ONCE, Reflector
from lookupdb_operator.cluster.parse import Header, parse_header
from lookupdb_operator.cluster.workloads import parse_pod
from lookupdb_operator.console.access import (
    AccessMode,
    Door,
    OpenAccess,
    ProxyAccess,
    TokenAccess,
    Visitor,
    read_accounts,
)
from lookupdb_operator.console.dataset import Dataset, DatasetPods, Lookup
from lookupdb_operator.console.server import LOOPBACK, make_app
from lookupdb_operator.console.source import Difference, Elsewhere, PodClient, render_get
from lookupdb_operator.console.watch import Watch
from lookupdb_operator.model import Pod
from lookupdb_operator.names import Kind

_KINDS: Final = (names.DATASET_KIND, names.POD)
_SHARED_TEXTS: Final = ("namespace", "dataset", "dataset_uid", "component", "rollout", "generation", "phase")

R = TypeVar("R", Header, Pod)


class ClusterSource:
    """All datasets that the console's service account may list, as the API server last reported them."""

    def __init__(self, api: Api, namespaces: tuple[str, ...] = (), ca_file: str | None = None) -> None:
        """Watch ``namespaces``, or all. ``ca_file`` has the CAs of routers' certificates. Raises OSError or
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
        """Whether everything has been listed at least once."""
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
            dataset = self._datasets[key]
            # Leave out pods of an earlier dataset of the same name.
            found = [both for both in self._pods.get(key, {}).values() if both[0].dataset_uid == dataset.uid]
            found.sort(key=lambda both: (both[0].created, both[0].name))
            view = self._views[key] = DatasetPods(dataset, tuple(pod for _, pod in found))
        return view

    @property
    def audiences(self) -> Mapping[str, Collection[str]]:
        """Audience of tokens for lookups → the namespaces of the datasets that accept it."""
        self.list_datasets()
        return self._audiences

    async def read_metrics(self, dataset: Dataset, pod: Pod) -> str:
        """Return the metrics of the admin port of ``pod``. Raises LookupdbError."""
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        if not host:
            raise LookupdbError(f"pod {pod.name} has no address yet")
        return await self._client.read_metrics(f"{host}:{names.ADMIN_PORT}")

    async def look_up(self, dataset: Dataset, key: str, generation: str | None, token: str = "") -> Lookup | Elsewhere:
        """Return the answer of a router of ``dataset``. Send it ``token``, unless that is empty."""
        router = dataset.spec.get("router") or {}
        port = (router.get("service") or {}).get("port", names.HTTP_PORT)
        url = names.endpoint(dataset.name, dataset.namespace, port, is_encrypted=dataset.speaks_tls)
        advice = ". If spec.router.clients is set, it must list the console"
        return await self._client.look_up(dataset, f"{url}/v1/lookup", key, generation, token, advice)

    async def compare(self, dataset: Dataset, before: str, after: str) -> Difference | Elsewhere:
        """Return the command that compares them, because the console can neither create Jobs nor read the store."""
        return Elsewhere("A Job compares generations in the cluster.", dataset.command("diff", before, after))


def _slim(record: R, **unused: str) -> R:
    """Return a header or pod without ``unused`` members. Intern the texts that thousands of pods share."""
    texts = {name: sys.intern(getattr(record, name)) for name in _SHARED_TEXTS if hasattr(record, name)}
    members: dict[str, Any] = texts | unused
    return replace(record, **members)


class VisitorSource:
    """The datasets of a cluster that a visitor may see."""

    def __init__(self, source: ClusterSource, visitor: Visitor, audience: str) -> None:
        """Tokens for the console itself name ``audience``."""
        self._source = source
        self._visitor = visitor
        self._audience = audience

    def _sees(self, dataset: Dataset) -> bool:
        return self._visitor.sees(dataset.namespace, dataset.spec, self._audience)

    def list_datasets(self) -> Sequence[DatasetPods]:
        """Return the visible datasets with their pods, by namespace and name."""
        return [view for view in self._source.list_datasets() if self._sees(view.dataset)]

    def find_dataset(self, namespace: str, name: str) -> DatasetPods | None:
        """Return one dataset with its pods; None if there is none, or it is not visible."""
        view = self._source.find_dataset(namespace, name)
        return view if view is not None and self._sees(view.dataset) else None

    async def read_metrics(self, dataset: Dataset, pod: Pod) -> str:
        """Return the metrics of ``pod``. Raises LookupdbError."""
        return await self._source.read_metrics(dataset, pod)

    async def look_up(self, dataset: Dataset, key: str, generation: str | None) -> Lookup | Elsewhere:
        """Look ``key`` up. Send the visitor's token if the routers ask for a token with its audience."""
        if not dataset.asks_for_token:
            return await self._source.look_up(dataset, key, generation)
        if why := self._explain_no_token(dataset):
            return Elsewhere(why, render_get(dataset, key, generation))
        return await self._source.look_up(dataset, key, generation, self._visitor.token)

    def _explain_no_token(self, dataset: Dataset) -> str:
        """Return why the visitor's token must not be sent to routers of ``dataset``; empty if it may. Anyone who can
        create pods in a router's namespace can read what the router receives. So tokens for the console itself are
        never passed on. Others are sent only to a namespace for which they are meant.
        """
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


# The service.


log = logging.getLogger(__name__)

_MAX_CONNECTIONS: Final = 512
_GRACE_SECONDS: Final = 5.0
TOKEN: Final = "token"  # noqa: S105 - a choice
PROXY: Final = "proxy"
ANYONE: Final = "anyone"


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The command-line options."""

    access: str = TOKEN
    audience: str = ""
    subjects: tuple[str, ...] = ()
    password_file: Path | None = None
    namespaces: tuple[str, ...] = ()
    ca_file: str | None = None
    host: str = "127.0.0.1"
    port: int = 7074
    admin_port: int = 9090


class ConsoleMetrics:
    """Counts answers by their status."""

    def __init__(self) -> None:
        self._answers: Counter[int] = Counter()

    async def count(self, _request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Count ``response``, whichever middleware has made it."""
        self._answers[response.status] += 1

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the current metric families."""
        yield labelled_counter(
            "lookupdb_console_requests",
            "Requests answered, by HTTP status.",
            [({"code": str(code)}, count) for code, count in sorted(dict(self._answers).items())],
        )


class Console:
    """The parts that live as long as the console."""

    def __init__(self, options: ConsoleOptions, api: Api) -> None:
        """Raises UsageError if a port is taken or a file cannot be read."""
        self._api = api
        try:
            self.source = ClusterSource(api, options.namespaces, options.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"--ca-file {options.ca_file} cannot be read: {error}") from error
        self.watch = Watch(self.source)
        self.keys = Keys(api) if options.access == TOKEN else None
        access: AccessMode = OpenAccess()
        if options.access == PROXY:
            assert options.password_file is not None
            access = ProxyAccess(options.password_file)
        elif self.keys is not None:
            access = TokenAccess(self.keys, options.audience, options.subjects, lambda: self.source.audiences)
        self._door = Door(
            access, lambda visitor: VisitorSource(self.source, visitor, options.audience), options.audience
        )
        self._listener = listeners.bind(options.host, options.port)
        self._admin_listener = listeners.bind_admin(options.host, options.admin_port)
        self.port, self.admin_port = map(listeners.bound_port, (self._listener, self._admin_listener))
        is_private = options.access == ANYONE and options.host in LOOPBACK
        self._hosts = LOOPBACK if is_private else None  # only loopback names, so that no other site's page can read it
        self._metrics = ConsoleMetrics()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, stopped: asyncio.Event) -> None:
        """Serve until ``stopped``."""
        probes = await AdminPort(
            explain_unready=self.explain_unready, status=self.describe, collectors=(self._metrics.collect,)
        ).start(self._admin_listener)
        app = make_app(self.watch, middlewares=(self._door.middleware,), routes=self._door.routes, hosts=self._hosts)
        app.on_response_prepare.append(self._metrics.count)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=_GRACE_SECONDS)
        await runner.setup()
        try:
            work = [self.source.run(), self.watch.run(), *([self.keys.run()] if self.keys else [])]
            self._tasks += map(asyncio.create_task, work)
            await web.SockSite(runner, self._listener, backlog=_MAX_CONNECTIONS).start()
            log.info("serving the console", extra={"port": self.port, "admin": self.admin_port})
            await stopped.wait()
        finally:
            await runner.cleanup()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await probes.cleanup()
            await self.source.close()
            await self._api.close()

    def explain_unready(self) -> str | None:
        """Return why the console is not ready, as a sentence; None if it is."""
        if any(task.done() for task in self._tasks):
            return "a task has ended because of a bug; see the log"
        if not self.source.is_synced:
            return "the datasets have not been listed yet"
        if self.keys is not None and not self.keys.current:
            return "the keys of service accounts have not been read yet"
        return None

    def describe(self) -> Mapping[str, Any]:
        """Return the members of /status."""
        return {
            "version": __version__,
            "pid": os.getpid(),
            "state": self.explain_unready() or "ready",
            "datasets": len(self.source.list_datasets()),
        }


async def run(options: ConsoleOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises UsageError, or ApiError if no cluster is configured."""
    console, stopped = Console(options, await Api.connect(os.environ.get("KUBECONFIG"))), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    with contextlib.suppress(asyncio.CancelledError):
        await console.run(stopped)


# ``lookupdb console``: its options, each also an environment variable.


@click.command()
@option(
    "--access",
    type=click.Choice([TOKEN, PROXY, ANYONE]),
    default=TOKEN,
    help="token: holders of a service account's token see what the account may see. proxy: users of an authenticating"
    " proxy see all datasets. anyone: everyone who reaches the console sees all datasets.",
)
@option(
    "--audience",
    default="lookupdb:console",
    help="Accept tokens for this audience. Tokens for the audience of a dataset's spec.router.auth show that dataset.",
)
@option(
    "--subjects",
    type=NameList(),
    default="",
    help="Service accounts that see all datasets: NAMESPACE/NAME or NAMESPACE/*. Others see the datasets of their"
    " namespace, and those that list them in spec.router.auth.serviceAccounts.subjects.",
)
@option(
    "--password-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --access=proxy: file with the password that the proxy sends, as Authorization: Basic USER:PASSWORD.",
)
@option("--namespaces", type=NameList(), default="", help="Namespaces of the datasets.  [default: all]")
@option(
    "--ca-file",
    type=click.Path(dir_okay=False),
    help="File with the CAs of routers' certificates.  [default: the system's]",
)
@option("--host", default="127.0.0.1", help="Address to listen on. * or :: means all addresses, IPv4 and IPv6.")
@option("--port", type=click.IntRange(0, 65535), default=7074, help="Port of the pages. 0 takes a free port.")
@option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    default=9090,
    help="Port for health, status and metrics. 0 takes a free port.",
)
@log_format
def command(**values: Any) -> None:
    """Serve read-only pages about the datasets of a cluster.

    It watches LookupDatasets and pods, and reads the metrics of routers and shard servers, with the pod's service
    account or KUBECONFIG. Lookups go to routers with the visitor's own token. `lookupdb up` serves the same pages about
    its datasets.
    """
    run_service(run(options(**values)))


def options(**values: Any) -> ConsoleOptions:
    """Return the checked options in ``values``. Raises UsageError."""
    if wrong := [subject for subject in values["subjects"] if not is_subject(subject)]:
        raise UsageError(
            f"--subjects: {wrong[0][:200]!r} is not a service account", hint="use NAMESPACE/NAME or NAMESPACE/*"
        )
    if values["access"] == TOKEN and not values["audience"]:
        raise UsageError("--audience is empty", hint="for example --audience lookupdb:console")
    if values["access"] == PROXY and values["password_file"] is None:
        raise UsageError("--access=proxy needs --password-file", hint="without it, anyone could claim to be the proxy")
    return ConsoleOptions(**values)
