"""How the attempts at one thing fail: told in full when it is news, and briefly as long as it is the same."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.builder import existing
from lookupdb.builder.listing import SourceNotWhole
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import GateClosed, InvalidManifest, LookupdbError, SourceUnreadable, UsageError
from lookupdb.manifest import Manifest, generation_number
from lookupdb.store import StoredDataset
from lookupdb.store.dataset import is_older
from lookupdb.up.child import BUILDER_VARIABLES, child_environment, open_output_pipe
from lookupdb.up.rebuilds import SuccessFileAnswer

# `lookupdb build` as a child process, so that a builder's memory goes back to the system when it is done.


MAX_OUTPUT_BYTES: Final = 1 << 20
"""So much is kept of what a builder writes: its report, or, until its end is known, its messages."""

_LEFT_OUT: Final = b"(what the builder wrote before this is left out)\n"
_CONTINUATION_BYTES: Final = bytes(range(0x80, 0xC0))
"""Of a character in UTF-8, all but its first byte."""


class BuildFailed(LookupdbError):
    """`lookupdb build` ended with an error, which it has written to standard error."""

    reason = "BuildFailed"

    def __init__(self, message: str, code: int, *, may_pass: bool = True, cause: str = "") -> None:
        super().__init__(message)
        self.exit_code, self.may_pass = code, may_pass
        self.cause = cause
        """What it has written, as its report has it."""


class BuilderKilled(LookupdbError):
    """A signal ended `lookupdb build`, which has said nothing of it."""

    reason = "BuilderKilled"

    def __init__(self, number: int) -> None:
        why = ", perhaps because memory did not suffice" if number == signal.SIGKILL else ""
        hint = "give the build less by --memory-limit, or the machine more" if why else None
        super().__init__(f"the builder was ended by {_signal_name(number)}{why}", hint=hint)
        self.exit_code = _SIGNALLED + number


_SIGNALLED: Final = 128
"""As a shell has it: the exit code of a program that was ended by a signal is so much more than the signal's number."""
INTERRUPTION_SECONDS: Final = 10.0
"""A builder that is interrupted ends sooner by itself: after that it is killed."""
REST_SECONDS: Final = 2.0
"""Until what a builder has written before its end has come: a process that it has left behind may hold its pipes."""


class SourceNotReady(SourceUnreadable):
    """The success file is not there, and nothing was read."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """The manifest to build, the store, and the limits."""

    dataset: str
    """``namespace/name``: a manifest that has become another one's is none of ours."""
    manifest: Path
    store: str
    memory_limit: int | None
    volume: Path | None

    def arguments(
        self,
        active: Manifest | None,
        unless: Manifest | None,
        unless_refused: str | None,
        generation: str | None,
        observed: SuccessFileAnswer | None,
    ) -> list[str]:
        """Return the arguments of `lookupdb build`."""
        options = {
            "-f": self.manifest,
            "--store": self.store,
            "--memory-limit": self.memory_limit,
            "--volume": self.volume,
            "--active": active and active.generation,
            "--active-records": active and active.totals.records,  # the store may lose it
            "--unless-fingerprint": unless and unless.fingerprint,
            "--unless-success-file": unless and unless.success_file,
            "--seen-success-file": observed and observed.success_file,
            "--seen-fingerprint": observed and observed.fingerprint,
            "--unless-refused": unless_refused,
            "--generation": generation,
        }
        return ["build", *(str(word) for flag, value in options.items() if value is not None for word in (flag, value))]


def find_reusable_generation(
    dataset: StoredDataset,
    spec: DatasetSpec,
    fingerprint: str | None = None,
    unservable: Collection[str] = (),
    *,
    success_file: str | None = None,
) -> Manifest | None:
    """Return the manifest of the newest whole generation that was built to this very spec: of the source with
    ``fingerprint`` or with ``success_file``, or whatever the source has become since; none of ``unservable``."""
    content = spec.content_hash()
    return next(
        (
            manifest
            for manifest in existing.readable_manifests(dataset)
            if manifest.content == content
            and fingerprint in (None, manifest.fingerprint)
            and success_file in (None, manifest.success_file)
            and manifest.generation not in unservable
        ),
        None,
    )


