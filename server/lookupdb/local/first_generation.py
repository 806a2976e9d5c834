"""The generation that `up` begins with, in this order, until one can be served: what is built now, if the source has
changed; the newest that was built to this spec; if that is damaged, what is built anew; those before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lookupdb.errors import CorruptFile, LookupdbError
from lookupdb.local import builds
from lookupdb.local.child import ChildFailed
from lookupdb.local.serving import Serving
from lookupdb.store import StoredDataset

_BUILD_FAILURES: Final = (builds.BuildFailed, builds.BuilderKilled, builds.SourceNotReady)
_LOAD_FAILURES: Final = (ChildFailed, CorruptFile)


async def load_first_generation(
    dataset: StoredDataset,
    builder: builds.Builder,
    serving: Serving,
    unservable: set[str],
    say: Callable[[str], None],
) -> str:
    """Load the generation to begin with, and return it. Those that cannot be served are added to ``unservable``.

    Raises LookupdbError where there is none: how the build has failed, or a server of what it has built.
    """
    spec = serving.spec
    reusable = builds.find_reusable_generation(dataset, spec)
    try:
        built = await builder.run(reusable, reusable, dataset.newest_refused())
    except _BUILD_FAILURES as error:
        return await _load_last_good(error, dataset, serving, unservable, say)
    if built is None:
        assert reusable is not None, "nothing to compare with is always built"
        say(f"{spec.name}: {reusable.generation} is whole and its source has not changed")
        if await _can_load(reusable.generation, serving, unservable, say):
            return reusable.generation
        say(f"{spec.name}: building anew")
        try:
            built = await builder.run()
        except _BUILD_FAILURES as error:
            return await _load_last_good(error, dataset, serving, unservable, say)
        assert built is not None, "a build without a fingerprint to compare with always builds"
    await serving.load(built)
    return built


async def _load_last_good(
    failure: LookupdbError,
    dataset: StoredDataset,
    serving: Serving,
    unservable: set[str],
    say: Callable[[str], None],
) -> str:
    """Load the newest that can be served, and return it. Raises ``failure``, that of the build, if there is none."""
    while (manifest := builds.find_reusable_generation(dataset, serving.spec, unservable=unservable)) is not None:
        generation = manifest.generation
        say(f"{serving.spec.name}: {failure}; serving {generation}, the last good generation")
        if await _can_load(generation, serving, unservable, say):
            return generation
    raise failure


async def _can_load(generation: str, serving: Serving, unservable: set[str], say: Callable[[str], None]) -> bool:
    """Load ``generation``. If that fails, say why, add it to ``unservable`` and return False."""
    try:
        await serving.load(generation)
    except _LOAD_FAILURES as error:
        say(f"{serving.spec.name}: {generation} cannot be served\n{error}")
        unservable.add(generation)
        return False
    return True
