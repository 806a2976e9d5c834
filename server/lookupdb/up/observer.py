"""Read the manifest and the source at each check of `up --watch`, and report each change once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from lookupdb.builder.files import source_fingerprint
from lookupdb.builder.listing import (
    SourceNotWhole,
    describe_success_file,
    not_whole_error,
    read_success_file,
    resolve_source,
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
    the file more than once, and a second read of a pipe would block."""
    with suppress(OSError):  # then reading it reports why
        if path.is_fifo():
            raise InvalidManifest(f"{path} is a pipe, expected a file", hint="write what it gives to a file first")
    return read_manifest(path)


class SourceObserver:
    """Reads the manifest at ``path`` and its source, and compares them with what ``serving`` serves. ``say`` prints a
    line for the user."""

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
        """The fields of the last manifest that apply only in a cluster."""

    def serving_inputs(self) -> ServingInputs:
        """Return the inputs from which the active generation was built and rolled out."""
        manifest, spec = self._serving.manifest, self._serving.spec
        return ServingInputs(manifest.content, manifest.fingerprint, spec.replicas, spec.serving_workers)

    def active_inputs(self) -> DesiredInputs:
        """Return the inputs of the active generation as if they were desired."""
        return self._desire(self.serving_inputs(), self._serving.manifest.success_file)

    def _desire(self, serving: ServingInputs, success_file: str | None) -> DesiredInputs:
        return DesiredInputs(serving, self._gates, self._serving.manifest.generation, success_file)

    async def read_manifest(self) -> DatasetSpec:
        """Return the current manifest. Raises InvalidManifest, also if it now describes another dataset."""
        old, new = self._serving.spec, await call_in_thread(read_manifest_file, self._path)
        if (new.namespace, new.name) != (old.namespace, old.name):
            raise builds.other_dataset_error(f"{new.namespace}/{new.name}")
        builds.check_servers(new, self._max_servers)
        return new

    def note_manifest(self, spec: DatasetSpec) -> None:
        """Print changes of the manifest that take effect later, or that `up` treats otherwise than a cluster."""
        self._note_gates(spec)
        self._note_left_out(spec)
        self._note_pin(spec)

    def _note_gates(self, spec: DatasetSpec) -> None:
        gates = spec.gates.content_hash()
        if gates != self._gates:
            self._gates = gates
            self._say(f"{spec.name}: spec.gates has changed: it applies from the next build on")

    def _note_left_out(self, spec: DatasetSpec) -> None:
        """For each field that applies only in a cluster, print once what `up` does instead."""
        for sentence in describe_left_out(path for path in spec.cluster_fields if path not in self._left_out):
            self._say(f"{spec.name}: {sentence}")
        self._left_out = spec.cluster_fields

    def _note_pin(self, spec: DatasetSpec) -> None:
        """Print that a pinned generation has no effect: a user who has just published bad data may rely on it."""
        if spec.pinned and spec.pinned != self._pinned:
            self._say(
                f"{spec.name}: spec.generation: {spec.pinned} has no effect here, the newest build is served; "
                "to go back, restore the old source"
            )
        self._pinned = spec.pinned

    async def observe(self, spec: DatasetSpec, find_answer: FindAnswer) -> DesiredInputs | None:
        """Return the inputs that ``spec`` and the source ask for now, None if the source is incomplete. If its success
        file was handled already, the source is not read, and its fingerprint from that time counts. Raises
        BadSource."""
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
        """Return the identity of the success file, None if ``spec`` names none or it cannot be read: the builder
        reports why."""
        if spec.refresh.success_file is not None:
            with suppress(LookupdbError):
                return await call_in_thread(read_success_file, spec, volume=self._volume)
        return None

    async def observe_source(self, spec: DatasetSpec, success_file: str) -> SuccessFileAnswer | None:
        """Return the current fingerprint of the source, with ``success_file``, an identity that was read before; None
        if the source cannot be read: the builder reports why."""
        with suppress(LookupdbError):
            return SuccessFileAnswer(success_file, await self._find_fingerprint(spec))
        return None

    async def is_source_identified(self, spec: DatasetSpec) -> bool:
        """Return whether a check can now notice a change of the source."""
        with suppress(LookupdbError):
            return await self._find_fingerprint(spec) is not None
        return False

    async def _read_fingerprint(self, spec: DatasetSpec) -> str | None:
        """Return the source's fingerprint; None if only a success file shows changes of the source. Raises
        BadSource."""
        found = await self._find_fingerprint(spec)
        self._recover()
        if found is not None or spec.refresh.success_file is not None:
            return found
        # without a fingerprint, every check would have to fetch all of it
        self._report_problem("its source's changes are not watched: its server sends neither ETag nor Last-Modified")
        return self._serving.manifest.fingerprint

    async def _find_fingerprint(self, spec: DatasetSpec) -> str | None:
        return source_fingerprint(await call_in_thread(resolve_source, spec, volume=self._volume))

    async def check_source(self, spec: DatasetSpec, desired: DesiredInputs) -> None:
        """Raises SourceNotWhole if ``spec`` names a success file and the source is not the ``desired`` one, BadSource
        if it cannot be read. If the source has no fingerprint, the builder checks it while it fetches."""
        fingerprint = desired.serving.fingerprint
        if spec.refresh.success_file is None or fingerprint is None:
            return
        if await self._find_fingerprint(spec) not in (None, fingerprint):
            raise not_whole_error(spec)

    def report_not_rebuilt(self, reason: str, next_step: str = "") -> None:
        """Print once why nothing is built, and which generation keeps serving."""
        problem = f"{NOT_REBUILT}: {reason}"
        self._report_problem(f"{problem}{next_step}", f"{problem}; {self._serving.describe_active()}{next_step}")

    def report_not_whole(self, error: SourceNotWhole, success_file: str | None) -> None:
        """Print once for each ``success_file`` why the source is not read."""
        self._report_problem(f"{error.message} ({success_file})", f"{error.message}; {self._serving.describe_active()}")

    def _report_problem(self, problem: str, message: str | None = None) -> None:
        """Print ``message`` (default: ``problem``), unless ``problem`` was the last one printed."""
        if problem != self._last_problem:
            self._last_problem = problem
            self._say(f"{self._serving.spec.name}: {message or problem}")

    def _recover(self) -> None:
        """Print that manifest and source can be read again, if the last message was that they cannot."""
        if self._last_problem.startswith(NOT_REBUILT):
            self._say(f"{self._serving.spec.name}: manifest and source can be read again")
            self._last_problem = ""
