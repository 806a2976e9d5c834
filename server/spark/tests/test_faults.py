"""Executors that die, tasks that run twice, answers that are lost, drivers that are killed: the result is the same, or
a named error, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builds import CLUSTER, LOCAL, build, comparable, published, write_source
from sessions import QUICK
from support.buckets import create_bucket
from support.faults import Fault, Proxy, Request
from support.waiting import until

from lookupdb.builder.options import BuildOptions
from lookupdb.errors import EngineMissing, NotEnoughRoom, SparkFailed
from lookupdb.keys import is_file_name
from lookupdb.spark import make_engine, tasks
from lookupdb.spark.build import SparkEngine
from lookupdb.store import Store, open_store

pytest_plugins = ["sessions"]

Task = Callable[[Any], Iterator[Any]]


def once(folder: Path, name: str) -> bool:
    """Return True the first time that any process asks for ``name``."""
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def kill_executor() -> None:
    """Kill the JVM of this worker: its parent's parent."""
    parent = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    time.sleep(60)


@pytest.fixture
def in_tasks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str, Task], Task]], None]:
    """Wrap every task: the wrapper gets the name of its function, and the task."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    make_task = tasks.make_task

    def use(wrap: Callable[[str, Task], Task]) -> None:
        monkeypatch.setattr(tasks, "make_task", lambda work, job: wrap(work.__name__, make_task(work, job)))

    return use


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a local build reports and publishes."""
    folder = tmp_path_factory.mktemp("expected")
    spec, store = write_source(folder / "source", "jsonl"), open_store(str(folder / "store"))
    report = build(spec, store, folder / "scratch", spark=False)
    return spec, comparable(report), published(store, spec, report)


