"""Run a Job of the plugin: create it, wait for it, follow and read its log, and delete it in any case."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import click

from lookupdb.errors import LookupdbError
from lookupdb_operator.cluster.client import AlreadyExists, ApiError, Refused
from lookupdb_operator.plugin.jobs import JobProgress, judge_job
from lookupdb_operator.plugin.options import Seconds
from lookupdb_operator.plugin.session import ClusterSession, Polls
from lookupdb_operator.plugin.views import clean

_POLL_SECONDS: Final = 1.0
_CREATION_SECONDS: Final = 5.0
"""Seconds to wait for the answer to a Job's creation before deleting it."""
_DELETION_SECONDS: Final = 5.0
"""Seconds to retry a Job's deletion."""
_LOG_SECONDS: Final = 30.0
"""Seconds to retry reading the log of a Job that has ended: the log is its only result."""
_LOG_LINES: Final = 5000
_FOLLOWED_SECONDS: Final = 5.0
"""Seconds for the last lines of a log after the pod has ended."""

start_timeout_option: Final = click.option(
    "--start-timeout",
    type=Seconds(1),
    default="5m",
    show_default=True,
    metavar="TIME",
    help="Time limit for the Job's pod to start, as 20s, 5m, 1h or a number of seconds; it may need a new node, and"
    " pull the image.",
)


class JobFailed(LookupdbError):
    """The Job failed."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits for a Job, in seconds."""

    start: float
    """Seconds until its pod runs."""
    end: float

    def judge(self, progress: JobProgress, seconds: float, *, is_known: bool = True) -> str:
        """Return why to give up a Job with this ``progress`` after ``seconds``; empty to keep waiting. Unless
        ``is_known``, the progress is outdated, and the Job may have started."""
        if is_known and progress.phase == "Starting" and seconds >= self.start:
            return f"the Job had not started after {self.start:g} s (--start-timeout): {progress.why}"
        if seconds >= self.end:
            return f"it was not done after {self.end:g} s (--timeout): {progress.why}"
        return ""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """The result of a Job, and its log."""

    progress: JobProgress
    log: str


async def run_job(
    session: ClusterSession,
    namespace: str,
    job: Mapping[str, Any],
    component: str,
    patience: Patience,
    take_line: Callable[[str], None] | None = None,
) -> EndedJob:
    """Run ``job``, whose only container is called ``component``, and print what it waits for. ``take_line`` gets the
    lines of its log. The Job is deleted afterwards in any case. Raises JobFailed at a time limit, ApiError."""
    name = str(job["metadata"]["name"])
    creation = asyncio.ensure_future(session.create_job(namespace, job))
    following: list[asyncio.Task[None]] = []

    def follow(progress: JobProgress) -> None:
        if take_line is not None and progress.phase == "Running" and not following:
            following.append(asyncio.ensure_future(_follow(session, namespace, progress.pod, component, take_line)))

    try:
        await asyncio.shield(creation)
        progress = await _wait_for_end(session, namespace, name, component, patience, follow)
        log = ""
        if progress.pod:
            if following:
                await asyncio.wait(following, timeout=_FOLLOWED_SECONDS)
            log = await _read_log(session, namespace, progress, component)
        return EndedJob(progress, log)
    finally:
        for task in following:
            task.cancel()
        await _delete(session, namespace, name, creation)


async def _read_log(session: ClusterSession, namespace: str, progress: JobProgress, component: str) -> str:
    """Return the log of a Job that has ended; empty if it failed and its log cannot be read, because a container that
    never ran has no log. Raises JobFailed."""
    polls, trouble = Polls(f"the log of pod {progress.pod}", _LOG_SECONDS), ""
    while not trouble:
        try:
            log = await polls.look(lambda: session.read_log(namespace, progress.pod, component, _LOG_LINES))
        except ApiError as error:
            trouble = str(error)
        else:
            if log is not None:
                return log
            trouble = polls.trouble if polls.are_over else ""
            await asyncio.sleep(_POLL_SECONDS)
    if progress.phase == "Succeeded":
        raise JobFailed(f"the Job has succeeded, but its log cannot be read: {trouble}")
    return ""


async def _follow(
    session: ClusterSession, namespace: str, pod: str, container: str, take_line: Callable[[str], None]
) -> None:
    """Pass on the lines of the log. If it cannot be followed, it is still read at the end."""
    with suppress(ApiError):
        async for line in session.follow_log(namespace, pod, container):
            take_line(line)


async def _wait_for_end(
    session: ClusterSession,
    namespace: str,
    name: str,
    component: str,
    patience: Patience,
    follow: Callable[[JobProgress], None],
) -> JobProgress:
    """Return how the Job ended. Report what it waits for. Raises JobFailed when time is up."""
    began, polls = time.monotonic(), Polls(f"Job {name}", patience.end)
    progress = JobProgress("Starting", why="it has not been seen yet")
    told = progress.why
    while True:
        progress = await polls.look(lambda: _look(session, namespace, name, component)) or progress
        if progress.phase in ("Succeeded", "Failed"):
            return progress
        follow(progress)
        if impatience := patience.judge(progress, time.monotonic() - began, is_known=not polls.trouble):
            raise JobFailed(f"{impatience}{polls.describe_trouble()}")
        if progress.why != told:
            told = progress.why
            click.echo(clean(told), err=True)
        await asyncio.sleep(_POLL_SECONDS)


async def _look(session: ClusterSession, namespace: str, name: str, component: str) -> JobProgress:
    job, pods = await session.get_job(namespace, name), await session.list_pods_of_job(namespace, name)
    if job is None:
        return JobProgress("Failed", why=f"Job {name} is gone: somebody has deleted it")
    pod = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""), default=None)
    subject = ("Job", name) if pod is None else ("Pod", pod["metadata"]["name"])
    is_starting = pod is None or (pod.get("status") or {}).get("phase", "Pending") == "Pending"
    warnings = await session.list_warnings(namespace, *subject) if is_starting else ()
    return judge_job(job, pod, warnings, component)


async def _delete(session: ClusterSession, namespace: str, name: str, creation: asyncio.Future[None]) -> None:
    """Delete the Job. It may exist although its creation got no answer."""
    await asyncio.wait((creation,), timeout=_CREATION_SECONDS)
    creation.cancel()
    if creation.done() and not creation.cancelled() and isinstance(creation.exception(), Refused | AlreadyExists):
        return
    if trouble := await _try_deletion(session, namespace, name):
        click.echo(clean(f"Job {name} is not deleted, and ends by itself: {trouble}"), err=True)


async def _try_deletion(session: ClusterSession, namespace: str, name: str) -> str:
    """Delete the Job. Return why that failed; empty on success."""

    async def delete() -> bool:
        await session.delete_job(namespace, name)
        return True

    polls = Polls(f"Job {name}", _DELETION_SECONDS)
    try:
        while not await polls.look(delete):
            if polls.are_over:
                return polls.trouble
            await asyncio.sleep(_POLL_SECONDS)
    except ApiError as error:
        return str(error)
    return ""
