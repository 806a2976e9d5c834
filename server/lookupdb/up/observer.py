"""Observe what manifest and source ask for, at each check of `up --watch`, and report each change once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from lookupdb.builder.listing import (
    SourceNotWhole,
    describe_success_file,
    not_whole_error,
    read_success_file,
    resolve_source,
    source_fingerprint,
)
from lookupdb.dataset.spec import DatasetSpec, describe_left_out, read_manifest
from lookupdb.errors import InvalidManifest, LookupdbError
from lookupdb.process.daemon_calls import call_in_thread
from lookupdb.up import builds
from lookupdb.up.rebuilds import DesiredInputs, ServingInputs, SuccessFileAnswer
from lookupdb.up.serving import Serving

NOT_REBUILT: Final = "not rebuilt"

FindAnswer = Callable[[str, str], SuccessFileAnswer | None]
"""``RebuildSchedule.find_answer``."""


def read_manifest_file(path: Path) -> DatasetSpec:
    """Return the manifest in the file at ``path``. Raises InvalidManifest, also for a pipe: `up` and its builders read
    it more than once, and each would wait for who writes to it."""
    with suppress(OSError):  # then reading it says why
        if path.is_fifo():
            raise InvalidManifest(f"{path} is a pipe, expected a file", hint="write what it gives to a file first")
    return read_manifest(path)


class SourceObserver:
    """Reads the manifest at ``path`` and its source, for what ``serving`` serves. ``say`` gets the lines meant for the
    person."""

    def __init__(
        self, path: Path, volume: Path | None, max_servers: int, serving: Serving, say: Callable[[str], None]
    ) -> None:
        self._path = path
        self._volume = volume
        self._max_servers = max_servers
        self._serving = serving
        self._say = say
        self._last_problem = ""
        self._gates = serving.spec.gates.content_hash()
        self._pinned: str | None = None
        self._left_out: tuple[str, ...] = ()
        """The fields of the last manifest that hold in a cluster alone."""

    def serving_inputs(self) -> ServingInputs:
        """What the active generation was built and rolled out from."""
        manifest, spec = self._serving.manifest, self._serving.spec
        return ServingInputs(manifest.content, manifest.fingerprint, spec.replicas, spec.serving_workers)

    def active_inputs(self) -> DesiredInputs:
        """The same, as if it were desired."""
        return self._desire(self.serving_inputs(), self._serving.manifest.success_file)

    def _desire(self, serving: ServingInputs, success_file: str | None) -> DesiredInputs:
        return DesiredInputs(serving, self._gates, self._serving.manifest.generation, success_file)

    async def read_manifest(self) -> DatasetSpec:
        """Return the manifest as it is now. Raises InvalidManifest, also when it has become another dataset's."""
        old, new = self._serving.spec, await call_in_thread(read_manifest_file, self._path)
        if (new.namespace, new.name) != (old.namespace, old.name):
            raise builds.other_dataset_error(f"{new.namespace}/{new.name}")
        builds.check_servers(new, self._max_servers)
        return new

    def note_manifest(self, spec: DatasetSpec) -> None:
        """Say what has changed in the manifest that is followed in another way than in a cluster, or not at once."""
        self._note_gates(spec)
        self._note_left_out(spec)
        self._note_pin(spec)

    def _note_gates(self, spec: DatasetSpec) -> None:
        gates = spec.gates.content_hash()
        if gates != self._gates:
            self._gates = gates
            self._say(f"{spec.name}: spec.gates has changed: what is built from now on is judged by it")

    def _note_left_out(self, spec: DatasetSpec) -> None:
        """Say of each field that holds in a cluster alone what is done instead, when the manifest first has it."""
        for sentence in describe_left_out(path for path in spec.cluster_fields if path not in self._left_out):
            self._say(f"{spec.name}: {sentence}")
        self._left_out = spec.cluster_fields

    def _note_pin(self, spec: DatasetSpec) -> None:
        """Say of a pinned generation that it is not gone back to: who has just put out bad data waits for that."""
        if spec.pinned and spec.pinned != self._pinned:
            self._say(
                f"{spec.name}: spec.generation: {spec.pinned} has no effect here, what was built last is served; "
                "to go back, put the old source back"
            )
        self._pinned = spec.pinned

    async def observe(self, spec: DatasetSpec, find_answer: FindAnswer) -> DesiredInputs | None:
        """Return what ``spec`` and the source ask for now, None if the source is not whole. Where its success file has
        been answered, it is not read, and desired as it was then. Raises BadSource."""
        success_file = None
        if spec.refresh.success_file is not None:
            success_file = await call_in_thread(read_success_file, spec, volume=self._volume)
            if success_file is None:
                self.report_not_rebuilt(f"waiting for {describe_success_file(spec)}")
                return None
        content = spec.content_hash()
        answer = None if success_file is None else find_answer(content, success_file)
        if answer is None:
            fingerprint = await self._read_fingerprint(spec)
        else:
            fingerprint = answer.fingerprint
            self._recover()
        return self._desire(ServingInputs(content, fingerprint, spec.replicas, spec.serving_workers), success_file)

    async def find_success_file(self, spec: DatasetSpec) -> str | None:
        """Return the identity of the success file, None if ``spec`` names none or it cannot be read: a builder says
        why."""
        if spec.refresh.success_file is not None:
            with suppress(LookupdbError):
                return await call_in_thread(read_success_file, spec, volume=self._volume)
        return None

    async def observe_source(self, spec: DatasetSpec, success_file: str) -> SuccessFileAnswer | None:
        """Return what the source is now under ``success_file``, whose identity was read before; None if that cannot be
        told: a builder says why."""
        with suppress(LookupdbError):
            return SuccessFileAnswer(success_file, await self._find_fingerprint(spec))
        return None

    async def is_source_identified(self, spec: DatasetSpec) -> bool:
        """Whether a look can tell now that the source is another one."""
        with suppress(LookupdbError):
            return await self._find_fingerprint(spec) is not None
        return False

    async def _read_fingerprint(self, spec: DatasetSpec) -> str | None:
        """That of the source; None where a success file alone tells that it is another one. Raises BadSource."""
        found = await self._find_fingerprint(spec)
        self._recover()
        if found is not None or spec.refresh.success_file is not None:
            return found
        # its server should not have to send it at every look
        self._report_problem("its source's changes are not watched: its server sends neither ETag nor Last-Modified")
        return self._serving.manifest.fingerprint

    async def _find_fingerprint(self, spec: DatasetSpec) -> str | None:
        return source_fingerprint(await call_in_thread(resolve_source, spec, volume=self._volume))

    async def check_source(self, spec: DatasetSpec, desired: DesiredInputs) -> None:
        """Raises SourceNotWhole if ``spec`` names a success file and the source is not the one that is ``desired``,
        BadSource if it cannot be read. Of what nothing identifies the builder tells, which fetches it."""
        fingerprint = desired.serving.fingerprint
        if spec.refresh.success_file is None or fingerprint is None:
            return
        if await self._find_fingerprint(spec) not in (None, fingerprint):
            raise not_whole_error(spec)

    def report_not_rebuilt(self, reason: str, next_step: str = "") -> None:
        """Say once why nothing is built, and what keeps serving."""
        problem = f"{NOT_REBUILT}: {reason}"
        self._report_problem(f"{problem}{next_step}", f"{problem}; {self._serving.describe_active()}{next_step}")

    def report_not_whole(self, error: SourceNotWhole, success_file: str | None) -> None:
        """Say once for a ``success_file`` why the source is not read."""
        self._report_problem(f"{error.message} ({success_file})", f"{error.message}; {self._serving.describe_active()}")

    def _report_problem(self, problem: str, message: str | None = None) -> None:
        """Say ``problem``, or ``message`` in its place, unless it was the last one said."""
        if problem != self._last_problem:
            self._last_problem = problem
            self._say(f"{self._serving.spec.name}: {message or problem}")

    def _recover(self) -> None:
        """Say once that manifest and source can be read again, when the last word was that they cannot."""
        if self._last_problem.startswith(NOT_REBUILT):
            self._say(f"{self._serving.spec.name}: manifest and source can be read again")
            self._last_problem = ""
