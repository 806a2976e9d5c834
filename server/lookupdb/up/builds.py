"""Run `lookupdb build` as a child process, find generations to reuse, and limit the number of shard servers."""

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

from lookupdb.builder import existing, gate_facts
from lookupdb.builder.listing import SourceNotWhole
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import GateClosed, InvalidManifest, LookupdbError, SourceUnreadable, UsageError
from lookupdb.manifest import Manifest, generation_number
from lookupdb.store import StoredDataset
from lookupdb.store.dataset import is_older
from lookupdb.up.child import BUILDER_VARIABLES, child_environment, open_output_pipe
from lookupdb.up.rebuilds import SuccessFileAnswer

# `lookupdb build` runs as a child process, so that its memory returns to the system when it is done.


MAX_OUTPUT_BYTES: Final = 1 << 20
"""Size of the end that is kept of a builder's output (its report), and of the messages held back until it ends."""

_LEFT_OUT: Final = b"(what the builder wrote before this is left out)\n"
_CONTINUATION_BYTES: Final = bytes(range(0x80, 0xC0))
"""The bytes of a UTF-8 character after its first."""


class BuildFailed(LookupdbError):
    """`lookupdb build` ended with an error, which it wrote to standard error."""

    reason = "BuildFailed"

    def __init__(self, message: str, code: int, *, may_pass: bool = True, cause: str = "") -> None:
        super().__init__(message)
        self.exit_code, self.may_pass = code, may_pass
        self.cause = cause
        """The error message in the builder's report."""


class BuilderKilled(LookupdbError):
    """A signal ended `lookupdb build`, which could not report an error."""

    reason = "BuilderKilled"

    def __init__(self, number: int) -> None:
        why = ", perhaps because it ran out of memory" if number == signal.SIGKILL else ""
        hint = "lower --memory-limit, or use a machine with more memory" if why else None
        super().__init__(f"the builder was killed by {_signal_name(number)}{why}", hint=hint)
        self.exit_code = _SIGNALLED + number


_SIGNALLED: Final = 128
"""Added to the signal's number to make the exit code of a program that a signal ended, as in a shell."""
INTERRUPTION_SECONDS: Final = 10.0
"""Time that an interrupted builder has to end by itself. After that it is killed."""
REST_SECONDS: Final = 2.0
"""Longest wait for the rest of the output of a builder that ended: a process that it left behind may hold its pipes."""


