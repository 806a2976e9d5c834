"""The mapping over a dataset's shards, and how it is opened."""

from __future__ import annotations

import os
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from functools import cache
from types import TracebackType, new_class
from typing import Any, Final, Protocol, Self, overload

from lookupdb import native
from lookupdb.errors import CorruptFile, GenerationMissing, LookupdbError, UsageError
from lookupdb.manifest import Manifest
from lookupdb.mapped.generation import Follower, MappedFiles, Opener, OpenGeneration, choose_make_files, open_target
from lookupdb.mapped.location import GenerationFolder, Location, locate, unopened_error

# A mapping as other collections: its items and values, a set of its keys, and a sequence where keys are places.


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


REFRESH_SECONDS: Final = 0.1


class MappedDataset(Mapping[str, Any]):
    """All records of a dataset, read-only: what ``lookupdb.open`` returns.

    Values are decoded when they are asked for (JSON), or are bytes. Keys are normalised as the dataset says. What no
    record can have as its key is missing: text that is too long, or what is no text, as for a dict. What is damaged
    is CorruptFile for its key, and never missing. Any thread may use it, and so may children of a fork.

    ``__getitem__``, ``get``, ``in``, ``len`` and iteration are native, or of ``PythonView``.
    """

    __slots__ = ()

    # Of the views, native or Python's, which come before this class in the order of resolution.

    follower: Follower | None

    def get_many(self, keys: Iterable[str], *, raw: bool = False) -> dict[str, Any]:
        """The values of those of ``keys`` that records have, by the key as it is given, of one generation. Natively
        they are looked up together, in a fraction of the time, and other threads run meanwhile. Raises CorruptFile if
        one is damaged, TypeError if ``keys`` are one text."""
        raise NotImplementedError

    def raw(self, key: str) -> bytes:
        """The bytes of the value of ``key``, not decoded. Raises KeyError."""
        raise NotImplementedError

    def iterate(self, part: str, *, raw: bool = False) -> Iterator[Any]:
        """An iterator over the "keys", "values" or "items" of the generation that answers now; with ``raw`` values are
        bytes."""
        raise NotImplementedError

    def current(self) -> MappedFiles:
        """The files of the generation that answers now. Raises ValueError if this is closed."""
        raise NotImplementedError

    def newest(self) -> MappedFiles | None:
        """Those of the generation that answered last, without a look; None if this is closed."""
        raise NotImplementedError

    def put(self, generation: MappedFiles | None) -> None:
        """Answer from ``generation`` from now on; None: not any more, whatever comes later."""
        raise NotImplementedError

    # What is the same for both.

    def keys(self) -> KeysView[str]:
        """The keys, as records have them: normalised. In the order of shards, then of their bytes."""
        return KeySet(self)

    def items(self) -> ItemsView[str, Any]:
        """Keys and values. An iteration reads one generation to its end, and keeps nothing."""
        return MappedItemsView(self)

    def values(self) -> ValuesView[Any]:
        """Values, in the order of the keys."""
        return MappedValuesView(self)

    def as_set(self) -> KeySet:
        """The keys, as a read-only set."""
        return KeySet(self)

    def as_sequence(self) -> ValueSequence:
        """The values, as a read-only sequence. All keys are read, once for each generation: they must be "0", "1" and
        so on. Raises UsageError if they are not."""
        return ValueSequence(self)

    @property
    def facts(self) -> OpenGeneration:
        """What is known of the generation that answers now: its folder and its manifest."""
        return self.current().facts

    @property
    def generation(self) -> str:
        """The name of the generation that answers now: g12."""
        return self.facts.manifest.generation

    @property
    def manifest(self) -> Manifest:
        """All about the generation that answers now: ``built_at``, ``totals`` (records, bytes), source and so on."""
        return self.facts.manifest

    def is_sequence(self) -> bool:
        """Whether the keys are "0", "1" and so on, without a gap. Reads all keys."""
        return self.current().is_sequence()

    def snapshot(self) -> MappedDataset:
        """The generation that answers now, as a mapping that stays with it until it is closed or forgotten."""
        view: Any = type(self)
        snapshot: MappedDataset = view(self.current())
        return snapshot

    def reload(self) -> bool:
        """Look now whether another generation is to answer. Returns whether one does from now on. Raises StoreError or
        NotEnoughRoom if it cannot be opened, ValueError if this is closed: what answers goes on."""
        self.current()
        return self.follower is not None and self.follower.reload(self)

    def close(self) -> None:
        """Let go of the files. Snapshots and iterators that are in use keep theirs. May be called twice."""
        self.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        """Whether ``other`` is a mapping of the same keys and values. Reads all of them, and keeps nothing."""
        if not isinstance(other, Mapping):
            return NotImplemented
        if self is other:
            return True
        missing = object()
        with self.snapshot() as view:
            return len(view) == len(other) and all(other.get(key, missing) == value for key, value in view.items())

    __hash__ = None  # type: ignore[assignment]  # it is what it holds, as a dict is

    def __reduce__(self) -> tuple[Any, ...]:
        """By reference: who unpickles it opens the same place."""
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
        records = manifest.totals.records
        return f"<lookupdb mapping {manifest.namespace}/{manifest.name} {manifest.generation}, {records:,} records>"


