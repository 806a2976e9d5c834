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
    Backoff,
    Decision,
    DesiredInputs,
    RebuildSchedule,
    SuccessFileAnswer,
    find_standing_answer,
)
from lookupdb.up.run_state import DATA_DIRECTORY, DEFAULT_NAMESPACE, KeptAnswer, RunFolder
from lookupdb.up.serving import HOST, Serving
from lookupdb.wording import format_command

# The generation that `up` begins with, in this order, until one can be served: what is built now, if the source has
# changed; the newest that was built to this spec; if that is damaged, what is built again; those before it.
#
# Where the success file has been answered, the source is not read: the newest that was built to this spec, and those
# before it. Where none of them can be served, or the source is still the one that was answered and has yet to be built,
# it goes on as above.


_BUILD_FAILURES: Final = (builds.BuildFailed, builds.BuilderKilled, builds.SourceNotReady, SourceNotWhole)
_LOAD_FAILURES: Final = (ChildFailed, CorruptFile)


class FirstGenerationLoader:
    """Begins with what is in ``dataset``, or what ``builder`` makes. Those that cannot be served are added to
    ``unservable``. ``keep`` gets how the success file is answered before anything is built for it, ``say`` the lines
    meant for the person."""

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
        """Load the generation to begin with. Returns it, and which success file has been answered last, and how; None
        where none has. An earlier `up` has answered one by ``remembered``.

        Raises LookupdbError where there is none: how the build has failed, or a server of what it has built.
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
            expected = observed = answer  # a source that has just been looked at may be another one by now
        if observed is not None and observed.fingerprint is not None:
            self._keep(observed)  # what follows may be cut short
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
        """Load the newest that can be served, and return it: the source is not read. None where there is none, and
        where the source is still the one of ``answer``, and has yet to be built."""
        spec = self._serving.spec
        while (manifest := self._find_reusable()) is not None:
            has_yet_to_be_built = answer.is_of_another(manifest.fingerprint)
            if has_yet_to_be_built and await self._observer.observe_source(spec, answer.success_file) == answer:
                return None
            generation = manifest.generation
            why = f"{describe_success_file(spec)} was answered before, and nothing is read until it is written anew"
            self._tell(f"{why}; serving {generation}")
            if await self._can_load(generation):
                return generation
        return None

    async def _build(self, reusable: Manifest | None, expected: SuccessFileAnswer | None) -> str:
        """Load what is built now, or ``reusable`` if the source is still that one's, and return it. ``expected``
        is what it was under its success file: for an earlier `up`, where that is not there now, and may be for the
        builder."""
        built = None
        if reusable is None or reusable.generation not in self._unservable:
            built = await self._builder.run(reusable, reusable, self._dataset.newest_refused(), observed=expected)
            if built is None:
                assert reusable is not None, "nothing to compare with is always built"
                self._tell(f"{reusable.generation} is whole and its source has not changed")
                if await self._can_load(reusable.generation):
                    return reusable.generation
        if built is None:
            self._tell("building anew")
            built = await self._builder.run(observed=expected)
            assert built is not None, "a build without a fingerprint to compare with always builds"
        await self._serving.load(built)
        return built

    async def _describe_retry(self, failure: LookupdbError, answer: SuccessFileAnswer | None) -> str:
        """When a watch builds again after ``failure``; empty where it does not, or says itself what it waits for."""
        spec = self._serving.spec
        if not self._serving.watch or isinstance(failure, builds.SourceNotReady):
            return ""
        if answer is not None and answer.fingerprint is None:
            return ", tried again when manifest or success file change"
        is_seen = spec.refresh.success_file is not None or await self._observer.is_source_identified(spec)
        return ", tried again once --watch sees it" if is_seen else ""

    async def _load_last_good(self, failure: LookupdbError, retry: str) -> str:
        """Load the newest that can be served, say ``retry``, and return it. Raises ``failure``, the build's, if none
        can."""
        while (manifest := self._find_reusable()) is not None:
            generation = manifest.generation
            self._tell(f"{failure}; serving {generation}, the last good generation{retry}")
            if await self._can_load(generation):
                return generation
        raise failure

    async def _can_load(self, generation: str) -> bool:
        """Load ``generation``. If that fails, say why, add it to ``unservable`` and return False."""
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
    """Return how ``success_file`` was answered; None also where ``reusable`` must be built again from any source."""
    if not has_same_normalization(reusable.normalize, reusable.unicode):
        return None
    return find_standing_answer(success_file, find_own_answer(reusable), remembered)


def find_own_answer(manifest: Manifest) -> SuccessFileAnswer | None:
    """Return the success file that ``manifest`` has been built under, as answered; None if it names none."""
    return SuccessFileAnswer(manifest.success_file, manifest.fingerprint) if manifest.success_file else None


def answer_failure(observed: SuccessFileAnswer | None, error: LookupdbError) -> SuccessFileAnswer | None:
    """Return how a build that has ended with ``error`` answers the success file, after the source was ``observed``."""
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
    """None: Redis' own, or the next that is free."""
    watch: bool
    watch_seconds: float
    memory_limit: int | None
    volume: Path | None
    max_servers: int = builds.MAX_SERVERS
    override_gates: str | None = None
    """A generation that a gate has refused, and that is to pass all the same."""


