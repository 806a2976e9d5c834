"""Run `lookupdb up`: build, roll out, route. With `--watch`, on a change: build, roll out, cut over, drain, retire.

These are the operator's steps in the same order, for one dataset, with processes instead of pods. The last good
generation keeps serving if the next one fails.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from lookupdb import store
from lookupdb.builder.listing import SourceNotWhole, describe_success_file
from lookupdb.dataset.spec import LOCAL, DatasetSpec
from lookupdb.errors import CorruptFile, LookupdbError, UsageError
from lookupdb.keys import has_same_normalization
from lookupdb.manifest import Manifest
from lookupdb.process import listeners
from lookupdb.store import StoredDataset, sweep
from lookupdb.store.dataset import is_older
from lookupdb.up import builds
from lookupdb.up.builds import RepeatedFailure
from lookupdb.up.child import ChildFailed
from lookupdb.up.observer import SourceObserver, read_manifest_file
from lookupdb.up.rebuilds import (
    Decision,
    DesiredInputs,
    RebuildSchedule,
    RetryPause,
    SuccessFileAnswer,
    find_standing_answer,
)
from lookupdb.up.run_state import DATA_DIRECTORY, DEFAULT_NAMESPACE, KeptAnswer, RunFolder
from lookupdb.up.serving import HOST, Serving
from lookupdb.wording import format_command

# The first generation of `up` is the first of these that can be served: a new build, if the source has changed; the
# newest generation of this spec; if that is damaged, a new build; older generations of this spec.
#
# If the success file was answered already, the source is not read: only existing generations of this spec count, newest
# first. If none can be served, or the source is unchanged since that answer but not built yet, the order above applies.


_BUILD_FAILURES: Final = (builds.BuildFailed, builds.BuilderKilled, builds.SourceNotReady, SourceNotWhole)
_LOAD_FAILURES: Final = (ChildFailed, CorruptFile)


class FirstGenerationLoader:
    """Loads the first generation, from ``dataset`` or built by ``builder``. Generations that cannot be served are added
    to ``unservable``. ``keep`` stores the answer to the success file before a build begins; ``say`` prints a line for
    the user."""

    def __init__(
        self,
        dataset: StoredDataset,
        builder: builds.Builder,
        serving: Serving,
        observer: SourceObserver,
        unservable: set[str],
        keep: Callable[[SuccessFileAnswer], None],
        say: Callable[[str], None],
    ) -> None:
        self._dataset = dataset
        self._builder = builder
        self._serving = serving
        self._observer = observer
        self._unservable = unservable
        self._keep = keep
        self._say = say

    async def load(self, remembered: SuccessFileAnswer | None) -> tuple[str, SuccessFileAnswer | None]:
        """Load the first generation. Returns it and the last answer to a success file, None if there is none.
        ``remembered`` is the last answer of an earlier `up`.

        Raises LookupdbError if no generation can be served: the error of the build, or of a server of the new build.
        """
        reusable = self._find_reusable()
        success_file = None if reusable is None else await self._observer.find_success_file(self._serving.spec)
        observed, expected = None, None if reusable is None else remembered
        if reusable is not None and success_file is not None:
            answer = _find_answer(success_file, reusable, remembered)
            if answer is not None and (generation := await self._load_answered(answer)) is not None:
                return generation, answer
            if answer is None or self._find_reusable() is None:
                answer = await self._observer.observe_source(self._serving.spec, success_file)
            expected = observed = answer  # the source may have changed since
        if observed is not None and observed.fingerprint is not None:
            self._keep(observed)  # before the build, which may be interrupted
        try:
            generation = await self._build(reusable, expected)
        except _BUILD_FAILURES as error:
            answer = answer_failure(observed, error) or remembered
            generation = await self._load_last_good(error, await self._describe_retry(error, answer))
            return generation, answer or find_own_answer(self._serving.manifest)
        answer = None
        if reusable is not None and generation == reusable.generation:
            answer = remembered if observed is None else observed._replace(fingerprint=reusable.fingerprint)
        return generation, answer or find_own_answer(self._serving.manifest)

    def _tell(self, line: str) -> None:
        self._say(f"{self._serving.spec.name}: {line}")

    def _find_reusable(self) -> Manifest | None:
        return builds.find_reusable_generation(self._dataset, self._serving.spec, unservable=self._unservable)

    async def _load_answered(self, answer: SuccessFileAnswer) -> str | None:
        """Load the newest generation that can be served, without a build, and return it. Return None if there is none,
        or if the source is still that of ``answer`` but was not built yet."""
        spec = self._serving.spec
        while (manifest := self._find_reusable()) is not None:
            has_yet_to_be_built = answer.is_of_another(manifest.fingerprint)
            if has_yet_to_be_built and await self._observer.observe_source(spec, answer.success_file) == answer:
                return None
            generation = manifest.generation
            why = f"{describe_success_file(spec)} was handled before, the source is read when it is written again"
            self._tell(f"{why}; serving {generation}")
            if await self._can_load(generation):
                return generation
        return None

    async def _build(self, reusable: Manifest | None, expected: SuccessFileAnswer | None) -> str:
        """Load a new build, or ``reusable`` if the source has not changed since, and return it. ``expected`` is the
        last answer to the success file, perhaps by an earlier `up`: the builder compares the source with it."""
        built = None
        if reusable is None or reusable.generation not in self._unservable:
            built = await self._builder.run(reusable, reusable, self._dataset.newest_refused(), observed=expected)
            if built is None:
                assert reusable is not None, "nothing to compare with is always built"
                self._tell(f"{reusable.generation} is whole and its source has not changed")
                if await self._can_load(reusable.generation):
                    return reusable.generation
        if built is None:
            self._tell("building again")
            built = await self._builder.run(observed=expected)
            assert built is not None, "a build without a fingerprint to compare with always builds"
        await self._serving.load(built)
        return built

    async def _describe_retry(self, failure: LookupdbError, answer: SuccessFileAnswer | None) -> str:
        """Return when `--watch` retries after ``failure``; empty if it does not retry or reports what it waits for."""
        spec = self._serving.spec
        if not self._serving.watch or isinstance(failure, builds.SourceNotReady):
            return ""
        if answer is not None and answer.fingerprint is None:
            return ", retrying when the manifest or the success file changes"
        is_seen = spec.refresh.success_file is not None or await self._observer.is_source_identified(spec)
        return ", retrying once --watch sees the source" if is_seen else ""

    async def _load_last_good(self, failure: LookupdbError, retry: str) -> str:
        """Load the newest generation that can be served, print ``retry``, and return it. Raises ``failure``, the error
        of the build, if none can be served."""
        while (manifest := self._find_reusable()) is not None:
            generation = manifest.generation
            self._tell(f"{failure}; serving {generation}, the last good generation{retry}")
            if await self._can_load(generation):
                return generation
        raise failure

    async def _can_load(self, generation: str) -> bool:
        """Load ``generation``. If that fails, print why, add it to ``unservable`` and return False."""
        try:
            await self._serving.load(generation)
        except _LOAD_FAILURES as error:
            self._tell(f"{generation} cannot be served\n{error}")
            self._unservable.add(generation)
            return False
        return True


def _find_answer(
    success_file: str, reusable: Manifest, remembered: SuccessFileAnswer | None
) -> SuccessFileAnswer | None:
    """Return the answer to ``success_file``; None also if ``reusable`` must be built again from any source."""
    if not has_same_normalization(reusable.normalize, reusable.unicode):
        return None
    return find_standing_answer(success_file, find_own_answer(reusable), remembered)


def find_own_answer(manifest: Manifest) -> SuccessFileAnswer | None:
    """Return the answer to the success file for which ``manifest`` was built; None if it names none."""
    return SuccessFileAnswer(manifest.success_file, manifest.fingerprint) if manifest.success_file else None


def answer_failure(observed: SuccessFileAnswer | None, error: LookupdbError) -> SuccessFileAnswer | None:
    """Return the answer to the success file after a build failed with ``error`` and the source was ``observed``."""
    if observed is None or isinstance(error, builds.SourceNotReady):
        return None
    return None if observed.fingerprint is None and error.may_pass else observed


log = logging.getLogger(__name__)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `lookupdb up`."""

    manifest: Path
    data: Path
    port: int
    resp_port: int | None
    """None: the first free port from the default port of Redis on."""
    watch: bool
    watch_seconds: float
    memory_limit: int | None
    volume: Path | None
    max_servers: int = builds.MAX_SERVERS
    override_gates: str | None = None
    """A rejected generation whose gates are overridden."""


