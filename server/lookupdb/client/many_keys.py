"""Many keys in several requests, and one result of one generation. Decides, and does no I/O: ``ManyKeys.plan`` yields
what is to be asked or waited for, and is sent what came of it.

The first part is asked of whichever generation is active, and all others by the name of the one that answered. When a
cutover has ended that one meanwhile (412), everything is asked again. While the dataset is rolled out shard by shard no
generation can be asked by name, and the result names all that have answered.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple

from lookupdb.client.answers import KeysAnswer
from lookupdb.client.refusals import make_unavailable
from lookupdb.client.results import MISSING, LookupResults
from lookupdb.errors import LookupFailed, RequestRefused, Unavailable, UnknownGeneration

_MAX_PASSES: Final = 6
_FIRST_PAUSE_SECONDS: Final = 0.02
"""Before everything is asked again; twice as long each time. Routers of one dataset cut over within moments."""
_MAX_PART_CHARACTERS: Final = 200_000
_TOO_LARGE: Final = 413
GENERATION_CHANGED: Final = "GenerationChanged"


class Part(NamedTuple):
    """Keys to be asked for at once, in the named generation, or in the one that is active or fixed."""

    keys: Sequence[str]
    generation: str | None


class Pause(NamedTuple):
    """Seconds to be waited for."""

    seconds: float


Step = Part | Pause
Outcome = KeysAnswer | LookupFailed | None
"""Of a Part what it came to, of a Pause None."""


class ManyKeys:
    """One call of ``get_many``."""

    def __init__(
        self,
        keys: Sequence[str],
        characters: int,
        *,
        max_keys: int,
        partial: bool,
        generation: str | None = None,
        cached: tuple[dict[str, Any], str] | None = None,
    ) -> None:
        """``keys`` are distinct, and have so many ``characters`` together. ``generation`` is the one that the caller
        insists on. ``cached`` are values that are known already, or MISSING, and their generation."""
        self._keys = keys
        self.max_keys = max_keys
        """Of one part: less than at first once the router has refused one as too large."""
        self._partial = partial
        self.fits_one_part = len(keys) <= max_keys and characters <= _MAX_PART_CHARACTERS and cached is None
        """Whether the first step is a Part of all keys, and its answer the end unless it is an error."""
        self._fixed = generation
        self._cached = cached

    @property
    def keys(self) -> Sequence[str]:
        """All of them."""
        return self._keys

    def plan(self) -> Generator[Step, Outcome, LookupResults]:
        """Raises LookupFailed."""
        is_mixed = False
        for number in range(_MAX_PASSES):
            try:
                return (yield from self._ask_all(is_mixed=is_mixed))
            except UnknownGeneration as error:
                if self._fixed is not None:
                    raise
                is_mixed = len(error.active) > 1
            self._cached = None
            yield Pause(_FIRST_PAUSE_SECONDS * (1 << number) * random.uniform(0.5, 1))  # noqa: S311 - no secret
        detail = f"the generation changed {_MAX_PASSES} times while its keys were asked for in parts; ask again"
        raise make_unavailable(tuple(self._keys), GENERATION_CHANGED, detail)

    def _ask_all(self, *, is_mixed: bool) -> Generator[Step, Outcome, LookupResults]:
        cached, cached_generation = self._cached or ({}, None)
        merged = _Merged()
        remaining = [key for key in self._keys if key not in cached]
        name: str | None = None
        while remaining:
            part = _take_part(remaining, self.max_keys)
            outcome = yield Part(part, name)
            is_something_known = bool(cached) or merged.has_answers
            if isinstance(outcome, KeysAnswer):
                merged.add(outcome)
                if not is_mixed and outcome.generation is None:
                    is_mixed, name = True, None
                elif not is_mixed:
                    name = outcome.generation
                if cached and name != cached_generation:
                    remaining += cached  # what is cached is of another generation
                    cached = {}
            elif isinstance(outcome, RequestRefused) and outcome.status == _TOO_LARGE and len(part) > 1:
                self._shrink(len(part), outcome.limit)
                remaining[:0] = part
            elif isinstance(outcome, Unavailable) and self._partial:
                merged.failure = outcome
                merged.unavailable += part
            elif isinstance(outcome, RequestRefused) and not outcome.status and self._partial and is_something_known:
                merged.unavailable += part  # a connection was refused, such as by its certificate, and not the request
            else:
                assert isinstance(outcome, LookupFailed)
                raise self._widen(outcome, part)
        merged.add_cached(cached, cached_generation)
        if self._cached is not None:  # which were not asked for in their turn
            merged.sort(self._keys)
        return merged.result(self._keys)

    def _widen(self, error: LookupFailed, part: Sequence[str]) -> LookupFailed:
        """The error of the whole call: nothing is told of any key."""
        if isinstance(error, Unavailable) and len(part) < len(self._keys):
            return make_unavailable(tuple(self._keys), error.reason, error.detail, error.shard)
        return error

    def _shrink(self, size: int, limit: int | None) -> None:
        self.max_keys = limit if limit is not None and limit < size else max(1, size // 2)


class _Merged:
    """What the parts came to."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.missing: list[str] = []
        self.unavailable: list[str] = []
        self.failure: Unavailable | None = None
        self._generations: dict[str, None] = {}

    def add(self, answer: KeysAnswer) -> None:
        if self.found:
            self.found.update(answer.found)
        else:
            self.found = answer.found
        self.missing += answer.missing
        self.unavailable += answer.unavailable
        self._generations.update(dict.fromkeys(answer.generations))

    @property
    def has_answers(self) -> bool:
        """Whether something is known of a key."""
        return bool(self.found or self.missing)

    def add_cached(self, cached: dict[str, Any], generation: str | None) -> None:
        if generation is not None and cached:
            self.found |= {key: value for key, value in cached.items() if value is not MISSING}
            self.missing += [key for key, value in cached.items() if value is MISSING]
            self._generations[generation] = None

    def sort(self, keys: Sequence[str]) -> None:
        """Bring all into the order of ``keys``. Without it they are in that in which they were added."""
        missing, unavailable = {*self.missing}, {*self.unavailable}
        self.found = {key: self.found[key] for key in keys if key in self.found}
        self.missing = [key for key in keys if key in missing]
        self.unavailable = [key for key in keys if key in unavailable]

    def result(self, keys: Sequence[str]) -> LookupResults:
        """Raises Unavailable if nothing can be said of any key."""
        if self.failure is not None and len(self.unavailable) == len(keys):
            raise make_unavailable(tuple(keys), self.failure.reason, self.failure.detail, self.failure.shard)
        generations = tuple(sorted(self._generations, key=_number))
        only = generations[0] if len(generations) == 1 else None
        return LookupResults(self.found, self.missing, self.unavailable, only, generations)


def _take_part(remaining: list[str], most: int) -> list[str]:
    """Take the first keys out of ``remaining``: ``most``, or fewer if they are long."""
    part = remaining[:most]
    if sum(map(len, part)) > _MAX_PART_CHARACTERS:
        characters = 0
        for count, key in enumerate(part):
            characters += len(key)
            if count and characters > _MAX_PART_CHARACTERS:
                del part[count:]
                break
    del remaining[: len(part)]
    return part


def _number(generation: str) -> int:
    return int(generation[1:])
