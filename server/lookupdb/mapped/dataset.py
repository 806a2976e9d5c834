"""``MappedDataset``, the mapping over a dataset's shards; its views; and ``open_dataset``, which is `lookupdb.open`."""

from __future__ import annotations

import os
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from functools import cache
from types import TracebackType, new_class
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

from lookupdb import native
from lookupdb.errors import GenerationMissing, UsageError
from lookupdb.manifest import Manifest
from lookupdb.mapped.generation import (
    Follower,
    GenerationFolder,
    Opener,
    OpenGeneration,
    choose_make_files,
    locate,
    open_target,
    unopened_error,
)
from lookupdb.records import K, Key
from lookupdb.wording import format_count

if TYPE_CHECKING:
    from lookupdb.mapped.python_generation import PythonGeneration as MappedFiles

# Views of a mapping: items, values, the set of its keys, and a sequence if its keys are the numbers from 0 on.


_TOGETHER: Final = 64
"""Values that an iteration over a sequence looks up at once."""


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
    """The keys, as a set. Operators such as & return a plain set."""

    _mapping: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return KeySet, (self._mapping,)


class ValueSequence(Sequence[Any]):
    """The values of a dataset whose keys are "0", "1" and so on, as a sequence.

    Raises UsageError on use if a later generation has other keys.
    """

    def __init__(self, mapping: MappedDataset) -> None:
        self._mapping = mapping
        self._checked: OpenGeneration | None = None
        self._take()

    def _take(self) -> MappedDataset:
        """Return the current generation, after checking its keys."""
        view = self._mapping.snapshot()
        facts = view.facts
        if facts is not self._checked:
            if not view.is_sequence():
                records = format_count(len(view), "record")
                raise UsageError(
                    f"{facts.folder} is not a sequence: expected the keys 0 to {len(view) - 1} for {records}",
                    hint="use it as a mapping; as_sequence() needs keys that are the numbers from 0 on",
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
        number = range(len(view))[place]  # as in a list: a negative place counts from the end; IndexError, TypeError
        return view[str(number)]

    def __iter__(self) -> Iterator[Any]:
        return _iterate(self._take(), 1)

    def __reversed__(self) -> Iterator[Any]:
        return _iterate(self._take(), -1)

    def __reduce__(self) -> tuple[Any, ...]:
        return ValueSequence, (self._mapping,)

    def __repr__(self) -> str:
        return f"<values of {self._mapping!r}>"


def _iterate(view: MappedDataset, step: int) -> Iterator[Any]:
    """Yield the values in the order of their places, or in reverse if ``step`` is -1."""
    places = range(len(view))[::step]
    for start in range(0, len(places), _TOGETHER):
        names = [str(place) for place in places[start : start + _TOGETHER]]
        values = view.get_many(names)
        for name in names:
            yield values[name]


REFRESH_SECONDS: Final = 0.1
_FRAME_ROWS: Final = 1000
"""Rows of a DataFrame that are looked up together."""
F = TypeVar("F")
"""A DataFrame, of pandas or polars."""


class MappedDataset(Mapping[str, Any]):
    """All records of a dataset, read-only, as ``lookupdb.open`` returns them.

    Values are JSON, decoded on each access, or bytes. Keys are normalised as the dataset says. A key that no record can
    have (too long, or not text) is missing, as in a dict. If keys have several columns, a key is a tuple of them. A
    damaged record raises CorruptFile, and is never missing. It is safe for threads, and for children of a fork.

    ``__getitem__``, ``get``, ``in``, ``len`` and iteration come from the native view, or from ``PythonView``.
    """

    __slots__ = ()

    # Methods of the view, native or Python, which precedes this class in the method resolution order.

    follower: Follower | None

    def __getitem__(self, key: Key) -> Any:
        raise NotImplementedError

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default`` if no record has it."""
        raise NotImplementedError

    def get_many(self, keys: Iterable[K], *, raw: bool = False) -> dict[K, Any]:
        """Return the values of those ``keys`` that exist, by the key as given, all of one generation. The native view
        looks them up together, much faster, while other threads run. Raises CorruptFile if one is damaged, TypeError if
        ``keys`` is one text."""
        raise NotImplementedError

    def lookup_frame(
        self,
        frame: F,
        on: str | Sequence[str],
        columns: str | Sequence[str] | None = None,
        *,
        prefix: str = "",
        suffix: str = "",
        missing: Literal["null", "error"] = "null",
    ) -> F:
        """Return ``frame``, of pandas or polars, with new columns, as the client's ``lookup_frame`` does."""
        from lookupdb.client.frames import FrameLookup

        work = FrameLookup(frame, on, columns, prefix=prefix, suffix=suffix, missing=missing)
        with self.snapshot() as view:
            if len(work.on) not in (1, len(names := view.manifest.key_columns)):
                raise UsageError(f"on={work.on!r:.200} has {len(work.on)} columns, a key has {', '.join(names)}")
            while not work.is_done:
                work.take(view.get_many(work.next_keys(_FRAME_ROWS)))
        enriched: F = work.finish()
        return enriched

    def raw(self, key: Key) -> bytes:
        """Return the bytes of the value of ``key``, not decoded. Raises KeyError."""
        raise NotImplementedError

    def iterate(self, part: str, *, raw: bool = False) -> Iterator[Any]:
        """Return an iterator over the "keys", "values" or "items" of the current generation; with ``raw``, values are
        bytes."""
        raise NotImplementedError

    current: Callable[[], MappedFiles]
    """Return the files of the current generation, after looking for a newer one. Raises ValueError if closed."""
    newest: Callable[[], MappedFiles | None]
    """Return the files of the current generation, without looking for a newer one; None if closed."""
    put: Callable[[MappedFiles | None], None]
    """Switch to a generation; None closes the mapping for good."""

    # Methods common to both views.

    def keys(self) -> KeysView[str]:
        """Return the keys, normalised, ordered by shard and then by their bytes."""
        return KeySet(self)

    def items(self) -> ItemsView[str, Any]:
        """Return keys and values. An iteration reads one generation to its end, and keeps nothing in memory."""
        return MappedItemsView(self)

    def values(self) -> ValuesView[Any]:
        """Return the values, in the order of the keys."""
        return MappedValuesView(self)

    def as_set(self) -> KeySet:
        """Return the keys as a read-only set."""
        return KeySet(self)

    def as_sequence(self) -> ValueSequence:
        """Return the values as a read-only sequence. All keys are read, once for each generation, and must be "0", "1"
        and so on. Raises UsageError if they are not."""
        return ValueSequence(self)

    @property
    def facts(self) -> OpenGeneration:
        """The folder and the manifest of the current generation."""
        facts: OpenGeneration = self.current().facts
        return facts

    @property
    def generation(self) -> str:
        """The name of the current generation, for example g12."""
        return self.facts.manifest.generation

    @property
    def manifest(self) -> Manifest:
        """The manifest of the current generation: ``built_at``, ``totals`` (records, bytes), its source and so on."""
        return self.facts.manifest

    def is_sequence(self) -> bool:
        """Return whether the keys are "0", "1" and so on, without a gap. Reads all keys."""
        return self.current().is_sequence()

    def snapshot(self) -> MappedDataset:
        """Return a mapping that stays with the current generation until it is closed or garbage-collected."""
        view: Any = type(self)
        snapshot: MappedDataset = view(self.current())
        return snapshot

    def reload(self) -> bool:
        """Look for another generation now, and return whether the mapping has switched to it. Raises StoreError or
        NotEnoughRoom if it cannot be opened (the current one stays), ValueError if closed."""
        self.current()
        return self.follower is not None and self.follower.reload(self)

    def close(self) -> None:
        """Release the files. Snapshots and iterators in use keep theirs. May be called twice."""
        self.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        """Return whether ``other`` is a mapping of the same keys and values. Reads all, and keeps nothing in memory."""
        if not isinstance(other, Mapping):
            return NotImplemented
        if self is other:
            return True
        missing = object()
        with self.snapshot() as view:
            return len(view) == len(other) and all(other.get(key, missing) == value for key, value in view.items())

    __hash__ = None  # type: ignore[assignment]  # compared by content, as a dict is

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a reference: unpickling opens the same place."""
        files = self.newest()
        if files is None:
            raise ValueError("the mapping is closed")
        if self.follower is None:
            return _reopen_generation, (str(files.facts.folder), _describe_build(files.facts.manifest))
        return _reopen, (str(self.follower.location.path), self.follower.opener.verifies, self.follower.refresh_seconds)

    def __repr__(self) -> str:
        files = self.newest()
        if files is None:
            return "<lookupdb mapping, closed>"
        manifest = files.facts.manifest
        records = format_count(manifest.totals.records, "record")
        return f"<lookupdb mapping {manifest.namespace}/{manifest.name} {manifest.generation}, {records}>"


def open_dataset(
    place: str | os.PathLike[str], *, verify: bool = False, refresh_seconds: float | None = REFRESH_SECONDS
) -> MappedDataset:
    """Open the dataset at ``place`` as a mapping; this is ``lookupdb.open``.

    ``place`` is a path: of a generation's folder; of a dataset's folder that ``lookupdb sync`` keeps (its link
    ``current`` names the active generation); or of a dataset's folder in a directory store. Or it is a dataset's name,
    ``people`` or ``team/people``, in the folder that LOOKUPDB_SYNC_DIR names.

    Except for a generation's folder, the mapping follows the dataset: a lookup first checks for another generation if
    ``refresh_seconds`` have passed since the last check (0: every lookup does; None: only ``reload`` does). With
    ``verify``, the checksums of all files are checked before a generation answers.

    Raises GenerationMissing if there is none, CorruptFile if it is not whole, UsageError, StoreError, NotEnoughRoom.
    """
    if refresh_seconds is not None and not refresh_seconds >= 0:
        raise UsageError(f"refresh_seconds is {refresh_seconds!r}, expected 0 or more, or None")
    location = locate(place)
    opener = Opener(choose_make_files(), verify)
    try:
        files = open_target(location, opener, None)
    except OSError as error:
        raise unopened_error(location.path, error) from error
    assert files is not None
    follower = None
    if not isinstance(location, GenerationFolder):
        follower = Follower(location, opener, files.facts.dataset, refresh_seconds)
    module = native.kernels()
    if module is not None and isinstance(files, module.MappedGeneration):
        view = module.MappedView
    else:
        from lookupdb.mapped.python_generation import PythonView as view  # noqa: N813
    mapping: MappedDataset = _make_class(view)(files, follower, refresh_seconds)
    return mapping


@cache
def _make_class(view: Any) -> Any:
    """Return a subclass of ``view`` and MappedDataset. The view's slots come first, so that a lookup runs no Python."""
    return new_class("MappedDataset", (view, MappedDataset), {}, lambda members: members.update(__module__=__name__))


def _describe_build(manifest: Manifest) -> tuple[str, str, str]:
    """Return what identifies a generation: its dataset's uid, its name, and when it was built."""
    return manifest.uid, manifest.generation, manifest.built_at


def _reopen_generation(path: str, build: tuple[str, str, str]) -> MappedDataset:
    """Open the pickled generation. Raises GenerationMissing if ``path`` holds another one by now."""
    mapping = _reopen(path, False, None)
    found = _describe_build(mapping.manifest)
    if found != build:
        mapping.close()
        raise GenerationMissing(
            f"{path} is {found[1]} of the dataset with uid {found[0]}, built at {found[2]}, expected"
            + f" {build[1]} of {build[0]}, built at {build[2]}",
            hint="a generation with the same number has replaced it: open the dataset again",
        )
    return mapping


def _reopen(path: str, verify: bool, refresh_seconds: float | None) -> MappedDataset:
    from pathlib import Path

    return open_dataset(Path(path), verify=verify, refresh_seconds=refresh_seconds)
