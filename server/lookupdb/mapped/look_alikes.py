"""A mapping as other collections: its items and values, a set of its keys, and a sequence where keys are places."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Sequence, ValuesView
from typing import Any, Final, Protocol, overload

from lookupdb.errors import UsageError
from lookupdb.mapped.generation import OpenGeneration

_TOGETHER: Final = 64
"""Values of an iteration by places that are looked up together."""


class Records(Protocol):
    """What is needed of a mapping."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: str, /) -> Any: ...

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """See ``MappedDataset``."""

    def iterate(self, part: str) -> Iterator[Any]:
        """See ``MappedDataset``."""

    def is_sequence(self) -> bool:
        """See ``MappedDataset``."""

    def snapshot(self) -> Records:
        """See ``MappedDataset``."""

    @property
    def facts(self) -> OpenGeneration:
        """See ``MappedDataset``."""


class MappedItemsView(ItemsView[str, Any]):
    """Keys and values. An iteration reads one generation to its end."""

    _mapping: Any

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        yield from self._mapping.iterate("items")


class MappedValuesView(ValuesView[Any]):
    """Values. An iteration reads one generation to its end."""

    _mapping: Any

    def __iter__(self) -> Iterator[Any]:
        yield from self._mapping.iterate("values")

    def __contains__(self, value: object) -> bool:
        return any(found is value or found == value for found in self)


class KeySet(KeysView[str]):
    """The keys, as a set. What operators make of it is a set of its own."""

    _mapping: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return KeySet, (self._mapping,)


class ValueSequence(Sequence[Any]):
    """The values of a dataset whose keys are "0", "1" and so on, as a sequence.

    A generation whose keys are not is an error for whoever uses the sequence: UsageError.
    """

    def __init__(self, mapping: Records) -> None:
        self._mapping = mapping
        self._checked: OpenGeneration | None = None
        self._take()

    def _take(self) -> Records:
        """The generation that answers now, whose keys have been checked."""
        view = self._mapping.snapshot()
        facts = view.facts
        if facts is not self._checked:
            if not view.is_sequence():
                raise UsageError(
                    f"{facts.folder} is no sequence: expected the keys 0 to {len(view) - 1} for {len(view)} records",
                    hint="use it as a mapping; as_sequence() is for keys that are the rows' numbers from 0 on",
                )
            self._checked = facts
        return view

    def __len__(self) -> int:
        return len(self._take())

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        view = self._take()
        if isinstance(place, slice):
            names = [str(number) for number in range(*place.indices(len(view)))]
            values = view.get_many(names)
            return [values[name] for name in names]
        number = range(len(view))[place]  # as a list counts: from the end if it is negative; IndexError, TypeError
        return view[str(number)]

    def __iter__(self) -> Iterator[Any]:
        return _iterate(self._take(), 1)

    def __reversed__(self) -> Iterator[Any]:
        return _iterate(self._take(), -1)

    def __contains__(self, value: object) -> bool:
        return any(found is value or found == value for found in self._take().iterate("values"))

    def __reduce__(self) -> tuple[Any, ...]:
        return ValueSequence, (self._mapping,)

    def __repr__(self) -> str:
        return f"<values of {self._mapping!r}>"


def _iterate(view: Records, step: int) -> Iterator[Any]:
    """The values in the order of their places, some looked up at a time."""
    places = range(len(view))[::step]
    for start in range(0, len(places), _TOGETHER):
        names = [str(place) for place in places[start : start + _TOGETHER]]
        values = view.get_many(names)
        for name in names:
            yield values[name]
