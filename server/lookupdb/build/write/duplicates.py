"""What happens to rows with the same key: fail, keep the first, or keep the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from lookupdb import native
from lookupdb.build.sort.runs import Batch, Record, as_native
from lookupdb.errors import BadSource
from lookupdb.manifest import SAMPLES, ExcludedRows, RowSample


class DuplicateFilter:
    """Drops rows with equal keys from a stream ordered by (key, place), and counts them."""

    def __init__(
        self,
        policy: Literal["fail", "first", "last"],
        files: Sequence[str],
        find_origin: Callable[[int], tuple[int, int]],
    ) -> None:
        """``find_origin`` returns the number of a place's file in ``files``, and the row in it."""
        self._policy = policy
        self._files = files
        self._find_origin = find_origin
        self._count = 0
        self._samples: list[RowSample] = []

    @property
    def rows(self) -> ExcludedRows:
        """The rows dropped so far."""
        return ExcludedRows(self._count, tuple(self._samples))

    def drop_duplicates(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, with one record per key. Raises BadSource if the policy is fail and a key occurs twice.

        The last record of a batch waits until the next batch shows whether its key occurs again.
        """
        kernels = native.kernels()
        return self._drop_in_lists(batches) if kernels is None else self._drop_natively(kernels, batches)

    def _drop_natively(self, kernels: Any, batches: Iterable[Batch]) -> Iterator[Batch]:
        unique = kernels.UniqueRecords(self._policy == "last", SAMPLES)
        for batch in batches:
            kept, dropped, first = unique.filter(as_native(kernels, batch))
            for key, place, survivor in first:
                self._sample_drop(key, place, survivor)
            self._count += dropped
            del batch  # while what is kept of it is packed and written
            if len(kept):
                yield kept
            del kept
        last = unique.finish()
        if len(last):
            yield last

    def _drop_in_lists(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        pending: list[Record] = []
        for batch in batches:
            records = [*pending, *batch]
            if len({record[0] for record in records}) != len(records):
                records = self._remove_duplicates(records)
            pending = records[-1:]
            if len(records) > 1:
                yield records[:-1]
        if pending:
            yield pending

    def _remove_duplicates(self, records: list[Record]) -> list[Record]:
        unique = records[:1]
        for record in records[1:]:
            key, place, _ = record
            _, last_place, _ = unique[-1]
            if key != unique[-1][0]:
                unique.append(record)
                continue
            self._count += 1
            if self._policy == "last":
                self._sample_drop(key, last_place, place)
                unique[-1] = record
            else:
                self._sample_drop(key, place, last_place)
        return unique

    def _sample_drop(self, key: bytes, place: int, survivor: int) -> None:
        if self._policy == "fail":
            first, second = map(self._describe_origin, sorted((place, survivor)))
            raise BadSource(
                f"the key {key.decode()!r} occurs twice: {first} and {second}",
                hint="correct the source, or set `duplicates: first` or `duplicates: last` to keep one of them",
            )
        if len(self._samples) < SAMPLES:
            reason = f"the key {key.decode()!r} stands also in {self._describe_origin(survivor)}, which is kept"
            file, row = self._find_origin(place)
            self._samples.append(RowSample(self._files[file], row, reason))

    def _describe_origin(self, place: int) -> str:
        file, row = self._find_origin(place)
        return f"row {row} of {self._files[file]}"