def find_overridden_generation(
    dataset: StoredDataset, spec: DatasetSpec, active: str, waiting: Collection[str]
) -> str | None:
    """Return the newest whole generation after ``active`` that was built to this very spec, whose gates were
    overridden, and that is none of ``waiting``."""
    if not any(is_older(active, generation) for generation in dataset.published_generations()):
        return None  # at nearly every look
    content = spec.content_hash()
    return next(
        (
            manifest.generation
            for manifest in existing.readable_manifests(dataset)
            if manifest.overridden
            and manifest.content == content
            and is_older(active, manifest.generation)
            and manifest.generation not in waiting
        ),
        None,
    )


def next_generation(dataset: StoredDataset, active: str) -> str | None:
    """Return the generation to build after ``active``; None, the next free one, unless the store has lost so much that
    its numbers would begin again. Raises StoreError."""
    return None if is_older(active, dataset.next_generation()) else f"g{generation_number(active) + 1}"


def is_refused_again(dataset: StoredDataset, spec: DatasetSpec, fingerprint: str, active: Manifest) -> bool:
    """Whether a build of the source with ``fingerprint`` would end as the newest refused generation did, judged against
    ``active``: nothing has to be built to know. Raises StoreError."""
    refused = dataset.newest_refused()
    if refused is None:
        return False
    compared = existing.find_active(dataset, active.generation, active.totals.records, spec.gates)
    return existing.find_refusal(dataset, refused, spec, fingerprint, compared) is not None


class Builder:
    """Runs `lookupdb build`, one at a time."""

    def __init__(self, request: BuildRequest) -> None:
        self._request = request
        self._process: asyncio.subprocess.Process | None = None

    async def run(
        self,
        active: Manifest | None = None,
        unless: Manifest | None = None,
        unless_refused: str | None = None,
        generation: str | None = None,
        observed: SuccessFileAnswer | None = None,
        is_told: Callable[[LookupdbError], bool] | None = None,
    ) -> str | None:
        """Build ``generation``, or the next free one, and return its name; None when the source is still that of the
        generation ``unless``. Gates compare with ``active``, also where the store has lost it.

        Raises BuildFailed, BuilderKilled, InvalidManifest when the manifest has become another dataset's,
        SourceNotReady when the success file is not there, and SourceNotWhole when it is still the one that was
        ``observed``, and the source is not. When cancelled, the builder is interrupted and waited for,
        INTERRUPTION_SECONDS at most.

        Standard error gets what the builder writes to it as it comes; with ``is_told`` at its end, and nothing if it
        has failed by an error of which that says that a person has been told.
        """
        arguments = self._request.arguments(active, unless, unless_refused, generation, observed)
        code, output, messages = await self._run(arguments, keeps_messages=is_told is not None)
        try:
            generation = _read_result(code, output, self._request.dataset)
        except LookupdbError as error:
            if is_told is None or not is_told(error):
                _pass_on(messages)
            raise
        _pass_on(messages)
        return generation

    async def _run(self, arguments: list[str], *, keeps_messages: bool) -> tuple[int, bytes, bytes]:
        """Run a builder to its end. Returns its exit code, and the ends of its output and of its messages, if these are
        to be kept."""
        async with AsyncExitStack() as stack:
            output = await stack.enter_async_context(open_output_pipe(MAX_OUTPUT_BYTES))
            messages = await stack.enter_async_context(open_output_pipe(MAX_OUTPUT_BYTES))
            process = self._process = await self._start(
                arguments, stack, output.write_end, messages.write_end if keeps_messages else None
            )
            output.close_write_end()
            messages.close_write_end()
            try:
                code = await process.wait()
                written = await asyncio.gather(output.read(REST_SECONDS), messages.read(REST_SECONDS))
            except asyncio.CancelledError:
                await self._interrupt(process)
                raise
        return code, *written

    async def _start(
        self, arguments: list[str], stack: AsyncExitStack, output: int, messages: int | None
    ) -> asyncio.subprocess.Process:
        """Start a builder that ends when ``stack`` does, or `up`, however that ends."""
        leash, held = os.pipe()
        stack.callback(os.close, held)
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "lookupdb.cli.leash",
                *arguments,
                stdin=leash,
                stdout=output,
                stderr=messages,
                env=child_environment(BUILDER_VARIABLES),
            )
        finally:
            os.close(leash)

    def kill(self) -> None:
        """Kill the builder, if one runs: the next one removes what it leaves."""
        if self._process and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _interrupt(self, process: asyncio.subprocess.Process) -> None:
        """Let the builder undo what it has begun, and end; kill it when that takes too long."""
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.wait(), INTERRUPTION_SECONDS)
        except TimeoutError:
            self.kill()
            await process.wait()