class SourceNotReady(SourceUnreadable):
    """The success file does not exist, so nothing was read."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """The manifest to build, the store, and the limits."""

    dataset: str
    """``namespace/name``. A manifest that now describes another dataset is an error."""
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
    """Return the manifest of the newest complete generation built with exactly this spec, except those in
    ``unservable``. With ``fingerprint`` or ``success_file``, only a generation of that source counts."""
    content = spec.content_hash()
    return next(
        (
            manifest
            for manifest in gate_facts.readable_manifests(dataset)
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
    """Return the newest complete generation after ``active`` that was built with exactly this spec and whose gates were
    overridden, except those in ``waiting``."""
    if not any(is_older(active, generation) for generation in dataset.published_generations()):
        return None  # the usual case
    content = spec.content_hash()
    return next(
        (
            manifest.generation
            for manifest in gate_facts.readable_manifests(dataset)
            if manifest.overridden
            and manifest.content == content
            and is_older(active, manifest.generation)
            and manifest.generation not in waiting
        ),
        None,
    )


def next_generation(dataset: StoredDataset, active: str) -> str | None:
    """Return the generation to build after ``active`` if the store has lost so much that its next number would be older
    than that, else None: the builder takes the next free number. Raises StoreError."""
    return None if is_older(active, dataset.next_generation()) else f"g{generation_number(active) + 1}"


def is_refused_again(dataset: StoredDataset, spec: DatasetSpec, fingerprint: str, active: Manifest) -> bool:
    """Return whether a build of the source with ``fingerprint`` would be rejected like the newest rejected generation,
    compared with ``active``. This needs no build. Raises StoreError."""
    refused = dataset.newest_refused()
    if refused is None:
        return False
    compared = gate_facts.find_active(dataset, active.generation, active.totals.records, spec.gates)
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
        was_reported: Callable[[LookupdbError], bool] | None = None,
    ) -> str | None:
        """Build ``generation``, or the next free one, and return its name. Return None if the source is still that of
        the generation ``unless``. Gates compare with ``active``, even if the store has lost it.

        Raises BuildFailed, BuilderKilled, InvalidManifest if the manifest now describes another dataset, SourceNotReady
        if the success file does not exist, and SourceNotWhole if the success file is still the one that was
        ``observed``, but the source has changed. When this is cancelled, it interrupts the builder and waits up to
        INTERRUPTION_SECONDS for it to end.

        The builder's messages go to standard error immediately. With ``was_reported`` they are held back until the
        builder ends, and dropped if ``was_reported`` returns True for its error.
        """
        arguments = self._request.arguments(active, unless, unless_refused, generation, observed)
        code, output, messages = await self._run(arguments, keeps_messages=was_reported is not None)
        try:
            generation = _read_result(code, output, self._request.dataset)
        except LookupdbError as error:
            if was_reported is None or not was_reported(error):
                _pass_on(messages)
            raise
        _pass_on(messages)
        return generation

    async def _run(self, arguments: list[str], *, keeps_messages: bool) -> tuple[int, bytes, bytes]:
        """Run a builder to its end. Returns its exit code, the end of its output, and the end of its messages (empty
        unless ``keeps_messages``)."""
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
        """Start a builder that ends when ``stack`` is closed or `up` ends, even if `up` is killed."""
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
        """Kill the builder if one is running. The next one removes what it leaves behind."""
        if self._process and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _interrupt(self, process: asyncio.subprocess.Process) -> None:
        """Let the builder undo its work and end. Kill it if that takes too long."""
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.wait(), INTERRUPTION_SECONDS)
        except TimeoutError:
            self.kill()
            await process.wait()


def _pass_on(messages: bytes) -> None:
    """Write a builder's ``messages`` to standard error in whole lines, with a note if some were left out. Ignores write
    errors."""
    if len(messages) > MAX_OUTPUT_BYTES:
        messages = _LEFT_OUT + (messages.partition(b"\n")[2] or messages[1:].lstrip(_CONTINUATION_BYTES))
    with suppress(OSError):
        sys.stderr.write(messages.decode(errors="backslashreplace"))
        sys.stderr.flush()


def _read_result(code: int, output: bytes, dataset: str) -> str | None:
    """Return the generation of ``dataset`` that a builder built, from its exit code and standard output; None if it had
    nothing to build. Raises LookupdbError; its ``may_pass`` is False only if the builder reported so."""
    if code < 0:  # this overrides any report
        raise BuilderKilled(-code)
    report = _last_report(output)
    if code != 0:
        if report.get("reason") == SourceNotWhole.reason:
            raise SourceNotWhole(report["message"])
        what = "a gate refused it" if code == GateClosed.exit_code else "the build failed"
        may_pass = report.get("outcome") != "failed" or report["mayPass"]
        raise BuildFailed(what, code, may_pass=may_pass, cause=str(report.get("message", "")))
    if not report:
        raise LookupdbError("the builder ended without a report")
    if report["dataset"] != dataset:
        raise other_dataset_error(report["dataset"])
    if report["outcome"] == "waiting":
        raise SourceNotReady(report["message"])
    return None if report["outcome"] == "unchanged" else str(report["generation"])


def other_dataset_error(name: str) -> InvalidManifest:
    """Return the error for a manifest that now describes the dataset ``name`` (``namespace/name``)."""
    return InvalidManifest(
        f"the manifest now describes {name}, and a running `up` cannot change to another dataset",
        hint="stop it and start it again",
    )


def _last_report(output: bytes) -> dict[str, Any]:
    """Return the report in the last line of a builder's standard output; empty if that line is not a report."""
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


# The limit on shard servers: a manifest made for a cluster could overload a laptop.


MAX_SERVERS: Final = 64
"""Default of --max-servers."""
SUPERVISOR_MIB: Final = 30
WORKER_MIB: Final = 12
"""Approximate private memory of each process of a shard server (measured), without the page cache."""


def count_servers(spec: DatasetSpec) -> int:
    """Return the number of shard servers of one generation."""
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
        f"on a machine that is large enough, give --max-servers {servers}",
    )


class RepeatedFailure:
    """Counts consecutive attempts that failed alike, so that only the first is reported in full."""

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None
        self._attempts = 0

    def is_repeated_by(self, error: LookupdbError) -> bool:
        """Return whether the last attempt also failed with ``error``."""
        return self._last == _identify(error)

    def note(self, error: LookupdbError) -> int:
        """Record that an attempt failed with ``error``. Returns the number of consecutive attempts that did."""
        self._attempts = self._attempts + 1 if self.is_repeated_by(error) else 1
        self._last = _identify(error)
        return self._attempts

    def reset(self) -> None:
        """Count from 1 again: the next attempt is a different one, or the last one succeeded."""
        self._last = None


def _identify(error: LookupdbError) -> tuple[str, str]:
    """Return the text by which two failures are the same: the message, and the builder's own message."""
    return str(error), error.cause if isinstance(error, BuildFailed) else ""
