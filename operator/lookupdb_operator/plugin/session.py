"""Requests about datasets, and polls while a command waits. ``LocalSession`` asks a `lookupdb up` while it runs,
else reads its files. ``cluster_session`` has the session with a cluster."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import click
import orjson

from lookupdb.errors import LookupdbError
from lookupdb.up.run_state import (
    RunFolder,
    is_locked,
    list_build_logs,
    read_state,
    run_directory,
    state_file,
)
from lookupdb_operator import names
from lookupdb_operator.cluster.api import (
    MERGE_PATCH,
    NotFound,
    Refused,
    Requests,
    Unauthorized,
    Unreachable,
    read_pages,
)
from lookupdb_operator.cluster.workloads import parse_pod
from lookupdb_operator.console.dataset import STOPPED, Dataset, DatasetPods
from lookupdb_operator.console.facts import clean
from lookupdb_operator.local.api import OBJECTS, FolderApi, parse_local

_A_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster, or the data folder of a `lookupdb up`, and a namespace in it."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    """None: the namespace of the context."""
    data: Path | None = None
    """The data folder; None for a cluster."""


@dataclass(frozen=True, slots=True)
class BuildLog:
    """The end of a build's log."""

    pod: str
    generation: str
    text: str


class DatasetSession(ABC):
    """A session with a cluster or a data folder, and the namespace in which names are looked for."""

    program: ClassVar[str]
    """The program that commands in messages begin with."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    @property
    def place(self) -> str:
        """Where names are looked for."""
        return f"namespace {self.namespace}"

    @abstractmethod
    def _find_api(self, namespace: str, name: str) -> Requests:
        """Return the API server that has the dataset. Raises LookupdbError if none has."""

    def _parse(self, body: Mapping[str, Any]) -> Dataset:
        """Return the dataset in the API server's JSON."""
        return Dataset.from_body(body)

    @abstractmethod
    async def read_metrics(self, dataset: Dataset, pod: str) -> str:
        """Return the metrics of the admin port of a pod of ``dataset``."""

    @abstractmethod
    async def read_build_log(self, dataset: Dataset, lines: int) -> BuildLog:
        """Return the last lines of the log of the newest build. Raises LookupdbError if there is none."""

    async def get_dataset(self, name: str) -> Dataset:
        """Return the dataset ``name``. Raises LookupdbError if there is none."""
        path = names.DATASET_KIND.path(self.namespace, name)
        api = self._find_api(self.namespace, name)
        try:
            return self._parse(await api.request("GET", path, subject=f"LookupDataset {name}"))
        except NotFound as error:
            raise LookupdbError(
                f"there is no LookupDataset {name} in namespace {self.namespace}",
                hint=f"{self.program} ls -A lists all; -n names another namespace",
            ) from error

    @abstractmethod
    async def list_datasets(self, *, everywhere: bool = False) -> tuple[Dataset, ...]:
        """Return the datasets of the namespace, or of all namespaces, sorted."""

    async def with_pods(self, dataset: Dataset) -> DatasetPods:
        """Return ``dataset`` with its pods, or with the reason why they cannot be listed: the user may lack that
        right."""
        try:
            return DatasetPods(dataset, tuple(parse_pod(body) for body in await self.list_pods(dataset)))
        except Refused as error:
            return DatasetPods(dataset, problem=error.message)

    async def list_pods(self, dataset: Dataset, **labels: str) -> list[Mapping[str, Any]]:
        """Return the pods of ``dataset`` as the API server has them, oldest first."""
        selector = {names.DATASET: dataset.name, names.DATASET_UID: dataset.uid} | labels
        query = {"labelSelector": ",".join(f"{name}={value}" for name, value in selector.items())}
        api, path = self._find_api(dataset.namespace, dataset.name), names.POD.path(dataset.namespace)
        bodies = await list_pages(api, path, f"the pods of {dataset.key}", query)
        return sorted(
            bodies, key=lambda body: (body["metadata"].get("creationTimestamp") or "", body["metadata"]["name"])
        )

    async def patch_dataset(self, dataset: Dataset, change: Mapping[str, Any]) -> Dataset:
        """Apply the merge patch ``change`` and return the result. The write fails if ``dataset`` has changed."""
        body = {**change, "metadata": {"uid": dataset.uid, **change.get("metadata", {})}}
        answer = await self._find_api(dataset.namespace, dataset.name).request(
            "PATCH",
            names.DATASET_KIND.path(dataset.namespace, dataset.name),
            subject=f"LookupDataset {dataset.name}",
            query={"fieldManager": "kubectl-lookupdb"},
            body=body,
            content_type=MERGE_PATCH,
        )
        return self._parse(answer)


