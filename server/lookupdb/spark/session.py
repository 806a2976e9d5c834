"""Start Spark for a build, run its jobs, and turn its failures into errors for users."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lookupdb.builder.options import MIB, BuildBudget
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import EngineMissing, NotEnoughRoom, SparkFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)
T = TypeVar("T")

_MIN_HEAP: Final = 512 * MIB
"""Spark starts no JVM with less than 450 MiB."""
_MIN_PYTHON: Final = 256 * MIB
"""Python's memory for each task: with less, the sample for the dictionary would be smaller than a local build's."""
_DRIVER_HEAP: Final = 512 * MIB
"""Heap of a driver whose executors run elsewhere: it holds no records."""
_SMALL_JVM: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xms64m -XX:MaxNewSize=16m -XX:MinHeapFreeRatio=5"
    " -XX:MaxHeapFreeRatio=10 -XX:-ShrinkHeapInSteps"
)
"""Without these, a JVM uses 200 MiB before it first collects garbage."""
_COLLECT_OFTEN: Final = {"spark.cleaner.periodicGC.interval": "15s"}
"""By itself, Java lets its old generation grow to the whole heap before it collects garbage there."""
_SQL_CONF: Final = {
    "spark.sql.adaptive.enabled": "false",  # a partition is a shard, or a slice
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2048",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 * MIB),
}
_POLL_SECONDS: Final = 0.2
_MEMORY_SIGNS: Final = re.compile(r"OutOfMemoryError|OOMKilled|Java heap space|exit(?:ed with)? code:? (?:52|137)\b")
"""Spark's words for an executor that ran out of memory: 52 is its own exit code for that, 137 is SIGKILL."""
_LOG_BYTES: Final = 4096
_NOT_THERE: Final = "No module named 'lookupdb'"
_WORKER_DIED: Final = "Python worker exited unexpectedly"


def check_environment() -> None:
    """Raise EngineMissing if this machine cannot start Spark."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineMissing(
            f"spec.build.engine is Spark, but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not"
            " installed",
            hint="pip install 'lookupdb[spark]', or use the image that has it; or set build.engine: Local",
        )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        where = f"in JAVA_HOME, {home}" if home else "on the PATH, and JAVA_HOME is not set"
        raise EngineMissing(
            f"spec.build.engine is Spark, but there is no Java {where}",
            hint="install Java 17 (Debian: openjdk-17-jre-headless), or set build.engine: Local",
        )


def choose_master(spec: DatasetSpec, threads: int) -> str:
    """Return the master of ``spec``; by default this machine's ``threads`` cores."""
    return spec.spark.master or f"local[{threads}]"


def divide_memory(spec: DatasetSpec, memory_limit: int, threads: int) -> tuple[int, BuildBudget]:
    """Return the heap, in bytes, of a JVM that runs tasks, and the budget of one task in Python. A local[…] master has
    the build's ``memory_limit``. Raises NotEnoughRoom."""
    is_local = is_local_master(choose_master(spec, threads))
    memory, cores = (memory_limit, threads) if is_local else (spec.spark.executor_memory, spec.spark.executor_cores)
    half = memory // 2
    needed = 2 * max(_MIN_HEAP, cores * _MIN_PYTHON)
    if memory < needed:
        what = "--memory-limit" if is_local else "build.spark.executorMemory"
        raise NotEnoughRoom(
            f"{what} is {memory // MIB} MiB, but Spark needs at least {needed // MIB} MiB to run {cores} "
            f"{'task' if cores == 1 else 'tasks'} at once",
            hint=f"raise {what}, or lower {'--threads' if is_local else 'build.spark.executorCores'}",
        )
    return half, BuildBudget.for_member(half, cores, needs_sample=spec.value.compression == "zstd")


def is_local_master(master: str) -> bool:
    """Return whether the driver's own JVM runs the tasks."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _settings(spec: DatasetSpec, master: str, heap: int, scratch: Path, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of the application: a build's own, those of ``spec``, and ``conf``."""
    is_remote = not is_local_master(master)
    settings = {
        "spark.app.name": f"lookupdb build of {spec.namespace}/{spec.name}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} {_SMALL_JVM if is_remote else ''}",
        "spark.driver.memory": f"{(_DRIVER_HEAP if is_remote else heap) // MIB}m",
        "spark.executor.memory": f"{heap // MIB}m",
        "spark.executor.memoryOverhead": f"{heap // MIB}m",
        "spark.executor.cores": str(spec.spark.executor_cores),
        "spark.executor.instances": str(spec.spark.executors),
    }
    if master.startswith("local"):
        settings |= {
            "spark.local.dir": str(scratch),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
    settings |= _COLLECT_OFTEN if is_remote else {}
    return {**settings, **_SQL_CONF, **dict(spec.spark.conf), **conf}


@contextmanager
def open_session(
    spec: DatasetSpec, threads: int, heap: int, scratch: Path, conf: Mapping[str, str]
) -> Iterator[SparkSession]:
    """Open the Spark session of a build: the active one, with a build's settings, or a new one, which is stopped at the
    end. Raises EngineMissing, SparkFailed."""
    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        with borrow_session(active):
            yield active
        return
    master = choose_master(spec, threads)
    from pyspark.sql.pandas import functions, utils

    for module in (functions, utils):  # keep Spark from importing pandas, 45 MiB, to check its version
        vars(module)["require_minimum_pandas_version"] = lambda: None
    builder = SparkSession.builder.master(master)
    for name, value in _settings(spec, master, heap, scratch, conf).items():
        builder = builder.config(name, value)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # else each thread of the JVM has an arena
    logging.getLogger("py4j").setLevel(logging.WARNING)
    handler = signal.getsignal(signal.SIGINT)
    with ExitStack() as stack:
        try:
            with _standard_error_in(scratch / "spark.log"):
                session = builder.getOrCreate()
        except Exception as error:
            raise EngineMissing(
                f"Spark does not start with the master {master}: {_describe_start(error, scratch / 'spark.log')}",
                hint="Spark 4 needs Java 17 or newer; check build.spark",
            ) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, handler)  # Spark has set a handler of its own
        stack.callback(_stop, session)
        check_version(session)
        try:
            yield session
        except (SparkFailed, NotEnoughRoom):
            with (scratch / "spark.log").open("rb") as file:
                file.seek(max(0, (scratch / "spark.log").stat().st_size - _LOG_BYTES))
                log.warning("Spark's log ends with:\n%s", file.read().decode(errors="replace").rstrip())
            raise


