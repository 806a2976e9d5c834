"""The generation that `up` begins with, in this order, until one can be served: what is built now, if the source has
changed; the newest that was built to this spec; if that is damaged, what is built anew; those before it.

Where the success file has been answered, the source is not read: the newest that was built to this spec, and those
before it. Where none of them can be served, or the source is still the one that was answered and has yet to be built,
it goes on as above."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lookupdb.build.source.success_file import SourceNotWhole, describe_success_file
from lookupdb.errors import CorruptFile, LookupdbError
from lookupdb.keys import has_same_normalization
from lookupdb.local import builds
from lookupdb.local.child import ChildFailed
from lookupdb.local.observer import SourceObserver
from lookupdb.local.rebuilds import SuccessFileAnswer, find_standing_answer
from lookupdb.local.serving import Serving
from lookupdb.manifest import Manifest
from lookupdb.store import StoredDataset

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
    """Return how ``success_file`` was answered; None also where ``reusable`` must be built anew from any source."""
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
