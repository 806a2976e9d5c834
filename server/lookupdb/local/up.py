"""Build, roll out, route; with a watch: on a change build again, roll out, cut over, drain, retire.

The same steps in the same order as the operator's, for one dataset, with processes for pods. The last good
generation keeps serving whatever goes wrong with the next.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from lookupdb import store
from lookupdb.build.source.listing import resolve_source, source_fingerprint
from lookupdb.build.source.success_file import describe_success_file, read_success_file
from lookupdb.cluster_fields import describe_left_out
from lookupdb.errors import CorruptFile, LookupdbError, UsageError
from lookupdb.local import bounds, builds
from lookupdb.local.backoff import Backoff
from lookupdb.local.child import ChildFailed
from lookupdb.local.rebuilds import Decision, DesiredInputs, RebuildSchedule, ServingInputs
from lookupdb.local.router import HOST
from lookupdb.local.run_state import DATA_DIRECTORY, DEFAULT_NAMESPACE, RunFolder
from lookupdb.local.serving import Serving
from lookupdb.manifest import Manifest
from lookupdb.runtime import listeners
from lookupdb.runtime.daemon_calls import call_in_thread
from lookupdb.spec import LOCAL, DatasetSpec, read_manifest
from lookupdb.store import superseded
from lookupdb.store.dataset import is_older
from lookupdb.wording import format_command

log = logging.getLogger(__name__)

NOT_REBUILT: Final = "not rebuilt"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `lookupdb up`."""

    manifest: Path
    data: Path
    port: int
    resp_port: int | None
    """None: Redis' own, or the next that is free."""
    watch: bool
    watch_seconds: float
    memory_limit: int | None
    volume: Path | None
    max_servers: int = bounds.MAX_SERVERS
    override_gates: str | None = None
    """A generation that a gate has refused, and that is to pass all the same."""


