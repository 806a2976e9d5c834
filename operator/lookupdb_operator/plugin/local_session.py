"""The datasets of a `lookupdb up`, in its data folder: by its socket while it runs, else by its files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import orjson

from lookupdb.up.run_state import (
    RunFolder,
    is_locked,
    list_build_logs,
    read_state,
    run_directory,
    state_file,
)
from lookupdb_operator import names
from lookupdb_operator.cluster.api import Requests
from lookupdb_operator.console.dataset import STOPPED, Dataset
from lookupdb_operator.local.api import OBJECTS, SocketApi, StoppedApi, parse_local
from lookupdb_operator.plugin.session import BuildLog, DatasetSession, NoBuilder, NoSuchDataset

_NOT_RUNNING: Final = "No `lookupdb up` is running. This is the state in which it stopped."


class LocalSession(DatasetSession):
    """The datasets in a data folder."""

    program: ClassVar = "lookupdb"

    def __init__(self, data: Path, namespace: str) -> None:
        super().__init__(namespace)
        self._data = data

    def _find_api(self, namespace: str, name: str) -> Requests:
        folder = RunFolder(self._data, namespace, name)
        if is_locked(folder.path):
            return SocketApi(folder)
        if not (folder.path / OBJECTS).is_dir():
            raise NoSuchDataset(
                f"no `lookupdb up` has served {namespace}/{name} from {self._data}",
                hint=f"{self.program} ls lists the datasets; --data names another folder",
            )
        return StoppedApi(folder, namespace, name)

    def _parse(self, body: Mapping[str, Any]) -> Dataset:
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        status = body.get("status") or {}
        if not is_locked(run_directory(self._data, namespace, name)):
            status = _as_stopped(status)
        elif state := read_state(state_file(self._data, namespace, name)):
            return parse_local(body, state["url"], self._data)
        return parse_local({**body, "status": {**status, "endpoint": ""}}, "", self._data)

    async def list_datasets(self, *, everywhere: bool = False) -> tuple[Dataset, ...]:
        """Return the datasets of the namespace, or of all, by name."""
        datasets = []
        for path in (self._data / "run").glob(f"*/{OBJECTS}/{names.KIND}.*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):  # as the API server ignores it
                datasets.append(self._parse(orjson.loads(path.read_bytes())))
        found = [dataset for dataset in datasets if everywhere or dataset.namespace == self.namespace]
        return tuple(sorted(found, key=lambda dataset: (dataset.namespace, dataset.name)))

    async def read_metrics(self, dataset: Dataset, pod: str) -> str:
        """Return the metrics of the admin port of a pod of ``dataset``."""
        api = SocketApi(RunFolder(self._data, dataset.namespace, dataset.name))
        path = f"{names.POD.path(dataset.namespace)}/{pod}:{names.ADMIN_PORT}/proxy/metrics"
        return (await api.fetch(path, subject=f"the admin port of pod {pod}")).decode(errors="replace")

    async def read_build_log(self, dataset: Dataset, lines: int) -> BuildLog:
        """Return the last lines of the log of the newest build. Raises NoBuilder."""
        logs = list_build_logs(run_directory(self._data, dataset.namespace, dataset.name))
        if not logs:
            raise NoBuilder(f"no build of {dataset.key} has begun")
        generation, path = max(logs, key=lambda log: log[1].stat().st_mtime_ns)
        text = path.read_text(encoding="utf-8", errors="replace")
        return BuildLog(path.stem, generation, "".join(text.splitlines(keepends=True)[-lines:]))


def _as_stopped(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a dataset that nothing serves, from the last one."""
    conditions = [
        {**found, "status": "False", "reason": STOPPED, "message": _NOT_RUNNING} if found["type"] == "Ready" else found
        for found in status.get("conditions") or ()
    ]
    return {**status, "phase": STOPPED, "conditions": conditions}