def _pass_on(messages: bytes) -> None:
    """Write a builder's ``messages`` to standard error, as far as that takes them: whole lines, and a note if some have
    been left out."""
    if len(messages) > MAX_OUTPUT_BYTES:
        messages = _LEFT_OUT + (messages.partition(b"\n")[2] or messages[1:].lstrip(_CONTINUATION_BYTES))
    with suppress(OSError):
        sys.stderr.write(messages.decode(errors="backslashreplace"))
        sys.stderr.flush()


def _read_result(code: int, output: bytes, dataset: str) -> str | None:
    """Return the generation of ``dataset`` that a builder has built, by its exit code and standard output; None where
    it had nothing to build. Raises LookupdbError, which may pass unless the builder itself says otherwise."""
    if code < 0:  # whatever it has reported before
        raise BuilderKilled(-code)
    report = _last_report(output)
    if code != 0:
        if report.get("reason") == SourceNotWhole.reason:
            raise SourceNotWhole(report["message"])
        what = "a gate refused it" if code == GateClosed.exit_code else "the build failed"
        may_pass = report.get("outcome") != "failed" or report["mayPass"]
        raise BuildFailed(what, code, may_pass=may_pass, cause=str(report.get("message", "")))
    if not report:
        raise LookupdbError("the builder has ended without a report")
    if report["dataset"] != dataset:
        raise other_dataset_error(report["dataset"])
    if report["outcome"] == "waiting":
        raise SourceNotReady(report["message"])
    return None if report["outcome"] == "unchanged" else str(report["generation"])


def other_dataset_error(name: str) -> InvalidManifest:
    """The error of a manifest that has become that of the dataset ``name``, ``namespace/name``."""
    return InvalidManifest(
        f"the manifest has become that of {name}, which a running `up` cannot change to",
        hint="stop it and start it again",
    )


def _last_report(output: bytes) -> dict[str, Any]:
    """The last line of a builder's standard output; empty where that is no report."""
    try:
        report = orjson.loads(output.splitlines()[-1])
    except (IndexError, orjson.JSONDecodeError):
        return {}
    return report if isinstance(report, dict) else {}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


# How many processes `lookupdb up` may start on one machine: a manifest made for a cluster would take a laptop down.


MAX_SERVERS: Final = 64
"""Shard servers unless --max-servers says otherwise."""
SUPERVISOR_MIB: Final = 30
WORKER_MIB: Final = 12
"""What each process of a shard server takes to itself, beside the shard's data in the page cache: measured, about."""


def count_servers(spec: DatasetSpec) -> int:
    """The shard servers of one generation."""
    return spec.shards * spec.replicas


def check_servers(spec: DatasetSpec, max_servers: int) -> None:
    """Raises UsageError when the dataset needs more than ``max_servers`` shard servers."""
    servers = count_servers(spec)
    if servers <= max_servers:
        return
    processes = servers * (1 + spec.serving_workers)
    mebibytes = servers * (SUPERVISOR_MIB + spec.serving_workers * WORKER_MIB)
    raise UsageError(
        f"{spec.name} needs {servers:,} shard servers (spec.shards {spec.shards:,} × spec.replicas {spec.replicas:,}), "
        f"and `lookupdb up` starts at most {max_servers:,}: they would be {processes:,} processes with about "
        f"{mebibytes / 1024:,.1f} GiB of memory, twice that while a new generation is rolled out",
        hint="to try it out, lower spec.shards (a shard holds millions of records) or spec.replicas; "
        f"a machine that is large enough is asked with --max-servers {servers}",
    )


class RepeatedFailure:
    """The failure of the last attempt, and how many in a row have ended so."""

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None
        self._attempts = 0

    def is_repeated_by(self, error: LookupdbError) -> bool:
        """Whether the last attempt has ended as one with ``error``."""
        return self._last == _identify(error)

    def note(self, error: LookupdbError) -> int:
        """Another attempt has ended with ``error``. Returns how many in a row have."""
        self._attempts = self._attempts + 1 if self.is_repeated_by(error) else 1
        self._last = _identify(error)
        return self._attempts

    def reset(self) -> None:
        """The next failure is news: the attempt is at something else, or the last one has succeeded."""
        self._last = None


def _identify(error: LookupdbError) -> tuple[str, str]:
    """The message that a person reads, from a builder too."""
    return str(error), error.cause if isinstance(error, BuildFailed) else ""
