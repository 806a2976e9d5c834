"""A store with datasets that are announced, a `lookupdb sync` in this process or in its own, and a reader of what it
keeps."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from lookupdb.errors import CorruptFile
from lookupdb.manifest import FILE_NAME, Manifest, Refusal
from lookupdb.shardfile import ShardReader, unframe
from lookupdb.store import Store, StoreAddress, StoredDataset, open_store
from lookupdb.store.dataset import write_announcement
from lookupdb.sync import keeper as sync_keeper
from lookupdb.sync import service as sync_service
from lookupdb.sync.feeds import Subscription
from lookupdb.sync.service import SyncOptions, SyncService
from support import generations
from support.routing import table_file
from support.waiting import soon, until

CLUSTER = "c1"
UID, OTHER_UID = "3f2b9c1e", "77aa0b1c"
MOMENT = "2026-11-20T00:00:00Z"


def address_of(name: str = "team/people", uid: str = UID) -> StoreAddress:
    namespace, _, own = name.rpartition("/")
    return StoreAddress(CLUSTER, namespace, own, uid)


def publish(
    place: Store | str,
    generation: str,
    *,
    name: str = "team/people",
    uid: str = UID,
    shards: int = 3,
    keys: int = 60,
    built_at: str = "2026-11-21T00:00:00Z",
    refused: Refusal | None = None,
    content: str | None = None,
) -> StoredDataset:
    """Build ``generation``, in which every key's value says ``content``, its uid and its own name if that is None."""
    place = open_store(place, CLUSTER) if isinstance(place, str) else place
    dataset = place.dataset_at(address_of(name, uid))
    value = orjson.dumps(content or f"{uid} {generation}")
    stream = generations.records({f"key-{number}": value for number in range(keys)})
    with tempfile.TemporaryDirectory() as scratch, dataset.claim(generation, Path(scratch)) as claim:
        batches = generations.in_batches(stream)
        files, totals = generations.write(claim.folder, batches, shards=shards, compression="none")
        namespace, _, own = name.rpartition("/")
        manifest = dataclasses.replace(
            generations.manifest(generation, files, totals),
            namespace=namespace,
            name=own,
            uid=f"{uid}-0000",
            refused=refused,
            built_at=built_at,
        )
        claim.publish(manifest)
    return dataset


def announce(dataset: StoredDataset, generation: str, version: int, moment: str = MOMENT) -> None:
    write_announcement(dataset, f"{dataset.address.uid}-0000", generation, version, moment)


def read_current(root: Path, name: str = "team/people") -> str | None:
    """Read all keys of the current generation, as a program does that has opened its folder; None if there is no
    current one. Raise AssertionError for a mix, FileNotFoundError if the folder went while it was opened.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = os.open(root / name / "current", os.O_PATH | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        stack.callback(os.close, folder)
        place = Path(f"/proc/self/fd/{folder}")
        manifest = Manifest.from_json((place / FILE_NAME).read_bytes(), str(place))
        found: set[bytes] = set()
        for shard in manifest.shards:
            with _open_shard(place / shard.file) as reader:
                assert reader.meta.records == shard.records
                found |= {unframe(reader.expand(stored)) for _key, stored in reader.items()}
    (value,) = found
    text: str = orjson.loads(value)
    assert manifest.generation in text or "same" in text, f"{manifest.generation} says {text}"
    return text


def _open_shard(path: Path) -> ShardReader:
    try:
        return ShardReader(path)
    except CorruptFile as error:
        if path.exists():
            raise
        raise FileNotFoundError(path) from error  # it went while LMDB opened it


def names(folder: Path) -> list[str]:
    """List ``folder`` without its lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".sync.lock") if folder.exists() else []


def make_options(root: Path, url: str, *datasets: str, **changes: Any) -> SyncOptions:
    options = SyncOptions(
        root=root,
        subscriptions=tuple(map(Subscription.parse, datasets)),
        tables=(),
        store_url=url,
        cluster=CLUSTER,
        keep=2,
        rate=1 << 30,
        host="127.0.0.1",
        admin_port=0,
        ready_file=None,
        wait_seconds=1.0,
    )
    return dataclasses.replace(options, **changes)


@contextlib.asynccontextmanager
async def keeping(root: Path, url: str, *datasets: str, **changes: Any) -> AsyncIterator[SyncService]:
    """A running `lookupdb sync` in this process, which the usual signal ends."""
    service = SyncService(make_options(root, url, *(datasets or ("team/people",)), **changes))
    running = asyncio.create_task(service.run())
    try:
        await soon(lambda: running.done() or service.state.keepers or service.state.tables, "it has begun")
        if running.done():
            running.result()
        yield service
    finally:
        if not running.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await running


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it check often, and retry soon."""
    monkeypatch.setattr(sync_service, "BUCKET_POLL_SECONDS", 0.05)
    monkeypatch.setattr(sync_service, "DIRECTORY_POLL_SECONDS", 0.05)
    monkeypatch.setattr(sync_keeper, "FIRST_PAUSE_SECONDS", 0.05)


class SyncProcess:
    """`lookupdb sync` as a process; ``words`` are its own."""

    def __init__(self, folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> None:
        self._ready = folder / "sync-ready.json"
        self._log = (folder / "sync.log").open("w+")
        command = [sys.executable, "-m", "lookupdb", "sync", *words, "--admin-port", "0"]
        self.process = subprocess.Popen(
            [*command, "--ready-file", str(self._ready), "--cluster-id", CLUSTER],
            stderr=self._log,
            env={**os.environ, **(environment or {})},
        )

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.log
            return self._ready.exists()

        until(is_ready, "all datasets are there")

    def ask(self, path: str) -> tuple[int, bytes]:
        port = orjson.loads(self._ready.read_bytes())["admin"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(30)
        self._log.close()
        return code


@contextlib.contextmanager
def sync_process(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> Iterator[SyncProcess]:
    """A running `lookupdb sync`, which is killed at the end if it still runs."""
    running = SyncProcess(folder, *words, environment=environment)
    try:
        yield running
    finally:
        running.stop(signal.SIGKILL)


def only_keeper(service: SyncService) -> Any:
    (keeper,) = service.state.keepers.values()
    return keeper


def says(root: Path, text: str, name: str = "team/people") -> bool:
    """Whether the current generation has this text; False also if another took its place while it was opened."""
    try:
        return read_current(root, name) == text
    except FileNotFoundError:
        return False


async def reads(root: Path, text: str, name: str = "team/people") -> None:
    await soon(lambda: says(root, text, name), f"{name} says {text}")


async def has_problem(service: SyncService, text: str) -> None:
    def is_told() -> bool:
        problem = only_keeper(service).problem
        return problem is not None and text in problem.error.message

    await soon(is_told, text)


def damage(url: str, generation: str, uid: str = UID) -> Path:
    """Change one byte of a shard's file."""
    path = sorted((Path(url) / CLUSTER / "team" / f"people-{uid}" / generation).glob("*.lmdb"))[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o444)
    return path


def write_table(table: Path, *entries: dict[str, Any], version: int, uid: str = UID, name: str = "people") -> None:
    """A routing table of a dataset of the namespace team, in one step."""
    dataset = {"namespace": "team", "name": name, "uid": f"{uid}-0000"}
    new = table.with_suffix(".new")
    new.write_bytes(table_file(*entries, version=version, dataset=dataset))
    new.rename(table)