async def list_pages(api: Requests, path: str, subject: str, query: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Return all items of a list, read page by page. Raises ApiError."""
    pages = read_pages(api, path, subject=subject, query=query, limit=_A_PAGE)
    return [body async for page in pages for body in page.get("items") or ()]


# Polls while a command waits. The API server may be restarting or busy, so polling continues after a failure, and
# failures that last for seconds are reported.


T = TypeVar("T")

POLL_SECONDS: Final = 1.0
"""Seconds between polls."""
_REPORT_AFTER: Final = 5.0
"""Seconds of failed polls before a report."""
_LAST_SECONDS: Final = 1.0
"""Seconds that the last poll may take when time is up."""


class Polls:
    """Polls of ``subject`` for at most ``seconds``."""

    def __init__(self, subject: str, seconds: float) -> None:
        self._subject = subject
        self._ends_at = time.monotonic() + seconds
        self._fails_since: float | None = None
        self._answers_since = time.monotonic()
        self._is_reported = False
        self.trouble = ""
        """Why the last poll failed; empty if it did not."""

    @property
    def are_over(self) -> bool:
        """Return whether time is up."""
        return time.monotonic() >= self._ends_at

    @property
    def answered_seconds(self) -> float:
        """Return the seconds for which the API server has been answering; 0 if it does not answer."""
        return 0.0 if self.trouble else time.monotonic() - self._answers_since

    def describe_trouble(self) -> str:
        """Return a sentence about the last poll if it failed, to append to others; else nothing."""
        return f". The last poll failed: {self.trouble}" if self.trouble else ""

    async def look(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of ``ask``; None if the API server cannot answer now, or in time. Raises errors that
        another attempt would not fix."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(self._ends_at - began, _LAST_SECONDS)):
                found = await ask()
        except Unauthorized:
            raise
        except Unreachable as error:
            trouble = str(error)
        except TimeoutError:
            trouble = f"{self._subject}: the API server does not answer"
        else:
            if self.trouble:
                self._answers_since = time.monotonic()
            self.trouble, self._fails_since, self._is_reported = "", None, False
            return found
        self.trouble = clean(trouble)
        self._fails_since = began if self._fails_since is None else self._fails_since
        if not self._is_reported and time.monotonic() - self._fails_since >= _REPORT_AFTER:
            self._is_reported = True
            click.echo(self.trouble, err=True)
        return None

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``ask``, once it has one. Raises ApiError."""
        while (found := await self.look(ask)) is None:
            if self.are_over:
                raise Unreachable(self._subject, self.trouble)
            await asyncio.sleep(POLL_SECONDS)
        return found


# The datasets of a `lookupdb up`, in its data folder.


_STOPPED_READY: Final = {
    "type": "Ready",
    "status": "False",
    "reason": STOPPED,
    "message": "No `lookupdb up` is running. This is the state in which it stopped.",
    "lastTransitionTime": "",
}
"""The condition ``Ready`` while nothing serves the dataset. A killed `up` leaves no time of its end."""


def _with_condition(status: Mapping[str, Any], phase: str, condition: Mapping[str, str]) -> Mapping[str, Any]:
    """Return ``status`` with ``phase``, and with ``condition`` in place of the one of its type."""
    conditions = status.get("conditions") or ()
    replaced = [{**found, **condition} if found["type"] == condition["type"] else found for found in conditions]
    return {**status, "phase": phase, "conditions": replaced}


class LocalSession(DatasetSession):
    """A session with the datasets in a data folder."""

    program: ClassVar = "lookupdb"

    def __init__(self, data: Path, namespace: str) -> None:
        super().__init__(namespace)
        self._data = data

    @property
    def place(self) -> str:
        """See ``DatasetSession``."""
        return f"{super().place} of {self._data}"

    def _find_api(self, namespace: str, name: str) -> Requests:
        folder = RunFolder(self._data, namespace, name)
        if not is_locked(folder.path) and not (folder.path / OBJECTS).is_dir():
            raise LookupdbError(
                f"no `lookupdb up` has served {namespace}/{name} from {self._data}",
                hint=f"{self.program} ls lists the datasets; --data-dir names another folder",
            )
        return FolderApi(folder)

    def _parse(self, body: Mapping[str, Any]) -> Dataset:
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        status = body.get("status") or {}
        if not is_locked(run_directory(self._data, namespace, name)):
            status = _with_condition(status, STOPPED, _STOPPED_READY)
        elif state := read_state(state_file(self._data, namespace, name)):
            if problem := state.get("problem"):
                degraded = {"type": "Degraded", "status": "True", "reason": "NotRebuilt", "message": problem}
                degraded["lastTransitionTime"] = state["problemSince"]
                body = {**body, "status": _with_condition(status, "Degraded", degraded)}
            return parse_local(body, state["url"], self._data)
        return parse_local({**body, "status": {**status, "endpoint": ""}}, "", self._data)

    async def list_datasets(self, *, everywhere: bool = False) -> tuple[Dataset, ...]:
        """Return the datasets of the namespace, or of all namespaces, sorted."""
        datasets = []
        for path in (self._data / "run").glob(f"*/{OBJECTS}/{names.KIND}.*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):  # unreadable: the API server ignores it, too
                datasets.append(self._parse(orjson.loads(path.read_bytes())))
        found = [dataset for dataset in datasets if everywhere or dataset.namespace == self.namespace]
        return tuple(sorted(found, key=lambda dataset: (dataset.namespace, dataset.name)))

    async def read_metrics(self, dataset: Dataset, pod: str) -> str:
        """Return the metrics of the admin port of a pod of ``dataset``."""
        api = FolderApi(RunFolder(self._data, dataset.namespace, dataset.name))
        path = f"{names.POD.path(dataset.namespace)}/{pod}:{names.ADMIN_PORT}/proxy/metrics"
        return (await api.fetch(path, subject=f"the admin port of pod {pod}")).decode(errors="replace")

    async def read_build_log(self, dataset: Dataset, lines: int) -> BuildLog:
        """Return the last lines of the log of the newest build. Raises LookupdbError if there is none."""
        logs = list_build_logs(run_directory(self._data, dataset.namespace, dataset.name))
        if not logs:
            raise LookupdbError(f"no build of {dataset.key} has begun")
        generation, path = max(logs, key=lambda log: log[1].stat().st_mtime_ns)
        text = path.read_text(encoding="utf-8", errors="replace")
        return BuildLog(path.stem, generation, "".join(text.splitlines(keepends=True)[-lines:]))
