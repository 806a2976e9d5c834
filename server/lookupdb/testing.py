"""Serve a small dataset to tests: a real router and shard servers, on free ports of this machine.

    with lookupdb.testing.serve({"KJFK": {"name": "Kennedy"}}) as airports:
        run_my_program(airports.url)

The fixture ``lookupdb_serve`` (``pytest_plugin``) does the same for one test of pytest. All processes end with the
block, or with the tests' process, however it ends.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lookupdb.cli import check_installed
from lookupdb.client import Client
from lookupdb.errors import LookupdbError, UsageError
from lookupdb.records import column_text

START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.01
_TAIL_CHARACTERS: Final = 2000
_SEPARATOR: Final = ":"
_LOCAL: Final = (
    *("--host", "127.0.0.1", "--port", "0", "--admin-port", "0"),
    *("--workers", "1", "--drain-seconds", "0", "--ready-file"),
)


@dataclass(frozen=True)
class ServedDataset:
    """A dataset that is being served."""

    url: str
    """The router's URL."""
    client: Client
    """A client of the router. It is closed at the end."""
    path: Path
    """The dataset's folder, for ``lookupdb.open``."""


Serve = Callable[..., ServedDataset]
"""The function that the fixture ``lookupdb_serve`` gives; its arguments are those of ``serve``."""


@contextmanager
def serve(records: Mapping[Any, Any], *, shards: int = 1, normalize: Sequence[str] = ()) -> Iterator[ServedDataset]:
    """Serve ``records``, key → value, until the block ends.

    Keys are text, or tuples if keys have several columns. Values are what JSON can hold, or all are bytes.
    ``normalize`` is the ``key.normalize`` of a dataset. Needs the extras build and serve. Raises UsageError without
    them and for records that no dataset can have, LookupdbError if a process does not start.
    """
    check_installed("serving a dataset", ("build", "serve"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lookupdb-")))
        columns = _write_source(folder, records, shards, normalize)
        build = ["build", "-f", "dataset.json", "--store", "store", "--progress", "none", "--json"]
        _wait(_start(stack, folder, "build", build), folder, "build", None)
        result = json.loads((folder / "build.out").read_bytes())
        if result["records"] != len(records):
            raise UsageError(
                f"only {result['records']} of {len(records)} records can be served",
                hint="a key has 1 to 511 bytes, and no two keys are the same after key.normalize",
            )
        path = folder / "store/local/default/dataset-local"
        names = [f"shard-{number}" for number in range(shards)]
        servers = [
            _start(stack, folder, name, ["serve", str(path / "g1"), "--shard", str(number), *_LOCAL, f"{name}.ready"])
            for number, name in enumerate(names)
        ]
        entry = {
            "generation": "g1",
            "rollout": "r1",
            "records": result["records"],
            "bytes": result["fileBytes"],
            "builtAt": result["builtAt"],
            "normalize": json.loads((path / "g1/manifest.json").read_bytes())["normalize"],
            "valueFormat": "raw" if _is_raw(records) else "json",
            "shards": [
                {"endpoints": [f"127.0.0.1:{port}" for port in _read_ready(server, folder, name)["ports"]]}
                for server, name in zip(servers, names, strict=True)
            ],
            **({"keyColumns": columns, "separator": _SEPARATOR} if len(columns) > 1 else {}),
        }
        dataset = {"namespace": "default", "name": "dataset", "uid": "local"}
        table = {"formatVersion": 1, "version": 1, "dataset": dataset, "active": "g1", "generations": [entry]}
        (folder / "table.json").write_text(json.dumps(table))
        router = _start(stack, folder, "router", ["route", "--table", "table.json", *_LOCAL, "router.ready"])
        url = f"http://127.0.0.1:{_read_ready(router, folder, 'router')['port']}"
        yield ServedDataset(url, stack.enter_context(Client(url)), path)


def _is_raw(records: Mapping[Any, Any]) -> bool:
    return all(isinstance(value, bytes) for value in records.values())


def _write_source(folder: Path, records: Mapping[Any, Any], shards: int, normalize: Sequence[str]) -> list[str]:
    """Write the source of a build, and its manifest. Return the names of the key columns."""
    keys = [key if isinstance(key, tuple) else (key,) for key in records]
    if len({*map(len, keys)}) != 1 or not keys[0]:
        raise UsageError("expected at least one record, and keys with the same number of columns")
    columns = [f"key{number}" for number in range(len(keys[0]))]
    rows: list[dict[str, Any]] = [
        {**dict(zip(columns, map(column_text, key), strict=True)), "value": value}
        for key, value in zip(keys, records.values(), strict=True)
    ]
    source = folder / ("records.avro" if _is_raw(records) else "records.jsonl")
    if _is_raw(records):
        fastavro = importlib.import_module("fastavro")
        fields = [{"name": name, "type": "string"} for name in columns] + [{"name": "value", "type": "bytes"}]
        with source.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "Row", "fields": fields}, rows)
    else:
        try:
            source.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))
        except (TypeError, ValueError) as error:
            raise UsageError(f"values must be JSON values, or all of them bytes: {error}") from error
    spec = {
        "source": {"url": source.name},
        "key": {"columns": columns, "separator": _SEPARATOR, "normalize": list(normalize)},
        "value": {"format": "raw", "column": "value"} if _is_raw(records) else {"field": "value"},
        "shards": shards,
    }
    resource = {"apiVersion": "lookupdb.dev/v1alpha1", "kind": "LookupDataset", "metadata": {"name": "dataset"}}
    (folder / "dataset.json").write_text(json.dumps(resource | {"spec": spec}))
    return columns


def _start(stack: ExitStack, folder: Path, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start ``lookupdb words…`` in ``folder``, with its output in files called ``name``. It ends with the stack, and
    when its standard input closes because this process has ended."""
    variables = {key: text for key, text in os.environ.items() if not key.startswith("LOOKUPDB_")}
    with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lookupdb.cli.leash", *words],
            cwd=folder,
            env=variables | {key: os.environ[key] for key in ("LOOKUPDB_NATIVE",) if key in os.environ},
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=log,
            start_new_session=True,
        )
    stack.callback(_stop, process)
    return process


def _wait(process: subprocess.Popen[bytes], folder: Path, name: str, awaited: Path | None) -> None:
    """Wait until ``awaited`` exists; if it is None, until the process ends. Raises LookupdbError if that fails."""
    end = time.monotonic() + START_SECONDS
    while awaited is None or not awaited.exists():
        code = process.poll()
        if code == 0 and awaited is None:
            return
        if code is not None or time.monotonic() > end:
            what = f"ended with {code}" if code is not None else f"takes over {START_SECONDS:g} s"
            said = (folder / f"{name}.log").read_text(errors="replace")[-_TAIL_CHARACTERS:].strip()
            raise LookupdbError(f"the {name} of the served dataset {what}: {said}")
        time.sleep(_POLL_SECONDS)


def _read_ready(process: subprocess.Popen[bytes], folder: Path, name: str) -> Any:
    """Return what a server reports once it is ready."""
    _wait(process, folder, name, folder / f"{name}.ready")
    return json.loads((folder / f"{name}.ready").read_bytes())


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()