class Up:
    """One dataset on this machine: ``run()`` until cancelled. ``say`` gets the lines meant for the person."""

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
        """How which success file had been answered last at the start."""
        self._failure = RepeatedFailure()
        """Of the attempts at what is desired."""
        self._overridden: dict[str, Backoff] = {}
        """The generations with overridden gates that were tried in vain, and when they are tried again."""
        self._last_good: dict[str, Backoff] = {}
        """The generations that were to take the place of what is damaged, in vain, and when they are tried again."""
        self._unservable: set[str] = set()
        """The generations that an earlier attempt or an earlier `up` has built, and that could not be served."""

    def _tell(self, line: str) -> None:
        self._say(f"{self._spec.name}: {line}")

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
                    self._serving.keep_files(),
                    self._serving.keep_servers(),
                    self._watch() if self._options.watch else asyncio.Event().wait(),
                )
            finally:
                self._kept_answer.close()
                await self._serving.end()

    def kill_builder(self) -> None:
        """End a build that runs at once: whoever stops `up` does not wait for it."""
        self._builder.kill()

    def _check_ports(self) -> None:
        """Raises UsageError when the router could not listen, before time goes into a build."""
        for option, port in (("--port", self._options.port), ("--resp-port", self._options.resp_port or 0)):
            try:
                listeners.check_free(HOST, port)
            except UsageError as error:
                raise UsageError(error.message, hint=f"give another {option} (0 takes a free one)") from error
        if self._options.port and self._options.port == self._options.resp_port:
            raise UsageError(
                f"--port and --resp-port are both {self._options.port}, and each needs one of its own",
                hint="give another --resp-port (0 takes a free one)",
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
        """Raises LookupdbError."""
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
        """Return the option by which `lookupdb get` finds this `up`; none where it looks by itself."""
        return [] if self._options.data == DATA_DIRECTORY else ["--data-dir", str(self._options.data)]

    async def _watch(self) -> None:
        """Look at manifest and source every so often, and build and cut over as the looks ask for. Serving goes on
        whatever becomes of a look."""
        schedule = RebuildSchedule(self._observer.active_inputs(), answer=self._first_answer)
        faults, pause = Backoff(), 0.0
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
        """Say that a look, or what follows from it, has failed, and is tried again in ``pause`` seconds."""
        rest = f"{self._serving.describe_active()}, tried again in {pause:,.0f} s"
        if isinstance(error, LookupdbError):
            self._tell(f"{error.message}; {rest}{_next_step(error)}")
        else:
            log.error("looking for changes has failed", exc_info=error)
            self._tell(f"looking for changes has failed: {type(error).__name__}: {error}; {rest}")

    async def _follow(self, schedule: RebuildSchedule) -> None:
        """Look, and do what follows."""
        desired = await self._look(schedule)
        serving = None if self._serving.damage else self._observer.serving_inputs()
        decision = schedule.decide(desired, serving)
        self._keep_answer(schedule)  # before it is built, which may be cut short
        if decision is Decision.SETTLE:
            self._say(f"{self._spec.name}: the source goes on changing, waiting for it to settle")
        elif decision is Decision.END_ATTEMPTS:
            self._failure.reset()
            generation = self._serving.manifest.generation
            self._tell(f"nothing has to be tried again: {generation}, which serves, is what is asked for")
        elif desired is not None and decision is not Decision.REST:
            await self._refresh(desired, schedule, is_again=decision is Decision.BUILD_AGAIN)
            self._keep_answer(schedule)
        elif self._serving.damage:
            await self._serve_last_good()

    def _keep_answer(self, schedule: RebuildSchedule) -> None:
        if schedule.lasting_answer is not None:
            self._kept_answer.keep(*schedule.lasting_answer)

    async def _look(self, schedule: RebuildSchedule) -> DesiredInputs | None:
        """Do what the store asks for, and return what manifest and source do, None when they cannot be read."""
        try:
            spec = await self._observer.read_manifest()
            self._observer.note_manifest(spec)
            await self._serve_overridden(spec, schedule)
            return await self._observer.observe(spec, schedule.find_answer)
        except LookupdbError as error:
            self._observer.report_not_rebuilt(error.message, _next_step(error))
            return None

    async def _serve_overridden(self, spec: DatasetSpec, schedule: RebuildSchedule) -> None:
        """Cut over to a newer generation that a gate had refused, and that a person has let through since."""
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
            pause = self._overridden.setdefault(generation, Backoff()).note_failure(may_pass=error.may_pass)
            again = f"tried again in {pause:,.0f} s"
            self._say(f"{spec.name}: {error.message}; {self._serving.describe_active()}, {again}{_next_step(error)}")
        else:
            schedule.note_override(self._observer.active_inputs())

    async def _refresh(self, desired: DesiredInputs, schedule: RebuildSchedule, *, is_again: bool) -> None:
        """Build what is ``desired``, once more where ``is_again``, and cut over. Notes in ``schedule`` how it ends."""
        active, name = self._serving.manifest, self._spec.name
        fingerprint = desired.serving.fingerprint
        if not is_again:
            self._failure.reset()
        try:
            spec = await self._observer.read_manifest()
            if is_again and fingerprint and builds.is_refused_again(self._dataset, spec, fingerprint, active):
                schedule.note_failure(may_pass=False)  # which has been said
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
                other = f"{generation} was built from another source than the one seen last"
                self._say(f"{name}: {other}, which is tried again in {pause:,.0f} s")

    def _report_failure(self, error: LookupdbError, retry: str) -> None:
        """Say how an attempt has failed, and when it is made again: briefly if those before have failed alike."""
        active, attempts = self._serving.describe_active(), self._failure.note(error)
        if attempts == 1:
            self._tell(f"{error.message}; {active}, {retry}{_next_step(error)}")
        else:
            what = error.message.partition("\n")[0]
            self._tell(f"still the same after {attempts} attempts: {what}; {active}, {retry}")

    async def _serve_last_good(self) -> None:
        """Cut over to the newest generation that can be served, if there is one: what is active is damaged, and cannot
        be built again now. What does not start, for want of memory say, is tried again. Raises LookupdbError."""
        spec = self._serving.spec
        self._unservable.add(self._serving.manifest.generation)
        waiting = {generation for generation, backoff in self._last_good.items() if not backoff.is_due()}
        while manifest := builds.find_reusable_generation(self._dataset, spec, unservable=self._unservable | waiting):
            generation = manifest.generation
            self._tell(f"{self._serving.describe_active()}; serving {generation}, the last good generation")
            try:
                await self._serving.replace(generation, spec)
            except (ChildFailed, CorruptFile) as error:
                pause = self._last_good.setdefault(generation, Backoff()).note_failure(may_pass=False)
                self._tell(f"{generation} cannot be served\n{error}\n  tried again in {pause:,.0f} s")
                waiting.add(generation)
            else:
                self._last_good.clear()
                self._tell(f"cut over to {generation}")
                return

    def _describe_reason(self, is_again: bool) -> str:
        """Why is built, and what is served meanwhile."""
        if self._serving.damage and not is_again:
            return f"building anew; {self._serving.describe_active()}"
        why = "building again" if is_again else "manifest or source has changed, building"
        return f"{why}; {self._serving.describe_active()}"

    async def _build_and_replace(self, spec: DatasetSpec, desired: DesiredInputs, *, is_again: bool) -> str:
        """Cut over to what is ``desired``, built unless it has been, and return that generation. What has been and
        cannot be served is built again the next time. Raises LookupdbError."""
        generation, is_new = await self._build(spec, desired, is_again=is_again)
        if not is_new and self._is_served(generation, desired):
            self._say(f"{spec.name}: the source has not changed since {generation} was built")
            return generation
        try:
            await self._replace(generation, spec)
        except (ChildFailed, CorruptFile):
            if not is_new:  # its files may be damaged; those of a new one are tried once more
                self._say(f"{spec.name}: {generation} cannot be served, the next attempt builds anew")
                self._unservable.add(generation)
            raise
        self._unservable.clear()
        return generation

    def _is_served(self, generation: str, desired: DesiredInputs) -> bool:
        """Whether ``generation`` is whole and served by as many processes as are ``desired``."""
        fingerprint = self._serving.manifest.fingerprint
        is_rolled_out = desired.serving._replace(fingerprint=fingerprint) == self._observer.serving_inputs()
        return generation == self._serving.manifest.generation and is_rolled_out and self._serving.damage is None

    async def _build(self, spec: DatasetSpec, desired: DesiredInputs, *, is_again: bool) -> tuple[str, bool]:
        """Return the generation that is ``desired``, and whether it was built now: it is unless it has been. Never one
        before what serves. Raises LookupdbError."""
        active = self._serving.manifest
        if self._unservable:
            self._prune(active.generation)  # they stay in the store: however many are built again, few are kept
        earlier = self._find_built(spec, desired)
        if earlier is None or spec.refresh.success_file is None:
            await self._observer.check_source(spec, desired)
        self._tell(self._describe_reason(is_again))
        if earlier is not None and spec.refresh.success_file is not None:
            return earlier.generation, False  # a builder would read a source that may no longer be whole
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
            raise LookupdbError(f"the builder has built {generation}, which is older than {active.generation}")
        return generation, built is not None

    def _find_built(self, spec: DatasetSpec, desired: DesiredInputs) -> Manifest | None:
        """Return the manifest of what is ``desired``, if it has been built since what serves, or serves, and nothing is
        known against it. Raises StoreError."""
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
        """Return the manifest of what serves, if only the source differs and its files are whole."""
        active = self._serving.manifest
        is_whole = active.generation not in self._unservable and self._serving.damage is None
        return active if is_whole and desired.serving.content == active.content else None

    async def _replace(self, generation: str, spec: DatasetSpec) -> None:
        """Serve ``generation`` in place of the active one, which goes on if that fails. Raises LookupdbError."""
        await self._serving.replace(generation, spec)
        self._prune(generation)
        self._say(f"{spec.name}: cut over to {generation}")

    def _prune(self, active: str) -> None:
        """Remove generations that are no longer kept. When that fails they stay until the next cutover."""
        try:
            sweep.prune(self._dataset, self._spec.keep_generations, protect={active})
        except LookupdbError as error:
            self._say(f"{self._spec.name}: older generations are not removed: {error}")


def _describe_retry(pause: float | None, desired: DesiredInputs) -> str:
    """When what was ``desired`` is tried again, ``pause`` seconds from now; None: not by itself."""
    changed = f"when manifest or {'source' if desired.success_file is None else 'success file'} change"
    return f"tried again {changed}" if pause is None else f"tried again in {pause:,.0f} s, or {changed}"


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
