"""The twin of the native ``MappedView``: what a caller looks keys up in."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from lookupdb.mapped.python_generation import PythonGeneration


class PythonView:
    """A generation that another one may take the place of. ``follower`` looks whether one should, before a lookup that
    comes ``refresh_seconds`` or more after the last look."""

    def __init__(
        self, generation: PythonGeneration, follower: Any | None = None, refresh_seconds: float | None = None
    ) -> None:
        self._generation: PythonGeneration | None = generation
        self._is_closed = False
        self.follower = follower
        self._looker = None if refresh_seconds is None else follower
        self._interval = refresh_seconds or 0.0
        self._due = time.monotonic() + self._interval

    def put(self, generation: PythonGeneration | None) -> None:
        """Answer from ``generation`` from now on; None: not any more, whatever comes later."""
        if generation is None:
            self._is_closed = True
        self._generation = generation
        if self._is_closed:  # also if another thread closes meanwhile
            self._generation = None

    def current(self) -> PythonGeneration:
        """The generation that answers now, after a look whether there is another one. Raises ValueError if it is
        closed."""
        if self._looker and (now := time.monotonic()) >= self._due and self._generation is not None:
            self._due = now + self._interval
            self._looker.look(self)
        if self._generation is None:
            raise ValueError("the mapping is closed")
        return self._generation

    def newest(self) -> PythonGeneration | None:
        """The generation that answered last, None if it is closed."""
        return self._generation

    def __len__(self) -> int:
        return self.current().records

    def __getitem__(self, key: Any) -> Any:
        return self._look_up(key, False)

    def raw(self, key: Any) -> bytes:
        """The bytes of the value of ``key``, not decoded. Raises KeyError."""
        value: bytes = self._look_up(key, True)
        return value

    def _look_up(self, key: Any, raw: bool) -> Any:
        generation = self.current()
        found = generation.find(key)
        if found is None:
            raise KeyError(key)
        shard, stored = found
        return generation.make_value(shard, key, stored, raw)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` if no record has it."""
        generation = self.current()
        found = generation.find(key)
        return default if found is None else generation.make_value(found[0], key, found[1], False)

    def __contains__(self, key: Any) -> bool:
        return self.current().find(key) is not None

    def get_many(self, keys: Iterable[Any], *, raw: bool = False) -> dict[str, Any]:
        """The values of those of ``keys`` that records have, by key, of one generation."""
        generation = self.current()
        if isinstance(keys, str | bytes):
            raise TypeError(f"keys are several texts, found one: {keys!r:.60}; get() takes one")
        values = {}
        for key in keys:
            found = generation.find(key)
            if found is not None:
                values[key] = generation.make_value(found[0], key, found[1], raw)
        return values

    def __iter__(self) -> Iterator[str]:
        return self.iterate("keys")

    def iterate(self, part: str, *, raw: bool = False) -> Iterator[Any]:
        """An iterator over the "keys", "values" or "items" of the generation that answers now."""
        if part not in ("keys", "values", "items"):
            raise ValueError(f"expected keys, values or items, found {part!r}")
        return _iterate(self.current(), part, raw)


def _iterate(generation: PythonGeneration, part: str, raw: bool) -> Iterator[Any]:
    for shard, key, stored in generation.iterate():
        if part == "keys":
            yield key
        else:
            value = generation.make_value(shard, key, stored, raw)
            yield value if part == "values" else (key, value)