def open_dataset(
    place: str | os.PathLike[str], *, verify: bool = False, refresh_seconds: float | None = REFRESH_SECONDS
) -> MappedDataset:
    """The dataset at ``place``, as a mapping: ``lookupdb.open``.

    ``place`` is the path of a generation's folder, of a dataset's folder as ``lookupdb sync`` keeps it (``current``
    says which generation answers) or of one in a directory store; or a dataset's name, ``people`` or ``team/people``,
    in the folder that LOOKUPDB_SYNC_DIR names. But for a generation's folder the mapping follows: a lookup that comes
    ``refresh_seconds`` or more after the last look looks first whether another generation is to answer (0: each does;
    None: only ``reload`` does). With ``verify`` the checksums of a generation's files are proven before it answers.

    Raises GenerationMissing if there is none, CorruptFile if it is not whole, UsageError, StoreError, NotEnoughRoom.
    """
    if refresh_seconds is not None and not refresh_seconds >= 0:
        raise UsageError(f"refresh_seconds is {refresh_seconds!r}, expected 0 or more, or None")
    location = locate(place)
    opener, files = _open_first(location, verify)
    follower = None
    if not isinstance(location, GenerationFolder):
        follower = Follower(location, opener, files.facts.dataset, refresh_seconds)
    mapping: MappedDataset = _mapping_class(files)(files, follower, refresh_seconds)
    return mapping


def _open_first(location: Location, verify: bool) -> tuple[Opener, MappedFiles]:
    """What opens generations, and the one that is to answer. Python takes the place of the native kernels where these
    do not know the format of files which are as their builder wrote them: damaged ones would let LMDB end the
    process."""
    opener = Opener(choose_make_files(), verify)
    try:
        return opener, _open(location, opener)
    except CorruptFile as problem:
        if native.kernels() is None or not isinstance(problem.__cause__, ValueError):
            raise
        from lookupdb.mapped.python_generation import PythonGeneration

        try:
            _open(location, Opener(PythonGeneration, verifies=True))
        except CorruptFile:
            raise problem from None
        native.set_aside(problem.message)
        opener = Opener(PythonGeneration, verify)
        return opener, _open(location, opener)


def _open(location: Location, opener: Opener) -> MappedFiles:
    try:
        files = open_target(location, opener, None)
    except LookupdbError:
        raise
    except OSError as error:
        raise unopened_error(location.path, error) from error
    assert files is not None
    return files


def _mapping_class(files: MappedFiles) -> Any:
    module = native.kernels()
    if module is not None and isinstance(files, module.MappedGeneration):
        return _make_class(module.MappedView)
    from lookupdb.mapped.python_generation import PythonView

    return _make_class(PythonView)


@cache
def _make_class(view: type[Any]) -> Any:
    """MappedDataset with what ``view`` has for it. The view's slots come first, so that a lookup runs no Python."""
    return new_class("MappedDataset", (view, MappedDataset), {}, lambda members: members.update(__module__=__name__))


def _describe_build(manifest: Manifest) -> tuple[str, str, str]:
    """What no other generation has: its dataset, number and build."""
    return manifest.uid, manifest.generation, manifest.built_at


def _reopen_generation(path: str, build: tuple[str, str, str]) -> MappedDataset:
    """The same generation as was pickled. Raises GenerationMissing if another one is at ``path`` by now."""
    mapping = _reopen(path, False, None)
    found = _describe_build(mapping.manifest)
    if found != build:
        mapping.close()
        raise GenerationMissing(
            f"{path} is {found[1]} of the dataset with uid {found[0]}, built at {found[2]}, expected"
            + f" {build[1]} of {build[0]}, built at {build[2]}",
            hint="a generation with the same number has taken its place: open the dataset anew",
        )
    return mapping


def _reopen(path: str, verify: bool, refresh_seconds: float | None) -> MappedDataset:
    from pathlib import Path

    return open_dataset(Path(path), verify=verify, refresh_seconds=refresh_seconds)