class Up:
    """Serves one dataset on this machine: ``run()`` until cancelled. ``say`` prints a line for the user."""

    def __init__(self, options: UpOptions, say: Say) -> None:
        self._options = options
        self._say = say
        spec = read_manifest_file(options.manifest)
        builds.check_servers(spec, options.max_servers)
        self._folder = RunFolder(options.data, spec.namespace, spec.name)
        store_url = str((options.data / "store").absolute())
        self._builder = builds.Builder(
            builds.BuildRequest(
                f"{spec.namespace}/{spec.name}", options.manifest, store_url, options.memory_limit, options.volume
            )
        )
        self._dataset = store.open_store(store_url, cluster=LOCAL).dataset(spec)
        self._serving = Serving(spec, self._dataset, self._folder, options.port, options.resp_port, options.watch, say)
        self._observer = SourceObserver(options.manifest, options.volume, options.max_servers, self._serving, say)
        self._kept_answer = KeptAnswer(self._folder, options.manifest, options.volume, self._tell)
        self._first_answer: SuccessFileAnswer | None = None
        """The last answer to a success file at startup."""
        self._failure = RepeatedFailure()
        """The failures of builds since the desired inputs last changed."""
        self._overridden: dict[str, RetryPause] = {}
        """Generations with overridden gates that could not be served, and when to retry them."""
        self._last_good: dict[str, RetryPause] = {}
        """Generations that could not be served in place of a damaged one, and when to retry them."""
        self._unservable: set[str] = set()
        """Generations of an earlier attempt or an earlier `up` that could not be served."""

    def _tell(self, line: str) -> None:
        self._say(f"{self._spec.name}: {line}")

    @property
    def _spec(self) -> DatasetSpec:
        return self._serving.spec

    async def run(self) -> None:
        """Serve until cancelled, then stop everything in order. Raises LookupdbError if it cannot start, and if another
        `up` has taken the run folder."""
        with self._folder.lock():
            try:
                self._check_ports()
                await self._begin()
                await _until_one_ends(
                    self._serving.keep_files(),
                    self._serving.keep_servers(),
                    self._watch() if self._options.watch else asyncio.Event().wait(),
                )
            finally:
                self._kept_answer.close()
                await self._serving.end()

    def kill_builder(self) -> None:
        """Kill a running build immediately, so that the user who stops `up` need not wait for it."""
        self._builder.kill()

    def _check_ports(self) -> None:
        """Raises UsageError if the router could not listen. Checked before the build, which takes time."""
        for option, port in (("--port", self._options.port), ("--resp-port", self._options.resp_port or 0)):
            try:
                listeners.check_free(HOST, port)
            except UsageError as error:
                raise UsageError(error.message, hint=f"give another {option} (0 takes a free port)") from error
        if self._options.port and self._options.port == self._options.resp_port:
            raise UsageError(
                f"--port and --resp-port are both {self._options.port}, expected two different ports",
                hint="give another --resp-port (0 takes a free port)",
            )

    async def _begin(self) -> None:
        self._observer.note_manifest(self._spec)
        self._override_gates()
        generation = await self._load_first_generation()
        overridden = self._options.override_gates
        if overridden is not None and is_older(overridden, generation):
            self._say(f"{self._spec.name}: {generation}, which is newer than {overridden}, is served")
        await self._serving.start()
        self._announce()

    async def _load_first_generation(self) -> str:
        """Load the first generation and return it. Raises LookupdbError."""
        content, gates = self._spec.content_hash(), self._spec.gates.content_hash()
        keep = partial(self._kept_answer.keep, content, gates)
        loader = FirstGenerationLoader(
            self._dataset, self._builder, self._serving, self._observer, self._unservable, keep, self._say
        )
        generation, self._first_answer = await loader.load(self._kept_answer.read(content, gates))
        if self._first_answer is not None:
            keep(self._first_answer)
        return generation

    def _override_gates(self) -> None:
        generation = self._options.override_gates
        if generation is not None:
            reasons = "\n".join(self._dataset.admit(generation).overridden)
            self._say(f"{self._spec.name}: {generation} passes, although:\n{reasons}")

    def _announce(self) -> None:
        spec, url = self._spec, self._serving.url
        key = spec.gates.required_keys[0] if spec.gates.required_keys else "KEY"
        get = format_command("get", *self._data_flag(), _format_dataset(spec), key)
        self._say(
            f"\n  curl {url}/v1/lookup/{quote(key, safe='')}\n  {get}\n"
            f"  {shlex.join(['redis-cli', '-p', str(self._serving.resp_port), 'GET', key])}\n"
            f"  lookupdb.open({self._dataset.url!r})  # in Python, on this machine\n\n"
            f"  Shard servers and admin ports: {self._folder.state_file}; logs: {self._folder.path}/*.log\n"
            "  Ctrl-C stops it all."
        )

    def _data_flag(self) -> list[str]:
        """Return the option with which `lookupdb get` finds this `up`; empty for the default folder."""
        return [] if self._options.data == DATA_DIRECTORY else ["--data-dir", str(self._options.data)]

    async def _watch(self) -> None:
        """Check manifest and source every ``watch_seconds``, and build and cut over when needed. Serving continues even
        if a check fails."""
        schedule = RebuildSchedule(self._observer.active_inputs(), answer=self._first_answer)
        faults, pause = RetryPause(), 0.0
        while True:
            await asyncio.sleep(max(self._options.watch_seconds, pause))
            try:
                await self._follow(schedule)
            except Exception as error:
                pause = faults.note_failure()
                self._report_fault(error, pause)
            else:
                pause = 0.0
                faults.reset()

    def _report_fault(self, error: Exception, pause: float) -> None:
        """Print that a check, or the build or cutover after it, failed, and is retried in ``pause`` seconds."""
        rest = f"{self._serving.describe_active()}, retrying in {pause:,.0f} s"
        if isinstance(error, LookupdbError):
            self._tell(f"{error.message}; {rest}{_next_step(error)}")
        else:
            log.error("the check for changes failed", exc_info=error)
            self._tell(f"the check for changes failed: {type(error).__name__}: {error}; {rest}")

    async def _follow(self, schedule: RebuildSchedule) -> None:
        """Check once, and do what the schedule decides."""
        desired = await self._look(schedule)
        serving = None if self._serving.damage else self._observer.serving_inputs()
        decision = schedule.decide(desired, serving)
        self._keep_answer(schedule)  # before the build, which may be interrupted
        if decision is Decision.SETTLE:
            self._say(f"{self._spec.name}: the source keeps changing, waiting for it to settle")
        elif decision is Decision.END_ATTEMPTS:
            self._failure.reset()
            generation = self._serving.manifest.generation
            self._tell(f"{generation} is serving; the pending retry is cancelled")
        elif desired is not None and decision is not Decision.REST:
            await self._refresh(desired, schedule, is_again=decision is Decision.BUILD_AGAIN)
            self._keep_answer(schedule)
        elif self._serving.damage:
            await self._serve_last_good()

    def _keep_answer(self, schedule: RebuildSchedule) -> None:
        if schedule.lasting_answer is not None:
            self._kept_answer.keep(*schedule.lasting_answer)

    async def _look(self, schedule: RebuildSchedule) -> DesiredInputs | None:
        """Serve an overridden generation if there is one. Return the inputs that manifest and source ask for, None if
        they cannot be read."""
        try:
            spec = await self._observer.read_manifest()
            self._observer.note_manifest(spec)
            await self._serve_overridden(spec, schedule)
            return await self._observer.observe(spec, schedule.find_answer)
        except LookupdbError as error:
            self._observer.report_not_rebuilt(error.message, _next_step(error))
            return None

    async def _serve_overridden(self, spec: DatasetSpec, schedule: RebuildSchedule) -> None:
        """Cut over to a newer generation that was rejected and whose gates were overridden since."""
        active = self._serving.manifest.generation
        waiting = [generation for generation, backoff in self._overridden.items() if not backoff.is_due()]
        waiting += self._unservable
        generation = builds.find_overridden_generation(self._dataset, spec, active, waiting)
        if generation is None:
            return
        self._say(f"{spec.name}: the gates of {generation} are overridden; {active} serves until it is loaded")
        try:
            await self._replace(generation, spec)
        except LookupdbError as error:
            pause = self._overridden.setdefault(generation, RetryPause()).note_failure(may_pass=error.may_pass)
            again = f"retrying in {pause:,.0f} s"
            self._say(f"{spec.name}: {error.message}; {self._serving.describe_active()}, {again}{_next_step(error)}")
        else:
            schedule.note_override(self._observer.active_inputs())

    async def _refresh(self, desired: DesiredInputs, schedule: RebuildSchedule, *, is_again: bool) -> None:
        """Build the ``desired`` inputs and cut over. ``is_again``: this is a retry. Records the result in
        ``schedule``."""
        active, name = self._serving.manifest, self._spec.name
        fingerprint = desired.serving.fingerprint
        if not is_again:
            self._failure.reset()
        try:
            spec = await self._observer.read_manifest()
            if is_again and fingerprint and builds.is_refused_again(self._dataset, spec, fingerprint, active):
                schedule.note_failure(may_pass=False)  # already reported
                return
            generation = await self._build_and_replace(spec, desired, is_again=is_again)
        except SourceNotWhole as error:
            schedule.note_failure(may_pass=False)
            self._failure.note(error)
            self._observer.report_not_whole(error, desired.success_file)
        except LookupdbError as error:
            self._report_failure(error, _describe_retry(schedule.note_failure(may_pass=error.may_pass), desired))
        except Exception:
            schedule.note_failure(may_pass=True)
            raise
        else:
            self._failure.reset()
            pause = schedule.note_success(generation, self._observer.serving_inputs())
            if pause is not None:
                other = f"{generation} was built from another source than the last check saw"
                self._say(f"{name}: {other}, building again in {pause:,.0f} s")

    def _report_failure(self, error: LookupdbError, retry: str) -> None:
        """Print why an attempt failed and when it is retried; briefly if the attempts before failed alike."""
        active, attempts = self._serving.describe_active(), self._failure.note(error)
        if attempts == 1:
            self._tell(f"{error.message}; {active}, {retry}{_next_step(error)}")
        else:
            what = error.message.partition("\n")[0]
            self._tell(f"still the same after {attempts} attempts: {what}; {active}, {retry}")

    async def _serve_last_good(self) -> None:
        """Cut over to the newest generation that can be served, if there is one: the active one is damaged, and cannot
        be built again now. A generation that does not start, for example because memory runs out, is retried later.
        Raises LookupdbError."""
        spec = self._serving.spec
        self._unservable.add(self._serving.manifest.generation)
        waiting = {generation for generation, backoff in self._last_good.items() if not backoff.is_due()}
        while manifest := builds.find_reusable_generation(self._dataset, spec, unservable=self._unservable | waiting):
            generation = manifest.generation
            self._tell(f"{self._serving.describe_active()}; serving {generation}, the last good generation")
            try:
                await self._serving.replace(generation, spec)
            except (ChildFailed, CorruptFile) as error:
                pause = self._last_good.setdefault(generation, RetryPause()).note_failure(may_pass=False)
                self._tell(f"{generation} cannot be served\n{error}\n  retrying in {pause:,.0f} s")
                waiting.add(generation)
            else:
                self._last_good.clear()
                self._tell(f"cut over to {generation}")
                return

    def _describe_reason(self, is_again: bool) -> str:
        """Return why a build begins, and what is served meanwhile."""
        if self._serving.damage and not is_again:
            return f"building again; {self._serving.describe_active()}"
        why = "building again" if is_again else "manifest or source has changed, building"
        return f"{why}; {self._serving.describe_active()}"

    async def _build_and_replace(self, spec: DatasetSpec, desired: DesiredInputs, *, is_again: bool) -> str:
        """Cut over to the generation of the ``desired`` inputs and return it; build it first if it does not exist. If
        an existing one cannot be served, the next attempt builds it again. Raises LookupdbError."""
        generation, is_new = await self._build(spec, desired, is_again=is_again)
        if not is_new and self._is_served(generation, desired):
            self._say(f"{spec.name}: the source has not changed since {generation} was built")
            return generation
        try:
            await self._replace(generation, spec)
        except (ChildFailed, CorruptFile):
            if not is_new:  # its files may be damaged; a new generation is retried as it is
                self._say(f"{spec.name}: {generation} cannot be served, the next attempt builds again")
                self._unservable.add(generation)
            raise
        self._unservable.clear()
        return generation

    def _is_served(self, generation: str, desired: DesiredInputs) -> bool:
        """Return whether ``generation`` is served undamaged, by the ``desired`` number of processes."""
        fingerprint = self._serving.manifest.fingerprint
        is_rolled_out = desired.serving._replace(fingerprint=fingerprint) == self._observer.serving_inputs()
        return generation == self._serving.manifest.generation and is_rolled_out and self._serving.damage is None

    async def _build(self, spec: DatasetSpec, desired: DesiredInputs, *, is_again: bool) -> tuple[str, bool]:
        """Return the generation of the ``desired`` inputs, built if it does not exist, and whether it was built now. It
        is never older than the active one. Raises LookupdbError."""
        active = self._serving.manifest
        if self._unservable:
            self._prune(active.generation)  # otherwise repeated builds would fill the store
        earlier = self._find_built(spec, desired)
        if earlier is None or spec.refresh.success_file is None:
            await self._observer.check_source(spec, desired)
        self._tell(self._describe_reason(is_again))
        if earlier is not None and spec.refresh.success_file is not None:
            return earlier.generation, False  # a builder would read a source that may be incomplete now
        unless = earlier or self._find_comparable(desired)
        built = await self._builder.run(
            active,
            unless,
            self._dataset.newest_refused(),
            builds.next_generation(self._dataset, active.generation),
            desired.answer,
            self._failure.is_repeated_by if is_again else None,
        )
        generation = built or (unless or active).generation
        if is_older(generation, active.generation):
            raise LookupdbError(f"the builder built {generation}, which is older than {active.generation}")
        return generation, built is not None

    def _find_built(self, spec: DatasetSpec, desired: DesiredInputs) -> Manifest | None:
        """Return the manifest of an undamaged generation of the ``desired`` inputs that is not older than the active
        one; None if there is none. Raises StoreError."""
        active = self._serving.manifest.generation
        fingerprint = desired.serving.fingerprint
        built = builds.find_reusable_generation(
            self._dataset,
            spec,
            fingerprint,
            self._unservable | ({active} if self._serving.damage else set()),
            success_file=desired.success_file if fingerprint is None else None,
        )
        return None if built is None or is_older(built.generation, active) else built

    def _find_comparable(self, desired: DesiredInputs) -> Manifest | None:
        """Return the active manifest if at most the source has changed and its files are undamaged, else None."""
        active = self._serving.manifest
        is_whole = active.generation not in self._unservable and self._serving.damage is None
        return active if is_whole and desired.serving.content == active.content else None

    async def _replace(self, generation: str, spec: DatasetSpec) -> None:
        """Serve ``generation`` instead of the active one, which keeps serving if that fails. Raises LookupdbError."""
        await self._serving.replace(generation, spec)
        self._prune(generation)
        self._say(f"{spec.name}: cut over to {generation}")

    def _prune(self, active: str) -> None:
        """Remove generations that are no longer kept. If that fails, they stay until the next cutover."""
        try:
            sweep.prune(self._dataset, self._spec.keep_generations, protect={active})
        except LookupdbError as error:
            self._say(f"{self._spec.name}: older generations are not removed: {error}")


def _describe_retry(pause: float | None, desired: DesiredInputs) -> str:
    """Return when the ``desired`` inputs are retried: in ``pause`` seconds, or only after a change if that is None."""
    changed = f"when the manifest or the {'source' if desired.success_file is None else 'success file'} changes"
    return f"retrying {changed}" if pause is None else f"retrying in {pause:,.0f} s, or {changed}"


def _next_step(error: LookupdbError) -> str:
    """Return the hint of ``error`` as a line of its own; empty if it has none."""
    return f"\n  {error.hint}" if error.hint else ""


def _format_dataset(spec: DatasetSpec) -> str:
    return spec.name if spec.namespace == DEFAULT_NAMESPACE else f"{spec.namespace}/{spec.name}"


async def _until_one_ends(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Run all until the first one ends, cancel the others, and raise the error of the first."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