class Up:
    """One dataset on this machine: ``run()`` until cancelled. ``say`` gets the lines meant for the person."""

    def __init__(self, options: UpOptions, say: Say) -> None:
        self._options = options
        self._say = say
        spec = read_manifest(options.manifest)
        bounds.check_servers(spec, options.max_servers)
        self._folder = RunFolder(options.data, spec.namespace, spec.name)
        store_url = str((options.data / "store").absolute())
        self._builder = builds.Builder(
            builds.BuildRequest(
                f"{spec.namespace}/{spec.name}", options.manifest, store_url, options.memory_limit, options.volume
            )
        )
        self._dataset = store.open_store(store_url, cluster=LOCAL).dataset(spec)
        self._serving = Serving(spec, self._dataset, self._folder, options.port, options.resp_port, options.watch, say)
        self._last_problem = ""
        self._gates = spec.gates.content_hash()
        self._pinned: str | None = None
        self._left_out: tuple[str, ...] = ()
        """The fields of the last manifest that hold in a cluster alone."""
        self._overridden: dict[str, Backoff] = {}
        """The generations with overridden gates that were tried in vain, and when they are tried again."""
        self._unservable: set[str] = set()
        """The generations that an earlier attempt or an earlier `up` has built, and that cannot be served."""

    @property
    def _spec(self) -> DatasetSpec:
        return self._serving.spec

    async def run(self) -> None:
        """Serve until cancelled, then stop everything in order. Raises LookupdbError when it cannot begin, and when
        another `up` has taken the run folder."""
        with self._folder.lock():
            try:
                self._check_ports()
                await self._begin()
                await _until_one_ends(
                    self._serving.keep_files(), self._watch() if self._options.watch else asyncio.Event().wait()
                )
            finally:
                await self._serving.end()

    def kill_builder(self) -> None:
        """End a build that runs at once: whoever stops `up` does not wait for it."""
        self._builder.kill()

    def _check_ports(self) -> None:
        """Raises UsageError when the router could not listen, before time goes into a build."""
        for option, port in (("--port", self._options.port), ("--resp-port", self._options.resp_port or 0)):
            try:
                listeners.bind(HOST, port).close()
            except UsageError as error:
                raise UsageError(error.message, hint=f"give another {option} (0 takes a free one)") from error

    async def _begin(self) -> None:
        self._note_left_out(self._spec)
        self._note_pin(self._spec)
        self._override_gates()
        manifest = builds.find_reusable_generation(self._dataset, self._spec)
        reusable = manifest.generation if manifest else None
        generation = await self._first_generation(manifest)
        if self._options.override_gates not in (None, generation):
            self._say(f"{self._spec.name}: {generation}, which is newer than {self._options.override_gates}, is served")
        try:
            await self._serving.load(generation)
        except ChildFailed as error:
            if generation != reusable:
                raise
            self._say(f"{self._spec.name}: {reusable} cannot be served, building anew\n{error}")
            built = await self._builder.run()
            assert built is not None, "a build without a fingerprint to compare with always builds"
            await self._serving.load(built)
        await self._serving.start()
        self._announce()

    def _override_gates(self) -> None:
        generation = self._options.override_gates
        if generation is not None:
            reasons = "\n".join(self._dataset.admit(generation).overridden)
            self._say(f"{self._spec.name}: {generation} passes, although:\n{reasons}")

    async def _first_generation(self, manifest: Manifest | None) -> str:
        """Return the generation to begin with: a new one, or that of ``manifest`` if the source has not changed or is
        bad."""
        reusable = manifest.generation if manifest else None
        try:
            refused = self._dataset.newest_refused()
            built = await self._builder.run(manifest, manifest, refused)
        except (builds.BuildFailed, builds.BuilderKilled, builds.SourceNotReady) as error:
            if reusable is None:
                raise
            self._say(f"{self._spec.name}: {error}; serving {reusable}, the last good generation")
            return reusable
        if built is not None:
            return built
        assert reusable is not None, "nothing to compare with is always built"
        self._say(f"{self._spec.name}: {reusable} is whole and its source has not changed")
        return reusable

    def _announce(self) -> None:
        spec, url = self._spec, self._serving.url
        key = spec.gates.required_keys[0] if spec.gates.required_keys else "KEY"
        get = format_command("get", *self._data_flag(), _format_dataset(spec), key)
        self._say(
            f"\n  curl {url}/v1/lookup/{quote(key, safe='')}\n  {get}\n"
            f"  {shlex.join(['redis-cli', '-p', str(self._serving.resp_port), 'GET', key])}\n\n"
            f"  Shard servers and admin ports: {self._folder.state_file}; logs: {self._folder.path}/*.log\n"
            "  Ctrl-C stops it all."
        )

    def _data_flag(self) -> list[str]:
        """Return the option by which `lookupdb get` finds this `up`; none where it looks by itself."""
        return [] if self._options.data == DATA_DIRECTORY else ["--data-dir", str(self._options.data)]

    async def _watch(self) -> None:
        """Look at manifest and source every so often, and build and cut over as the looks ask for. Serving goes on
        whatever becomes of a look."""
        schedule, faults, pause = RebuildSchedule(self._desire(self._current_inputs())), Backoff(), 0.0
        while True:
            await asyncio.sleep(max(self._options.watch_seconds, pause))
            try:
                await self._follow(schedule)
            except Exception as error:
                log.exception("looking for changes has failed")
                pause = faults.note_failure()
                self._say(
                    f"{self._spec.name}: looking for changes has failed: {type(error).__name__}: {error}; "
                    f"{self._serving.manifest.generation} keeps serving, tried again in {pause:,.0f} s"
                )
            else:
                pause = 0.0
                faults.reset()

    async def _follow(self, schedule: RebuildSchedule) -> None:
        """Look, and do what follows."""
        desired = await self._look()
        decision = schedule.decide(desired, self._current_inputs())
        if decision is Decision.SETTLE:
            self._say(f"{self._spec.name}: the source goes on changing, waiting for it to settle")
        elif desired is not None and decision is not Decision.REST:
            await self._refresh(desired.serving, schedule, is_again=decision is Decision.BUILD_AGAIN)

    def _current_inputs(self) -> ServingInputs:
        manifest = self._serving.manifest
        return ServingInputs(manifest.content, manifest.fingerprint, self._spec.replicas, self._spec.serving_workers)

    async def _look(self) -> DesiredInputs | None:
        """Do what the store asks for, and return what manifest and source do, None when they cannot be read."""
        try:
            spec = self._read_manifest()
            self._note_gates(spec)
            self._note_left_out(spec)
            self._note_pin(spec)
            await self._serve_overridden(spec)
            serving = await self._read_desired_inputs(spec)
        except LookupdbError as error:
            self._report_not_rebuilt(error.message, _next_step(error))
            return None
        return serving and self._desire(serving)

    def _desire(self, serving: ServingInputs) -> DesiredInputs:
        return DesiredInputs(serving, self._gates, self._serving.manifest.generation)

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

    async def _serve_overridden(self, spec: DatasetSpec) -> None:
        """Cut over to a newer generation that a gate had refused, and that a person has let through since."""
        active = self._serving.manifest.generation
        waiting = [generation for generation, backoff in self._overridden.items() if not backoff.is_due()]
        generation = builds.find_overridden_generation(self._dataset, spec, active, waiting)
        if generation is None:
            return
        self._say(f"{spec.name}: the gates of {generation} are overridden; {active} serves until it is loaded")
        try:
            await self._replace(generation, spec)
        except LookupdbError as error:
            pause = self._overridden.setdefault(generation, Backoff()).note_failure(may_pass=error.may_pass)
            again = f"tried again in {pause:,.0f} s"
            self._say(f"{spec.name}: {error.message}; {active} keeps serving, {again}{_next_step(error)}")

    async def _read_desired_inputs(self, spec: DatasetSpec) -> ServingInputs | None:
        """Return what ``spec`` and the source ask for now, None if the source is not to be read. Raises BadSource."""
        if not await self._is_source_ready(spec):
            return None
        objects = await call_in_thread(resolve_source, spec, volume=self._options.volume)
        self._recover()
        found = source_fingerprint(objects)
        if found is None:  # its server should not have to send it at every check
            self._report_problem(
                "its source's changes are not watched: its server sends neither ETag nor Last-Modified"
            )
        return ServingInputs(
            spec.content_hash(), found or self._current_inputs().fingerprint, spec.replicas, spec.serving_workers
        )

    async def _is_source_ready(self, spec: DatasetSpec) -> bool:
        """Whether the source may be read: its success file, if it has one, is there, and another one than that of what
        is served, or the manifest asks for something else. Raises BadSource."""
        if spec.refresh.success_file is None:
            return True
        success_file = await call_in_thread(read_success_file, spec, volume=self._options.volume)
        if success_file is None:
            self._report_not_rebuilt(f"waiting for {describe_success_file(spec)}")
            return False
        self._recover()
        current = self._serving.manifest
        inputs = (spec.content_hash(), spec.replicas, spec.serving_workers)
        served = (current.content, self._spec.replicas, self._spec.serving_workers)
        return success_file != current.success_file or inputs != served

    def _report_not_rebuilt(self, reason: str, next_step: str = "") -> None:
        problem = f"{NOT_REBUILT}: {reason}"
        active = self._serving.manifest.generation
        self._report_problem(f"{problem}{next_step}", f"{problem}; {active} keeps serving{next_step}")

    def _report_problem(self, problem: str, message: str | None = None) -> None:
        """Say ``problem``, or ``message`` in its place, unless it was the last one said."""
        if problem != self._last_problem:
            self._last_problem = problem
            self._say(f"{self._spec.name}: {message or problem}")

    def _recover(self) -> None:
        """Say once that manifest and source can be read again, when the last word was that they cannot."""
        if self._last_problem.startswith(NOT_REBUILT):
            self._say(f"{self._spec.name}: manifest and source can be read again")
            self._last_problem = ""

    def _read_manifest(self) -> DatasetSpec:
        """Return the manifest as it is now. Raises InvalidManifest, also when it has become another dataset's."""
        old, new = self._spec, read_manifest(self._options.manifest)
        if (new.namespace, new.name) != (old.namespace, old.name):
            raise builds.other_dataset_error(f"{new.namespace}/{new.name}")
        bounds.check_servers(new, self._options.max_servers)
        return new

    async def _refresh(self, desired: ServingInputs, schedule: RebuildSchedule, *, is_again: bool) -> None:
        """Build what is ``desired``, once more where ``is_again``, and cut over. Notes in ``schedule`` how it ends."""
        active = self._serving.manifest
        try:
            spec = self._read_manifest()
            if is_again and builds.is_refused_again(self._dataset, spec, desired.fingerprint, active):
                schedule.note_failure(may_pass=False)  # which has been said
                return
            why = "building again" if is_again else "manifest or source has changed, building"
            self._say(f"{self._spec.name}: {why}; {active.generation} keeps serving")
            await self._build_and_replace(spec, desired)
        except LookupdbError as error:
            pause = schedule.note_failure(may_pass=error.may_pass)
            again = f"tried again in {pause:,.0f} s, or when manifest or source change"
            keeps = f"{active.generation} keeps serving"
            self._say(f"{self._spec.name}: {error.message}; {keeps}, {again}{_next_step(error)}")
        except Exception:
            schedule.note_failure(may_pass=True)
            raise
        else:
            schedule.note_success()

    async def _build_and_replace(self, spec: DatasetSpec, desired: ServingInputs) -> None:
        """Cut over to what is ``desired``, built unless it has been. What has been and cannot be served is built anew
        the next time. Raises LookupdbError."""
        generation, is_new = await self._build(spec, desired)
        try:
            await self._replace(generation, spec)
        except (ChildFailed, CorruptFile):
            if not is_new:  # its files may be damaged; those of a new one are tried once more
                self._say(f"{spec.name}: {generation} cannot be served, the next attempt builds anew")
                self._unservable.add(generation)
            raise
        self._unservable.clear()

    async def _build(self, spec: DatasetSpec, desired: ServingInputs) -> tuple[str, bool]:
        """Return the generation that is ``desired``, and whether it was built now: it is unless it has been. Never one
        before what serves. Raises LookupdbError."""
        active = self._serving.manifest
        if self._unservable:
            self._prune(active.generation)  # they stay in the store: however many are built anew, few are kept
        unless = self._find_built(spec, desired)
        built = await self._builder.run(
            active,
            unless,
            self._dataset.newest_refused(),
            builds.next_generation(self._dataset, active.generation),
        )
        generation = built or (unless or active).generation
        if is_older(generation, active.generation):
            raise LookupdbError(f"the builder has built {generation}, which is older than {active.generation}")
        return generation, built is not None

    def _find_built(self, spec: DatasetSpec, desired: ServingInputs) -> Manifest | None:
        """Return the manifest of what an attempt before has built, unless it cannot be served; else the active one, if
        only the source differs. Raises StoreError."""
        active = self._serving.manifest
        built = builds.find_reusable_generation(self._dataset, spec, desired.fingerprint, self._unservable)
        if built is not None and not is_older(built.generation, active.generation):
            return built
        is_comparable = desired.content == active.content and active.generation not in self._unservable
        return active if is_comparable else None

    async def _replace(self, generation: str, spec: DatasetSpec) -> None:
        """Serve ``generation`` in place of the active one, which goes on if that fails. Raises LookupdbError."""
        await self._serving.replace(generation, spec)
        self._prune(generation)
        self._say(f"{spec.name}: cut over to {generation}")

    def _prune(self, active: str) -> None:
        """Remove generations that are no longer kept. When that fails they stay until the next cutover."""
        try:
            superseded.prune(self._dataset, self._spec.keep_generations, protect={active})
        except LookupdbError as error:
            self._say(f"{self._spec.name}: older generations are not removed: {error}")


def _next_step(error: LookupdbError) -> str:
    """The line of its hint, if it has one."""
    return f"\n  {error.hint}" if error.hint else ""


def _format_dataset(spec: DatasetSpec) -> str:
    return spec.name if spec.namespace == DEFAULT_NAMESPACE else f"{spec.namespace}/{spec.name}"


async def _until_one_ends(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Run all until the first one ends, and raise what it raised; the others are cancelled."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