def check_version(session: SparkSession) -> None:
    """Raise EngineMissing if Spark is too old."""
    if tuple(map(int, session.version.split(".")[:2])) < (4, 1):
        raise EngineMissing(f"Spark is {session.version}, a build needs 4.1 or newer", hint="upgrade pyspark and Spark")


@contextmanager
def borrow_session(session: SparkSession) -> Iterator[None]:
    """Apply a build's settings to ``session`` while the block runs."""
    check_version(session)
    before = {name: session.conf.get(name, None) for name in _SQL_CONF}
    try:
        for name, value in _SQL_CONF.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, found in before.items():
            if found is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, found)


@contextmanager
def _standard_error_in(path: Path) -> Iterator[None]:
    """Redirect standard error of child processes to the file at ``path``, because the JVM prints long greetings."""
    saved = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _describe_start(error: Exception, log_file: Path) -> str:
    with suppress(OSError):
        lines = [
            line for line in log_file.read_text(errors="replace").splitlines() if "rror" in line or "xception" in line
        ]
        if lines:
            return lines[0][:300]
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__


def _stop(session: SparkSession) -> None:
    with suppress(Exception):  # a JVM that died has stopped
        session.stop()


def run_job(frame: DataFrame, on_progress: Callable[[float], None]) -> list[Any]:
    """Return the rows of ``frame``, which are few; ``on_progress`` gets the finished share of its tasks. Raises
    NotEnoughRoom, SparkFailed."""
    result: list[Any] = []
    failure: list[BaseException] = []
    context, group = frame.sparkSession.sparkContext, f"lookupdb-{uuid.uuid4().hex}"

    def collect() -> None:
        try:
            context.setJobGroup(group, "lookupdb build", interruptOnCancel=True)
            result.extend(frame.collect())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=collect, name="spark-job", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            with suppress(Exception):  # if the context has failed, the job reports it
                on_progress(_finished_share(context.statusTracker(), group))
    except BaseException:
        with suppress(Exception):
            context.cancelJobGroup(group)
        raise
    if failure:
        raise _translate(failure[0]) from failure[0]
    return result


def call_spark(action: Callable[[], T]) -> T:
    """Return the result of ``action``, which runs something in Spark. Raises NotEnoughRoom, SparkFailed."""
    try:
        return action()
    except Exception as error:
        raise _translate(error) from error


def _finished_share(tracker: Any, group: str) -> float:
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(number) for job in jobs if job for number in job.stageIds]
    tasks = sum(stage.numTasks for stage in stages if stage)
    return sum(stage.numCompletedTasks for stage in stages if stage) / tasks if tasks else 0.0


def _translate(error: BaseException) -> BaseException:
    """Return the error for a job that failed."""
    text = str(error)
    if not isinstance(error, Exception):
        return error
    if _MEMORY_SIGNS.search(text) or _WORKER_DIED in text:
        return NotEnoughRoom(
            "an executor of Spark ran out of memory, or the kernel killed it, probably for lack of memory:"
            f" {_summarize(text)}",
            hint="raise build.spark.executorMemory, or lower build.spark.executorCores",
        )
    if _NOT_THERE in text:
        return EngineMissing(
            "lookupdb is not installed on the executors of Spark",
            hint="install the driver's version there; PYSPARK_PYTHON names the Python that executors run",
        )
    return SparkFailed(
        f"Spark could not finish the build: {_summarize(text)}",
        hint="look at the logs of its executors; run the build again if they were lost",
    )


def _summarize(text: str) -> str:
    """Return the cause that Spark reports, without stack traces."""
    trace = text.partition("Traceback (most recent call last):\n")[2].splitlines()
    if raised := next((line for line in trace if line and not line[0].isspace()), None):
        return raised[:500]  # the exception of a task
    found = re.search(r"(?:ExecutorLostFailure[^\n]*|Most recent failure: [^\n]*|Python worker exited[^\n]*)", text)
    lines = [line for line in text.splitlines() if line.strip()]
    return (found[0] if found else lines[0] if lines else type(text).__name__)[:500]