def check(expected: Any, store: Store, tmp_path: Path) -> None:
    """Build in ``store``, and expect what is expected, and nothing else there."""
    spec, report, manifest = expected
    found = build(spec, store, tmp_path / "scratch", spark=True)
    assert comparable(found) == report
    assert published(store, spec, found) == manifest
    assert not list((tmp_path / "scratch").glob("*"))
    if store.folder is not None:
        names = {path.name for path in store.folder.rglob("*") if path.is_file()}
        assert len(names) == 4
    else:
        names = set(store._bucket.files(f"{store.dataset(spec).address.path}/g1"))  # type: ignore[attr-defined]
        assert names == {"manifest.json", *(shard.file for shard in store.dataset(spec).manifest("g1").shards)}


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("session", [CLUSTER], indirect=True)
@pytest.mark.parametrize("stage", ["scan_slices", "merge_samples", "map_slices", "write_shard"])
def test_an_executor_dies_in_each_stage(stage: str, in_tasks: Any, expected: Any, tmp_path: Path) -> None:
    def wrap(name: str, task: Task) -> Task:
        def run(batches: Any) -> Iterator[Any]:
            for batch in task(batches):
                if name == stage and once(tmp_path, "killed"):
                    kill_executor()  # a shard's file has been put by now
                yield batch

        return run

    in_tasks(wrap)
    check(expected, open_store(str(tmp_path / "store")), tmp_path)
    assert (tmp_path / "killed").exists()


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("session", [CLUSTER], indirect=True)
@pytest.mark.parametrize("kind", ["directory", "bucket"])
def test_a_task_runs_twice(kind: str, in_tasks: Any, expected: Any, s3: tuple[str, Proxy], tmp_path: Path) -> None:
    def wrap(name: str, task: Task) -> Task:
        def run(batches: Any) -> Iterator[Any]:
            for batch in task(batches):
                if name == "write_shard" and once(tmp_path, "slow"):
                    time.sleep(60)  # Spark starts a second attempt, and kills this one
                if name == "write_shard":
                    (tmp_path / f"attempt-{os.getpid()}-{time.monotonic_ns()}").touch()
                yield batch

        return run

    in_tasks(wrap)
    check(expected, open_store(create_bucket(s3[0]) if kind == "bucket" else str(tmp_path / "store")), tmp_path)
    assert (tmp_path / "slow").exists()


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("session", [LOCAL], indirect=True)
@pytest.mark.parametrize("fault", [Fault.LOSE, Fault.ERROR, Fault.DROP])
def test_the_answer_to_each_upload_is_lost(fault: Fault, expected: Any, s3: tuple[str, Proxy], tmp_path: Path) -> None:
    url, proxy = s3
    failed: set[str] = set()

    def is_first_upload(_: int, request: Request) -> bool:
        path = request.path.partition("?")[0]
        if request.method != "PUT" or not is_file_name(path.rpartition("/")[2]) or path in failed:
            return False
        failed.add(path)
        return True

    store = open_store(create_bucket(url))
    proxy.fail(fault, is_first_upload)
    try:
        check(expected, store, tmp_path)
    finally:
        proxy.reset()
    assert len(failed) == 3


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("session", [LOCAL], indirect=True)
@pytest.mark.parametrize("kind", ["directory", "bucket"])
def test_a_build_that_fails_leaves_nothing(
    kind: str, in_tasks: Any, expected: Any, s3: tuple[str, Proxy], tmp_path: Path
) -> None:
    """One shard has been put, another one's worker dies, as when memory runs out."""

    def wrap(name: str, task: Task) -> Task:
        def run(batches: Any) -> Iterator[Any]:
            for batch in task(batches):
                if name == "write_shard" and not once(tmp_path, "first"):
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch

        return run

    in_tasks(wrap)
    store = open_store(create_bucket(s3[0]) if kind == "bucket" else str(tmp_path / "store"))
    with pytest.raises(NotEnoughRoom, match="ran out of memory") as error:
        build(expected[0], store, tmp_path / "scratch", spark=True)
    assert "executorMemory" in str(error.value.hint)
    assert not list((tmp_path / "scratch").glob("*"))
    assert store.dataset(expected[0]).unfinished_generations() == {}
    assert store.dataset(expected[0]).known_generations() == ()


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("session", [LOCAL], indirect=True)
def test_a_bug_in_a_task_is_reported(in_tasks: Any, expected: Any, tmp_path: Path) -> None:
    def wrap(name: str, task: Task) -> Task:
        def run(batches: Any) -> Iterator[Any]:
            if name == "map_slices":
                raise KeyError("surprise")
            yield from task(batches)

        return run

    in_tasks(wrap)
    with pytest.raises(SparkFailed, match="surprise"):
        build(expected[0], open_store(str(tmp_path / "store")), tmp_path / "scratch", spark=True)
    assert not list((tmp_path / "store").rglob("*.lmdb"))


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("session", [LOCAL], indirect=True)
def test_an_executor_has_another_version(monkeypatch: pytest.MonkeyPatch, expected: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(tasks, "__version__", "9.9.9")
    with pytest.raises(SparkFailed, match=r"an executor has lookupdb .*, the driver 9\.9\.9"):
        build(expected[0], open_store(str(tmp_path / "store")), tmp_path / "scratch", spark=True)


@pytest.mark.timeout(1800)  # three JVMs may start, on a busy machine
@pytest.mark.parametrize(
    ("end", "stage"), [(signal.SIGKILL, "read"), (signal.SIGKILL, "writing"), (signal.SIGTERM, "writing")]
)
def test_the_driver_is_killed_and_runs_again(end: signal.Signals, stage: str, tmp_path: Path) -> None:
    """In a process of its own, with a JVM of its own."""
    rows = "".join(f'{{"k": "k{number}", "v": "{"x" * 80}"}}\n' for number in range(50_000))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "data.yaml").write_text(
        "apiVersion: lookupdb.dev/v1alpha1\nkind: LookupDataset\nmetadata: {name: rows}\n"
        "spec:\n  source: {url: rows.jsonl}\n  key: {columns: [k]}\n  shards: 2\n  build: {engine: Spark}\n"
    )
    store, scratch, log = tmp_path / "store", tmp_path / "scratch", tmp_path / "log"
    words = [sys.executable, "-m", "lookupdb", "build", "-f", str(tmp_path / "data.yaml"), "--store", str(store)]
    words += ["--scratch", str(scratch), "--threads", "2", "--progress", "plain"]
    local = [*words, "--engine", "Local", "--store", str(tmp_path / "local")]
    words += ["--spark-conf", f"spark.driver.extraJavaOptions={QUICK}"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as errors:
        driver = subprocess.Popen(words, stderr=errors, stdout=subprocess.DEVNULL, env=environment)
    begun = {"read": lambda: list(scratch.rglob("blockmgr-*")), "writing": lambda: b"training" in log.read_bytes()}
    until(begun[stage], f"the stage {stage}", 600)
    time.sleep(0.3)
    children = _children(driver.pid)
    assert children, "the JVM"
    assert b"/pandas/" not in Path(f"/proc/{driver.pid}/maps").read_bytes(), "a driver has 45 MiB more with it"
    driver.send_signal(end)
    code = driver.wait(120)
    assert code == (-signal.SIGKILL if end is signal.SIGKILL else 143)
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), "the end of the JVM", 300)
    assert not list(store.rglob("g1"))
    if end is signal.SIGTERM:
        assert not list(scratch.glob("*"))
        assert not [path for path in store.rglob("*") if path.is_file()]
        return
    with log.open("wb") as errors:
        subprocess.run(words, stderr=errors, stdout=subprocess.DEVNULL, env=environment, check=True, timeout=600)
    subprocess.run(local, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, timeout=600)
    (folder,) = (path.parent for path in store.rglob("manifest.json"))  # g2 if the lock of g1 was left
    assert len(list(folder.iterdir())) == 3
    for expected_file in (tmp_path / "local").rglob("*.lmdb"):
        assert (folder / expected_file.name).read_bytes() == expected_file.read_bytes()
    assert not list(folder.parent.glob(".*"))
    assert not list(scratch.glob("*"))


def _children(pid: int) -> list[int]:
    """The process's children and theirs, by /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                child = int(path.parent.name)
                found += [child, *_children(child)]
    return found


def test_no_java_is_named_before_anything_is_claimed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = write_source(tmp_path / "source", "jsonl")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissing, match="there is no Java on the PATH") as error:
        make_engine(spec, BuildOptions(tmp_path), {})
    assert "Java 17" in str(error.value.hint)


def test_too_little_memory_is_named(tmp_path: Path) -> None:
    spec = write_source(tmp_path / "source", "jsonl")
    with pytest.raises(NotEnoughRoom, match="--memory-limit is 512 MiB, but Spark needs at least 1024 MiB"):
        SparkEngine(spec, BuildOptions(tmp_path, memory_limit=512 << 20))
